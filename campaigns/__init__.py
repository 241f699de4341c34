"""Campaigns: what to prove about each store, one folder per store."""

"""Campaigns over the run store."""

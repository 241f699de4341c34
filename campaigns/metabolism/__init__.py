"""Campaigns over the metabolism runtime."""

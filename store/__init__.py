"""Durable stores that the harness proves. Imports nothing from harness or campaigns."""

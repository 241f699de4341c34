"""Broken twins of the run store, and what it takes to show that the campaigns catch them."""

"""Runs stored in a database, and patterns across them."""

"""Runs kept in a database, and what they show together."""

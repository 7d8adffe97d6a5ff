"""Finds out what this machine can and cannot check: all items are examined in parallel, each with its own deadline."""

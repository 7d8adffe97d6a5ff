"""The collective smoke run."""

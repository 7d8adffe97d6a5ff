"""Reads the logs of a failed run: which rank failed first, why, and which check would have caught it."""

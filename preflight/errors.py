"""Mistakes of the user's, which end a run with a sentence instead of a traceback."""

from __future__ import annotations


class UsageError(Exception):
    """The command line or configuration asks for something that cannot be done; exit code 2."""

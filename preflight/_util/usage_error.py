"""Mistakes of the user, which end a run with one sentence instead of a traceback."""

from __future__ import annotations


class UsageError(Exception):
    """The command line or configuration asks for something that cannot be done; exit code 2."""

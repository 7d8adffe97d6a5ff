"""Databases of each kind, as the tests of the history have them."""

from __future__ import annotations

from tests.commands.history.conftest import address, new_postgres, server

__all__ = ["address", "new_postgres", "server"]

"""Databases for tests: a SQLite file, and a real PostgreSQL server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands.history.postgres import address_of, programs, running_server

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Path]:
    """The folder of the socket of a PostgreSQL server."""
    if programs() is None:
        reason = "PostgreSQL is not installed (Debian package: postgresql)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with running_server() as home:
        yield home


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/history.db"
    return address_of(request.getfixturevalue("server"), f"test{next(_NUMBERS)}")


@pytest.fixture
def new_postgres(server: Path) -> Callable[[], str]:
    """Makes the address of a new database of the server."""
    return lambda: address_of(server, f"test{next(_NUMBERS)}")

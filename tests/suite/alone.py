"""Tests marked `alone` have the machine to themselves: no other worker runs a test meanwhile.

All others hold a lock together, and these hold it for themselves. Who wants it waits at a gate, so that a test that
must be alone gets its turn although the others never all stop at once.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from pathlib import Path

import pytest

#: The folder of the locks, which the workers of one run share.
_FOLDER = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Say what the mark means."""
    config.addinivalue_line("markers", "alone: needs the whole machine; no test of another worker runs beside it")


# Outside of the time limit of a test, and around its fixtures.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the lock, and run the test."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    folder = _folder(item.config)
    wanted = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with (folder / "gate").open("w") as gate, (folder / "machine").open("w") as machine:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(machine, wanted)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            # Closing would not do where a forked process of the test lives on.
            fcntl.flock(machine, fcntl.LOCK_UN)


def _folder(config: pytest.Config) -> Path:
    """The folder that all workers have: above the base of each one's temporary folders."""
    if _FOLDER not in config.stash:
        config.stash[_FOLDER] = config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
    return config.stash[_FOLDER]

"""Tests marked `alone` have the machine to themselves: no other worker runs a test meanwhile.

All others share a lock, and these hold it exclusively. A test that wants the lock first takes a gate, so that an
exclusive test gets its turn although the others never all stop at once.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO

import pytest

#: Seconds to wait for the lock. The longest test, tried twice, takes less than half of it.
MAX_WAIT_S = 900.0
_POLL_S = 0.02
#: The folder of the locks, which the workers of one run share.
_FOLDER = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "alone: needs the whole machine; no test of another worker runs beside it")


# Outside of the time limit of a test, and around its fixtures.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the lock, and run the test."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    folder = _folder(item.config)
    wanted = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with (folder / "gate").open("a+") as gate, (folder / "machine").open("a+") as machine:
        lock(gate, fcntl.LOCK_EX)
        try:
            lock(machine, wanted)
            machine.truncate(0)
            machine.write(item.nodeid)
            machine.flush()
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            # Closing the file would not unlock it if a forked process of the test still runs.
            fcntl.flock(machine, fcntl.LOCK_UN)


def lock(file: IO[str], kind: int, *, longest_s: float = MAX_WAIT_S) -> None:
    """Lock a file within a time limit.

    Raises:
        TimeoutError: it stayed locked; the message holds the content of the file, the last test that locked it.
    """
    ends = time.monotonic() + longest_s
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > ends:
                file.seek(0)
                last = file.read() or "no test"
                raise TimeoutError(f"{file.name} was locked for {longest_s:g} s; last locked by {last}") from None
            time.sleep(_POLL_S)
        else:
            return


def _folder(config: pytest.Config) -> Path:
    """The folder that all workers share: above the base of each one's temporary folders."""
    if _FOLDER not in config.stash:
        config.stash[_FOLDER] = config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
    return config.stash[_FOLDER]

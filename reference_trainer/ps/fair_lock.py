"""A fair lock that decides which thread of a server may compute.

Threads of one interpreter wait for its lock after every operation of torch, because each operation releases and
reacquires it: with two workers, twelve times for a small request. A turn is held over the whole request, and released
only around system calls, waits, and operations large enough to benefit from a second processor.
"""

from __future__ import annotations

import threading
from typing import Any, Callable

#: Operations above this size run without the lock, on their own processor.
LARGE_BYTES = 1 << 20


class FairLock:
    """A lock that only its holder releases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0

    def acquire(self) -> None:
        """Wait for it."""
        self._lock.acquire()
        self._holder = threading.get_ident()

    def release(self) -> bool:
        """Let another thread have it; returns whether this thread held it."""
        if self._holder != threading.get_ident():
            return False
        self._holder = 0
        self._lock.release()
        return True


class NoLock(FairLock):
    """A lock for a single thread."""

    def acquire(self) -> None:
        """Return at once."""

    def release(self) -> bool:
        """Do nothing."""
        return False


class Released:
    """`with Released(turn)`: an operation for which the others need not wait."""

    def __init__(self, turn: FairLock) -> None:
        self._turn = turn
        self._held = False
        #: `work` releases the turn for more than this.
        self.least_bytes = LARGE_BYTES

    def __enter__(self) -> None:
        self._held = self._turn.release()

    def __exit__(self, *error: Any) -> None:
        if self._held:
            self._turn.acquire()

    def work(self, size: int, work: Callable[..., None], *given: Any) -> None:
        """A context for work on this many bytes, which runs in turn or concurrently."""
        if size <= self.least_bytes:
            work(*given)
            return
        with self:
            work(*given)

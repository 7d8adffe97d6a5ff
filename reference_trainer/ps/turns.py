"""Who computes now, of the threads of one server that serve small requests.

Threads of one interpreter wait for its lock after every operation of torch, because each lets go of it and takes it
again: with two workers twelve times for a small request. A turn is held over the whole request, and given up only
around calls of the kernel, around waits, and around what is large enough to gain by a second processor.
"""

from __future__ import annotations

import threading
from typing import Any, Callable

#: What is larger is worth a processor of its own.
LARGE_BYTES = 1 << 20


class Turn:
    """A lock that only its holder gives up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0

    def acquire(self) -> None:
        """Wait for it."""
        self._lock.acquire()
        self._holder = threading.get_ident()

    def release(self) -> bool:
        """Let another one have it; whether this thread held it."""
        if self._holder != threading.get_ident():
            return False
        self._holder = 0
        self._lock.release()
        return True


class NoTurn(Turn):
    """Nobody else is here."""

    def acquire(self) -> None:
        """At once."""

    def release(self) -> bool:
        """Nothing to do."""
        return False


class Apart:
    """`with Apart(turn)`: something that the others need not wait for."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._held = False
        #: `work` gives the turn up for more than this.
        self.least_bytes = LARGE_BYTES

    def __enter__(self) -> None:
        self._held = self._turn.release()

    def __exit__(self, *error: Any) -> None:
        if self._held:
            self._turn.acquire()

    def work(self, size: int, work: Callable[..., None], *given: Any) -> None:
        """Work on so many bytes: in turn, or beside the others."""
        if size <= self.least_bytes:
            work(*given)
            return
        with self:
            work(*given)

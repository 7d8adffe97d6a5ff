"""How much longer things take because other work shares the machine."""

from __future__ import annotations

import threading
import time
from types import TracebackType

_SPIN_S, _PAUSE_S = 0.005, 0.1


class Slowdown:
    """`with Slowdown() as slow:` measures how long CPU time takes to get; `slow.factor` is 1 on a quiet machine.

    A thread wants a little CPU time again and again, and compares it with the time on the clock. It needs 5 % of
    one processor. Only for blocks that wait for other processes: a busy thread of this one would slow it down as well.
    """

    def __enter__(self) -> Slowdown:
        self._wall_s = self._own_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def factor(self) -> float:
        """Seconds on the clock for one second of CPU time, at least 1."""
        return max(1.0, self._wall_s / self._own_s) if self._own_s else 1.0

    def _measure(self) -> None:
        while True:
            wall_s, own_s = time.monotonic(), time.thread_time()
            while time.thread_time() < own_s + _SPIN_S:
                pass
            self._own_s += time.thread_time() - own_s
            self._wall_s += time.monotonic() - wall_s
            if self._over.wait(_PAUSE_S):
                return

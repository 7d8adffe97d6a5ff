"""The limits of CPU time and memory for one input. Exceeding them is a fault of the reader, whatever its result."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
#: Resets the peak of the resident size (proc(5), clear_refs).
_RESET_PEAK = "5"


class Exceeded(BaseException):
    """An input exceeded its limits. Not an `Exception`, because the code under test catches those to isolate its
    rules."""


@dataclass(frozen=True)
class Limits:
    """The limits of one input: CPU seconds of this process, and bytes of additional resident memory."""

    cpu_s: float = 2.0
    memory_bytes: int = 256 * MIB

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Raise Exceeded in the running code when the time is over, or at the end for memory.

        CPU time instead of the clock, so that a busy machine causes no findings. Only user time stops the run: its
        timer uses neither SIGALRM, which libFuzzer needs, nor SIGPROF.
        """
        before_bytes = _reset_peak()
        began_s = time.process_time()
        previous = signal.signal(signal.SIGVTALRM, self._over)
        signal.setitimer(signal.ITIMER_VIRTUAL, self.cpu_s, 0.5)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, previous)
        took_s = time.process_time() - began_s
        if took_s > self.cpu_s:
            raise Exceeded(f"time: {took_s:.1f} s of CPU, at most {self.cpu_s:g} s")
        grown = _peak_bytes() - before_bytes
        if before_bytes and grown > self.memory_bytes:
            raise Exceeded(f"memory: {grown // MIB} MiB more than before, at most {self.memory_bytes // MIB} MiB")

    def _over(self, number: int, frame: Any) -> None:
        raise Exceeded(f"time: more than {self.cpu_s:g} s of CPU")


def _reset_peak() -> int:
    """Reset the peak, and return the present resident size; 0 if the system does not report it."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return 0
    return _peak_bytes()


def _peak_bytes() -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0

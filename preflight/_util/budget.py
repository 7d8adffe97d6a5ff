"""The budget of one run: steps, CPU time and memory, charged by every reader and every rule.

A run is divided into sections: one for each reading of a file, each rule on a job, and each piece of work in between.
Each section has its own limit, and usage beyond a fair share is taken from a pool for the whole run, so that neither
one file nor ten thousand can keep lint busy for long. A section that exceeds its budget is abandoned and reported by
name.

Steps are counted by the code that does the work (`spend`); they are the same on every machine, and they are the
intended limit. CPU time and memory are the last resort, for code that counts nothing: a rule from a plugin, a
regular expression that backtracks. They are checked some twenty times per second of CPU time, by a signal in the main
thread, which also interrupts regular expressions, and by a thread elsewhere.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

#: Seconds of CPU time between two checks of the current section.
_TICK_S = 0.05
_MIB = 1 << 20
#: A file of this size gets one more second in its fair share.
_FAIR_BYTES_PER_S = _MIB


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run.

    A section may take `steps_each` and `seconds_each`; usage beyond its fair share (which grows with the size of its
    input) comes out of `steps_pool` and `seconds_pool`.

    Args:
        seconds_run: the total CPU time until the run begins to judge, in sections and between them;
            `judging_seconds_run` is the limit for judging.
        memory_bytes: how much the process may grow from the start until the run begins to judge; `judging_memory_bytes`
            is the same until it ends. The report is written with the rest of 512 MiB.
        held_bytes: the total size of file contents that are kept in memory at the same time.
    """

    steps_each: int = 400_000
    steps_fair: int = 20_000
    steps_pool: int = 1_000_000
    seconds_each: float = 6.0
    seconds_fair: float = 0.1
    seconds_pool: float = 12.0
    judging_seconds_pool: float = 6.0
    seconds_run: float = 32.0
    judging_seconds_run: float = 10.0
    memory_bytes: int = 192 * _MIB
    judging_memory_bytes: int = 240 * _MIB
    held_bytes: int = 24 * _MIB


class BudgetExceeded(BaseException):
    """The current section has used up its budget.

    Not an `Exception`, so that no reader's or rule's handler for its own errors catches it.

    Args:
        excess: the exceeded resource with its limit, in words that follow "it takes".
        of_memory: whether the resource is memory, which the next section may need.
    """

    def __init__(self, excess: str, *, of_memory: bool = False) -> None:
        super().__init__(excess)
        self.excess = excess
        self.of_memory = of_memory


@dataclass(slots=True)
class Section:
    """One piece of work with its own limit."""

    steps_left: int
    steps_limit: int
    ticks_limit: int
    ticks: int = 0
    #: What was skipped, each item in words.
    left_out: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return self.steps_limit - self.steps_left


#: Further reasons why a file is not judged add no information.
_MAX_LEFT_OUT = 20
#: None outside of a run: a reader called directly, by a test or a plugin, has only its own limits.
_SECTION: ContextVar[Section | None] = ContextVar("section", default=None)
_RUN: ContextVar[Budget | None] = ContextVar("budget", default=None)


@dataclass(slots=True)
class Budget:
    """The remaining budget of one run."""

    limits: Limits = field(default_factory=Limits)
    steps_pool: int = field(init=False)
    ticks_pool: int = field(init=False)
    #: Ticks left for all sections and for the work between them.
    ticks_run: int = field(init=False)
    #: Steps and ticks that the last section used; zero if it was refused because the budget was spent.
    last: tuple[int, int] = (0, 0)
    _section: Section | None = None
    _memory_limit: int = 0
    _memory_start: int = 0
    _memory_bytes: int = 0
    #: The resource that the run has used up, so that no further section is opened.
    _spent: str = ""
    _is_full: bool = False
    #: Whether a signal checks this thread.
    _has_timer: bool = False
    #: None if no other thread checks.
    _lock: threading.Lock | None = None
    _thread: int = 0
    _interrupted: bool = False

    def __post_init__(self) -> None:
        self.steps_pool = self.limits.steps_pool
        self.ticks_pool = round(self.limits.seconds_pool / _TICK_S)
        self.ticks_run = round(self.limits.seconds_run / _TICK_S)

    def refill(self) -> None:
        """Refill the pool, so that reading does not reduce the budget for judging."""
        self.steps_pool = self.limits.steps_pool
        self.ticks_pool = round(self.limits.judging_seconds_pool / _TICK_S)
        self.ticks_run = round(self.limits.judging_seconds_run / _TICK_S)
        self._spent = ""
        if self._memory_limit:
            self._limit_memory(self.limits.judging_memory_bytes)

    @property
    def is_spent(self) -> bool:
        """Return whether no further section can be opened, because the run has used up its CPU time or memory."""
        if self._is_full and resident_bytes() <= self._memory_limit:
            self._is_full = False
        return bool(self._spent) or self._is_full

    def _limit_memory(self, more_bytes: int) -> None:
        self._memory_bytes, self._memory_limit = more_bytes, self._memory_start + more_bytes
        self._is_full = resident_bytes() > self._memory_limit

    def _too_large(self) -> BudgetExceeded:
        return BudgetExceeded(
            f"more memory than the {self._memory_bytes // _MIB} MiB that a run may use", of_memory=True
        )

    def open(self, size_bytes: int = 0) -> Section:
        """Open a section for input of this size."""
        limits = self.limits
        steps = min(limits.steps_each, limits.steps_fair + size_bytes // 8 + self.steps_pool)
        ticks = min(round(limits.seconds_each / _TICK_S), self._fair_ticks(size_bytes) + self.ticks_pool)
        return Section(steps, steps, ticks)

    def charge(self, section: Section, size_bytes: int = 0) -> None:
        """Charge the pool for the section's usage beyond its fair share."""
        if not section.ticks and section.steps_limit - section.steps_left <= self.limits.steps_fair:
            return
        self.steps_pool = max(0, self.steps_pool - max(0, section.steps - (self.limits.steps_fair + size_bytes // 8)))
        self.ticks_pool = max(0, self.ticks_pool - max(0, section.ticks - self._fair_ticks(size_bytes)))

    def allows(self, steps: int, ticks: int, size_bytes: int = 0) -> bool:
        """Charge the usage of another process. Returns False if the budget is not sufficient."""
        section = self.open(size_bytes)
        self.ticks_run -= ticks
        enough = steps <= section.steps_limit and ticks <= section.ticks_limit
        section.steps_left, section.ticks = section.steps_limit - steps, ticks
        self.charge(section, size_bytes)
        return enough

    def _fair_ticks(self, size_bytes: int) -> int:
        return round((self.limits.seconds_fair + size_bytes / _FAIR_BYTES_PER_S) / _TICK_S)

    def attempt(self, work: Callable[[], T], size_bytes: int = 0) -> T:
        """Run `work` in a section for input of this size. Raises BudgetExceeded, and partial results are lost."""
        if self._spent or self._is_full:
            self.last = (0, 0)
            self._refuse()
        opened, before = self.open(size_bytes), self._section
        try:
            try:
                self._enter(opened)
                return work()
            finally:
                self._enter(before)
        except BudgetExceeded:
            # Repeated, because an interrupt may arrive while the section is being closed.
            self._enter(before)
            raise
        except MemoryError:
            raise BudgetExceeded("more memory than is available") from None
        except RecursionError:
            raise BudgetExceeded("deeper nesting than is supported") from None
        finally:
            self.last = (opened.steps, opened.ticks)
            self.charge(opened, size_bytes)

    def _refuse(self) -> None:
        if self.is_spent:
            raise BudgetExceeded(self._spent) if self._spent else self._too_large()

    def _enter(self, section: Section | None) -> None:
        _SECTION.set(section)
        if self._lock is None:
            self._section = section
            if self._has_timer and not signal.getitimer(signal.ITIMER_VIRTUAL)[0]:
                # The handler of the last signal could not run, as at the recursion limit.
                _set_timer()
            return
        with self._lock:
            self._section = section
            if self._interrupted:
                # The interrupt was for the section that ends here, which may not have noticed it.
                self._interrupted = False
                _discard_interrupt()

    def charge_ticks(self, ticks: int = 1) -> BudgetExceeded | None:
        """Charge this much more time, and return the resource that the current section has then exceeded, if any."""
        self.ticks_run -= ticks
        if self.ticks_run < 0 and not self._spent:
            self._spent = "more CPU time than is left for this run"
        self._is_full = bool(self._memory_limit) and resident_bytes() > self._memory_limit
        section = self._section
        if section is None:
            return None
        section.ticks += ticks
        if section.ticks > section.ticks_limit:
            spent = section.ticks_limit * _TICK_S
            return BudgetExceeded(f"more than the remaining {spent:.3g} s of CPU time")
        if self._spent:
            return BudgetExceeded(self._spent)
        return self._too_large() if self._is_full else None

    @contextmanager
    def watched(self) -> Iterator[Budget]:
        """Check the sections that this thread opens meanwhile; those of other threads count steps only."""
        token = _RUN.set(self)
        self._memory_start = resident_bytes()
        self._limit_memory(self.limits.memory_bytes)
        try:
            with _check_by_signal(self) if _signal_is_free() else _check_by_thread(self):
                yield self
        finally:
            _RUN.reset(token)

    def continue_in_child(self, memory_bytes: int, children: int) -> None:
        """Watch this process, one of several forks (which inherit no timer) that share the remaining time."""
        self._section = None
        self.ticks_pool //= children
        self.ticks_run //= children
        self._memory_start = resident_bytes()
        self._limit_memory(memory_bytes)
        if self._has_timer:
            _set_timer()


def current() -> Budget:
    """Return the budget of the current run; outside of a run, a new budget."""
    return _RUN.get() or Budget()


@contextmanager
def running() -> Iterator[Budget]:
    """Yield the budget of the current run; if there is none, start a run here."""
    known = _RUN.get()
    if known is not None:
        yield known
    else:
        with Budget().watched() as budget:
            yield budget


def spend(steps: int = 1) -> None:
    """Count work for the current section; none outside of one. Raises BudgetExceeded without steps left."""
    section = _SECTION.get()
    if section is not None:
        section.steps_left -= steps
        if section.steps_left < 0:
            raise BudgetExceeded(f"more than the remaining {section.steps_limit} steps")


def note_skipped(description: str) -> None:
    """Record which part of the current file is skipped: an incompletely read file is not judged."""
    section = _SECTION.get()
    if section is not None and description not in section.left_out and len(section.left_out) < _MAX_LEFT_OUT:
        section.left_out.append(description)


def truncate(items: Sequence[T], limit: int, kind: str) -> Sequence[T]:
    """Return the first `limit` of the items. If items are dropped, record that, with `kind` as their description."""
    if len(items) > limit:
        note_skipped(f"only the first {limit} of {len(items)} {kind} were read")
    return items[:limit]


def left_out() -> tuple[str, ...]:
    """Return the parts recorded as skipped in the current section."""
    section = _SECTION.get()
    return tuple(section.left_out) if section is not None else ()


def free_memory_after(exceeded: BudgetExceeded) -> None:
    """Free the reference cycles that an interrupted section left behind, in case the next one needs the memory."""
    if exceeded.of_memory:
        gc.collect()


def resident_bytes() -> int:
    """Return the memory of this process; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123
            return int(file.read(128).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


_SIGNAL = getattr(signal, "SIGVTALRM", 0)


def _signal_is_free() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(_SIGNAL) is signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    )


def _set_timer() -> None:
    """Start a timer for a single signal, because the signal's handler must not be re-entered."""
    signal.setitimer(signal.ITIMER_VIRTUAL, _TICK_S)


@contextmanager
def _check_by_signal(budget: Budget) -> Iterator[None]:
    looked_at = time.thread_time()

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal looked_at
        if not budget._has_timer:
            return
        now = time.thread_time()
        # A forked process begins at zero.
        ticks = max(1, int((now - looked_at) / _TICK_S))
        looked_at = now
        try:
            exceeded = budget.charge_ticks(ticks)
            if exceeded is not None:
                raise exceeded
        finally:
            _set_timer()

    signal.signal(_SIGNAL, on_signal)
    budget._has_timer = True
    _set_timer()
    try:
        yield
    finally:
        # Done first: a signal that arrives now must not set the timer again, whose next signal would end the process.
        budget._has_timer = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(_SIGNAL, signal.SIG_DFL)


@contextmanager
def _check_by_thread(budget: Budget) -> Iterator[None]:
    """Check from another thread, which interrupts this one only between two Python instructions."""
    ended = threading.Event()
    lock = threading.Lock()
    budget._lock, budget._thread = lock, threading.get_ident()
    watcher = threading.Thread(target=_watch, args=(budget, lock, ended), name="budget", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(budget: Budget, lock: threading.Lock, ended: threading.Event) -> None:
    has_clock = hasattr(time, "pthread_getcpuclockid")
    clock = time.pthread_getcpuclockid(budget._thread) if has_clock else time.CLOCK_MONOTONIC
    before = time.clock_gettime(clock)
    while not ended.wait(_TICK_S):
        ticks = int((time.clock_gettime(clock) - before) / _TICK_S)
        before += ticks * _TICK_S
        with lock:
            exceeded = budget.charge_ticks(ticks)
            if exceeded is not None:
                budget._interrupted = True
                _interrupt(budget._thread, exceeded)


def _interrupt(thread: int, exceeded: BudgetExceeded) -> None:
    """Raise in another thread, replacing an exception that it has not noticed yet."""
    if sys.implementation.name != "cpython":
        return
    import ctypes

    excess, of_memory = exceeded.excess, exceeded.of_memory

    # Only a class can be passed; the thread creates the instance.
    class Interrupted(BudgetExceeded):
        def __init__(self) -> None:
            super().__init__(excess, of_memory=of_memory)

    with contextlib.suppress(ValueError):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))


def _discard_interrupt() -> None:
    """Drop an exception that this thread may not have noticed yet.

    A NULL would also do that, but leaves CPython looking for an exception at every instruction, forever while a
    profiler or debugger is active (3.11). So another exception replaces it and is caught.
    """
    try:
        _interrupt(threading.get_ident(), BudgetExceeded("nothing"))
        for _ in range(1_000):
            pass
    except BudgetExceeded:
        pass

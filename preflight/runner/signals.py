"""Interrupts of a run: by SIGTERM, by Ctrl-C, or by the thread that waits for it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import anyio
from anyio.abc import TaskStatus

#: Exit codes of a program that SIGTERM or Ctrl-C ended.
TERMINATED, INTERRUPTED = 128 + signal.SIGTERM, 128 + signal.SIGINT


def is_interrupt(error: BaseException) -> bool:
    """Whether this is Ctrl-C, alone or wrapped by task groups."""
    inner = [one for one in getattr(error, "exceptions", ()) if not isinstance(one, asyncio.CancelledError)]
    return isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)) or any(map(is_interrupt, inner))


class Terminated(BaseException):
    """Raised on SIGTERM within `termination_raises`."""


def exit_code_of(interrupt: BaseException) -> int:
    """The exit code of a program that this interrupt ended."""
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


@contextmanager
def termination_raises() -> Iterator[None]:
    """Have SIGTERM raise `Terminated`, as Ctrl-C raises KeyboardInterrupt. Only the main thread can do this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class Interrupter:
    """Cancels a run in order, so that every agent is closed; before that it calls `interrupt` with the exit code.

    An exception raised by a signal handler would surface in whichever task happens to run, wrapped in the task groups
    around it, or inside the event loop itself, and asyncio's own handling of Ctrl-C ignores shields. A second Ctrl-C
    reaches Python's own handler again.
    """

    def __init__(self, interrupt: Callable[[int], None]) -> None:
        self._interrupt = interrupt
        self._exit_codes = {signal.SIGTERM: TERMINATED}
        # The caller may handle Ctrl-C in its own way.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._exit_codes[signal.SIGINT] = INTERRUPTED
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: anyio.CancelScope | None = None
        self._is_interrupted = False

    async def watch(
        self, scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Cancel `scope` on an interrupt. Only the main thread of a program may handle signals."""
        self._loop, self._scope = asyncio.get_running_loop(), scope
        if threading.current_thread() is not threading.main_thread():
            task_status.started()
            if self._is_interrupted:
                self._cancel(INTERRUPTED)
            return
        with anyio.open_signal_receiver(*self._exit_codes) as signals:
            task_status.started()
            async for number in signals:
                self._cancel(self._exit_codes[number])
                return

    def now(self) -> None:
        """Interrupt the run from another thread."""
        self._is_interrupted = True
        if self._loop is not None:
            # Once the loop is closed, the run is finished.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel, INTERRUPTED)

    def _cancel(self, exit_code: int) -> None:
        assert self._scope is not None
        self._interrupt(exit_code)
        self._scope.cancel()

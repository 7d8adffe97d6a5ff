"""How a run is ended from outside: by SIGTERM, by Ctrl-C, or by the thread that waits for it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio.abc import TaskStatus

#: What a program ends with that SIGTERM ended, and one that Ctrl-C did.
TERMINATED, INTERRUPTED = 128 + signal.SIGTERM, 128 + signal.SIGINT


def is_interrupt(error: BaseException) -> bool:
    """Whether this is Ctrl-C, by itself or wrapped by the groups of tasks around the one that it hit."""
    inner = [one for one in getattr(error, "exceptions", ()) if not isinstance(one, asyncio.CancelledError)]
    return isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)) or any(map(is_interrupt, inner))


class Ending:
    """Cancels a run, so that every agent is taken leave of in order; `interrupt` is told the exit code before that.

    An exception raised by a signal handler would surface in whichever task happens to run, wrapped in the groups of
    tasks around it, or inside the event loop itself, and what asyncio makes of Ctrl-C heeds no shield. The second
    Ctrl-C finds Python's own handler again.
    """

    def __init__(self, interrupt: Callable[[int], None]) -> None:
        self._interrupt = interrupt
        self._heeded = {signal.SIGTERM: TERMINATED}
        # What whoever called us does about Ctrl-C is theirs to do.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._heeded[signal.SIGINT] = INTERRUPTED
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: anyio.CancelScope | None = None
        self._wanted = False

    async def watch(
        self, scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Cancel `scope` when it is to be. Only the main thread of a program may ask for signals."""
        self._loop, self._scope = asyncio.get_running_loop(), scope
        if threading.current_thread() is not threading.main_thread():
            task_status.started()
            if self._wanted:
                self._cancel(INTERRUPTED)
            return
        with anyio.open_signal_receiver(*self._heeded) as signals:
            task_status.started()
            async for number in signals:
                self._cancel(self._heeded[number])
                return

    def now(self) -> None:
        """Interrupt it from another thread than its own."""
        self._wanted = True
        if self._loop is not None:
            # Once the loop is closed it is over.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel, INTERRUPTED)

    def _cancel(self, exit_code: int) -> None:
        assert self._scope is not None
        self._interrupt(exit_code)
        self._scope.cancel()

"""The progress of a run: its stages, how far each has come, and what it waits for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

#: A wait longer than this is shown with its reason.
SHOW_WAIT_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """One change in a stage.

    Args:
        stage: the name of the stage.
        done, total: the number of complete items, and of all items.
        waiting_for: the names of what is awaited.
        deadline_s: how long the stage may still take, if it has a deadline.
        note: a message to show at once.
        nodes: the number of nodes that the stage is about; those in `waiting_for` have not answered.
        planned: this stage and the following ones, sent once.
        ended: the stage is over; `skipped` is the reason if it did not run.
        party, node, phase: a member of the smoke run ("rank 3"), its node, and the phase that it has completed; without
            a node the member has ended.
    """

    stage: str
    done: int = 0
    total: int = 0
    waiting_for: tuple[str, ...] = ()
    deadline_s: float | None = None
    note: str = ""
    nodes: int = 0
    planned: tuple[str, ...] = ()
    ended: bool = False
    skipped: str = ""
    party: str = ""
    node: str = ""
    phase: str = ""


class Progress(Protocol):
    """Receives steps, in the thread of the run. Must return at once."""

    def __call__(self, step: Step) -> None:
        """Process `step`."""
        ...


def ignore(step: Step) -> None:
    """Receive a step and do nothing."""


def tee(first: Progress, second: Progress | None) -> Progress:
    """Return a receiver that passes each step on to both, or only to the first if there is no second."""
    if second is None:
        return first

    def receive(step: Step) -> None:
        first(step)
        second(step)

    return receive


def threadsafe(loop: asyncio.AbstractEventLoop, progress: Progress) -> Progress:
    """Return a receiver for other threads, which calls `progress` in the thread of `loop`."""

    def receive(step: Step) -> None:
        # A closed loop receives nothing.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(progress, step)

    return receive


def delayed(
    progress: Progress, *, after_s: float = SHOW_WAIT_AFTER_S, clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Return a receiver that drops all steps of the first `after_s` seconds, so that only long stages are shown."""
    begins = clock() + after_s

    def receive(step: Step) -> None:
        if clock() >= begins:
            progress(step)

    return receive

"""The progress of a run: its stages, the progress of each stage, and the items that it waits for."""

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
        done, total: the number of complete items, and the number of all items.
        waiting_for: the names of the items that the stage waits for.
        deadline_s: the seconds that the stage may still take; None if it has no deadline.
        note: a message to show at once.
        nodes: the number of nodes that the stage is about; the nodes in `waiting_for` have not answered.
        planned: the names of this stage and the following stages, which are sent once.
        ended: whether the stage is over.
        skipped: the reason why the stage did not run; empty if it ran.
        party, node, phase: a member of the smoke run ("rank 3"), its node, and the phase that it has completed. If
            there is no node, the member has ended.
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
    """A function that receives steps in the thread of the run. It must return at once."""

    def __call__(self, step: Step) -> None:
        """Process `step`."""
        ...


def ignore(step: Step) -> None:
    """Receive a step and do nothing."""


def tee(first: Progress, second: Progress | None) -> Progress:
    """Return a receiver that passes each step to both receivers, or only to the first if there is no second."""
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
    shown_from_s = clock() + after_s

    def receive(step: Step) -> None:
        if clock() >= shown_from_s:
            progress(step)

    return receive

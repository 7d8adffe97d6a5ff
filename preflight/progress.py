"""What a run tells whoever watches it: which stages there are, how far each is, and who is waited for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from preflight.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    import asyncio

#: Longer than this nobody waits without being told for what.
PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """One change: `done` of `total` pieces of `stage` are there; `waiting_for` names what is awaited, on whom.

    Args:
        deadline_s: how long the stage may still take at the most, where it has one.
        note: something to know at once.
        nodes: how many nodes the stage is about; those among `waiting_for` have not answered.
        planned: the stages that are to come from this one on, told once.
        ended: the stage is over; `skipped` says why where it did not take place.
        party, node, phase: a member of the smoke run ("rank 3"), where it runs, and the phase it has behind it;
            without a node it is no longer there.
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
    """Whoever watches. Called from the run's own thread; must return at once."""

    def __call__(self, step: Step) -> None:
        """Take notice of `step`."""
        ...


def ignore(step: Step) -> None:
    """The watcher that does not."""


def both(one: Progress, other: Progress | None) -> Progress:
    """A watcher that tells two of each step, the second if there is one."""
    if other is None:
        return one
    second = other

    def tell(step: Step) -> None:
        one(step)
        second(step)

    return tell


def across(loop: asyncio.AbstractEventLoop, progress: Progress) -> Progress:
    """A watcher for other threads than the one of this loop, in which alone `progress` is told."""

    def tell(step: Step) -> None:
        # Nobody is told anything once the loop is closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(progress, step)

    return tell


def patiently(
    progress: Progress, *, after_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic
) -> Progress:
    """A watcher that hears nothing of what is over in time: a stage of its own only where it takes long."""
    begins = clock() + after_s

    def tell(step: Step) -> None:
        if clock() >= begins:
            progress(step)

    return tell

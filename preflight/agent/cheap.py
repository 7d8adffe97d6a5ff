"""Declares probes as cheap, so that several of a kind may share one process on a node."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Generator, TypeVar

    T = TypeVar("T")
    F = TypeVar("F", bound=Callable[..., Any])
    #: A probe that measures more than once: it yields the seconds until the next measurement.
    Looks = Callable[[Dict[str, Any]], Generator[float, None, Any]]


def cheap(kind: str, *, sends_requests: bool = False, looks: Looks | None = None) -> Callable[[F], F]:
    """Mark a probe as cheap: on a healthy node it takes milliseconds, and it may run with others in one process.

    A probe that gets stuck only delays the other probes in its process (`preflight.agent.child_handle`). It must leave
    no trace in its process.

    Args:
        kind: `node` for probes of the node itself, `packages` for those of the interpreter's files.
        sends_requests: whether it waits for services that may not answer; it then runs after probes that only query the
            kernel.
        looks: yields pauses in seconds, during which other probes run.
    """

    def marked(probe: F) -> F:
        probe.__dict__.update(together=kind, sends_requests=sends_requests, looks=looks)
        return probe

    return marked


def run_with_pauses(looks: Generator[float, None, T]) -> T:
    """Run all measurements, and wait between them."""
    while True:
        try:
            seconds = next(looks)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        time.sleep(seconds)


def kind_of(probe: Any) -> str:
    """Return the kind of a cheap probe; empty if the probe needs its own process."""
    return str(getattr(probe, "together", ""))


def run_order(probe: Any) -> int:
    """Return a probe's position within its kind: probes with pauses run first, those that query a service last."""
    if getattr(probe, "looks", None) is not None:
        return 0
    return 2 if getattr(probe, "sends_requests", False) else 1

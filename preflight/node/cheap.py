"""How a probe says that it is cheap, so that several of a kind may share one process on a node."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Generator, Optional, TypeVar

    T = TypeVar("T")
    F = TypeVar("F", bound=Callable[..., Any])
    #: What looks more than once: it yields the seconds that are to pass before the next look.
    Looks = Callable[[Dict[str, Any]], Generator[float, None, Any]]


def cheap(kind: str, *, asks: bool = False, looks: Optional[Looks] = None) -> Callable[[F], F]:
    """Says of a probe that it takes milliseconds where all is well, and may follow others of its kind in one process.

    `node` looks at the node itself, `packages` at the interpreter's own files. One that gets stuck there only costs the
    others time (`preflight.node.together`), so one that `asks` somebody who may not answer comes after those that read
    what the kernel shows. While one with several `looks` lets time pass, the others have their turn. It must leave no
    trace in its process.
    """

    def marked(probe: F) -> F:
        probe.__dict__.update(together=kind, asks=asks, looks=looks)
        return probe

    return marked


def straight(looks: Generator[float, None, T]) -> T:
    """Look as often as wanted, and wait in between."""
    while True:
        try:
            seconds = next(looks)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        time.sleep(seconds)


def kind_of(probe: Any) -> str:
    """Its kind; empty for one that is to have a process of its own."""
    return str(getattr(probe, "together", ""))


def turn_of(probe: Any) -> int:
    """Where it comes among those of its kind: who lets time pass begins, who asks somebody is last."""
    if getattr(probe, "looks", None) is not None:
        return 0
    return 2 if getattr(probe, "asks", False) else 1

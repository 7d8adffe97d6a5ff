"""How a probe says that it is cheap, so that several of a kind may share one process on a node."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


#: The kind of those that ask somebody, or let time pass between two looks.
WAITING = "waiting"


def cheap(kind: str) -> Callable[[F], F]:
    """Says of a probe that it takes milliseconds where all is well, and may follow others of its kind in one process.

    One that gets stuck there only costs the others time (`preflight.node.together`), so probes that are likely to get
    stuck for the same reason belong to one kind: `kernel` reads what the kernel shows, `waiting` asks somebody or
    waits, `packages` reads the interpreter's own files. It must leave no trace in its process.
    """

    def marked(probe: F) -> F:
        probe.__dict__["together"] = kind
        return probe

    return marked


def kind_of(probe: Any) -> str:
    """Its kind; empty for one that is to have a process of its own."""
    return str(getattr(probe, "together", ""))

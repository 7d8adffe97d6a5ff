"""What it takes to name a rank: how long is too long, who is expected, and the verdict itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from preflight.ranks import RankView
from reference_trainer import phases

KINDS = ("missing", "dead", "stopped", "stuck", "lost-node", "mismatch", "endpoint")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long is too long, in seconds.

    Six missed heartbeats of half a second make a rank silent; five times the longest step so far makes one frozen
    (the factor of NVIDIA's resiliency extension, evidence of the design), but never less than `step_least_s`.
    `loading_s`: heartbeats and progress may pause this long while libraries are loaded. `connect_s`: setting
    up a process group and its first collective. `settle_s`: how long the cause of a death may be reported after
    the deaths that it caused. `stopped_s`: shorter stops (a debugger, a core dump) are nobody's business.
    """

    join_s: float = 30.0
    silent_s: float = 3.0
    witness_s: float = 1.5
    loading_s: float = 60.0
    connect_s: float = 8.0
    step_least_s: float = 6.0
    step_factor: float = 5.0
    settle_s: float = 2.0
    stopped_s: float = 1.0
    dial_s: float = 3.0
    unresolved_s: float = 1.0


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Member:
    """A rank that is expected: where it runs and which request it answers."""

    rank: int
    node: str
    key: str


@dataclass(frozen=True, slots=True)
class Culprit:
    """The rank to blame.

    Args:
        rank: None when all of them hang together and nobody can be named.
        kind: one of `KINDS`.
        phase: the last phase the rank had behind it; `doing` what it did then.
        since_s: since when, in seconds since the run began.
        because: one sentence for people.
        waiting: ranks that wait for it.
        also: further ranks with the same fault.
    """

    rank: int | None
    node: str
    kind: str
    phase: str
    doing: str
    since_s: float
    because: str
    waiting: tuple[int, ...] = ()
    also: tuple[int, ...] = ()
    key: str = ""


Views = dict[int, RankView]


def blame(views_: Views, view: RankView, kind: str, since_s: float, text: str, *, also: Sequence[int] = ()) -> Culprit:
    """Name `view`; `text` goes on after "rank 3 on node-b". Everybody who still runs waits for it."""
    waiting = tuple(v.rank for v in views_.values() if v.alive and v.rank != view.rank and not v.done)
    where = f"rank {view.rank} on {view.node}"
    return Culprit(
        view.rank,
        view.node,
        kind,
        view.phase,
        view.what or phases.DOING.get(view.phase, ""),
        since_s,
        f"{where} {text}",
        waiting,
        tuple(also),
        view.key,
    )


def doing(view: RankView) -> str:
    """What the rank did last, in words that go behind "during"."""
    if not view.started:
        return "starting"
    return view.what or phases.DOING.get(view.phase, view.phase)


def nodes_text(group: Sequence[RankView]) -> str:
    """The nodes of these ranks, each once."""
    return ", ".join(dict.fromkeys(v.node for v in group))


def ranks_text(group: Sequence[RankView]) -> str:
    """`rank 1` or `ranks 1, 2`."""
    return ("rank " if len(group) == 1 else "ranks ") + ", ".join(str(v.rank) for v in group)


def by_time(found: Views, when: Callable[[RankView], float | None]) -> list[RankView]:
    """The ranks for which `when` gives a time, the earliest first."""
    timed = [(at_s, view.rank, view) for view in found.values() if (at_s := when(view)) is not None]
    return [view for _, _, view in sorted(timed, key=lambda item: item[:2])]

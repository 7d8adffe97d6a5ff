"""What it takes to name a member of a run: how long is too long, who is called what, and the verdict itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from preflight.lazy.dataclasses import dataclass
from preflight.ranks import Member, RankView
from reference_trainer import phases

#: `endpoint` is about where a collective meets; `path` about the way from workers to servers.
KINDS = ("missing", "dead", "stopped", "stuck", "lost-node", "mismatch", "endpoint", "path")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long is too long, in seconds.

    Six missed heartbeats of half a second make a rank silent; five times the longest step so far makes one frozen
    (the factor of NVIDIA's resiliency extension, evidence of the design), but never less than `step_least_s`.
    `loading_s`: heartbeats and progress may pause this long while libraries are loaded. `connect_s`: setting
    up a process group and its first collective. `settle_s`: how long the cause of a death may be reported after
    the deaths that it caused. `stopped_s`: shorter stops (a debugger, a core dump) are nobody's business.
    `replace_s`: how long a spare worker may take to take a lost one's place; one that only lags has 5 s of that.
    `agree_s`: how long others may still take to say who they are, once two have contradicted each other.
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
    agree_s: float = 1.0
    replace_s: float = 15.0


LIMITS = Limits()
#: So many names stand in a sentence.
_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Culprit:
    """The member to blame.

    Args:
        rank: its number; None when all of them hang together, or who is to blame is nobody that was started.
        name: what it is called (`rank 3`, `server 1`); empty where nobody is named.
        kind: one of `KINDS`.
        phase: the last phase the rank had behind it; `doing` what it did then.
        since_s: since when, in seconds since the run began.
        because: one sentence for people.
        waiting: numbers of those that wait for it. `also`: of further ones with the same fault.
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
    name: str = ""

    @property
    def title(self) -> str:
        """`worker 3 on node-b`; empty where nobody is named."""
        return f"{self.name} on {self.node}" if self.name else ""


Views = dict[int, RankView]


def blame(views_: Views, view: RankView, kind: str, since_s: float, text: str, *, also: Sequence[int] = ()) -> Culprit:
    """Name `view`; `text` goes on after "rank 3 on node-b". Everybody who still runs waits for it."""
    waiting = tuple(v.rank for v in views_.values() if v.alive and v.rank != view.rank and not v.done)
    return Culprit(
        view.rank,
        view.node,
        kind,
        view.phase,
        view.what or phases.doing(view.phase, view.role),
        since_s,
        f"{title(view)} {text}",
        waiting,
        tuple(also),
        view.key,
        view.name,
    )


def title(view: RankView) -> str:
    """Who and where: `rank 3 on node-b`."""
    return f"{view.name} on {view.node}"


def doing(view: RankView) -> str:
    """What the rank did last, in words that go behind "during"."""
    if not view.started:
        return "starting"
    return view.what or phases.doing(view.phase, view.role)


def nodes_text(group: Sequence[RankView]) -> str:
    """The nodes of these members, each once."""
    return fold(list(dict.fromkeys(v.node for v in group)))


def names_text(group: Sequence[Member | RankView]) -> str:
    """What they are called together: `rank 1`, `ranks 1, 2`, `server 0 and workers 1, 2`."""
    by_role: dict[str, list[str]] = {}
    for one in group:
        by_role.setdefault(one.role, []).append(one.name)
    parts: list[str] = []
    for role, names in by_role.items():
        whole = all(name.startswith(f"{role} ") and name[len(role) + 1 :].isdigit() for name in names)
        if len(names) == 1 or not whole:
            parts.append(", ".join(names))
        else:
            parts.append(f"{role}s {fold([name[len(role) + 1 :] for name in names])}")
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] if parts else ""


def fold(names: Sequence[str]) -> str:
    """All of a few names, else the first ones and how many more."""
    return (
        ", ".join(names)
        if len(names) <= _MOST_NAMES
        else f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more"
    )


def by_time(found: Views, when: Callable[[RankView], float | None]) -> list[RankView]:
    """The members for which `when` gives a time, the earliest first."""
    timed = [(at_s, view.rank, view) for view in found.values() if (at_s := when(view)) is not None]
    return [view for _, _, view in sorted(timed, key=lambda item: item[:2])]

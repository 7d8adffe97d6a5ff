"""The culprit of a failed run, the evidence for it, and what stacks of ranks show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from preflight._util.sequences import grouped, join_some
from preflight.agent import rank_events
from preflight.analysis.rank_state import Member, RankView

#: The run was ended before it finished, and nothing shows that any member is at fault.
UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds.

    They count time in which the head itself ran and, for a lack of progress, in which the rank was not starved of CPU
    time. A process that is stopped or silent and comes back within ten seconds (`stopped_s`, `silent_s`: a debugger, a
    core dump, a virtual machine that is moved) is healthy. Five times the longest step so far makes a rank frozen (the
    factor that NVIDIA's resiliency extension uses), but never less than `step_least_s`; where the rank cannot report
    its starvation, `unmeasured_factor` times as long. Starting the interpreter and loading libraries have no limit but
    the deadline of the run. `connect_s`: setting up a process group and its first collective. `settle_s`: how long the
    cause of a death may be reported after the deaths that it caused. `beat_s`: a lack of progress is counted until this
    long after the last heartbeat, because one without heartbeats is a silence. `replace_s`: how long a backup worker
    may take to replace a lost worker; a lagging worker must be replaced within 5 s. `agree_s`: how long other members
    may take to report their identity once two have contradicted each other.
    """

    silent_s: float = 10.0
    witness_s: float = 1.5
    beat_s: float = 1.0
    connect_s: float = 8.0
    step_least_s: float = 6.0
    step_factor: float = 5.0
    unmeasured_factor: float = 5.0
    settle_s: float = 2.0
    stopped_s: float = 10.0
    dial_s: float = 3.0
    unresolved_s: float = 1.0
    agree_s: float = 1.0
    replace_s: float = 15.0


LIMITS = Limits()
#: At most this many names are listed in a sentence.
_MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class Culprit:
    """The member to blame.

    Args:
        rank: its number; None when all ranks hang together, or when the culprit was never started.
        name: its name (`rank 3`, `server 1`); empty if none is named.
        kind: `missing`, `dead`, `stopped`, `stuck`, `lost-node`, `mismatch`, `endpoint` (the meeting point of a
            collective), `path` (the network path from workers to servers) or UNFINISHED.
        phase: the last phase the rank completed; `doing` is its last activity.
        since_s: the start of the fault, in seconds since the run began.
        because: the reason, as one readable sentence.
        waiting: numbers of the members that wait for it. `also`: further members with the same fault.
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
        """`worker 3 on node-b`; empty if no member is named."""
        return f"{self.name} on {self.node}" if self.name else ""


Views = dict[int, RankView]


def make_culprit(
    views: Views, view: RankView, kind: str, since_s: float, text: str, *, also: Sequence[int] = ()
) -> Culprit:
    """Blame `view`; `text` continues after "rank 3 on node-b". All members still running wait for it."""
    waiting = tuple(v.rank for v in views.values() if v.alive and v.rank != view.rank and not v.done)
    return Culprit(
        view.rank,
        view.node,
        kind,
        view.phase,
        view.what or rank_events.activity_of(view.phase, view.role),
        since_s,
        f"{title(view)} {text}",
        waiting,
        tuple(also),
        view.key,
        view.name,
    )


def title(view: RankView) -> str:
    """Name and node: `rank 3 on node-b`."""
    return f"{view.name} on {view.node}"


def describe_activity(view: RankView) -> str:
    """The last activity of the rank, in words that follow "during"."""
    if not view.started:
        return "starting"
    return view.what or rank_events.activity_of(view.phase, view.role)


def nodes_text(group: Sequence[RankView]) -> str:
    """The nodes of these members, each once."""
    return fold(list(dict.fromkeys(v.node for v in group)))


def names_text(group: Sequence[Member | RankView]) -> str:
    """The members' names combined: `rank 1`, `ranks 1, 2`, `server 0 and workers 1, 2`."""
    by_role = grouped((view.role, view.name) for view in group)
    parts: list[str] = []
    for role, names in by_role.items():
        whole = all(name.startswith(f"{role} ") and name[len(role) + 1 :].isdecimal() for name in names)
        if len(names) == 1 or not whole:
            parts.append(", ".join(names))
        else:
            parts.append(f"{role}s {fold([name[len(role) + 1 :] for name in names])}")
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] if parts else ""


def fold(names: Sequence[str]) -> str:
    """All names if they are few, otherwise the first ones and the number of others."""
    return join_some(names, _MAX_NAMES)


def by_time(views: Views, when: Callable[[RankView], float | None]) -> list[RankView]:
    """The members for which `when` returns a time, earliest first."""
    timed = [(at_s, view.rank, view) for view in views.values() if (at_s := when(view)) is not None]
    return [view for _, _, view in sorted(timed, key=lambda item: item[:2])]


#: A frame, and the header of a thread, in a dump of Python's faulthandler (most recent call first).
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)
#: The functions that members run, as named in a stack.
_ENTRIES = ("rank", "server", "worker")
#: Folders of the frameworks, inside which a call to all other ranks waits.
_FRAMEWORKS = ("/torch/", "/paddle/")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack."""

    function: str
    path: str
    line: str

    @property
    def text(self) -> str:
        """`all_reduce (distributed_c10d.py:3252)`."""
        return f"{self.function} ({self.path.rsplit('/', 1)[-1]}:{self.line})"

    @property
    def in_framework(self) -> bool:
        """Whether it is in the framework's own code."""
        return any(folder in self.path for folder in _FRAMEWORKS)


def frames_of(text: str) -> list[Frame]:
    """The frames of the member's own thread, innermost first, from faulthandler's dump of all threads."""
    threads = [[Frame(name, path, line) for path, line, name in _FRAME.findall(block)] for block in _THREAD.split(text)]
    own = [frames for frames in threads if any("reference_trainer" in frame.path for frame in frames)]
    main = [frames for frames in own if any(frame.function in _ENTRIES for frame in frames)]
    return next(iter(main or own or [frames for frames in threads if frames]), [])


def find_outside(views: Views, found: Culprit) -> Culprit | None:
    """The few members that are in code outside the framework, while most wait in the call that all have entered.

    `found` is the result without stacks: all members hang together, and none is named.
    """
    if found.kind != "stuck" or found.rank is not None:
        return None
    innermost = {number: frames[0] for number, view in views.items() if (frames := frames_of(view.stacks))}
    waiting = [number for number, frame in innermost.items() if frame.in_framework]
    # The trainer's own code may wait for a GPU, which is no difference.
    outside = [n for n, frame in innermost.items() if not frame.in_framework and "reference_trainer" not in frame.path]
    if not outside or len(outside) >= len(waiting) or len(innermost) < len(views):
        return None
    return _named(views, found, innermost, waiting, outside)


def _named(
    views: Views, found: Culprit, innermost: Mapping[int, Frame], waiting: Sequence[int], outside: Sequence[int]
) -> Culprit:
    first = views[outside[0]]
    frame = innermost[first.rank]
    where = f"{frame.function} ({frame.path}:{frame.line})"
    text = (
        f"is in {where}, outside the framework, while {names_text([views[number] for number in waiting])} wait for it"
        f" in {innermost[waiting[0]].text} during {found.doing}"
    )
    named = make_culprit(views, first, "stuck", found.since_s, text, also=outside[1:])
    return replace(named, phase=found.phase, doing=found.doing, waiting=tuple(waiting))

"""The known state of each member of a run, the culprit of a failed run, and the meaning of the members' stacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from preflight._util.sequences import grouped, join_some
from preflight.agent import rank_events
from preflight.model.recording import EventRecord, FactRecord, Unavailable
from preflight.model.requests import Request

_SIGABRT = 6
#: The largest plausible count in a message of a rank.
_MAX_COUNT = 1 << 53
#: The largest time between two messages of a rank that runs, in seconds.
_MAX_GAP_S = 2 * rank_events.HEARTBEAT_S
#: The role of equal members, which are identified by their number.
RANK = "rank"
#: The role of a worker that waits to replace another worker.
BACKUP_WORKER = "spare"


@dataclass(frozen=True, slots=True)
class Member:
    """An expected process: `rank` is its number in the group, `key` its request, `index` that in its `role`."""

    rank: int
    node: str
    key: str
    role: str = RANK
    index: int | str | None = None

    @property
    def name(self) -> str:
        """Return the member's name: `rank 3`, `server 1`."""
        index = self.rank if self.index is None else self.index
        return f"{self.role} {index}" if index != "" else f"{self.role} without an index"


@dataclass(frozen=True, slots=True)
class Dial:
    """Consecutive attempts of a member to connect to another's port, with the same result: first `since_s`, last
    `at_s`.
    """

    result: str
    error: str
    endpoint: str
    since_s: float
    at_s: float


@dataclass
class RankView:
    """The state of one member at some time. Times are in seconds since the run began, by the head's clock.

    Args:
        name, role: as in `Member`.
        hello: its report at start.
        dials: its attempts to connect to ports of other members, by their numbers.
        dial_result: the result of connecting to the master's port of a collective.
        replaced_at: the time at which a server reported that a backup worker replaced the member.
        idle: whether the member only waits for work. If another member waits for an idle member, a message was lost.
        last_event_at: last message of the rank itself; `changed_at`: last time its main thread moved.
        entered, left: number of the last collective that it entered and left; `inside` is the one that it is in, 0 if
            none. `root`: the rank that may leave it before the others (`rank_events.ANY_RANK`: each may), if any may.
        longest_s: the longest collective or step that it has finished since the group was set up.
        starved_s: how long its threads have waited for a processor since its process started; None if it does not
            report that. `silent_s`: how long it sent no heartbeats, although it sent some later. `idle_at_change_s`:
            both together when its main thread last moved.
        state: the last state that its agent saw (`T` stopped, `D` uninterruptible, `R` running).
        advertised: the address of its own host name, which Gloo sends to the others if no interface is set.
    """

    rank: int
    node: str
    key: str
    began_at: float
    name: str = ""
    role: str = RANK
    launched: bool = False
    started: bool = False
    last_event_at: float = 0.0
    changed_at: float = 0.0
    phase: str = ""
    what: str = ""
    waiting_for: tuple[int, ...] = ()
    loading: bool = False
    progress: int = 0
    entered: int = 0
    left: int = 0
    inside: int = 0
    root: int | None = None
    longest_s: float = 0.0
    idle: bool = False
    hello: Mapping[str, Any] = field(default_factory=dict)
    hello_at: float = 0.0
    dials: dict[int, Dial] = field(default_factory=dict)
    starved_s: float | None = None
    silent_s: float = 0.0
    idle_at_change_s: float = 0.0
    state: str = "R"
    state_at: float = 0.0
    state_pid: int = 0
    listening_at: float = 0.0
    dial_result: str = ""
    dial_error: str = ""
    dial_endpoint: str = ""
    dial_at: float = 0.0
    advertised: str = ""
    interface: str = ""
    stacks: str = ""
    pid: int = 0
    done: bool = False
    failure: Unavailable | None = None
    ended_at: float = 0.0
    replaced_at: float | None = None
    problems: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return not self.done and self.failure is None

    @property
    def unable_s(self) -> float:
        """Return the seconds since its last move in which the member had no CPU, or was stopped or frozen."""
        return max(0.0, (self.starved_s or 0.0) + self.silent_s - self.idle_at_change_s)

    @property
    def dial_failed(self) -> bool:
        """Return whether the member ended because it could not connect to the port of the master, or of a server."""
        failing = self.dial_result not in ("", "open") or any(dial.result != "open" for dial in self.dials.values())
        return self.failure is not None and failing

    @property
    def consequence(self) -> bool:
        """Return whether the member ended because of another rank: it reported this, or aborted after losing a peer."""
        if self.failure is None:
            return False
        if self.failure.kind == "blocked" and self.started:
            return True
        if self.failure.exit_code == -_SIGABRT:
            # NCCL's watchdog and Gloo's checks abort the process, and print the reason on standard error.
            return any(mark in self.failure.detail.lower() for mark in rank_events.CONSEQUENCES)
        return any(problem.get("consequence") for _, problem in self.problems)

    @property
    def gave_up_on(self) -> tuple[int, ...]:
        """Return the members that this member reports as the reason for its end."""
        return tuple(rank for _, problem in self.problems for rank in _numbers(problem.get("because", ())))

    def problem(self, kind: str) -> Mapping[str, Any] | None:
        """Return the first problem of this kind that the member reported; None if there is none."""
        return next((data for _, data in self.problems if data.get("problem") == kind), None)

    def problem_at(self, kind: str) -> float | None:
        """Return the time at which the member first reported a problem of this kind; None if it did not."""
        return next((at for at, data in self.problems if data.get("problem") == kind), None)


def build_views(
    members: Sequence[Member], events: Sequence[EventRecord], records: Sequence[FactRecord], *, began_s: float
) -> dict[int, RankView]:
    """Return the state of each member by number, after these events and records."""
    views = {
        m.rank: RankView(m.rank, m.node, m.key, began_s, m.name, m.role, last_event_at=began_s, changed_at=began_s)
        for m in sorted(members, key=lambda member: member.rank)
    }
    by_key = {view.key: view for view in views.values()}
    for event in sorted(events, key=lambda e: e.at_s):
        view = by_key.get(event.request_key)
        if view is not None and event.origin == "agent":
            _on_agent_event(view, event)
        elif view is not None and event.origin == "child":
            _on_rank_event(view, event)
            if event.data.get("event") == rank_events.REPLACED:
                _on_replaced(views, event)
    for record in records:
        view = by_key.get(record.request.key)
        if view is None or (record.unavailable is not None and record.unavailable.kind == "cancelled"):
            continue
        view.ended_at = record.finished_s
        view.done, view.failure = record.unavailable is None, record.unavailable
    return views


def replacements(members: Sequence[Member], events: Sequence[EventRecord]) -> dict[int, Member | None]:
    """Return the members that a backup worker has replaced, by number, with that worker."""
    member_by_rank = {member.rank: member for member in members}
    replacement_data = [
        event.data for event in events if event.origin == "child" and event.data.get("event") == rank_events.REPLACED
    ]
    return {_number(data.get("worker")): member_by_rank.get(_number(data.get("spare"))) for data in replacement_data}


def _on_replaced(views: Mapping[int, RankView], event: EventRecord) -> None:
    replaced_view = views.get(_number(event.data.get("worker")))
    if replaced_view is not None and replaced_view.replaced_at is None:
        replaced_view.replaced_at = event.at_s


def _on_agent_event(view: RankView, event: EventRecord) -> None:
    if "stacks" in event.data:
        view.stacks = str(event.data["stacks"])
        return
    state = str(event.data.get("state", ""))
    if state == "started":
        view.launched = True
        view.pid = _number(event.data.get("pid"))
    elif state:
        view.state, view.state_at = state, event.at_s
        view.state_pid = _number(event.data.get("pid"))


def _on_rank_event(view: RankView, event: EventRecord) -> None:
    data = event.data
    if view.started and event.at_s - view.last_event_at > _MAX_GAP_S:
        view.silent_s += event.at_s - view.last_event_at - rank_events.HEARTBEAT_S
    view.started = True
    view.last_event_at = event.at_s
    kind = data.get("event")
    if kind == rank_events.BEAT:
        _on_heartbeat(view, event)
    elif kind == rank_events.PHASE:
        _on_phase(view, event)
    elif kind == rank_events.ENTERING:
        _on_collective_entered(view, event)
    elif kind == rank_events.LEFT:
        _on_collective_left(view, event)
    elif kind == rank_events.DIAL and type(data.get("to")) is int:
        result, error, endpoint = (str(data.get(name, "")) for name in ("result", "error", "endpoint"))
        last_dial = view.dials.get(_number(data.get("to")))
        since_s = last_dial.since_s if last_dial is not None and last_dial.result == result else event.at_s
        view.dials[_number(data.get("to"))] = Dial(result, error, endpoint, since_s, event.at_s)
    elif kind == rank_events.DIAL:
        view.dial_result, view.dial_error = str(data.get("result", "")), str(data.get("error", ""))
        view.dial_endpoint, view.dial_at = str(data.get("endpoint", "")), event.at_s
    elif kind == rank_events.PROBLEM:
        view.problems.append((event.at_s, data))


def _on_heartbeat(view: RankView, event: EventRecord) -> None:
    """Apply a heartbeat. The state changes only if the rank made progress since its last message."""
    data = event.data
    starved_s = data.get("starved_s")
    if isinstance(starved_s, (int, float)) and starved_s >= (view.starved_s or 0.0):
        view.starved_s = float(starved_s)
    progress = _number(data.get("progress"))
    if progress <= view.progress:
        return
    view.progress = progress
    _set_changed(view, event.at_s)
    # Ranks do not report the start of every activity, because most activities are short; the current one may be long.
    view.what = str(data.get("what", ""))
    view.waiting_for = _numbers(data.get("waiting_for", ()))
    view.idle = data.get("idle") is True
    collective = _number(data.get("collective"))
    view.entered = max(view.entered, collective)
    view.inside = collective if data.get("inside") is True else 0
    view.root = _rank_or_none(data.get("root"))
    view.left = max(view.left, collective - 1 if view.inside else collective)


def _on_phase(view: RankView, event: EventRecord) -> None:
    phase = str(event.data.get("phase", ""))
    if phase == rank_events.LISTENING:
        view.listening_at = event.at_s
    elif rank_events.position(phase) >= 0:
        view.phase = phase
        details = event.data.get("details")
        if phase == rank_events.STARTED and isinstance(details, Mapping):
            view.hello, view.hello_at = details, event.at_s
        _on_progress(view, event)


def _on_collective_entered(view: RankView, event: EventRecord) -> None:
    data = event.data
    view.what = str(data.get("what", ""))
    view.waiting_for = _numbers(data.get("waiting_for", ()))
    if data.get("again"):
        view.idle = data.get("idle") is True
        _set_changed(view, event.at_s)
        return
    view.loading, view.idle = bool(data.get("loading")), data.get("idle") is True
    view.inside, view.root = _number(data.get("collective")), _rank_or_none(data.get("root"))
    view.entered = max(view.entered, view.inside)
    details = data.get("details")
    if isinstance(details, Mapping):
        view.advertised = str(details.get("hostname_resolves_to", ""))
        view.interface = str(details.get("interface", ""))
    _on_progress(view, event)


def _on_collective_left(view: RankView, event: EventRecord) -> None:
    view.left = max(view.left, _number(event.data.get("collective")))
    is_measured = bool(view.inside) or (view.role != RANK and not view.idle)
    if is_measured and rank_events.position(view.phase) >= rank_events.position(rank_events.GROUP):
        seconds = event.data.get("seconds", 0.0)
        # No collective lasted longer than the rank has existed; this bounds the time limit for other ranks.
        lifetime_s = max(0.0, event.at_s - view.began_at)
        view.longest_s = max(
            view.longest_s, min(float(seconds), lifetime_s) if isinstance(seconds, (int, float)) else 0.0
        )
    view.what, view.waiting_for, view.loading, view.inside, view.idle = "", (), False, 0, False
    _on_progress(view, event)


def _on_progress(view: RankView, event: EventRecord) -> None:
    view.progress = max(view.progress, _number(event.data.get("progress")))
    _set_changed(view, event.at_s)


def _set_changed(view: RankView, at_s: float) -> None:
    view.changed_at, view.idle_at_change_s = at_s, (view.starved_s or 0.0) + view.silent_s


def _rank_or_none(value: Any) -> int | None:
    return value if type(value) is int else None


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(_number(item) for item in value) if isinstance(value, (list, tuple)) else ()


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_COUNT else 0


def members_of(requests: Sequence[Request]) -> tuple[Member, ...]:
    """Return the members that these requests start. A later member with a number in use gets a new one."""
    members: dict[int, Member] = {}
    for request in requests:
        params = request.params
        number = int(params["rank"])
        if number in members:
            number = max(max(members), len(requests)) + 1
        role = BACKUP_WORKER if params.get("spare") is True else str(params.get("role", RANK))
        index = params.get("index", params["rank"])
        members[number] = Member(
            number, request.node, request.key, role, index if isinstance(index, int) else str(index)
        )
    return tuple(members.values())


#: The kind of a run that was ended before it finished, without a sign that any member is at fault.
UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds.

    Time counts only while the head itself ran and, for a lack of progress, while the rank was not starved of CPU time.
    A process that is stopped or silent and resumes within ten seconds (a debugger, a core dump, a virtual machine that
    is moved) is healthy. The start of the interpreter and the loading of libraries have no limit but the deadline of
    the run.

    Args:
        stopped_s, silent_s: the longest time for which a healthy process is stopped or silent.
        step_factor: a rank is frozen after this many times the longest step so far; the factor is that of NVIDIA's
            resiliency extension.
        step_least_s: the shortest time after which a rank is frozen.
        unmeasured_factor: the factor by which the limits grow if the rank cannot report its starvation.
        connect_s: the time for the setup of a process group and its first collective.
        settle_s: the time in which the cause of a death may be reported after the deaths that it caused.
        beat_s: the time after the last heartbeat that still counts as a lack of progress; later time counts as silence.
        replace_s: the time that a backup worker may take to replace a lost worker; a lagging worker must be replaced
            within 5 s.
        agree_s: the time that other members may take to report their identity after two have contradicted each other.
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
#: The largest number of names in a sentence.
_MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class Culprit:
    """The member to blame.

    Args:
        rank: its number; None if all ranks hang together, or if the culprit was never started.
        node: the name of its node; empty if no member is named.
        kind: `missing`, `dead`, `stopped`, `stuck`, `lost-node`, `mismatch`, `endpoint` (the meeting point of a
            collective), `path` (the network path from workers to servers) or UNFINISHED.
        phase: the last phase that the member completed.
        doing: its last activity.
        since_s: the start of the fault, in seconds since the run began.
        because: the reason as one readable sentence.
        waiting: the numbers of the members that wait for it.
        also: the numbers of further members with the same fault.
        key: the key of the request that started it.
        name: its name (`rank 3`, `server 1`); empty if no member is named.
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
        """Return `worker 3 on node-b`; empty if no member is named."""
        return f"{self.name} on {self.node}" if self.name else ""


Views = dict[int, RankView]


def make_culprit(
    views: Views, view: RankView, kind: str, since_s: float, text: str, *, also: Sequence[int] = ()
) -> Culprit:
    """Return the result that blames `view`, for whom all running members wait; `text` follows "rank 3 on node-b"."""
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
    """Return the name and the node of a member: `rank 3 on node-b`."""
    return f"{view.name} on {view.node}"


def describe_activity(view: RankView) -> str:
    """Return the last activity of the member, in words that follow "during"."""
    if not view.started:
        return "starting"
    return view.what or rank_events.activity_of(view.phase, view.role)


def nodes_text(group: Sequence[RankView]) -> str:
    """Return the names of these members' nodes as text, each once."""
    return fold(list(dict.fromkeys(v.node for v in group)))


def names_text(group: Sequence[Member | RankView]) -> str:
    """Return the names of these members as text: `rank 1`, `ranks 1, 2`, `server 0 and workers 1, 2`."""
    by_role = grouped((view.role, view.name) for view in group)
    parts: list[str] = []
    for role, names in by_role.items():
        are_numbered = all(name.startswith(f"{role} ") and name[len(role) + 1 :].isdecimal() for name in names)
        if len(names) == 1 or not are_numbered:
            parts.append(", ".join(names))
        else:
            parts.append(f"{role}s {fold([name[len(role) + 1 :] for name in names])}")
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] if parts else ""


def fold(names: Sequence[str]) -> str:
    """Return all names if they are few, otherwise the first names and the number of others."""
    return join_some(names, _MAX_NAMES)


def by_time(views: Views, time_of: Callable[[RankView], float | None]) -> list[RankView]:
    """Return the members for which `time_of` returns a time, the earliest first."""
    times = [(at_s, view.rank, view) for view in views.values() if (at_s := time_of(view)) is not None]
    return [view for _, _, view in sorted(times, key=lambda item: item[:2])]


#: A frame, and the header of a thread, in a dump of Python's faulthandler (most recent call first).
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)
#: The functions that members run, as named in a stack.
_MEMBER_FUNCTIONS = ("rank", "server", "worker")
#: Folders of the frameworks, in whose code a rank waits for a collective.
_FRAMEWORK_FOLDERS = ("/torch/", "/paddle/")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack."""

    function: str
    path: str
    line: str

    @property
    def text(self) -> str:
        """Return `all_reduce (distributed_c10d.py:3252)`."""
        return f"{self.function} ({self.path.rsplit('/', 1)[-1]}:{self.line})"

    @property
    def is_in_framework(self) -> bool:
        """Return whether the frame is in the framework's own code."""
        return any(folder in self.path for folder in _FRAMEWORK_FOLDERS)


def own_frames(text: str) -> list[Frame]:
    """Return the frames of the member's own thread, innermost first, from faulthandler's dump of all threads."""
    thread_frames = [
        [Frame(name, path, line) for path, line, name in _FRAME.findall(thread_text)]
        for thread_text in _THREAD.split(text)
    ]
    trainer_frames = [frames for frames in thread_frames if any("reference_trainer" in frame.path for frame in frames)]
    member_frames = [
        frames for frames in trainer_frames if any(frame.function in _MEMBER_FUNCTIONS for frame in frames)
    ]
    return next(iter(member_frames or trainer_frames or [frames for frames in thread_frames if frames]), [])


def find_member_outside_framework(views: Views, culprit: Culprit) -> Culprit | None:
    """Return the few members in code outside the framework while most wait in the same call; None if there are none."""
    if culprit.kind != "stuck" or culprit.rank is not None:
        return None
    frame_by_rank = {number: frames[0] for number, view in views.items() if (frames := own_frames(view.stacks))}
    waiting_ranks = [number for number, frame in frame_by_rank.items() if frame.is_in_framework]
    # The trainer's own code may wait for a GPU, which is not code outside the framework.
    outside_ranks = [
        rank
        for rank, frame in frame_by_rank.items()
        if not frame.is_in_framework and "reference_trainer" not in frame.path
    ]
    if not outside_ranks or len(outside_ranks) >= len(waiting_ranks) or len(frame_by_rank) < len(views):
        return None
    return _culprit_outside(views, culprit, frame_by_rank, waiting_ranks, outside_ranks)


def _culprit_outside(
    views: Views,
    culprit: Culprit,
    frame_by_rank: Mapping[int, Frame],
    waiting_ranks: Sequence[int],
    outside_ranks: Sequence[int],
) -> Culprit:
    first_view = views[outside_ranks[0]]
    frame = frame_by_rank[first_view.rank]
    location = f"{frame.function} ({frame.path}:{frame.line})"
    text = (
        f"is in {location}, outside the framework, while {names_text([views[rank] for rank in waiting_ranks])} wait"
        f" for it in {frame_by_rank[waiting_ranks[0]].text} during {culprit.doing}"
    )
    outside_culprit = make_culprit(views, first_view, "stuck", culprit.since_s, text, also=outside_ranks[1:])
    return replace(outside_culprit, phase=culprit.phase, doing=culprit.doing, waiting=tuple(waiting_ranks))

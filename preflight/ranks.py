"""What is known of each member of a smoke run, put together from everything it and its agent said.

Members are the ranks of a collective, or the servers and workers of a parameter-server run. Each has a number that
nobody else in the group has, by which others say whom they wait for, and a name for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from preflight.lazy.dataclasses import dataclass
from preflight.recording import EventRecord, FactRecord, Unavailable
from reference_trainer import phases

_SIGABRT = 6
#: The role of those who are alike, and are called by their number.
RANK = "rank"
#: Of a worker that waits to take the place of another one.
SPARE = "spare"


@dataclass(frozen=True, slots=True)
class Member:
    """A process that is expected: where it runs, which request it answers, and which part it plays.

    Args:
        rank: its number, unique in the group. `index` is its place among those of its role, as it was told.
    """

    rank: int
    node: str
    key: str
    role: str = RANK
    index: int | str | None = None

    @property
    def name(self) -> str:
        """What it is called: `rank 3`, `server 1`."""
        index = self.rank if self.index is None else self.index
        return f"{self.role} {index}" if index != "" else f"{self.role} without an index"


@dataclass(frozen=True, slots=True)
class Dial:
    """How a member's attempts to open another one's port go: so since `since_s`, and so still at `at_s`."""

    result: str
    error: str
    endpoint: str
    since_s: float
    at_s: float


@dataclass
class RankView:
    """One member as of some moment. Times are seconds since the run began, by the head's clock.

    Args:
        name, role: as in `Member`. `hello` is what it said of itself when it started.
        dials: the ports of others that it dialled, by their numbers; `dial_result` is about the master's of a
            collective.
        replaced_at: when a server said that a spare worker has its place now.
        idle: it only waits for work; whoever waits for it in turn has sent something that did not arrive.
        heard_at: last word of the rank itself; `changed_at`: last time its main thread moved.
        entered, left: number of the last collective it entered and left; `inside` the one it is in, 0 when none.
        longest_s: the longest collective or step it has left since the group was set up.
        state: last state its agent saw (`T` stopped, `D` uninterruptible, `R` running).
        advertised: what its own host name resolves to, which Gloo tells the others when no interface is chosen.
    """

    rank: int
    node: str
    key: str
    began_at: float
    name: str = ""
    role: str = RANK
    launched: bool = False
    started: bool = False
    heard_at: float = 0.0
    changed_at: float = 0.0
    phase: str = ""
    what: str = ""
    waiting_for: tuple[int, ...] = ()
    loading: bool = False
    progress: int = 0
    entered: int = 0
    left: int = 0
    inside: int = 0
    longest_s: float = 0.0
    idle: bool = False
    hello: Mapping[str, Any] = field(default_factory=dict)
    hello_at: float = 0.0
    dials: dict[int, Dial] = field(default_factory=dict)
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
        """No result and no failure of it is known."""
        return not self.done and self.failure is None

    @property
    def dial_failed(self) -> bool:
        """It ended because it could not open the port of the master, or of a server."""
        failing = self.dial_result not in ("", "open") or any(dial.result != "open" for dial in self.dials.values())
        return self.failure is not None and failing

    @property
    def consequence(self) -> bool:
        """It ended because another rank did: its own words, or a library's abort after a peer's connection broke."""
        if self.failure is None:
            return False
        if self.failure.kind == "blocked" and self.started:
            return True
        if self.failure.exit_code == -_SIGABRT:
            # NCCL's watchdog and Gloo's checks abort the process, and their reason stands on standard error.
            return any(mark in self.failure.detail.lower() for mark in phases.CONSEQUENCES)
        return any(problem.get("consequence") for _, problem in self.problems)

    def problem(self, kind: str) -> Mapping[str, Any] | None:
        """The first problem of this kind it reported."""
        return next((data for _, data in self.problems if data.get("problem") == kind), None)

    def problem_at(self, kind: str) -> float | None:
        """When it reported that."""
        return next((at for at, data in self.problems if data.get("problem") == kind), None)


def views(
    members: Sequence[Member],
    events: Sequence[EventRecord],
    records: Sequence[FactRecord],
    *,
    began_s: float,
) -> dict[int, RankView]:
    """The members by number."""
    found = {
        m.rank: RankView(m.rank, m.node, m.key, began_s, m.name, m.role, heard_at=began_s, changed_at=began_s)
        for m in sorted(members, key=lambda member: member.rank)
    }
    by_key = {view.key: view for view in found.values()}
    for event in sorted(events, key=lambda e: e.at_s):
        view = by_key.get(event.request_key)
        if view is not None and event.origin == "agent":
            _hear_agent(view, event)
        elif view is not None and event.origin == "child":
            _hear_rank(view, event)
            if event.data.get("event") == phases.REPLACED:
                _replaced(found, event)
    for record in records:
        view = by_key.get(record.request.key)
        if view is None or (record.unavailable is not None and record.unavailable.kind == "cancelled"):
            continue
        view.ended_at = record.finished_s
        view.done, view.failure = record.unavailable is None, record.unavailable
    return found


def replaced(members: Sequence[Member], events: Sequence[EventRecord]) -> dict[int, Member | None]:
    """The numbers of those whose place a spare worker has taken, and who that was."""
    by_number = {member.rank: member for member in members}
    told = [event.data for event in events if event.origin == "child" and event.data.get("event") == phases.REPLACED]
    return {_number(data.get("worker")): by_number.get(_number(data.get("spare"))) for data in told}


def _replaced(found: Mapping[int, RankView], event: EventRecord) -> None:
    lost = found.get(_number(event.data.get("worker")))
    if lost is not None and lost.replaced_at is None:
        lost.replaced_at = event.at_s


def _hear_agent(view: RankView, event: EventRecord) -> None:
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


def _hear_rank(view: RankView, event: EventRecord) -> None:
    data = event.data
    view.started = True
    view.heard_at = event.at_s
    kind = data.get("event")
    if kind == phases.BEAT:
        _beat(view, event)
    elif kind == phases.PHASE:
        _reached(view, event)
    elif kind == phases.ENTERING:
        _entered(view, event)
    elif kind == phases.LEFT:
        _left(view, event)
    elif kind == phases.DIAL and isinstance(data.get("to"), int):
        result, error, endpoint = (str(data.get(name, "")) for name in ("result", "error", "endpoint"))
        before = view.dials.get(_number(data.get("to")))
        since_s = before.since_s if before is not None and before.result == result else event.at_s
        view.dials[_number(data.get("to"))] = Dial(result, error, endpoint, since_s, event.at_s)
    elif kind == phases.DIAL:
        view.dial_result, view.dial_error = str(data.get("result", "")), str(data.get("error", ""))
        view.dial_endpoint, view.dial_at = str(data.get("endpoint", "")), event.at_s
    elif kind == phases.PROBLEM:
        view.problems.append((event.at_s, data))


def _beat(view: RankView, event: EventRecord) -> None:
    """A heartbeat moves the view only as far as the rank has moved since its last word."""
    data = event.data
    progress = _number(data.get("progress"))
    if progress <= view.progress:
        return
    view.progress, view.changed_at = progress, event.at_s
    # What it is at now may not have been told when it began, because it is mostly short; it may be what lasts.
    view.what = str(data.get("what", ""))
    view.waiting_for = _numbers(data.get("waiting_for", ()))
    view.idle = data.get("idle") is True
    collective = _number(data.get("collective"))
    view.entered = max(view.entered, collective)
    view.inside = collective if data.get("inside") is True else 0
    view.left = max(view.left, collective - 1 if view.inside else collective)


def _reached(view: RankView, event: EventRecord) -> None:
    phase = str(event.data.get("phase", ""))
    if phase == phases.LISTENING:
        view.listening_at = event.at_s
    elif phases.position(phase) >= 0:
        view.phase = phase
        details = event.data.get("details")
        if phase == phases.STARTED and isinstance(details, Mapping):
            view.hello, view.hello_at = details, event.at_s
        _moved(view, event)


def _entered(view: RankView, event: EventRecord) -> None:
    data = event.data
    view.what = str(data.get("what", ""))
    view.waiting_for = _numbers(data.get("waiting_for", ()))
    if data.get("again"):
        view.changed_at, view.idle = event.at_s, data.get("idle") is True
        return
    view.loading, view.idle = bool(data.get("loading")), data.get("idle") is True
    view.inside = _number(data.get("collective"))
    view.entered = max(view.entered, view.inside)
    details = data.get("details")
    if isinstance(details, Mapping):
        view.advertised = str(details.get("hostname_resolves_to", ""))
        view.interface = str(details.get("interface", ""))
    _moved(view, event)


def _left(view: RankView, event: EventRecord) -> None:
    view.left = max(view.left, _number(event.data.get("collective")))
    counted = bool(view.inside) or (view.role != RANK and not view.idle)
    if counted and phases.position(view.phase) >= phases.position(phases.GROUP):
        seconds = event.data.get("seconds", 0.0)
        view.longest_s = max(view.longest_s, float(seconds) if isinstance(seconds, (int, float)) else 0.0)
    view.what, view.waiting_for, view.loading, view.inside, view.idle = "", (), False, 0, False
    _moved(view, event)


def _moved(view: RankView, event: EventRecord) -> None:
    view.progress = max(view.progress, _number(event.data.get("progress")))
    view.changed_at = event.at_s


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(_number(item) for item in value) if isinstance(value, (list, tuple)) else ()


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

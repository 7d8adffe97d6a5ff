"""Who is to blame when the ranks of a smoke run do not all come to the end.

In a collective job one bad rank makes all others wait or die, and each of those complains about itself. This module
looks at what all of them said and names the one that everybody else waits for. It is pure: the supervisor calls it
while the ranks run, to stop waiting early, and the judge calls it on the recording; both get the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from preflight.ranks import RankView, views
from preflight.recording import EventRecord, FactRecord
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
    connect_s: float = 9.0
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


def decision_time(events: Sequence[EventRecord], records: Sequence[FactRecord]) -> float:
    """As of when a finished run is judged: when the supervisor decided, else its end."""
    decided = [
        event.at_s for event in events if event.origin == "head" and event.data.get("event") == phases.DECIDED
    ]
    if decided:
        return max(decided)
    return max((*(r.finished_s for r in records), *(e.at_s for e in events)), default=0.0)


def culprit(
    members: Sequence[Member],
    events: Sequence[EventRecord],
    records: Sequence[FactRecord],
    *,
    now_s: float,
    began_s: float = 0.0,
    limits: Limits = LIMITS,
) -> Culprit | None:
    """Name the rank to blame as of `now_s`; None when all is well or it cannot be told yet.

    Args:
        members: every expected rank.
        events: what ranks and agents said; later ones than `now_s` are not looked at.
        records: results and failures so far; those finished after `now_s` are not looked at.
        now_s, began_s: seconds since the run began; `began_s` is when the ranks were started.
    """
    found = views(
        {m.rank: (m.node, m.key) for m in members},
        [event for event in events if event.at_s <= now_s],
        [record for record in records if record.finished_s <= now_s],
        began_s=began_s,
    )
    for look in (_disagreeing, _endpoint_taken, _unresolved, _first_dead, _stopped, _silent):
        named = look(found, now_s, limits)
        if named is not None:
            return named
    if _settling(found, now_s, limits):
        return None
    for look in (_only_consequences, _never_started, _cannot_reach, _frozen):
        named = look(found, now_s, limits)
        if named is not None:
            return named
    return None


Views = dict[int, RankView]


def _blame(
    views_: Views, view: RankView, kind: str, since_s: float, text: str, *, also: Sequence[int] = ()
) -> Culprit:
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


def _disagreeing(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    for view in _by_time(found, lambda v: v.problem_at("mismatch")):
        problem = view.problem("mismatch")
        assert problem is not None
        text = f"does not belong to the others: {problem.get('error', '')}"
        return _blame(found, view, "mismatch", view.problem_at("mismatch") or 0.0, text)
    return None


def _endpoint_taken(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    for view in _by_time(found, lambda v: v.problem_at("listen")):
        problem = view.problem("listen")
        assert problem is not None
        text = f"must be the master, but {problem.get('error', 'it cannot listen')}"
        return _blame(found, view, "endpoint", view.problem_at("listen") or 0.0, text)
    return None


def _unresolved(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    failing = [
        v
        for v in found.values()
        if v.dial_result == "unresolved" and now_s - v.dial_at >= limits.unresolved_s
    ]
    if not failing:
        return None
    first = min(failing, key=lambda v: (v.dial_at, v.rank))
    text = f"cannot resolve the name of the master {first.dial_endpoint}: {first.dial_error}"
    return _blame(
        found, first, "endpoint", first.dial_at, text, also=[v.rank for v in failing if v is not first]
    )


def _first_dead(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """The first that ended on its own account; those that died because a peer went away come later, if at all."""
    dead = [v for v in found.values() if v.failure is not None and not v.consequence and not v.dial_failed]
    if not dead:
        return None
    # A node that is gone is noticed only when its channel breaks; ranks that died for lack of it died before.
    view = min(dead, key=lambda v: (v.ended_at, v.rank))
    failure = view.failure
    assert failure is not None
    doing = _doing(view)
    if failure.kind == "unreachable" and not view.launched:
        return _blame(found, view, "missing", view.ended_at, f"never started: {failure.reason}")
    if failure.kind == "unreachable":
        text = f"is lost with its node: {failure.reason} ({doing})"
        return _blame(found, view, "lost-node", view.ended_at, text)
    if failure.kind in ("context", "blocked") and not view.started:
        return _blame(found, view, "missing", view.ended_at, f"never started: {failure.reason}")
    if failure.kind == "timeout" and view.started:
        return _blame(
            found, view, "stuck", view.changed_at, f"did not come to an end: {failure.reason} ({doing})"
        )
    how = _ending(failure.exit_code) if failure.exit_code is not None else f"failed: {failure.reason}"
    return _blame(found, view, "dead", view.ended_at, f"{how} during {doing}")


def _ending(code: int) -> str:
    if code < 0:
        import signal

        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with {code}"


def _doing(view: RankView) -> str:
    if not view.started:
        return "starting"
    return view.what or phases.DOING.get(view.phase, view.phase)


def _stopped(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    for view in _by_time(found, lambda v: v.state_at if v.alive and v.state == "T" else None):
        if now_s - view.state_at >= limits.stopped_s:
            how = f"process {view.state_pid} is in state T: SIGSTOP, a debugger or job control"
            text = f"is stopped during {_doing(view)} ({how})"
            return _blame(found, view, "stopped", view.state_at, text)
    return None


def _silent(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """A started rank that said nothing for six intervals while others were heard.

    When nobody is heard, the head itself may have been held up: then nobody is named.
    """
    alive = [v for v in found.values() if v.alive and v.started and not v.done]
    for view in sorted(alive, key=lambda v: (v.heard_at, v.rank)):
        quiet_s = now_s - view.heard_at
        if quiet_s < (limits.loading_s if view.loading else limits.silent_s):
            continue
        heard = any(
            now_s - other.heard_at <= limits.witness_s for other in found.values() if other is not view
        )
        if not heard and quiet_s < limits.loading_s:
            continue
        text = f"has not been heard for {quiet_s:.1f} s during {_doing(view)}: its process or its node stands still"
        return _blame(found, view, "stopped", view.heard_at, text)
    return None


def _settling(found: Views, now_s: float, limits: Limits) -> bool:
    """Whether somebody died because of a peer, so recently that the peer's own end may not be known yet."""
    ended = [v.ended_at for v in found.values() if v.failure is not None]
    everybody = all(not v.alive for v in found.values())
    return bool(ended) and not everybody and now_s - min(ended) < limits.settle_s


def _only_consequences(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    ended = [v for v in found.values() if v.failure is not None and not v.dial_failed]
    if not ended:
        return None
    view = min(ended, key=lambda v: (v.ended_at, v.rank))
    assert view.failure is not None
    text = f"lost its connection during {_doing(view)}, though no rank died before it: {view.failure.reason}"
    return _blame(found, view, "dead", view.ended_at, text)


def _never_started(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    absent = [v for v in found.values() if v.alive and not v.started]
    late = [v for v in absent if now_s - v.began_at >= limits.join_s]
    if not late:
        return None
    view = min(late, key=lambda v: v.rank)
    seen = "its interpreter was started, but" if view.launched else "nothing was heard of it:"
    text = f"never started: {seen} no rank reported within {limits.join_s:g} s"
    return _blame(found, view, "missing", view.began_at, text, also=[v.rank for v in late if v is not view])


def _cannot_reach(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Ranks that cannot open the master's port although rank 0 listens on it: a row, a column or a single path."""
    master = found.get(0)
    if master is None or not master.listening_at:
        return None
    failing = [v for v in found.values() if v.dial_result not in ("", "open")]
    ready = [
        v for v in failing if not v.alive or now_s - max(v.dial_at, master.listening_at) >= limits.dial_s
    ]
    if not ready:
        return None
    first = min(ready, key=lambda v: (v.dial_at, v.rank))
    pending = [v for v in found.values() if v.alive and v.started and not v.dial_result]
    if pending and now_s - max(first.dial_at, master.listening_at) < 2 * limits.dial_s:
        return None
    others = [v.rank for v in failing if v is not first]
    how = f"{first.dial_endpoint} is {first.dial_result} ({first.dial_error})"
    reached = [v for v in found.values() if v.dial_result == "open" and v.node != master.node]
    if master.dial_result not in ("", "open"):
        text = f"listens on its port, but {master.dial_endpoint} does not lead to it: {master.dial_error}"
        return _blame(
            found, master, "endpoint", master.dial_at, text, also=[v.rank for v in failing if v is not master]
        )
    if not reached and len({v.node for v in failing}) > 1:
        text = f"listens, but no other node can open its port: {how}, seen from {_nodes(failing)}"
        return _blame(found, master, "endpoint", first.dial_at, text)
    text = f"cannot open the master's port, though rank 0 on {master.node} listens: {how}"
    return _blame(found, first, "endpoint", first.dial_at, text, also=others)


def _nodes(group: Sequence[RankView]) -> str:
    return ", ".join(dict.fromkeys(v.node for v in group))


def _frozen(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Follow who waits for whom to a rank that waits for nobody and does not move."""
    running = {v.rank: v for v in found.values() if v.alive and v.started and not v.done}
    over = [v for v in running.values() if now_s - v.changed_at > _patience(v, found, limits)]
    ends = [v for v in over if not _awaited(v, found)]
    if not ends:
        return _deadlock(found, over, running, now_s, limits)
    view = min(ends, key=lambda v: (v.entered, phases.position(v.phase), v.changed_at, v.rank))
    frozen_s = now_s - view.changed_at
    state = ", its process uninterruptible (state D: disk or driver)" if view.state == "D" else ""
    if not view.inside:
        text = f"has not moved for {frozen_s:.1f} s during {_doing(view)}{state}"
        waiters = [v for v in running.values() if v.inside > view.entered]
        if waiters:
            text += f"; it did not enter collective {view.entered + 1}, in which {_ranks(waiters)} wait"
        return _blame(found, view, "stuck", view.changed_at, text)
    if any(v.left >= view.inside for v in found.values() if v is not view):
        where = f"collective {view.inside} ({view.what})"
        text = f"is still in {where} after {frozen_s:.1f} s, which others have left{state}"
        return _blame(found, view, "stuck", view.changed_at, text)
    return _all_inside(found, view, frozen_s)


def _all_inside(found: Views, view: RankView, frozen_s: float) -> Culprit:
    """Everybody entered and nobody left: the network between them, unless one of them advertises loopback."""
    spread = len({v.node for v in found.values()}) > 1
    lost = [v for v in found.values() if v.advertised.startswith("127.") and not v.interface]
    if spread and lost:
        first = min(lost, key=lambda v: v.rank)
        text = (
            f"tells the others to connect to {first.advertised}, because its host name resolves to that and "
            f"no interface is chosen; all ranks have waited in {view.what} for {frozen_s:.1f} s"
        )
        return _blame(
            found, first, "endpoint", view.changed_at, text, also=[v.rank for v in lost if v is not first]
        )
    text = (
        f"all {len(found)} ranks entered collective {view.inside} ({view.what}) and none left it for {frozen_s:.1f} s:"
        " the network between them loses what they send, and the ranks alone cannot tell where"
    )
    waiting = tuple(sorted(found))
    return Culprit(None, "", "stuck", view.phase, view.what, view.changed_at, text, waiting, (), view.key)


def _deadlock(
    found: Views, over: Sequence[RankView], running: Views, now_s: float, limits: Limits
) -> Culprit | None:
    if not running or len(over) < len(running):
        return None
    if any(v.alive and not v.started for v in found.values()):
        return None
    first = min(over, key=lambda v: (v.entered, v.changed_at, v.rank))
    names = ", ".join(map(str, _awaited(first, found)))
    text = f"waits for {names} during {_doing(first)}, and those wait too: nobody can be named with certainty"
    return _blame(found, first, "stuck", first.changed_at, text)


def _awaited(view: RankView, found: Views) -> tuple[int, ...]:
    """The ranks without which `view` cannot go on."""
    if view.inside:
        return tuple(
            v.rank for v in found.values() if v is not view and v.entered < view.inside and not v.done
        )
    waiting = tuple(rank for rank in view.waiting_for if rank in found and not found[rank].done)
    if waiting == (0,) and found[0].listening_at:
        # The endpoint is open: what does not answer is the way to it, not rank 0.
        return ()
    return waiting


def _patience(view: RankView, found: Views, limits: Limits) -> float:
    if view.loading or not view.phase or view.phase == phases.STARTED:
        return limits.loading_s
    if phases.position(view.phase) < phases.position(phases.GROUP):
        return limits.connect_s
    longest = max((v.longest_s for v in found.values()), default=0.0)
    return max(limits.step_least_s, limits.step_factor * longest)


def _ranks(group: Sequence[RankView]) -> str:
    return ("rank " if len(group) == 1 else "ranks ") + ", ".join(str(v.rank) for v in group)


def _by_time(found: Views, when: object) -> list[RankView]:
    assert callable(when)
    timed = [(when(v), v.rank, v) for v in found.values()]
    return [v for at, _, v in sorted((t for t in timed if t[0] is not None), key=lambda t: t[:2])]

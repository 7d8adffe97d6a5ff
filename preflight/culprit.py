"""Who is to blame when the members of a smoke run do not all come to the end.

One bad rank, server or worker makes all others wait or die, and each of those complains about itself. This module
looks at what all of them said and names the one that everybody else waits for. It is pure: the supervisor calls it
while they run, to stop waiting early, and the judge calls it on the recording; both get the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from preflight.blame import (
    LIMITS,
    Culprit,
    Limits,
    Views,
    blame,
    by_time,
    doing,
    names_text,
    nodes_text,
    title,
)
from preflight.joining import apart
from preflight.meeting import all_inside, cannot_reach, endpoint_taken, unresolved
from preflight.ranks import RANK, SPARE, Member, RankView, views
from preflight.reaching import each_other, unreached
from preflight.recording import EventRecord, FactRecord
from reference_trainer import phases

__all__ = ["LIMITS", "Culprit", "Limits", "Member", "culprit", "decision_time"]


def decision_time(events: Sequence[EventRecord], records: Sequence[FactRecord]) -> float:
    """As of when a finished run is judged: when the supervisor decided, else its end."""
    decided = [event.at_s for event in events if event.origin == "head" and event.data.get("event") == phases.DECIDED]
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
    """Name who is to blame as of `now_s`; None when all is well or it cannot be told yet.

    Args:
        members: everybody who is expected.
        events: what they and their agents said; later ones than `now_s` are not looked at.
        records: results and failures so far; those finished after `now_s` are not looked at.
        now_s, began_s: seconds since the run began; `began_s` is when they were started.
    """
    found = views(
        members,
        [event for event in events if event.at_s <= now_s],
        [record for record in records if record.finished_s <= now_s],
        began_s=began_s,
    )
    together = apart(found, now_s, limits)
    if together is not None:
        return together
    # Whoever was replaced is nobody's business any more.
    taken = sum(view.replaced_at is not None for view in found.values())
    found = {number: view for number, view in found.items() if view.replaced_at is None}
    for look in (_disagreeing, endpoint_taken, unresolved, _first_dead, _stopped, _silent):
        named = look(found, now_s, limits)
        if named is not None:
            return None if _replaceable(named, found, taken, now_s, limits) else named
    if _settling(found, now_s, limits):
        return None
    for look in (_only_consequences, _never_started, cannot_reach, unreached, _frozen):
        named = look(found, now_s, limits)
        if named is not None:
            return None if _replaceable(named, found, taken, now_s, limits) else named
    return None


def _replaceable(named: Culprit, found: Views, taken: int, now_s: float, limits: Limits) -> bool:
    """Whether a spare worker may still take the place of the one who is named; `taken` places have one already."""
    view = found.get(named.rank) if named.rank is not None else None
    if view is None or view.role != "worker" or named.kind not in ("dead", "stopped", "stuck", "lost-node"):
        return False
    free = sum(other.role == SPARE and other.alive and other.started for other in found.values()) > taken
    serving = all(other.alive for other in found.values() if other.role == "server")
    return free and serving and now_s - named.since_s < limits.replace_s


def _disagreeing(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    for view in by_time(found, lambda v: v.problem_at("mismatch")):
        problem, at_s = view.problem("mismatch"), view.problem_at("mismatch")
        assert problem is not None and at_s is not None
        if view.role != RANK and now_s - at_s < limits.agree_s:
            # Whoever says it need not be the one who is wrong; what everybody says of himself tells.
            continue
        text = f"does not belong to the others: {problem.get('error', '')}"
        return blame(found, view, "mismatch", at_s, text)
    return None


def _first_dead(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """The first that ended on its own account; those that died because a peer went away come later, if at all."""
    dead = [v for v in found.values() if v.failure is not None and not v.consequence and not v.dial_failed]
    if not dead:
        return None
    # A node that is gone is noticed only when its channel breaks; ranks that died for lack of it died before.
    view = min(dead, key=lambda v: (v.ended_at, v.rank))
    failure = view.failure
    assert failure is not None
    did = doing(view)
    if failure.kind == "unreachable" and not view.launched:
        return blame(found, view, "missing", view.ended_at, f"never started: {failure.reason}")
    if failure.kind == "unreachable":
        text = f"is lost with its node: {failure.reason} ({did})"
        return blame(found, view, "lost-node", view.ended_at, text)
    if failure.kind in ("context", "blocked") and not view.started:
        return blame(found, view, "missing", view.ended_at, f"never started: {failure.reason}")
    if failure.kind == "timeout" and view.started:
        return blame(found, view, "stuck", view.changed_at, f"did not come to an end: {failure.reason} ({did})")
    how = _ending(failure.exit_code) if failure.exit_code is not None else f"failed: {failure.reason}"
    return blame(found, view, "dead", view.ended_at, f"{how} during {did}")


def _ending(code: int) -> str:
    if code < 0:
        import signal

        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with {code}"


def _stopped(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    for view in by_time(found, lambda v: v.state_at if v.alive and v.state == "T" else None):
        if now_s - view.state_at >= limits.stopped_s:
            how = f"process {view.state_pid} is in state T: SIGSTOP, a debugger or job control"
            text = f"is stopped during {doing(view)} ({how})"
            return blame(found, view, "stopped", view.state_at, text)
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
        heard = any(now_s - other.heard_at <= limits.witness_s for other in found.values() if other is not view)
        if not heard and quiet_s < limits.loading_s:
            continue
        text = f"has not been heard for {quiet_s:.1f} s during {doing(view)}: its process or its node stands still"
        return blame(found, view, "stopped", view.heard_at, text)
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
    text = f"lost its connection during {doing(view)}, though no rank died before it: {view.failure.reason}"
    return blame(found, view, "dead", view.ended_at, text)


def _never_started(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    absent = [v for v in found.values() if v.alive and not v.started]
    late = [v for v in absent if now_s - v.began_at >= limits.join_s]
    if not late:
        return None
    view = min(late, key=lambda v: v.rank)
    seen = "its interpreter was started, but" if view.launched else "nothing was heard of it:"
    text = f"never started: {seen} no {view.role} reported within {limits.join_s:g} s"
    return blame(found, view, "missing", view.began_at, text, also=[v.rank for v in late if v is not view])


def _frozen(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Follow who waits for whom to a member that waits for nobody and does not move."""
    # A spare worker that waits for a place has nothing to do.
    awake = [v for v in found.values() if v.role != SPARE or not v.idle]
    running = {v.rank: v for v in awake if v.alive and v.started and not v.done}
    over = [v for v in running.values() if now_s - v.changed_at > _patience(v, found, limits)]
    ends = [v for v in over if not _awaited(v, found)]
    if not ends:
        return _deadlock(found, over, running, now_s, limits)
    view = min(ends, key=lambda v: (v.entered, phases.position(v.phase), v.changed_at, v.rank))
    frozen_s = now_s - view.changed_at
    state = ", its process uninterruptible (state D: disk or driver)" if view.state == "D" else ""
    lost = [found[number] for number in view.waiting_for if number in found and found[number].idle]
    if lost and not view.inside:
        text = (
            f"has waited for {names_text(lost)} for {frozen_s:.1f} s during {doing(view)}{state}, and "
            f"{title(lost[0])} has received nothing that it could answer: look at the path between them"
        )
        return blame(found, view, "stuck", view.changed_at, text, also=[v.rank for v in lost])
    if not view.inside:
        text = f"has not moved for {frozen_s:.1f} s during {doing(view)}{state}"
        waiters = [v for v in running.values() if v.inside > view.entered]
        if waiters:
            text += f"; it did not enter collective {view.entered + 1}, in which {names_text(waiters)} wait"
        return blame(found, view, "stuck", view.changed_at, text)
    if any(v.left >= view.inside for v in found.values() if v is not view):
        text = f"is still in collective {view.inside} ({view.what}) after {frozen_s:.1f} s, which others left{state}"
        also = [v for v in running.values() if v is not view and v.inside == view.inside]
        if also:
            verb = "is" if len(also) == 1 else "are"
            text += f"; so {verb} {names_text(also)} on {nodes_text(also)}: look at the path between them"
        return blame(found, view, "stuck", view.changed_at, text, also=[v.rank for v in also])
    return all_inside(found, view, frozen_s)


def _deadlock(found: Views, over: Sequence[RankView], running: Views, now_s: float, limits: Limits) -> Culprit | None:
    if not running or len(over) < len(running):
        return None
    if any(v.alive and not v.started for v in found.values()):
        return None
    between = each_other(found, over)
    if between is not None:
        return between
    first = min(over, key=lambda v: (v.entered, v.changed_at, v.rank))
    names = ", ".join(title(found[rank]) if found[rank].role != RANK else str(rank) for rank in _awaited(first, found))
    text = f"waits for {names} during {doing(first)}, and those wait too: nobody can be named with certainty"
    return blame(found, first, "stuck", first.changed_at, text)


def _awaited(view: RankView, found: Views) -> tuple[int, ...]:
    """The members without which `view` cannot go on; one that has nothing to do is not waited for in truth."""
    if view.inside:
        return tuple(v.rank for v in found.values() if v is not view and v.entered < view.inside and not v.done)
    waiting = tuple(
        rank for rank in view.waiting_for if rank in found and not found[rank].done and not found[rank].idle
    )
    met = phases.position(view.phase) >= phases.position(phases.RENDEZVOUS)
    if view.role == RANK and waiting == (0,) and found[0].listening_at and not met:
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

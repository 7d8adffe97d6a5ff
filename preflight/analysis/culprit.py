"""Finds the member to blame when not all members of a smoke run finish.

One bad rank, server or worker makes all others wait or die, and each of them reports its own fault. This module
compares all reports and names the member that all others wait for. It is pure: the supervisor calls it during the run,
to stop waiting early, and the judge calls it on the recording; both get the same answer.

It also explains runs that were cut short without a faulty member: too little time, or a head that paused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from preflight.agent import rank_events
from preflight.agent.wire import LEASE_S
from preflight.analysis.rank_state import (
    BACKUP_WORKER,
    LIMITS,
    RANK,
    UNFINISHED,
    Culprit,
    Limits,
    Member,
    RankView,
    Views,
    build_views,
    by_time,
    describe_activity,
    fold,
    make_culprit,
    names_text,
    nodes_text,
    title,
)
from preflight.analysis.rendezvous import (
    blame_network,
    find_mismatch,
    find_redirected,
    find_taken_endpoint,
    find_unreachable_master,
    find_unreached_server,
    find_unresolved_master,
    find_wait_cycle,
)
from preflight.model.recording import EventRecord, FactRecord, Unavailable

__all__ = ["LIMITS", "Culprit", "Limits", "Member", "decision_time", "find_culprit"]


def decision_time(events: Sequence[EventRecord], records: Sequence[FactRecord]) -> float:
    """Return the time at which a finished run is judged: the supervisor's decision, otherwise the end of the run."""
    decided = [
        event.at_s for event in events if event.origin == "head" and event.data.get("event") == rank_events.DECIDED
    ]
    if decided:
        return max(decided)
    return max((*(r.finished_s for r in records), *(e.at_s for e in events)), default=0.0)


def find_culprit(
    members: Sequence[Member],
    events: Sequence[EventRecord],
    records: Sequence[FactRecord],
    *,
    now_s: float,
    began_s: float = 0.0,
    limits: Limits = LIMITS,
) -> Culprit | None:
    """Return name the member to blame as of `now_s`; None if there is none or if it is not known yet.

    A run that was cut short without a fault of any member has the kind `unfinished` and names none.

    Args:
        members: all expected members.
        events: events from them and their agents; those after `now_s` are ignored.
        records: results and failures so far; those that finished after `now_s` are ignored.
        now_s, began_s: seconds since the run began; `began_s` is when the members were started.
    """
    pauses = pauses_in(events)
    until_now = [event for event in events if event.at_s <= now_s]
    ended = [record for record in records if record.finished_s <= now_s]
    lost = find_lost_to_pause(pauses, ended)
    if lost is not None:
        return lost
    found = _find(
        build_views(members, pauses.events(until_now), pauses.records(ended), began_s=pauses.without(began_s)),
        pauses.without(now_s),
        limits,
    )
    return found if found is None else replace(found, since_s=pauses.with_pauses(found.since_s))


def _find(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    mismatch = find_mismatch(views, now_s, limits)
    if mismatch is not None:
        return mismatch
    # A member that was replaced no longer matters.
    used = sum(view.replaced_at is not None for view in views.values())
    views = {number: view for number, view in views.items() if view.replaced_at is None}
    seen = (
        _find_disagreeing,
        find_taken_endpoint,
        find_unresolved_master,
        _find_first_dead,
        _find_stopped,
        _find_silent,
    )
    inferred = (
        _find_awaited_at_end,
        _find_lost_connection,
        find_unreachable_master,
        find_unreached_server,
        _find_frozen,
    )
    for find in seen if _is_settling(views, now_s, limits) else (*seen, *inferred):
        named = find(views, now_s, limits)
        if named is not None:
            return None if _is_replaceable(named, views, used, now_s, limits) else named
    return None


def _is_replaceable(named: Culprit, views: Views, taken: int, now_s: float, limits: Limits) -> bool:
    """Return whether a backup worker may still replace the named member; `taken` members have been replaced already."""
    view = views.get(named.rank) if named.rank is not None else None
    if view is None or view.role != "worker" or named.kind not in ("dead", "stopped", "stuck", "lost-node"):
        return False
    free = sum(other.role == BACKUP_WORKER and other.alive and other.started for other in views.values()) > taken
    serving = all(other.alive for other in views.values() if other.role == "server")
    return free and serving and now_s - named.since_s < limits.replace_s


def _find_disagreeing(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    for view in by_time(views, lambda v: v.problem_at("mismatch")):
        problem, at_s = view.problem("mismatch"), view.problem_at("mismatch")
        assert problem is not None and at_s is not None
        if view.role != RANK and now_s - at_s < limits.agree_s:
            # The member that reports it is not necessarily the faulty one; the reports of all members about themselves
            # decide.
            continue
        redirected = find_redirected(views, str(problem.get("error", "")), at_s)
        if redirected is not None:
            return redirected
        text = f"does not belong to the others: {problem.get('error', '')}"
        return make_culprit(views, view, "mismatch", at_s, text)
    return None


def _find_first_dead(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return the first member that ended by itself; members that died because of a peer are considered last."""
    dead = [v for v in views.values() if v.failure is not None and not v.consequence and not v.dial_failed]
    if not dead:
        return None
    # A lost node is noticed only when its channel breaks; ranks that died because of it died before.
    view = min(dead, key=lambda v: (v.ended_at, v.rank))
    failure = view.failure
    assert failure is not None
    did = describe_activity(view)
    if failure.kind == "unreachable" and not view.launched:
        return make_culprit(views, view, "missing", view.ended_at, f"never started: {failure.reason}")
    if failure.kind == "unreachable":
        text = f"was lost with its node: {failure.reason} ({did})"
        return make_culprit(views, view, "lost-node", view.ended_at, text)
    if failure.kind in ("context", "blocked") and not view.started:
        return make_culprit(views, view, "missing", view.ended_at, f"never started: {failure.reason}")
    if failure.kind == "timeout" and view.started:
        return unfinished(views, view.ended_at)
    how = _format_exit(failure.exit_code) if failure.exit_code is not None else f"failed: {failure.reason}"
    alike = [v for v in dead if v is not view and v.failure is not None and _find_similar_ends(v.failure, failure)]
    ended = f"; {names_text(alike)} on {nodes_text(alike)} ended in the same way" if alike else ""
    return make_culprit(views, view, "dead", view.ended_at, f"{how} during {did}{ended}", also=[v.rank for v in alike])


def _find_similar_ends(one: Unavailable, other: Unavailable) -> bool:
    return (one.kind, one.exit_code, one.reason) == (other.kind, other.exit_code, other.reason)


def _format_exit(code: int) -> str:
    if code < 0:
        import signal

        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with {code}"


def _find_stopped(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    for view in by_time(views, lambda v: v.state_at if v.alive and v.state == "T" else None):
        if now_s - view.state_at >= limits.stopped_s:
            how = f"process {view.state_pid} is in state T: SIGSTOP, a debugger or job control"
            text = f"is stopped during {describe_activity(view)} ({how})"
            return make_culprit(views, view, "stopped", view.state_at, text)
    return None


def _find_silent(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return a started rank that sent no heartbeat for `silent_s` while others did.

    If no rank sends anything, the head itself may have been delayed, so no rank is named.
    """
    alive = [v for v in views.values() if v.alive and v.started and not v.done]
    for view in sorted(alive, key=lambda v: (v.last_event_at, v.rank)):
        quiet_s = now_s - view.last_event_at
        if view.loading or view.state == "T" or quiet_s < limits.silent_s:
            continue  # one in state T is named as stopped
        has_witness = any(
            now_s - other.last_event_at <= limits.witness_s for other in views.values() if other is not view
        )
        if not has_witness:
            continue
        text = f"sent nothing for {quiet_s:.1f} s during {describe_activity(view)}: its process or its node is frozen"
        return make_culprit(views, view, "stopped", view.last_event_at, text)
    return None


def _is_settling(views: Views, now_s: float, limits: Limits) -> bool:
    """Return whether a member died because of a peer, so recently that the peer's own end may not be known yet."""
    ended = [v.ended_at for v in views.values() if v.failure is not None]
    all_ended = all(not v.alive for v in views.values())
    return bool(ended) and not all_ended and now_s - min(ended) < limits.settle_s


def _find_awaited_at_end(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return the one member that others were waiting for when they gave up, or the one that this member waits for in
    turn.
    """
    accusers = [v for v in views.values() if v.failure is not None and v.gave_up_on]
    ends = {number for v in accusers for number in v.gave_up_on if number in views}
    for _ in views:
        ends = {
            number for end in ends for number in views[end].gave_up_on or _awaited_members(views[end], views) or (end,)
        } & views.keys()
    view = views[ends.pop()] if len(ends) == 1 else None
    # If they wait for each other in a circle, none is more to blame than the others.
    if view is None or view in accusers or not view.started or _awaited_members(view, views):
        return None
    accusers = [v for v in accusers if view.rank in v.gave_up_on] or accusers
    first = min(accusers, key=lambda v: (v.ended_at, v.rank))
    assert first.failure is not None
    if view.changed_at > (first.changed_at + first.ended_at) / 2:
        # It moved while the others waited for it, so their word alone does not show that it is at fault.
        between = [views[number] for number in sorted(first.gave_up_on) if number in views]
        went_on = "that member continued"
        if view not in between:
            went_on = f"{title(view)}, for which that member waited, continued"
        text = (
            f"gave up on {' and '.join(map(title, between))} during {describe_activity(first)}, though {went_on}:"
            f" {first.failure.reason}; check the network path between them"
        )
        return make_culprit(
            views, first, "stuck", first.ended_at, text, also=sorted({view.rank, *(each.rank for each in between)})
        )
    text = (
        f"made no progress during {describe_activity(view)}, and {names_text(accusers)} gave up: {first.failure.reason}"
    )
    return make_culprit(views, view, "stuck", view.changed_at, text)


def _find_lost_connection(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    ended = [v for v in views.values() if v.failure is not None and not v.dial_failed]
    if not ended:
        return None
    view = min(ended, key=lambda v: (v.ended_at, v.rank))
    assert view.failure is not None
    if all(timed_out(each) for each in ended):
        return unfinished(views, view.ended_at)
    if len(ended) > 1:
        # The first to notice the loss is not necessarily at fault.
        text = (
            f"{names_text(ended)} on {nodes_text(ended)} lost their connections, though no process had ended:"
            f" {title(view)} was first, during {describe_activity(view)}: {view.failure.reason}"
        )
        return Culprit(None, "", "stuck", view.phase, describe_activity(view), view.ended_at, text, (), (), view.key)
    text = f"lost its connection during {describe_activity(view)}, though no process had ended: {view.failure.reason}"
    return make_culprit(views, view, "dead", view.ended_at, text)


def _find_frozen(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Follow the chain of waiting members to the one that waits for no other and makes no progress."""
    # An idle backup worker has nothing to do.
    awake = [v for v in views.values() if v.role != BACKUP_WORKER or not v.idle]
    running = {v.rank: v for v in awake if v.alive and v.started and not v.done}
    if any(v.state == "T" or (not v.loading and now_s - v.last_event_at > limits.beat_s) for v in running.values()):
        return None  # the others may wait for one that does not run at the moment; if it does not return, it is named
    stalled = [v for v in running.values() if _stalled_s(v, views, now_s, limits) > _stall_limit_s(v, views, limits)]
    ends = [v for v in stalled if not _awaited_members(v, views)]
    if not ends:
        return _find_deadlock(views, stalled, running)
    view = min(ends, key=lambda v: (v.entered, rank_events.position(v.phase), v.changed_at, v.rank))
    frozen_s = now_s - view.changed_at
    state = ", its process uninterruptible (state D: disk or driver)" if view.state == "D" else ""
    lost = [views[number] for number in view.waiting_for if number in views and views[number].idle]
    if lost and not view.inside:
        text = (
            f"has waited for {names_text(lost)} for {frozen_s:.1f} s during {describe_activity(view)}{state}, and "
            f"{title(lost[0])} has received no request: check the network path between them"
        )
        return make_culprit(views, view, "stuck", view.changed_at, text, also=[v.rank for v in lost])
    if not view.inside:
        same = [v for v in ends if v is not view and _is_as_far(v, view)]
        if same and len(same) + 1 == len([v for v in views.values() if v.role == view.role]) and not _any_done(views):
            return None  # all ranks are equally slow: the deadline of the run decides
        text = f"made no progress for {frozen_s:.1f} s during {describe_activity(view)}{state}"
        if same:
            text += f"; nor did {names_text(same)} on {nodes_text(same)}"
        waiters = [v for v in running.values() if v.inside > view.entered]
        if waiters:
            subject = "they" if same else "it"
            text += f"; {subject} did not enter collective {view.entered + 1}, in which {names_text(waiters)} wait"
        return make_culprit(views, view, "stuck", view.changed_at, text, also=[v.rank for v in same])
    if any(v.left >= view.inside for v in views.values() if v is not view):
        return _find_divided(views, view, running, frozen_s, state)
    return blame_network(views, view, frozen_s)


def _is_as_far(view: RankView, other: RankView) -> bool:
    """Return whether two members of one role are in the same place, outside any collective."""
    one, two = ((v.role, v.inside, v.entered, rank_events.position(v.phase)) for v in (view, other))
    return one == two


def _any_done(views: Views) -> bool:
    return any(view.done for view in views.values())


def _find_divided(views: Views, view: RankView, running: Views, frozen_s: float, state: str) -> Culprit:
    """Blame the smaller side: the ranks that left a collective, or those that wait in it. Blame nobody on a tie.

    The root of a broadcast leaves the collective once it has sent, and a rank leaves the setup of a process group once
    it is connected, so their early exit proves nothing. A root that is still in the call waits for a rank that may have
    left it out.
    """
    inside = [v for v in running.values() if v.inside == view.inside]
    early = [v for v in views.values() if v.left >= view.inside]
    others = [v for v in early if v.rank != view.root]
    call = f"collective {view.inside} ({describe_activity(view)})"
    wait = "waits" if len(inside) == 1 else "wait"
    waiting = f"{names_text(inside)} on {nodes_text(inside)} still {wait} after {frozen_s:.1f} s"
    if not others or len(inside) == len(early) == 1 or any(v.rank == view.root for v in inside):
        text = (
            f"{names_text(early)} on {nodes_text(early)} left {call}, in which {waiting}: what was sent to"
            f" {'it' if len(inside) == 1 else 'them'} was lost, or not all ranks make the same calls; the ranks alone"
            " cannot show which"
        )
        return Culprit(
            None, "", "stuck", view.phase, view.what, view.changed_at, text, tuple(v.rank for v in inside), (), view.key
        )
    if view.root is None and len(early) < len(inside):
        first = min(early, key=lambda v: (-v.left, -v.inside, v.rank))
        same = [v for v in early if v is not first]
        text = (
            f"{f'(and {names_text(same)}) ' if same else ''}left {call}, in which {waiting}:"
            " it skipped the call, or its data was lost on the way"
        )
        return make_culprit(views, first, "stuck", view.changed_at, text, also=[v.rank for v in same])
    text = f"is still in {call} after {frozen_s:.1f} s, though others have left it{state}"
    also = [v for v in inside if v is not view]
    if also:
        are = "is" if len(also) == 1 else "are"
        text += f"; so {are} {names_text(also)} on {nodes_text(also)}: check the network path between them"
    return make_culprit(views, view, "stuck", view.changed_at, text, also=[v.rank for v in also])


def _find_deadlock(views: Views, stalled: Sequence[RankView], running: Views) -> Culprit | None:
    if not running or len(stalled) < len(running):
        return None
    if any(v.alive and not v.started for v in views.values()):
        return None
    between = find_wait_cycle(views, stalled)
    if between is not None:
        return between
    first = min(stalled, key=lambda v: (v.entered, v.changed_at, v.rank))
    names = ", ".join(
        title(views[rank]) if views[rank].role != RANK else str(rank) for rank in _awaited_members(first, views)
    )
    text = (
        f"{title(first)} waits for {names} during {describe_activity(first)}, which also wait: no culprit can be named"
        " with certainty"
    )
    waiting = tuple(sorted(v.rank for v in stalled))
    return Culprit(
        None, "", "stuck", first.phase, describe_activity(first), first.changed_at, text, waiting, (), first.key
    )


def _awaited_members(view: RankView, views: Views) -> tuple[int, ...]:
    """Return the members that `view` needs to continue, without idle members, which do not block it."""
    if view.inside:
        return tuple(v.rank for v in views.values() if v is not view and v.entered < view.inside and not v.done)
    waiting = tuple(
        rank for rank in view.waiting_for if rank in views and not views[rank].done and not views[rank].idle
    )
    visited = rank_events.position(view.phase) >= rank_events.position(rank_events.RENDEZVOUS)
    if view.role == RANK and waiting == (0,) and views[0].listening_at and not visited:
        # The endpoint is open, so the fault is on the path to it, not in rank 0.
        return ()
    return waiting


def _stalled_s(view: RankView, views: Views, now_s: float, limits: Limits) -> float:
    """Return how long the member has made no progress, excluding time in which it, or another member of its call, could
    not run.
    """
    seconds = min(now_s, view.last_event_at + limits.beat_s) - view.changed_at
    others = [v for v in views.values() if v.alive and view.inside and v.inside == view.inside]
    others += [views[number] for number in view.waiting_for if number in views]
    return seconds - max(v.unable_s for v in (view, *others))


def _stall_limit_s(view: RankView, views: Views, limits: Limits) -> float:
    if view.loading or not view.phase or view.phase == rank_events.STARTED:
        return math.inf
    factor = 1.0 if view.starved_s is not None else limits.unmeasured_factor
    if rank_events.position(view.phase) < rank_events.position(rank_events.GROUP):
        return limits.connect_s * factor
    longest = max((v.longest_s for v in views.values()), default=0.0)
    return max(limits.step_least_s * factor, limits.step_factor * longest)


#: Time after a pause of the head within which the agents that it ended are noticed.
_NOTICED_S = 5.0
#: Factor of the proposed deadline relative to the insufficient one; the result is rounded up.
_MIN_DEADLINE_S, _ROUNDED_TO_S = 60, 30


def timed_out(view: RankView) -> bool:
    """Return whether the member ended because its own deadline or a library's timeout passed, which does not prove a
    fault.
    """
    if view.failure is None:
        return False
    text = f"{view.failure.reason} {view.failure.detail}".lower()
    return view.failure.kind == "timeout" or "timed out" in text or "timeout" in text


def unfinished(views: Views, ended_s: float) -> Culprit:
    """Return the result of a run that ended at `ended_s` before all members finished, with the activity of each."""
    by_activity: dict[str, list[RankView]] = {}
    for view in sorted(views.values(), key=lambda v: v.rank):
        if not view.done:
            by_activity.setdefault(_describe(view), []).append(view)
    parts = [f"{names_text(group)} on {nodes_text(group)} ({did})" for did, group in by_activity.items()]
    began_s = min((view.began_at for view in views.values()), default=0.0)
    seconds = ended_s - began_s
    longer = max(_MIN_DEADLINE_S, math.ceil(2 * seconds / _ROUNDED_TO_S) * _ROUNDED_TO_S)
    text = (
        f"not finished after {seconds:.0f} s: still running were {fold(parts)}; there is no sign that one of them is at"
        f" fault; allow more time with --smoke-deadline {longer}"
    )
    return Culprit(None, "", UNFINISHED, "", "", began_s, text)


def _describe(view: RankView) -> str:
    parts = [describe_activity(view)]
    if view.state == "D":
        parts.append("in state D: disk or driver")
    if view.unable_s >= 1:
        parts.append(f"unable to run for {view.unable_s:.0f} s of it")
    return ", ".join(parts)


def find_lost_to_pause(pauses: HeadPauses, records: Sequence[FactRecord]) -> Culprit | None:
    """Return the agents that ended because the head paused for longer than their lease; None if there are none."""
    for start_s, end_s in pauses.pauses:
        lost = [
            record.request.node
            for record in records
            if record.unavailable is not None
            and record.unavailable.kind == "unreachable"
            and start_s <= record.finished_s <= end_s + _NOTICED_S
        ]
        if end_s - start_s >= LEASE_S and lost:
            text = (
                f"the head did not run for {end_s - start_s:.0f} s (suspended, or starved of CPU time), and the "
                f"agents on {fold(list(dict.fromkeys(lost)))} ended as they do without a head; run preflight again"
            )
            return Culprit(None, "", UNFINISHED, "", "", start_s, text)
    return None


@dataclass(frozen=True)
class HeadPauses:
    """Pauses of the head in order, without overlaps: start and end in seconds since the run began."""

    pauses: tuple[tuple[float, float], ...] = ()

    def without(self, at_s: float) -> float:
        """Return the time on a clock that stands still during the pauses."""
        return at_s - sum(min(at_s, end_s) - start_s for start_s, end_s in self.pauses if start_s < at_s)

    def with_pauses(self, at_s: float) -> float:
        """Return the inverse of `without`; the end of a pause if the clock stood still at that time."""
        for start_s, end_s in self.pauses:
            if at_s >= start_s:
                at_s += end_s - start_s
        return at_s

    def events(self, events: Sequence[EventRecord]) -> list[EventRecord]:
        """Return the events on the clock that stands still during the pauses."""
        return [replace(event, at_s=self.without(event.at_s)) for event in events] if self.pauses else list(events)

    def records(self, records: Sequence[FactRecord]) -> list[FactRecord]:
        """Return the records on the clock that stands still during the pauses."""
        if not self.pauses:
            return list(records)
        return [replace(r, started_s=self.without(r.started_s), finished_s=self.without(r.finished_s)) for r in records]


def pauses_in(events: Sequence[EventRecord]) -> HeadPauses:
    """Return the pauses that the head reported."""
    found: list[tuple[float, float]] = []
    for event in sorted(events, key=lambda event: event.at_s):
        seconds = event.data.get("seconds")
        if event.origin != "head" or event.data.get("event") != rank_events.HEAD_PAUSED:
            continue
        if isinstance(seconds, (int, float)) and 0 < seconds <= event.at_s:
            start_s = max(event.at_s - seconds, found[-1][1] if found else 0.0)
            found.append((start_s, event.at_s))
    return HeadPauses(tuple(found))

"""Finds the member to blame if some members of a smoke run do not finish.

One faulty rank, server or worker makes all others wait or die, and each of them reports its own fault. This module
compares all reports and names the member that all others wait for. It is pure: the supervisor calls it during the run,
to stop waiting early, and the judge calls it on the recording. Both get the same answer.
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
    decision_times = [
        event.at_s for event in events if event.origin == "head" and event.data.get("event") == rank_events.DECIDED
    ]
    if decision_times:
        return max(decision_times)
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
    """Return the member to blame as of `now_s`; None if there is none, or if it is not known yet.

    For a run that was cut short without a fault of any member, the result has the kind `unfinished` and no name.

    Args:
        members: all expected members.
        events: the events of the members and their agents; events after `now_s` are ignored.
        records: the results and failures so far; records that finished after `now_s` are ignored.
        now_s: the time of the judgement, in seconds since the run began.
        began_s: the time at which the members were started, in seconds since the run began.
        limits: the time limits.
    """
    pauses = pauses_in(events)
    past_events = [event for event in events if event.at_s <= now_s]
    ended_records = [record for record in records if record.finished_s <= now_s]
    lost_agents = find_lost_to_pause(pauses, ended_records)
    if lost_agents is not None:
        return lost_agents
    culprit = _find_at(
        build_views(
            members, pauses.events(past_events), pauses.records(ended_records), began_s=pauses.without(began_s)
        ),
        pauses.without(now_s),
        limits,
    )
    return culprit if culprit is None else replace(culprit, since_s=pauses.with_pauses(culprit.since_s))


def _find_at(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    mismatch = find_mismatch(views, now_s, limits)
    if mismatch is not None:
        return mismatch
    # Replaced members do not count.
    replaced_count = sum(view.replaced_at is not None for view in views.values())
    views = {number: view for number, view in views.items() if view.replaced_at is None}
    direct_finders = (
        _find_mismatched_member,
        find_taken_endpoint,
        find_unresolved_master,
        _find_first_dead,
        _find_stopped,
        _find_silent,
    )
    inferring_finders = (
        _find_awaited_at_end,
        _find_lost_connection,
        find_unreachable_master,
        find_unreached_server,
        _find_frozen,
    )
    for find_member in direct_finders if _is_settling(views, now_s, limits) else (*direct_finders, *inferring_finders):
        culprit = find_member(views, now_s, limits)
        if culprit is not None:
            return None if _is_replaceable(culprit, views, replaced_count, now_s, limits) else culprit
    return None


def _is_replaceable(culprit: Culprit, views: Views, replaced_count: int, now_s: float, limits: Limits) -> bool:
    """Return whether a backup worker may still replace the culprit; `replaced_count` members were replaced before."""
    view = views.get(culprit.rank) if culprit.rank is not None else None
    if view is None or view.role != "worker" or culprit.kind not in ("dead", "stopped", "stuck", "lost-node"):
        return False
    has_free_backup = (
        sum(other.role == BACKUP_WORKER and other.alive and other.started for other in views.values()) > replaced_count
    )
    are_servers_alive = all(other.alive for other in views.values() if other.role == "server")
    return has_free_backup and are_servers_alive and now_s - culprit.since_s < limits.replace_s


def _find_mismatched_member(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    for view in by_time(views, lambda member_view: member_view.problem_at("mismatch")):
        problem, at_s = view.problem("mismatch"), view.problem_at("mismatch")
        assert problem is not None and at_s is not None
        if view.role != RANK and now_s - at_s < limits.agree_s:
            # The member that reports the mismatch is not necessarily faulty; the reports of all members about
            # themselves decide.
            continue
        redirected_worker = find_redirected(views, str(problem.get("error", "")), at_s)
        if redirected_worker is not None:
            return redirected_worker
        text = f"does not belong to the same run: {problem.get('error', '')}"
        return make_culprit(views, view, "mismatch", at_s, text)
    return None


def _find_first_dead(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return the first member that ended on its own, not because of a peer; None if there is none."""
    dead_members = [
        member
        for member in views.values()
        if member.failure is not None and not member.consequence and not member.dial_failed
    ]
    if not dead_members:
        return None
    # A lost node is noticed only when its channel breaks; ranks that died because of it died before.
    view = min(dead_members, key=lambda member: (member.ended_at, member.rank))
    failure = view.failure
    assert failure is not None
    activity = describe_activity(view)
    if failure.kind == "unreachable" and not view.launched:
        return make_culprit(views, view, "missing", view.ended_at, f"never started: {failure.reason}")
    if failure.kind == "unreachable":
        text = f"was lost with its node: {failure.reason} ({activity})"
        return make_culprit(views, view, "lost-node", view.ended_at, text)
    if failure.kind in ("context", "blocked") and not view.started:
        return make_culprit(views, view, "missing", view.ended_at, f"never started: {failure.reason}")
    if failure.kind == "timeout" and view.started:
        return unfinished(views, view.ended_at)
    end_text = _format_exit(failure.exit_code) if failure.exit_code is not None else f"failed: {failure.reason}"
    similar_members = [
        member
        for member in dead_members
        if member is not view and member.failure is not None and _has_same_end(member.failure, failure)
    ]
    similar_text = (
        f"; {names_text(similar_members)} on {nodes_text(similar_members)} ended the same way"
        if similar_members
        else ""
    )
    return make_culprit(
        views,
        view,
        "dead",
        view.ended_at,
        f"{end_text} during {activity}{similar_text}",
        also=[member.rank for member in similar_members],
    )


def _has_same_end(failure: Unavailable, other_failure: Unavailable) -> bool:
    return (failure.kind, failure.exit_code, failure.reason) == (
        other_failure.kind,
        other_failure.exit_code,
        other_failure.reason,
    )


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
            state_text = f"process {view.state_pid} is in state T: SIGSTOP, a debugger or job control"
            text = f"is stopped during {describe_activity(view)} ({state_text})"
            return make_culprit(views, view, "stopped", view.state_at, text)
    return None


def _find_silent(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return a rank silent for `silent_s` although others were not; if all are, the head may have been delayed."""
    running_members = [v for v in views.values() if v.alive and v.started and not v.done]
    for view in sorted(running_members, key=lambda v: (v.last_event_at, v.rank)):
        silence_s = now_s - view.last_event_at
        if view.loading or view.state == "T" or silence_s < limits.silent_s:
            continue  # _find_stopped names a member in state T
        has_witness = any(
            now_s - other.last_event_at <= limits.witness_s for other in views.values() if other is not view
        )
        if not has_witness:
            continue
        text = f"sent nothing for {silence_s:.1f} s during {describe_activity(view)}: its process or node is frozen"
        return make_culprit(views, view, "stopped", view.last_event_at, text)
    return None


def _is_settling(views: Views, now_s: float, limits: Limits) -> bool:
    """Return whether a member ended so recently that the end of the peer which caused it may not be known yet."""
    end_times = [v.ended_at for v in views.values() if v.failure is not None]
    has_all_ended = all(not v.alive for v in views.values())
    return bool(end_times) and not has_all_ended and now_s - min(end_times) < limits.settle_s


def _find_awaited_at_end(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return the one member that others waited for, directly or not, when they gave up; None if there are several."""
    accusers = [v for v in views.values() if v.failure is not None and v.gave_up_on]
    awaited_ranks = {number for v in accusers for number in v.gave_up_on if number in views}
    for _ in views:
        awaited_ranks = {
            number
            for rank in awaited_ranks
            for number in views[rank].gave_up_on or _awaited_members(views[rank], views) or (rank,)
        } & views.keys()
    view = views[awaited_ranks.pop()] if len(awaited_ranks) == 1 else None
    # If members wait for each other in a circle, none of them is more to blame than the others.
    if view is None or view in accusers or not view.started or _awaited_members(view, views):
        return None
    accusers = [v for v in accusers if view.rank in v.gave_up_on] or accusers
    first_accuser = min(accusers, key=lambda v: (v.ended_at, v.rank))
    assert first_accuser.failure is not None
    if view.changed_at > (first_accuser.changed_at + first_accuser.ended_at) / 2:
        # The member moved while the others waited for it, so their reports alone do not show that it is at fault.
        awaited_members = [views[number] for number in sorted(first_accuser.gave_up_on) if number in views]
        progress_text = "that member continued"
        if view not in awaited_members:
            progress_text = f"{title(view)}, which that member waited for, continued"
        text = (
            f"gave up on {' and '.join(map(title, awaited_members))} during {describe_activity(first_accuser)}, "
            f"although {progress_text}: {first_accuser.failure.reason}; check the network path between them"
        )
        return make_culprit(
            views,
            first_accuser,
            "stuck",
            first_accuser.ended_at,
            text,
            also=sorted({view.rank, *(each.rank for each in awaited_members)}),
        )
    reason = first_accuser.failure.reason
    text = f"made no progress during {describe_activity(view)}, and {names_text(accusers)} gave up: {reason}"
    return make_culprit(views, view, "stuck", view.changed_at, text)


def _find_lost_connection(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    ended_members = [v for v in views.values() if v.failure is not None and not v.dial_failed]
    if not ended_members:
        return None
    view = min(ended_members, key=lambda v: (v.ended_at, v.rank))
    assert view.failure is not None
    if all(timed_out(member) for member in ended_members):
        return unfinished(views, view.ended_at)
    if len(ended_members) > 1:
        # The first member that notices the loss is not necessarily at fault.
        text = (
            f"{names_text(ended_members)} on {nodes_text(ended_members)} lost their connections, although no process "
            f"had ended; {title(view)} was first, during {describe_activity(view)}: {view.failure.reason}"
        )
        return Culprit(None, "", "stuck", view.phase, describe_activity(view), view.ended_at, text, (), (), view.key)
    text = f"lost its connection during {describe_activity(view)}, although no process had ended: {view.failure.reason}"
    return make_culprit(views, view, "dead", view.ended_at, text)


def _find_frozen(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return the member at the end of the chain of waiting members, which waits for no other and makes no progress."""
    # An idle backup worker has nothing to do.
    active_members = [v for v in views.values() if v.role != BACKUP_WORKER or not v.idle]
    running = {v.rank: v for v in active_members if v.alive and v.started and not v.done}
    if any(v.state == "T" or (not v.loading and now_s - v.last_event_at > limits.beat_s) for v in running.values()):
        return None  # the others may wait for a member that is stopped or silent, which is named if it does not resume
    stalled = [v for v in running.values() if _stalled_s(v, views, now_s, limits) > _stall_limit_s(v, views, limits)]
    blocking_members = [v for v in stalled if not _awaited_members(v, views)]
    if not blocking_members:
        return _find_deadlock(views, stalled, running)
    view = min(blocking_members, key=lambda v: (v.entered, rank_events.position(v.phase), v.changed_at, v.rank))
    frozen_s = now_s - view.changed_at
    state_text = ", with its process uninterruptible (state D: disk or driver)" if view.state == "D" else ""
    idle_members = [views[number] for number in view.waiting_for if number in views and views[number].idle]
    if idle_members and not view.inside:
        text = (
            f"has waited for {names_text(idle_members)} for {frozen_s:.1f} s during "
            f"{describe_activity(view)}{state_text}, but {title(idle_members[0])} has received no request: check the "
            "network path between them"
        )
        return make_culprit(views, view, "stuck", view.changed_at, text, also=[v.rank for v in idle_members])
    if not view.inside:
        equal_members = [v for v in blocking_members if v is not view and _is_at_same_point(v, view)]
        if (
            equal_members
            and len(equal_members) + 1 == len([v for v in views.values() if v.role == view.role])
            and not any(view.done for view in views.values())
        ):
            return None  # all ranks are equally slow: the deadline of the run decides
        text = f"made no progress for {frozen_s:.1f} s during {describe_activity(view)}{state_text}"
        if equal_members:
            text += f"; nor did {names_text(equal_members)} on {nodes_text(equal_members)}"
        waiters = [v for v in running.values() if v.inside > view.entered]
        if waiters:
            pronoun = "they" if equal_members else "it"
            text += f"; {pronoun} did not enter collective {view.entered + 1}, in which {names_text(waiters)} wait"
        return make_culprit(views, view, "stuck", view.changed_at, text, also=[v.rank for v in equal_members])
    if any(v.left >= view.inside for v in views.values() if v is not view):
        return _find_split_collective(views, view, running, frozen_s, state_text)
    return blame_network(views, view, frozen_s)


def _is_at_same_point(view: RankView, other: RankView) -> bool:
    first_state, second_state = ((v.role, v.inside, v.entered, rank_events.position(v.phase)) for v in (view, other))
    return first_state == second_state


def _find_split_collective(views: Views, view: RankView, running: Views, frozen_s: float, state: str) -> Culprit:
    """Blame the smaller group: the ranks that left a collective, or the ranks that wait in it. Blame no rank if the
    groups are equally large.

    The root of a broadcast leaves the collective as soon as it has sent its data, and a rank leaves the setup of a
    process group as soon as it is connected, so an early exit of either proves nothing. A root that is still in the
    call waits for a rank that may have skipped the call.
    """
    inside_members = [v for v in running.values() if v.inside == view.inside]
    early_members = [v for v in views.values() if v.left >= view.inside]
    other_early_members = [v for v in early_members if v.rank != view.root]
    call_text = f"collective {view.inside} ({describe_activity(view)})"
    wait_verb = "waits" if len(inside_members) == 1 else "wait"
    waiting_text = (
        f"{names_text(inside_members)} on {nodes_text(inside_members)} still {wait_verb} after {frozen_s:.1f} s"
    )
    if (
        not other_early_members
        or len(inside_members) == len(early_members) == 1
        or any(v.rank == view.root for v in inside_members)
    ):
        text = (
            f"{names_text(early_members)} on {nodes_text(early_members)} left {call_text}, in which {waiting_text}: "
            f"what was sent to {'it' if len(inside_members) == 1 else 'them'} was lost, or not all ranks make the "
            "same calls; the ranks alone cannot show which of the two"
        )
        return Culprit(
            None,
            "",
            "stuck",
            view.phase,
            view.what,
            view.changed_at,
            text,
            tuple(v.rank for v in inside_members),
            (),
            view.key,
        )
    if view.root is None and len(early_members) < len(inside_members):
        first_member = min(early_members, key=lambda v: (-v.left, -v.inside, v.rank))
        same_members = [v for v in early_members if v is not first_member]
        text = (
            f"{f'(and {names_text(same_members)}) ' if same_members else ''}left {call_text}, in which {waiting_text}:"
            " it skipped the call, or its data was lost on the way"
        )
        return make_culprit(views, first_member, "stuck", view.changed_at, text, also=[v.rank for v in same_members])
    text = f"is still in {call_text} after {frozen_s:.1f} s, although others have left it{state}"
    other_members = [v for v in inside_members if v is not view]
    if other_members:
        are_verb = "is" if len(other_members) == 1 else "are"
        text += f"; so {are_verb} {names_text(other_members)} on {nodes_text(other_members)}"
        text += ": check the network path between them"
    return make_culprit(views, view, "stuck", view.changed_at, text, also=[v.rank for v in other_members])


def _find_deadlock(views: Views, stalled: Sequence[RankView], running: Views) -> Culprit | None:
    if not running or len(stalled) < len(running):
        return None
    if any(v.alive and not v.started for v in views.values()):
        return None
    cycle_culprit = find_wait_cycle(views, stalled)
    if cycle_culprit is not None:
        return cycle_culprit
    first_member = min(stalled, key=lambda v: (v.entered, v.changed_at, v.rank))
    names = ", ".join(
        title(views[rank]) if views[rank].role != RANK else str(rank) for rank in _awaited_members(first_member, views)
    )
    text = (
        f"{title(first_member)} waits for {names} during {describe_activity(first_member)}, which also wait: no"
        " culprit can be named with certainty"
    )
    waiting = tuple(sorted(v.rank for v in stalled))
    return Culprit(
        None,
        "",
        "stuck",
        first_member.phase,
        describe_activity(first_member),
        first_member.changed_at,
        text,
        waiting,
        (),
        first_member.key,
    )


def _awaited_members(view: RankView, views: Views) -> tuple[int, ...]:
    """Return the numbers of the members that `view` waits for, without idle members, which do not block it."""
    if view.inside:
        return tuple(v.rank for v in views.values() if v is not view and v.entered < view.inside and not v.done)
    waiting_ranks = tuple(
        rank for rank in view.waiting_for if rank in views and not views[rank].done and not views[rank].idle
    )
    has_rendezvous = rank_events.position(view.phase) >= rank_events.position(rank_events.RENDEZVOUS)
    if view.role == RANK and waiting_ranks == (0,) and views[0].listening_at and not has_rendezvous:
        # The endpoint is open, so the fault is on the network path to it, and not in rank 0.
        return ()
    return waiting_ranks


def _stalled_s(view: RankView, views: Views, now_s: float, limits: Limits) -> float:
    """Return the seconds since the member's last progress, without time in which it or a peer could not run."""
    seconds = min(now_s, view.last_event_at + limits.beat_s) - view.changed_at
    related_members = [v for v in views.values() if v.alive and view.inside and v.inside == view.inside]
    related_members += [views[number] for number in view.waiting_for if number in views]
    return seconds - max(v.unable_s for v in (view, *related_members))


def _stall_limit_s(view: RankView, views: Views, limits: Limits) -> float:
    if view.loading or not view.phase or view.phase == rank_events.STARTED:
        return math.inf
    factor = 1.0 if view.starved_s is not None else limits.unmeasured_factor
    if rank_events.position(view.phase) < rank_events.position(rank_events.GROUP):
        return limits.connect_s * factor
    longest_s = max((v.longest_s for v in views.values()), default=0.0)
    return max(limits.step_least_s * factor, limits.step_factor * longest_s)


#: The time after a pause of the head within which the head notices the agents that ended because of the pause.
_NOTICE_WINDOW_S = 5.0
#: The smallest deadline that is proposed, and the step to which a proposed deadline is rounded up, in seconds.
_MIN_DEADLINE_S, _DEADLINE_STEP_S = 60, 30


def timed_out(view: RankView) -> bool:
    """Return whether the member ended because its own deadline or a library's timeout passed, which proves no fault."""
    if view.failure is None:
        return False
    text = f"{view.failure.reason} {view.failure.detail}".lower()
    return view.failure.kind == "timeout" or "timed out" in text or "timeout" in text


def unfinished(views: Views, ended_s: float) -> Culprit:
    """Return the result of a run that ended at `ended_s` before all members finished, with each member's activity."""
    members_by_activity: dict[str, list[RankView]] = {}
    for view in sorted(views.values(), key=lambda v: v.rank):
        if not view.done:
            members_by_activity.setdefault(_activity_and_state(view), []).append(view)
    parts = [
        f"{names_text(members)} on {nodes_text(members)} ({activity})"
        for activity, members in members_by_activity.items()
    ]
    began_s = min((view.began_at for view in views.values()), default=0.0)
    seconds = ended_s - began_s
    proposed_s = max(_MIN_DEADLINE_S, math.ceil(2 * seconds / _DEADLINE_STEP_S) * _DEADLINE_STEP_S)
    text = (
        f"not finished after {seconds:.0f} s: {fold(parts)} were still running, and none shows a fault; allow more "
        f"time with --smoke-deadline {proposed_s}"
    )
    return Culprit(None, "", UNFINISHED, "", "", began_s, text)


def _activity_and_state(view: RankView) -> str:
    parts = [describe_activity(view)]
    if view.state == "D":
        parts.append("in state D: disk or driver")
    if view.unable_s >= 1:
        parts.append(f"unable to run for {view.unable_s:.0f} s of that")
    return ", ".join(parts)


def find_lost_to_pause(pauses: HeadPauses, records: Sequence[FactRecord]) -> Culprit | None:
    """Return the result of a run whose agents ended because the head paused longer than their lease; else None."""
    for start_s, end_s in pauses.pauses:
        lost_nodes = [
            record.request.node
            for record in records
            if record.unavailable is not None
            and record.unavailable.kind == "unreachable"
            and start_s <= record.finished_s <= end_s + _NOTICE_WINDOW_S
        ]
        if end_s - start_s >= LEASE_S and lost_nodes:
            text = (
                f"the head did not run for {end_s - start_s:.0f} s (suspended, or starved of CPU time), and the "
                f"agents on {fold(list(dict.fromkeys(lost_nodes)))} ended, as they do when the head is gone; run "
                "preflight again"
            )
            return Culprit(None, "", UNFINISHED, "", "", start_s, text)
    return None


@dataclass(frozen=True)
class HeadPauses:
    """The pauses of the head in order, without overlaps, each as start and end in seconds since the run began."""

    pauses: tuple[tuple[float, float], ...] = ()

    def without(self, at_s: float) -> float:
        """Return the time on a clock that stops during the pauses."""
        return at_s - sum(min(at_s, end_s) - start_s for start_s, end_s in self.pauses if start_s < at_s)

    def with_pauses(self, at_s: float) -> float:
        """Return the inverse of `without`; for a time at which that clock stops, the end of the pause."""
        for start_s, end_s in self.pauses:
            if at_s >= start_s:
                at_s += end_s - start_s
        return at_s

    def events(self, events: Sequence[EventRecord]) -> list[EventRecord]:
        """Return the events with times on the clock that stops during the pauses."""
        return [replace(event, at_s=self.without(event.at_s)) for event in events] if self.pauses else list(events)

    def records(self, records: Sequence[FactRecord]) -> list[FactRecord]:
        """Return the records with times on the clock that stops during the pauses."""
        if not self.pauses:
            return list(records)
        return [replace(r, started_s=self.without(r.started_s), finished_s=self.without(r.finished_s)) for r in records]


def pauses_in(events: Sequence[EventRecord]) -> HeadPauses:
    """Return the pauses that the head reported."""
    pauses: list[tuple[float, float]] = []
    for event in sorted(events, key=lambda event: event.at_s):
        seconds = event.data.get("seconds")
        if event.origin != "head" or event.data.get("event") != rank_events.HEAD_PAUSED:
            continue
        if isinstance(seconds, (int, float)) and 0 < seconds <= event.at_s:
            start_s = max(event.at_s - seconds, pauses[-1][1] if pauses else 0.0)
            pauses.append((start_s, event.at_s))
    return HeadPauses(tuple(pauses))

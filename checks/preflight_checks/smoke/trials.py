"""Trials with smaller groups of ranks after a hang: the groups to try, and the result."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from preflight.agent import rank_events
from preflight.analysis.culprit import decision_time
from preflight.analysis.culprit_model import UNFINISHED
from preflight.analysis.node_groups import Answer, Group, answer, next_groups
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request
from preflight_checks.links.dial_requests import addresses_of
from preflight_checks.requirements import fold, nodes_share_machine
from preflight_checks.smoke.group_run import SmokeRun, group_run_of, run_of
from preflight_checks.smoke.plan import STEPS, MeetingPoint, plan_of, ranks_of
from reference_trainer.collective.rank import rank as run_rank

#: A trial meets, connects and sums, which takes a few seconds beyond the import of torch; one that hangs is known to
#: after as much again. Where the run itself took longer until its hang was known, a trial gets that time and a margin.
TRIAL_S = 25.0
_MARGIN_S = 10.0
#: Steps of a trial for a run that hung before its first one.
_FEW_STEPS = 2


def _prefix(job: Job) -> str:
    return f"trial {job.name} "


def _group_name(job: Job, nodes: Group) -> str:
    return _prefix(job) + hashlib.sha256("\n".join(nodes).encode()).hexdigest()[:16]


def suspects_of(run: SmokeRun) -> tuple[str, ...] | None:
    """The nodes of uncertain culprits (empty if there are none), or None if no trial is needed.

    A rank that died, was stopped or never started is certain; one that waits may wait because of its link to another.
    """
    culprit = run.culprit
    if culprit is None or culprit.kind != "stuck":
        return None
    by_rank = {int(record.request.params["rank"]): record.request.node for record in run.records}
    if culprit.rank is None:
        return ()
    return tuple(dict.fromkeys(by_rank[rank] for rank in (culprit.rank, *culprit.also) if rank in by_rank))


def plan_trials(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """The next groups to try after a hang that the ranks do not explain."""
    run = run_of(job, facts)
    suspects = suspects_of(run)
    if suspects is None or nodes_share_machine(fleet):
        return
    plan = plan_of(job, fleet, facts)
    by_name = {node.name: node for node in fleet.nodes}
    addresses = addresses_of(job, fleet, facts)
    min_size = 1 if plan.ranks_per_node > 1 else 2
    for group in next_groups(tuple(by_name), trials(job, facts), suspects=suspects, min_size=min_size):
        if not set(group) <= set(addresses):
            return
        meeting = MeetingPoint(addresses[group[0]], plan.meeting.port, f"the address of {group[0]}")
        for request in ranks_of(
            job,
            fleet,
            facts,
            [by_name[node] for node in group],
            _group_name(job, group),
            replace(plan, meeting=meeting),
            _extent(run),
            max(TRIAL_S, _lasted_s(run) + _MARGIN_S),
        ):
            yield replace(request, required=False)


def _lasted_s(run: SmokeRun) -> float:
    """How long the run lasted until its hang was known, in seconds."""
    return decision_time(run.events, run.records) - min(record.started_s for record in run.records)


def _extent(run: SmokeRun) -> dict[str, object]:
    """How far a trial goes: beyond the phase in which the run hung, since a shorter one shows nothing about that."""
    phase = run.culprit.phase if run.culprit is not None else ""
    if rank_events.position(phase) >= rank_events.position(rank_events.EXACT):
        return {"steps": run.records[0].request.params.get("steps", STEPS)}
    steps = STEPS if phase == rank_events.GROUP else _FEW_STEPS
    return {"steps": steps, "until": rank_events.EXACT}


def trials(job: Job, facts: Facts) -> dict[frozenset[str], bool | None]:
    """The result of each tried group: passed, hung, or unknown if it did not start or did not end."""
    groups: dict[str, tuple[set[str], list[bool | None]]] = {}
    for seen in facts.each(run_rank):
        if seen.asked.group.startswith(_prefix(job)):
            nodes, passed = groups.setdefault(seen.asked.group, (set(), []))
            nodes.add(seen.node)
            is_unknown = not isinstance(seen.fact, Observed) and seen.fact.kind in ("context", "missing", "unreachable")
            passed.append(None if is_unknown else isinstance(seen.fact, Observed))
    return {
        frozenset(nodes): None if None in passed else all(passed) or _failed_or_unknown(facts, group)
        for group, (nodes, passed) in groups.items()
    }


def _failed_or_unknown(facts: Facts, group: str) -> bool | None:
    """False for a trial that hung or failed; None for one that was cut off before anything showed that."""
    culprit = group_run_of(facts, group).culprit
    return None if culprit is None or culprit.kind == UNFINISHED else False


def answer_of(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> Answer | None:
    """The conclusion of the trials; None if none were needed."""
    suspects = suspects_of(run)
    if suspects is None:
        return None
    min_size = 1 if plan_of(job, fleet, facts).ranks_per_node > 1 else 2
    names = tuple(node.name for node in fleet.nodes)
    found = answer(names, trials(job, facts), suspects=suspects, min_size=min_size)
    if found is None or found.kind != "whole":
        return found
    # A node is to blame only if both runs of all nodes name it.
    again = group_run_of(facts, _group_name(job, names))
    named = again.nodes if again.culprit is not None and again.culprit.rank is not None else ()
    return replace(found, nodes=tuple(node for node in found.nodes if node in named) or names)


def describe(found: Answer) -> str:
    """The conclusion as the end of a sentence about the run."""
    names = " and ".join(found.nodes) if len(found.nodes) == 2 else fold(found.nodes)
    count = f"{found.trials} smaller {'group' if found.trials == 1 else 'groups'} tried"
    if found.kind == "nodes":
        each = "hangs" if len(found.nodes) == 1 else "hang each"
        text = f"{count}: {names} {each} also with an otherwise healthy node"
    elif found.kind == "between":
        text = f"{count}: {names} hang together, and each of them works with another node"
    elif found.kind == "group":
        text = f"{count}: {names} hang on their own, and no smaller group that was tried does"
    elif found.kind == "whole":
        smaller = f"{count}: none of them hangs, and " if found.trials else ""
        text = f"{smaller}all nodes together hang again"
    elif found.kind == "every":
        text = f"{count}: every one of them hangs, so none shows which node is at fault"
    elif found.kind == "none":
        smaller = f"{count}: none of them hangs, and " if found.trials else ""
        text = f"{smaller}all nodes together completed when tried again: the fault may be intermittent"
    else:
        parts = [f"{' and '.join(group) if len(group) < 3 else fold(group)} hang together" for group in found.hanging]
        parts += [f"{fold(found.sound)} completed one"] if found.sound else []
        text = f"{count}: {', '.join(parts)}" if parts else "no trial of a smaller group ended"
    notes = [
        f"{what}: {fold([_together(group) for group in groups], 4)}"
        for what, groups in (("not finished", found.unfinished), ("not tried", found.untried))
        if groups
    ]
    return "; ".join((text, *notes))


def _together(group: Group) -> str:
    """`node1 with node2`; a larger group as a range."""
    return " with ".join(group) if len(group) == 2 else fold(group)

"""Trials with smaller groups of ranks after a run that hung: which are made, and what they come to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from preflight.bisect import Answer, answer, next_groups
from preflight.job import Job
from preflight.recording import Facts, Fleet, Observed
from preflight.request import Request
from preflight_checks.demands import fold, stand_ins
from preflight_checks.links.dialling import addresses_of
from preflight_checks.smoke.smoke_plan import Meeting, plan_of, ranks_of
from preflight_checks.smoke.smoke_run import SmokeRun, run_of
from reference_trainer import phases
from reference_trainer.collective import rank as run_rank

#: A trial meets, connects and sums, which takes a few seconds beyond the import of torch; one that hangs is known to
#: after as much again.
TRIAL_S = 25.0


def _prefix(job: Job) -> str:
    return f"trial {job.name} "


def suspects_of(run: SmokeRun) -> tuple[str, ...] | None:
    """The nodes of ranks that were named without certainty, none where nobody was; None where no trial is due.

    A rank that died, was stopped or never came has said enough; one that waits may wait because of the way to another.
    """
    blamed = run.blamed
    if blamed is None or blamed.kind != "stuck":
        return None
    by_rank = {int(record.request.params["rank"]): record.request.node for record in run.records}
    if blamed.rank is None:
        return ()
    return tuple(dict.fromkeys(by_rank[rank] for rank in (blamed.rank, *blamed.also) if rank in by_rank))


def plan_trials(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """The next groups to try after a run that hung and whose ranks do not explain it."""
    run = run_of(job, facts)
    suspects = suspects_of(run)
    if suspects is None or stand_ins(fleet):
        return
    plan = plan_of(job, fleet, facts)
    by_name = {node.name: node for node in fleet.nodes}
    addresses = addresses_of(job, fleet, facts)
    least = 1 if plan.ranks_per_node > 1 else 2
    for group in next_groups(tuple(by_name), trials(job, facts), suspects=suspects, least=least):
        if not set(group) <= set(addresses):
            return
        meeting = Meeting(addresses[group[0]], plan.meeting.port, f"the address of {group[0]}")
        name = _prefix(job) + hashlib.sha256("\n".join(group).encode()).hexdigest()[:16]
        for request in ranks_of(
            job,
            fleet,
            facts,
            [by_name[node] for node in group],
            name,
            replace(plan, meeting=meeting),
            {"steps": 2, "until": phases.EXACT},
            TRIAL_S,
        ):
            yield replace(request, required=False)


def trials(job: Job, facts: Facts) -> dict[frozenset[str], bool | None]:
    """What came of each group that was tried: passed, did not, or, where no rank could start, nothing."""
    groups: dict[str, tuple[set[str], list[bool | None]]] = {}
    for seen in facts.each(run_rank):
        if seen.asked.group.startswith(_prefix(job)):
            nodes, passed = groups.setdefault(seen.asked.group, (set(), []))
            nodes.add(seen.node)
            untold = not isinstance(seen.fact, Observed) and seen.fact.kind in ("context", "missing", "unreachable")
            passed.append(None if untold else isinstance(seen.fact, Observed))
    return {frozenset(nodes): None if None in passed else all(passed) for nodes, passed in groups.values()}


def answer_of(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> Answer | None:
    """What the trials say; None where none were due."""
    suspects = suspects_of(run)
    if suspects is None:
        return None
    least = 1 if plan_of(job, fleet, facts).ranks_per_node > 1 else 2
    names = tuple(node.name for node in fleet.nodes)
    return answer(names, trials(job, facts), suspects=suspects, least=least)


def spoken(found: Answer) -> str:
    """The answer as the end of a sentence about the run."""
    names = fold(found.nodes)
    count = f"{found.trials} smaller {'group' if found.trials == 1 else 'groups'} tried"
    if found.kind == "nodes":
        each = "hangs" if len(found.nodes) == 1 else "hang each"
        return f"{count}: {names} {each} also with a node that is sound otherwise"
    if found.kind == "between":
        return f"{count}: {' and '.join(found.nodes)} hang together, and each of them gets through with another node"
    if found.kind == "group":
        return f"{count}: {names} hang by themselves, and no smaller part of them that was tried does"
    if found.kind == "whole":
        return f"{count}: no part of the nodes hangs, only all of them together do"
    if found.kind == "none":
        return f"{count}: {names} gets through with another node, and the others without it: it may come and go"
    return f"{count}: {names} still hang, and there was no time to try smaller ones"

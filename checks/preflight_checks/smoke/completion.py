"""Checks that a short real training run on the job's nodes completes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight.analysis.culprit import Culprit
from preflight.analysis.culprit_model import UNFINISHED
from preflight.analysis.node_groups import Answer
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, failed, passed, unknown
from preflight_checks.context.environment import protocol_differences
from preflight_checks.requirements import fold
from preflight_checks.smoke.group_run import (
    FACT,
    SmokeRun,
    count,
    details,
    missing_run,
    numbered,
    observed,
    remedy_for_dead,
    run_of,
)
from preflight_checks.smoke.injected_fault import may_fail_by_injection
from preflight_checks.smoke.plan import PLAN_PROBES, plan_of, smoke_check
from preflight_checks.smoke.trials import answer_of, describe, plan_trials


@smoke_check(
    "SMK001",
    "rank-did-not-finish",
    follow_up=plan_trials,
    reads=PLAN_PROBES,
    severity=Severity.ERROR,
    evidence=(
        "pytorch/pytorch#76287",
        ("the rest runs on for hours after one rank died", "goodfire-ai/spd#552"),
        ("all ranks hang in one all-reduce", "NVIDIA/nccl#257"),
    ),
)
@may_fail_by_injection("kill", "stop")
def rank_did_not_finish(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every rank of a short training run on the job's nodes completes.

    What it checks: one rank for each GPU that the job uses on each node (without GPUs as many as a Gloo job starts, at
    most one per core, else one per node) joins at the job's own master endpoint, sums known tensors and trains ten
    steps, in the job's own interpreter and environment. If not all complete, the rank that the others wait for is
    named: missing, dead, stopped, stuck, or lost with its node. If the ranks do not explain a hang, smaller groups are
    tried for as long again (--smoke-deadline): halves of the nodes until the smallest hanging group is found; or
    suspects together, the others without them, and each with another node; all nodes again if none of these hangs.
    Groups that were not tried or not finished are named.

    Why it matters: a rank that is missing or stuck leaves all others silent for up to 30 minutes, and none of
    their messages names it.

    Example: rank 3 on node-b was killed by SIGKILL (out of memory) while summing; ranks 0 to 2 lost their
    connections because of it.

    Fix: inspect the named node and rank first; the evidence contains its stack or last output.

    Known limits: the model is small; memory and bandwidth of the real job are not tested. Not every group of nodes is
    tried, so a fault may involve more nodes than the smallest hanging group, or fewer.
    """
    run = run_of(job, facts)
    early = missing_run(job, fleet, run)
    if early is not None:
        yield early
        return
    if run.complete:
        yield passed(_summary(job, fleet, facts, run))
        return
    if run.culprit is None:
        silent = [r.request.node for r in run.records if r.unavailable is not None]
        reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
        text = f"ranks on {fold(silent)} did not finish: {fold(reasons, 2)}"
        yield unknown("smoke run", text, nodes=silent, required=True)
        return
    if run.culprit.kind == UNFINISHED:
        yield unknown("smoke run", run.culprit.because, nodes=run.nodes, required=True)
        return
    if run.culprit.kind == "endpoint":
        yield unknown("smoke run", f"blocked by SMK004: {run.culprit.because}")
        return
    found = answer_of(job, fleet, facts, run)
    if found is not None and (found.kind == "none" or _is_cleared(run, run.culprit, found)):
        # A failure that did not repeat blames no node, but does not count as a pass.
        yield unknown("smoke run", f"{run.culprit.because}; {describe(found)}", required=True)
        return
    differing = protocol_differences(job, facts) if run.culprit.kind in ("dead", "stuck") else {}
    if differing:
        yield _blocked_by_difference(run, run.culprit, differing)
        return
    yield _named(run, run.culprit, found)
    undecided = _undecided(run, run.culprit, found)
    if undecided:
        text = (
            "no group completed the smoke run with it" if len(undecided) == 1 else "no group completed with any of them"
        )
        yield unknown(f"smoke run: {fold(undecided)}", text, nodes=undecided, required=True)


def _is_cleared(run: SmokeRun, culprit: Culprit, found: Answer) -> bool:
    """Whether the named nodes completed trials, nothing hung again, and time ran out before more was tried."""
    return found.kind == "open" and culprit.rank is not None and not found.hanging and set(run.nodes) <= {*found.sound}


def _blocked_by_difference(run: SmokeRun, culprit: Culprit, differing: Mapping[str, Sequence[str]]) -> Verdict:
    """Ranks that speak different protocols: the one that hangs or crashes first is not the one with the fault."""
    names, nodes = fold(differing), tuple(dict.fromkeys(node for found in differing.values() for node in found))
    where = (
        f"on {fold(nodes)}" if len(nodes) < len({record.request.node for record in run.records}) else "between nodes"
    )
    return failed(
        "smoke run",
        f"{names} differs {where} (ENV020), which is the likely cause: {culprit.because}",
        at=Evidence(FACT, observed(culprit), "every rank completes", node=culprit.node, at_s=culprit.since_s),
        also=(*details(run, culprit, FACT), *run.claims),
        nodes=nodes,
        remedy=f"Give {names} the same value on every node first, and run it again.",
        waits_at=_WAITS_AT.get(culprit.kind, ""),
    )


def _undecided(run: SmokeRun, culprit: Culprit, found: Answer | None) -> tuple[str, ...]:
    """The nodes of a hang that is not explained, beside those named, that completed nothing."""
    if found is None or culprit.kind != "stuck" or found.kind in ("nodes", "between"):
        return ()
    every = dict.fromkeys(record.request.node for record in run.records)
    return tuple(node for node in every if node not in {*_nodes(run, found), *found.sound})


def _nodes(run: SmokeRun, found: Answer | None) -> tuple[str, ...]:
    """The nodes to name: those that the trials lead to, else those that the run does."""
    if found is not None and found.kind in ("nodes", "between", "group", "whole"):
        return found.nodes
    if found is None or found.kind != "open":
        return run.nodes
    hanging = tuple(dict.fromkeys(node for group in found.hanging for node in group))
    return tuple(node for node in run.nodes if node not in found.sound) or hanging or run.nodes


def _summary(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> str:
    report = run.reports[0][1]
    plan = plan_of(job, fleet, facts)
    nodes = len({node for node, _ in run.reports})
    where = f"{count(report.world_size)} on {f'{nodes} nodes' if nodes > 1 else 'one node'}"
    paddle = f"{report.framework} over " if report.framework.startswith("paddle") else ""
    return f"smoke run: {where}, {paddle}{report.backend} ({plan.ranks_reason}; met at {plan.meeting.source})"


_REMEDIES = {
    "missing": "Find out why no rank starts on {node}: check the interpreter and the environment of the job there.",
    "stopped": "Continue or end the stopped process on {node} (kill -CONT), and find out what stopped it.",
    "stuck": "Read the stack of the rank on {node} in the evidence: it shows what the rank waits for.",
    "lost-node": "Check whether {node} is still running and reachable.",
    "mismatch": "Make all ranks agree: end leftovers of earlier runs on the master's port, or choose another port.",
}


#: Problems of a rank for which all others wait. When one dies, its launcher ends the others.
_WAITS_AT = {"missing": "rendezvous", "stopped": "collective", "stuck": "collective", "lost-node": "collective"}


def _named(run: SmokeRun, culprit: Culprit, found: Answer | None) -> Verdict:
    tried = f"; {describe(found)}" if found is not None else ""
    remedy = _REMEDIES.get(culprit.kind, "Check {node}.").format(node=culprit.node)
    if culprit.kind == "dead":
        remedy = remedy_for_dead(run, culprit)
    if culprit.rank is None and culprit.kind == "stuck":
        remedy = (
            "Check the path between the nodes: MTU for large packets, firewalls for high ports, and the interface that"
            " each rank chose. The link checks test each pair separately."
        )
    subject = f"rank {culprit.rank} on {culprit.node}" if culprit.rank is not None else "smoke run"
    waiting = (
        f"; {numbered(culprit.waiting)} could not continue because of it"
        if culprit.waiting and culprit.rank is not None
        else ""
    )
    return failed(
        subject,
        f"{culprit.because}{waiting}{tried}",
        at=Evidence(
            FACT,
            observed(culprit),
            "every rank completes",
            node=culprit.node,
            at_s=culprit.since_s,
        ),
        also=(*details(run, culprit, FACT), *run.claims),
        nodes=_nodes(run, found),
        remedy=remedy,
        waits_at=_WAITS_AT.get(culprit.kind, ""),
    )


@smoke_check(
    "SMK004",
    "master-endpoint-unusable",
    severity=Severity.ERROR,
    evidence=("pytorch/pytorch#85604", "pytorch/pytorch#73656", "thu-coai/CDial-GPT#103"),
)
def master_endpoint_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Rank 0 can listen on the master port, and all ranks reach it there and through the process group.

    What it checks: rank 0 binds the port before torch is imported; every rank dials it with plain TCP from
    inside the job context, so that refused, dropped and unresolvable are distinguished; and no rank advertises
    loopback to the others.

    Why it matters: all of these look the same in torch: silence, then a timeout that names no rank.

    Example: rank 0 on node-a must be the master, but cannot listen on port 29500: Address already in use.

    Fix: end what holds the port or choose another one; open the port between the nodes; give every node a
    name that resolves to an address the others can reach, or choose an interface.

    Known limits: none known.
    """
    run = run_of(job, facts)
    early = missing_run(job, fleet, run)
    if early is not None:
        yield early if not early.required else unknown("master endpoint", "blocked by SMK001: no rank ran")
        return
    culprit = run.culprit
    if culprit is None or culprit.kind != "endpoint":
        dialled = [e for e in run.events if e.data.get("event") == "dial" and e.data.get("result") == "open"]
        if run.complete or len({e.request_key for e in dialled}) == len(run.records):
            meeting = plan_of(job, fleet, facts).meeting
            yield passed(f"master endpoint: {meeting.spelling} reached by {count(len(run.records))}")
        else:
            yield unknown("master endpoint", "blocked by SMK001: not all ranks reached this phase")
        return
    plan = plan_of(job, fleet, facts)
    yield failed(
        f"master endpoint {plan.meeting.spelling}",
        f"{culprit.because} ({plan.meeting.source})",
        at=Evidence(
            FACT, culprit.because, "every rank opens the master's port", node=culprit.node, at_s=culprit.since_s
        ),
        also=run.claims,
        nodes=run.nodes,
        remedy=(
            f"Check what holds port {plan.meeting.port} on {culprit.node} (ss -ltnp), whether the port is open between "
            f"the nodes, and what {plan.meeting.host} resolves to on each node."
        ),
    )

"""Whether a short real training run over the job's own nodes comes to its end with the one right answer."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.bisect import Answer
from preflight.culprit import Culprit
from preflight.job import Job
from preflight.judgement import Verdict, check, failed, passed, unknown
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.demands import fold
from preflight_checks.smoke.drilled import drillable
from preflight_checks.smoke.gang_run import details, observed
from preflight_checks.smoke.smoke_plan import READS, plan_of, plan_smoke
from preflight_checks.smoke.smoke_run import FACT, SmokeRun, count, numbered, run_of, without_run
from preflight_checks.smoke.smoke_trials import answer_of, plan_trials, spoken
from reference_trainer.collective import rank as run_rank


@check(
    "SMK001",
    "rank-did-not-finish",
    plan=plan_smoke,
    follow_up=plan_trials,
    reads=READS,
    probes=(run_rank,),
    cost="a short training run: every rank imports torch and takes a few steps",
    when="smoke",
    severity=Severity.ERROR,
    evidence=("pytorch/pytorch#76287", "goodfire-ai/spd#552", "NVIDIA/nccl#257"),
)
@drillable("kill", "stop")
def rank_did_not_finish(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every rank of a short training run over the job's nodes comes to its end.

    What it checks: one rank for each GPU that the job uses on each node (without GPUs as many as a job for Gloo
    starts, one for each core at most, else one a node) joins at the job's own master endpoint, sums known tensors and
    trains ten steps, in the job's own interpreter and environment. When not all come to the end, the one that the
    others wait for is named: missing, dead, stopped, stuck, or lost with its node. Where the ranks do not explain why
    they hang, smaller groups of them are tried for up to 45 s: halves of the nodes until the smallest that hangs is
    found, and each of two suspects with a node that is sound.

    Why it matters: a rank that is missing or stuck leaves all others silent for up to 30 minutes, and none of
    their messages names it.

    Example: rank 3 on node-b was killed by SIGKILL (out of memory) while summing; ranks 0 to 2 lost their
    connections because of it.

    Fix: look at the named node and rank first; its stack or last words stand in the evidence.

    Known limits: the model is small; memory and bandwidth of the real job are not tried. Not every part of the nodes is
    tried, so that a fault may need more nodes than the smallest group that was found, or fewer.

    Evidence: pytorch/pytorch#76287 and goodfire-ai/spd#552 (the rest runs on for hours after one rank died),
    NVIDIA/nccl#257 (all ranks hang in one all-reduce).
    """
    run = run_of(job, facts)
    early = without_run(job, fleet, run)
    if early is not None:
        yield early
        return
    if run.complete:
        yield passed(_summary(job, fleet, facts, run))
        return
    if run.blamed is None:
        silent = [r.request.node for r in run.records if r.unavailable is not None]
        reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
        yield unknown("smoke run", f"ranks on {fold(silent)} did not finish: {fold(reasons, 2)}", required=True)
        return
    if run.blamed.kind == "endpoint":
        yield unknown("smoke run", f"blocked by SMK004: {run.blamed.because}")
        return
    found = answer_of(job, fleet, facts, run)
    if found is not None and found.kind == "none":
        # Nobody is blamed for what did not happen again; and nothing has passed.
        yield unknown("smoke run", f"{run.blamed.because}; {spoken(found)}", required=True)
        return
    yield _named(run, run.blamed, found)


def _summary(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> str:
    report = run.reports[0][1]
    plan = plan_of(job, fleet, facts)
    nodes = len({node for node, _ in run.reports})
    where = f"{count(report.world_size)} on {f'{nodes} nodes' if nodes > 1 else 'one node'}"
    paddle = f"{report.framework} over " if report.framework.startswith("paddle") else ""
    return f"smoke run: {where}, {paddle}{report.backend} ({plan.why_so_many}; met at {plan.meeting.source})"


_REMEDIES = {
    "missing": "See why no rank starts on {node}: its interpreter and environment are those of the job.",
    "dead": "Look at {node}: its last words are in the evidence; SIGKILL is mostly the out-of-memory killer (dmesg).",
    "stopped": "Continue or end the stopped process on {node} (kill -CONT), and find out who stopped it.",
    "stuck": "Look at the stack of the rank on {node} in the evidence: it shows what it waits for.",
    "lost-node": "See whether {node} still runs and can be reached.",
    "mismatch": "Make all ranks agree: end what is left of earlier runs on the master's port, or choose another port.",
}


#: Where everybody else waits for such a rank. When one dies, its launcher ends the others.
_WAITS_AT = {"missing": "rendezvous", "stopped": "collective", "stuck": "collective", "lost-node": "collective"}


def _named(run: SmokeRun, blamed: Culprit, found: Answer | None) -> Verdict:
    nodes = run.nodes
    if found is not None and found.kind in ("nodes", "between", "group"):
        nodes = found.nodes
    tried = f"; {spoken(found)}" if found is not None else ""
    remedy = _REMEDIES.get(blamed.kind, "Look at {node}.").format(node=blamed.node)
    if blamed.rank is None and blamed.kind == "stuck":
        remedy = (
            "Compare the path between the nodes for large packets (MTU), firewalls for high ports, and the "
            "interface that each rank chose; the link checks try each pair by itself."
        )
    subject = f"rank {blamed.rank} on {blamed.node}" if blamed.rank is not None else "smoke run"
    waiting = (
        f"; {numbered(blamed.waiting)} could not go on because of it"
        if blamed.waiting and blamed.rank is not None
        else ""
    )
    return failed(
        subject,
        f"{blamed.because}{waiting}{tried}",
        at=Evidence(
            FACT,
            observed(blamed),
            "every rank comes to its end",
            node=blamed.node,
            at_s=blamed.since_s,
        ),
        also=(*details(run, blamed, FACT), *run.claims),
        nodes=nodes,
        remedy=remedy,
        waits_at=_WAITS_AT.get(blamed.kind, ""),
    )


@check(
    "SMK004",
    "master-endpoint-unusable",
    plan=plan_smoke,
    probes=(run_rank,),
    cost="a short training run: every rank imports torch and takes a few steps",
    when="smoke",
    severity=Severity.ERROR,
    evidence=("pytorch/pytorch#85604", "pytorch/pytorch#73656", "thu-coai/CDial-GPT#103"),
)
def master_endpoint_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Rank 0 can listen on the master port, and all ranks reach it there and through the process group.

    What it checks: rank 0 binds the port before torch is imported; every rank dials it with plain TCP from
    inside the job context, so that refused, dropped and unresolvable are told apart; and no rank advertises
    loopback to the others.

    Why it matters: all of these look the same in torch: silence, then a time-out that names nobody.

    Example: rank 0 on node-a must be the master, but cannot listen on port 29500: Address already in use.

    Fix: end what holds the port or choose another one; open the port between the nodes; give every node a
    name that resolves to an address the others can reach, or choose an interface.

    Known limits: none known.

    Evidence: pytorch/pytorch#85604, pytorch/pytorch#73656, thu-coai/CDial-GPT#103.
    """
    run = run_of(job, facts)
    early = without_run(job, fleet, run)
    if early is not None:
        yield early if not early.required else unknown("master endpoint", "blocked by SMK001: no rank ran")
        return
    blamed = run.blamed
    if blamed is None or blamed.kind != "endpoint":
        dialled = [e for e in run.events if e.data.get("event") == "dial" and e.data.get("result") == "open"]
        if run.complete or len({e.request_key for e in dialled}) == len(run.records):
            meeting = plan_of(job, fleet, facts).meeting
            yield passed(f"master endpoint: {meeting.spelling} reached by {count(len(run.records))}")
        else:
            yield unknown("master endpoint", "blocked by SMK001: not all ranks came so far")
        return
    plan = plan_of(job, fleet, facts)
    yield failed(
        f"master endpoint {plan.meeting.spelling}",
        f"{blamed.because} ({plan.meeting.source})",
        at=Evidence(FACT, blamed.because, "every rank opens the master's port", node=blamed.node, at_s=blamed.since_s),
        also=run.claims,
        nodes=run.nodes,
        remedy=(
            f"See what holds port {plan.meeting.port} on {blamed.node} (ss -ltnp), whether the port is open between "
            f"the nodes, and what {plan.meeting.host} resolves to on each of them."
        ),
    )

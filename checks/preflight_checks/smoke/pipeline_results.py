"""Checks the results and the speed of the ranks as stages of a pipeline."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import requests_for
from preflight_checks.requirements import fold
from preflight_checks.smoke.group_run import FACT, incomplete, numbered, run_of
from preflight_checks.smoke.plan import plan_of, plan_smoke
from preflight_checks.smoke.stragglers import BUSY_SHARE, ON_CPU, ON_GPU
from reference_trainer.collective.rank import rank as run_rank
from reference_trainer.pipeline.expected_values import StageFault
from reference_trainer.pipeline.stage import PipelineReport

_COST = "three steps of up to eight microbatches, about a tenth of a second each"

#: Node, rank, device and report of a stage.
StageReport = tuple[str, int, str, PipelineReport]


@requests_for(run_rank)
def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """The requests of the smoke run, if its ranks become stages."""
    if fleet.nodes and not plan_of(job, fleet, facts).pipeline.reason:
        yield from plan_smoke(job, fleet, facts)


@check(
    "SMK006",
    "wrong-pipeline-result",
    plan=_plan,
    cost=_COST,
    when="smoke",
    severity=Severity.ERROR,
    evidence=(
        ("PipeDream, arXiv 1806.03377 (weight stashing)", "https://arxiv.org/abs/1806.03377"),
        ("Narayanan et al., arXiv 2104.04473 (schedules)", "https://arxiv.org/abs/2104.04473"),
    ),
)
def wrong_pipeline_result(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every stage of a pipeline receives, computes and sends exactly the expected values.

    What it checks: if the job splits its model into pipeline stages and the ranks divide evenly, the ranks of the
    smoke run become stages (1F1B, up to eight microbatches) and send activations and gradients to each other. Each
    message, each result, the summed gradients and the weights are compared bit by bit. One step runs without a flush:
    a backward pass must then use the weights of its forward pass although newer ones exist (weight stashing).

    Why it matters: a lost, duplicated or swapped microbatch gives no error. Point-to-point messages take different
    paths through the network and the library from collectives.

    Example: stage 1 (rank 1 on node-b), microbatch 2: received activations from rank 0 are all zero.

    Fix: inspect the link between the two named nodes; if a stage's own results are wrong, test its memory and GPU.

    Known limits: a small linear model; eight microbatches at most. It does not run with Paddle.
    """
    found = _staged(job, fleet, facts)
    if isinstance(found, Verdict):
        yield found
        return
    wrong = [(node, rank, fault) for node, rank, _, report in found for fault in report.faults]
    first = found[0][3]
    if not wrong:
        compared = sum(report.compared for *_, report in found)
        yield passed(
            f"pipeline of {first.stages} stages, {first.schedule}: {compared} messages and results compared bit by bit"
        )
        return
    nodes_by_rank = {rank: node for node, rank, _, _ in found}
    node, rank, fault = wrong[0]
    more = f" ({len(wrong)} wrong results in total)" if len(wrong) > 1 else ""
    paths = (_path(node, fault, nodes_by_rank) for node, _, fault in wrong)
    nodes = tuple(dict.fromkeys(name for path in paths for name in path))
    yield failed(
        f"pipeline on {fold(nodes)}",
        f"stage {fault.stage} (rank {rank} on {node}), {_step_text(fault)}: {fault.what}"
        f"{_sender_text(fault, nodes_by_rank)} are wrong: {fault.explanation}; element {fault.index} is {fault.got}, "
        f"expected exactly {fault.expected}; {fault.wrong} of {fault.elements} elements are wrong{more}",
        at=_evidence(node, rank, fault),
        also=[_evidence(node, rank, fault) for node, rank, fault in wrong[1:8]],
        nodes=nodes,
        remedy=(
            f"Test the link between {fold(nodes)}: the cards, and the transport that the library uses."
            if len(nodes) > 1
            else f"Test memory and GPU of {fold(nodes)}, and compare its torch with the other nodes'."
        ),
    )


@check(
    "SMK007",
    "pipeline-stage-slow",
    plan=_plan,
    cost=_COST,
    when="smoke",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        ("single slow node bottlenecks whole job; GPU micro-benchmarks name outlier ranks", "NVIDIA/Megatron-LM#4662"),
        ("GPipe, arXiv 1811.06965 (balanced stages)", "https://arxiv.org/abs/1811.06965"),
        ("Narayanan et al., arXiv 2104.04473, section 2.2 (the formula)", "https://arxiv.org/abs/2104.04473"),
    ),
)
def pipeline_stage_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No stage of a pipeline takes far longer than the others for the same work.

    What it checks: each stage times the forward and the backward pass of each microbatch, the same work on all of
    them; its time is the median, the better of two steps. A stage is named if it takes twice as long as the median of
    the others (on GPUs a third longer). Imbalance (maximum over mean) and bubble (the share of a step in which stages
    wait) are reported next to the formula (stages - 1) / (microbatches + stages - 1).

    Why it matters: every microbatch goes through every stage, so the slowest one sets the pace of all.

    Example: stage 2 (rank 2 on node-c) takes 9.1 ms for a microbatch, the median of the others is 3.0 ms.

    Fix: compare clocks, power limits, cooling and limits of processors on the named node with another.

    Known limits: all stages have equal work here; an uneven split of the job's own layers is not detected. If ranks
    wait for a processor that others use, it is inconclusive. A bubble above the formula is only reported.
    """
    found = _staged(job, fleet, facts)
    if isinstance(found, Verdict):
        yield found
        return
    first = found[0][3]
    slow = _slowest(found)
    texts = (
        f"imbalance {first.imbalance:.2f} (maximum over mean), stages wait for {first.bubble:.0%} of a step, "
        f"{first.formula:.0%} by the formula for {first.microbatches} microbatches"
    )
    waits = statistics.median(item[3].waited or 0.0 for item in found)
    if waits > BUSY_SHARE:
        texts += f" (hosts busy: half of the ranks waited {waits:.0%} of the time or more for a processor)"
    if slow is None:
        times = sorted(first.stage_s)
        yield passed(
            f"pace of {first.stages} stages: {times[0] * 1e3:.2g} to {times[-1] * 1e3:.2g} ms for a microbatch; {texts}"
        )
        return
    stage, others_s = slow
    node, rank, device, report = max(
        (item for item in found if item[3].stage == stage), key=lambda item: item[3].forward_s + item[3].backward_s
    )
    if max(waits, report.waited or 0.0) > BUSY_SHARE:
        yield unknown(
            f"pace of stage {stage}",
            f"inconclusive: hosts busy (rank {rank} waited {report.waited or 0.0:.0%} of the time for a processor, "
            f"half of the ranks {waits:.0%} or more); {texts}",
        )
        return
    own_s = first.stage_s[stage]
    yield failed(
        f"stage {stage} on {node}",
        f"stage {stage} ({numbered([rank])} on {node}) takes {own_s * 1e3:.3g} ms for a microbatch, the median of the "
        f"others is {others_s * 1e3:.3g} ms for the same work; the whole pipeline runs at its pace; {texts}",
        at=Evidence(
            FACT,
            f"{own_s * 1e3:.3g} ms for a microbatch on {device}, {report.waited or 0.0:.0%} of it without a processor",
            f"about {others_s * 1e3:.3g} ms",
            node=node,
        ),
        remedy=f"On {node}: `nvidia-smi -q -d CLOCK,PERFORMANCE`, `cat /sys/fs/cgroup/cpu.max`, `uptime`; compare with "
        "another node.",
    )


def _staged(job: Job, fleet: Fleet, facts: Facts) -> list[StageReport] | Verdict:
    """The report of each stage, by rank; or why there is nothing to judge."""
    run = run_of(job, facts)
    planned = plan_of(job, fleet, facts).pipeline if fleet.nodes else None
    if planned is None or planned.reason:
        return not_applicable("pipeline", planned.reason if planned is not None else "the job has no known nodes")
    early = incomplete(job, fleet, run)
    if early is not None:
        return early
    found = [(node, r.rank, r.device, r.pipeline) for node, r in run.reports if r.pipeline is not None]
    staged: list[StageReport] = sorted(((n, r, d, p) for n, r, d, p in found if not p.note), key=lambda item: item[1])
    if not staged:
        notes = dict.fromkeys(p.note for *_, p in found)
        return not_applicable("pipeline", fold(notes) or f"it does not run with {run.reports[0][1].framework}")
    return staged


def _slowest(stages: list[StageReport]) -> tuple[int, float] | None:
    """The slow stage and the median of the others; None if no stage is slow."""
    times = stages[0][3].stage_s
    stage = times.index(max(times))
    others = statistics.median(time for index, time in enumerate(times) if index != stage)
    factor = ON_GPU if all("cuda" in device for _, _, device, _ in stages) else ON_CPU
    return (stage, others) if times[stage] > factor * others else None


def _step_text(fault: StageFault) -> str:
    return f"{fault.step}, microbatch {fault.microbatch}" if fault.microbatch >= 0 else fault.step


def _sender_text(fault: StageFault, nodes: dict[int, str]) -> str:
    return f" from rank {fault.sender} on {nodes.get(fault.sender, '?')}" if fault.sender >= 0 else ""


def _path(node: str, fault: StageFault, nodes: dict[int, str]) -> tuple[str, ...]:
    """The nodes on which, or between which, a fault is."""
    return (nodes[fault.sender], node) if fault.sender in nodes else (node,)


def _evidence(node: str, rank: int, fault: StageFault) -> Evidence:
    where = f"rank {rank}, stage {fault.stage}, {_step_text(fault)}, {fault.what}, element {fault.index}"
    return Evidence(FACT, f"{where}: {fault.got} ({fault.explanation})", fault.expected, node=node)

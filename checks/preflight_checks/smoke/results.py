"""Checks that the training run computed correct values: ranks agree, and stages and steps match the expected values."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from preflight._util.sequences import grouped
from preflight.model.findings import Evidence, Severity, Status
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import gated_by, requests_for, warning_check
from preflight_checks.probes.machine import machine
from preflight_checks.requirements import fold
from preflight_checks.smoke.collective_speed import BUSY_SHARE, ON_CPU, ON_GPU
from preflight_checks.smoke.plan import (
    FACT,
    SmokeRun,
    complete_run,
    count,
    incomplete_run_verdict,
    numbered_ranks,
    plan_of,
    plan_smoke,
    run_of,
    smoke_check,
)
from preflight_checks.smoke.ranks import may_fail_by_injection
from reference_trainer.collective.rank import RankReport
from reference_trainer.collective.rank import rank as run_rank
from reference_trainer.collective.steps import MAX_COMPARED_STEPS, MAX_LOSS_RATIO, TOLERANCE
from reference_trainer.common.oracle import Mismatch
from reference_trainer.pipeline.stage import PipelineReport, StageFault

#: Node, rank, device and report of a stage.
StageReport = tuple[str, int, str, PipelineReport]


@requests_for(run_rank)
def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Yield the requests of the smoke run, if its ranks become pipeline stages."""
    if fleet.nodes and not plan_of(job, fleet, facts).pipeline.reason:
        yield from plan_smoke(job, fleet, facts)


@check("SMK006", "wrong-pipeline-result", plan=_plan, when="smoke", severity=Severity.ERROR)
def wrong_pipeline_result(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every stage of a pipeline receives, computes and sends exactly the expected values.

    What it checks: if the job splits its model into pipeline stages and the ranks divide evenly, the ranks of the smoke
    run become stages (1F1B, up to eight microbatches) and send activations and gradients to each other. Each message,
    each result, the summed gradients and the weights are compared bit for bit. One step runs without a flush: a
    backward pass must then use the weights of its forward pass although newer weights exist (weight stashing).

    Why it matters: a lost, duplicated or swapped microbatch causes no error. Point-to-point messages take different
    paths through the network and the library from collectives.

    Example: stage 1 (rank 1 on node-b), microbatch 2: received activations from rank 0 are all zero.

    Fix: check the link between the two named nodes; if a stage's own results are wrong, test its memory and GPU.

    Known limits: a small linear model; eight microbatches at most. It does not run with Paddle.
    """
    stage_reports = _stage_reports(job, fleet, facts)
    if isinstance(stage_reports, Verdict):
        yield stage_reports
        return
    wrong = [(node, rank, fault) for node, rank, _, report in stage_reports for fault in report.faults]
    first = stage_reports[0][3]
    if not wrong:
        compared = sum(report.compared for *_, report in stage_reports)
        yield passed(
            f"pipeline of {first.stages} stages, {first.schedule}: {compared} messages and results compared bit for bit"
        )
        return
    nodes_by_rank = {rank: node for node, rank, _, _ in stage_reports}
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
            f"Test the link between {fold(nodes)}: the network cards, and the transport that the library uses."
            if len(nodes) > 1
            else f"Test the memory and GPU of {fold(nodes)}, and compare its torch with the other nodes'."
        ),
    )


@warning_check("SMK007", "pipeline-stage-slow", plan=_plan, when="smoke")
def pipeline_stage_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No stage of a pipeline takes far longer than the others for the same work.

    What it checks: each stage times the forward and backward pass of each microbatch, with the same work on all stages;
    its time is the better median of two steps. A stage is named if it takes twice as long as the median of the others
    (on GPUs a third longer). Imbalance (maximum over mean) and bubble (the share of a step in which stages wait) are
    reported next to the formula (stages - 1) / (microbatches + stages - 1).

    Why it matters: every microbatch goes through every stage, so the slowest stage sets the pace of all.

    Example: stage 2 (rank 2 on node-c) takes 9.1 ms per microbatch, but the median of the other stages is 3.0 ms.

    Fix: compare clocks, power limits, cooling and CPU limits on the named node with another node.

    Known limits: all stages have equal work here; an uneven split of the job's own layers is not detected. If ranks
    wait for a processor that others use, the result is inconclusive. A bubble above the formula is only reported.
    """
    stage_reports = _stage_reports(job, fleet, facts)
    if isinstance(stage_reports, Verdict):
        yield stage_reports
        return
    first = stage_reports[0][3]
    slow = _slowest(stage_reports)
    texts = (
        f"imbalance {first.imbalance:.2f} (maximum over mean), stages wait for {first.bubble:.0%} of a step; the "
        f"formula gives {first.formula:.0%} for {first.microbatches} microbatches"
    )
    waits = statistics.median(item[3].waited or 0.0 for item in stage_reports)
    if waits > BUSY_SHARE:
        texts += f" (hosts busy: half of the ranks waited for a processor {waits:.0%} of the time or more)"
    if slow is None:
        times = sorted(first.stage_s)
        yield passed(
            f"speed of {first.stages} stages: {times[0] * 1e3:.2g} to {times[-1] * 1e3:.2g} ms per microbatch; {texts}"
        )
        return
    stage, others_s = slow
    node, rank, device, report = max(
        (item for item in stage_reports if item[3].stage == stage),
        key=lambda item: item[3].forward_s + item[3].backward_s,
    )
    if max(waits, report.waited or 0.0) > BUSY_SHARE:
        yield unknown(
            f"speed of stage {stage}",
            f"inconclusive: hosts busy (rank {rank} waited for a processor {report.waited or 0.0:.0%} of the time, "
            f"half of the ranks {waits:.0%} or more); {texts}",
        )
        return
    own_s = first.stage_s[stage]
    yield failed(
        f"stage {stage} on {node}",
        f"stage {stage} ({numbered_ranks([rank])} on {node}) takes {own_s * 1e3:.3g} ms per microbatch, and the "
        f"median of the others is {others_s * 1e3:.3g} ms for the same work; the whole pipeline runs at the speed of "
        f"this stage; {texts}",
        at=Evidence(
            FACT,
            f"{own_s * 1e3:.3g} ms per microbatch on {device}, {report.waited or 0.0:.0%} of it without a processor",
            f"about {others_s * 1e3:.3g} ms",
            node=node,
        ),
        remedy=f"On {node}: `nvidia-smi -q -d CLOCK,PERFORMANCE`, `cat /sys/fs/cgroup/cpu.max`, `uptime`; compare with "
        "another node.",
    )


def _stage_reports(job: Job, fleet: Fleet, facts: Facts) -> list[StageReport] | Verdict:
    """Return the report of each stage, by rank; if there is nothing to judge, yield the reason."""
    run = run_of(job, facts)
    planned = plan_of(job, fleet, facts).pipeline if fleet.nodes else None
    if planned is None or planned.reason:
        return not_applicable("pipeline", planned.reason if planned is not None else "the job has no known nodes")
    early = incomplete_run_verdict(job, fleet, run)
    if early is not None:
        return early
    found = [(node, r.rank, r.device, r.pipeline) for node, r in run.reports if r.pipeline is not None]
    staged: list[StageReport] = sorted(((n, r, d, p) for n, r, d, p in found if not p.note), key=lambda item: item[1])
    if not staged:
        notes = dict.fromkeys(p.note for *_, p in found)
        return not_applicable("pipeline", fold(notes) or f"it does not run with {run.reports[0][1].framework}")
    return staged


def _slowest(stages: list[StageReport]) -> tuple[int, float] | None:
    """Return the slow stage and the median of the others; None if no stage is slow."""
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
    """Return the nodes on which, or between which, the fault is."""
    return (nodes[fault.sender], node) if fault.sender in nodes else (node,)


def _evidence(node: str, rank: int, fault: StageFault) -> Evidence:
    where = f"rank {rank}, stage {fault.stage}, {_step_text(fault)}, {fault.what}, element {fault.index}"
    return Evidence(FACT, f"{where}: {fault.got} ({fault.explanation})", fault.expected, node=node)


#: A rank as text.
_RANK = re.compile(r"[0-9]{1,10}")
#: Steps after which a correct run has learned the built-in task to some degree.
_LEARNING_STEPS = 5


@smoke_check("SMK002", "wrong-collective-result", severity=Severity.ERROR)
@may_fail_by_injection("loss", "double", "flip")
@gated_by(complete_run)
def wrong_collective_result(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> Iterator[Verdict]:
    """Sums with exactly known results are correct on every rank.

    What it checks: all-reduce of 1 element to 1 MiB, broadcast, all-gather, reduce-scatter, the gradients and weights
    of a linear model, and each of these and all-to-all with a message of 1 to 16 MiB (256 MiB between GPUs), all with
    integers times powers of two, so that any order of summing gives the same bits. Each rank contributes its own digit,
    so a lost or doubled contribution identifies its rank.

    Why it matters: corrupted sums cause no error. Training continues and learns something else.

    Example: on rank 2 the contribution of rank 1 is missing from 4096 elements of an all-reduce.

    Fix: remove the named node from the job, and test its memory, GPU and network card.

    Known limits: faults that appear only under heat or in large transfers may not show here.
    """
    wrong = [(node, m) for node, report in run.reports for m in report.mismatches]
    if not wrong:
        operations = sum(report.operations for _, report in run.reports)
        yield passed(f"collective results: {operations} compared bit for bit on {count(len(run.reports))}")
        return
    nodes_by_rank = {report.rank: node for node, report in run.reports}
    suspects, shown_by = _suspects(wrong, nodes_by_rank)
    first_node, first = wrong[0]
    more = f" ({len(wrong)} wrong results in total)" if len(wrong) > 1 else ""
    named = fold(suspects) if suspects else "every node"
    remedy = (
        f"Remove {named} from the job, and test its memory, GPU and network card."
        if suspects
        else "Repeat the run with half of the nodes (--hosts) until it passes; the node that makes the run fail has "
        "the fault."
    )
    yield failed(
        f"collective results on {named}",
        f"{first.operation}: on rank {first.rank} ({first_node}) element {first.index} is {first.got}, expected "
        f"exactly {first.expected}; {first.explanation}; {first.wrong} of {first.elements} elements "
        f"are wrong{more}{shown_by}",
        at=_mismatch_evidence(first_node, first),
        also=[_mismatch_evidence(node, mismatch) for node, mismatch in wrong[1:8]],
        nodes=suspects,
        processes=[f"rank {rank}" for rank in _contributors(wrong) or [mismatch.rank for _, mismatch in wrong]],
        remedy=remedy,
    )
    if not suspects:
        every = tuple(dict.fromkeys(nodes_by_rank.values()))
        yield unknown(f"collective results: {fold(every)}", "one of them is faulty", nodes=every, required=True)


def _suspects(mismatches: Sequence[tuple[str, Mismatch]], nodes: dict[int, str]) -> tuple[tuple[str, ...], str]:
    """Return the nodes to blame and the reason; no nodes if all see the fault and nothing shows its origin.

    Returns the node with the wrong contribution if all mismatches agree on it; otherwise the sender of the wrong parts,
    if ranks send to each other directly; otherwise the nodes that see the fault.
    """
    culprits = _contributors(mismatches)
    if len(culprits) == 1 and culprits[0] in nodes:
        return (nodes[culprits[0]],), ""
    pairs = {
        (sender, mismatch.rank) for _, mismatch in mismatches if (sender := _sender(mismatch, len(nodes))) is not None
    }
    senders = sorted({sender for sender, _ in pairs} & nodes.keys())
    receivers = sorted({receiver for _, receiver in pairs} & nodes.keys())
    seeing = tuple(dict.fromkeys(node for node, _ in mismatches))
    if len(senders) == 1 and receivers and receivers != senders:
        text = (
            f"; the wrong part of each all_to_all was sent by {numbered_ranks(senders)} to {numbered_ranks(receivers)}"
        )
        ends = senders if len(receivers) > 1 else [*senders, *receivers]
        return tuple(dict.fromkeys(nodes[rank] for rank in ends)), text
    if len(receivers) == 1:
        return (nodes[receivers[0]],), f"; the wrong parts of all_to_all all arrived at {numbered_ranks(receivers)}"
    if len(seeing) < len(set(nodes.values())) or len(seeing) == 1:
        return seeing, ""
    return (), "; every node sees wrong results, so their origin is unknown"


def _sender(mismatch: Mismatch, ranks: int) -> int | None:
    """Return the rank that sent the first wrong element; None if ranks combine or forward elements."""
    if not mismatch.operation.startswith("all_to_all") or mismatch.elements % ranks:
        return None
    sender = mismatch.index * ranks // mismatch.elements if mismatch.elements else -1
    return sender if 0 <= sender < ranks else None


def _contributors(mismatches: Sequence[tuple[str, Mismatch]]) -> tuple[int, ...]:
    """Return the ranks whose contribution is lost or counted twice."""
    # At most ten digits, because the report of a rank is not trusted.
    found = (int(rank) for _, mismatch in mismatches for rank in mismatch.contributions if _RANK.fullmatch(rank))
    return tuple(dict.fromkeys(found))


def _mismatch_evidence(node: str, mismatch: Mismatch) -> Evidence:
    observed = f"rank {mismatch.rank}, {mismatch.operation}, element {mismatch.index}: {mismatch.got}"
    return Evidence(FACT, f"{observed} (bits {mismatch.flipped_bits} differ)", mismatch.expected, node=node)


@smoke_check("SMK003", "ranks-disagree-after-training", severity=Severity.ERROR)
@may_fail_by_injection("loss", "double", "flip")
@gated_by(complete_run)
def ranks_disagree(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> Iterator[Verdict]:
    """After a few training steps, every rank has the same weights, and the model has learned.

    What it checks: with DistributedDataParallel, or FSDP if the job shards the model (FSDP, ZeRO-3) and the backend
    supports it: SHA-256 of all parameters on every rank; whether every tensor changed and the loss fell; whether a
    single process on the same shards gets the same weights within 1e-6.

    Why it matters: ranks that drift apart, or weights that never change, end with exit code 0.

    Example: the weights on node-c differ from those of all other ranks after ten steps.

    Fix: compare library versions and hardware of the named node with the others.

    Weights that differ only by rounding, between ranks that compute with different instructions, are a warning.

    Known limits: a small model of two layers; the comparison with one process is left out above ten steps and
    above 64 ranks.
    """
    processors = {node: seen.processor for node, seen in facts.observed(machine).items()}
    faults = list(_training_faults(run, processors))
    yield from faults
    if not faults:
        report = run.reports[0][1]
        note = f" ({report.trainer_note})" if report.trainer_note else ""
        yield passed(f"weights after training: equal on {count(len(run.reports))} with {report.trainer}{note}")


def _digests(run: SmokeRun) -> dict[int, str]:
    """Return the digest of each rank's weights, from its own report, or from that of a peer if the rank sent none."""
    found: dict[int, str] = {}
    for _, report in run.reports:
        if len(report.digests) == 1:
            found[report.rank] = report.digests[0]
        for rank, digest in enumerate(report.digests if len(report.digests) > 1 else []):
            found.setdefault(rank, digest)
    return dict(sorted(found.items()))


def _training_faults(run: SmokeRun, processors: Mapping[str, str]) -> Iterator[Verdict]:
    owners = {report.rank: node for node, report in run.reports}
    digests = _digests(run)
    apart = list(_disagreement_verdicts(run, owners, digests, processors)) if len(set(digests.values())) > 1 else []
    yield from apart
    for node, report in run.reports:
        yield from _rank_faults(node, report)
    # One rank that computes differently also moves the weights of all others away from those of one process.
    explained = any(verdict.status is Status.FAIL and verdict.severity is None for verdict in apart)
    if not explained and not any(report.mismatches for _, report in run.reports):
        yield from _one_process_verdicts(run)


def _disagreement_verdicts(
    run: SmokeRun, owners: Mapping[int, str], digests: Mapping[int, str], processors: Mapping[str, str]
) -> Iterator[Verdict]:
    """Yield the verdict on different weights. A node is named only if it differs from a majority."""
    trainer = run.reports[0][1].trainer
    common, most = Counter(digests.values()).most_common(1)[0]
    has_majority = 2 * most > len(digests)
    odd = [rank for rank, found in digests.items() if found != common] if has_majority else list(digests)
    nodes = tuple(dict.fromkeys(owners.get(rank, "") for rank in odd))
    drifts = [report.drift for _, report in run.reports if report.drift is not None]
    largest = max((drift.largest for drift in drifts), default=math.nan)
    where = f"{numbered_ranks(odd)} on {fold(nodes)}"
    has = "has" if len(odd) == 1 else "have"
    differ = (
        f"{where} {has} different weights from the other {count(most)} after the same steps"
        if has_majority
        else f"the weights of {where} differ after the same steps, and no majority has equal weights"
    )
    first = next(rank for rank in odd if digests[rank] != common)
    at = Evidence(FACT, f"rank {first}: SHA-256 {digests[first]}", f"SHA-256 {common}", node=owners.get(first, ""))
    kinds = _kinds(run, processors)
    tolerance = TOLERANCE * max(1.0, max(report.steps for _, report in run.reports) / MAX_COMPARED_STEPS)
    if len(drifts) == len(run.reports) and all(drift.largest <= tolerance for drift in drifts) and kinds:
        yield failed(
            "weights after training",
            f"{differ}, by at most {largest:.2g}: this is rounding, because not all ranks compute with the same "
            f"instructions ({kinds})",
            at=at,
            nodes=nodes if has_majority else (),
            severity=Severity.WARNING,
            remedy="Use nodes of the same type if ranks must stay bit-for-bit equal, or set ATEN_CPU_CAPABILITY and "
            "MKL_CBWR to the same value on all nodes.",
        )
        return
    far = f", by up to {largest:.2g}" if drifts else ""
    yield failed(
        "weights after training",
        f"{differ}{far}; {trainer} should keep them equal",
        at=at,
        nodes=nodes if has_majority else (),
        remedy=f"Compare the releases of torch, NCCL and the driver on {fold(nodes)} with those on the other nodes, "
        "and test their memory and GPUs."
        if has_majority
        else "Compare torch, NCCL and the driver on all nodes; repeat the run with half of the nodes (--hosts) "
        "until it passes.",
    )
    if not has_majority:
        reason = "no majority shows which of them is different"
        yield unknown(f"weights after training: {fold(nodes)}", reason, nodes=nodes, required=True)


def _kinds(run: SmokeRun, processors: Mapping[str, str]) -> str:
    """Return the ranks' instruction sets if they differ, such as `AVX2 on node0, DEFAULT on node1`; otherwise empty."""
    for kind_of in (
        lambda node, report: report.cpu_capability,
        lambda node, report: report.device,
        lambda node, report: processors.get(node, ""),
    ):
        found = grouped((kind_of(node, report), node) for node, report in run.reports)
        if len(found) > 1 and "" not in found:
            return ", ".join(f"{kind} on {fold(dict.fromkeys(on))}" for kind, on in found.items())
    return ""


def _rank_faults(node: str, report: RankReport) -> Iterator[Verdict]:
    where = f"rank {report.rank} on {node}"
    if report.unmoved:
        yield failed(
            f"training on {where}",
            f"{fold(report.unmoved)} did not change in {report.steps} steps on {where}; every tensor must change",
            at=Evidence(FACT, f"unmoved: {fold(report.unmoved)}", "every tensor changes", node=node),
            remedy="Run torch's own tests on that node: the backward pass or the optimizer has no effect there.",
        )
    losses = report.losses
    if len(losses) >= _LEARNING_STEPS and not losses[-1] < losses[0] * MAX_LOSS_RATIO:
        yield failed(
            f"training on {where}",
            f"the loss on {where} changed from {losses[0]:.4g} to {losses[-1]:.4g} in {report.steps} steps; "
            f"expected less than {MAX_LOSS_RATIO * losses[0]:.4g}",
            at=Evidence(FACT, f"{losses[-1]:.4g}", f"< {MAX_LOSS_RATIO * losses[0]:.4g}", node=node),
            remedy="Compare torch and its numeric libraries on that node with those of the other nodes.",
        )


def _one_process_verdicts(run: SmokeRun) -> Iterator[Verdict]:
    """Yield the verdict if all ranks have equal weights that differ from those of one process, which blames no node."""
    different = [
        (node, report, difference)
        for node, report in run.reports
        if (difference := report.difference_to_one_process) is not None and not difference <= TOLERANCE
    ]
    if not different:
        return
    node, report, difference = different[0]
    yield failed(
        "training compared with one process",
        f"the weights after {report.steps} steps on {report.world_size} ranks differ by {difference:.3g} from those of "
        f"one process on the same shards ({node}); expected at most {TOLERANCE:g}",
        at=Evidence(FACT, f"{difference:.3g}", f"<= {TOLERANCE:g}", node=node),
        nodes=(),
        remedy="Compare torch and its numeric libraries on all nodes; repeat the run with half of the nodes "
        "(--hosts) until it passes.",
    )
    every = tuple(dict.fromkeys(node for node, _ in run.reports))
    yield unknown(
        f"training compared with one process: {fold(every)}", "one of them is faulty", nodes=every, required=True
    )

"""Checks the results of the smoke run: every sum and every weight on every rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, passed
from preflight_checks.requirements.hosts import fold
from preflight_checks.smoke.group_run import FACT, SmokeRun, count, incomplete, numbered, run_of
from preflight_checks.smoke.injected_fault import may_fail_by_injection
from preflight_checks.smoke.plan import plan_smoke
from reference_trainer.collective.rank import RankReport
from reference_trainer.collective.rank import rank as run_rank
from reference_trainer.collective.steps import MAX_LOSS_RATIO, TOLERANCE
from reference_trainer.common.oracle import Mismatch

#: A rank as text.
_RANK = re.compile(r"[0-9]{1,10}")
#: Steps after which a correct run has learned the built-in task to some degree.
_LEARNING_STEPS = 5


@check(
    "SMK002",
    "wrong-collective-result",
    plan=plan_smoke,
    probes=(run_rank,),
    cost="a short training run: every rank imports torch and takes a few steps",
    when="smoke",
    severity=Severity.ERROR,
    evidence=(
        (
            "silent data corruption during training in arXiv 2407.21783 (section 3.3.4)",
            "https://arxiv.org/abs/2407.21783",
        ),
        "NVIDIA/nccl-tests",
        "NVIDIA/nccl-tests checks results for the same reason",
    ),
)
@may_fail_by_injection("loss", "double", "flip")
def wrong_collective_result(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Sums with exactly known results are correct on every rank.

    What it checks: all-reduce of 1 element to 1 MiB, broadcast, all-gather, reduce-scatter, the gradients and weights
    of a linear model, and each of these and all-to-all over a message of 1 to 16 MiB (256 MiB between GPUs), all over
    integers times powers of two, so that any order of summing gives the same bits. Each rank contributes its own
    digit, so a lost or doubled contribution identifies its rank.

    Why it matters: corrupted sums give no error. Training continues and learns something else.

    Example: on rank 2 the contribution of rank 1 is missing from 4096 elements of an all-reduce.

    Fix: remove the named node from the job and test its memory, GPU and network card.

    Known limits: faults that appear only under heat or in large transfers may not show here.
    """
    run = run_of(job, facts)
    early = incomplete(job, fleet, run)
    if early is not None:
        yield early
        return
    wrong = [(node, m) for node, report in run.reports for m in report.mismatches]
    if not wrong:
        operations = sum(report.operations for _, report in run.reports)
        yield passed(f"collective results: {operations} compared bit by bit on {count(len(run.reports))}")
        return
    nodes_by_rank = {report.rank: node for node, report in run.reports}
    suspects = _suspects(wrong, nodes_by_rank)
    first_node, first = wrong[0]
    more = f" ({len(wrong)} wrong results in total)" if len(wrong) > 1 else ""
    yield failed(
        f"collective results on {fold(suspects)}",
        f"{first.operation}: on rank {first.rank} ({first_node}) element {first.index} is {first.got}, expected "
        f"exactly {first.expected}; {first.explanation}; {first.wrong} of {first.elements} elements "
        f"are wrong{more}",
        at=_mismatch_evidence(first_node, first),
        also=[_mismatch_evidence(node, mismatch) for node, mismatch in wrong[1:8]],
        nodes=suspects,
        processes=[f"rank {rank}" for rank in _contributors(wrong) or [mismatch.rank for _, mismatch in wrong]],
        remedy=f"Remove {fold(suspects)} from the job and test memory, GPU and network card there.",
    )


def _suspects(wrong: Sequence[tuple[str, Mismatch]], nodes: dict[int, str]) -> tuple[str, ...]:
    """The node with the wrong contribution, if all mismatches agree on one; else the nodes that see the fault."""
    culprits = _contributors(wrong)
    if len(culprits) == 1 and culprits[0] in nodes:
        return (nodes[culprits[0]],)
    return tuple(dict.fromkeys(node for node, _ in wrong))


def _contributors(wrong: Sequence[tuple[str, Mismatch]]) -> tuple[int, ...]:
    """The ranks whose contribution is lost or counted twice."""
    # At most ten digits, because the report of a rank is not trusted.
    found = (int(rank) for _, mismatch in wrong for rank in mismatch.contributions if _RANK.fullmatch(rank))
    return tuple(dict.fromkeys(found))


def _mismatch_evidence(node: str, mismatch: Mismatch) -> Evidence:
    observed = f"rank {mismatch.rank}, {mismatch.operation}, element {mismatch.index}: {mismatch.got}"
    return Evidence(FACT, f"{observed} (bits {mismatch.flipped_bits} differ)", mismatch.expected, node=node)


@check(
    "SMK003",
    "ranks-disagree-after-training",
    plan=plan_smoke,
    probes=(run_rank,),
    cost="a short training run: every rank imports torch and takes a few steps",
    when="smoke",
    severity=Severity.ERROR,
    evidence=(
        (
            "the DDP design note (every rank keeps equal weights by construction)",
            "https://pytorch.org/docs/stable/notes/ddp.html",
        ),
    ),
)
@may_fail_by_injection("loss", "double", "flip")
def ranks_disagree(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """After a few training steps every rank holds the same weights, and the model has learned.

    What it checks: with DistributedDataParallel, or FSDP if the job shards the model (FSDP, ZeRO-3) and the backend
    supports it: SHA-256 of all parameters on every rank; that every tensor moved and the loss fell; that a single
    process on the same shards gets the same weights within 1e-6.

    Why it matters: ranks that drift apart, or weights that never move, end with exit code 0.

    Example: the weights on node-c differ from those of all other ranks after ten steps.

    Fix: compare library versions and hardware of the named node with the others.

    Known limits: a small model of two layers; the comparison with one process is left out above ten steps and
    above 64 ranks.
    """
    run = run_of(job, facts)
    early = incomplete(job, fleet, run)
    if early is not None:
        yield early
        return
    faults = list(_training_faults(run))
    yield from faults
    if not faults:
        report = run.reports[0][1]
        note = f" ({report.trainer_note})" if report.trainer_note else ""
        yield passed(f"weights after training: equal on {count(len(run.reports))} with {report.trainer}{note}")


def _digests(run: SmokeRun) -> dict[int, str]:
    """The digest of each rank's weights: its own report, or that of a peer if it has none."""
    found: dict[int, str] = {}
    for _, report in run.reports:
        if len(report.digests) == 1:
            found[report.rank] = report.digests[0]
        for rank, digest in enumerate(report.digests if len(report.digests) > 1 else []):
            found.setdefault(rank, digest)
    return dict(sorted(found.items()))


def _training_faults(run: SmokeRun) -> Iterator[Verdict]:
    owners = {report.rank: node for node, report in run.reports}
    digests = _digests(run)
    common = Counter(digests.values()).most_common(1)[0][0] if digests else ""
    odd = [rank for rank, found in digests.items() if found != common]
    if odd:
        nodes = tuple(dict.fromkeys(owners.get(rank, "") for rank in odd))
        yield failed(
            "weights after training",
            f"{numbered(odd)} on {fold(nodes)} {'has' if len(odd) == 1 else 'have'} different weights from the other "
            f"{count(len(digests) - len(odd))} after the same steps; {run.reports[0][1].trainer} keeps them equal",
            at=Evidence(FACT, f"rank {odd[0]}: SHA-256 {digests[odd[0]]}", f"SHA-256 {common}", node=nodes[0]),
            nodes=nodes,
            remedy=f"Compare torch, NCCL and driver of {fold(nodes)} with the other nodes; test its memory and GPU.",
        )
    for node, report in run.reports:
        yield from _rank_faults(node, report)


def _rank_faults(node: str, report: RankReport) -> Iterator[Verdict]:
    where = f"rank {report.rank} on {node}"
    if report.unmoved:
        yield failed(
            f"training on {where}",
            f"{fold(report.unmoved)} did not change in {report.steps} steps on {where}; every tensor must change",
            at=Evidence(FACT, f"unmoved: {fold(report.unmoved)}", "every tensor changes", node=node),
            nodes=(node,),
            remedy="Run torch's own tests on that node: the backward pass or the optimizer has no effect there.",
        )
    losses = report.losses
    if len(losses) >= _LEARNING_STEPS and not losses[-1] < losses[0] * MAX_LOSS_RATIO:
        yield failed(
            f"training on {where}",
            f"the loss on {where} changed from {losses[0]:.4g} to {losses[-1]:.4g} in {report.steps} steps; "
            f"expected less than {MAX_LOSS_RATIO * losses[0]:.4g}",
            at=Evidence(FACT, f"{losses[-1]:.4g}", f"< {MAX_LOSS_RATIO * losses[0]:.4g}", node=node),
            nodes=(node,),
            remedy="Compare torch and its numeric libraries on that node with those of the others.",
        )
    difference = report.difference_to_one_process
    if difference is not None and not difference <= TOLERANCE:
        yield failed(
            "training against one process",
            f"the weights after {report.steps} steps on {report.world_size} ranks differ by {difference:.3g} from "
            f"those of one process on the same shards; expected at most {TOLERANCE:g}",
            at=Evidence(FACT, f"{difference:.3g}", f"<= {TOLERANCE:g}", node=node),
            nodes=(node,),
            remedy="See SMK002 first; then compare the ranks' numeric libraries.",
        )

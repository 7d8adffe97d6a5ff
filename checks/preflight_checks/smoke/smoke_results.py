"""Whether the smoke run came to the one right answer: every sum, every weight, on every rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, passed
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.demands import fold
from preflight_checks.smoke.drilled import drillable
from preflight_checks.smoke.smoke_plan import plan_smoke
from preflight_checks.smoke.smoke_run import FACT, SmokeRun, count, incomplete, numbered, run_of
from reference_trainer.collective import RankReport
from reference_trainer.collective import rank as run_rank
from reference_trainer.oracle import Mismatch
from reference_trainer.training import LOSS_FALLS_TO, TOLERANCE

#: Steps after which an ordinary run must have learnt something of the built-in task.
_LEARNING_STEPS = 5


@check(
    "SMK002",
    "wrong-collective-result",
    plan=plan_smoke,
    probes=(run_rank,),
    cost="a short training run: every rank imports torch and takes a few steps",
    when="smoke",
    severity=Severity.ERROR,
    evidence=("https://arxiv.org/abs/2407.21783", "NVIDIA/nccl-tests"),
)
@drillable("loss", "double", "flip")
def wrong_collective_result(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Sums whose every bit is known in advance come out right on every rank.

    What it checks: all-reduce of 1 element to 1 MiB, broadcast, all-gather, reduce-scatter, the gradients and weights
    of a linear model, and each of these and all-to-all over a message of 1 to 16 MiB (256 MiB between GPUs), all over
    integers times powers of two, so that any order of summing gives the same bits. Each rank contributes a digit of
    its own: a lost or doubled contribution tells whose it was.

    Why it matters: corrupted sums give no error. The training goes on and learns something else.

    Example: on rank 2 the contribution of rank 1 is missing from 4096 elements of an all-reduce.

    Fix: take the named node out and test its memory, GPU and network card.

    Known limits: a fault that shows itself only under heat or in large transfers may not show here.

    Evidence: silent data corruption during training in arXiv 2407.21783 (section 3.3.4); NVIDIA/nccl-tests
    checks results for the same reason.
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
    more = f" ({len(wrong)} wrong results in all)" if len(wrong) > 1 else ""
    yield failed(
        f"collective results on {fold(suspects)}",
        f"{first.operation}: on rank {first.rank} ({first_node}) element {first.index} is {first.got}, exactly "
        f"{first.expected} was expected; {first.explanation}; {first.wrong} of {first.elements} elements "
        f"are wrong{more}",
        at=_mismatch_evidence(first_node, first),
        also=[_mismatch_evidence(node, mismatch) for node, mismatch in wrong[1:8]],
        nodes=suspects,
        remedy=f"Take {fold(suspects)} out of the job and test memory, GPU and network card there.",
    )


def _suspects(wrong: Sequence[tuple[str, Mismatch]], nodes: dict[int, str]) -> tuple[str, ...]:
    """The node whose contribution is wrong, where all mismatches agree on one; else the nodes that see the fault."""
    blamed: Counter[int] = Counter()
    for _, mismatch in wrong:
        blamed.update({int(rank) for rank in mismatch.contributions})
    if blamed and len(blamed) == 1:
        rank = next(iter(blamed))
        if rank in nodes:
            return (nodes[rank],)
    return tuple(dict.fromkeys(node for node, _ in wrong))


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
    evidence=("https://pytorch.org/docs/stable/notes/ddp.html",),
)
@drillable("loss", "double", "flip")
def ranks_disagree(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """After a few ordinary training steps every rank holds the same weights, and they have learnt.

    What it checks: with DistributedDataParallel, or FSDP where the job keeps a part of the model on each rank (FSDP,
    ZeRO-3) and the back end can: SHA-256 of all parameters on every rank; that every tensor moved and the loss fell;
    that one process trained on the same shards comes to the same weights within 1e-6.

    Why it matters: ranks that drift apart, or weights that never move, end with exit code 0.

    Example: the weights on node-c differ from those of all other ranks after ten steps.

    Fix: compare library versions and hardware of the named node with the others.

    Known limits: a small model of two layers; the comparison with one process is left out above ten steps and
    above 64 ranks.

    Evidence: the DDP design note (every rank keeps equal weights by construction).
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
    """The digest of each rank's weights: by its own word, and where there is none, as another one got it."""
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
            f"{numbered(odd)} on {fold(nodes)} hold other weights than the other {len(digests) - len(odd)} ranks "
            f"after the same steps; {run.reports[0][1].trainer} keeps them equal",
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
            f"{fold(report.unmoved)} did not change in {report.steps} steps on {where}; every tensor must",
            at=Evidence(FACT, f"unmoved: {fold(report.unmoved)}", "every tensor moves", node=node),
            nodes=(node,),
            remedy="Run torch's own tests on that node: the backward pass or the optimizer does nothing there.",
        )
    losses = report.losses
    if len(losses) >= _LEARNING_STEPS and not losses[-1] < losses[0] * LOSS_FALLS_TO:
        yield failed(
            f"training on {where}",
            f"the loss on {where} went from {losses[0]:.4g} to {losses[-1]:.4g} in {report.steps} steps; "
            f"below {LOSS_FALLS_TO * losses[0]:.4g} was expected",
            at=Evidence(FACT, f"{losses[-1]:.4g}", f"< {LOSS_FALLS_TO * losses[0]:.4g}", node=node),
            nodes=(node,),
            remedy="Compare torch and its numeric libraries on that node with those of the others.",
        )
    apart = report.difference_to_one_process
    if apart is not None and not apart <= TOLERANCE:
        yield failed(
            "training against one process",
            f"the weights after {report.steps} steps on {report.world_size} ranks differ by {apart:.3g} from those of "
            f"one process on the same shards; at most {TOLERANCE:g} was expected",
            at=Evidence(FACT, f"{apart:.3g}", f"<= {TOLERANCE:g}", node=node),
            nodes=(node,),
            remedy="Look at SMK002 first; then compare the ranks' numeric libraries.",
        )

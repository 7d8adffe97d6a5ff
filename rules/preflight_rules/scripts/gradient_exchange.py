"""Whether the ranks of a training script exchange their gradients."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import certainly_several, joined, quoted, ranks_started
from preflight_rules.scripts.script_facts import definitely_one_rank, launches_of, started_files, stated

#: With more files than this, one that was not read may exchange the gradients.
_FEW_FILES = 12


@rule(
    "TRN022",
    "gradients-never-exchanged",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script joins a group of ranks and steps an optimizer",
    evidence=(
        ("forward through .module: gradients never reduced, each rank trains alone", "jingyaogong/minimind#853"),
        (
            "PyTorch tutorial on DistributedDataParallel",
            "https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html",
        ),
        (
            "Paddle guide on collective training",
            "https://www.paddlepaddle.org.cn/documentation/docs/en/guides/06_distributed_training/cluster_quick_start_collective_en.html",
        ),
    ),
)
def gradients_never_exchanged(job: Job) -> Iterator[Verdict]:
    """The ranks of a job train without exchanging gradients, each its own model.

    What it checks: A script that joins its ranks to a group and steps an optimizer in a loop wraps its model (DDP,
    FSDP, `fleet.distributed_model`), wraps its optimizer (Horovod) or reduces the gradients itself. The wrapped model
    is the one that is called: not `model.module(x)`, and no optimizer step wholly under `no_sync()`.

    Why it matters: Starting the process group alone exchanges nothing. Each rank trains on its share of the data, and
    all but the model of rank 0 is thrown away: the job costs as many GPUs as it has ranks and learns from the data of
    one.

    Example: `dist.init_process_group("nccl")` and `model = Net().cuda()` without DistributedDataParallel.

    Fix: torch: `DistributedDataParallel(model, device_ids=[local_rank])`. Paddle: `fleet.distributed_model(model)` or
    `paddle.DataParallel(model)`. Horovod: `hvd.DistributedOptimizer(optimizer)`.

    Known limits: A word that may exchange gradients anywhere in the job's files counts as an exchange. With a library
    that is not known the result is unknown. `fleet.distributed_optimizer` alone exchanges nothing in a dynamic graph.
    """
    for subject, taken in stated(job, "gradients_taken"):
        joins = [claim for claim in job.about("ranks_joined", taken.scope) if claim.span.path in started_files(job)]
        servers = [claim for claim in job.about("ps_mode", taken.scope) if True in claim.alternatives]
        if not joins or servers:
            continue
        yield _verdict(job, subject, taken, joins[0])
    for subject, around in stated(job, "gradient_exchange_bypassed"):
        if definitely_one_rank(job, around):
            yield passed(subject)
            continue
        yield failed(
            subject,
            f"{quoted(around)} goes past the wrapper in every step, so that no gradient is exchanged.",
            at=around,
            remedy="Call the wrapped model itself, and leave no_sync() for the last backward before the step.",
        )


def _verdict(job: Job, subject: str, taken: Claim, joins: Claim) -> Verdict:
    if definitely_one_rank(job, taken) or job.about("gradients_exchanged", taken.scope):
        return passed(subject)
    libraries = job.about("exchange_libraries", taken.scope)
    if libraries:
        named = joined(name for value in libraries[0].alternatives if isinstance(value, tuple) for name in value)
        return unknown(subject, f"{named} may exchange the gradients of {quoted(taken)}", at=taken)
    if len(job.files) > _FEW_FILES:
        return unknown(subject, f"another file may exchange the gradients of {quoted(taken)}", at=taken)
    several = any(certainly_several(ranks_started(job, launch.scope)[0]) for launch in launches_of(job, taken))
    if joins.condition and not several:
        return unknown(subject, f"{quoted(joins)} is called under `{joins.condition}`", at=joins)
    return failed(
        subject,
        f"{quoted(joins)} joins the ranks, but nothing exchanges the gradients of {quoted(taken)}: each rank trains its"
        " own model.",
        at=joins,
        also=((taken, "gradients of this rank only"),),
        remedy=_remedy(joins),
    )


def _remedy(joins: Claim) -> str:
    """The wrapper of the framework that joins the ranks."""
    name = joined(joins.alternatives)
    if "horovod" in name or name.startswith("hvd"):
        return "Wrap the optimizer: optimizer = hvd.DistributedOptimizer(optimizer)."
    if "fleet" in name:
        return "Wrap the model: model = fleet.distributed_model(model)."
    if name.endswith("init_parallel_env"):
        return "Wrap the model: model = paddle.DataParallel(model)."
    return "Wrap the model: model = DistributedDataParallel(model, device_ids=[local_rank])."

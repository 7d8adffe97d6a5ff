"""How a script wraps its model for several ranks, and on which GPU."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import (
    certainly_several,
    job_value,
    numbers,
    quoted,
    spoken,
    subjects,
    why_unresolved,
)
from preflight_rules.scripts.script_reading import launches_of, started_files, stated, surely_one_rank


@rule(
    "TRN007",
    "ddp-over-several-devices",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="torch >= 1.9",
    evidence=("https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",),
)
def ddp_over_several_devices(job: Job) -> Iterator[Verdict]:
    """DistributedDataParallel is given more than one device.

    What it checks:
        `device_ids` names one device, the one of the rank, where it is written out.

    Why it matters:
        One process drives one GPU. torch raises ValueError: "device_ids can only be None or contain a single element".

    Example:
        `DistributedDataParallel(model, device_ids=[0, 1])`.

    Fix:
        `device_ids=[local_rank]`, and one process for each GPU.

    Known limits:
        A list that only run time knows is not judged.

    Evidence:
        torch.nn.parallel.DistributedDataParallel documentation, device_ids.
    """
    met = False
    for subject, given in stated(job, "ddp_device_count"):
        met = True
        counts = numbers(given.value)
        if isinstance(given.value, Unresolved) or why_unresolved((given,)) is not None:
            yield unknown(subject, f"how many devices {quoted(given)} names is known at run time only", at=given)
        elif counts and min(counts) > 1:
            yield failed(
                subject,
                f"{quoted(given)} names {spoken(counts)} devices; DistributedDataParallel takes one a process and stops"
                " with ValueError.",
                at=given,
                remedy="Give the rank's own device, device_ids=[local_rank], and start one process for each GPU.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no script gives device_ids to DistributedDataParallel")


@rule(
    "TRN008",
    "sync-batchnorm-after-wrapping",
    severity=Severity.WARNING,
    evidence=("https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html",),
)
def sync_batchnorm_after_wrapping(job: Job) -> Iterator[Verdict]:
    """BatchNorm is converted to SyncBatchNorm after the model was wrapped in DDP.

    What it checks:
        `convert_sync_batchnorm` is called before DistributedDataParallel gets the model.

    Why it matters:
        The wrapper keeps the layers it was given: their buffers and hooks were set up for the old ones, so statistics
        are not synchronised as meant, or the ranks' models drift apart.

    Example:
        `model = DDP(model)`, then `model = nn.SyncBatchNorm.convert_sync_batchnorm(model)`.

    Fix:
        Swap the two lines.

    Known limits:
        Only where both stand in one function and speak of the same variable.

    Evidence:
        torch.nn.SyncBatchNorm documentation: convert before wrapping the network with DDP.
    """
    met = False
    for subject, late in stated(job, "sync_batchnorm_late"):
        met = True
        wrap = late.because[0] if late.because else late
        if late.condition != wrap.condition:
            yield unknown(subject, f"{quoted(late)} depends on the branch `{late.condition}`", at=late)
            continue
        yield failed(
            subject,
            f"{quoted(late)} converts a model that DistributedDataParallel has wrapped in line {wrap.span.line}; it has"
            " to come before.",
            at=late,
            also=((wrap, "wrapped here"),),
            remedy="Convert first, wrap then.",
        )
    if not met:
        if job.about("uses_ddp"):
            yield passed(next((subject for subject, _, _ in subjects(job)), job.name))
        else:
            yield not_applicable(job.name, "no model is wrapped in DistributedDataParallel")


@rule(
    "TRN009",
    "gpu-never-chosen",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("pytorch/examples#969", "pytorch/pytorch#78047", "https://horovod.readthedocs.io/en/stable/pytorch.html"),
)
def gpu_never_chosen(job: Job) -> Iterator[Verdict]:
    """A script for several ranks moves its model to "the" GPU and never says which.

    What it checks:
        A script that several ranks of one node run names a GPU of its own for each: `set_device`, LOCAL_RANK,
        `device_ids`, or a mask.

    Why it matters:
        `model.cuda()` means GPU 0 in every process. NCCL stops with "Duplicate GPU detected", or the ranks share one
        GPU's memory and the others are idle.

    Example:
        `dist.init_process_group("nccl")`, `model.cuda()`, `DDP(model)`, started with `--nproc_per_node=4`.

    Fix:
        `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before the first use of the GPU.

    Known limits:
        A scheduler that shows each task one GPU makes it right; then, and for a script that nothing starts, it cannot
        be told. A module that is imported may choose.

    Evidence:
        pytorch/examples#969, pytorch/pytorch#78047; Horovod documentation, pin each GPU to one process.
    """
    met = False
    for subject, moved in stated(job, "device_not_chosen"):
        met = True
        found = list(launches_of(job, moved))
        if surely_one_rank(job, moved):
            yield passed(subject)
            continue
        verdict: Verdict = unknown(subject, f"how many ranks share a node with {quoted(moved)} is not known", at=moved)
        for launch in found:
            processes = job.setting("processes_per_node", launch.scope)
            if launch.launcher == "srun" or not certainly_several(job_value(processes)) or not processes:
                continue
            if job.about("env.CUDA_VISIBLE_DEVICES", launch.scope) or len(job.files) > _FEW_FILES:
                continue
            verdict = failed(
                launch.id,
                f"{quoted(moved)} means GPU 0 in each of the {spoken(numbers(job_value(processes)))} ranks of a node,"
                " and nothing in the script chooses another.",
                at=moved,
                also=((processes[0], "ranks of each node"),),
                remedy='Choose first: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])).',
            )
            break
        yield verdict
    if not met:
        yield not_applicable(job.name, "no script leaves the choice of its GPU open")


#: A job of more files than a script or two may choose the GPU in any of them.
_FEW_FILES = 6


@rule(
    "HVD020",
    "horovod-first-weights-not-broadcast",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://horovod.readthedocs.io/en/stable/pytorch.html",),
)
def horovod_first_weights_not_broadcast(job: Job) -> Iterator[Verdict]:
    """A Horovod script averages gradients, but its ranks begin with different weights.

    What it checks:
        A script that wraps its optimizer or tape broadcasts the first weights from one rank, or keeps them in an
        elastic state.

    Why it matters:
        Each rank initialises its own random weights. Averaged gradients are then applied to different models, which
        never become one; the loss looks only a little worse.

    Example:
        `hvd.DistributedOptimizer(optimizer)` without `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`.

    Fix:
        Broadcast parameters and optimizer state after building both.

    Known limits:
        A broadcast in another file is not seen; with a fixed seed or loaded weights the ranks are equal anyway.

    Evidence:
        Horovod documentation, broadcast the initial variable states from rank 0.
    """
    met = False
    told: set[str] = set()
    for subject, wraps in stated(job, "horovod_optimizer"):
        met = True
        if job.about("horovod_broadcasts") or surely_one_rank(job, wraps) or wraps.span.path in told:
            yield passed(subject)
        elif wraps.span.path not in started_files(job):
            yield unknown(subject, "the broadcast may stand in another file", at=wraps)
        else:
            told.add(wraps.span.path)
            yield failed(
                subject,
                f"{quoted(wraps)} averages gradients, but nothing broadcasts the first weights: every rank begins with"
                " its own.",
                at=wraps,
                remedy="After building model and optimizer call hvd.broadcast_parameters(model.state_dict(), 0) and"
                " hvd.broadcast_optimizer_state(optimizer, root_rank=0) (Keras: BroadcastGlobalVariablesCallback).",
            )
    if not met:
        yield not_applicable(job.name, "no script wraps its optimizer with Horovod")

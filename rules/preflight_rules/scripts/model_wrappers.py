"""Model wrappers: DistributedDataParallel, SyncBatchNorm, Horovod, and the GPU of the model."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import joined, quoted, why_unresolved
from preflight_rules.launches import SCHEDULERS, certainly_several
from preflight_rules.scripts.script_facts import definitely_one_rank, launches_of, started_files, stated


@rule(
    "TRN007",
    "ddp-over-several-devices",
    severity=Severity.ERROR,
    applies_to="torch >= 1.9",
    otherwise="no script passes device_ids to DistributedDataParallel",
)
def ddp_over_several_devices(job: Job) -> Iterator[Verdict]:
    """DistributedDataParallel is given more than one device.

    What it checks: If `device_ids` is written out, it names one device, that of the rank.

    Why it matters: One process drives one GPU. torch raises ValueError: "device_ids can only be None or contain a
    single element".

    Example: `DistributedDataParallel(model, device_ids=[0, 1])`.

    Fix: `device_ids=[local_rank]`, and one process for each GPU.

    Known limits: A list known only at run time is not judged.
    """
    for subject, given in stated(job, "ddp_device_count"):
        counts = numbers(given.value)
        if isinstance(given.value, Unresolved) or why_unresolved((given,)) is not None:
            yield unknown(subject, f"the number of devices in {quoted(given)} is known only at run time", at=given)
        elif counts and min(counts) > 1:
            yield failed(
                subject,
                f"{quoted(given)} names {joined(counts)} devices, but DistributedDataParallel accepts one per process "
                "and stops with ValueError.",
                at=given,
                remedy="Give the rank's own device, device_ids=[local_rank], and start one process for each GPU.",
            )
        else:
            yield passed(subject)


@rule(
    "TRN008",
    "sync-batchnorm-after-wrapping",
    severity=Severity.WARNING,
    otherwise="no model is wrapped in DistributedDataParallel",
    passes_with=("uses_ddp",),
)
def sync_batchnorm_after_wrapping(job: Job) -> Iterator[Verdict]:
    """BatchNorm is converted to SyncBatchNorm after the model was wrapped in DDP.

    What it checks: `convert_sync_batchnorm` is called before DistributedDataParallel gets the model.

    Why it matters: The wrapper keeps the layers it was given: their buffers and hooks were set up for the old ones, so
    statistics are not synchronised as intended, or the ranks' models drift apart.

    Example: `model = DDP(model)`, then `model = nn.SyncBatchNorm.convert_sync_batchnorm(model)`.

    Fix: Swap the two lines.

    Known limits: Only reported where both are in one function and use the same variable.
    """
    for subject, late in stated(job, "sync_batchnorm_late"):
        wrap = late.because[0] if late.because else late
        if late.condition != wrap.condition:
            yield unknown(subject, f"{quoted(late)} depends on the branch `{late.condition}`", at=late)
            continue
        yield failed(
            subject,
            f"{quoted(late)} converts a model that DistributedDataParallel wraps on line {wrap.span.line}; it"
            " must come first.",
            at=late,
            also=((wrap, "wrapped here"),),
            remedy="Convert first, then wrap.",
        )


@rule(
    "TRN009",
    "gpu-never-chosen",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script uses the default GPU",
)
def gpu_never_chosen(job: Job) -> Iterator[Verdict]:
    """A script for several ranks moves its model to the default GPU without choosing one per rank.

    What it checks: A script that several ranks of one node run chooses a different GPU for each: `set_device`,
    LOCAL_RANK, `device_ids`, or a mask. A device that is written out, or the default of an option, is the same for all.

    Why it matters: `model.cuda()`, `.to("cuda:0")` and Paddle's `CUDAPlace(0)` mean GPU 0 in every process. NCCL stops
    with "Duplicate GPU detected", or the ranks share one GPU's memory and the others are idle.

    Example: `dist.init_process_group("nccl")`, `model.cuda()`, `DDP(model)`, started with `--nproc_per_node=4`.

    Fix: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before the first use of the GPU. Paddle:
    `paddle.set_device("gpu")`, which takes the launcher's GPU. Horovod: the index is `hvd.local_rank()`.

    Known limits: With a scheduler that shows each task one GPU the script is correct; then, and for a script that no
    launch starts, the result is unknown. A module that the script imports may choose the GPU, in any function.
    """
    for subject, moved in stated(job, "device_not_chosen"):
        found = list(launches_of(job, moved))
        if definitely_one_rank(job, moved):
            yield passed(subject)
            continue
        verdict: Verdict = unknown(
            subject, f"the number of ranks per node that run {quoted(moved)} is unknown", at=moved
        )
        for launch in found:
            processes = _ranks_of_node(job, launch)
            if launch.launcher == "srun" or not certainly_several(job_value(processes)) or not processes:
                continue
            if _masked(job, launch) or len(job.files) > _MAX_FILES:
                continue
            if _is_passed(job, launch, moved):
                verdict = passed(subject)
                continue
            verdict = failed(
                launch.id,
                f"{quoted(moved)} means GPU 0 in each of the {joined(numbers(job_value(processes)))} ranks of a node,"
                " and nothing in the script chooses another.",
                at=moved,
                also=((processes[0], "ranks of each node"),),
                remedy=_choice(job, launch, moved),
            )
            break
        yield verdict


def _ranks_of_node(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """The claims that give the ranks of a node: without a scheduler or hosts, mpirun starts all of them on its own."""
    found = job.setting("processes_per_node", launch.scope)
    elsewhere = job.setting("hosts", launch.scope) or any(claim.source in SCHEDULERS for claim in job.claims)
    if found or elsewhere or "mpirun" not in launch.wrappers:
        return found
    return job.setting("tasks", launch.scope)


def _is_passed(job: Job, launch: Launch, moved: Claim) -> bool:
    """Whether the launcher gives each process the option in whose place its default stands."""
    added = [claim for claim in job.about("rank_argument", launch.scope) if claim.scope.launch == launch.id]
    named = any("local_rank" in text for text in (moved.spelling, *texts(moved.value)))
    return bool(added and named and job.about("local_rank_argument", launch.scope))


#: With more files than this, another file may choose the GPU.
_MAX_FILES = 6


def _masked(job: Job, launch: Launch) -> bool:
    """Whether each process may see one GPU only. A list of several shows all of them to every process."""
    masks = job.about("env.CUDA_VISIBLE_DEVICES", launch.scope)
    return any(not texts(mask.value) or not all("," in text for text in texts(mask.value)) for mask in masks)


def _choice(job: Job, launch: Launch, moved: Claim) -> str:
    """How a rank chooses its GPU in the framework of the script, with what its launcher sets."""
    if any(claim.source == "paddle" for claim in job.about("parallel_environment", launch.scope)):
        return (
            'Take the launcher\'s GPU: paddle.set_device("gpu"), or'
            ' paddle.CUDAPlace(int(os.environ["FLAGS_selected_gpus"])) for an executor.'
        )
    if "Place" in quoted(moved):
        return 'Take the launcher\'s GPU: fluid.CUDAPlace(int(os.environ["FLAGS_selected_gpus"])).'
    if job.about("horovod_started", launch.scope):
        return "Choose the GPU after hvd.init(): torch.cuda.set_device(hvd.local_rank())."
    if launch.launcher == "torch.distributed.launch" and job.about("local_rank_argument", launch.scope):
        return "Choose the GPU first: torch.cuda.set_device(args.local_rank)."
    variable = "OMPI_COMM_WORLD_LOCAL_RANK" if launch.launcher in ("mpirun", "mpiexec") else "LOCAL_RANK"
    return f'Choose the GPU first: torch.cuda.set_device(int(os.environ["{variable}"])).'


@rule(
    "HVD020",
    "horovod-first-weights-not-broadcast",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script wraps its optimizer with Horovod",
)
def horovod_first_weights_not_broadcast(job: Job) -> Iterator[Verdict]:
    """A Horovod script averages gradients, but its ranks start with different weights.

    What it checks: A script that wraps its optimizer or tape broadcasts the initial weights from one rank, or keeps
    them in an elastic state.

    Why it matters: Each rank initialises its own random weights. Averaged gradients are then applied to different
    models, which stay different; the loss looks only slightly worse.

    Example: `hvd.DistributedOptimizer(optimizer)` without `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`.

    Fix: Broadcast parameters and optimizer state after building both.

    Known limits: A broadcast in another file is not seen; with a fixed seed or loaded weights the ranks are equal
    anyway.
    """
    reported: set[str] = set()
    for subject, wraps in stated(job, "horovod_optimizer"):
        if job.about("horovod_broadcasts") or definitely_one_rank(job, wraps) or wraps.span.path in reported:
            yield passed(subject)
        elif wraps.span.path not in started_files(job):
            yield unknown(subject, "another file may broadcast the weights", at=wraps)
        else:
            reported.add(wraps.span.path)
            yield failed(
                subject,
                f"{quoted(wraps)} averages gradients, but nothing broadcasts the initial weights: every rank starts"
                f" with its own.",
                at=wraps,
                remedy="After building the model and the optimizer, call hvd.broadcast_parameters(model.state_dict(),"
                " 0) and hvd.broadcast_optimizer_state(optimizer, root_rank=0) (Keras:"
                " BroadcastGlobalVariablesCallback).",
            )

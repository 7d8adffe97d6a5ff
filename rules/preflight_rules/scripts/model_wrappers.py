"""Model wrappers (DistributedDataParallel, SyncBatchNorm, Horovod), the GPU of the model, and optimizers that are made
before its parameters are divided.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted, why_unresolved
from preflight_rules.launches import SCHEDULERS, certainly_several
from preflight_rules.scripts.script_facts import definitely_one_rank, launches_of, started_files, stated
from preflight_rules.sizes.fsdp import is_value, only_claim


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


@rule(
    "FSD013",
    "optimizer-made-before-fsdp",
    severity=Severity.ERROR,
    otherwise="no optimizer is made before FSDP divides its model",
    passes_with=("uses_fsdp",),
)
def optimizer_made_before_fsdp(job: Job) -> Iterator[Verdict]:
    """An optimizer takes the parameters of a model before FSDP divides them.

    What it checks: In one function, an optimizer made of `model.parameters()` comes after
    `FullyShardedDataParallel(model)` or `fully_shard(model)`. Under Accelerate's FSDP with `fsdp_use_orig_params:
    false` it comes after the model's `prepare`. With Lightning's `fsdp_native`, `configure_optimizers` takes
    `self.trainer.model.parameters()`.

    Why it matters: FSDP puts flat or divided parameters in the place of the ones that the optimizer holds, so it
    changes nothing that the model uses: the loss stays where it is. Lightning's `fsdp_native` notices it and stops.

    Example: `optimizer = AdamW(model.parameters())`, then `model = FSDP(model)`.

    Fix: Divide the model first, then make the optimizer from the divided model's parameters.

    Known limits: `use_orig_params=True` keeps the parameters, so nothing is reported there. An optimizer that another
    function makes is not seen.
    """
    for subject, optimizer in stated(job, "early_optimizer"):
        kind = next(iter(texts(optimizer.value)), "")
        if kind == "fsdp":
            yield _judge_wrapped(subject, optimizer)
        elif kind == "lightning":
            strategy = next((c for c in job.about("lightning_strategy") if c.span.path == optimizer.span.path), None)
            if strategy is not None and "fsdp_native" in strategy.spelling:
                yield undecided(subject, (strategy,)) or failed(
                    subject,
                    f"{quoted(optimizer)} takes the parameters of the module itself, but {placed(strategy)} divides"
                    " them before: Lightning stops because the optimizer refers to no parameter of FSDP.",
                    at=optimizer,
                    also=((strategy, "the strategy"),),
                    remedy="Give `self.trainer.model.parameters()` to the optimizer.",
                )
        else:
            yield from _judge_prepared(job, subject, optimizer)


def _judge_wrapped(subject: str, optimizer: Claim) -> Verdict:
    divided = optimizer.because[0]
    if optimizer.condition != divided.condition:
        return unknown(subject, f"{quoted(divided)} depends on the branch `{divided.condition}`", at=divided)
    return failed(
        subject,
        f"{quoted(optimizer)} takes the parameters before {placed(divided)} divides them: the optimizer changes"
        " parameters that the model no longer uses.",
        at=optimizer,
        also=((divided, "divided here"),),
        remedy="Make the optimizer after the model is divided, from the divided model's parameters.",
        severity=Severity.WARNING,
    )


def _judge_prepared(job: Job, subject: str, optimizer: Claim) -> Iterator[Verdict]:
    for launch in launches_of(job, optimizer):
        kept = only_claim(job, "fsdp_use_orig_params", launch.scope)
        kind = only_claim(job, "distributed_type", launch.scope)
        version = only_claim(job, "fsdp_version", launch.scope)
        if kept is None or kind is None or not is_value(kind, "FSDP") or is_value(version, 2):
            continue
        verdict = undecided(subject, (kept,))
        if verdict is not None:
            yield verdict
        elif not is_value(kept, False):
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(optimizer)} takes the parameters before `prepare` wraps the model, and {placed(kept)} makes"
                " FSDP replace them.",
                at=optimizer,
                also=((kept, "the parameters are replaced"),),
                remedy="Prepare the model first and make the optimizer from it, or set fsdp_use_orig_params to true.",
                severity=Severity.WARNING,
            )
        return

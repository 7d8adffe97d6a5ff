"""The number of processes compared with the number of GPUs of a node."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Strength, Value, lift
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule
from preflight_rules.helpers import joined, placed, quoted, undecided

_GPU_BACKENDS = frozenset({"nccl", "cpu:gloo,cuda:nccl"})


def processes(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """The claims that give the number of ranks on each node."""
    if launch.launcher == "srun":
        return job.setting("tasks_per_node", launch.scope)
    return job.setting("processes_per_node", launch.scope)


def gpus(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]] | None:
    """The claims that give the GPUs of each node: those that are visible, otherwise those that are granted."""
    visible = job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope)
    if visible:
        return lift(_count, job_value(visible)), visible
    granted = job.setting("gpus_per_node", launch.scope)
    return (job_value(granted), granted) if granted else None


def _count(item: object) -> int:
    return len([part for part in str(item).split(",") if part.strip() and part.strip() != "-1"])


def counts_one_machine(total: int, machines: int, devices: int) -> bool:
    """Whether the total number of processes equals the GPUs of one machine, and so is probably that machine's count."""
    return machines > 1 and total == devices


def _on_cpu(job: Job, launch: Launch) -> bool:
    """Whether the ranks use gloo or MPI and so need no GPU each."""
    claims = job.setting("backend", launch.scope)
    found = {text.lower() for claim in claims for text in texts(claim.value)}
    return bool(found) and not found & _GPU_BACKENDS


#: Programs that give each rank several GPUs by themselves where there are more GPUs than ranks (ms-swift,
#: swift/utils/torch_utils.py, get_default_device_map).
_SPREADING = ("swift/cli/",)


@rule(
    "GPU001",
    "more-processes-than-gpus",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no launch sets both its number of processes and of GPUs per node",
    evidence=("wenwenyu/PICK-pytorch#14", "NVIDIA/Megatron-LM#661", "lipiji/SongNet#20"),
)
def more_processes_than_gpus(job: Job) -> Iterator[Verdict]:
    """A launch starts more ranks on each node than the node has GPUs.

    What it checks: Processes per node are at most the GPUs that Slurm grants on each node, or that CUDA_VISIBLE_DEVICES
    shows.

    Why it matters: The ranks without a GPU stop with "invalid device ordinal", or two ranks share one and NCCL stops
    with "Duplicate GPU detected".

    Example: `#SBATCH --gres=gpu:4` with `torchrun --nproc_per_node=8`.

    Fix: Start as many processes as there are GPUs.

    Known limits: Ranks that srun starts itself may share a GPU on purpose, so that is a warning unless the script
    requests the nccl backend. With gloo or MPI nothing is reported.
    """
    for launch in job.launches:
        counted, gpu_counts = processes(job, launch), gpus(job, launch)
        if not counted or gpu_counts is None or _on_cpu(job, launch):
            continue
        value, because = gpu_counts
        undecided_verdict = undecided(launch.id, (*counted, *because), launch)
        if undecided_verdict is not None:
            yield undecided_verdict
            continue
        ranks, devices = numbers(job_value(counted)), numbers(value)
        if ranks and devices and min(devices) > 0 and min(ranks) > max(devices):
            missing = min(ranks) - max(devices)
            yield failed(
                launch.id,
                f"{quoted(counted[0])} starts {joined(ranks)} ranks on each node, but {placed(because[0])}"
                f" provides {joined(devices)} GPUs there: {missing} ranks have none.",
                at=counted[0],
                also=((because[0], f"{joined(devices)} GPUs"),),
                remedy=f"Start {joined(devices)} processes on each node, or request {joined(ranks)} GPUs.",
                severity=_severity(job, launch),
            )
        else:
            yield passed(launch.id)


def _severity(job: Job, launch: Launch) -> Severity | None:
    by_default = any(c.strength is Strength.DEFAULT for c in job.requiring("nodes", launch.scope))
    if launch.launcher == "accelerate" and by_default:
        # A configuration in the user's cache may give more machines.
        return Severity.WARNING
    if launch.launcher in ("torchrun", "torch.distributed.launch", "accelerate", "paddle"):
        return None
    backends = {text.lower() for claim in job.setting("backend", launch.scope) for text in texts(claim.value)}
    return None if backends & _GPU_BACKENDS else Severity.WARNING


def _reported_by_acc001(job: Job, launch: Launch, devices: tuple[int, ...]) -> bool:
    """Whether Accelerate's total is that of one machine, which ACC001 reports."""
    total = numbers(job_value(job.setting("world_size", launch.scope)))
    machines = numbers(job_value(job.requiring("nodes", launch.scope)))
    if launch.launcher != "accelerate" or len(total) != 1 or len(machines) != 1:
        return False
    return counts_one_machine(total[0], machines[0], devices[0])


@rule(
    "GPU002",
    "gpus-left-idle",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        ("one node's count given for all", "huggingface/accelerate#2521"),
        "Lightning-AI/pytorch-lightning#18950",
    ),
)
def gpus_left_idle(job: Job) -> Iterator[Verdict]:
    """Fewer ranks are started on each node than the node has GPUs.

    What it checks: The launcher starts as many processes per node as GPUs are granted or visible there.

    Why it matters: The idle GPUs are billed and blocked for others for the whole run.

    Example: `#SBATCH --gres=gpu:8` with `torchrun --nproc_per_node=4`.

    Fix: Start one process per GPU, or request fewer GPUs.

    Known limits: A process that drives several GPUs is correct. Only a number someone wrote counts, and only in a job
    with a single launch: others may share the node.
    """
    if len(job.launches) != 1:
        yield not_applicable(job.name, "several launches may share the GPUs of a node")
        return
    launch = job.launches[0]
    counted, gpu_counts = processes(job, launch), gpus(job, launch)
    is_explicit = bool(counted) and all(c.strength > Strength.DEFAULT for c in counted)
    if not is_explicit or gpu_counts is None or launch.launcher == "srun":
        yield not_applicable(launch.id, "the number of processes or GPUs of a node is not given")
        return
    if any(str(word or "").lstrip("-").startswith("device_map") for word in launch.arguments):
        yield not_applicable(launch.id, "a device map spreads each rank over several GPUs")
        return
    if launch.program.startswith(_SPREADING):
        yield not_applicable(launch.id, "ms-swift spreads each rank over the GPUs of its share")
        return
    value, because = gpu_counts
    undecided_verdict = undecided(launch.id, (*counted, *because), launch)
    if undecided_verdict is not None:
        yield undecided_verdict
        return
    ranks, devices = numbers(job_value(counted)), numbers(value)
    if ranks and devices and 0 < max(ranks) < min(devices) and not _reported_by_acc001(job, launch, devices):
        yield failed(
            launch.id,
            f"{quoted(counted[0])} starts {joined(ranks)} ranks on each node, but {placed(because[0])}"
            f" provides {joined(devices)} GPUs there: {min(devices) - max(ranks)} stay idle.",
            at=counted[0],
            also=((because[0], f"{joined(devices)} GPUs"),),
            remedy=f"Start {joined(devices)} processes on each node, or request {joined(ranks)} GPUs.",
        )
    else:
        yield passed(launch.id)


@rule(
    "GPU003",
    "device-shown-twice",
    severity=Severity.WARNING,
    confidence=Confidence.HIGH,
    otherwise="no launch sets CUDA_VISIBLE_DEVICES",
    evidence=(
        (
            "CUDA programming guide, environment variables",
            "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars",
        ),
        ("duplicate GPU", "NVIDIA/Megatron-LM#661"),
    ),
)
def device_shown_twice(job: Job) -> Iterator[Verdict]:
    """CUDA_VISIBLE_DEVICES names a device twice.

    What it checks: The entries of CUDA_VISIBLE_DEVICES for a launch are all different.

    Why it matters: CUDA hides the devices after an invalid entry, and two ranks on one device make NCCL stop with
    "Duplicate GPU detected".

    Example: `CUDA_VISIBLE_DEVICES=0,1,1 torchrun --nproc_per_node=3 train.py`.

    Fix: Name each device once.

    Known limits: Whether a device exists is checked by `preflight check`.
    """
    for launch in job.launches:
        for claim in job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope):
            undecided_verdict = undecided(launch.id, (claim,), launch)
            lists = [[part.strip() for part in text.split(",")] for text in texts(claim.value)]
            if undecided_verdict is not None:
                yield undecided_verdict
            elif lists and all(_repeated(devices) for devices in lists):
                device = _repeated(lists[0])
                yield failed(
                    launch.id,
                    f"{quoted(claim)} names device {device} {lists[0].count(device)} times.",
                    at=claim,
                    remedy=f"Name device {device} once, and start as many processes as there are devices.",
                )
            else:
                yield passed(launch.id)


def _repeated(devices: list[str]) -> str:
    """The first entry that is repeated; empty if there is none."""
    return next((device for device in devices if device and devices.count(device) > 1), "")

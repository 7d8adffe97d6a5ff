"""The GPUs of a job's nodes: their number compared with the processes, their models, and MIG instances."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Plain, Strength, Unresolved, Value, lift
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, joined, placed, quoted
from preflight.plugins.questions import LaunchQuestion, launches_with, subjects
from preflight_rules.kubernetes.workloads import workloads
from preflight_rules.launches import certainly_several, nodes_spanned
from preflight_rules.sizes.memory import named_gpu

_GPU_BACKENDS = frozenset({"nccl", "cpu:gloo,cuda:nccl"})


def processes(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """The claims that give the number of ranks on each node."""
    if launch.launcher == "srun":
        return job.setting("tasks_per_node", launch.scope)
    return job.setting("processes_per_node", launch.scope)


def _several(values: Sequence[Plain], singular: str, many: str = "") -> str:
    """`1 GPU`, `2 GPUs`, `1 or 2 GPUs`."""
    return counted(joined(values) if tuple(values) != (1,) else 1, singular, many)


def gpus(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]] | None:
    """The claims that give the GPUs of each node: those that are visible, unless fewer are granted."""
    visible, granted = (job.setting(name, launch.scope) for name in ("env.CUDA_VISIBLE_DEVICES", "gpus_per_node"))
    if not visible:
        return (job_value(granted), granted) if granted else None
    shown, given = lift(_count, job_value(visible)), numbers(job_value(granted)) if granted else ()
    fewer = given and max(given) < min(numbers(shown), default=0)
    return (job_value(granted), granted) if fewer else (shown, visible)


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
    otherwise="no launch sets both its number of processes and of GPUs per node",
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
    requests the nccl backend, and undecided if nothing shows that they communicate. With gloo or MPI nothing is
    reported.
    """
    for launch in job.launches:
        given, gpu_counts = processes(job, launch), gpus(job, launch)
        if not given or gpu_counts is None or _on_cpu(job, launch):
            continue
        value, because = gpu_counts
        if undecided_verdict := undecided(launch.id, (*given, *because), launch):
            yield undecided_verdict
            continue
        ranks, devices = numbers(job_value(given)), numbers(value)
        if ranks and devices and min(devices) > 0 and min(ranks) > max(devices):
            severity = _severity(job, launch)
            if launch.launcher == "srun" and severity is not None and not job.about("communicates", launch.scope):
                yield unknown(launch.id, "nothing read shows that each process needs its own GPU", at=given[0])
                continue
            missing = min(ranks) - max(devices)
            yield failed(
                launch.id,
                f"{quoted(given[0])} starts {_several(ranks, 'rank')} on each node, but {placed(because[0])}"
                f" provides {_several(devices, 'GPU')} there: {_several((missing,), 'rank')} will find none.",
                at=given[0],
                also=((because[0], _several(devices, "GPU")),),
                remedy=f"Start {_several(devices, 'process', 'processes')} on each node, or request"
                f" {_several(ranks, 'GPU')}.",
                severity=severity,
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


@rule("GPU002", "gpus-left-idle", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
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
    given, gpu_counts = processes(job, launch), gpus(job, launch)
    is_explicit = bool(given) and all(c.strength > Strength.DEFAULT for c in given)
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
    started = job.setting("tasks_per_node", launch.scope)
    if undecided_verdict := undecided(launch.id, (*given, *started, *because), launch):
        yield undecided_verdict
        return
    tasks = max(numbers(job_value(started)), default=1)
    ranks, devices = tuple(tasks * each for each in numbers(job_value(given))), numbers(value)
    if ranks and devices and 0 < max(ranks) < min(devices) and not _reported_by_acc001(job, launch, devices):
        yield failed(
            launch.id,
            f"{quoted(given[0])} starts {_several(ranks, 'rank')} on each node, but {placed(because[0])}"
            f" provides {_several(devices, 'GPU')} there: {min(devices) - max(ranks)} stay idle.",
            at=given[0],
            also=((because[0], _several(devices, "GPU")),),
            remedy=f"Start {_several(devices, 'process', 'processes')} on each node, or request"
            f" {_several(ranks, 'GPU')}.",
        )
    else:
        yield passed(launch.id)


@rule(
    "GPU003",
    "device-shown-twice",
    severity=Severity.WARNING,
    confidence=Confidence.HIGH,
    otherwise="no launch sets CUDA_VISIBLE_DEVICES",
    each=launches_with("env.CUDA_VISIBLE_DEVICES"),
)
def device_shown_twice(question: LaunchQuestion) -> Verdict | None:
    """CUDA_VISIBLE_DEVICES names a device twice.

    What it checks: The entries of CUDA_VISIBLE_DEVICES for a launch are all different.

    Why it matters: CUDA hides the devices after an invalid entry, and two ranks on one device make NCCL stop with
    "Duplicate GPU detected".

    Example: `CUDA_VISIBLE_DEVICES=0,1,1 torchrun --nproc_per_node=3 train.py`.

    Fix: Name each device once.

    Known limits: Whether a device exists is checked by `preflight check`.
    """
    claim = question.claims[0]
    lists = [[part.strip() for part in text.split(",")] for each in question.claims for text in texts(each.value)]
    if not lists or not all(_repeated(devices) for devices in lists):
        return None
    device = _repeated(lists[0])
    return failed(
        question.subject,
        f"{quoted(claim)} names device {device} {lists[0].count(device)} times.",
        at=claim,
        remedy=f"Name device {device} once, and start as many processes as there are devices.",
    )


def _repeated(devices: list[str]) -> str:
    """The first entry that is repeated; empty if there is none."""
    return next((device for device in devices if device and devices.count(device) > 1), "")


#: What separates the alternatives of a constraint of Slurm. In brackets all nodes get the same one.
_EITHER = "|"


@rule(
    "GPU041",
    "gpus-of-different-models",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job of several nodes names its GPUs",
)
def gpus_of_different_models(job: Job) -> Iterator[Verdict]:
    """The ranks of one synchronous job may run on GPUs of different models.

    What it checks: The parts of a heterogeneous Slurm job, the alternatives of a constraint over several nodes, and the
    node selectors and required affinities of the pods that train name one model of GPU.

    Why it matters: Each step ends with the slowest rank: faster GPUs wait for the rest of every step, and the batch
    size must fit the smallest memory. Models of different age also differ in the number formats that they support.

    Example: `#SBATCH --constraint="v100|a100"` with `--nodes=4`.

    Fix: Name one model. In Slurm, `--constraint="[v100|a100]"` gives all nodes the same one of both.

    Known limits: Jobs with parameter servers are not judged: their trainers need not be equally fast. A GPU model is
    known from its name only.
    """
    yield from (*_parts(job), *_constraints(job), *_pods(job))


def _parts(job: Job) -> Iterator[Verdict]:
    """The parts of a heterogeneous Slurm job."""
    parts = job.about("component_gpu_type")
    if len(parts) > 1 and not _has_servers(job):
        yield _one_model(parts[0].span.path, parts)


def _constraints(job: Job) -> Iterator[Verdict]:
    """A constraint or type that leaves the model open, over several nodes."""
    seen: set[Claim] = set()
    for launch in job.launches:
        nodes, _ = nodes_spanned(job, launch)
        for claim in job.setting("gpu_type", launch.scope):
            if claim.source != "slurm" or claim in seen or _has_servers(job):
                continue
            seen.add(claim)
            found = {model for text in texts(claim.value) if "[" not in text for model in _models(text)}
            open_text = any(_EITHER in text for text in texts(claim.value))
            if len(found) < 2 or not open_text:
                yield passed(launch.id)
            elif isinstance(nodes, Unresolved):
                yield unknown(
                    launch.id, f"{quoted(claim)} allows several models, on an unknown number of nodes", at=claim
                )
            elif certainly_several(nodes):
                yield failed(
                    launch.id,
                    f"{quoted(claim)} lets each of the {joined(numbers(nodes))} nodes have either of"
                    f" {joined(sorted(found))}: every step waits for the slower ones.",
                    at=claim,
                    remedy="Name one model, or put the alternatives in brackets, so that all nodes get the same.",
                )


def _pods(job: Job) -> Iterator[Verdict]:
    """The node selectors and affinities of the roles that train."""
    for workload in workloads(job):
        trainers = workload.trainers
        servers = any(role.name.lower() in ("ps", "server") for role in workload.roles)
        claims = [
            claim
            for role in trainers
            for quantity in ("node_label", "gpu_type")
            for claim in role.in_force(quantity)
            if _named_models(claim)
        ]
        if servers or not claims or not certainly_several(workload.pods(trainers)):
            continue
        yield _one_model(workload.id, claims)


def _one_model(subject: str, claims: Sequence[Claim]) -> Verdict:
    """Whether claims about parts of one job name one model."""
    first = claims[0]
    for claim in claims:
        alone = _named_models(claim)
        if len(alone) > 1:
            return failed(
                subject,
                f"{quoted(claim)} allows {joined(sorted(alone))} for the pods or nodes of one job: every step waits for"
                " the slower ones.",
                at=claim,
                remedy="Name one model.",
            )
        if alone and _named_models(first) and alone != _named_models(first):
            return failed(
                subject,
                f"{placed(first)} and {placed(claim)} give the ranks of one job GPUs of different models: every step"
                " waits for the slower ones.",
                at=claim,
                also=((first, "another model"),),
                remedy="Name one model for all ranks.",
            )
    unresolved = next((claim for claim in claims if isinstance(claim.value, Unresolved)), None)
    if unresolved is not None:
        return unknown(subject, f"{quoted(unresolved)} is known only at run time", at=unresolved)
    return passed(subject)


def _named_models(claim: Claim) -> set[str]:
    """The models that a label, type or constraint allows."""
    return {model for text in texts(claim.value) for model in _models(text.rpartition("=")[2])}


def _models(text: str) -> Iterator[str]:
    for part in text.strip("[]\"'").split(_EITHER):
        gpu = named_gpu(part)
        if gpu is not None:
            yield gpu.name


def _has_servers(job: Job) -> bool:
    return any(True in claim.alternatives for claim in job.about("ps_mode"))


_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
#: A MIG instance by its id, or by GPU and instance numbers.
_INSTANCE = re.compile(r"MIG-\S+", re.IGNORECASE)
#: Scheduler names of MIG profiles: `3g.40gb`, `nvidia_a100_3g.20gb`, `1g.10gb.me`.
_PROFILE = re.compile(r"(?:.*[_-])?[1-7]g\.\d+gb.*")


@rule(
    "ENV007",
    "several-mig-instances-for-one-process",
    severity=Severity.WARNING,
    otherwise="no launch makes MIG instances visible",
)
def several_mig_instances_for_one_process(job: Job) -> Iterator[Verdict]:
    """Several MIG instances are visible to one process, but CUDA enumerates only the first.

    What it checks: CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES with more than one `MIG-...`; a launcher that starts
    several ranks on a node for which the scheduler grants several MIG instances.

    Why it matters: A CUDA process sees one MIG instance, however many are visible. The rank that takes the second stops
    with "device >= 0 && device < num_gpus", and NCCL cannot connect two instances of one GPU in any case.

    Example: `CUDA_VISIBLE_DEVICES=MIG-6a0f...,MIG-2c31... torchrun --nproc_per_node=2 train.py`.

    Fix: Use whole GPUs for a distributed run, or start one process for each instance with its own CUDA_VISIBLE_DEVICES
    and a backend that needs no direct transfers (gloo).

    Known limits: A script that gives each child process its own instance is reported too.
    """
    seen: set[str] = set()
    for subject, scope, launch in subjects(job):
        for claim in (c for name in _VISIBLE_DEVICES for c in job.setting(f"env.{name}", scope)):
            values = texts(claim.value)
            counts = [len(_INSTANCE.findall(text.replace(",", " "))) for text in values]
            if not any(counts) or claim.spelling in seen:
                continue
            seen.add(claim.spelling)
            verdict = undecided(subject, (claim,), launch)
            if verdict is None and min(counts) > 1:
                verdict = failed(
                    subject,
                    f"{quoted(claim)} makes {counts[0]} MIG instances visible, but a process enumerates only the"
                    f" first.",
                    at=claim,
                    also=((launch, "sees them"),) if launch is not None else (),
                    remedy="Make one instance visible to each process, or use whole GPUs.",
                )
            yield verdict or passed(subject)
        kinds = job.setting("gpu_type", scope)
        if (
            launch is None
            or not kinds
            or not all(_PROFILE.fullmatch(t) for c in kinds for t in texts(c.value) or ("",))
        ):
            continue
        ranks, granted = processes(job, launch), job.setting("gpus_per_node", scope)
        verdict = undecided(subject, (*kinds, *ranks, *granted), launch)
        if (
            verdict is None
            and launch.launcher != "srun"
            and certainly_several(job_value(ranks))
            and certainly_several(job_value(granted))
        ):
            verdict = failed(
                subject,
                f"{quoted(kinds[0])} requests MIG instances, and {quoted(ranks[0])} starts "
                f"{numbers(job_value(ranks))[0]} ranks that share their list: each enumerates only the first.",
                at=kinds[0],
                also=((ranks[0], "ranks"),),
                remedy="Request whole GPUs, or start one process for each instance with its own CUDA_VISIBLE_DEVICES.",
            )
        yield verdict or passed(subject)

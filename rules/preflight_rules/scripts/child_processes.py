"""Processes that a script starts: spawned ranks and loader workers."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Plain, as_int, is_whole_number, lift
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted
from preflight.plugins.questions import LaunchQuestion, launches_with
from preflight_rules.launches import certainly_several
from preflight_rules.scripts.script_facts import launches_of, stated

_STARTERS = frozenset(
    {"torchrun", "torch.distributed.launch", "deepspeed", "accelerate", "srun", "mpirun", "horovodrun", "paddle"}
)


@rule(
    "PGR004",
    "spawn-under-launcher",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script under a launcher spawns ranks",
)
def spawn_under_launcher(job: Job) -> Iterator[Verdict]:
    """A launcher starts a script several times per node, and the script spawns all ranks itself.

    What it checks: A script that calls `torch.multiprocessing.spawn` or `paddle.distributed.spawn`, and never reads the
    variables of a launcher, is started once on each node.

    Why it matters: Each of the started processes starts all ranks again: 64 instead of 8 on eight GPUs. They listen on
    the same port, "Address already in use", or share the GPUs until the memory is full.

    Example: `mp.spawn(main, nprocs=torch.cuda.device_count())` and `torchrun --nproc_per_node=8 train.py`.

    Fix: Start it with plain `python`, or drop spawn and read LOCAL_RANK, RANK and WORLD_SIZE.

    Known limits: A script that reads any of these variables may not spawn under a launcher, and is not judged.
    """
    for subject, spawns in stated(job, "spawned_processes"):
        for launch in launches_of(job, spawns):
            processes = job.setting("processes_per_node", launch.scope)
            if launch.launcher not in _STARTERS or not processes:
                continue
            verdict = undecided(subject, (spawns, *processes) if numbers(spawns.value) else processes, launch)
            counts = numbers(spawns.value)
            if verdict is None and not (
                not certainly_several(job_value(processes)) or (counts and max(counts) == 1) or spawns.condition
            ):
                verdict = failed(
                    subject,
                    f"{quoted(spawns)} starts all ranks of the node in each of the"
                    f" {joined(numbers(job_value(processes)))} processes that {launch.launcher} starts there.",
                    at=spawns,
                    also=((processes[0], "started already"),),
                    remedy="Start the script once on each node (python train.py), or drop spawn and read LOCAL_RANK,"
                    " RANK and WORLD_SIZE.",
                )
            yield verdict or passed(subject)


@rule(
    "PGR005",
    "more-spawned-than-group-or-gpus-hold",
    severity=Severity.WARNING,
    otherwise="no script that spawns ranks sets a world size or visible GPUs",
)
def more_spawned_than_group_or_gpus_hold(job: Job) -> Iterator[Verdict]:
    """A script spawns more processes than its group has ranks or than GPUs are visible.

    What it checks: `nprocs` of `torch.multiprocessing.spawn` is at most the `world_size` that the script gives its
    group, and, with NCCL, at most the devices in the CUDA_VISIBLE_DEVICES that the script sets.

    Why it matters: Ranks at or above the world size are rejected. A rank without a GPU of its own stops with "invalid
    device ordinal", or shares one, which NCCL rejects.

    Example: `mp.spawn(run, nprocs=8)` and `init_process_group("nccl", rank=rank, world_size=4)`.

    Fix: Take both from one number: `world_size = torch.cuda.device_count()`.

    Known limits: Only judged where a script spawns once and gives one world size.
    """
    found = list(stated(job, "spawned_processes"))
    for subject, spawns in found:
        own = [c for c in job.about("world_size") if c.span.path == spawns.span.path and c.source == "python"]
        masks = [c for c in job.about("env.CUDA_VISIBLE_DEVICES") if c.span.path == spawns.span.path]
        nccl = any("nccl" in texts(c.value) for c in job.about("backend") if c.span.path == spawns.span.path)
        bounds = [(own[0], "ranks of the group", "the group has")] if len(own) == 1 else []
        if nccl and len(masks) == 1:
            bounds.append((masks[0], "visible GPUs", "the script leaves visible"))
        if not bounds or sum(1 for _, other in found if other.span.path == spawns.span.path) > 1:
            continue
        for bound, note, has in bounds:
            most = _devices_of(bound) if bound in masks else numbers(bound.value)
            requested = numbers(spawns.value)
            verdict = undecided(subject, (spawns, bound))
            if verdict is None and requested and most and min(requested) > max(most):
                verdict = failed(
                    subject,
                    f"{quoted(spawns)} starts {min(requested)} processes, but {has} {max(most)} according to "
                    f"{placed(bound)}.",
                    at=spawns,
                    also=((bound, note),),
                    remedy="Derive both from one number, such as torch.cuda.device_count().",
                )
            yield verdict or passed(subject)


def _devices_of(mask: Claim) -> tuple[int, ...]:
    """The number of devices in a literal device list; empty if it names none by number."""
    listed = [text.split(",") for text in texts(mask.value)]
    return tuple(len(items) for items in listed if all(is_whole_number(item.strip()) for item in items))


@rule(
    "DAT023",
    "more-loader-workers-than-cores",
    severity=Severity.WARNING,
    otherwise="no launch sets both a number of loader workers and of cores",
    each=launches_with("dataloader_workers", "processes_per_node", "cpus_per_task", "tasks_per_node"),
)
def more_loader_workers_than_cores(question: LaunchQuestion) -> Verdict | None:
    """The loaders of a node start more worker processes than Slurm grants cores.

    What it checks: A loader's workers times the ranks of a node are at most twice the cores granted there (tasks times
    cpus-per-task).

    Why it matters: Workers that share a core take turns: decoding slows down and the GPUs wait for data, on every step
    of the run.

    Example: `DataLoader(..., num_workers=16)`, four ranks per node and `#SBATCH --cpus-per-task=8` for one task.

    Fix: Request more cores, or give each rank about as many workers as it has cores.

    Known limits: Up to twice as many workers as cores the finding is informational: workers that wait for storage do
    not need a full core.
    """
    workers, processes, cores, tasks = question.of
    requested = lift(_product, as_int(job_value(workers)), as_int(job_value(processes)))
    granted = lift(_product, as_int(job_value(cores)), as_int(job_value(tasks)))
    needs, has = numbers(requested), numbers(granted)
    if not needs or not has:
        return unknown(question.subject, "the number of cores or loader workers of a node is unknown")
    if min(needs) <= max(has):
        return None
    severe = min(needs) > 2 * max(has)
    shown = joined(needs), joined(has)
    return _too_many_workers_finding(question.of.launch, workers[0], cores[0], shown, severe=severe)


def _too_many_workers_finding(
    launch: Launch, workers: Claim, cores: Claim, counts: tuple[str, str], *, severe: bool
) -> Verdict:
    return failed(
        launch.id,
        f"{quoted(workers)} starts {counts[0]} loader workers on each node, but {quoted(cores)} grants {counts[1]}"
        " cores there.",
        at=workers,
        also=((cores, "cores granted"),),
        remedy="Request more cores per task, or use about as many workers per rank as it has cores.",
        severity=None if severe else Severity.INFO,
    )


def _product(item: Plain, other: Plain) -> Plain:
    if isinstance(item, int) and isinstance(other, int):
        return item * other
    raise TypeError("not two numbers")

"""What a step of a batch script gets of what the script was granted: cores and GPUs of each task."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Known, Scope, Unresolved
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import (
    certainly_one,
    certainly_several,
    job_value,
    numbers,
    placed,
    quoted,
    texts,
    undecided,
)
from preflight_rules.schedulers.steps import Step, steps

#: Forms of --gpu-bind that leave each task one GPU of its own.
_ONE_EACH = lazy_pattern(r"(?:verbose,)?(?:single:1|per_task:1)$")
#: Frameworks that take the device with the number of the local rank.
_BY_LOCAL_RANK = ("--deepspeed", "--deepspeed_config", "--local_rank", "--local-rank")


@rule(
    "SLU005",
    "cores-not-inherited-by-step",
    severity=Severity.WARNING,
    fix="unsafe",
    confidence=Confidence.MEDIUM,
    applies_to="Slurm 22.05 to 23.02",
    evidence=(
        "NOAA-EMC/global-workflow#2044",
        "Lightning-AI/pytorch-lightning#18650",
        "redmod-team/profit#179",
        "snakemake/snakemake-executor-plugin-slurm#41",
    ),
)
def cores_not_inherited_by_step(job: Job) -> Iterator[Verdict]:
    """The cores asked for in the header of a batch script are not passed on to srun.

    What it checks:
        `#SBATCH --cpus-per-task` is more than 1, and a step that does some work has neither `-c`,
        `--cpus-per-gpu` or `--cpu-bind` nor SRUN_CPUS_PER_TASK in its environment.

    Why it matters:
        In Slurm 22.05 and 23.02 srun does not read what sbatch was asked for. Each task is then bound to one core,
        and loader workers, NCCL's threads and the launcher's ranks share it: many times slower, and nothing says so.

    Example:
        `#SBATCH --cpus-per-task=10` and `srun ./train`.

    Fix:
        `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` before the first srun, or `srun -c $SLURM_CPUS_PER_TASK`.
        Both do no harm in other versions.

    Known limits:
        Slurm before 22.05 and from 23.11 on passes the cores on; which version a cluster runs no file tells. Some
        sites set the variable for everybody. A task that is alone on its node is often left all its cores, so that
        is information only.

    Evidence:
        NOAA-EMC/global-workflow#2044, Lightning-AI/pytorch-lightning#18650, redmod-team/profit#179; Slurm's release
        notes of 22.05 and 23.11.
    """
    bare: list[tuple[Step, Claim]] = []
    met = False
    for step in steps(job):
        asked = [c for c in job.setting("cpus_per_task", step.scope) if c.source == "slurm"]
        if not asked:
            continue
        met = True
        own = step.about("step_cpus_per_task")
        open_end = undecided(step.subject, (*asked, *((own,) if own is not None else ())), step.launch)
        if open_end is not None:
            yield open_end
        elif own is not None or not certainly_several(job_value(asked)):
            yield passed(step.subject)
        else:
            bare.append((step, asked[0]))
    if bare:
        # Several tasks on a node are bound to a core each; one alone may well be left all the cores of its node.
        bare.sort(key=lambda found: not found[0].several("step_tasks_per_node"))
        step, asked_for = bare[0]
        yield failed(
            job.name,
            f"{placed(asked_for)} asks for the cores of each task, but {quoted(step.claim)} does not repeat it: srun of"
            " Slurm 22.05 and 23.02 does not inherit the number and gives each task one core.",
            at=step.claim,
            also=((asked_for, "asked for here"), *((other.claim, "the same") for other, _ in bare[1:8])),
            remedy="Put `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` before srun, or give srun"
            " `--cpus-per-task=$SLURM_CPUS_PER_TASK`.",
            severity=None if step.several("step_tasks_per_node") else Severity.INFO,
            # Unsafe: a site may set the variable for everybody, to something else.
            fix=mend(
                "hand the number of cores on to srun",
                *(reworded(each.claim, "srun", "srun --cpus-per-task=$SLURM_CPUS_PER_TASK") for each, _ in bare),
                safe=False,
            ),
        )
    if not met:
        yield not_applicable(job.name, "no batch script asks for cores of each task and runs a step")


@rule(
    "SLU006",
    "task-sees-one-gpu-but-indexes-local-rank",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("deepspeedai/DeepSpeed#3165", "https://slurm.schedmd.com/srun.html#OPT_gpus-per-task"),
)
def task_sees_one_gpu_but_indexes_local_rank(job: Job) -> Iterator[Verdict]:
    """Each task is shown one GPU, and the framework it starts takes the GPU with the number of its local rank.

    What it checks:
        Where srun starts several ranks on a node itself: `--gpus-per-task=1` (or `--gpu-bind=single:1`,
        `per_task:1`) together with a program that picks its device by local rank: DeepSpeed, or whatever is
        given LOCAL_RANK.

    Why it matters:
        Every task sees its own GPU as device 0. Local rank 1 asks for device 1 and stops with "invalid device
        ordinal"; what gets through cannot use direct transfers between the GPUs of a node.

    Example:
        `#SBATCH --ntasks-per-node=8 --gpus-per-task=1` and `srun python train.py --deepspeed ds.json`.

    Fix:
        `#SBATCH --gpus-per-node=8` in place of `--gpus-per-task=1`, or `--gpu-bind=none` beside it.

    Known limits:
        A script that takes device 0 where only one is visible is right; for a program that is not known to go by
        local rank nothing is said.

    Evidence:
        deepspeedai/DeepSpeed#3165; srun's manual, --gpus-per-task (implies binding per task).
    """
    met = False
    for launch in job.launches:
        if launch.launcher != "srun":
            continue
        bound = _bound(job, launch.scope)
        tasks = job.setting("tasks_per_node", launch.scope)
        if not bound or not tasks:
            continue
        met = True
        open_end = undecided(launch.id, (*bound, *tasks), launch)
        if open_end is not None:
            yield open_end
            continue
        if not certainly_several(job_value(tasks)):
            yield passed(launch.id)
            continue
        why = _by_local_rank(job, launch.arguments, launch.scope)
        if not why:
            yield unknown(launch.id, "whether the program takes the GPU with the number of its local rank", at=bound[0])
            continue
        count = numbers(job_value(tasks))[0]
        yield failed(
            launch.id,
            f"{quoted(bound[0])} shows each of the {count} tasks of a node one GPU, as device 0, but {why} takes the"
            f" device with the number of its local rank, 0 to {count - 1}.",
            at=bound[0],
            also=((launch, "started here"), (tasks[0], f"{count} tasks")),
            remedy=f"Ask for `--gpus-per-node={count}` in its place, or add `--gpu-bind=none`.",
        )
    if not met:
        yield not_applicable(job.name, "srun shows no task a GPU of its own")


def _bound(job: Job, scope: Scope) -> tuple[Claim, ...]:
    """The claims that leave each task one GPU; empty where none does, or `--gpu-bind` says otherwise."""
    binding = job.setting("gpu_bind", scope)
    if binding:
        found = texts(job_value(binding))
        open_end = any(isinstance(claim.value, Unresolved) for claim in binding)
        return binding if open_end or (found and all(_ONE_EACH.match(text) for text in found)) else ()
    each = job.setting("gpus_per_task", scope)
    return each if each and (certainly_one(job_value(each)) or not numbers(job_value(each))) else ()


def _by_local_rank(job: Job, arguments: tuple[str | None, ...], scope: Scope) -> str:
    """What takes its device by local rank, for a message; empty where nothing is known to."""
    for word in arguments:
        if word is not None and word.partition("=")[0] in _BY_LOCAL_RANK:
            return f"a program with `{word.partition('=')[0]}`"
    # A job that hands out local ranks means them as numbers of devices.
    given = job.setting("env.LOCAL_RANK", scope)
    if given and given[0].value != Known("0"):
        return f"a program that is given {quoted(given[0])}"
    return ""

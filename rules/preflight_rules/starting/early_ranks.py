"""Ranks of tasks that a script expands itself, before there are tasks."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Value
from preflight.job.symbols import is_early
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.reading import (
    AGENT_LAUNCHERS,
    certainly_one,
    certainly_several,
    job_value,
    numbers,
    quoted,
    spoken,
)

_STARTERS = ("srun", "mpirun", "jsrun", "aprun")
#: What tells a process which one it is: quantities of its arguments, and variables it reads.
_OF_RANKS = ("rank", "local_rank")
_VARIABLES = ("env.RANK", "env.LOCAL_RANK", "env.SLURM_PROCID", "env.CUDA_VISIBLE_DEVICES", "env.PADDLE_TRAINER_ID")


@rule(
    "LCH004",
    "task-rank-expanded-too-early",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES",
        "https://github.com/stas00/ml-engineering/blob/master/orchestration/slurm/users.md",
    ),
)
def task_rank_expanded_too_early(job: Job) -> Iterator[Verdict]:
    """A rank of the tasks is expanded by the script, so that all tasks get the same one.

    What it checks:
        Where srun, mpirun, jsrun or aprun starts several tasks of a program, that RANK, LOCAL_RANK and
        CUDA_VISIBLE_DEVICES, and a rank among the program's arguments, are not made from SLURM_PROCID, SLURM_LOCALID,
        OMPI_COMM_WORLD_RANK and their like in the script itself.

    Why it matters:
        In the script these variables are 0, or not set at all. Every task believes to be rank 0: all wait for the
        others at the rendezvous, or all take the first GPU.

    Example:
        `export RANK=$SLURM_PROCID` above `srun python train.py`.

    Fix:
        Let a shell of the task expand it: `srun bash -c 'RANK=$SLURM_PROCID python train.py'`.

    Known limits:
        A program that reads SLURM_PROCID itself and ignores RANK is not known. The node rank of a launcher is RDV003's
        case.

    Evidence:
        srun documentation, output environment variables; stas00/ml-engineering, Slurm for users.
    """
    met = False
    for launch in job.launches:
        if not set(_STARTERS) & set(launch.wrappers) or launch.launcher in AGENT_LAUNCHERS:
            continue
        said = [c for name in (*_OF_RANKS, *_VARIABLES) for c in job.setting(name, launch.scope)]
        if not said:
            continue
        met = True
        early = [claim for claim in said if is_early(claim.value)]
        tasks, claims = _tasks(job, launch)
        if not early or certainly_one(tasks):
            yield passed(launch.id)
        elif not certainly_several(tasks) or early[0].condition:
            yield unknown(launch.id, f"how many tasks get {quoted(early[0])} cannot be told", at=early[0])
        else:
            yield _same_for_all(launch, early[0], spoken(numbers(tasks)), claims)
    if not met:
        yield not_applicable(job.name, "no program started as several tasks is given a rank")


def _tasks(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]]:
    for name in ("world_size", "tasks", "tasks_per_node"):
        claims = job.setting(name, launch.scope)
        if certainly_several(job_value(claims)):
            return job_value(claims), claims
    claims = job.setting("tasks", launch.scope)
    return job_value(claims), claims


def _same_for_all(launch: Launch, rank: Claim, count: str, claims: tuple[Claim, ...]) -> Verdict:
    starter = next(name for name in launch.wrappers if name in _STARTERS)
    return failed(
        launch.id,
        f"{quoted(rank)} is expanded before {starter} starts the {count} tasks, and is 0 or empty there: every task"
        " gets the same one.",
        at=rank,
        also=((launch, "started as several tasks"), *((claim, f"{count} tasks") for claim in claims[:1])),
        remedy=f"Let a shell of each task expand it: {starter} bash -c '...', in single quotation marks.",
    )

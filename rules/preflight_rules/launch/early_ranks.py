"""Rank variables that a batch script expands before its tasks exist."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Value
from preflight.model.job.claim import job_value
from preflight.model.job.symbols import is_expanded_in_script
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import AGENT_LAUNCHERS, certainly_one, certainly_several, joined, quoted

_STARTERS = ("srun", "mpirun", "jsrun", "aprun")
#: A process gets its rank from these quantities of its arguments, or from these variables.
_RANK_QUANTITIES = ("rank", "local_rank")
_VARIABLES = ("env.RANK", "env.LOCAL_RANK", "env.SLURM_PROCID", "env.CUDA_VISIBLE_DEVICES", "env.PADDLE_TRAINER_ID")


@rule(
    "LCH004",
    "task-rank-expanded-too-early",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no program started as several tasks is given a rank",
    evidence=(
        (
            "srun documentation, output environment variables",
            "https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES",
        ),
        (
            "stas00/ml-engineering, Slurm for users",
            "https://github.com/stas00/ml-engineering/blob/master/orchestration/slurm/users.md",
        ),
    ),
)
def task_rank_expanded_too_early(job: Job) -> Iterator[Verdict]:
    """The batch script expands a rank variable itself, so all tasks get the same rank.

    What it checks: Where srun, mpirun, jsrun or aprun starts several tasks of a program, that RANK, LOCAL_RANK and
    CUDA_VISIBLE_DEVICES, and a rank among the program's arguments, are not made from SLURM_PROCID, SLURM_LOCALID,
    OMPI_COMM_WORLD_RANK and their like in the script itself.

    Why it matters: In the script these variables are 0, or not set at all. Every task then acts as rank 0: all wait for
    the others at the rendezvous, or all use the first GPU.

    Example: `export RANK=$SLURM_PROCID` above `srun python train.py`.

    Fix: Let a shell in the task expand it: `srun bash -c 'RANK=$SLURM_PROCID python train.py'`.

    Known limits: A program that reads SLURM_PROCID itself and ignores RANK is not known. RDV003 judges the node rank of
    a launcher.
    """
    for launch in job.launches:
        if not set(_STARTERS) & set(launch.wrappers) or launch.launcher in AGENT_LAUNCHERS:
            continue
        stated = [c for name in (*_RANK_QUANTITIES, *_VARIABLES) for c in job.setting(name, launch.scope)]
        if not stated:
            continue
        early = [claim for claim in stated if is_expanded_in_script(claim.value)]
        tasks, claims = _tasks(job, launch)
        script = next((name for name in (launch.program, *launch.wrappers) if name.endswith((".sh", ".bash"))), "")
        if not early or certainly_one(tasks):
            yield passed(launch.id)
        elif script:
            yield unknown(launch.id, f"{script} may set the rank again in each task", at=early[0])
        elif not certainly_several(tasks) or early[0].condition:
            yield unknown(launch.id, f"cannot determine how many tasks get {quoted(early[0])}", at=early[0])
        else:
            yield _finding(launch, early[0], joined(numbers(tasks)), claims)


def _tasks(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]]:
    for name in ("world_size", "tasks", "tasks_per_node"):
        claims = job.setting(name, launch.scope)
        if certainly_several(job_value(claims)):
            return job_value(claims), claims
    claims = job.setting("tasks", launch.scope)
    return job_value(claims), claims


def _finding(launch: Launch, rank: Claim, count: str, claims: tuple[Claim, ...]) -> Verdict:
    starter = next(name for name in launch.wrappers if name in _STARTERS)
    return failed(
        launch.id,
        f"{quoted(rank)} is expanded before {starter} starts the {count} tasks, when it is still 0 or empty: every "
        "task gets the same value.",
        at=rank,
        also=((launch, "started as several tasks"), *((claim, f"{count} tasks") for claim in claims[:1])),
        remedy=f"Let a shell in each task expand it: {starter} bash -c '...', with single quotes.",
    )

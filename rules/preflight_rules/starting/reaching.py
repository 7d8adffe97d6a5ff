"""Launchers that reach the other nodes themselves, started on each of them all the same."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.outcome import Severity
from preflight_rules.reading import certainly_several, job_value, numbers, placed, spoken, undecided

_REACHING = ("deepspeed", "colossalai")
_SPREADING = ("srun", "mpirun", "pdsh", "clush")


@rule(
    "LCH006",
    "reaching-launcher-started-on-each-node",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "deepspeedai/DeepSpeedExamples#893",
        "deepspeedai/DeepSpeed#2025",
        "https://www.deepspeed.ai/getting-started/#resource-configuration-multi-node",
    ),
)
def reaching_launcher_started_on_each_node(job: Job) -> Iterator[Verdict]:
    """A launcher that goes to the other nodes itself is started on each of them.

    What it checks:
        `deepspeed` and `colossalai run` are not started several times over by srun, mpirun or pdsh, unless deepspeed
        is told that each node starts it (`--no_ssh`, `--node_rank`).

    Why it matters:
        Without a hostfile each copy trains alone on the GPUs of its own node, and nobody is told. With one each copy
        logs in to all nodes and starts all ranks once more: ports and GPUs are taken several times.

    Example:
        `#SBATCH --nodes=2` and `srun deepspeed train.py`.

    Fix:
        Start it once, on the first node, with a hostfile; or use torchrun behind srun.

    Known limits:
        How many tasks srun starts must be known.

    Evidence:
        deepspeedai/DeepSpeedExamples#893, deepspeedai/DeepSpeed#2025; DeepSpeed documentation, multi-node.
    """
    met = False
    for launch in job.launches:
        spread = next((name for name in launch.wrappers if name in _SPREADING), None)
        if launch.launcher not in _REACHING or spread is None:
            continue
        met = True
        counts = _copies(job, launch)
        open_end = undecided(launch.id, counts[:1], launch)
        itself = job.setting("each_node_itself", launch.scope) or job.setting("node_rank", launch.scope)
        if itself or job.setting("single_node_step", launch.scope):
            yield passed(launch.id)
        elif open_end is not None:
            yield open_end
        elif not counts:
            yield passed(launch.id)
        else:
            yield failed(
                launch.id,
                f"{launch.launcher} reaches the other nodes itself, but {spread} starts it"
                f" {spoken(numbers(job_value(counts[:1])))} times ({placed(counts[0])}): each copy is a launch of its"
                " own.",
                at=launch,
                also=((counts[0], "copies"),),
                remedy=f"Start {launch.launcher} once, without {spread} and with a hostfile; or put torchrun behind"
                f" {spread}.",
            )
    if not met:
        yield not_applicable(job.name, "no launcher that reaches nodes is started by another")


def _copies(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """The claim that says how many times it is started; none where that is once, or not said."""
    open_ones: tuple[Claim, ...] = ()
    for name in ("tasks", "tasks_per_node", "nodes"):
        claims = tuple(c for c in job.setting(name, launch.scope) if c.source in ("slurm", "mpirun", "pdsh", "clush"))
        if claims and certainly_several(job_value(claims)):
            return claims
        if claims and not numbers(job_value(claims)):
            open_ones = open_ones or claims
        elif claims and name == "tasks":
            return ()
    return open_ones

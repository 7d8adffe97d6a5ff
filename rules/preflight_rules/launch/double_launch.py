"""Launchers that start processes on all nodes themselves, but are started on each node."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule
from preflight_rules.helpers import certainly_several, joined, placed, undecided

_START_ALL_NODES = ("deepspeed", "colossalai")
_START_ON_EACH_NODE = ("srun", "mpirun", "pdsh", "clush")


@rule(
    "LCH006",
    "reaching-launcher-started-on-each-node",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no launcher that reaches other nodes is started by another launcher",
    evidence=(
        "deepspeedai/DeepSpeedExamples#893",
        "deepspeedai/DeepSpeed#2025",
        (
            "DeepSpeed documentation, multi-node",
            "https://www.deepspeed.ai/getting-started/#resource-configuration-multi-node",
        ),
    ),
)
def reaching_launcher_started_on_each_node(job: Job) -> Iterator[Verdict]:
    """A launcher that starts processes on all nodes itself is started on each node.

    What it checks: `deepspeed` and `colossalai run` are not started several times by srun, mpirun or pdsh, unless
    options tell deepspeed that each node starts it (`--no_ssh`, `--node_rank`).

    Why it matters: Without a hostfile each copy trains alone on the GPUs of its own node, without an error. With a
    hostfile each copy logs in to all nodes and starts all ranks once more: ports and GPUs are taken several times.

    Example: `#SBATCH --nodes=2` and `srun deepspeed train.py`.

    Fix: Start it once, on the first node, with a hostfile; or use torchrun under srun.

    Known limits: How many tasks srun starts must be known.
    """
    for launch in job.launches:
        spread = next((name for name in launch.wrappers if name in _START_ON_EACH_NODE), None)
        if launch.launcher not in _START_ALL_NODES or spread is None:
            continue
        counts = _copies(job, launch)
        undecided_verdict = undecided(launch.id, counts[:1], launch)
        itself = job.setting("each_node_itself", launch.scope) or job.setting("node_rank", launch.scope)
        if itself or job.setting("single_node_step", launch.scope):
            yield passed(launch.id)
        elif undecided_verdict is not None:
            yield undecided_verdict
        elif not counts:
            yield passed(launch.id)
        else:
            yield failed(
                launch.id,
                f"{launch.launcher} starts processes on the other nodes itself, but {spread} starts it"
                f" {joined(numbers(job_value(counts[:1])))} times ({placed(counts[0])}): each copy is a"
                " separate launch.",
                at=launch,
                also=((counts[0], "copies"),),
                remedy=f"Start {launch.launcher} once, without {spread} and with a hostfile; or put torchrun"
                f" under"
                f" {spread}.",
            )


def _copies(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """The claims that state how often the launcher is started; empty for once or unknown."""
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

"""World size and processes given to Composer's launcher."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Job
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule
from preflight_rules.helpers import placed, quoted, undecided


@rule(
    "LCH007",
    "composer-world-size-refused",
    severity=Severity.ERROR,
    otherwise="no composer launch sets both its world size and its number of processes",
    evidence=(
        (
            "composer/cli/launcher.py, _parse_args",
            "https://github.com/mosaicml/composer/blob/v0.32.0/composer/cli/launcher.py",
        ),
    ),
)
def composer_world_size_refused(job: Job) -> Iterator[Verdict]:
    """Composer's launcher is given a world size that does not match its number of processes.

    What it checks: `--world_size` of `composer` is at least `--nproc`; and a multiple of it, unless the line gives the
    node both `--node_rank` and `--base_rank`.

    Why it matters: The launcher stops with ValueError on every node, after the job has waited for all of them.

    Example: `composer --nproc 8 --world_size 12 --node_rank 0 train.py`.

    Fix: Nodes times processes of a node. For nodes of different sizes give both ranks to each.

    Known limits: BASE_RANK may come from the platform: where the sizes only do not divide, it is a warning.
    """
    for launch in job.launches:
        worlds = [c for c in job.requiring("world_size", launch.scope) if c.source == "composer"]
        each = [c for c in job.setting("processes_per_node", launch.scope) if c.source == "composer"]
        if launch.launcher != "composer" or not worlds or not each:
            continue
        undecided_verdict = undecided(launch.id, (*worlds, *each), launch)
        total, some = numbers(job_value(worlds)), numbers(job_value(each))
        if undecided_verdict is not None:
            yield undecided_verdict
            continue
        small = bool(total and some) and max(total) < min(some)
        uneven = bool(total and some) and min(some) > 0 and all(t % s for t in total for s in some)
        both = job.setting("base_rank", launch.scope) and job.setting("node_rank", launch.scope)
        if not small and (not uneven or both):
            yield passed(launch.id)
            continue
        why = "is less than" if small else "is not a multiple of"
        yield failed(
            launch.id,
            f"{quoted(worlds[0])} {why} {placed(each[0])}: composer stops with ValueError.",
            at=worlds[0],
            also=((each[0], "processes of this node"),),
            remedy="Set it to the number of nodes times the processes on each node"
            + ("." if small else "; for nodes of different sizes, give both `--node_rank` and `--base_rank`."),
            severity=None if small else Severity.WARNING,
        )

"""Elastic node ranges given to torchrun."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule
from preflight_rules.helpers import quoted, undecided


@rule(
    "LCH005",
    "elastic-range-unusable",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no launch requests a range of nodes",
    evidence=(
        (
            "torchrun documentation, elastic launch",
            "https://docs.pytorch.org/docs/stable/elastic/run.html#elastic-min-1-max-4-tolerates-up-to-3-membership-changes-or-failures",
        ),
        (
            "torch.distributed.run, config_from_args, and the static rendezvous, whose world size is the larger number",
            "https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py",
        ),
    ),
)
def elastic_range_unusable(job: Job) -> Iterator[Verdict]:
    """torchrun is given a node range that it rejects, or that its static rendezvous ignores.

    What it checks: In `--nnodes=MIN:MAX` the first number is at least 1 and not above the second; and where the two
    differ, the backend is one that lets nodes join and leave (c10d, etcd), not the static default.

    Why it matters: torchrun stops if the range is reversed. With the static backend the job always waits for MAX nodes,
    and ends when it loses one.

    Example: `torchrun --nnodes=1:4 --master_addr=$HEAD ...` without `--rdzv_backend=c10d`.

    Fix: `torchrun --nnodes=1:4 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:29400 --max_restarts=3 ...`.

    Known limits: Whether the program can go on with another number of ranks is not judged. The second case is a
    warning.
    """
    for launch in job.launches:
        if launch.launcher not in ("torchrun", "torch.distributed.launch"):
            continue
        ranges = [c for c in job.about("min_nodes", launch.scope) if c.scope.launch == launch.id]
        nodes = [c for c in job.requiring("nodes", launch.scope) if c.scope.launch == launch.id]
        rejected = [c for c in job.about("rejected_node_range", launch.scope) if c.scope.launch == launch.id]
        if not ranges and not rejected:
            # `--nnodes=$LEAST:4`: the reader gives neither number.
            open_range = undecided(launch.id, [c for c in nodes if ":" in c.spelling.partition("nnodes")[2]], launch)
            if open_range is not None:
                yield open_range
            continue
        if rejected:
            yield _refused(launch, rejected[0])
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        undecided_verdict = undecided(launch.id, (*backend, *ranges, *nodes), launch)
        found = texts(job_value(backend))
        if undecided_verdict is not None:
            yield undecided_verdict
        elif found == ("static",) and len(numbers(job_value(nodes))) > 1:
            yield failed(
                launch.id,
                f"{quoted(ranges[0])} requests a range of nodes, but the static rendezvous waits for all"
                f" {max(numbers(job_value(nodes)))} of them.",
                at=ranges[0],
                also=((backend[0], "static backend"),),
                remedy="Add --rdzv_backend=c10d and --rdzv_endpoint=HOST:PORT, or set a fixed number of nodes.",
                severity=Severity.WARNING,
            )
        else:
            yield passed(launch.id)


def _refused(launch: Launch, claim: Claim) -> Verdict:
    return failed(
        launch.id,
        f"{quoted(claim)} is not a valid range of nodes: torchrun stops unless 0 < MIN <= MAX.",
        at=claim,
        remedy="Write the smaller number first; it must be at least 1.",
    )

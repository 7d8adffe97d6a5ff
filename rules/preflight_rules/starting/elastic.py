"""Elastic ranges of nodes that do not do what they say."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Severity
from preflight_rules.reading import job_value, numbers, quoted, texts, undecided

_REVERSED = lazy_pattern(r"(\S+) is no range of nodes")


@rule(
    "LCH005",
    "elastic-range-unusable",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "https://docs.pytorch.org/docs/stable/elastic/run.html#elastic-min-1-max-4-tolerates-up-to-3-membership-changes-or-failures",
        "https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py",
    ),
)
def elastic_range_unusable(job: Job) -> Iterator[Verdict]:
    """A range of nodes is given to torchrun that it refuses, or that its rendezvous does not heed.

    What it checks:
        In `--nnodes=MIN:MAX` the first number is at least 1 and not above the second; and where the two differ, the
        back end is one under which nodes may come and go (c10d, etcd), not the static one, which is the default.

    Why it matters:
        A range that is written backwards stops torchrun. With the static back end the job waits for MAX nodes,
        however few were meant to do, and a lost node ends it.

    Example:
        `torchrun --nnodes=1:4 --master_addr=$HEAD ...` without `--rdzv_backend=c10d`.

    Fix:
        `torchrun --nnodes=1:4 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:29400 --max_restarts=3 ...`.

    Known limits:
        Whether the program can go on with another number of ranks is not judged. The second case is a warning.

    Evidence:
        torchrun documentation, elastic launch; torch.distributed.run, config_from_args, and the static rendezvous,
        whose world size is the larger number.
    """
    met = False
    for launch in job.launches:
        if launch.launcher not in ("torchrun", "torch.distributed.launch"):
            continue
        ranges = [c for c in job.about("min_nodes", launch.scope) if c.scope.launch == launch.id]
        nodes = [c for c in job.requiring("nodes", launch.scope) if c.scope.launch == launch.id]
        reverse = next((c for c in nodes if isinstance(c.value, Unresolved) and _REVERSED.match(c.value.why)), None)
        if not ranges and reverse is None:
            continue
        met = True
        if reverse is not None:
            yield _refused(launch, reverse)
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        open_end = undecided(launch.id, (*backend, *ranges, *nodes), launch)
        found = texts(job_value(backend))
        if open_end is not None:
            yield open_end
        elif found == ("static",) and len(numbers(job_value(nodes))) > 1:
            yield failed(
                launch.id,
                f"{quoted(ranges[0])} asks for a range of nodes, but the static rendezvous waits for all"
                f" {max(numbers(job_value(nodes)))} of them.",
                at=ranges[0],
                also=((backend[0], "static back end"),),
                remedy="Add --rdzv_backend=c10d and --rdzv_endpoint=HOST:PORT, or give one number of nodes.",
                severity=Severity.WARNING,
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launch asks for a range of nodes")


def _refused(launch: Launch, claim: Claim) -> Verdict:
    return failed(
        launch.id,
        f"{quoted(claim)} is no range of nodes: torchrun stops unless 0 < MIN <= MAX.",
        at=claim,
        remedy="Write the smaller number first, from 1 on.",
    )

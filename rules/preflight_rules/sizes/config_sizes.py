"""NeMo configurations: devices, nodes, parallel sizes and batches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided
from preflight.plugins.claim_text import counted, placed, quoted
from preflight_rules.sizes.parallel_sizes import Setup, setups

_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


def _world(setup: Setup) -> tuple[int | None, tuple[Claim, ...]]:
    """Devices x nodes of a trainer, and the claims; None if unknown."""
    nodes = tuple(c for c in setup.job.requiring("nodes", setup.scope) if c.source == setup.source)
    devices = tuple(c for c in setup.job.requiring("processes_per_node", setup.scope) if c.source == setup.source)
    per_gpu, other = numbers(job_value(nodes)) if nodes else (1,), numbers(job_value(devices)) if devices else ()
    claims = (*devices, *nodes)
    return (per_gpu[0] * other[0] if len(per_gpu) == len(other) == 1 else None), claims


def _trainers(job: Job) -> Iterator[tuple[Setup, int | None, tuple[Claim, ...], tuple[Claim, ...], int]]:
    """Each configuration with a trainer: its ranks and parallel sizes, with their claims."""
    for setup in setups(job):
        if setup.source != "lightning":
            continue
        ranks, because = _world(setup)
        parts = tuple(c for name in _PARALLEL for c in setup.claims(name))
        product = math.prod(setup.number(name) or 1 for name in _PARALLEL)
        if because and parts:
            yield setup, ranks, because, parts, product


@rule(
    "PAR013",
    "trainer-ranks-not-divisible",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no configuration sets both devices and parallel sizes",
)
def trainer_ranks_not_divisible(job: Job) -> Iterator[Verdict]:
    """The devices of a trainer cannot be divided evenly into replicas of the model.

    What it checks: In a NeMo configuration: tensor x pipeline x context parallel size divides devices x num_nodes.

    Why it matters: NeMo stops when it creates the groups of ranks, after all of them have started.

    Example: `devices: 8`, `num_nodes: 1` and `tensor_model_parallel_size: 3`.

    Fix: Choose sizes whose product divides the devices.

    Known limits: Such files are templates whose numbers are overridden on the command line, so this is a warning, or
    information where only ranks are missing.
    """
    for setup, ranks, because, parts, product in _trainers(job):
        verdict = undecided(setup.subject, (*because, *parts), setup.launch)
        if verdict is None and ranks is not None and ranks % product:
            verdict = failed(
                setup.subject,
                f"{counted(ranks, 'rank')} ({', '.join(quoted(c) for c in because)}) cannot be divided by {product}"
                f" ({' x '.join(quoted(c) for c in parts)}).",
                at=parts[0],
                also=tuple((c, "ranks") for c in because),
                remedy=f"Choose sizes whose product divides {ranks}, or a multiple of {product} ranks.",
                # More devices or nodes, given on the command line, make it right.
                severity=Severity.INFO if product % ranks == 0 else None,
            )
        yield verdict or passed(setup.subject)


@rule(
    "BAT020",
    "trainer-global-batch-not-divisible",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no configuration sets both devices and batch sizes",
)
def trainer_global_batch_not_divisible(job: Job) -> Iterator[Verdict]:
    """The global batch of a configuration cannot be divided into micro batches for all replicas.

    What it checks: In a NeMo configuration: micro_batch_size x replicas divides global_batch_size, where replicas are
    devices x num_nodes divided by tensor, pipeline and context parallel sizes.

    Why it matters: NeMo stops before the first step.

    Example: `global_batch_size: 10`, `micro_batch_size: 4` on 2 devices.

    Fix: A global batch that is a multiple of micro batch x replicas.

    Known limits: The numbers may be overridden on the command line.
    """
    for setup, ranks, because, parts, product in _trainers(job):
        total, micro = setup.claims("train_batch_size"), setup.claims("micro_batch_size_per_gpu")
        if not total or not micro:
            continue
        verdict = undecided(setup.subject, (*total, *micro, *because, *parts), setup.launch)
        whole, per_gpu = setup.number("train_batch_size"), setup.number("micro_batch_size_per_gpu")
        if (
            verdict is None
            and whole
            and per_gpu
            and ranks
            and ranks % product == 0
            and whole % (per_gpu * (ranks // product))
        ):
            unit = per_gpu * (ranks // product)
            verdict = failed(
                setup.subject,
                f"{quoted(total[0])} is not a multiple of {placed(micro[0])} x {ranks // product} replicas = {unit}.",
                at=total[0],
                also=((micro[0], "micro batch"), *((c, "determines the replicas") for c in (*because, *parts))),
                remedy=f"Use a global batch size that is a multiple of {unit}, such as {-(-whole // unit) * unit}.",
            )
        yield verdict or passed(setup.subject)

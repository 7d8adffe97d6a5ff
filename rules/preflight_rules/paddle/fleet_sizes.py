"""Parallel degrees of Fleet and PaddleNLP against the ranks that are started, and batches of Fleet's pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.paddle.fleet import once
from preflight_rules.reading import numbers, placed, quoted, ranks_started, undecided

_STRATEGY = "https://github.com/PaddlePaddle/Paddle/tree/v2.6.2/python/paddle/distributed/fleet"
_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "sharding_degree")


@rule(
    "PDL006",
    "fleet-degrees-differ-from-world",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(f"{_STRATEGY}/base/topology.py",),
)
def fleet_degrees_differ_from_world(job: Job) -> Iterator[Verdict]:
    """The parallel degrees of hybrid_configs do not multiply to the number of ranks.

    What it checks:
        dp_degree x mp_degree x pp_degree x sharding_degree x sep_degree of a DistributedStrategy is the world size,
        where dp_degree is given.

    Why it matters:
        Fleet compares the two when it starts and stops every rank with an assertion that only prints the numbers.

    Example:
        `--gpus=0,1,2,3` with `hybrid_configs = {"dp_degree": 2, "mp_degree": 4, "pp_degree": 1}`.

    Fix:
        Change a degree, leave dp_degree out, or start as many ranks as they multiply to.

    Known limits:
        Degrees that come from arguments are not known.

    Evidence:
        paddle/distributed/fleet/base/topology.py of 2.6.2 (HybridCommunicateGroup).
    """
    met = False
    for subject, scope, hybrid in once(job, "fleet_hybrid"):
        named = [str(name) for value in hybrid.alternatives if isinstance(value, tuple) for name in value]
        world, started = ranks_started(job, scope)
        if not started:
            continue
        met = True
        degrees = [c for name in named for c in job.about(name, scope) if c.source == "paddle"]
        open_end = undecided(subject, (hybrid, *degrees, *started))
        ranks = numbers(world)
        if open_end is not None or not ranks:
            yield open_end or unknown(subject, "the number of ranks is known only at run time", at=hybrid)
            continue
        product = 1
        for claim in degrees:
            product *= max(numbers(claim.value), default=1)
        if "data_parallel_size" not in {claim.quantity for claim in degrees} or product in ranks:
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{' x '.join(quoted(claim) for claim in degrees)} make {product} ranks, but"
                f" {' and '.join(placed(claim) for claim in started)} {'starts' if len(started) == 1 else 'start'}"
                f" {ranks[0]}.",
                at=hybrid,
                also=tuple((claim, "ranks started") for claim in started),
                remedy=f"Make the degrees multiply to {ranks[0]}, or leave dp_degree out.",
            )
    if not met:
        yield not_applicable(job.name, "no launch starts a script with hybrid_configs")


@rule(
    "PDL009",
    "pipeline-batch-not-micro-times-steps",
    severity=Severity.WARNING,
    evidence=(f"{_STRATEGY}/meta_parallel/pipeline_parallel.py",),
)
def pipeline_batch_not_micro_times_steps(job: Job) -> Iterator[Verdict]:
    """The batch that is fed to Fleet's pipeline is not accumulate_steps micro batches.

    What it checks:
        micro_batch_size x accumulate_steps of pipeline_configs is the batch size of the script's only DataLoader.

    Why it matters:
        Fleet asserts it at the first step. Before 2.4 the samples that did not fit were left out without a word.

    Example:
        `{"micro_batch_size": 4, "accumulate_steps": 8}` and `DataLoader(..., batch_size=16)`.

    Fix:
        Set the batch size to the product.

    Known limits:
        A script with several loaders is not judged, nor a batch size that comes from an argument.

    Evidence:
        paddle/distributed/fleet/meta_parallel/pipeline_parallel.py of 2.6.2.
    """
    met = False
    for subject, scope, steps in once(job, "pipeline_micro_batches"):
        sizes = [c for c in job.about("pipeline_micro_batch_size", scope) if c.span.path == steps.span.path]
        loaders = [c for c in job.about("dataloader_batch_size", scope) if c.span.path == steps.span.path]
        if not sizes or len(loaders) != 1:
            continue
        met = True
        open_end = undecided(subject, (steps, *sizes, *loaders))
        count, size, batch = (numbers(c.value) for c in (steps, sizes[0], loaders[0]))
        if open_end is not None:
            yield open_end
        elif count and size and batch and not any(b == c * s for b in batch for c in count for s in size):
            yield failed(
                subject,
                f"{quoted(sizes[0])} x {quoted(steps)} are {count[0] * size[0]} samples, but {placed(loaders[0])} feeds"
                f" {batch[0]}.",
                at=loaders[0],
                also=((steps, "micro batches of a step"), (sizes[0], "samples of a micro batch")),
                remedy=f"Set the batch size to {count[0] * size[0]}.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no script sets a pipeline and one loader's batch size")


@rule(
    "PDL014",
    "trainer-degrees-do-not-divide-ranks",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://github.com/PaddlePaddle/PaddleNLP/blob/v2.8.1/paddlenlp/trainer/training_args.py",),
)
def trainer_degrees_do_not_divide_ranks(job: Job) -> Iterator[Verdict]:
    """The parallel degrees of PaddleNLP's trainer do not divide the ranks that are started.

    What it checks:
        tensor_parallel_degree x pipeline_parallel_degree x sep_parallel_degree x sharding_parallel_degree divides the
        number of ranks of a launch.

    Why it matters:
        The trainer asserts it, or Fleet does when it builds its groups, in every rank once all of them have started.

    Example:
        `--gpus 0,1,2,3` with `--tensor_parallel_degree 2 --pipeline_parallel_degree 4`.

    Fix:
        Choose degrees whose product divides the ranks, or start a multiple of it.

    Known limits:
        A degree of -1 is the library's to choose and counts as 1. With one node, and ranks that more nodes would
        complete, it is a warning: recipes are published like that.

    Evidence:
        paddlenlp/trainer/training_args.py of 2.8.1.
    """
    met = False
    for launch in job.launches:
        claims = [c for name in _DEGREES for c in job.setting(name, launch.scope) if "_parallel_degree" in c.spelling]
        world, started = ranks_started(job, launch.scope)
        if not claims or not started or launch.launcher != "paddle":
            continue
        met = True
        known = [claim for claim in claims if not _left_open(claim)]
        open_end = undecided(launch.id, (*known, *started), launch)
        ranks = numbers(world)
        if open_end is not None or not ranks:
            yield open_end or unknown(launch.id, "the number of ranks is known only at run time", at=launch)
            continue
        product = 1
        for claim in known:
            product *= max(numbers(claim.value), default=1)
        if all(count % product for count in ranks):
            yield failed(
                launch.id,
                f"{' x '.join(quoted(claim) for claim in known)} take {product} ranks, which does not divide the"
                f" {ranks[0]} that {' and '.join(placed(claim) for claim in started)}"
                f" {'starts' if len(started) == 1 else 'start'}.",
                at=known[0],
                also=tuple((claim, "ranks started") for claim in started),
                remedy=f"Choose degrees whose product divides {ranks[0]}, or start a multiple of {product} ranks.",
                severity=Severity.WARNING if product % ranks[0] == 0 else None,
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launch gives PaddleNLP's trainer parallel degrees")


def _left_open(claim: Claim) -> bool:
    """Whether a degree of -1 leaves the choice to the library."""
    return isinstance(claim.value, Unresolved) and claim.value.why.endswith("left to the library")

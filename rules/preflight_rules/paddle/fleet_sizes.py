"""Parallel degrees of Fleet and PaddleNLP compared with the ranks, and batches of Fleet's pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Job, Scope
from preflight.model.job.value import Symbol, numbers, symbols_in
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight_rules.launches import ranks_started
from preflight_rules.paddle.fleet import distinct_claims

_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "sharding_degree")


@rule(
    "PDL006",
    "fleet-degrees-differ-from-world",
    severity=Severity.ERROR,
    otherwise="no launch starts a script with hybrid_configs",
)
def fleet_degrees_differ_from_world(job: Job) -> Iterator[Verdict]:
    """The parallel degrees of hybrid_configs do not multiply to the number of ranks.

    What it checks: dp_degree x mp_degree x pp_degree x sharding_degree x sep_degree of a DistributedStrategy is the
    world size. Without dp_degree, Fleet takes ranks / (mp_degree x pp_degree) for it, whatever the other degrees are.

    Why it matters: Fleet compares the two when it starts and stops every rank with an assertion that only prints the
    numbers.

    Example: `--gpus=0,1,2,3` with `hybrid_configs = {"dp_degree": 2, "mp_degree": 4, "pp_degree": 1}`.

    Fix: Change a degree, or start as many ranks as they multiply to.

    Known limits: Degrees that come from arguments are not known.
    """
    for subject, scope, hybrid in distinct_claims(job, "fleet_hybrid"):
        world, started = ranks_started(job, scope)
        if not started or _is_heterogeneous(job, scope):
            continue
        degrees = [c for name in _FACTORS for c in job.about(f"setting.paddle.hybrid_configs.{name}", scope)]
        undecided_verdict = undecided(subject, (hybrid, *degrees, *started))
        ranks = numbers(world)
        if undecided_verdict is not None or not ranks:
            yield undecided_verdict or unknown(subject, "the number of ranks is known only at run time", at=hybrid)
            continue
        given = {c.quantity.rpartition(".")[2]: number for c in degrees for number in numbers(c.value)}
        products = [_product(given, count) for count in ranks]
        if any(product == count for product, count in zip(products, ranks, strict=True)):
            yield passed(subject)
            continue
        own = [claim for claim in degrees if given.get(claim.quantity.rpartition(".")[2], 1) != 1] or degrees
        left = f" (and a dp_degree of {_data_parallel(given, ranks[0])}, which Fleet takes)" if _is_left(given) else ""
        yield failed(
            subject,
            f"{' x '.join(quoted(claim) for claim in own)}{left} make {products[0]} ranks, but"
            f" {' and '.join(placed(claim) for claim in started)} {'starts' if len(started) == 1 else 'start'}"
            f" {ranks[0]}.",
            at=hybrid,
            also=(
                *((claim, "ranks started") for claim in started),
                *((claim, "degree") for claim in degrees if claim.span.line != hybrid.span.line),
            ),
            remedy=f"Make the degrees multiply to {ranks[0]}"
            + (
                ", and give dp_degree: without it, Fleet divides the ranks by mp_degree x pp_degree alone."
                if left
                else ", or remove dp_degree."
            ),
        )


#: What multiplies to the number of ranks (topology.py, _check_valid_topo).
_FACTORS = ("dp_degree", "mp_degree", "pp_degree", "sharding_degree", "sep_degree")


def _is_heterogeneous(job: Job, scope: Scope) -> bool:
    """Whether Fleet skips the groups of hybrid parallelism."""
    return any(True in claim.alternatives for claim in job.about("setting.paddle.heter_ccl_mode", scope))


def _is_left(given: dict[str, int]) -> bool:
    return given.get("dp_degree", -1) < 0


def _data_parallel(given: dict[str, int], ranks: int) -> int:
    """The dp_degree that Fleet uses (fleet.py, _init_hybrid_parallel_env)."""
    if not _is_left(given):
        return max(given["dp_degree"], 1)
    return max(ranks // (max(given.get("mp_degree", 1), 1) * max(given.get("pp_degree", 1), 1)), 1)


def _product(given: dict[str, int], ranks: int) -> int:
    """The ranks that the degrees make. A sharding_degree of 0 counts as 0, one of any other below 1 as 1."""
    return (
        _data_parallel(given, ranks)
        * max(given.get("mp_degree", 1), 1)
        * max(given.get("pp_degree", 1), 1)
        * max(given.get("sep_degree", 1), 1)
        * given.get("sharding_degree", 1)
    )


@rule(
    "PDL014",
    "trainer-degrees-do-not-divide-ranks",
    severity=Severity.ERROR,
    otherwise="no launch sets parallel degrees for PaddleNLP's trainer",
)
def trainer_degrees_do_not_divide_ranks(job: Job) -> Iterator[Verdict]:
    """The parallel degrees of PaddleNLP's trainer do not divide the ranks that are started.

    What it checks: tensor_parallel_degree x pipeline_parallel_degree x sep_parallel_degree x sharding_parallel_degree
    divides the number of ranks of a launch.

    Why it matters: An assertion fails in every rank once all of them have started: in the trainer, or in Fleet when it
    builds its groups.

    Example: `--gpus 0,1,2,3` with `--tensor_parallel_degree 2 --pipeline_parallel_degree 4`.

    Fix: Choose degrees whose product divides the ranks, or start a multiple of it.

    Known limits: The library chooses a degree of -1, which counts as 1 here. With one node, and ranks that more nodes
    would complete, it is a warning: recipes are published like that.
    """
    for launch in job.launches:
        claims = [c for name in _DEGREES for c in job.setting(name, launch.scope) if "_parallel_degree" in c.spelling]
        world, started = ranks_started(job, launch.scope)
        if not claims or not started or launch.launcher != "paddle":
            continue
        known = [claim for claim in claims if Symbol.LIBRARY_DEFAULT not in symbols_in(claim.value)]
        undecided_verdict = undecided(launch.id, (*known, *started), launch)
        ranks = numbers(world)
        if undecided_verdict is not None or not ranks:
            yield undecided_verdict or unknown(launch.id, "the number of ranks is known only at run time", at=launch)
            continue
        product = 1
        for claim in known:
            product *= max((1, *numbers(claim.value)))
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

"""Megatron-LM: ranks, parallel sizes and the global batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Unresolved, strongest
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.plugins.claim_text import quoted, why_unresolved
from preflight_rules.launches import certainly_one, ranks_started

_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
#: Options that only Megatron-LM's argument parser has in this spelling (megatron/training/arguments.py, core_r0.12).
_MEGATRON_OPTIONS = frozenset(
    (
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
        "--num-attention-heads",
        "--num-layers",
    )
)


def _is_megatron(launch: Launch) -> bool:
    return any(word is not None and word.partition("=")[0] in _MEGATRON_OPTIONS for word in launch.arguments)


def _may_hide_options(arguments: tuple[str | None, ...]) -> bool:
    """Whether an unresolved word may be an option; right after `--option` it is that option's value."""
    return any(
        word is None and (before is None or not before.startswith("--") or "=" in before)
        for before, word in itertools.pairwise(("", *arguments))
    )


def _stated(job: Job, launch: Launch, quantity: str) -> tuple[Claim, ...]:
    return strongest(c for c in job.about(quantity, launch.scope) if c.source == "arguments")


def _model_ranks(job: Job, launch: Launch) -> tuple[list[int], tuple[Claim, ...], str]:
    """Every possible product of the parallel sizes, the claims, and why one of them is unknown."""
    claims: tuple[Claim, ...] = ()
    products = [1]
    for quantity in _PARALLEL:
        found = _stated(job, launch, quantity)
        if not found:
            if _may_hide_options(launch.arguments):
                return [], claims, f"whether an unresolved argument gives the {quantity.replace('_', ' ')}"
            continue
        claims = (*claims, *found)
        sizes = numbers(job_value(found))
        if not sizes or min(sizes) < 1:
            why = why_unresolved(found, launch)
            return [], claims, why[1] if why else f"{quoted(found[0])}, which is not a positive number"
        products = [product * size for product in products for size in sizes]
    return products, claims, ""


def on_one_node(job: Job, launch: Launch) -> bool:
    """Whether the files give one node as a number: scripts for many nodes often have it as a placeholder."""
    if job.setting("standalone", launch.scope):
        return False
    nodes = job.requiring("nodes", launch.scope) or job.setting("nodes", launch.scope)
    return bool(nodes) and certainly_one(job_value(nodes))


@rule(
    "PAR001",
    "ranks-not-divisible-by-model-parallel-size",
    severity=Severity.ERROR,
    otherwise="no launch has Megatron-LM's options",
)
def ranks_not_divisible_by_model_parallel_size(job: Job) -> Iterator[Verdict]:
    """The ranks cannot be divided into replicas of the model.

    What it checks: For a launch with Megatron-LM's options, that tensor x pipeline x context parallel size divides the
    number of ranks that are started.

    Why it matters: An assertion in Megatron-LM fails in every rank once all of them have started.

    Example: 8 ranks with `--tensor-model-parallel-size 3 --pipeline-model-parallel-size 2`.

    Fix: Choose sizes whose product divides the ranks, or start a multiple of the product.

    Known limits: Sizes in a configuration file of another framework are not read. If the number of nodes is 1 without
    `--standalone`, and more nodes would make the sizes fit, it is a warning: scripts are published with placeholder
    numbers.
    """
    for launch in job.launches:
        if not _is_megatron(launch):
            continue
        products, sizes, hidden = _model_ranks(job, launch)
        ranks, because = ranks_started(job, launch.scope)
        started = numbers(ranks)
        undecided_verdict = why_unresolved((*sizes, *because), launch)
        if hidden or undecided_verdict is not None or not started:
            why = hidden or (
                undecided_verdict[1] if undecided_verdict else ranks.why if isinstance(ranks, Unresolved) else ""
            )
            yield unknown(launch.id, f"ranks by model parallel size: {why}", at=launch)
        elif all(count % product for count in started for product in products):
            count, product = started[0], products[0]
            yield failed(
                launch.id,
                f"{count} ranks are started, but one replica of the model needs {product}"
                f" ({' x '.join(quoted(c) for c in sizes)}), which does not divide {count}.",
                at=sizes[0],
                also=(*((c, "parallel size") for c in sizes[1:]), *((c, "ranks") for c in distinct(because))),
                remedy=f"Choose parallel sizes whose product divides {count}, or start a multiple of {product} ranks.",
                # Published scripts for many nodes often leave the number of nodes at 1, to be filled in.
                severity=Severity.WARNING if product % count == 0 and on_one_node(job, launch) else None,
            )
        else:
            yield passed(launch.id)


@rule(
    "BAT004",
    "global-batch-not-divisible",
    severity=Severity.ERROR,
    otherwise="no launch sets a global and a micro batch size for Megatron-LM",
)
def global_batch_not_divisible(job: Job) -> Iterator[Verdict]:
    """Megatron-LM's global batch cannot be divided into micro batches for all replicas.

    What it checks: micro batch x data-parallel replicas divides the global batch, where replicas are ranks divided by
    tensor, pipeline and context parallel sizes.

    Why it matters: An assertion in Megatron-LM fails in every rank once all of them have started.

    Example: `--micro-batch-size 4 --global-batch-size 30` on 8 ranks.

    Fix: Use a global batch that is a multiple of micro batch x replicas.

    Known limits: `--decrease-batch-size-if-needed` and `--rampup-batch-size` change the arithmetic; with them nothing
    is reported.
    """
    for launch in job.launches:
        total, micro = _stated(job, launch, "train_batch_size"), _stated(job, launch, "micro_batch_size_per_gpu")
        if not _is_megatron(launch) or not total or not micro:
            continue
        if {"--decrease-batch-size-if-needed", "--rampup-batch-size"}.intersection(launch.arguments):
            yield not_applicable(launch.id, "the global batch is changed at run time")
            continue
        yield _global_batch(job, launch, total, micro)


def _global_batch(job: Job, launch: Launch, total: tuple[Claim, ...], micro: tuple[Claim, ...]) -> Verdict:
    products, sizes, hidden = _model_ranks(job, launch)
    ranks, because = ranks_started(job, launch.scope)
    undecided_verdict = why_unresolved((*total, *micro, *sizes, *because), launch)
    if hidden or undecided_verdict is not None or not numbers(ranks):
        why = hidden or (
            undecided_verdict[1] if undecided_verdict else ranks.why if isinstance(ranks, Unresolved) else ""
        )
        return unknown(launch.id, f"global batch by replicas: {why}", at=total[0])
    cases = [
        (batch, one, count // product)
        for batch, one, count, product in itertools.product(
            numbers(job_value(total)), numbers(job_value(micro)), numbers(ranks), products
        )
        if count % product == 0 and one > 0
    ]
    if not cases or not all(batch % (one * replicas) for batch, one, replicas in cases):
        return passed(launch.id)
    batch, one, replicas = cases[0]
    unit = one * replicas
    return failed(
        launch.id,
        f"{quoted(total[0])} is not a multiple of {quoted(micro[0])} x {replicas} replicas = {unit}.",
        at=total[0],
        also=(
            (micro[0], "micro batch"),
            *((c, "determines the replicas") for c in (*sizes, *distinct(because))),
        ),
        remedy=f"Use a global batch size that is a multiple of {unit}, such as {-(-batch // unit) * unit}.",
    )

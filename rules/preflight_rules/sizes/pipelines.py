"""Pipeline parallelism: micro-batches, stages and the interleaved schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.job.claim import distinct
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight_rules.launches import ranks_started
from preflight_rules.sizes.parallel_sizes import Setup, setups

#: Efficient pipelines have a smaller bubble (Narayanan et al.).
_MAX_BUBBLE = 0.25
#: From this bubble on the finding is a warning.
_WARNING_BUBBLE = 0.4
_CHANGES_BATCH = ("--decrease-batch-size-if-needed", "--rampup-batch-size")


class Pipeline(NamedTuple):
    """Stages, micro-batches of one step, and chunks of layers that each stage holds."""

    stages: int
    micro_batches: int
    chunks: int
    claims: tuple[Claim, ...]

    @property
    def bubble(self) -> float:
        """The share of a step in which a stage waits (arXiv 2104.04473, section 2.2)."""
        return (self.stages - 1) / (self.chunks * self.micro_batches + self.stages - 1)


def pipeline_of(setup: Setup) -> Pipeline | str:
    """The pipeline of a Megatron launch, or why it is unknown; empty where there is none."""
    stages = setup.number("pipeline_parallel_size")
    claims = setup.claims("pipeline_parallel_size")
    if not claims:
        return ""
    if stages is None:
        return f"{quoted(claims[0])} is not known"
    if stages < 2:
        return ""
    total, micro = setup.number("train_batch_size"), setup.number("micro_batch_size_per_gpu")
    if setup.launch is None or total is None or micro is None or micro < 1:
        return "the global or the micro batch size is not known"
    if setup.may_have_more_options:
        return "an unresolved argument may give further sizes"
    ranks, because = ranks_started(setup.job, setup.scope)
    world = numbers(ranks)
    if len(world) != 1:
        return "the number of started ranks is unknown"
    parts = stages * (setup.number("tensor_parallel_size") or 1) * (setup.number("context_parallel_size") or 1)
    replicas, left = divmod(world[0], parts)
    if not replicas or left or total % (micro * replicas):
        # Another rule reports this.
        return "ranks or batch are not a multiple of the replicas"
    virtual, layers = setup.number("layers_per_virtual_stage"), setup.number("num_layers")
    chunks = layers // stages // virtual if virtual and layers and layers >= stages * virtual else 1
    stated = (*claims, *setup.claims("train_batch_size"), *setup.claims("micro_batch_size_per_gpu"), *because)
    return Pipeline(stages, total // (micro * replicas), max(chunks, 1), distinct(stated))


@rule(
    "PIP001",
    "pipeline-mostly-waits",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch has a pipeline of Megatron-LM",
    profile="pedantic",
)
def pipeline_mostly_waits(job: Job) -> Iterator[Verdict]:
    """A pipeline gets too few micro-batches to keep its stages busy.

    What it checks: For Megatron-LM's options, from global batch, micro batch and replicas: the micro-batches of a step,
    and the share of it in which a stage waits, (stages - 1) / (chunks x micro-batches + stages - 1). Above 25 % it is
    information, above 40 % a warning.

    Why it matters: Stages wait while the pipeline fills and drains. Without more micro-batches than stages most GPUs
    idle, and are paid for.

    Example: 8 stages and 4 micro-batches: stages wait for 64 % of each step.

    Fix: A larger global batch, a smaller micro batch, fewer stages, or `--num-layers-per-virtual-pipeline-stage`.

    Known limits: The training may require its batch size; then idle stages are the price of fitting into memory.
    """
    for setup in setups(job):
        found = pipeline_of(setup)
        if found == "" or setup.has(*_CHANGES_BATCH):
            continue
        if isinstance(found, str):
            yield unknown(setup.subject, f"the number of micro-batches is unknown: {found}", at=setup.launch)
            continue
        verdict = undecided(setup.subject, found.claims, setup.launch)
        if verdict is None and found.bubble > _MAX_BUBBLE:
            first = found.claims[0]
            verdict = failed(
                setup.subject,
                f"{quoted(first)} with {found.micro_batches} micro-batches in a step ({_batches(found)}): each stage "
                f"is idle for {found.bubble:.0%} of the time.",
                at=first,
                also=tuple((claim, "determines the micro-batches") for claim in found.claims[1:]),
                remedy=f"Use {4 * found.stages} micro-batches or more: a larger global batch, a smaller micro batch or"
                " fewer stages; or split the layers into chunks (--num-layers-per-virtual-pipeline-stage).",
                severity=None if found.bubble > _WARNING_BUBBLE else Severity.INFO,
            )
        yield verdict or passed(setup.subject)


def _batches(pipeline: Pipeline) -> str:
    return " and ".join(placed(claim) for claim in pipeline.claims[1:3])


@rule(
    "PIP002",
    "interleaved-pipeline-not-divisible",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no launch requests the interleaved schedule",
)
def interleaved_pipeline_not_divisible(job: Job) -> Iterator[Verdict]:
    """The sizes do not fit the interleaved pipeline schedule.

    What it checks: With `--num-layers-per-virtual-pipeline-stage`: the layers of a stage are a multiple of it, and
    there is more than one stage. Micro-batches that are not a multiple of the stages are a warning, because newer
    versions accept them.

    Why it matters: Megatron-LM fails at startup, or in the first step.

    Example: `--num-layers 30 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2`.

    Fix: Layers that are a multiple of stages x layers of a chunk, and a global batch that gives a multiple of the
    stages.

    Known limits: Layouts given by hand are not reported.
    """
    for setup in setups(job):
        virtual, stages, layers = (
            setup.claims(name) for name in ("layers_per_virtual_stage", "pipeline_parallel_size", "num_layers")
        )
        if not virtual or not stages or not layers or setup.has("--pipeline-model-parallel-layout"):
            continue
        undecided_verdict = undecided(setup.subject, (*virtual, *stages, *layers), setup.launch)
        chunk, many, all_of = (
            setup.number(name) for name in ("layers_per_virtual_stage", "pipeline_parallel_size", "num_layers")
        )
        if undecided_verdict is not None or chunk is None or many is None or all_of is None:
            yield undecided_verdict or unknown(setup.subject, "a size of the pipeline is not known", at=virtual[0])
            continue
        found = pipeline_of(setup)
        if many == 1:
            message, milder = f"{quoted(virtual[0])} is for several stages, and {placed(stages[0])} is one", False
        elif all_of % (many * chunk):
            message = (
                f"{quoted(layers[0])} cannot be split into chunks of {chunk} over {many} stages ({placed(virtual[0])})"
            )
            milder = False
        elif isinstance(found, Pipeline) and found.micro_batches % many:
            message = f"{found.micro_batches} micro-batches are not a multiple of the {many} stages"
            f" ({placed(stages[0])})"
            milder = True
        else:
            yield passed(setup.subject)
            continue
        yield failed(
            setup.subject,
            f"{message}: the interleaved schedule does not support this.",
            at=virtual[0],
            also=((stages[0], "stages"), (layers[0], "layers")),
            remedy=f"Use a number of layers that is a multiple of {many} x {chunk}, and a number of micro-batches"
            f" that is a multiple of {many}.",
            severity=Severity.WARNING if milder else None,
        )

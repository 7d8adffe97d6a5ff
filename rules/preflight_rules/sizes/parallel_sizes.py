"""Parallel sizes compared with the shapes of model and nodes, pipelines, and sizes that a program rejects."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from preflight.analysis.model_size import is_megatron
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Plain, Scope, Unresolved, is_whole_number
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import known_number, numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, placed, quoted
from preflight.plugins.questions import subjects
from preflight.sources.conditions import UnknownValue, evaluate, holds
from preflight_rules.data_tables import table
from preflight_rules.launches import ranks_started

#: Sources whose sizes are compared: within one command line, or one configuration.
_SOURCES = ("arguments", "gpt-neox", "lightning", "nanotron", "megatron-bridge", "paddlefleetx", "trainer")
#: Sources of jobs that Megatron-LM itself runs.
_MEGATRON = ("arguments", "lightning", "megatron-bridge")
#: Trainers that load a model with its own configuration.
_MODEL_TRAINERS = ("trainer",)
#: Programs that start Megatron-LM with such a model: ms-swift.
_MEGATRON_MODELS = ("swift/cli/_megatron/",)
#: Options that divide the layers unevenly.
_UNEVEN_OPTIONS = (
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--num-layers-in-first-pipeline-stage",
    "--num-layers-in-last-pipeline-stage",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-layout",
    "--pipeline-model-parallel-split-rank",
    "--encoder-num-layers",
    "--use-legacy-models",
    "--yaml-cfg",
    "--custom-pipeline-layers",
    # DeepSpeed's pipeline engine weighs layers itself.
    "--deepspeed",
    "--deepspeed-config",
    "--pp-partition-method",
)
#: Quantities that give the shape of a model.
_SHAPE_QUANTITIES = ("num_layers", "hidden_size", "attention_heads", "tensor_parallel_size")


class Setup(NamedTuple):
    """One source of a model's shape: the options of a launch, or a configuration of a framework."""

    job: Job
    subject: str
    scope: Scope
    launch: Launch | None
    source: str

    def claims(self, quantity: str) -> tuple[Claim, ...]:
        """Return the source's claims about a quantity. The command line also applies to its configuration."""
        sources = (self.source, "arguments", "model") if self.source in _MODEL_TRAINERS else (self.source, "arguments")
        return tuple(c for c in self.job.setting(quantity, self.scope) if c.source in sources)

    @property
    def runs_megatron(self) -> bool:
        """Return whether Megatron-LM itself builds the model, from its options or from a published configuration."""
        program = self.launch.program if self.launch is not None else ""
        return self.source == "arguments" or program.startswith(_MEGATRON_MODELS)

    @property
    def is_configured(self) -> bool:
        """Return whether a configuration of this source sets any of the sizes."""
        sizes = (*_SHAPE_QUANTITIES, "pipeline_parallel_size", "context_parallel_size", "micro_batch_size_per_gpu")
        source = "model" if self.source in _MODEL_TRAINERS else self.source
        return any(c.source == source for name in sizes for c in self.job.about(name, self.scope))

    def number(self, quantity: str) -> int | None:
        """Return the value of a quantity; None if it has no positive value, several values, or an unresolved value."""
        claims = self.claims(quantity)
        number = known_number(job_value(claims)) if claims else None
        return number if number is not None and number > 0 else None

    def has(self, *options: str) -> bool:
        """Return whether the command line has one of these options."""
        words = self.launch.arguments if self.launch is not None else ()
        return any(word is not None and word.partition("=")[0].replace("_", "-") in options for word in words)

    @property
    def may_have_more_options(self) -> bool:
        """Return whether an unresolved argument may contain more options."""
        words = self.launch.arguments if self.launch is not None else ()
        return any(
            word is None and (previous is None or not previous.startswith("--") or "=" in previous)
            for previous, word in zip(("", *words), words, strict=False)
        )


def setups(job: Job) -> Iterator[Setup]:
    """Yield every source of a model's shape."""
    seen_lines: set[tuple[str, int]] = set()
    shape_quantities = [name for name in _SHAPE_QUANTITIES if job.about(name)]
    for subject, scope, launch in subjects(job) if shape_quantities else ():
        for source in _SOURCES:
            setup = Setup(job, subject, scope, launch, source)
            shape = next((claims for name in shape_quantities if (claims := setup.claims(name))), ())
            if source == "arguments" and (launch is None or not is_megatron(launch)):
                continue
            if not shape or (source != "arguments" and not setup.is_configured):
                continue
            key = (shape[0].span.path, shape[0].span.line)
            if source == "arguments" or key not in seen_lines:
                seen_lines.add(key)
                yield setup


class SizeDemand(NamedTuple):
    """A requirement on two quantities: `whole` is a multiple of `part`; with `at_least`, `whole` is not below `part`.

    It applies to setups for which `applies` returns true. `error` is whether a violation certainly stops the program.
    """

    whole: str
    part: str
    why: str
    error: bool
    applies: Callable[[Setup], bool] = lambda setup: True
    at_least: bool = False
    #: Holds for trainers that load a published model as well.
    of_models: bool = False

    def is_violated(self, whole: int, part: int) -> bool:
        """Return whether the two sizes violate the requirement."""
        return whole < part if self.at_least else whole % part != 0


_DEMANDS = (
    SizeDemand("hidden_size", "attention_heads", "each head gets an equal part of the width", error=True,
           applies=lambda s: s.source == "arguments" and not s.has("--kv-channels")),
    SizeDemand("attention_heads", "tensor_parallel_size", "each rank holds the same number of heads", error=True,
           of_models=True),
    SizeDemand("ffn_hidden_size", "tensor_parallel_size", "each rank holds an equal part of the feed-forward width",
           error=True),
    SizeDemand("query_groups", "tensor_parallel_size", "each rank holds the same number of groups", error=False,
           applies=lambda s: (s.number("query_groups") or 0) >= (s.number("tensor_parallel_size") or 1)),
    SizeDemand("query_groups", "tensor_parallel_size", "nanotron gives each rank at least one", error=True,
           at_least=True, applies=lambda s: s.source == "nanotron"),
    SizeDemand("attention_heads", "query_groups", "each group has the same number of heads", error=True),
    SizeDemand("num_experts", "expert_parallel_size", "each rank holds the same number of experts", error=True,
           applies=lambda s: s.source not in ("nanotron", "paddlefleetx")),
    SizeDemand("num_layers", "pipeline_parallel_size", "each stage holds the same number of layers", error=True,
           of_models=True, applies=lambda s: s.runs_megatron and not s.has(*_UNEVEN_OPTIONS)),
    SizeDemand("sequence_length", "context_parallel_size", "each rank holds an equal part of the sequence", error=True,
           applies=lambda s: s.source in ("gpt-neox", "lightning", "nanotron")),
)  # fmt: skip


@rule(
    "PAR010",
    "model-not-divisible-by-parallel-size",
    severity=Severity.ERROR,
    otherwise="no model sizes are set together with parallel sizes",
)
def model_not_divisible_by_parallel_size(job: Job) -> Iterator[Verdict]:
    """A size of the model is not divisible by the parallel size that splits it.

    What it checks: For Megatron-LM and the configurations of gpt-neox, NeMo, Megatron-Bridge, nanotron and
    PaddleFleetX: heads, feed-forward width and query groups are divisible by the tensor parallel size, layers by
    pipeline stages, experts by the expert parallel size, the sequence by the context parallel size, the width by heads,
    and heads by query groups.

    Why it matters: Each rank must have an equal part; an assertion in Megatron-LM fails in every rank once all have
    started.

    Example: `--num-attention-heads 12 --tensor-model-parallel-size 8`.

    Fix: Choose a parallel size that divides the number.

    Known limits: Layers that are distributed unevenly on purpose, and gpt-neox's own partition of layers, are not
    reported.
    """
    for setup in setups(job):
        for demand in _DEMANDS:
            whole, part = setup.claims(demand.whole), setup.claims(demand.part)
            if not whole or not part or not demand.applies(setup):
                continue
            if setup.source in _MODEL_TRAINERS and not demand.of_models:
                continue
            verdict = undecided(setup.subject, (*whole, *part), setup.launch)
            wholes, parts = numbers(job_value(whole)), numbers(job_value(part))
            if (
                verdict is None
                and wholes
                and parts
                and min((*wholes, *parts)) > 0
                and all(demand.is_violated(w, p) for w in wholes for p in parts)
            ):
                relation = "is less than" if demand.at_least else "is not a multiple of"
                verdict = failed(
                    setup.subject,
                    f"{quoted(whole[0])} {relation} {placed(part[0])}, and {demand.why}.",
                    at=whole[0],
                    also=((part[0], "divides it"),),
                    remedy=f"Choose at most {wholes[0]}."
                    if demand.at_least
                    else f"Choose a number that divides {wholes[0]}, or another multiple of {parts[0]}.",
                    # NeMo's files are templates, whose numbers are overridden on the command line.
                    severity=None if demand.error and setup.source != "lightning" else Severity.WARNING,
                )
            yield verdict or passed(setup.subject)


@rule(
    "PAR011",
    "tensor-parallel-across-nodes",
    severity=Severity.WARNING,
    otherwise="no launch sets both a tensor parallel size and the ranks per node",
)
def tensor_parallel_across_nodes(job: Job) -> Iterator[Verdict]:
    """The tensor-parallel ranks of a layer do not fit on one node.

    What it checks: For Megatron-LM's options, the tensor parallel size is at most the number of ranks per node.

    Why it matters: Tensor parallelism exchanges activations twice in every layer and waits for them. Over the network
    between nodes, this is several times slower than over NVLink; a pipeline sends far less data.

    Example: `--nproc_per_node=8` with `--tensor-model-parallel-size 16`.

    Fix: Use a tensor parallel size of at most the GPUs per node, and more pipeline stages.

    Known limits: Machines whose NVLink spans nodes (NVL72) are also reported, although they are fine.
    """
    for setup in setups(job):
        tensor = setup.claims("tensor_parallel_size")
        rank_claims = job.setting("processes_per_node", setup.scope)
        nodes = job.requirement_claims("nodes", setup.scope) or job.setting("nodes", setup.scope)
        if not tensor or not rank_claims or setup.launch is None:
            continue
        verdict = undecided(setup.subject, (*tensor, *rank_claims), setup.launch)
        sizes, ranks = numbers(job_value(tensor)), numbers(job_value(rank_claims))
        if (
            verdict is None
            and sizes
            and ranks
            and min(sizes) > max(ranks)
            and max(numbers(job_value(nodes)) or (2,)) > 1
        ):
            verdict = failed(
                setup.subject,
                f"{quoted(tensor[0])} spreads each layer over {min(sizes)} ranks, but {placed(rank_claims[0])} "
                f"starts only {max(ranks)} on each node, so every layer waits for the network twice.",
                at=tensor[0],
                also=((rank_claims[0], "ranks per node"),),
                remedy=f"Use at most {max(ranks)}, and use more pipeline stages instead.",
            )
        yield verdict or passed(setup.subject)


@rule(
    "PAR012",
    "connections-not-limited-to-one",
    severity=Severity.WARNING,
    otherwise="no launch overlaps tensor-parallel communication",
)
def connections_not_limited_to_one(job: Job) -> Iterator[Verdict]:
    """Megatron-LM overlaps tensor-parallel communication, but CUDA_DEVICE_MAX_CONNECTIONS is not 1.

    What it checks: A launch with a tensor parallel size above 1 and `--sequence-parallel` sets
    CUDA_DEVICE_MAX_CONNECTIONS to 1.

    Why it matters: An assertion in Megatron-LM fails at startup on GPUs before Blackwell: only with one connection do
    kernels start in the order in which communication and computation can overlap.

    Example: `export CUDA_DEVICE_MAX_CONNECTIONS=8` with `--tensor-model-parallel-size 4 --sequence-parallel`.

    Fix: `export CUDA_DEVICE_MAX_CONNECTIONS=1`.

    Known limits: If the job does not set it, the container image may, so the finding is informational. Fully sharded
    training needs another value and is not reported.
    """
    for setup in setups(job):
        tensor = setup.claims("tensor_parallel_size")
        sequence_parallel = tuple(claim for claim in setup.claims("sequence_parallel") if claim.value != Known(False))
        if setup.source not in _MEGATRON or not tensor or not sequence_parallel or setup.launch is None:
            continue
        if setup.has("--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp"):
            continue
        connections = job.setting("env.CUDA_DEVICE_MAX_CONNECTIONS", setup.scope)
        if undecided_verdict := undecided(setup.subject, (*tensor, *connections), setup.launch):
            yield undecided_verdict
            continue
        values = numbers(job_value(connections)) if connections else ()
        if max(numbers(job_value(tensor)) or (1,)) <= 1 or (values and set(values) == {1}):
            yield passed(setup.subject)
            continue
        state = f"{quoted(connections[0])} sets a different value" if connections else "the job does not set it"
        yield failed(
            setup.subject,
            f"{quoted(tensor[0])} with {quoted(sequence_parallel[0])} needs CUDA_DEVICE_MAX_CONNECTIONS=1, but "
            f"{state}.",
            at=connections[0] if connections else tensor[0],
            also=((sequence_parallel[0], "needs it"),),
            remedy="Put `export CUDA_DEVICE_MAX_CONNECTIONS=1` before the launch.",
            severity=None if connections else Severity.INFO,
        )


#: The largest bubble of an efficient pipeline (Narayanan et al.).
_MAX_BUBBLE = 0.25
#: From this bubble on the finding is a warning.
_WARNING_BUBBLE = 0.4
_BATCH_CHANGING_OPTIONS = ("--decrease-batch-size-if-needed", "--rampup-batch-size")


class Pipeline(NamedTuple):
    """Stages, micro-batches per step, and chunks of layers per stage."""

    stages: int
    micro_batches: int
    chunks: int
    claims: tuple[Claim, ...]

    @property
    def bubble(self) -> float:
        """The share of a step in which a stage waits (arXiv 2104.04473, section 2.2)."""
        return (self.stages - 1) / (self.chunks * self.micro_batches + self.stages - 1)


def pipeline_of(setup: Setup) -> Pipeline | str:
    """Return the pipeline of a Megatron launch, the reason why it is unknown, or an empty string if it has none."""
    stages = setup.number("pipeline_parallel_size")
    claims = setup.claims("pipeline_parallel_size")
    if not claims:
        return ""
    if stages is None:
        return f"{quoted(claims[0])} is unknown"
    if stages < 2:
        return ""
    total, micro = setup.number("train_batch_size"), setup.number("micro_batch_size_per_gpu")
    if setup.launch is None or total is None or micro is None or micro < 1:
        return "the global or the micro batch size is unknown"
    if setup.may_have_more_options:
        return "an unresolved argument may set other sizes"
    ranks, rank_claims = ranks_started(setup.job, setup.scope)
    rank_counts = numbers(ranks)
    if len(rank_counts) != 1:
        return "the number of started ranks is unknown"
    parts = stages * (setup.number("tensor_parallel_size") or 1) * (setup.number("context_parallel_size") or 1)
    replicas, remainder = divmod(rank_counts[0], parts)
    if not replicas or remainder or total % (micro * replicas):
        # Another rule reports this.
        return "the ranks or the batch cannot be divided evenly"
    layers_per_chunk, layers = setup.number("layers_per_virtual_stage"), setup.number("num_layers")
    chunks = (
        layers // stages // layers_per_chunk
        if layers_per_chunk and layers and layers >= stages * layers_per_chunk
        else 1
    )
    size_claims = (*claims, *setup.claims("train_batch_size"), *setup.claims("micro_batch_size_per_gpu"), *rank_claims)
    return Pipeline(stages, total // (micro * replicas), max(chunks, 1), distinct(size_claims))


@rule(
    "PIP001",
    "pipeline-mostly-waits",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch has a Megatron-LM pipeline",
    profile="pedantic",
)
def pipeline_mostly_waits(job: Job) -> Iterator[Verdict]:
    """A pipeline has too few micro-batches to keep its stages busy.

    What it checks: For Megatron-LM's options, from global batch, micro batch and replicas: the micro-batches per step,
    and the share of a step in which a stage waits, (stages - 1) / (chunks x micro-batches + stages - 1). Above 25 % the
    finding is informational, above 40 % a warning.

    Why it matters: Stages wait while the pipeline fills and drains. Without more micro-batches than stages, most GPUs
    are idle.

    Example: 8 stages and 4 micro-batches: stages wait for 64 % of each step.

    Fix: A larger global batch, a smaller micro batch, fewer stages, or `--num-layers-per-virtual-pipeline-stage`.

    Known limits: If the training requires its batch size, the stages cannot be kept busier.
    """
    for setup in setups(job):
        pipeline = pipeline_of(setup)
        if pipeline == "" or setup.has(*_BATCH_CHANGING_OPTIONS):
            continue
        if isinstance(pipeline, str):
            yield unknown(setup.subject, f"the number of micro-batches is unknown: {pipeline}", at=setup.launch)
            continue
        verdict = undecided(setup.subject, pipeline.claims, setup.launch)
        if verdict is None and pipeline.bubble > _MAX_BUBBLE:
            first = pipeline.claims[0]
            verdict = failed(
                setup.subject,
                f"{quoted(first)} with {pipeline.micro_batches} micro-batches per step ({_batches_text(pipeline)}): "
                f"each stage is idle for {pipeline.bubble:.0%} of the time.",
                at=first,
                also=tuple((claim, "determines the number of micro-batches") for claim in pipeline.claims[1:]),
                remedy=f"Use {4 * pipeline.stages} micro-batches or more: a larger global batch, a smaller micro"
                " batch or fewer stages; or split the layers into chunks (--num-layers-per-virtual-pipeline-stage).",
                severity=None if pipeline.bubble > _WARNING_BUBBLE else Severity.INFO,
            )
        yield verdict or passed(setup.subject)


def _batches_text(pipeline: Pipeline) -> str:
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

    What it checks: With `--num-layers-per-virtual-pipeline-stage`: the number of layers per stage is a multiple of it,
    and there is more than one stage. Micro-batches that are not a multiple of the stages are a warning, because newer
    versions accept them.

    Why it matters: Megatron-LM fails at startup, or in the first step.

    Example: `--num-layers 30 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2`.

    Fix: Use a number of layers that is a multiple of stages x layers per chunk, and a global batch with a multiple of
    the stages as micro-batches.

    Known limits: Explicit layouts are not reported.
    """
    for setup in setups(job):
        virtual, stages, layers = (
            setup.claims(name) for name in ("layers_per_virtual_stage", "pipeline_parallel_size", "num_layers")
        )
        if not virtual or not stages or not layers or setup.has("--pipeline-model-parallel-layout"):
            continue
        undecided_verdict = undecided(setup.subject, (*virtual, *stages, *layers), setup.launch)
        chunk, count, layer_count = (
            setup.number(name) for name in ("layers_per_virtual_stage", "pipeline_parallel_size", "num_layers")
        )
        if undecided_verdict is not None or chunk is None or count is None or layer_count is None:
            yield undecided_verdict or unknown(
                setup.subject,
                "the number of stages, layers or layers per virtual stage is unknown",
                at=virtual[0],
            )
            continue
        pipeline = pipeline_of(setup)
        if count == 1:
            message, is_warning = (
                f"{quoted(virtual[0])} requires several stages, but {placed(stages[0])} gives one",
                False,
            )
        elif layer_count % (count * chunk):
            message = (
                f"{quoted(layers[0])} cannot be split into chunks of {chunk} over {count} stages ({placed(virtual[0])})"
            )
            is_warning = False
        elif isinstance(pipeline, Pipeline) and pipeline.micro_batches % count:
            message = (
                f"{pipeline.micro_batches} micro-batches are not a multiple of the {count} stages ({placed(stages[0])})"
            )
            is_warning = True
        else:
            yield passed(setup.subject)
            continue
        yield failed(
            setup.subject,
            f"{message}: the interleaved schedule does not support this.",
            at=virtual[0],
            also=((stages[0], "stages"), (layers[0], "layers")),
            remedy=f"Use a number of layers that is a multiple of {count} x {chunk}, and a number of micro-batches"
            f" that is a multiple of {count}.",
            severity=Severity.WARNING if is_warning else None,
        )


# Sizes that a program, or the validator of a framework for reinforcement learning, rejects. One rule judges each table.


_RANKS = "ranks"


class _Program(NamedTuple):
    name: str
    match: str
    needs: tuple[str, ...]
    options: dict[str, int]
    when: str
    at: str
    why: str
    remedy: str
    severity: str
    source: str


@functools.cache
def _programs() -> tuple[_Program, ...]:
    return tuple(_Program(**{**row, "needs": tuple(row["needs"])}) for row in table("programs")["program"])


@rule(
    "BAT025",
    "program-sizes-refused",
    severity=Severity.ERROR,
    otherwise="no launch starts a program whose sizes are known",
)
def program_sizes_refused(job: Job) -> Iterator[Verdict]:
    """A known program is given batch sizes or parallel degrees that do not fit the ranks that are started.

    What it checks: The options and defaults of known programs (OpenRLHF's trainers, finetrainers, YOLOv5 and similar)
    meet none of the conditions in a table that make them stop.

    Why it matters: The program compares its sizes with the number of ranks first of all, and every rank stops with an
    AssertionError or ValueError.

    Example: `deepspeed --num_gpus 7 --module openrlhf.cli.train_sft --train_batch_size 256 --micro_train_batch_size 2`.

    Fix: The finding names the numbers that must divide each other.

    Known limits: For a program that is recognized only by its options, the finding is a warning.
    """
    for launch in job.launches:
        options = _option_values(launch)
        for row in _programs():
            if re.fullmatch(row.match, launch.program) is None or not all(name in options for name in row.needs):
                continue
            yield _program_verdict(job, launch, row, options)


def _program_verdict(job: Job, launch: Launch, row: _Program, options: dict[str, str | None]) -> Verdict:
    def value_of(name: str) -> int:
        if name == _RANKS:
            rank_counts = numbers(ranks_started(job, launch.scope)[0])
            if len(rank_counts) != 1:
                raise UnknownValue("the number of ranks")
            return int(rank_counts[0])
        if name not in options:
            if None in launch.arguments:
                raise UnknownValue(f"the arguments may contain `--{name}`")
            return row.options[name]
        text = options[name]
        if text is None or not is_whole_number(text.lstrip("-")):
            raise UnknownValue(f"the value of `--{name}`")
        return int(text)

    try:
        if not holds(row.when, value_of):
            return passed(launch.id)
    except UnknownValue as error:
        return unknown(launch.id, f"{row.name}: {error} is unknown", at=launch)
    value, rank_claims = ranks_started(job, launch.scope)
    word = next((w for w in launch.arguments if w and _bare_name(w.partition("=")[0]) == row.at), f"--{row.at}")
    option_text = f"`{word}`" if "=" in word else f"`{word} {value_of(row.at)}`"
    option_text += "" if row.at in options else f" (the default of {row.name})"
    return failed(
        launch.id,
        f"{option_text} on {counted(int(numbers(value)[0]), 'rank')} {row.why}.",
        at=launch,
        also=tuple((claim, "ranks") for claim in rank_claims[:1]),
        remedy=row.remedy,
        severity=None if row.severity == "error" else Severity.WARNING,
    )


def _option_values(launch: Launch) -> dict[str, str | None]:
    """Return a program's options by bare name, with their values; None for an unknown value."""
    options: dict[str, str | None] = {}
    words = launch.arguments
    for index, word in enumerate(words):
        if word is None or not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = words[index + 1] if index + 1 < len(words) else None
        options[_bare_name(name)] = value if equals else following
    return options


def _bare_name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True)
class _Constraint:
    """A row of `data/rl_sizes.toml`, whose head describes the fields: a framework's check at startup."""

    name: str
    frameworks: Sequence[str]
    quantities: Sequence[str]
    holds: str
    fault: str
    remedy: str
    optional: Sequence[str] = ()
    needs: Mapping[str, Sequence[Plain]] = field(default_factory=dict)
    excludes: Mapping[str, Plain] = field(default_factory=dict)
    computed: Mapping[str, str] = field(default_factory=dict)

    def with_computed(self, numbers_of: dict[str, int]) -> dict[str, int]:
        """Return the given numbers and those computed from them."""
        known = dict(numbers_of)
        for name, expression in self.computed.items():
            known[name] = evaluate(expression, known.__getitem__)
        return known


@functools.cache
def _constraints() -> tuple[_Constraint, ...]:
    return tuple(_Constraint(**row) for row in table("rl_sizes")["constraint"])


@rule("RLT001", "rl-sizes-refused", severity=Severity.ERROR, otherwise="no launch of such a framework sets these sizes")
def rl_sizes_refused(job: Job) -> Iterator[Verdict]:
    """The reinforcement-learning framework rejects sizes of batches, engines or replicas at startup.

    What it checks: As verl, EasyR1, SkyRL, NeMo-RL and OpenRLHF require, the number of GPUs divides the responses of a
    step, an update is at most a step and is a multiple of its micro batches, the number of GPUs is a multiple of the
    GPUs per replica and per engine, and the engines that share the actor's GPUs use the same number.

    Why it matters: The program stops with an assertion after Ray has started on all nodes, often after the model has
    been loaded.

    Example: `trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.tensor_model_parallel_size=3`.

    Fix: The message names the numbers that do not fit; change one of them.

    Known limits: A custom program on top of one of these frameworks may skip the check, so it is a warning. With
    dynamic batches, verl divides by tokens, and batch sizes are not judged. Values not set in the files are not judged.
    """
    for launch in job.launches:
        names = {str(value) for claim in job.about("training_framework", launch.scope) for value in claim.alternatives}
        for constraint in _constraints():
            if not names & set(constraint.frameworks):
                continue
            verdict = _judge_constraint(job, launch, constraint)
            if verdict is not None:
                yield verdict


def _judge_constraint(job: Job, launch: Launch, constraint: _Constraint) -> Verdict | None:
    """Return the verdict on one constraint; None if it does not apply to the launch."""
    scope, subject = launch.scope, f"{launch.id} {constraint.name}"
    if any(claim.scope.role == "rollout" for claim in job.about("nodes") if claim.scope.launch == launch.id):
        return None  # Generation has its own GPUs, and a different validator checks the sizes.
    claims: dict[str, tuple[Claim, ...]] = {}
    for quantity in (*constraint.quantities, *constraint.optional):
        claims[quantity] = _framework_claims(job, quantity, scope)
    if not all(claims[quantity] for quantity in constraint.quantities):
        return None
    if not all(_certainly_has(job, quantity, scope, values) for quantity, values in constraint.needs.items()):
        return None
    if not all(_certainly_not(job, quantity, scope, value) for quantity, value in constraint.excludes.items()):
        return None
    all_claims = [claim for quantity_claims in claims.values() for claim in quantity_claims]
    if undecided_verdict := undecided(subject, all_claims, launch):
        return undecided_verdict
    combinations = []
    for quantity, quantity_claims in claims.items():
        sizes = numbers(job_value(quantity_claims)) if quantity_claims else (1,)
        if not sizes or min(sizes) < 1:
            return unknown(subject, f"{quantity} is not a positive number", at=all_claims[0])
        combinations.append([(quantity, size) for size in sizes])
    size_sets = [constraint.with_computed(dict(size_set)) for size_set in itertools.product(*combinations)]
    if any(holds(constraint.holds, size_set.__getitem__) for size_set in size_sets):
        return passed(subject)
    first = claims[constraint.quantities[0]][0]
    is_variant = bool(job.setting("framework_variant", scope))
    others = [claim for quantity_claims in claims.values() for claim in quantity_claims if claim is not first]
    return failed(
        subject,
        f"{quoted(first)}{_related_claims(others)}: {constraint.fault.format(**size_sets[0])}."
        f" {_effect_text(is_variant)}",
        at=first,
        also=tuple(others),
        remedy=constraint.remedy,
        severity=Severity.WARNING if is_variant else None,
    )


def _effect_text(is_variant: bool) -> str:
    if is_variant:
        return "The framework's own program fails at startup; but this program may skip the check."
    return "The program fails at startup."


def _related_claims(others: list[Claim]) -> str:
    """Return text that names the other claims on which a message depends; empty if there are none."""
    return f" with {', '.join(placed(claim) for claim in others)}" if others else ""


def _framework_claims(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """Return the effective claims that the framework itself reads, without a scheduler's claims."""
    return tuple(claim for claim in job.setting(quantity, scope) if not claim.scope.role)


def _certainly_has(job: Job, quantity: str, scope: Scope, values: Sequence[Plain]) -> bool:
    claims = job.setting(quantity, scope)
    return bool(claims) and all(
        bool(claim.alternatives) and all(value in values for value in claim.alternatives) for claim in claims
    )


def _certainly_not(job: Job, quantity: str, scope: Scope, value: Plain) -> bool:
    """Return whether a quantity certainly differs from `value`, or is not set."""
    return all(
        not isinstance(claim.value, Unresolved) and value not in claim.alternatives
        for claim in job.setting(quantity, scope)
    )

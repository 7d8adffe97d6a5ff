"""Parallel sizes compared with the shape of the model and of the nodes; pipelines: micro-batches,
stages, the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from preflight.analysis.model_size import is_megatron
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Scope
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import known_number, numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import subjects
from preflight_rules.launches import ranks_started

#: Sources whose sizes are compared: within one command line, or one configuration.
_SOURCES = ("arguments", "gpt-neox", "lightning", "nanotron", "megatron-bridge", "paddlefleetx", "trainer")
#: Sources of jobs that Megatron-LM itself runs.
_MEGATRON = ("arguments", "lightning", "megatron-bridge")
#: Trainers that load a model with a configuration of its own.
_OF_MODELS = ("trainer",)
#: Options that divide the layers unevenly.
_UNEVEN = (
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
    "--deepspeed_config",
    "--pp-partition-method",
)
#: Quantities that give the shape of a model.
_SHAPE = ("num_layers", "hidden_size", "attention_heads", "tensor_parallel_size")


class Setup(NamedTuple):
    """One source of a model's shape: a Megatron launch, or a gpt-neox configuration."""

    job: Job
    subject: str
    scope: Scope
    launch: Launch | None
    source: str

    def claims(self, quantity: str) -> tuple[Claim, ...]:
        """The claims of this source about a quantity; what the command line sets also counts for its configuration."""
        own = (self.source, "arguments", "model") if self.source in _OF_MODELS else (self.source, "arguments")
        return tuple(c for c in self.job.setting(quantity, self.scope) if c.source in own)

    @property
    def is_configured(self) -> bool:
        """Whether a configuration of this source sets any of the sizes."""
        sizes = (*_SHAPE, "pipeline_parallel_size", "context_parallel_size", "micro_batch_size_per_gpu")
        own = "model" if self.source in _OF_MODELS else self.source
        return any(c.source == own for name in sizes for c in self.job.about(name, self.scope))

    def number(self, quantity: str) -> int | None:
        """The single value of a quantity; None if there is none, several, or an unresolved one."""
        found = self.claims(quantity)
        number = known_number(job_value(found)) if found else None
        return number if number is not None and number > 0 else None

    def has(self, *options: str) -> bool:
        """Whether the command line has one of these options."""
        words = self.launch.arguments if self.launch is not None else ()
        return any(word is not None and word.partition("=")[0] in options for word in words)

    @property
    def may_have_more_options(self) -> bool:
        """Whether an unresolved argument may hold further options."""
        words = self.launch.arguments if self.launch is not None else ()
        return any(
            word is None and (before is None or not before.startswith("--") or "=" in before)
            for before, word in zip(("", *words), words, strict=False)
        )


def setups(job: Job) -> Iterator[Setup]:
    """Every source of a model's shape."""
    seen: set[tuple[str, int]] = set()
    named = [name for name in _SHAPE if job.about(name)]
    for subject, scope, launch in subjects(job) if named else ():
        for source in _SOURCES:
            setup = Setup(job, subject, scope, launch, source)
            shape = next((found for name in named if (found := setup.claims(name))), ())
            if source == "arguments" and (launch is None or not is_megatron(launch)):
                continue
            if not shape or (source != "arguments" and not setup.is_configured):
                continue
            key = (shape[0].span.path, shape[0].span.line)
            if source == "arguments" or key not in seen:
                seen.add(key)
                yield setup


class Demand(NamedTuple):
    """`whole` must be a multiple of `part`, in setups for which `applies` is true; with `at_least`, it must only be no
    smaller.
    """

    whole: str
    part: str
    why: str
    error: bool
    applies: Callable[[Setup], bool] = lambda setup: True
    at_least: bool = False
    #: Holds for trainers that load a published model as well.
    of_models: bool = False

    def violated(self, whole: int, part: int) -> bool:
        """Whether these two sizes do not fit."""
        return whole < part if self.at_least else whole % part != 0


_DEMANDS = (
    Demand("hidden_size", "attention_heads", "each head gets an equal part of the width", error=True,
           applies=lambda s: s.source == "arguments" and not s.has("--kv-channels")),
    Demand("attention_heads", "tensor_parallel_size", "each rank holds the same number of heads", error=True,
           of_models=True),
    Demand("ffn_hidden_size", "tensor_parallel_size", "each rank holds an equal part of the feed-forward width",
           error=True),
    Demand("query_groups", "tensor_parallel_size", "each rank holds the same number of groups", error=False,
           applies=lambda s: (s.number("query_groups") or 0) >= (s.number("tensor_parallel_size") or 1)),
    Demand("query_groups", "tensor_parallel_size", "nanotron gives each rank at least one", error=True, at_least=True,
           applies=lambda s: s.source == "nanotron"),
    Demand("attention_heads", "query_groups", "each group has the same number of heads", error=True),
    Demand("num_experts", "expert_parallel_size", "each rank holds the same number of experts", error=True,
           applies=lambda s: s.source not in ("nanotron", "paddlefleetx")),
    Demand("num_layers", "pipeline_parallel_size", "each stage holds the same number of layers", error=True,
           applies=lambda s: s.source == "arguments" and not s.has(*_UNEVEN)),
    Demand("sequence_length", "context_parallel_size", "each rank holds an equal part of the sequence", error=True,
           applies=lambda s: s.source in ("gpt-neox", "lightning", "nanotron")),
)  # fmt: skip


@rule(
    "PAR010",
    "model-not-divisible-by-parallel-size",
    severity=Severity.ERROR,
    otherwise="no sizes of a model are given together with parallel sizes",
)
def model_not_divisible_by_parallel_size(job: Job) -> Iterator[Verdict]:
    """A size of the model is not divisible by the parallel size that splits it.

    What it checks: For Megatron-LM and the configurations of gpt-neox, NeMo, Megatron-Bridge, nanotron and
    PaddleFleetX: heads, feed-forward width and query groups by tensor parallel size, layers by pipeline stages, experts
    by expert parallel size, sequence by context parallel size, width by heads, heads by query groups.

    Why it matters: Each rank must hold an equal part; an assertion in Megatron-LM fails in every rank once all have
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
            if setup.source in _OF_MODELS and not demand.of_models:
                continue
            verdict = undecided(setup.subject, (*whole, *part), setup.launch)
            wholes, parts = numbers(job_value(whole)), numbers(job_value(part))
            if (
                verdict is None
                and wholes
                and parts
                and min((*wholes, *parts)) > 0
                and all(demand.violated(w, p) for w in wholes for p in parts)
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

    What it checks: For Megatron-LM's options, that the tensor parallel size is at most the ranks of a node.

    Why it matters: Tensor parallelism exchanges activations twice in every layer and waits for them. Over the network
    between nodes that is several times slower than over NVLink; a pipeline sends far less.

    Example: `--nproc_per_node=8` with `--tensor-model-parallel-size 16`.

    Fix: A tensor parallel size of at most the GPUs of a node, and more pipeline stages.

    Known limits: Machines whose NVLink spans nodes (NVL72) are reported too, although they are fine.
    """
    for setup in setups(job):
        tensor = setup.claims("tensor_parallel_size")
        each = job.setting("processes_per_node", setup.scope)
        nodes = job.requiring("nodes", setup.scope) or job.setting("nodes", setup.scope)
        if not tensor or not each or setup.launch is None:
            continue
        verdict = undecided(setup.subject, (*tensor, *each), setup.launch)
        sizes, ranks = numbers(job_value(tensor)), numbers(job_value(each))
        if (
            verdict is None
            and sizes
            and ranks
            and min(sizes) > max(ranks)
            and max(numbers(job_value(nodes)) or (2,)) > 1
        ):
            verdict = failed(
                setup.subject,
                f"{quoted(tensor[0])} spreads each layer over {min(sizes)} ranks, but {placed(each[0])} starts"
                f" {max(ranks)} on a node: every layer then waits for the network twice.",
                at=tensor[0],
                also=((each[0], "ranks of a node"),),
                remedy=f"Use at most {max(ranks)}, and more pipeline stages.",
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
    CUDA_DEVICE_MAX_CONNECTIONS, and sets it to 1.

    Why it matters: An assertion in Megatron-LM fails at startup on GPUs before Blackwell: only with one connection do
    kernels start in the order that lets communication and computation overlap.

    Example: `export CUDA_DEVICE_MAX_CONNECTIONS=8` with `--tensor-model-parallel-size 4 --sequence-parallel`.

    Fix: `export CUDA_DEVICE_MAX_CONNECTIONS=1`.

    Known limits: If it is not set, the container image may set it; the finding is informational then. Fully sharded
    training needs another value and is not reported.
    """
    for setup in setups(job):
        tensor = setup.claims("tensor_parallel_size")
        split = tuple(claim for claim in setup.claims("sequence_parallel") if claim.value != Known(False))
        if setup.source not in _MEGATRON or not tensor or not split or setup.launch is None:
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
        shown = f"{quoted(connections[0])} sets another value" if connections else "the job does not set it"
        yield failed(
            setup.subject,
            f"{quoted(tensor[0])} with {quoted(split[0])} needs CUDA_DEVICE_MAX_CONNECTIONS=1, and {shown}.",
            at=connections[0] if connections else tensor[0],
            also=((split[0], "needs it"),),
            remedy="Put `export CUDA_DEVICE_MAX_CONNECTIONS=1` before the launch.",
            severity=None if connections else Severity.INFO,
        )


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

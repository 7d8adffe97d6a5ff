"""Weights, gradients, optimizer states and activations compared with the memory of GPUs and hosts.

Lower bounds throughout: an unknown quantity counts as zero, and an unnamed GPU as the largest one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.analysis.model_size import (
    GIB,
    TransformerShape,
    format_gibibytes,
    format_parameters,
    model_parameters,
    shape_of,
    trains,
    uses_less_memory,
)
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import subjects
from preflight_rules.data_tables import gpu_rows
from preflight_rules.launches import ranks_started
from preflight_rules.sizes.parallel_sizes import Pipeline, Setup, pipeline_of, setups

#: Bytes of a parameter in mixed precision with Adam: the 16-bit weight, its gradient, and 32-bit master, momentum and
#: variance (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1).
_WEIGHT, _GRADIENT, _STATES = 2, 2, 12
#: Settings of DeepSpeed that keep states in 16 bits, and what is left of them then: momentum and variance.
_HALF_STATES = (
    *("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"),
    "fp16.fp16_master_weights_and_grads",
)
_STATES_IN_HALF = 4
#: Sources that state completely how parameters and states are split; others leave part of it to other files.
_SHARDING_SOURCES = ("arguments", "nanotron")
_EVALUATES = ("--eval-only", "--skip-train", "--do_eval_only")
_DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--deepspeed-config")
_FULLY_SHARDED = ("--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp")


@rule(
    "MEM001",
    "training-exceeds-device-memory",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch specifies the size of its model",
)
def training_exceeds_device_memory(job: Job) -> Iterator[Verdict]:
    """The training needs more memory on each GPU than the GPU has.

    What it checks: For Megatron-LM's options: parameters from layers, width and heads, divided by tensor, pipeline and
    expert parallel sizes; 16 bytes for each with Adam in mixed precision, or 4 and 12 divided by the replicas with a
    distributed optimizer; and the activations of the first stage. For a model whose name contains its size, under
    DeepSpeed: the same by ZeRO stage. The sum is compared with the memory of the GPU that the files name, otherwise of
    the largest GPU there is.

    Why it matters: Every rank runs out of memory in its first steps, after the whole job was placed and the data was
    read.

    Example: A 70-billion-parameter model with ZeRO stage 2 on 8 GPUs: 140 GB of weights on each.

    Fix: More tensor or pipeline parallelism, a higher ZeRO stage, recomputation of activations, a smaller micro batch.

    Known limits: This is a lower bound: a run that passes may still run out of memory. Optimizers other than Adam,
    adapters and quantisation are not judged where the command line names them.
    """
    for setup in setups(job):
        if setup.source not in _SHARDING_SOURCES:
            continue
        if setup.launch is None or setup.has(*_EVALUATES, *_DEEPSPEED) or not trains(setup.launch):
            # DeepSpeed's own configuration decides how states are split.
            continue
        shape = shape_of(job, setup.scope, setup.source)
        if shape is None:
            continue
        yield _shape_verdict(setup, shape)
    for subject, scope, launch in subjects(job):
        named = model_parameters(job, scope)
        if named is None or launch is None or not job.setting("zero_stage", scope) or uses_less_memory(launch):
            continue
        yield _named_model_verdict(job, subject, scope, launch, named)


class _Room(NamedTuple):
    """The available memory: of the named GPU, otherwise of the largest one."""

    gib: float
    shown: str
    claim: Claim | None


def _available_memory(job: Job, scope: Scope) -> _Room:
    found = gpu_of(job, scope)
    if found is None:
        gib = largest_memory_gib()
        return _Room(gib, f"the {gib:.0f} GiB of the largest GPU available", None)
    gpu, claim = found
    return _Room(gpu.memory_gib, f"the {gpu.memory_gib:g} GiB of {placed(claim)}", claim)


def _shape_verdict(setup: Setup, shape: TransformerShape) -> Verdict:
    sizes = [
        claim
        for quantity in ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size")
        for claim in setup.claims(quantity)
    ]
    if undecided_verdict := undecided(setup.subject, (*shape.claims, *sizes), setup.launch):
        return undecided_verdict
    tensor, stages, experts = (
        setup.number(quantity) or 1
        for quantity in ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size")
    )
    if setup.may_have_more_options:
        return unknown(setup.subject, "an unresolved argument may set further parallel sizes", at=setup.launch)
    here = (shape.dense_parameters + shape.expert_parameters // experts) // (tensor * stages)
    fully = setup.has(*_FULLY_SHARDED)
    replicas = 1
    if fully or setup.claims("distributed_optimizer"):
        replicas = _replicas(setup, tensor * stages)
    everywhere = 0 if fully else _WEIGHT + _GRADIENT
    shared = _WEIGHT + _GRADIENT + _STATES - everywhere
    # The number of replicas is unknown, so the part that they share counts as zero.
    states = here * everywhere + (here * shared // replicas if replicas else 0)
    if setup.has("--optimizer-cpu-offload"):
        states = here * everywhere
    activations = _activations(setup, shape, tensor)
    room = _available_memory(setup.job, setup.scope)
    if states + activations <= room.gib * GIB:
        return passed(setup.subject)
    kept = f"{format_gibibytes(states)} of weights, gradients and optimizer states"
    if activations:
        kept += f" and {format_gibibytes(activations)} of activations"
    return failed(
        setup.subject,
        f"{format_parameters(shape.parameters)} ({', '.join(quoted(c) for c in shape.claims[:3])}) need at least "
        f"{kept} on each GPU, more than {room.shown}.",
        at=shape.claims[0],
        also=(
            *((claim, "divides it") for claim in sizes),
            *(((room.claim, "the GPU"),) if room.claim is not None else ()),
        ),
        remedy="Raise the tensor or pipeline parallel size, split the optimizer (--use-distributed-optimizer), or"
        " recompute activations.",
    )


def _replicas(setup: Setup, parts: int) -> int:
    """The number of replicas that share a distributed optimizer; 0 if unknown."""
    found = numbers(ranks_started(setup.job, setup.scope)[0])
    return max(found[0] // parts, 1) if len(found) == 1 else 0


def _activations(setup: Setup, shape: TransformerShape, tensor: int) -> int:
    """Activations of the first stage, which holds a micro-batch for every stage after it: as much as for all layers."""
    micro = setup.number("micro_batch_size_per_gpu")
    pipeline = pipeline_of(setup)
    if micro is None or not shape.sequence:
        return 0
    kinds = {text for claim in setup.claims("recompute") for text in texts(claim.value)}
    recompute = "full" if "full" in kinds else "selective"
    whole = shape.activation_bytes(
        micro,
        tensor=tensor * (setup.number("context_parallel_size") or 1),
        recompute=recompute,
        sequence_parallel=bool(setup.claims("sequence_parallel")),
    )
    if isinstance(pipeline, Pipeline):
        return whole * min(pipeline.micro_batches, pipeline.stages) // pipeline.stages
    stages = setup.number("pipeline_parallel_size") or 1
    return whole // stages


def _named_model_verdict(
    job: Job, subject: str, scope: Scope, launch: Launch | None, named: tuple[int, Claim]
) -> Verdict:
    parameters, model = named
    stages = job.setting("zero_stage", scope)
    split = (*job.setting("tensor_parallel_size", scope), *job.setting("pipeline_parallel_size", scope))
    if undecided_verdict := undecided(subject, (model, *stages, *split), launch):
        return undecided_verdict
    ranks = numbers(ranks_started(job, scope)[0])
    stage = numbers(job_value(stages))
    if not stage or (not ranks and max(stage) >= 3):
        return unknown(subject, "the number of ranks that share the model is unknown", at=model)
    if any(max(numbers(claim.value) or (1,)) > 1 for claim in split):
        return passed(subject)
    # With an unknown number of ranks, the part that they share counts as zero.
    halved = [c for key in _HALF_STATES for c in job.setting(f"setting.deepspeed.{key}", scope)]
    states = _STATES_IN_HALF if any(claim.alternatives != (False,) for claim in halved) else _STATES
    whole = {0: _WEIGHT + _GRADIENT + states, 1: _WEIGHT + _GRADIENT, 2: _WEIGHT}.get(max(stage), 0)
    shared = (_WEIGHT + _GRADIENT + states - whole) * parameters // max(ranks) if ranks else 0
    kept = whole * parameters + shared
    if _is_offloaded(job, "offload_optimizer_device", scope):
        kept = _WEIGHT * parameters if max(stage) < 3 else _WEIGHT * parameters // max(ranks)
    if _is_offloaded(job, "offload_param_device", scope):
        kept = 0
    room = _available_memory(job, scope)
    if kept <= room.gib * GIB:
        return passed(subject)
    among = f" on {max(ranks)} ranks" if ranks else ""
    return failed(
        subject,
        f"{quoted(model)} has {format_parameters(parameters)}: with {placed(stages[0])}{among} each rank holds at least"
        f" {format_gibibytes(kept)}, more than {room.shown}.",
        at=stages[0],
        also=(
            (model, format_parameters(parameters)),
            *(((room.claim, "the GPU"),) if room.claim is not None else ()),
        ),
        remedy="Use ZeRO stage 3, offload optimizer states, or start more ranks.",
    )


def _is_offloaded(job: Job, quantity: str, scope: Scope) -> bool:
    """Whether a part is in host memory, certainly or possibly."""
    return any(
        isinstance(claim.value, Unresolved) or set(texts(claim.value)) & {"cpu", "nvme"}
        for claim in job.setting(quantity, scope)
    )


@rule(
    "MEM002",
    "offload-exceeds-host-memory",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch uses a model whose name contains its size",
)
def offload_exceeds_host_memory(job: Job) -> Iterator[Verdict]:
    """The training needs more host memory than the job requests on each node.

    What it checks: For a model whose name contains its size: with optimizer states offloaded to the CPU, 16 bytes for
    each parameter (master weight, momentum, variance, gradient) and 2 more with parameters offloaded, shared by the
    nodes; without ZeRO stage 3, 2 bytes for each parameter in every rank of a node while it loads. The sum is compared
    with `--mem`, `--mem-per-cpu` or the memory limit of a pod.

    Why it matters: The kernel kills a rank (exit code -9, "return code = -9") although the GPUs have free memory.

    Example: A 13-billion-parameter model offloaded to the CPU with `#SBATCH --mem=128G`: 208 GB are needed.

    Fix: Request more memory, use more nodes, load on one rank only (`low_cpu_mem_usage`, zero.Init), or offload to
    NVMe.

    Known limits: Only where files name both the model's size and a memory limit; without a limit the node's own memory
    counts, which `preflight check` sees.
    """
    for subject, scope, launch in subjects(job):
        named = model_parameters(job, scope)
        if named is None:
            continue
        limits = job.setting("memory_per_node_mib", scope) or job.about("pod_memory_mib")
        if not limits:
            yield unknown(subject, "the memory of each node is unknown", at=named[1])
            continue
        if undecided_verdict := undecided(subject, (named[1], *limits), launch):
            yield undecided_verdict
            continue
        yield _on_host(job, subject, scope, launch, named, limits)


def _on_host(
    job: Job,
    subject: str,
    scope: Scope,
    launch: Launch | None,
    named: tuple[int, Claim],
    limits: tuple[Claim, ...],
) -> Verdict:
    parameters, model = named
    limit = max(numbers(job_value(limits)) or (0,)) * 1024 * 1024
    nodes = (1, *numbers(job_value(job.requiring("nodes", scope) or job.setting("nodes", scope))))
    stage = max(numbers(job_value(job.setting("zero_stage", scope))) or (0,))
    where, needed, why = model, 0, ""
    optimizer = [c for c in job.setting("offload_optimizer_device", scope) if texts(c.value) == ("cpu",)]
    weights = [c for c in job.setting("offload_param_device", scope) if texts(c.value) == ("cpu",)]
    each = numbers(job_value(job.setting("processes_per_node", scope)))
    if optimizer and not uses_less_memory(launch):
        where, why = optimizer[0], "optimizer states and gradients in host memory"
        needed = parameters * (_STATES + 4 + (_WEIGHT if weights else 0)) // max(nodes)
    elif weights:
        where, why = weights[0], "parameters in host memory"
        needed = parameters * _WEIGHT // max(nodes)
    elif each and stage < 3:
        needed, why = parameters * _WEIGHT * min(each), f"the model loaded by each of {min(each)} ranks of a node"
    if not limit or needed <= limit:
        return passed(subject)
    return failed(
        subject,
        f"{quoted(model)} has {format_parameters(parameters)}: {format_gibibytes(needed)} on each node ({why}), and"
        f" {placed(limits[0])} grants {format_gibibytes(limit)}.",
        at=where,
        also=((model, format_parameters(parameters)), (limits[0], "memory of a node")),
        remedy="Request more memory or nodes, load the model on one rank, or offload to NVMe.",
    )


_SEPARATORS = r"(?:^|[-_=:/,.&| \"'\[\(])"
_ENDS = r"(?=$|[-_:/,.&| \"'\]\)*])"
#: Node labels whose value names a GPU or a machine type.
_LABELS = re.compile(r".*(?:accelerator|gpu[.-]product|gpu[.-]name|instance-type|gpu[.-]type|gpu[.-]family|sku).*=")


class Gpu(NamedTuple):
    """One GPU model: the memory of its largest variant, and its compute capability (7.0 is Volta)."""

    name: str
    memory_gib: float
    capability: float


def gpu_of(job: Job, scope: Scope) -> tuple[Gpu, Claim] | None:
    """The GPU that the files name for a launch, and the claim; None if they name none or several."""
    found: list[tuple[Gpu, Claim]] = []
    for claim in job.setting("gpu_type", scope):
        found.extend((gpu, claim) for text in texts(claim.value) if (gpu := named_gpu(text)) is not None)
    for claim in () if found else job.setting("partition", scope):
        # Sites choose partition names freely: only one that contains a GPU name such as `a100` counts.
        found.extend(
            (gpu, claim)
            for text in texts(claim.value)
            if re.search(r"[avhb][1-3]00", text.lower()) and (gpu := named_gpu(text)) is not None
        )
    for claim in job.about("node_label"):
        for text in texts(claim.value):
            gpu = named_gpu(text.partition("=")[2]) if _LABELS.match(text) else None
            if gpu is not None:
                found.append((gpu, claim))
    return found[0] if found and len({gpu.name for gpu, _ in found}) == 1 else None


@functools.lru_cache(maxsize=512)
def named_gpu(text: str) -> Gpu | None:
    """The GPU that a name such as `nvidia_a100-sxm4-80gb` or `p4d.24xlarge` means; None for any other name."""
    lowered = text.strip().lower()[:120]
    if re.search(r"[1-7]g\.\d+gb|[|!]", lowered):
        # A MIG slice is not a whole GPU, and `a100|h100` is ambiguous.
        return None
    for row in gpu_rows():
        if re.search(f"{_SEPARATORS}(?:nvidia|tesla|geforce|quadro)?(?:{row.pattern}){_ENDS}", lowered):
            return Gpu(row.name, row.memory_gib, row.capability)
    return None


def largest_memory_gib() -> float:
    """The memory of the largest GPU in the table."""
    return max(row.memory_gib for row in gpu_rows())

"""A lower bound on one GPU's memory during the training of a transformer: weights, gradients, optimizer states,
activations.

Bytes per parameter in mixed precision with Adam: the 16-bit weight, its gradient, and 32-bit master, momentum and
variance (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1). Activations: Korthikanti et al., arXiv 2205.05198.
"""

from __future__ import annotations

from dataclasses import dataclass

from preflight.analysis.model_size import format_parameters, model_parameters, shape_of, uses_less_memory
from preflight.model.job import Job, Known, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts

WEIGHT_BYTES, GRADIENT_BYTES, STATE_BYTES = 2, 2, 12
#: The first ZeRO stage that divides the part among the data-parallel ranks.
_STATES_FROM, _GRADIENTS_FROM, _WEIGHTS_FROM = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a GPU's memory.

    Args:
        name: `weights`, `gradients`, `optimizer states` or `activations`.
        size_bytes: a lower bound on one GPU.
        formula: how the size is computed, with the job's own numbers.
    """

    name: str
    size_bytes: int
    formula: str


def device_memory(job: Job, launch: Launch) -> tuple[Part, ...]:
    """The parts on each GPU; empty if the model or its division is unknown, or if only part of the model is trained."""
    scope = launch.scope
    if uses_less_memory(launch):
        return ()
    shape = shape_of(job, scope, "arguments")
    named = model_parameters(job, scope)
    if shape is not None:
        dense, experts = shape.dense_parameters, shape.expert_parameters
    elif named is not None:
        dense, experts = named[0], 0
    else:
        return ()
    sizes = {}
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "expert_parallel_size"):
        size = _number(job, launch, name, otherwise=1)
        if size is None or size < 1:
            return ()
        sizes[name] = size
    tensor, stages = sizes["tensor_parallel_size"], sizes["pipeline_parallel_size"]
    here = (dense + experts // sizes["expert_parallel_size"]) // (tensor * stages)
    count = format_parameters(dense + experts)
    if tensor * stages > 1:
        count += f" / ({tensor} TP x {stages} PP)"
    stage = _stage(job, launch)
    replicas = _replicas(job, launch, tensor * stages * sizes["context_parallel_size"])
    if stage is None or (stage and replicas is None):
        return ()
    parts = [
        _part("weights", here, WEIGHT_BYTES, count, replicas if stage >= _WEIGHTS_FROM else 1),
        _part("gradients", here, GRADIENT_BYTES, count, replicas if stage >= _GRADIENTS_FROM else 1),
        _part("optimizer states", here, STATE_BYTES, count, replicas if stage >= _STATES_FROM else 1),
    ]
    if _is_offloaded(job, launch, "offload_param_device"):
        parts = [part for part in parts if part.name != "weights"]
    if _is_offloaded(job, launch, "offload_optimizer_device"):
        parts = [part for part in parts if part.name != "optimizer states"]
    micro = _number(job, launch, "micro_batch_size_per_gpu", otherwise=None)
    if shape is not None and shape.sequence and micro:
        kinds = {text for claim in job.setting("recompute", scope) for text in texts(claim.value)}
        recompute = "full" if "full" in kinds else "selective"
        split = tensor * sizes["context_parallel_size"]
        whole = shape.activation_bytes(
            micro,
            tensor=split,
            recompute=recompute,
            sequence_parallel=job.value("sequence_parallel", scope) == Known(True),
        )
        formula = f"{shape.sequence} tokens x {micro} x {shape.hidden} wide x {shape.layers} layers, {recompute}"
        held = _micro_batches_held(job, launch, micro, replicas, stages)
        formula += " recomputation" + (f" x {held} micro batches / {stages} PP" if stages > 1 else "")
        parts.append(Part("activations", whole * held // stages, formula))
    return tuple(parts)


def _part(name: str, parameters: int, each: int, count: str, share: int | None) -> Part:
    share = share or 1
    return Part(name, parameters * each // share, f"{each} B x {count}" + (f" / {share} ranks" if share > 1 else ""))


def _number(job: Job, launch: Launch, quantity: str, *, otherwise: int | None) -> int | None:
    claims = job.setting(quantity, launch.scope)
    if not claims:
        return otherwise
    found = set(numbers(job_value(claims)))
    return found.pop() if len(found) == 1 else None


def _stage(job: Job, launch: Launch) -> int | None:
    """The ZeRO stage, or the equivalent one of another sharding; None if it is set but unknown."""
    if job.setting("zero_stage", launch.scope):
        return _number(job, launch, "zero_stage", otherwise=0)
    strategies = job.setting("fsdp_sharding_strategy", launch.scope)
    if strategies:
        kinds = {text.upper() for claim in strategies for text in texts(claim.value)}
        levels = {"FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0}
        return levels.get(kinds.pop()) if len(kinds) == 1 else None
    if job.value("uses_fsdp", launch.scope) == Known(True):
        return 3
    return 1 if job.value("distributed_optimizer", launch.scope) == Known(True) else 0


def _micro_batches_held(job: Job, launch: Launch, micro: int, replicas: int | None, stages: int) -> int:
    """Micro batches whose activations the first stage of a pipeline holds: at most one for each stage."""
    whole = _number(job, launch, "train_batch_size", otherwise=None)
    if whole is None or replicas is None:
        return 1
    return max(1, min(stages, whole // (micro * replicas)))


def _is_offloaded(job: Job, launch: Launch, quantity: str) -> bool:
    """Whether a part may be kept in host memory."""
    claims = job.setting(quantity, launch.scope)
    return bool(claims) and {text for claim in claims for text in texts(claim.value)} != {"none"}


def _replicas(job: Job, launch: Launch, parts: int) -> int | None:
    world = _number(job, launch, "world_size", otherwise=None)
    return max(world // parts, 1) if world else None

"""Memory and number formats: weights, gradients, optimizer states and activations compared with GPU and host memory.

All results are lower bounds: an unknown quantity counts as zero, and an unnamed GPU as the largest model.
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
    may_train,
    model_parameters,
    stated_shape,
    uses_less_memory,
)
from preflight.model.findings import Confidence, Severity
from preflight.model.job import AUTO, Claim, Job, Known, Launch, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import (
    LaunchQuestion,
    Stated,
    SubjectQuestion,
    launches_with,
    stated_by,
    subjects,
    subjects_with,
)
from preflight_rules.data_tables import gpu_rows
from preflight_rules.launches import certainly_several, nodes_spanned, ranks_started
from preflight_rules.sizes.parallel_sizes import Pipeline, Setup, pipeline_of, setups

#: Bytes of a parameter in mixed precision with Adam: the 16-bit weight, its gradient, and 32-bit master, momentum and
#: variance (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1).
_WEIGHT, _GRADIENT, _STATES = 2, 2, 12
#: DeepSpeed settings that keep states in 16 bits, and the bytes that momentum and variance then need.
_HALF_STATES = (
    *("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"),
    "fp16.fp16_master_weights_and_grads",
)
_STATES_IN_HALF = 4
#: Sources that describe the complete sharding of parameters and states; other sources leave part of it to other files.
_SHARDING_SOURCES = ("arguments", "nanotron")
_EVALUATION_OPTIONS = ("--eval-only", "--skip-train", "--do-eval-only")
_DEEPSPEED = ("--deepspeed", "--deepspeed-config")
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
    DeepSpeed: the same for the ZeRO stage. The sum is at most the memory of the GPU that the files name, or else of the
    largest GPU.

    Why it matters: Every rank runs out of memory in its first steps, after the whole job has been placed and the data
    has been read.

    Example: A 70-billion-parameter model with ZeRO stage 2 on 8 GPUs: 140 GB of weights on each.

    Fix: Use more tensor or pipeline parallelism, a higher ZeRO stage, recomputation of activations, or a smaller micro
    batch.

    Known limits: This is a lower bound: a run that passes may still run out of memory. Optimizers other than Adam,
    adapters and quantization are not judged if the command line names them.
    """
    for setup in setups(job):
        if setup.source not in _SHARDING_SOURCES:
            continue
        if setup.launch is None or setup.has(*_EVALUATION_OPTIONS, *_DEEPSPEED) or not may_train(setup.launch):
            # DeepSpeed's own configuration decides how states are sharded.
            continue
        shape = stated_shape(job, setup.scope, setup.source)
        if shape is None:
            continue
        yield _shape_verdict(setup, shape)
    for subject, scope, launch in subjects(job):
        named_model = model_parameters(job, scope)
        if named_model is None or launch is None or not job.setting("zero_stage", scope) or uses_less_memory(launch):
            continue
        yield _named_model_verdict(job, subject, scope, launch, named_model)


class _AvailableMemory(NamedTuple):
    """The available memory of the GPU that the files name, or else of the largest GPU."""

    gib: float
    text: str
    claim: Claim | None


def _available_memory(job: Job, scope: Scope) -> _AvailableMemory:
    gpu_and_claim = gpu_of(job, scope)
    if gpu_and_claim is None:
        gib = largest_memory_gib()
        return _AvailableMemory(gib, f"the {gib:.0f} GiB of the largest available GPU", None)
    gpu, claim = gpu_and_claim
    return _AvailableMemory(gpu.memory_gib, f"the {gpu.memory_gib:g} GiB of {placed(claim)}", claim)


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
        return unknown(setup.subject, "an unresolved argument may set other parallel sizes", at=setup.launch)
    parameters = (shape.dense_parameters + shape.expert_parameters // experts) // (tensor * stages)
    is_fully_sharded = setup.has(*_FULLY_SHARDED)
    replicas = 1
    if is_fully_sharded or setup.claims("distributed_optimizer"):
        replicas = _replicas(setup, tensor * stages)
    replicated_bytes = 0 if is_fully_sharded else _WEIGHT + _GRADIENT
    shared_bytes = _WEIGHT + _GRADIENT + _STATES - replicated_bytes
    # The number of replicas is unknown, so the part that they share counts as zero.
    states = parameters * replicated_bytes + (parameters * shared_bytes // replicas if replicas else 0)
    if setup.has("--optimizer-cpu-offload"):
        states = parameters * replicated_bytes
    activations = _activation_bytes(setup, shape, tensor)
    available = _available_memory(setup.job, setup.scope)
    if states + activations <= available.gib * GIB:
        return passed(setup.subject)
    need = f"{format_gibibytes(states)} of weights, gradients and optimizer states"
    if activations:
        need += f" and {format_gibibytes(activations)} of activations"
    return failed(
        setup.subject,
        f"{format_parameters(shape.parameters)} ({', '.join(quoted(c) for c in shape.claims[:3])}) need at least "
        f"{need} on each GPU, more than {available.text}.",
        at=shape.claims[0],
        also=(
            *((claim, "divides it") for claim in sizes),
            *(((available.claim, "the GPU"),) if available.claim is not None else ()),
        ),
        remedy="Raise the tensor or pipeline parallel size, shard the optimizer state "
        "(--use-distributed-optimizer), or recompute activations.",
    )


def _replicas(setup: Setup, parts: int) -> int:
    """Return the number of replicas that share a distributed optimizer; 0 if unknown."""
    rank_counts = numbers(ranks_started(setup.job, setup.scope)[0])
    return max(rank_counts[0] // parts, 1) if len(rank_counts) == 1 else 0


def _activation_bytes(setup: Setup, shape: TransformerShape, tensor: int) -> int:
    """Return the bytes of activations in the first pipeline stage, which holds a micro batch for every later stage."""
    micro_batch = setup.number("micro_batch_size_per_gpu")
    pipeline = pipeline_of(setup)
    if micro_batch is None or not shape.sequence:
        return 0
    recomputed = {text for claim in setup.claims("recompute") for text in texts(claim.value)}
    recompute = "full" if "full" in recomputed else "selective"
    total_bytes = shape.activation_bytes(
        micro_batch,
        tensor=tensor * (setup.number("context_parallel_size") or 1),
        recompute=recompute,
        sequence_parallel=bool(setup.claims("sequence_parallel")),
    )
    if isinstance(pipeline, Pipeline):
        return total_bytes * min(pipeline.micro_batches, pipeline.stages) // pipeline.stages
    stages = setup.number("pipeline_parallel_size") or 1
    return total_bytes // stages


def _named_model_verdict(
    job: Job, subject: str, scope: Scope, launch: Launch | None, named_model: tuple[int, Claim]
) -> Verdict:
    parameters, model = named_model
    stages = job.setting("zero_stage", scope)
    parallel_claims = (*job.setting("tensor_parallel_size", scope), *job.setting("pipeline_parallel_size", scope))
    if undecided_verdict := undecided(subject, (model, *stages, *parallel_claims), launch):
        return undecided_verdict
    ranks = numbers(ranks_started(job, scope)[0])
    stage = numbers(job_value(stages))
    if not stage or (not ranks and max(stage) >= 3):
        return unknown(subject, "the number of ranks that share the model is unknown", at=model)
    if any(max(numbers(claim.value) or (1,)) > 1 for claim in parallel_claims):
        return passed(subject)
    # If the number of ranks is unknown, the part that they share counts as zero.
    half_state_claims = [c for key in _HALF_STATES for c in job.setting(f"setting.deepspeed.{key}", scope)]
    states = _STATES_IN_HALF if any(claim.alternatives != (False,) for claim in half_state_claims) else _STATES
    replicated_bytes = {0: _WEIGHT + _GRADIENT + states, 1: _WEIGHT + _GRADIENT, 2: _WEIGHT}.get(max(stage), 0)
    shared_bytes = (_WEIGHT + _GRADIENT + states - replicated_bytes) * parameters // max(ranks) if ranks else 0
    needed = replicated_bytes * parameters + shared_bytes
    if _is_offloaded(job, "offload_optimizer_device", scope):
        needed = _WEIGHT * parameters if max(stage) < 3 else _WEIGHT * parameters // max(ranks)
    if _is_offloaded(job, "offload_param_device", scope):
        needed = 0
    available = _available_memory(job, scope)
    if needed <= available.gib * GIB:
        return passed(subject)
    ranks_text = f" on {max(ranks)} ranks" if ranks else ""
    return failed(
        subject,
        f"{quoted(model)} has {format_parameters(parameters)}: with {placed(stages[0])}{ranks_text} each rank holds"
        f" at least {format_gibibytes(needed)}, more than {available.text}.",
        at=stages[0],
        also=(
            (model, format_parameters(parameters)),
            *(((available.claim, "the GPU"),) if available.claim is not None else ()),
        ),
        remedy="Use ZeRO stage 3, offload optimizer states, or start more ranks.",
    )


def _is_offloaded(job: Job, quantity: str, scope: Scope) -> bool:
    """Return whether an offload quantity may move its part to host memory or NVMe."""
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
    each parameter (master weight, momentum, variance, gradient) and 2 more with parameters offloaded, divided by the
    number of nodes; without ZeRO stage 3, 2 bytes for each parameter in every rank of a node while loading. The sum is
    at most `--mem`, `--mem-per-cpu` or the memory limit of a pod.

    Why it matters: The kernel kills a rank (exit code -9, "return code = -9") although the GPUs have free memory.

    Example: A 13-billion-parameter model offloaded to the CPU with `#SBATCH --mem=128G`: 208 GB are needed.

    Fix: Request more memory, use more nodes, load on one rank only (`low_cpu_mem_usage`, zero.Init), or offload to
    NVMe.

    Known limits: Judged only if the files name both the model's size and a memory limit. Without a limit, the memory of
    the node applies, which `preflight check` measures.
    """
    for subject, scope, launch in subjects(job):
        named_model = model_parameters(job, scope)
        if named_model is None:
            continue
        limits = job.setting("memory_per_node_mib", scope) or job.about("pod_memory_mib")
        if not limits:
            yield unknown(subject, "the memory of each node is unknown", at=named_model[1])
            continue
        if undecided_verdict := undecided(subject, (named_model[1], *limits), launch):
            yield undecided_verdict
            continue
        yield _host_memory_verdict(job, subject, scope, launch, named_model, limits)


def _host_memory_verdict(
    job: Job,
    subject: str,
    scope: Scope,
    launch: Launch | None,
    named_model: tuple[int, Claim],
    limits: tuple[Claim, ...],
) -> Verdict:
    parameters, model = named_model
    limit = max(numbers(job_value(limits)) or (0,)) * 1024 * 1024
    nodes = (1, *numbers(job_value(job.requirement_claims("nodes", scope) or job.setting("nodes", scope))))
    stage = max(numbers(job_value(job.setting("zero_stage", scope))) or (0,))
    place, needed, cause = model, 0, ""
    optimizer = [c for c in job.setting("offload_optimizer_device", scope) if texts(c.value) == ("cpu",)]
    weights = [c for c in job.setting("offload_param_device", scope) if texts(c.value) == ("cpu",)]
    process_counts = numbers(job_value(job.setting("processes_per_node", scope)))
    if optimizer and not uses_less_memory(launch):
        place, cause = optimizer[0], "optimizer states and gradients in host memory"
        needed = parameters * (_STATES + 4 + (_WEIGHT if weights else 0)) // max(nodes)
    elif weights:
        place, cause = weights[0], "parameters in host memory"
        needed = parameters * _WEIGHT // max(nodes)
    elif process_counts and stage < 3:
        needed, cause = (
            parameters * _WEIGHT * min(process_counts),
            f"the model loaded by each of {min(process_counts)} ranks of a node",
        )
    if not limit or needed <= limit:
        return passed(subject)
    return failed(
        subject,
        f"{quoted(model)} has {format_parameters(parameters)}: {format_gibibytes(needed)} on each node ({cause}), "
        f"but {placed(limits[0])} grants only {format_gibibytes(limit)}.",
        at=place,
        also=((model, format_parameters(parameters)), (limits[0], "memory per node")),
        remedy="Request more memory or nodes, load the model on one rank, or offload to NVMe.",
    )


_SEPARATORS = r"(?:^|[-_=:/,.&| \"'\[\(])"
_ENDS = r"(?=$|[-_:/,.&| \"'\]\)*])"
#: Node labels whose value names a GPU or a machine type.
_GPU_LABELS = re.compile(r".*(?:accelerator|gpu[.-]product|gpu[.-]name|instance-type|gpu[.-]type|gpu[.-]family|sku).*=")


class Gpu(NamedTuple):
    """One GPU model: the memory of its largest variant, and its compute capability (7.0 is Volta)."""

    name: str
    memory_gib: float
    capability: float


def gpu_of(job: Job, scope: Scope) -> tuple[Gpu, Claim] | None:
    """Return the GPU that the files name for a launch, and its claim; None if they name no GPU or several."""
    gpus: list[tuple[Gpu, Claim]] = []
    for claim in job.setting("gpu_type", scope):
        gpus.extend((gpu, claim) for text in texts(claim.value) if (gpu := named_gpu(text)) is not None)
    for claim in () if gpus else job.setting("partition", scope):
        # Sites choose partition names freely: only one that contains a GPU name such as `a100` counts.
        gpus.extend(
            (gpu, claim)
            for text in texts(claim.value)
            if re.search(r"[avhb][1-3]00", text.lower()) and (gpu := named_gpu(text)) is not None
        )
    for claim in job.about("node_label"):
        for text in texts(claim.value):
            gpu = named_gpu(text.partition("=")[2]) if _GPU_LABELS.match(text) else None
            if gpu is not None:
                gpus.append((gpu, claim))
    return gpus[0] if gpus and len({gpu.name for gpu, _ in gpus}) == 1 else None


@functools.lru_cache(maxsize=512)
def named_gpu(text: str) -> Gpu | None:
    """Return the GPU that a name such as `nvidia_a100-sxm4-80gb` or `p4d.24xlarge` refers to; None for any other
    name.
    """
    lowered = text.strip().lower()[:120]
    if re.search(r"[1-7]g\.\d+gb|[|!]", lowered):
        # A MIG slice is not a whole GPU, and `a100|h100` is ambiguous.
        return None
    for row in gpu_rows():
        if re.search(f"{_SEPARATORS}(?:nvidia|tesla|geforce|quadro)?(?:{row.pattern}){_ENDS}", lowered):
            return Gpu(row.name, row.memory_gib, row.capability)
    return None


def largest_memory_gib() -> float:
    """Return the memory of the largest GPU in the table."""
    return max(row.memory_gib for row in gpu_rows())


# Number formats (fp16 and bf16 together, obsolete keys, formats that the GPU does not support), and the exchange of
# gradients: format, bucket size and overlap.


_BF16_FROM, _FP8_FROM = 8.0, 8.9


def _enabling_claims(job: Job, quantity: str, scope: Scope, source: str = "") -> tuple[Claim, ...]:
    return tuple(c for c in job.setting(quantity, scope) if c.value == Known(True) and source in ("", c.source))


@rule("PRC001", "two-half-precisions-at-once", severity=Severity.ERROR, otherwise="half precision is not enabled")
def two_half_precisions_at_once(job: Job) -> Iterator[Verdict]:
    """fp16 and bf16 are both enabled.

    What it checks: No DeepSpeed configuration has both `fp16.enabled` and `bf16.enabled` true; no command line for
    Megatron-LM or Hugging Face's trainer has both `--fp16` and `--bf16`, and no file of training arguments or script
    enables both.

    Why it matters: The job fails at startup: the formats are mutually exclusive.

    Example: `"fp16": {"enabled": true}, "bf16": {"enabled": true}`.

    Fix: Keep bf16 on GPUs that have it (A100 and later), fp16 on older ones.

    Known limits: `"auto"` is filled in by the trainer and is not judged.
    """
    for subject, scope, launch in subjects(job):
        for fp16, bf16 in (
            (
                _enabling_claims(job, "fp16_enabled", scope, "deepspeed"),
                _enabling_claims(job, "bf16_enabled", scope, "deepspeed"),
            ),
            (_format_claims(job, "fp16", scope), _format_claims(job, "bf16", scope)),
        ):
            if not fp16 and not bf16:
                continue
            is_both = fp16 and bf16 and fp16[0].span.path == bf16[0].span.path
            open_switches = _unknown_switches(job, scope, fp16, bf16)
            verdict = undecided(subject, (*fp16[:1], *bf16[:1], *open_switches), launch)
            if verdict is None and is_both:
                verdict = failed(
                    subject,
                    f"fp16 ({placed(fp16[0])}) and bf16 ({placed(bf16[0])}) are both enabled: the job fails at"
                    " startup.",
                    at=fp16[0],
                    also=((bf16[0], "bf16"),),
                    remedy="Keep only one of them: bf16 if the GPU supports it, otherwise fp16.",
                )
            yield verdict or passed(subject)


def _unknown_switches(job: Job, scope: Scope, fp16: tuple[Claim, ...], bf16: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """Return the switches with unknown values, and the trainer's switch for a format without claims.

    `"auto"` is not unknown: the trainer fills it in.
    """
    trainer_quantities = (
        *(("setting.transformers.fp16",) * (not fp16)),
        *(("setting.transformers.bf16",) * (not bf16)),
    )
    return tuple(
        c
        for quantity in ("fp16_enabled", "bf16_enabled", *trainer_quantities)
        for c in job.setting(quantity, scope)
        if isinstance(c.value, Unresolved) and c.value != AUTO
    )


def _format_claims(job: Job, name: str, scope: Scope) -> tuple[Claim, ...]:
    """Return the claims that request a format for a trainer: a flag, a key in a file, an argument in the script."""
    sources = ("arguments", "trainer", "python")
    return tuple(c for c in job.about("mixed_precision", scope) if c.source in sources and c.value == Known(name))


@rule(
    "PRC002",
    "bfloat16-inside-fp16-section",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no fp16 section names a data type",
    each=subjects_with(stated_by("deepspeed", "fp16_type")),
)
def bfloat16_inside_fp16_section(question: SubjectQuestion) -> Verdict | None:
    """bfloat16 is requested in the fp16 section, which only old versions read.

    What it checks: `fp16.type` is bfloat16 in a DeepSpeed or gpt-neox configuration only if it also enables a `bf16`
    section.

    Why it matters: DeepSpeed ignores `fp16.type`: it trains in fp16, with its own loss scale, while gpt-neox makes the
    model bfloat16. With ZeRO stage 0 and pipeline parallelism, the first step fails.

    Example: `"fp16": {"enabled": true, "type": "bfloat16", "loss_scale": 0}`.

    Fix: `"precision": "bfloat16"` in gpt-neox, or `"bf16": {"enabled": true}` and no fp16 section.

    Known limits: gpt-neox 1.0 with its own fork of DeepSpeed supported this.
    """
    types = question.claims
    job, scope = question.of.job, question.of.scope
    bf16 = _enabling_claims(job, "bf16_enabled", scope)
    is_off = any(c.value == Known(False) for c in job.setting("fp16_enabled", scope))
    if not is_off and not bf16 and all(text.lower() in ("bfloat16", "bf16") for text in texts(job_value(types))):
        stage = job.setting("zero_stage", scope)
        return failed(
            question.subject,
            f"{quoted(types[0])} is in the fp16 section, where DeepSpeed ignores it: DeepSpeed trains"
            " in fp16, and the first step with a bfloat16 model fails.",
            at=types[0],
            also=tuple((c, "ZeRO stage") for c in stage[:1]),
            remedy='Write `"bf16": {"enabled": true}` (in gpt-neox `"precision": "bfloat16"`) instead of the fp16'
            " section.",
        )
    return None


@rule("PRC003", "number-format-missing-on-gpu", severity=Severity.WARNING, otherwise="no launch requests bf16 or fp8")
def number_format_missing_on_gpu(job: Job) -> Iterator[Verdict]:
    """The training uses a number format that its GPU does not support.

    What it checks: bf16 is not used on a GPU in the files with a compute capability below 8.0 (V100, T4, P100, RTX
    20xx), and fp8 not below 8.9 (A100 and older).

    Why it matters: Trainers and Transformer Engine fail at startup; plain torch emulates bf16 and is many times slower.

    Example: `#SBATCH --gres=gpu:v100:4` and `--bf16`.

    Fix: fp16 with a dynamic loss scale on V100 and T4, bf16 on A100; or request a GPU that supports the format.

    Known limits: The GPU must be named: in the request, a constraint, a partition, a node label or an instance type.
    """
    for subject, scope, launch in subjects(job):
        formats = _requested_formats(job, scope)
        if not formats:
            continue
        gpu_and_claim = gpu_of(job, scope)
        if gpu_and_claim is None:
            yield undecided(subject, job.setting("gpu_type", scope), launch) or passed(subject)
            continue
        gpu, gpu_claim = gpu_and_claim
        for claim, name, required in formats:
            verdict = undecided(subject, (claim,), launch)
            if verdict is None and gpu.capability < required:
                verdict = failed(
                    subject,
                    f"{name} ({quoted(claim)}) is not supported by {placed(gpu_claim)}: {gpu.name} has compute"
                    f" capability {gpu.capability}, but {name} needs {required}.",
                    at=claim,
                    also=((gpu_claim, gpu.name),),
                    remedy=f"Train in {'fp16' if gpu.capability < _BF16_FROM else 'bf16'} on this GPU, or request a "
                    f"GPU that supports {name}.",
                )
            yield verdict or passed(subject)


def _requested_formats(job: Job, scope: Scope) -> list[tuple[Claim, str, float]]:
    """Return each claim that requests bf16 or fp8, with the format and its required compute capability."""
    formats = [(claim, "bf16", _BF16_FROM) for claim in _enabling_claims(job, "bf16_enabled", scope)[:1]]
    for claim in job.setting("mixed_precision", scope):
        name = "/".join(texts(claim.value))
        if name in ("bf16", "fp8"):
            formats.append((claim, name, _BF16_FROM if name == "bf16" else _FP8_FROM))
    formats.extend((claim, "fp8", _FP8_FROM) for claim in job.setting("fp8_format", scope)[:1])
    return formats


def _fp16_claims(stated: Stated[Launch | None]) -> tuple[Claim, ...]:
    job, scope = stated.job, stated.scope
    return tuple(_enabling_claims(job, "fp16_enabled", scope) or _format_claims(job, "fp16", scope))


@rule(
    "PRC004",
    "fp16-without-loss-scaling",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no loss scale is set for fp16",
    each=subjects_with("fp16_loss_scale", where=lambda stated: bool(_fp16_claims(stated))),
)
def fp16_without_loss_scaling(question: SubjectQuestion) -> Verdict | None:
    """fp16 is used without loss scaling.

    What it checks: fp16 is not enabled with a fixed loss scale of 1.

    Why it matters: Small gradients become 0 in fp16. Training continues, but learns slowly or not at all.

    Example: `"fp16": {"enabled": true, "loss_scale": 1}`.

    Fix: `"loss_scale": 0`, which means dynamic loss scaling.

    Known limits: A model without small gradients trains well, but is reported.
    """
    scales, fp16 = question.claims, _fp16_claims(question.of)
    if all(value in (1, 1.0) and not isinstance(value, bool) for c in scales for value in c.alternatives):
        return failed(
            question.subject,
            f"{quoted(scales[0])} does not scale the loss, so small gradients become 0 in fp16.",
            at=scales[0],
            also=((fp16[0], "fp16"),),
            remedy="Use 0 for a dynamic loss scale.",
        )
    return None


#: Below this number of elements the latency of a message exceeds its transfer time.
_MIN_BUCKET_ELEMENTS = 1_000_000


def _setting(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    return tuple(c for c in job.setting(quantity, scope) if c.source in ("deepspeed", "gpt-neox"))


@rule(
    "TRX001",
    "gradients-travel-in-full-precision",
    severity=Severity.INFO,
    otherwise="no configuration sets how gradients are exchanged",
    profile="pedantic",
)
def gradients_travel_in_full_precision(job: Job) -> Iterator[Verdict]:
    """Training uses 16 bits, but gradients are exchanged in 32.

    What it checks: `communication_data_type` is not fp32 (in gpt-neox `fp32_allreduce`) while fp16 or bf16 is enabled.

    Why it matters: Every exchange sends twice the bytes. On a slow network, this is most of the time of a step.

    Example: `"bf16": {"enabled": true}, "communication_data_type": "fp32"`.

    Fix: Remove the key if the loss does not change without it.

    Known limits: Exact sums may be intended, so the finding is informational.
    """
    for subject, scope, launch in subjects(job):
        types = _setting(job, "communication_data_type", scope)
        if not types:
            continue
        verdict = undecided(subject, types, launch)
        half = [
            c
            for name in ("fp16_enabled", "bf16_enabled", "mixed_precision")
            for c in job.setting(name, scope)
            if c.value in (Known(True), Known("fp16"), Known("bf16"))
        ]
        if verdict is None and half and all(text in ("fp32", "float32") for text in texts(job_value(types))):
            verdict = failed(
                subject,
                f"{quoted(types[0])} exchanges gradients in 32 bits although training uses 16 ({quoted(half[0])}), "
                "which doubles the traffic.",
                at=types[0],
                also=((half[0], "16 bits"),),
                remedy="Remove the setting if the loss stays the same without it.",
            )
        yield verdict or passed(subject)


@rule(
    "TRX002",
    "gradients-exchanged-without-overlap",
    severity=Severity.INFO,
    otherwise="no launch over several nodes sets how gradients are exchanged",
    profile="pedantic",
    each=launches_with(
        also=(
            lambda job, scope: _setting(job, "overlap_comm", scope),
            lambda job, scope: _setting(job, "reduce_bucket_size", scope),
        ),
        where=lambda stated: any(stated) and certainly_several(nodes_spanned(stated.job, stated.launch)[0]),
    ),
)
def gradients_exchanged_without_overlap(question: LaunchQuestion) -> Verdict | None:
    """The gradient exchange does not overlap with the backward pass, or uses tiny buckets.

    What it checks: In a launch over several nodes, `overlap_comm` is not explicitly false, and `reduce_bucket_size` is
    at least a million elements.

    Why it matters: The GPUs wait for the network after each backward pass, or for the latency of thousands of small
    messages.

    Example: `"zero_optimization": {"stage": 2, "overlap_comm": false}`.

    Fix: `"overlap_comm": true`, and buckets of a few hundred million elements if there is enough memory.

    Known limits: Overlap needs memory for its buffers; with little free memory, it may be disabled on purpose.
    """
    (overlap, bucket), launch = question.of, question.of.launch
    bucket_sizes = numbers(job_value(bucket)) if bucket else ()
    if overlap and overlap[0].value == Known(False):
        return failed(
            question.subject,
            f"{quoted(overlap[0])} makes the GPUs wait for every gradient exchange between nodes.",
            at=overlap[0],
            also=((launch, "over several nodes"),),
            remedy='Write `"overlap_comm": true` if there is enough memory.',
        )
    if bucket_sizes and 0 < max(bucket_sizes) < _MIN_BUCKET_ELEMENTS:
        return failed(
            question.subject,
            f"{quoted(bucket[0])} splits gradients into messages so small that latency costs more than the transfer.",
            at=bucket[0],
            also=((launch, "over several nodes"),),
            remedy="Use several hundred million elements, as in DeepSpeed's default.",
        )
    return None

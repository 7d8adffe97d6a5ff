"""Weights, gradients, optimizer states and activations against the memory of GPUs and hosts.

Lower bounds throughout: what is not known counts as nothing, and a GPU that is not named is taken for the largest.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Scope, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import job_value, numbers, placed, quoted, ranks_started, subjects, texts, undecided
from preflight_rules.sizes.hardware import gpu_of, largest_memory_gib
from preflight_rules.sizes.parallel_sizes import Setup, setups
from preflight_rules.sizes.pipelines import Pipeline, pipeline_of
from preflight_rules.sizes.transformer import GIB, Shape, billions, gibibytes, model_parameters, shape_of

#: Bytes of a parameter in mixed precision with Adam: the 16-bit weight, its gradient, and 32-bit master, momentum and
#: variance (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1).
_WEIGHT, _GRADIENT, _STATES = 2, 2, 12
#: Words of a command line that say that only a part is trained, in fewer bits, or with a lighter optimizer.
_LIGHTER = (
    *("lora", "peft", "adapter", "quant", "4bit", "8bit", "int8", "int4", "freeze", "adafactor", "galore", "badam"),
    *("apollo", "prefix", "prompt_tun", "vllm", "sgd", "lomo", "bitfit", "ia3", "muon", "adamini"),
)
#: Programs that use a model without training it.
_NO_TRAINING = lazy_pattern(r"generat|eval|infer|serv|export|convert|detox|sampl|predict|test|zeroshot|bench")
_EVALUATES = ("--eval-only", "--skip-train", "--do_eval_only")
_DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--deepspeed-config")
_FULLY_SHARDED = ("--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp")


def lighter(launch: Launch | None) -> bool:
    """Whether a command line names something by which it needs less than a full training."""
    if launch is None:
        return False
    words = [word.lower() for word in launch.arguments if word is not None]
    return any(mark in word for word in words for mark in _LIGHTER) or not trains(launch)


def trains(launch: Launch) -> bool:
    """Whether the program's name does not say that it only uses a model."""
    return _NO_TRAINING.search(launch.program.rpartition("/")[2].lower()) is None


@rule(
    "MEM001",
    "training-exceeds-device-memory",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "https://arxiv.org/abs/1910.02054",
        "https://arxiv.org/abs/2205.05198",
        "https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/docs/source/api-guide/dist_optimizer.md",
    ),
)
def training_exceeds_device_memory(job: Job) -> Iterator[Verdict]:
    """What must lie on each GPU at least is more than the GPU holds.

    What it checks:
        For Megatron-LM's options: parameters from layers, width and heads, divided by tensor, pipeline and expert
        parallel sizes; 16 bytes for each with Adam in mixed precision, or 4 and 12 divided by the replicas with a
        distributed optimizer; and the activations of the first stage. For a model named with its size under
        DeepSpeed: the same by ZeRO stage. Against the GPU that the files name, else against the largest there is.

    Why it matters:
        Every rank runs out of memory in its first steps, after the whole job was placed and the data was read.

    Example:
        A 70-billion-parameter model with ZeRO stage 2 on 8 GPUs: 140 GB of weights on each.

    Fix:
        More tensor or pipeline parallelism, a higher ZeRO stage, recomputation of activations, a smaller micro batch.

    Known limits:
        A lower bound: a training that passes may still run out. Optimizers other than Adam, adapters and
        quantisation are left out where the command line names them.

    Evidence:
        Rajbhandari et al., arXiv 1910.02054; Korthikanti et al., arXiv 2205.05198; Megatron-LM, distributed optimizer.
    """
    met = False
    for setup in setups(job):
        if setup.launch is None or setup.has(*_EVALUATES, *_DEEPSPEED) or not trains(setup.launch):
            # DeepSpeed splits states in ways that its own configuration decides.
            continue
        shape = shape_of(job, setup.scope, setup.source)
        if shape is None:
            continue
        met = True
        yield _of_shape(setup, shape)
    for subject, scope, launch in subjects(job):
        named = model_parameters(job, scope)
        if named is None or launch is None or not job.setting("zero_stage", scope) or lighter(launch):
            continue
        met = True
        yield _of_name(job, subject, scope, launch, named)
    if not met:
        yield not_applicable(job.name, "no launch gives the size of what it trains")


@dataclass(frozen=True, slots=True)
class _Room:
    """The memory there is: of the GPU that is named, or of the largest."""

    gib: float
    shown: str
    claim: Claim | None


def _room(job: Job, scope: Scope) -> _Room:
    found = gpu_of(job, scope)
    if found is None:
        gib = largest_memory_gib()
        return _Room(gib, f"the {gib:.0f} GiB of the largest GPU there is", None)
    gpu, claim = found
    return _Room(gpu.memory_gib, f"the {gpu.memory_gib:g} GiB of {placed(claim)}", claim)


def _of_shape(setup: Setup, shape: Shape) -> Verdict:
    sizes = [
        claim
        for quantity in ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size")
        for claim in setup.claims(quantity)
    ]
    open_end = undecided(setup.subject, (*shape.claims, *sizes), setup.launch)
    if open_end is not None:
        return open_end
    tensor, stages, experts = (
        setup.number(quantity) or 1
        for quantity in ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size")
    )
    if setup.hidden:
        return unknown(setup.subject, "an unresolved argument may give further parallel sizes", at=setup.launch)
    here = (shape.dense_parameters + shape.expert_parameters // experts) // (tensor * stages)
    fully = setup.has(*_FULLY_SHARDED)
    replicas = 1
    if fully or setup.claims("distributed_optimizer"):
        replicas = _replicas(setup, tensor * stages)
    everywhere = 0 if fully else _WEIGHT + _GRADIENT
    shared = _WEIGHT + _GRADIENT + _STATES - everywhere
    # Nobody knows over how many replicas: then what they share counts as nothing.
    states = here * everywhere + (here * shared // replicas if replicas else 0)
    if setup.has("--optimizer-cpu-offload"):
        states = here * everywhere
    activations = _activations(setup, shape, tensor)
    room = _room(setup.job, setup.scope)
    if states + activations <= room.gib * GIB:
        return passed(setup.subject)
    kept = f"{gibibytes(states)} of weights, gradients and optimizer states"
    if activations:
        kept += f" and {gibibytes(activations)} of activations"
    return failed(
        setup.subject,
        f"{billions(shape.parameters)} ({', '.join(quoted(c) for c in shape.claims[:3])}) leave at least {kept} on each"
        f" GPU, more than {room.shown}.",
        at=shape.claims[0],
        also=(
            *((claim, "divides it") for claim in sizes),
            *(((room.claim, "the GPU"),) if room.claim is not None else ()),
        ),
        remedy="Raise the tensor or pipeline parallel size, split the optimizer (--use-distributed-optimizer), or"
        " recompute activations.",
    )


def _replicas(setup: Setup, parts: int) -> int:
    """The replicas that share a distributed optimizer; 0 where it is not known how many."""
    found = numbers(ranks_started(setup.job, setup.scope)[0])
    return max(found[0] // parts, 1) if len(found) == 1 else 0


def _activations(setup: Setup, shape: Shape, tensor: int) -> int:
    """Activations of the first stage, which holds a micro-batch for every stage behind it: all layers' worth."""
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


def _of_name(job: Job, subject: str, scope: Scope, launch: Launch | None, named: tuple[int, Claim]) -> Verdict:
    parameters, model = named
    stages = job.setting("zero_stage", scope)
    split = (*job.setting("tensor_parallel_size", scope), *job.setting("pipeline_parallel_size", scope))
    open_end = undecided(subject, (model, *stages, *split), launch)
    if open_end is not None:
        return open_end
    ranks = numbers(ranks_started(job, scope)[0])
    stage = numbers(job_value(stages))
    if not stage or (not ranks and max(stage) >= 3):
        return unknown(subject, "how many ranks share the model", at=model)
    if any(max(numbers(claim.value) or (1,)) > 1 for claim in split):
        return passed(subject)
    # What ranks share counts as nothing where nobody knows how many they are.
    whole = {0: _WEIGHT + _GRADIENT + _STATES, 1: _WEIGHT + _GRADIENT, 2: _WEIGHT}.get(max(stage), 0)
    shared = (_WEIGHT + _GRADIENT + _STATES - whole) * parameters // max(ranks) if ranks else 0
    kept = whole * parameters + shared
    if _offloads(job, "offload_optimizer_device", scope):
        kept = _WEIGHT * parameters if max(stage) < 3 else _WEIGHT * parameters // max(ranks)
    if _offloads(job, "offload_param_device", scope):
        kept = 0
    room = _room(job, scope)
    if kept <= room.gib * GIB:
        return passed(subject)
    among = f" on {max(ranks)} ranks" if ranks else ""
    return failed(
        subject,
        f"{quoted(model)} has {billions(parameters)}: with {placed(stages[0])}{among} each rank keeps at least"
        f" {gibibytes(kept)}, more than {room.shown}.",
        at=stages[0],
        also=(
            (model, billions(parameters)),
            *(((room.claim, "the GPU"),) if room.claim is not None else ()),
        ),
        remedy="Take ZeRO stage 3, offload optimizer states, or start more ranks.",
    )


def _offloads(job: Job, quantity: str, scope: Scope) -> bool:
    """Whether a part may lie in host memory: certainly, or nobody knows."""
    return any(
        isinstance(claim.value, Unresolved) or set(texts(claim.value)) & {"cpu", "nvme"}
        for claim in job.setting(quantity, scope)
    )


@rule(
    "MEM002",
    "offload-exceeds-host-memory",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("deepspeedai/DeepSpeed#4239", "deepspeedai/DeepSpeedExamples#498", "https://arxiv.org/abs/2101.06840"),
)
def offload_exceeds_host_memory(job: Job) -> Iterator[Verdict]:
    """What is kept in host memory is more than the job asks for on each node.

    What it checks:
        A model named with its size: with optimizer states offloaded to the CPU, 16 bytes for each parameter (master
        weight, momentum, variance, gradient) and 2 more with parameters offloaded, shared by the nodes; without
        ZeRO stage 3, 2 bytes for each parameter in every rank of a node while it loads. Against `--mem`,
        `--mem-per-cpu` or the memory limit of a pod.

    Why it matters:
        The kernel kills a rank (exit code -9, "return code = -9") while the GPUs look half empty.

    Example:
        A 13-billion-parameter model offloaded to the CPU with `#SBATCH --mem=128G`: 208 GB are needed.

    Fix:
        Ask for more memory, use more nodes, load on one rank only (`low_cpu_mem_usage`, zero.Init), or offload to NVMe.

    Known limits:
        Only where files name both the model's size and a memory limit; without a limit the node's own memory counts,
        which `preflight check` sees.

    Evidence:
        deepspeedai/DeepSpeed#4239, deepspeedai/DeepSpeedExamples#498; Ren et al., arXiv 2101.06840.
    """
    met = False
    for subject, scope, launch in subjects(job):
        named = model_parameters(job, scope)
        if named is None:
            continue
        limits = job.setting("memory_per_node_mib", scope) or job.about("pod_memory_mib")
        if not limits:
            met = True
            yield unknown(subject, "how much memory each node has", at=named[1])
            continue
        met = True
        open_end = undecided(subject, (named[1], *limits), launch)
        if open_end is not None:
            yield open_end
            continue
        yield _on_host(job, subject, scope, launch, named, limits)
    if not met:
        yield not_applicable(job.name, "no launch names a model with its size")


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
    nodes = numbers(job_value(job.requiring("nodes", scope) or job.setting("nodes", scope))) or (1,)
    stage = max(numbers(job_value(job.setting("zero_stage", scope))) or (0,))
    where, needed, why = model, 0, ""
    optimizer = [c for c in job.setting("offload_optimizer_device", scope) if texts(c.value) == ("cpu",)]
    weights = [c for c in job.setting("offload_param_device", scope) if texts(c.value) == ("cpu",)]
    each = numbers(job_value(job.setting("processes_per_node", scope)))
    if optimizer and not lighter(launch):
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
        f"{quoted(model)} has {billions(parameters)}: {gibibytes(needed)} on each node ({why}), and"
        f" {placed(limits[0])} grants {gibibytes(limit)}.",
        at=where,
        also=((model, billions(parameters)), (limits[0], "memory of a node")),
        remedy="Ask for more memory or nodes, load the model on one rank, or offload to NVMe.",
    )

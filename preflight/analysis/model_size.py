"""Determines the size of a transformer, its share on each GPU, and a lower bound on the memory that training needs.

Every result is a lower bound, because unknown parts count as zero. So a training run that does not fit by these numbers
does not fit at all.

Bytes per parameter in mixed precision with Adam: the 16-bit weight, its gradient, and 32-bit master, momentum and
variance (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1). Activations: Korthikanti et al., arXiv 2205.05198.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from preflight.model.job import Claim, Job, Known, Launch, Scope
from preflight.model.job.claim import job_value
from preflight.model.job.value import is_whole_number, known_number, numbers, texts

_MEGATRON_OPTIONS = frozenset(
    ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--tensor-model-parallel-size")
)

#: An option of this list together with one of the next is sufficient evidence of Megatron-LM.
_SPLIT_OPTIONS = frozenset(("--tensor-model-parallel-size", "--pipeline-model-parallel-size"))

_BATCH_OPTIONS = frozenset(("--micro-batch-size", "--global-batch-size"))


#: Parts of words of a command line that show that only a part of the model is trained, or that training uses fewer bits
#: or an optimizer that needs less memory.
_LIGHT_TRAINING_MARKS = (
    *("lora", "peft", "adapter", "quant", "4bit", "8bit", "int8", "int4", "freeze", "adafactor", "galore", "badam"),
    *("apollo", "prefix", "prompt_tun", "vllm", "sgd", "lomo", "bitfit", "ia3", "muon", "adamini"),
)

#: Programs that use a model without training it.
_NON_TRAINING_PROGRAM = re.compile(r"generat|eval|infer|serv|export|convert|detox|sampl|predict|test|zeroshot|bench")


GIB = 1024**3
#: `Llama-2-70b-hf`, `qwen2.5-0.5B`, `pythia-410m`; `8x7B` is a mixture of experts.
_SIZE_IN_NAME = re.compile(r"(?<![A-Za-z0-9.])(?:(\d{1,2})x)?(\d{1,4}(?:\.\d{1,3})?)([bBmM])(?![A-Za-z0-9])")

#: `[0]*3`, `[1]`, `[0,1]*12`: a part of the list of layers with experts.
_REPEATED_LAYERS = re.compile(r"\[([01](?:,[01]){0,200})\](?:\*(\d{1,4}))?")
_BRACKET_REMOVAL = {ord(mark): None for mark in "()'\" "}


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """The sizes of a transformer.

    `feed_forward` is the width without experts, `groups` the number of query groups (else of heads).
    """

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    groups: int
    gated: bool
    experts: int
    expert_width: int
    expert_layers: int
    vocabulary: int
    sequence: int
    claims: tuple[Claim, ...]

    @property
    def dense_parameters(self) -> int:
        """Return the number of parameters that every token uses: attention, embeddings, dense feed-forward parts."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * (self.hidden * self.groups // self.heads)
        dense = self.layers - (self.expert_layers if self.experts > 1 else 0)
        return (
            self.layers * attention
            + dense * self._parameters_per_width * self.feed_forward
            + self.vocabulary * self.hidden
        )

    @property
    def expert_parameters(self) -> int:
        return (
            self.expert_layers * self.experts * self._parameters_per_width * self.expert_width
            if self.experts > 1
            else 0
        )

    @property
    def parameters(self) -> int:
        return self.dense_parameters + self.expert_parameters

    @property
    def _parameters_per_width(self) -> int:
        """Return the number of parameters of a feed-forward part for each unit of its width."""
        return (3 if self.gated else 2) * self.hidden

    def activation_bytes(self, micro_batch: int, *, tensor: int, recompute: str, sequence_parallel: bool) -> int:
        """Return the size in bytes of the activations of all layers for one micro-batch in 16 bits.

        Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198),
        table 2, without the terms of attention scores, which fused kernels never store.
        """
        tokens = self.sequence * micro_batch * self.hidden
        if recompute == "full":
            return self.layers * 2 * tokens
        if sequence_parallel:
            return self.layers * tokens * 34 // tensor
        return self.layers * tokens * (10 + 24 // tensor)


def stated_shape(job: Job, scope: Scope, source: str) -> TransformerShape | None:
    """Return the shape that one source states; None unless layers, width and heads are certain."""
    claims: list[Claim] = []

    def number(quantity: str) -> int | None:
        quantity_claims = [claim for claim in job.setting(quantity, scope) if claim.source == source]
        values = numbers(job_value(quantity_claims)) if quantity_claims else ()
        if len(values) != 1 or values[0] < 1:
            return None
        claims.append(quantity_claims[0])
        return values[0]

    layers, hidden, heads = number("num_layers"), number("hidden_size"), number("attention_heads")
    if layers is None or hidden is None or heads is None:
        return None
    is_gated = any(claim.value == Known(True) for claim in job.setting("gated_feed_forward", scope))
    feed_forward_width = number("ffn_hidden_size") or (int(4 * hidden * 2 / 3) if is_gated else 4 * hidden)
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        feed_forward=feed_forward_width,
        heads=heads,
        groups=min(number("query_groups") or heads, heads),
        gated=is_gated,
        experts=number("num_experts") or 1,
        expert_width=number("expert_ffn_hidden_size") or feed_forward_width,
        expert_layers=_expert_layers(job, scope, layers),
        vocabulary=number("vocabulary_size") or 0,
        sequence=number("sequence_length") or 0,
        claims=tuple(claims),
    )


def _expert_layers(job: Job, scope: Scope, layers: int) -> int:
    """Return a lower bound on layers with experts: all, every nth, those in `[0]*3+[1]*21`; 0 for other forms."""
    claims = job.setting("expert_layers", scope)
    if not claims:
        return layers
    layer_counts = [_count_marked_layers(text, layers) for text in texts(job_value(claims))]
    return min(layer_counts, default=0)


def _count_marked_layers(text: str, layers: int) -> int:
    pattern = text.translate(_BRACKET_REMOVAL)
    if is_whole_number(pattern):
        return -(-layers // int(pattern)) if int(pattern) else 0
    matches = [_REPEATED_LAYERS.fullmatch(match) for match in pattern.split("+")]
    if not all(matches):
        return 0
    return min(sum(int(match[2] or 1) * match[1].count("1") for match in matches if match), layers)


def parameters_in_name(text: str) -> int | None:
    """Return the number of parameters in a name such as `meta-llama/Llama-2-70b-hf`; None if the name has no size."""
    sizes = _SIZE_IN_NAME.findall(text.rstrip("/").rpartition("/")[2][:120])
    if len(sizes) != 1:
        return None
    experts, size, unit = sizes[0]
    return int(int(experts or 1) * float(size) * (1e9 if unit in "bB" else 1e6))


def model_parameters(job: Job, scope: Scope) -> tuple[int, Claim] | None:
    """Return the number of parameters of a launch's model: from its own configuration, otherwise from its name."""
    for claim in job.setting("model_parameters", scope):
        counts = numbers(claim.value)
        if len(counts) == 1 and counts[0] > 0:
            return counts[0], claim
    for claim in job.setting("model_name", scope):
        name_sizes = [parameters_in_name(text) for text in texts(claim.value)]
        if name_sizes and name_sizes[0] is not None and len(set(name_sizes)) == 1:
            return name_sizes[0], claim
    return None


def format_parameters(parameters: int) -> str:
    """Return a number of parameters as `6.7 billion parameters` or `350 million parameters`."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.3g} billion parameters"
    return f"{parameters / 1e6:.3g} million parameters"


def format_gibibytes(amount: float) -> str:
    """Return a number of bytes as `112 GiB`."""
    return f"{amount / GIB:.3g} GiB" if amount < 1000 * GIB else f"{amount / GIB:.0f} GiB"


def uses_less_memory(launch: Launch | None) -> bool:
    """Return whether a command line has an option that needs less memory than full training."""
    if launch is None:
        return False
    arguments = [argument.lower() for argument in launch.arguments if argument is not None]
    return any(mark in argument for argument in arguments for mark in _LIGHT_TRAINING_MARKS) or not may_train(launch)


def may_train(launch: Launch) -> bool:
    """Return whether the name of the program allows that it trains."""
    return _NON_TRAINING_PROGRAM.search(launch.program.rpartition("/")[2].lower()) is None


def is_megatron(launch: Launch) -> bool:
    """Return whether a command line has several options of Megatron-LM; a single option is not sufficient."""
    options = {word.partition("=")[0] for word in launch.arguments if word is not None}
    return len(options & _MEGATRON_OPTIONS) >= 2 or bool(options & _SPLIT_OPTIONS and options & _BATCH_OPTIONS)


WEIGHT_BYTES, GRADIENT_BYTES, STATE_BYTES = 2, 2, 12
#: The first ZeRO stage that divides this part among the data-parallel ranks.
_STATES_STAGE, _GRADIENTS_STAGE, _WEIGHTS_STAGE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a GPU's memory: its name, a lower bound of its size, and the formula with the job's numbers."""

    name: str
    size_bytes: int
    formula: str


def device_memory(job: Job, launch: Launch) -> tuple[Part, ...]:
    """Return the parts of each GPU's memory; empty if model or division is unknown, or only a part is trained."""
    scope = launch.scope
    if uses_less_memory(launch):
        return ()
    model_shape = stated_shape(job, scope, "arguments")
    parameters_and_claim = model_parameters(job, scope)
    if model_shape is not None:
        dense_parameters, expert_parameters = model_shape.dense_parameters, model_shape.expert_parameters
    elif parameters_and_claim is not None:
        dense_parameters, expert_parameters = parameters_and_claim[0], 0
    else:
        return ()
    sizes = {}
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "expert_parallel_size"):
        size = _setting_number(job, launch, name, default=1)
        if size is None or size < 1:
            return ()
        sizes[name] = size
    tensor_ranks, pipeline_stages = sizes["tensor_parallel_size"], sizes["pipeline_parallel_size"]
    own_parameters = (dense_parameters + expert_parameters // sizes["expert_parallel_size"]) // (
        tensor_ranks * pipeline_stages
    )
    count_text = format_parameters(dense_parameters + expert_parameters)
    if tensor_ranks * pipeline_stages > 1:
        count_text += f" / ({tensor_ranks} TP x {pipeline_stages} PP)"
    zero_stage = _zero_stage(job, launch)
    replica_count = _replica_count(job, launch, tensor_ranks * pipeline_stages * sizes["context_parallel_size"])
    if zero_stage is None or (zero_stage and replica_count is None):
        return ()
    parts = [
        _memory_part(
            "weights", own_parameters, WEIGHT_BYTES, count_text, replica_count if zero_stage >= _WEIGHTS_STAGE else 1
        ),
        _memory_part(
            "gradients",
            own_parameters,
            GRADIENT_BYTES,
            count_text,
            replica_count if zero_stage >= _GRADIENTS_STAGE else 1,
        ),
        _memory_part(
            "optimizer states",
            own_parameters,
            STATE_BYTES,
            count_text,
            replica_count if zero_stage >= _STATES_STAGE else 1,
        ),
    ]
    if _is_offloaded(job, launch, "offload_param_device"):
        parts = [part for part in parts if part.name != "weights"]
    if _is_offloaded(job, launch, "offload_optimizer_device"):
        parts = [part for part in parts if part.name != "optimizer states"]
    micro_batch = _setting_number(job, launch, "micro_batch_size_per_gpu", default=None)
    if model_shape is not None and model_shape.sequence and micro_batch:
        recompute_kinds = {text for claim in job.setting("recompute", scope) for text in texts(claim.value)}
        recompute = "full" if "full" in recompute_kinds else "selective"
        tensor_split = tensor_ranks * sizes["context_parallel_size"]
        all_layers_bytes = model_shape.activation_bytes(
            micro_batch,
            tensor=tensor_split,
            recompute=recompute,
            sequence_parallel=job.value("sequence_parallel", scope) == Known(True),
        )
        layers_text = f"{model_shape.hidden} wide x {model_shape.layers} layers"
        formula = f"{model_shape.sequence} tokens x {micro_batch} x {layers_text}, {recompute}"
        stored_batches = _stored_micro_batches(job, launch, micro_batch, replica_count, pipeline_stages)
        formula += " recomputation" + (
            f" x {stored_batches} micro batches / {pipeline_stages} PP" if pipeline_stages > 1 else ""
        )
        parts.append(Part("activations", all_layers_bytes * stored_batches // pipeline_stages, formula))
    return tuple(parts)


def _memory_part(name: str, parameters: int, bytes_each: int, count_text: str, divisor: int | None) -> Part:
    divisor = divisor or 1
    return Part(
        name,
        parameters * bytes_each // divisor,
        f"{bytes_each} B x {count_text}" + (f" / {divisor} ranks" if divisor > 1 else ""),
    )


def _setting_number(job: Job, launch: Launch, quantity: str, *, default: int | None) -> int | None:
    claims = job.setting(quantity, launch.scope)
    return known_number(job_value(claims)) if claims else default


def _zero_stage(job: Job, launch: Launch) -> int | None:
    """Return the ZeRO stage, or the equivalent stage of another kind of sharding; None if it is set but unknown."""
    if job.setting("zero_stage", launch.scope):
        return _setting_number(job, launch, "zero_stage", default=0)
    strategies = job.setting("fsdp_sharding_strategy", launch.scope)
    if strategies:
        strategy_names = {text.upper() for claim in strategies for text in texts(claim.value)}
        stage_by_strategy = {"FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0}
        return stage_by_strategy.get(strategy_names.pop()) if len(strategy_names) == 1 else None
    if job.value("uses_fsdp", launch.scope) == Known(True):
        return 3
    return 1 if job.value("distributed_optimizer", launch.scope) == Known(True) else 0


def _stored_micro_batches(job: Job, launch: Launch, micro_batch: int, replicas: int | None, stages: int) -> int:
    """Return the number of micro batches whose activations the first stage stores, at most the number of stages."""
    global_batch = _setting_number(job, launch, "train_batch_size", default=None)
    if global_batch is None or replicas is None:
        return 1
    return max(1, min(stages, global_batch // (micro_batch * replicas)))


def _is_offloaded(job: Job, launch: Launch, quantity: str) -> bool:
    claims = job.setting(quantity, launch.scope)
    return bool(claims) and {text for claim in claims for text in texts(claim.value)} != {"none"}


def _replica_count(job: Job, launch: Launch, ranks_per_replica: int) -> int | None:
    world_size = _setting_number(job, launch, "world_size", default=None)
    return max(world_size // ranks_per_replica, 1) if world_size else None


# The backend over which the ranks of a job communicate, as far as its claims state it.


#: Conditions of branches that depend on the devices of a rank, or on an option about devices.
_DEVICE_CONDITION = re.compile(r"(?i)cuda|gpu|cpu|device|accelerator|platform|backend|nccl|gloo|except")


def stated_backends(job: Job, scopes: Sequence[Scope]) -> tuple[frozenset[str], tuple[Claim, ...]]:
    """Return the backends that the job may use (`gloo`, `nccl`, `mpi` ...), with the claims that name them."""
    backends: set[str] = set()
    claims: list[Claim] = []
    for scope in scopes:
        for claim in job.value_claims("backend", scope):
            for alternative in claim.alternatives:
                # `cpu:gloo,cuda:nccl` names one backend per kind of device.
                backends.update(part.split(":")[-1].strip().lower() for part in str(alternative).split(","))
            claims.append(claim)
    return frozenset(backends), tuple(dict.fromkeys(claims))


def requested_backend(job: Job, scopes: Sequence[Scope]) -> tuple[str, tuple[Claim, ...]]:
    """Return `nccl` or `gloo` if every rank of the job certainly uses it, otherwise an empty name; and the claims that
    state the backend.

    A job that requests GPUs and sets no backend requests NCCL, which torch uses for tensors on GPUs. So does a job that
    uses another backend only without GPUs (`nccl if torch.cuda.is_available() else gloo`).
    """
    backends, backend_claims = stated_backends(job, scopes)
    if any(not claim.alternatives for claim in backend_claims):
        return "", backend_claims
    is_certain = any(
        len(claim.alternatives) == 1 and not _DEVICE_CONDITION.search(claim.condition) for claim in backend_claims
    )
    for name in ("gloo", "nccl"):
        if backends == {name} and is_certain:
            return name, backend_claims
    gpu_claims = gpu_requests(job, scopes)
    if gpu_claims and (not backend_claims or "nccl" in backends):
        return "nccl", tuple(dict.fromkeys((*backend_claims, *gpu_claims)))
    return "", backend_claims


def gpu_requests(job: Job, scopes: Sequence[Scope]) -> tuple[Claim, ...]:
    """Return the claims that request GPUs from a scheduler or launcher."""
    request_claims: list[Claim] = []
    for quantity in ("gpus_per_node", "gpus_per_task"):
        for scope in scopes:
            if (known_number(job.value(quantity, scope)) or 0) > 0:
                request_claims.extend(job.value_claims(quantity, scope))
    return tuple(dict.fromkeys(request_claims))

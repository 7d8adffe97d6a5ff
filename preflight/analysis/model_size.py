"""The size of a transformer, its share on each GPU, and a lower bound on the memory of one in training.

Every result is a lower bound: unknown parts count as zero. So a training run that does not fit by these numbers does
not fit at all.

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

_MEGATRON = frozenset(
    ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--tensor-model-parallel-size")
)

#: One option of each of these kinds is sufficient evidence.
_SPLITS = frozenset(("--tensor-model-parallel-size", "--pipeline-model-parallel-size"))

_BATCHES = frozenset(("--micro-batch-size", "--global-batch-size"))


#: Words of a command line that show that only part of the model is trained, or that training uses fewer bits or a
#: lighter optimizer.
_LIGHTER = (
    *("lora", "peft", "adapter", "quant", "4bit", "8bit", "int8", "int4", "freeze", "adafactor", "galore", "badam"),
    *("apollo", "prefix", "prompt_tun", "vllm", "sgd", "lomo", "bitfit", "ia3", "muon", "adamini"),
)

#: Programs that use a model without training it.
_NO_TRAINING = re.compile(r"generat|eval|infer|serv|export|convert|detox|sampl|predict|test|zeroshot|bench")


GIB = 1024**3
#: `Llama-2-70b-hf`, `qwen2.5-0.5B`, `pythia-410m`; `8x7B` is a mixture of experts.
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(?:(\d{1,2})x)?(\d{1,4}(?:\.\d{1,3})?)([bBmM])(?![A-Za-z0-9])")

#: `[0]*3`, `[1]`, `[0,1]*12`: a part of the list of layers with experts.
_REPEATED = re.compile(r"\[([01](?:,[01]){0,200})\](?:\*(\d{1,4}))?")
_NO_QUOTES = {ord(mark): None for mark in "()'\" "}


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """The sizes of a transformer; `claims` are the claims that state them.

    Args:
        expert_width: width inside each expert; `feed_forward` is the width in layers without experts.
        expert_layers: how many layers have experts.
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
        """Return parameters used for every token: attention, embeddings, and a feed-forward part without experts."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * (self.hidden * self.groups // self.heads)
        dense = self.layers - (self.expert_layers if self.experts > 1 else 0)
        return self.layers * attention + dense * self._matrices * self.feed_forward + self.vocabulary * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Return parameters of all experts."""
        return self.expert_layers * self.experts * self._matrices * self.expert_width if self.experts > 1 else 0

    @property
    def parameters(self) -> int:
        """Return all parameters except biases and norms."""
        return self.dense_parameters + self.expert_parameters

    @property
    def _matrices(self) -> int:
        """Return parameters of a feed-forward part for each unit of its width."""
        return (3 if self.gated else 2) * self.hidden

    def activation_bytes(self, micro_batch: int, *, tensor: int, recompute: str, sequence_parallel: bool) -> int:
        """Return bytes of the activations of all layers for one micro-batch in 16 bits.

        Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198),
        table 2, without the terms of attention scores, which fused kernels never store.
        """
        tokens = self.sequence * micro_batch * self.hidden
        if recompute == "full":
            return self.layers * 2 * tokens
        if sequence_parallel:
            return self.layers * tokens * 34 // tensor
        return self.layers * tokens * (10 + 24 // tensor)


def shape_of(job: Job, scope: Scope, source: str) -> TransformerShape | None:
    """Return the shape that one source states; None unless layers, width and heads are known for certain."""
    claims: list[Claim] = []

    def number(quantity: str) -> int | None:
        found = [claim for claim in job.setting(quantity, scope) if claim.source == source]
        values = numbers(job_value(found)) if found else ()
        if len(values) != 1 or values[0] < 1:
            return None
        claims.append(found[0])
        return values[0]

    layers, hidden, heads = number("num_layers"), number("hidden_size"), number("attention_heads")
    if layers is None or hidden is None or heads is None:
        return None
    gated = any(claim.value == Known(True) for claim in job.setting("gated_feed_forward", scope))
    width = number("ffn_hidden_size") or (int(4 * hidden * 2 / 3) if gated else 4 * hidden)
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        feed_forward=width,
        heads=heads,
        groups=min(number("query_groups") or heads, heads),
        gated=gated,
        experts=number("num_experts") or 1,
        expert_width=number("expert_ffn_hidden_size") or width,
        expert_layers=_expert_layers(job, scope, layers),
        vocabulary=number("vocabulary_size") or 0,
        sequence=number("sequence_length") or 0,
        claims=tuple(claims),
    )


def _expert_layers(job: Job, scope: Scope, layers: int) -> int:
    """Return a lower bound on the number of layers with experts: every layer, every nth, or those in a list such as
    `[0]*3+[1]*21`.

    A list of another form counts as none.
    """
    claims = job.setting("expert_layers", scope)
    if not claims:
        return layers
    found = [_count_marked_layers(text, layers) for text in texts(job_value(claims))]
    return min(found, default=0)


def _count_marked_layers(text: str, layers: int) -> int:
    plain = text.translate(_NO_QUOTES)
    if is_whole_number(plain):
        return -(-layers // int(plain)) if int(plain) else 0
    parts = [_REPEATED.fullmatch(part) for part in plain.split("+")]
    if not all(parts):
        return 0
    return min(sum(int(part[2] or 1) * part[1].count("1") for part in parts if part), layers)


def named_parameters(text: str) -> int | None:
    """Return the number of parameters in a name such as `meta-llama/Llama-2-70b-hf`; None if the name has no size."""
    found = _SIZE.findall(text.rstrip("/").rpartition("/")[2][:120])
    if len(found) != 1:
        return None
    experts, size, unit = found[0]
    return int(int(experts or 1) * float(size) * (1e9 if unit in "bB" else 1e6))


def model_parameters(job: Job, scope: Scope) -> tuple[int, Claim] | None:
    """Return the number of parameters of a launch's model: from its own configuration, otherwise from its name."""
    for claim in job.setting("model_parameters", scope):
        counted = numbers(claim.value)
        if len(counted) == 1 and counted[0] > 0:
            return counted[0], claim
    for claim in job.setting("model_name", scope):
        found = [named_parameters(text) for text in texts(claim.value)]
        if found and found[0] is not None and len(set(found)) == 1:
            return found[0], claim
    return None


def format_parameters(parameters: int) -> str:
    """Format as `6.7 billion parameters`, `350 million parameters`."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.3g} billion parameters"
    return f"{parameters / 1e6:.3g} million parameters"


def format_gibibytes(amount: float) -> str:
    """Format as `112 GiB`."""
    return f"{amount / GIB:.3g} GiB" if amount < 1000 * GIB else f"{amount / GIB:.0f} GiB"


def uses_less_memory(launch: Launch | None) -> bool:
    """Return whether a command line has an option that needs less memory than full training."""
    if launch is None:
        return False
    words = [word.lower() for word in launch.arguments if word is not None]
    return any(mark in word for word in words for mark in _LIGHTER) or not trains(launch)


def trains(launch: Launch) -> bool:
    """Return whether the program may train, as far as its name shows."""
    return _NO_TRAINING.search(launch.program.rpartition("/")[2].lower()) is None


def is_megatron(launch: Launch) -> bool:
    """Return whether a command line has several of Megatron-LM's own options; a single one is not enough."""
    found = {word.partition("=")[0] for word in launch.arguments if word is not None}
    return len(found & _MEGATRON) >= 2 or bool(found & _SPLITS and found & _BATCHES)


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
    """Return the parts on each GPU; empty if the model or its division is unknown, or if only part of the model is
    trained.
    """
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
    return known_number(job_value(claims)) if claims else otherwise


def _stage(job: Job, launch: Launch) -> int | None:
    """Return the ZeRO stage, or the equivalent one of another sharding; None if it is set but unknown."""
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
    """Return the number of micro batches whose activations the first stage of a pipeline holds: at most one per
    stage.
    """
    whole = _number(job, launch, "train_batch_size", otherwise=None)
    if whole is None or replicas is None:
        return 1
    return max(1, min(stages, whole // (micro * replicas)))


def _is_offloaded(job: Job, launch: Launch, quantity: str) -> bool:
    """Return whether a part may be kept in host memory."""
    claims = job.setting(quantity, launch.scope)
    return bool(claims) and {text for claim in claims for text in texts(claim.value)} != {"none"}


def _replicas(job: Job, launch: Launch, parts: int) -> int | None:
    world = _number(job, launch, "world_size", otherwise=None)
    return max(world // parts, 1) if world else None


# The backend that the ranks of a job communicate over, as far as its claims state it.


#: Branches that a rank takes by the devices it finds, or by an option about them.
_BY_DEVICE = re.compile(r"(?i)cuda|gpu|cpu|device|accelerator|platform|backend|nccl|gloo|except")


def stated_backends(job: Job, scopes: Sequence[Scope]) -> tuple[frozenset[str], tuple[Claim, ...]]:
    """Return the backends that the job may use (`gloo`, `nccl`, `mpi` ...), with the claims that state them."""
    names: set[str] = set()
    claims: list[Claim] = []
    for scope in scopes:
        for claim in job.value_claims("backend", scope):
            for alternative in claim.alternatives:
                # `cpu:gloo,cuda:nccl` names one backend per kind of device.
                names.update(part.split(":")[-1].strip().lower() for part in str(alternative).split(","))
            claims.append(claim)
    return frozenset(names), tuple(dict.fromkeys(claims))


def requested_backend(job: Job, scopes: Sequence[Scope]) -> tuple[str, tuple[Claim, ...]]:
    """Return `nccl` or `gloo` if every rank of the job certainly uses it, with the claims that state it; otherwise
    empty.

    A job that requests GPUs and sets no backend requests NCCL, which torch uses for tensors on GPUs; so does a job that
    falls back to another backend only without GPUs (`nccl if torch.cuda.is_available() else gloo`).
    """
    names, stated = stated_backends(job, scopes)
    if any(not claim.alternatives for claim in stated):
        return "", stated
    sure = any(len(claim.alternatives) == 1 and not _BY_DEVICE.search(claim.condition) for claim in stated)
    for name in ("gloo", "nccl"):
        if names == {name} and sure:
            return name, stated
    requested = gpu_requests(job, scopes)
    if requested and (not stated or "nccl" in names):
        return "nccl", tuple(dict.fromkeys((*stated, *requested)))
    return "", stated


def gpu_requests(job: Job, scopes: Sequence[Scope]) -> tuple[Claim, ...]:
    """Return the claims that request GPUs from a scheduler or launcher."""
    found: list[Claim] = []
    for quantity in ("gpus_per_node", "gpus_per_task"):
        for scope in scopes:
            if (known_number(job.value(quantity, scope)) or 0) > 0:
                found.extend(job.value_claims(quantity, scope))
    return tuple(dict.fromkeys(found))

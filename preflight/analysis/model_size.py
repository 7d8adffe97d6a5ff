"""The size of a transformer and its share on each GPU: plain arithmetic.

Every result is a lower bound: unknown parts count as zero. So a training run that does not fit by these numbers does
not fit at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from preflight.model.job import Claim, Job, Known, Launch, Scope
from preflight.model.job.claim import job_value
from preflight.model.job.value import is_whole_number, numbers, texts

_MEGATRON = frozenset(
    ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--tensor-model-parallel-size")
)

#: An option of each of these kinds is enough evidence.
_SPLITS = frozenset(("--tensor-model-parallel-size", "--pipeline-model-parallel-size"))

_BATCHES = frozenset(("--micro-batch-size", "--global-batch-size"))


#: Words of a command line that show that only part of the model is trained, or that it is trained in fewer bits or with
#: a lighter optimizer.
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
        """Parameters used for every token: attention, embeddings, and a feed-forward part without experts."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * (self.hidden * self.groups // self.heads)
        dense = self.layers - (self.expert_layers if self.experts > 1 else 0)
        return self.layers * attention + dense * self._matrices * self.feed_forward + self.vocabulary * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts."""
        return self.expert_layers * self.experts * self._matrices * self.expert_width if self.experts > 1 else 0

    @property
    def parameters(self) -> int:
        """All parameters except biases and norms."""
        return self.dense_parameters + self.expert_parameters

    @property
    def _matrices(self) -> int:
        """Parameters of a feed-forward part for each unit of its width."""
        return (3 if self.gated else 2) * self.hidden

    def activation_bytes(self, micro_batch: int, *, tensor: int, recompute: str, sequence_parallel: bool) -> int:
        """Bytes of the activations of all layers for one micro-batch in 16 bits.

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
    """The shape that one source states; None unless layers, width and heads are known for certain."""
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
    """A lower bound on the number of layers with experts: every layer, every nth, or those that a list such as
    `[0]*3+[1]*21` marks.

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
    """The number of parameters in a name such as `meta-llama/Llama-2-70b-hf`; None if the name has no size."""
    found = _SIZE.findall(text.rstrip("/").rpartition("/")[2][:120])
    if len(found) != 1:
        return None
    experts, size, unit = found[0]
    return int(int(experts or 1) * float(size) * (1e9 if unit in "bB" else 1e6))


def model_parameters(job: Job, scope: Scope) -> tuple[int, Claim] | None:
    """The parameters of the model that a launch names: by its own configuration, otherwise by its name."""
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
    """Whether a command line has an option that needs less memory than full training."""
    if launch is None:
        return False
    words = [word.lower() for word in launch.arguments if word is not None]
    return any(mark in word for word in words for mark in _LIGHTER) or not trains(launch)


def trains(launch: Launch) -> bool:
    """Whether the program may train, as far as its name shows."""
    return _NO_TRAINING.search(launch.program.rpartition("/")[2].lower()) is None


def is_megatron(launch: Launch) -> bool:
    """Whether a command line has several of Megatron-LM's own options; a single one is not enough."""
    found = {word.partition("=")[0] for word in launch.arguments if word is not None}
    return len(found & _MEGATRON) >= 2 or bool(found & _SPLITS and found & _BATCHES)

"""How large a transformer is, and what of it lies on each GPU: arithmetic without opinions.

Everything here is a lower bound: what is not known counts as nothing. So a training that does not fit by these
numbers does not fit.
"""

from __future__ import annotations

from preflight.job import Claim, Job, Known, Scope
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight_rules.reading import job_value, numbers, texts

GIB = 1024**3
#: `Llama-2-70b-hf`, `qwen2.5-0.5B`, `pythia-410m`; `8x7B` is a mixture of experts.
_SIZE = lazy_pattern(r"(?<![A-Za-z0-9.])(?:(\d{1,2})x)?(\d{1,4}(?:\.\d{1,3})?)([bBmM])(?![A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer as its sizes give it; `claims` are where they stand."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    groups: int
    gated: bool
    experts: int
    vocabulary: int
    sequence: int
    claims: tuple[Claim, ...]

    @property
    def dense_parameters(self) -> int:
        """Parameters that every token passes: attention, embeddings, and a feed-forward part without experts."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * (self.hidden * self.groups // self.heads)
        one = 0 if self.experts > 1 else self._feed_forward
        return self.layers * (attention + one) + self.vocabulary * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts."""
        return self.layers * self.experts * self._feed_forward if self.experts > 1 else 0

    @property
    def parameters(self) -> int:
        """All parameters but biases and norms."""
        return self.dense_parameters + self.expert_parameters

    @property
    def _feed_forward(self) -> int:
        return (3 if self.gated else 2) * self.hidden * self.feed_forward

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


def shape_of(job: Job, scope: Scope, source: str) -> Shape | None:
    """The shape that one source gives; None where layers, width or heads are not known for certain."""
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
    return Shape(
        layers=layers,
        hidden=hidden,
        feed_forward=width,
        heads=heads,
        groups=min(number("query_groups") or heads, heads),
        gated=gated,
        experts=number("num_experts") or 1,
        vocabulary=number("vocabulary_size") or 0,
        sequence=number("sequence_length") or 0,
        claims=tuple(claims),
    )


def named_parameters(text: str) -> int | None:
    """How many parameters a name such as `meta-llama/Llama-2-70b-hf` promises; None where it names no size."""
    found = _SIZE.findall(text.rstrip("/").rpartition("/")[2][:120])
    if len(found) != 1:
        return None
    experts, size, unit = found[0]
    return int(int(experts or 1) * float(size) * (1e9 if unit in "bB" else 1e6))


def model_parameters(job: Job, scope: Scope) -> tuple[int, Claim] | None:
    """The parameters of the model that a launch names, by its name."""
    for claim in job.setting("model_name", scope):
        found = [named_parameters(text) for text in texts(claim.value)]
        if found and found[0] is not None and len(set(found)) == 1:
            return found[0], claim
    return None


def billions(parameters: int) -> str:
    """`6.7 billion parameters`, `350 million parameters`."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.3g} billion parameters"
    return f"{parameters / 1e6:.3g} million parameters"


def gibibytes(amount: float) -> str:
    """`112 GiB`."""
    return f"{amount / GIB:.3g} GiB" if amount < 1000 * GIB else f"{amount / GIB:.0f} GiB"

"""Computes the number of parameters of a model from the sizes in its `config.json`.

The sums are those of the weights in transformers/models/{llama,mistral,mixtral,qwen2,qwen2_moe,qwen3,qwen3_moe,
deepseek_v3,gpt2}/modeling_*.py (4.57). For other kinds of models no number is computed.
"""

from __future__ import annotations

from preflight.sources.formats.structured import Kind, Node

#: Kinds whose layers are attention with grouped heads and one gated feed-forward part. The values are what each adds: a
#: bias of the query, key and value projections; norms of each head's queries and keys.
_DENSE = {
    "llama": (False, False),
    "mistral": (False, False),
    "qwen2": (True, False),
    "qwen3": (False, True),
    "mixtral": (False, False),
    "qwen2_moe": (True, False),
    "qwen3_moe": (False, True),
}
_LATENT = ("deepseek_v3", "deepseek_v2")
_MAX_NUMBER = 10**15


class Sizes:
    """The numbers of one configuration; a missing or invalid one raises KeyError if it has no default."""

    def __init__(self, model: Node, root: Node) -> None:
        self._model = model
        self._root = root

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        node = self._model.at(name)
        if node is None or node.value is None:
            if default is None:
                raise KeyError(name)
            return default
        if node.kind is not Kind.SCALAR or isinstance(node.value, bool) or not isinstance(node.value, int):
            raise KeyError(name)
        if not 0 <= node.value < _MAX_NUMBER:
            raise KeyError(name)
        return node.value

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean."""
        node = self._model.at(name) or self._root.at(name)
        return node.value if node is not None and isinstance(node.value, bool) else default

    def has(self, name: str) -> bool:
        """Whether there is a value."""
        node = self._model.at(name)
        return node is not None and node.value is not None


def parameters_of(kind: str, sizes: Sizes) -> int | None:
    """The number of parameters of a model of this `model_type`; None if the kind is unknown or a size is missing."""
    try:
        if kind in _DENSE:
            return _count_grouped_attention(kind, sizes)
        if kind in _LATENT:
            return _count_latent_attention(sizes, corrected=kind == "deepseek_v3")
        if kind == "gpt2":
            return _count_gpt2(sizes)
    except (KeyError, ZeroDivisionError):
        return None
    return None


def _embeddings(sizes: Sizes, *, tied: bool) -> int:
    rows = sizes.number("vocab_size") * sizes.number("hidden_size")
    return rows if sizes.flag("tie_word_embeddings", default=tied) else 2 * rows


def _count_grouped_attention(kind: str, sizes: Sizes) -> int:
    width, layers = sizes.number("hidden_size"), sizes.number("num_hidden_layers")
    heads = sizes.number("num_attention_heads")
    groups = sizes.number("num_key_value_heads", heads)
    each = sizes.number("head_dim", width // heads)
    bias, normed = _DENSE[kind]
    attention = 2 * width * heads * each + 2 * width * groups * each
    attention += (heads + 2 * groups) * each if bias or sizes.flag("attention_bias", default=False) else 0
    attention += 2 * each if normed else 0
    dense = 3 * width * sizes.number("intermediate_size", 0 if kind.endswith("_moe") else None)
    if kind == "mixtral":
        experts = sizes.number("num_local_experts")
        part = experts * dense + experts * width
    elif kind.endswith("_moe"):
        experts = sizes.number("num_experts")
        part = experts * 3 * width * sizes.number("moe_intermediate_size") + experts * width
        if sizes.has("shared_expert_intermediate_size"):
            part += 3 * width * sizes.number("shared_expert_intermediate_size") + width
        if sizes.number("decoder_sparse_step", 1) != 1:
            raise KeyError("decoder_sparse_step")
    else:
        part = dense
    return layers * (attention + part + 2 * width) + width + _embeddings(sizes, tied=False)


def _count_latent_attention(sizes: Sizes, *, corrected: bool) -> int:
    """The parameters of a model with DeepSeek's latent attention: its first layers are dense, the others have experts.

    `corrected`: whether a bias for each expert corrects the router's choice.
    """
    width, layers, heads = (
        sizes.number("hidden_size"),
        sizes.number("num_hidden_layers"),
        sizes.number("num_attention_heads"),
    )
    plain, turned, out = (
        sizes.number("qk_nope_head_dim"),
        sizes.number("qk_rope_head_dim"),
        sizes.number("v_head_dim"),
    )
    latent = sizes.number("kv_lora_rank")
    if sizes.has("q_lora_rank"):
        rank = sizes.number("q_lora_rank")
        query = width * rank + rank + rank * heads * (plain + turned)
    else:
        query = width * heads * (plain + turned)
    attention = query + width * (latent + turned) + latent + latent * heads * (plain + out) + heads * out * width
    first = min(sizes.number("first_k_dense_replace", 0), layers)
    if sizes.number("moe_layer_freq", 1) != 1:
        raise KeyError("moe_layer_freq")
    experts, shared = sizes.number("n_routed_experts"), sizes.number("n_shared_experts", 0)
    mixed = (experts + shared) * 3 * width * sizes.number("moe_intermediate_size") + experts * width
    mixed += experts if corrected else 0
    dense = 3 * width * sizes.number("intermediate_size")
    both = first * dense + (layers - first) * mixed
    return layers * (attention + 2 * width) + both + width + _embeddings(sizes, tied=False)


def _count_gpt2(sizes: Sizes) -> int:
    width, layers = sizes.number("n_embd"), sizes.number("n_layer")
    inner = sizes.number("n_inner", 4 * width)
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    return layers * layer + 2 * width + (sizes.number("vocab_size") + sizes.number("n_positions", 1024)) * width

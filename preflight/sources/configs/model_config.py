"""Reads a model's own `config.json` (Hugging Face, PaddleNLP) and Llama's `params.json`: its shape and its parameters.

Source of the keys: transformers/models/*/configuration_*.py (4.57) and paddlenlp/transformers/*/configuration.py (2.8);
llama-models (params.json). It is read for a launch that names the folder; by itself such a file starts nothing.

The sums are those of the weights in transformers/models/{llama,mistral,mixtral,qwen2,qwen2_moe,qwen3,qwen3_moe,
deepseek_v3,gpt2}/modeling_*.py (4.57). For other kinds of models no number is computed.
"""

from __future__ import annotations

import posixpath
import re

from preflight.model.job import WHOLE_JOB, Claim, Known, Scope, Unresolved, alternatives, as_int
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.formats.structured import Kind, Node, NodeClaims, document_of, value_of

#: The role in which other files refer to such a file.
ROLE = "model configuration"
_FILE = "config.json"
_HEAD = 60_000
_TYPE = re.compile(r"\"(?:model_type|architectures)\"[ \t]*:")
_LAYERS = re.compile(r"\"(?:num_hidden_layers|n_layer|n_layers|num_layers)\"[ \t]*:")
_WIDTH = re.compile(r"\"(?:hidden_size|n_embd|d_model|dim)\"[ \t]*:")
_LLAMA = re.compile(r"\"norm_eps\"[ \t]*:")
_OTHER_TOOLS = re.compile(
    r"\"(?:per_device_train_batch_size|train_micro_batch_size_per_gpu|zero_optimization)\"[ \t]*:"
)
#: The keys of each quantity; the first that a file has counts.
_KEYS: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "ffn_hidden_size": ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "hidden_dim"),
    "attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "query_groups": ("num_key_value_heads", "n_kv_heads", "num_kv_heads"),
    "vocabulary_size": ("vocab_size",),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
}


class ModelConfigSource:
    """Reads the configuration of one model."""

    name = "model"
    roles = (ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is JSON with a model's type, layers and width."""
        if not file.path.lower().endswith(".json"):
            return False
        head = file.text[:_HEAD]
        if _LAYERS.search(head) is None or _WIDTH.search(head) is None or _OTHER_TOOLS.search(head) is not None:
            return False
        return _TYPE.search(head) is not None or _LLAMA.search(head) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the shape, and the number of parameters if the kind of model is known."""
        document = document_of(file)
        node_claims = NodeClaims(file, self.name, scope)
        notes = tuple(node_claims.notes(document))
        root = document.root
        if root is not None and root.kind is Kind.OBJECT:
            # Multimodal models keep the language model in its own section.
            inner = root.at("text_config") or root.at("llm_config") or root.at("language_config")
            _state(node_claims, root, inner if inner is not None and inner.kind is Kind.OBJECT else root)
        return Reading(tuple(node_claims.claims), notes=notes)


def config_of(path: str, tree: Tree, resolved: str | None) -> str | None:
    """The configuration in a folder that is named as a model, or the file itself; None if the tree has none."""
    if resolved is None or "://" in path:
        return None
    target = resolved if path.endswith(".json") else posixpath.join(resolved, _FILE)
    file = tree.read(posixpath.normpath(target))
    known = isinstance(file, SourceFile) and ModelConfigSource().recognises(file)
    return posixpath.normpath(target) if known else None


def _state(node_claims: NodeClaims, root: Node, model: Node) -> None:
    found: dict[str, Claim] = {}
    for quantity, names in _KEYS.items():
        member = next((m for name in names if (m := model.member(name)) is not None and m.node.value is not None), None)
        if member is not None:
            value = as_int(value_of(member.node))
            number = next(iter(alternatives(value)), None)
            if isinstance(value, Unresolved) or not isinstance(number, int) or number < 1:
                continue
            found[quantity] = node_claims.add(quantity, value, member)
    activation = model.member("hidden_act") or model.member("hidden_activation")
    kind = model.text("model_type") or root.text("model_type")
    if activation is not None and kind in _GATED:
        node_claims.add("gated_feed_forward", Known(True), activation)
    total = parameters_of(kind, Sizes(model, root)) if kind else None
    at = root.member("model_type") or model.member("model_type")
    if total is not None and at is not None:
        node_claims.add("model_parameters", Known(total), at, because=tuple(found.values()))


#: Kinds of models whose feed-forward part has a gate.
_GATED = frozenset(
    (
        *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3"),
        *("gemma", "gemma2", "phi3", "ernie4_5", "ernie4_5_moe", "internlm2", "internlm3", "olmo2"),
    )
)


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


def _embeddings(sizes: Sizes) -> int:
    rows = sizes.number("vocab_size") * sizes.number("hidden_size")
    return rows if sizes.flag("tie_word_embeddings", default=False) else 2 * rows


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
    return layers * (attention + part + 2 * width) + width + _embeddings(sizes)


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
    return layers * (attention + 2 * width) + both + width + _embeddings(sizes)


def _count_gpt2(sizes: Sizes) -> int:
    width, layers = sizes.number("n_embd"), sizes.number("n_layer")
    inner = sizes.number("n_inner", 4 * width)
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    return layers * layer + 2 * width + (sizes.number("vocab_size") + sizes.number("n_positions", 1024)) * width

"""Reads a model's own `config.json` (Hugging Face, PaddleNLP) and Llama's `params.json`: its shape and its parameters.

Source of the keys: transformers/models/*/configuration_*.py (4.57) and paddlenlp/transformers/*/configuration.py (2.8);
llama-models (params.json). It is read for a launch that names the folder; by itself such a file starts nothing.
"""

from __future__ import annotations

import posixpath
import re

from preflight.model.job import WHOLE_JOB, Claim, Known, Scope, Unresolved, alternatives, as_int
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.configs.model_parameters import Sizes, parameters_of
from preflight.sources.formats.open import document_of
from preflight.sources.formats.structured import Kind, Node, NodeClaims, value_of

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

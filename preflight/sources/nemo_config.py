"""Reads YAML of Lightning's command line and of NeMo: devices, nodes, precision, and the sizes of the model.

Source of the keys: Lightning 2.5, Trainer's parameters; NeMo 1.23 (`trainer`, `model`, `exp_manager`). What Hydra
fills in (`${...}`, `???`) is unresolved. Whoever starts such a job often overrides the numbers on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from preflight.job import WHOLE_JOB, Known, Plain, Relation, Scope, Unresolved, Value, as_int, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions
from preflight.sources.structured import Kind, Member, Node, NodeStating, document_of

_HEAD = 40_000
_TRAINER = lazy_pattern(r"^trainer:[ \t]*(?:#.*)?$", re.MULTILINE)
_OF_TRAINER = lazy_pattern(r"^[ \t]+(?:devices|num_nodes|accelerator|max_epochs|max_steps):", re.MULTILINE)
_MODEL_NUMBERS = {
    "global_batch_size": "train_batch_size",
    "micro_batch_size": "micro_batch_size_per_gpu",
    "tensor_model_parallel_size": "tensor_parallel_size",
    "pipeline_model_parallel_size": "pipeline_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_model_parallel_size": "expert_parallel_size",
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_hidden_size",
    "num_attention_heads": "attention_heads",
    "num_query_groups": "query_groups",
    "encoder_seq_length": "sequence_length",
    "seq_length": "sequence_length",
    "num_moe_experts": "num_experts",
}
_FORMATS = {
    **dict.fromkeys(("16", "16-mixed", "16-true", "fp16"), "fp16"),
    **dict.fromkeys(("bf16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("32", "32-true", "64", "64-true"), "no"),
}


class NemoSource:
    """Reads one configuration with a Lightning trainer in it."""

    name = "lightning"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is YAML with a `trainer` at the top that has devices or nodes."""
        if not file.path.lower().endswith((".yaml", ".yml")):
            return False
        head = file.text[:_HEAD]
        found = _TRAINER.search(head)
        return found is not None and _OF_TRAINER.search(head, found.end()) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the trainer's size and precision, and the model's shape and parallel sizes."""
        document = document_of(file)
        stating = NodeStating(file, "lightning", scope)
        notes = tuple(stating.notes(document))
        root = document.root
        trainer = root.at("trainer") if root is not None and root.kind is Kind.OBJECT else None
        if root is not None and trainer is not None and trainer.kind is Kind.OBJECT:
            _state_trainer(stating, trainer)
            model = root.at("model")
            if model is not None and model.kind is Kind.OBJECT and trainer.member("devices") is not None:
                _state_model(stating, model)
        return Reading(tuple(stating.claims), notes=notes, suppressions=suppressions(file))


def _state_trainer(stating: NodeStating, trainer: Node) -> None:
    stating.given("nodes", trainer.member("num_nodes"), _number, relation=Relation.REQUIRES)
    devices = trainer.member("devices")
    if devices is not None:
        stating.given("processes_per_node", devices, _devices, relation=Relation.REQUIRES)
    stating.given("mixed_precision", trainer.member("precision"), _over(_precision))
    stating.given("train_steps", trainer.member("max_steps"), _over(_positive))
    stating.given("gradient_accumulation_steps", trainer.member("accumulate_grad_batches"), _number)


def _state_model(stating: NodeStating, model: Node) -> None:
    for key, quantity in _MODEL_NUMBERS.items():
        member = model.member(key)
        if member is not None and not _is_null(member):
            stating.given(quantity, member, _number)
    for key, quantity in (("sequence_parallel", "sequence_parallel"),):
        stating.given(quantity, model.member(key))
    stating.given("recompute", model.member("activations_checkpoint_granularity"))
    gated = model.text("activation") in ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu")
    activation = model.member("activation")
    if gated and activation is not None:
        stating.say("gated_feed_forward", Known(True), activation)


def _is_null(member: Member) -> bool:
    return member.node.kind is Kind.SCALAR and member.node.value is None


def _over(function: Callable[[Plain], Plain]) -> Callable[[Value], Value]:
    return lambda value: lift(function, value)


def _number(value: Value) -> Value:
    if value == Known("???"):
        return Unresolved("`???`, which is to be filled in")
    return as_int(value)


def _devices(value: Value) -> Value:
    """`8`, `"8"`, `[0, 1]` as a count; `-1` and `auto` are all there are."""
    if isinstance(value, Known) and isinstance(value.value, tuple):
        return Known(len(value.value))
    count = _number(value)
    return Unresolved("all devices of the node") if value in (Known("auto"), Known(-1), Known("-1")) else count


def _precision(item: Plain) -> Plain:
    name = _FORMATS.get(str(item).lower())
    if name is None:
        raise ValueError(f"{item!r} is no precision of Lightning")
    return name


def _positive(item: Plain) -> Plain:
    if int(str(item)) < 1:
        raise ValueError("no limit of steps")
    return int(str(item))

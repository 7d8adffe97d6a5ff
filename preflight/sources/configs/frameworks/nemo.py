"""YAML for Lightning's command line and for NeMo 1: devices, nodes, precision, and the sizes of the model.

Source of the keys: Lightning 2.5, Trainer's parameters; NeMo 1.23 (`trainer`, `model`, `exp_manager`). Values that
Hydra fills in (`${...}`, `???`) are unresolved. Such jobs are often started with overrides on the command line.
NeMo 2 (25.09, nemo/collections/llm/recipes) has the same settings in Python: `trainer.strategy`, `data`.
"""

from __future__ import annotations

import re

from preflight.model.job import Known, Plain, Relation, Unresolved, Value, as_int
from preflight.sources.configs.frameworks.table import FORMATS, GATED, Framework, Key, map_alternatives, word_of
from preflight.sources.configs.setting_claims import state_settings
from preflight.sources.formats.structured import Kind, Node, NodeClaims

_BATCHES = {
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
    "moe_ffn_hidden_size": "expert_ffn_hidden_size",
}


def _number(value: Value) -> Value:
    if value == Known("???"):
        return Unresolved("`???`, which must be replaced")
    return as_int(value)


def _devices(value: Value) -> Value:
    """`8`, `"8"`, `[0, 1]` as a count; `-1` and `auto` mean all devices."""
    if isinstance(value, Known) and isinstance(value.value, tuple):
        return Known(len(value.value))
    count = _number(value)
    return Unresolved("all devices of the node") if value in (Known("auto"), Known(-1), Known("-1")) else count


def _positive(item: Plain) -> Plain:
    if int(str(item)) < 1:
        raise ValueError("no step limit")
    return int(str(item))


#: What only LightningCLI's files have: jsonargparse's objects, and the seed that it sets.
_OF_CLI = re.compile(r"^seed_everything:|^[ \t]+(?:-[ \t]+)?class_path:", re.MULTILINE)
#: What only files of Hydra have, which build the trainer by themselves.
_OF_HYDRA = re.compile(r"^defaults:|^[ \t]*_target_:|\$\{", re.MULTILINE)


def _state_trainer(node_claims: NodeClaims, root: Node) -> None:
    """The settings of the trainer in a file that LightningCLI parses, as those of `lightning_cli`."""
    trainer, text = root.at("trainer"), node_claims.file.text
    if trainer is None or trainer.kind is not Kind.OBJECT or not _OF_CLI.search(text) or _OF_HYDRA.search(text):
        return
    state_settings(node_claims, trainer, "lightning_cli")


def _also(node_claims: NodeClaims, root: Node) -> None:
    _state_trainer(node_claims, root)
    model = root.at("model")
    if model is None or model.kind is not Kind.OBJECT or root.member("trainer", "devices") is None:
        return
    activation = model.member("activation")
    if activation is not None and model.text("activation") in GATED:
        node_claims.add("gated_feed_forward", Known(True), activation)


NEMO = Framework(
    name="lightning",
    suffixes=(".yaml", ".yml"),
    signs=(
        # A `trainer` at the top that has devices or nodes.
        re.compile(
            r"^trainer:[ \t]*(?:#.*)?\r?\n(?:.*\n){0,60}?[ \t]+"
            r"(?:devices|num_nodes|accelerator|max_epochs|max_steps):",
            re.MULTILINE,
        ),
    ),
    keys=(
        Key("trainer.num_nodes", "nodes", _number, Relation.REQUIRES),
        Key("trainer.devices", "processes_per_node", _devices, Relation.REQUIRES),
        Key("trainer.precision", "mixed_precision", word_of(FORMATS, "precision of Lightning")),
        Key("trainer.max_steps", "train_steps", map_alternatives(_positive)),
        Key("trainer.accumulate_grad_batches", "gradient_accumulation_steps", _number),
        *(Key(f"model.{key}", name, _number, beside="trainer.devices") for key, name in _BATCHES.items()),
        Key("model.sequence_parallel", "sequence_parallel", lambda value: value, beside="trainer.devices"),
        Key(
            "model.activations_checkpoint_granularity",
            "recompute",
            lambda value: value,
            beside="trainer.devices",
        ),
    ),
    also=_also,
)

#: Where NeMo 2's recipes put the sizes that NeMo 1 had in `model`.
_STRATEGY = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
NEMO_2 = Framework(
    name="nemo",
    suffixes=(),
    signs=(),
    keys=(
        Key("trainer.num_nodes", "nodes", _number, Relation.REQUIRES),
        Key("num_nodes", "nodes", _number, Relation.REQUIRES, beside="strategy"),
        Key("trainer.devices", "processes_per_node", _devices, Relation.REQUIRES),
        Key("devices", "processes_per_node", _devices, Relation.REQUIRES, beside="strategy"),
        Key("trainer.max_steps", "train_steps", map_alternatives(_positive)),
        Key("max_steps", "train_steps", map_alternatives(_positive), beside="strategy"),
        Key("trainer.accumulate_grad_batches", "gradient_accumulation_steps", _number),
        *(Key(f"trainer.strategy.{key}", _BATCHES[key], _number) for key in _STRATEGY),
        *(Key(f"strategy.{key}", _BATCHES[key], _number) for key in _STRATEGY),
        Key("trainer.strategy.sequence_parallel", "sequence_parallel", lambda value: value),
        Key("strategy.sequence_parallel", "sequence_parallel", lambda value: value),
        Key("data.global_batch_size", "train_batch_size", _number),
        Key("data.micro_batch_size", "micro_batch_size_per_gpu", _number),
        Key("data.seq_length", "sequence_length", _number),
        Key("data.num_workers", "dataloader_workers", _number),
        Key("model.config.num_layers", "num_layers", _number),
        Key("model.config.hidden_size", "hidden_size", _number),
        Key("model.config.num_attention_heads", "attention_heads", _number),
        Key("model.config.seq_length", "sequence_length", _number),
        Key("model.config.recompute_granularity", "recompute", lambda value: value),
    ),
    imports=("nemo.collections", "nemo_run", "nemo.lightning", "from nemo import"),
)

"""nanotron's YAML.

Source of the keys: src/nanotron/config (config.py, parallelism_config.py, models_config.py) of nanotron 0.5.
Command-line options do not override it.
"""

from __future__ import annotations

import re

from preflight.model.job import Known, as_int
from preflight.sources.configs.frameworks.table import (
    FORMATS,
    Framework,
    Key,
    as_count,
    as_float,
    as_path,
    map_alternatives,
    word_of,
)
from preflight.sources.formats.structured import Node, NodeClaims

_KEYS = (
    Key("parallelism.dp", "data_parallel_size", as_count),
    Key("parallelism.tp", "tensor_parallel_size", as_count),
    Key("parallelism.pp", "pipeline_parallel_size", as_count),
    Key("parallelism.context_parallel_size", "context_parallel_size", as_count),
    Key("parallelism.expert_parallel_size", "expert_parallel_size", as_count),
    Key("tokens.micro_batch_size", "micro_batch_size_per_gpu", as_count),
    Key("tokens.batch_accumulation_per_replica", "gradient_accumulation_steps", as_count),
    Key("tokens.sequence_length", "sequence_length", as_count),
    Key("tokens.train_steps", "train_steps", as_count),
    Key("model.dtype", "mixed_precision", word_of(FORMATS, "number format")),
    Key("model.model_config.num_hidden_layers", "num_layers", as_count),
    Key("model.model_config.hidden_size", "hidden_size", as_count),
    Key("model.model_config.intermediate_size", "ffn_hidden_size", as_count),
    Key("model.model_config.num_attention_heads", "attention_heads", as_count),
    Key("model.model_config.num_key_value_heads", "query_groups", as_count),
    Key("model.model_config.vocab_size", "vocabulary_size", as_count),
    Key("model.model_config.moe_config.num_experts", "num_experts", as_count),
    Key("optimizer.clip_grad", "gradient_clipping", as_float),
    Key("optimizer.weight_decay", "weight_decay", as_float),
    Key("optimizer.learning_rate_scheduler.learning_rate", "learning_rate", as_float),
    Key("optimizer.learning_rate_scheduler.lr_warmup_steps", "warmup_steps", as_float),
    Key("optimizer.zero_stage", "distributed_optimizer", map_alternatives(lambda item: int(str(item)) > 0)),
    Key("checkpoints.checkpoints_path", "checkpoint_path", as_path),
    Key("checkpoints.checkpoint_interval", "save_interval", as_int),
    Key("checkpoints.resume_checkpoint_path", "resume_path", as_path),
    Key("parallelism.recompute_layer", "recompute", map_alternatives(lambda item: "full" if item is True else "none")),
)


def _also(node_claims: NodeClaims, root: Node) -> None:
    activation = root.member("model", "model_config", "hidden_act")
    if activation is not None and root.text("model", "model_config", "hidden_act") in ("silu", "swiglu"):
        node_claims.add("gated_feed_forward", Known(True), activation)


NANOTRON = Framework(
    name="nanotron",
    suffixes=(".yaml", ".yml"),
    signs=(
        re.compile(r"^parallelism:", re.MULTILINE),
        re.compile(r"^[ \t]+tp:", re.MULTILINE),
        re.compile(r"^[ \t]+dp:", re.MULTILINE),
        re.compile(r"^(?:tokens|general|checkpoints|data_stages):", re.MULTILINE),
    ),
    keys=_KEYS,
    also=_also,
)

"""YAML that Megatron-Bridge merges over a recipe (`--config-file`), with Hydra overrides such as
`model.tensor_model_parallel_size=2` on top; and the recipes themselves, which are Python functions.

Source of the keys: megatron/bridge/training/config.py (ConfigContainer: `model`, `train`, `dataset`, `checkpoint`,
`dist`, `ddp`) and models/gpt_provider.py of Megatron-Bridge 0.3. The recipe supplies what such a file leaves out.
"""

from __future__ import annotations

import re

from preflight.sources.configs.frameworks.table import (
    FORMATS,
    Framework,
    Key,
    as_count,
    as_flag,
    as_float,
    as_path,
    map_alternatives,
    word_of,
)

_KEYS = (
    Key("model.tensor_model_parallel_size", "tensor_parallel_size", as_count),
    Key("model.pipeline_model_parallel_size", "pipeline_parallel_size", as_count),
    Key("model.context_parallel_size", "context_parallel_size", as_count),
    Key("model.expert_model_parallel_size", "expert_parallel_size", as_count),
    Key("model.num_layers", "num_layers", as_count),
    Key("model.hidden_size", "hidden_size", as_count),
    Key("model.ffn_hidden_size", "ffn_hidden_size", as_count),
    Key("model.num_attention_heads", "attention_heads", as_count),
    Key("model.num_query_groups", "query_groups", as_count),
    Key("model.num_moe_experts", "num_experts", as_count),
    Key("model.vocab_size", "vocabulary_size", as_count),
    Key("model.seq_length", "sequence_length", as_count),
    Key("dataset.seq_length", "sequence_length", as_count),
    Key("dataset.sequence_length", "sequence_length", as_count),
    Key("model.sequence_parallel", "sequence_parallel", as_flag),
    Key("model.recompute_granularity", "recompute", map_alternatives(lambda item: str(item).lower())),
    Key("model.gated_linear_unit", "gated_feed_forward", as_flag),
    Key("train.global_batch_size", "train_batch_size", as_count),
    Key("train.micro_batch_size", "micro_batch_size_per_gpu", as_count),
    Key("train.train_iters", "train_steps", as_count),
    Key("optimizer.lr", "learning_rate", as_float),
    Key("optimizer.weight_decay", "weight_decay", as_float),
    Key("optimizer.clip_grad", "gradient_clipping", as_float),
    Key("optimizer.use_distributed_optimizer", "distributed_optimizer", as_flag),
    Key("ddp.use_distributed_optimizer", "distributed_optimizer", as_flag),
    Key("scheduler.lr_warmup_iters", "warmup_steps", as_float),
    Key("checkpoint.save", "checkpoint_path", as_path),
    Key("checkpoint.load", "resume_path", as_path),
    Key("checkpoint.save_interval", "save_interval", as_count),
    Key("checkpoint.most_recent_k", "checkpoints_kept", as_count),
    Key(
        "dist.distributed_timeout_minutes",
        "process_group_timeout_s",
        map_alternatives(lambda item: int(float(str(item)) * 60)),
    ),
    Key("dataset.num_workers", "dataloader_workers"),
    Key("mixed_precision", "mixed_precision", word_of(FORMATS, "number format")),
)

MEGATRON_BRIDGE = Framework(
    name="megatron-bridge",
    suffixes=(".yaml", ".yml"),
    signs=(
        re.compile(r"^train:", re.MULTILINE),
        re.compile(r"^[ \t]+train_iters:", re.MULTILINE),
        re.compile(r"^(?:model|ddp|dist|rng|logger|checkpoint|dataset|scheduler):", re.MULTILINE),
    ),
    others=(re.compile(r"^(?:trainer|apiVersion|modules|hydra):", re.MULTILINE),),
    keys=_KEYS,
    imports=("megatron.bridge",),
)

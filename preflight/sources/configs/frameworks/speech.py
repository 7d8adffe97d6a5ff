"""YAML of WeNet: batch, accumulation, optimizer, the encoder's shape.

Source of the keys: wenet/utils/train_utils.py, wenet/utils/init_dataset.py and examples/*/s0/conf of WeNet 3.1. The
number of ranks is torchrun's; `batch_size` is one rank's.
"""

from __future__ import annotations

import re

from preflight.sources.configs.frameworks.table import (
    FORMATS,
    Framework,
    Key,
    as_count,
    as_float,
    as_text,
    word_of,
)

WENET = Framework(
    name="wenet",
    suffixes=(".yaml", ".yml"),
    signs=(
        re.compile(r"^(?:encoder_conf|dataset_conf):", re.MULTILINE),
        re.compile(r"^[ \t]+batch_conf:", re.MULTILINE),
        re.compile(r"^(?:optim_conf|max_epoch|accum_grad|grad_clip):", re.MULTILINE),
    ),
    keys=(
        Key("dataset_conf.batch_conf.batch_size", "micro_batch_size_per_gpu", as_count),
        Key("accum_grad", "gradient_accumulation_steps", as_count),
        Key("grad_clip", "gradient_clipping", as_float),
        Key("optim_conf.lr", "learning_rate", as_float),
        Key("optim_conf.weight_decay", "weight_decay", as_float),
        Key("scheduler_conf.warmup_steps", "warmup_steps", as_float),
        Key("save_interval", "save_interval", as_count),
        Key("dtype", "mixed_precision", word_of(FORMATS, "number format")),
        Key("encoder_conf.output_size", "hidden_size", as_count),
        Key("encoder_conf.num_blocks", "num_layers", as_count),
        Key("encoder_conf.attention_heads", "attention_heads", as_count),
        Key("encoder_conf.linear_units", "ffn_hidden_size", as_count),
        Key("dist_conf.dist_backend", "backend", as_text),
    ),
)

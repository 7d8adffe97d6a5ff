"""YAML of Composer and llm-foundry: batch sizes, precision, and the shape of the model.

Source of the keys: llm-foundry 0.22 (llmfoundry/utils/config_utils.py, TrainConfig; models/mpt). The global batch is
divided by the number of ranks; `device_train_microbatch_size` is one rank's.
"""

from __future__ import annotations

import re

from preflight.model.job import Known, Unresolved, Value, as_int
from preflight.sources.configs.frameworks.table import FORMATS, Framework, Key, as_path, word_of


def _micro(value: Value) -> Value:
    if value == Known("auto"):
        return Unresolved("auto: found by trial in the first steps")
    return as_int(value)


COMPOSER = Framework(
    name="composer",
    suffixes=(".yaml", ".yml"),
    signs=(re.compile(r"^(?:global_train_batch_size|device_train_microbatch_size):", re.MULTILINE),),
    keys=(
        Key("global_train_batch_size", "train_batch_size"),
        Key("device_train_microbatch_size", "micro_batch_size_per_gpu", _micro),
        Key("precision", "mixed_precision", word_of(FORMATS, "precision of Composer")),
        Key("model.d_model", "hidden_size"),
        Key("model.n_heads", "attention_heads"),
        Key("model.n_layers", "num_layers"),
        Key("model.vocab_size", "vocabulary_size"),
        Key("model.max_seq_len", "sequence_length"),
        Key("save_folder", "checkpoint_path", as_path),
        Key("save_num_checkpoints_to_keep", "checkpoints_kept"),
        Key("load_path", "resume_path", as_path),
    ),
)

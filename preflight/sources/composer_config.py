"""Reads YAML of Composer and llm-foundry: batch sizes, precision, and the shape of the model.

Source of the keys: llm-foundry 0.22 (llmfoundry/utils/config_utils.py, TrainConfig; models/mpt). The global batch is
cut into as many parts as there are ranks; `device_train_microbatch_size` is one rank's.
"""

from __future__ import annotations

import re

from preflight.job import WHOLE_JOB, Known, Plain, Scope, Unresolved, Value, as_int, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions
from preflight.sources.structured import Kind, NodeStating, document_of

_HEAD = 40_000
_OWN = lazy_pattern(r"^(?:global_train_batch_size|device_train_microbatch_size):", re.MULTILINE)
_MODEL = {
    "d_model": "hidden_size",
    "n_heads": "attention_heads",
    "n_layers": "num_layers",
    "vocab_size": "vocabulary_size",
    "max_seq_len": "sequence_length",
}
_FORMATS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "amp_fp8": "fp8", "fp32": "no"}


class ComposerSource:
    """Reads one training configuration of Composer."""

    name = "composer"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is YAML with Composer's names of batch sizes at the top."""
        return file.path.lower().endswith((".yaml", ".yml")) and _OWN.search(file.text[:_HEAD]) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State batch sizes, precision and the model's shape."""
        document = document_of(file)
        stating = NodeStating(file, "composer", scope)
        notes = tuple(stating.notes(document))
        root = document.root
        if root is not None and root.kind is Kind.OBJECT:
            stating.given("train_batch_size", root.member("global_train_batch_size"), as_int)
            stating.given("micro_batch_size_per_gpu", root.member("device_train_microbatch_size"), _micro)
            stating.given("mixed_precision", root.member("precision"), lambda value: lift(_precision, value))
            for key, quantity in _MODEL.items():
                stating.given(quantity, root.member("model", key), as_int)
        return Reading(tuple(stating.claims), notes=notes, suppressions=suppressions(file))


def _micro(value: Value) -> Value:
    if value == Known("auto"):
        return Unresolved("auto: found by trial in the first steps")
    return as_int(value)


def _precision(item: Plain) -> Plain:
    name = _FORMATS.get(str(item))
    if name is None:
        raise ValueError(f"{item!r} is no precision of Composer")
    return name

from __future__ import annotations

import pytest

from preflight.model.job import Known, Unresolved, Value
from preflight.sources.base import SourceFile
from preflight.sources.configs.framework_files import FRAMEWORKS, FrameworkSource
from preflight.sources.formats.tree import MemoryTree

COMPOSER = FrameworkSource(FRAMEWORKS["composer"])

GOOD = """max_seq_len: 2048
model:
  name: mpt_causal_lm
  d_model: 4096
  n_heads: 32
  n_layers: 32
  max_seq_len: ${max_seq_len}
global_train_batch_size: 1024
device_train_microbatch_size: auto
precision: amp_bf16
"""


def claimed_values(text: str) -> dict[str, Value]:
    """The values by quantity, without the framework's own settings."""
    tree = MemoryTree({"mpt.yaml": text})
    file = tree.read("mpt.yaml")
    assert isinstance(file, SourceFile)
    claims = COMPOSER.read(file, tree).claims
    return {claim.quantity: claim.value for claim in claims if not claim.quantity.startswith("setting.")}


def test_sizes_of_a_training() -> None:
    found = claimed_values(GOOD)
    assert {name: value for name, value in found.items() if isinstance(value, Known)} == {
        "train_batch_size": Known(1024),
        "mixed_precision": Known("bf16"),
        "hidden_size": Known(4096),
        "attention_heads": Known(32),
        "num_layers": Known(32),
    }
    assert isinstance(found["micro_batch_size_per_gpu"], Unresolved)
    assert isinstance(found["sequence_length"], Unresolved)


@pytest.mark.parametrize("text", ["", "global_train_batch_size: [", "precision: amp_strange\n", "- 1\n", "model: 3\n"])
def test_invalid_files_are_noted_and_do_not_raise(text: str) -> None:
    assert all(isinstance(value, Unresolved) for value in claimed_values(text).values())


def test_composer_files_are_recognised() -> None:
    def recognised(text: str, path: str = "a.yaml") -> bool:
        return COMPOSER.recognises(SourceFile(path, text, "", len(text)))

    assert recognised(GOOD)
    assert not recognised(GOOD, "a.txt")
    assert not recognised("model:\n  global_train_batch_size: 3\n")

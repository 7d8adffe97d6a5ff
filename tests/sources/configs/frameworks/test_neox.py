from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, NoteKind, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.framework_files import FRAMEWORKS, FrameworkSource
from preflight.sources.formats.tree import MemoryTree

GPT_NEOX = FrameworkSource(FRAMEWORKS["gpt-neox"])

GOOD = """# pipeline over two nodes
{
  "pipe-parallel-size": 2,
  "model_parallel_size": 4,
  "num_layers": 24, "hidden_size": 2048,
  "num_attention_heads": 16,
  "seq_length": 2048,
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 1.0e+8},
  "train_micro_batch_size_per_gpu": 4,
  "fp16": {"fp16": true, "enabled": true, "loss_scale": 0},
  "checkpoint-activations": true,
  "activation": "swiglu",
}
"""


def read(text: str, path: str = "configs/1B.yml") -> Reading:
    """The reading of one file."""
    tree = MemoryTree({path: text})
    file = tree.read(path)
    assert isinstance(file, SourceFile)
    return GPT_NEOX.read(file, tree)


def recognised(text: str, path: str = "configs/1B.yml") -> bool:
    """Whether the source recognises the file."""
    return GPT_NEOX.recognises(SourceFile(path, text, "", len(text)))


def claims_by_quantity(reading: Reading) -> dict[str, Claim]:
    """The claims by quantity."""
    return {claim.quantity: claim for claim in reading.claims}


def test_keys_of_both_kinds_in_both_spellings() -> None:
    claims = claims_by_quantity(read(GOOD))
    assert {name: claims[name].value for name in ("pipeline_parallel_size", "tensor_parallel_size", "num_layers")} == {
        "pipeline_parallel_size": Known(2),
        "tensor_parallel_size": Known(4),
        "num_layers": Known(24),
    }
    assert claims["zero_stage"].value == Known(1)
    assert claims["micro_batch_size_per_gpu"].value == Known(4)
    assert claims["fp16_enabled"].value == Known(True)
    assert claims["recompute"].value == Known("full")
    assert claims["gated_feed_forward"].value == Known(True)


def test_places_and_sources() -> None:
    claims = claims_by_quantity(read(GOOD))
    stage, pipe = claims["zero_stage"], claims["pipeline_parallel_size"]
    assert (stage.span.line, stage.spelling, stage.source) == (8, '"stage": 1', "deepspeed")
    assert (pipe.span.line, pipe.span.column, pipe.source) == (3, 25, "gpt-neox")


def test_top_level_keys_are_not_checked_as_deepspeed_keys() -> None:
    keys = {claim.value for claim in read(GOOD).claims if claim.quantity == "deepspeed_key"}
    assert keys == {Known("zero_optimization.stage"), Known("zero_optimization.reduce_bucket_size")}


def test_no_pipeline_is_one_stage() -> None:
    assert claims_by_quantity(read('"pipe_parallel_size": 0\n'))["pipeline_parallel_size"].value == Known(1)


def test_placeholders_are_unresolved() -> None:
    claims = claims_by_quantity(read('"pipe_parallel_size": {{ pipe }}\n"train_micro_batch_size_per_gpu": 4\n'))
    assert isinstance(claims["pipeline_parallel_size"].value, Unresolved)
    assert claims["micro_batch_size_per_gpu"].value == Known(4)


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "zero_optimization: [", "{", "zero_optimization: {stage: {a: b}}"])
def test_unusual_files_give_notes_and_no_crash(text: str) -> None:
    reading = read(text)
    assert all(note.kind in (NoteKind.MALFORMED, NoteKind.TEMPLATE) for note in reading.notes)


def test_gpt_neox_files_are_recognised() -> None:
    assert recognised(GOOD)
    assert recognised('"zero_optimization": {"stage": 0}\n"fp16": {"enabled": true}\n')
    assert not recognised(GOOD, "configs/1B.json")
    assert not recognised("deepspeed_config:\n      zero_optimization:\n        stage: 2\n")
    assert not recognised("model:\n  num_layers: 24\n")


def test_checkpoint_folders_are_claimed() -> None:
    paths = (
        '"save": "/ckpt/neox", "load": "/ckpt/neox", "vocab_file": "/data/vocab.json", "keep_last_n_checkpoints": 4,'
    )
    found = claims_by_quantity(read(GOOD.replace('"num_layers": 24,', f'"num_layers": 24, {paths}')))
    assert found["checkpoint_path"].value == found["resume_path"].value == Known("/ckpt/neox")
    assert found["input_file"].value == Known("/data/vocab.json")
    assert found["checkpoints_kept"].value == Known(4)

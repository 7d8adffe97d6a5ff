"""Paths among the arguments of training programs."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Unresolved
from tests.sources.launchers.reading_lines import only, read, values

PATHS = ("checkpoint_path", "resume_path", "checkpoints_kept", "input_file")


def path_values(words: str) -> dict[str, object]:
    """The claims of a line about paths."""
    found = values(read(f"torchrun --nproc_per_node 8 train.py {words}\n"))
    return {quantity: value for quantity, value in found.items() if quantity in PATHS}


def test_megatrons_paths() -> None:
    words = "--save /ckpt/run --load /ckpt/run --vocab-file gpt2-vocab.json --merge-file /data/merges.txt"
    reading = read(f"torchrun --nproc_per_node 8 pretrain_gpt.py {words}\n")
    assert only(reading, "checkpoint_path").value == only(reading, "resume_path").value == Known("/ckpt/run")
    files = [claim.value for claim in reading.claims if claim.quantity == "input_file"]
    assert files == [Known("gpt2-vocab.json"), Known("/data/merges.txt")]


def test_the_trainers_folder_and_how_many_it_keeps() -> None:
    assert path_values("--output_dir out/run --save_total_limit 3 --resume_from_checkpoint out/run/checkpoint-500") == {
        "checkpoint_path": "out/run",
        "checkpoints_kept": 3,
        "resume_path": "out/run/checkpoint-500",
    }


@pytest.mark.parametrize(
    "words",
    [
        # Flags of other programs, and values that mean the newest checkpoint of the output folder.
        "--save --epochs 3",
        "--resume",
        "--resume_from_checkpoint True",
        "--resume_from_checkpoint auto",
        # A name on a hub is not a file of a node.
        "--tokenizer-model gpt2",
        "--tokenizer_path meta-llama/Llama-2-7b",
        # Half of the programs read from this path.
        "--checkpoint_dir /models/llama",
    ],
)
def test_values_that_are_not_paths_of_the_job(words: str) -> None:
    assert path_values(words) == {}


def test_an_external_path_is_unresolved() -> None:
    reading = read("torchrun --nproc_per_node 8 train.py --output_dir $OUT\n")
    assert isinstance(only(reading, "checkpoint_path").value, Unresolved)

"""Experiments of Determined."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Plain
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.orchestrators import SOURCES

EXPERIMENT = """\
name: images
environment:
  environment_variables:
    - NCCL_DEBUG=INFO
resources:
  slots_per_trial: 16
searcher:
  name: single
  metric: loss
hyperparameters:
  global_batch_size: 64
  learning_rate: {type: log, base: 10, minval: -5, maxval: -2}
entrypoint: >-
  python3 -m determined.launch.torch_distributed
  python3 train.py
  --epochs 1
"""


def _read(text: str) -> Reading:
    file = SourceFile("const.yaml", text, "", len(text))
    assert SOURCES[4].recognises(file)
    reading = SOURCES[4].read(file, MemoryTree({"const.yaml": text, "train.py": "import torch\n"}))
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading


def _values(reading: Reading, *names: str) -> dict[str, Plain]:
    return {c.quantity: c.value.value for c in reading.claims if c.quantity in names and isinstance(c.value, Known)}


def test_slots_are_ranks() -> None:
    reading = _read(EXPERIMENT)
    (launch,) = reading.launches
    assert (launch.launcher, launch.program, launch.span.line) == ("determined", "train.py", 14)
    assert _values(reading, "world_size", "train_batch_size", "env.NCCL_DEBUG", "nodes") == {
        "world_size": 16,
        "train_batch_size": 64,
        "env.NCCL_DEBUG": "INFO",
    }
    assert "train.py" in {reference.target for reference in reading.references}


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 -m determined.launch.horovod --autohorovod python3 train.py",
        "python3 -m determined.launch.deepspeed -- python3 train.py",
        "[python3, -m, determined.launch.torch_distributed, python3, train.py]",
        "\n  - python3\n  - -m\n  - determined.launch.torch_distributed\n  - train.py",
    ],
)
def test_forms_of_the_entry_point(entrypoint: str) -> None:
    (launch,) = _read(f"name: a\nresources: {{slots: 2}}\nmax_restarts: 0\nentrypoint: {entrypoint}\n").launches
    assert (launch.launcher, launch.program) == ("determined", "train.py")


def test_a_class_of_a_trial_is_started_without_a_program() -> None:
    (launch,) = _read("searcher: {}\nentrypoint: python3 -m determined.launch.horovod --trial m:T\n").launches
    assert launch.program == ""


def test_a_single_process_is_not_a_launch() -> None:
    assert not _read("name: a\nmax_restarts: 0\nentrypoint: python3 train.py\n").launches


@pytest.mark.parametrize(
    "text",
    ["apiVersion: v1\nentrypoint: a\nresources: {}\n", "entrypoint: a\n", "services: {}\nentrypoint: a\nproject: b\n"],
)
def test_other_files_are_left_alone(text: str) -> None:
    assert not SOURCES[4].recognises(SourceFile("a.yaml", text, "", len(text)))

"""Configurations of PaddleRec: both generations, placeholders, and other files."""

from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, Unresolved, Value
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.paddle_files import PaddleRecSource
from preflight.sources.formats.tree import MemoryTree

NEW = """\
runner:
  train_data_dir: "data/sample_data/train"
  train_reader_path: "criteo_reader"
  use_gpu: False
  sync_mode: "async"
  split_file_list: False
  num_workers: 2

hyper_parameters:
  optimizer:
    class: Adam
    strategy: sync
  sparse_feature_number: 1000001
  sparse_feature_dim: 9
"""
OLD = """\
mode: [cluster_runner]
runner:
- name: train_runner
  class: train
- name: cluster_runner
  class: cluster_train
  fleet_mode: ps
  distribute_strategy: half_async
  phases: phase1
"""


def _file(text: str, path: str = "config.yaml") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _read(text: str) -> Reading:
    reading = PaddleRecSource().read(_file(text), MemoryTree({}))
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading


def _of(text: str, quantity: str) -> list[Claim]:
    return [claim for claim in _read(text).claims if claim.quantity == quantity]


def _values(text: str, quantity: str) -> list[Value]:
    return [claim.value for claim in _of(text, quantity)]


def test_the_newer_generation() -> None:
    assert _values(NEW, "ps_update_mode") == [Known("async"), Known("sync")]
    assert [claim.span.line for claim in _of(NEW, "ps_update_mode")] == [5, 12]
    assert _values(NEW, "embedding_shape") == [Known((1000001, 9))]
    assert _values(NEW, "optimizer") == [Known("Adam")]
    assert _values(NEW, "dataset_files_shared") == [Known(False)]
    assert _values(NEW, "dataloader_workers") == [Known(2)]
    assert _of(NEW, "data_path")[0].spelling == 'train_data_dir: "data/sample_data/train"'


def test_the_older_generation_counts_the_runners_that_run() -> None:
    assert _values(OLD, "runner_names") == [Known(("train_runner", "cluster_runner"))]
    assert _values(OLD, "runner_mode") == [Known(("cluster_runner",))]
    assert _values(OLD, "ps_update_mode") == [Known("half-async")]
    assert _values(OLD, "ps_mode") == [Known(True)]
    local = OLD.replace("[cluster_runner]", "train_runner")
    assert _values(local, "runner_class") == [Known("train")]
    assert not _of(local, "ps_mode")


def test_placeholders_are_unresolved() -> None:
    (mode, _) = _values(NEW.replace('"async"', "{{ mode }}"), "ps_update_mode")
    assert isinstance(mode, Unresolved)
    assert isinstance(_values(NEW.replace("1000001", "${ROWS}"), "embedding_shape")[0], Unresolved)


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        (NEW, True),
        (OLD, True),
        ("runner:\n  type: epoch\n", False),
        ("model: x\nsync_mode: async\n", False),
        ("", False),
    ],
)
def test_files_are_recognised_by_their_keys(text: str, ours: bool) -> None:
    assert PaddleRecSource().recognises(_file(text)) is ours
    assert not PaddleRecSource().recognises(_file(text, "config.json"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "runner: []\n",
        "runner: {a: b\n",
        "runner:\n- 1\n- [2]\nmode: {a: 1}\n",
        NEW.replace("  class: Adam", "\tclass: Adam"),
        "runner:\n  sync_mode: [async, sync]\nhyper_parameters: 3\n",
        OLD.replace("\n", "\r\n"),
    ],
)
def test_invalid_files_do_not_raise(text: str) -> None:
    assert _read(text) is not None


def test_a_broken_file_gives_a_note_and_the_rest_is_read() -> None:
    reading = _read(NEW + "broken: [1, 2\n")
    assert reading.notes and reading.notes[0].span.path == "config.yaml"
    assert any(claim.quantity == "ps_update_mode" for claim in reading.claims)

"""Settings of trainings of no known framework, by the names of their keys."""

from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, Plain, Scope
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.training_settings import TrainingSettingsSource
from preflight.sources.formats.tree import MemoryTree


def _file(text: str, path: str = "conf/config.yaml") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _read(text: str, path: str = "conf/config.yaml", *, role: str = "", **files: str) -> Reading:
    named = {name.replace("__", "/") + ".yaml": content for name, content in files.items()}
    file = _file(text, path)
    assert TrainingSettingsSource().recognises(file)
    scope = Scope(launch="run.sh:1") if role else Scope()
    reading = TrainingSettingsSource().read(file, MemoryTree({path: text, **named}), scope=scope, role=role)
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading


def _values(claims: tuple[Claim, ...]) -> dict[str, Plain]:
    return {claim.quantity: claim.value.value for claim in claims if isinstance(claim.value, Known)}


def test_sizes_at_any_depth() -> None:
    text = (
        "training:\n  distributed: {num_nodes: 2, num-gpus-per-node: 8}\n"
        "  data: {train_batch_size: 4, num_workers: 3}\n"
        "  optimizer:\n    lr: 1e-4\n  gradient_accumulation_steps: 2\n"
    )
    assert _values(_read(text).claims) == {
        "nodes": 2,
        "gpus_per_node": 8,
        "given_batch_size": 4,
        "dataloader_workers": 3,
        "learning_rate": 1e-4,
        "gradient_accumulation_steps": 2,
    }


def test_toml() -> None:
    text = "seq_len = 2048\nmax_steps = 10\n[parallel]\ntensor_parallel_size = 4\n"
    assert _values(_read(text, "a.toml").claims) == {
        "sequence_length": 2048,
        "train_steps": 10,
        "tensor_parallel_size": 4,
    }


def test_values_of_other_parts_do_not_count() -> None:
    text = "lr: 0.1\ntrain: {batch_size: 8}\nval: {batch_size: 1}\nactor_infer: {tensor_parallel_size: 4}\n"
    assert _values(_read(text).claims) == {"learning_rate": 0.1, "given_batch_size": 8}


def test_two_different_values_give_no_claim() -> None:
    text = "a: {lr: 0.1, batch_size: 8}\nb: {lr: 0.1, batch_size: 16}\n"
    assert _values(_read(text).claims) == {"learning_rate": 0.1}


def test_a_value_filled_in_later_is_not_a_second_value() -> None:
    text = "lr: 0.1\nbatch_size: 8\nloader:\n    batch_size: !ref <batch_size>\n"
    assert _values(_read(text).claims) == {"learning_rate": 0.1, "given_batch_size": 8}


def test_the_nodes_of_a_graph_are_not_those_of_a_job() -> None:
    assert _values(_read("num_nodes: 5500\nbatch_size: 2\nlr: 0.1\n").claims) == {
        "given_batch_size": 2,
        "learning_rate": 0.1,
    }


def test_counts_belong_to_a_file_that_is_read_by_itself() -> None:
    text = "hydra:\n  launcher: {nodes: 2, gpus_per_node: 8, tasks_per_node: 1}\nlr: 0.1\n"
    assert _values(_read(text).claims) == {
        "nodes": 2,
        "gpus_per_node": 8,
        "tasks_per_node": 1,
        "learning_rate": 0.1,
    }
    assert _values(_read(text, role="trainer").claims) == {"learning_rate": 0.1}


def test_a_hydra_configuration_is_composed() -> None:
    reading = _read(
        "defaults:\n  - training: big\n  - _self_\nnumber: 4\ntraining: {batch_size: 16}\n",
        conf__training__big="batch_size: 8\nlr: 0.1\ngradient_accumulation_steps: ${number}\n",
    )
    assert _values(reading.claims) == {
        "given_batch_size": 16,
        "learning_rate": 0.1,
        "gradient_accumulation_steps": 4,
    }
    assert {claim.quantity: claim.span.path for claim in reading.claims} == {
        "given_batch_size": "conf/config.yaml",
        "learning_rate": "conf/training/big.yaml",
        "gradient_accumulation_steps": "conf/training/big.yaml",
    }
    assert [r.target for r in reading.references] == ["conf/training/big.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ConfigMap\ndata: {batch_size: 3, lr: 1}\n",
        "openapi: 3.0.0\npaths:\n  batch_size: 1\n  lr: 2\n",
        "jobs:\n  test:\n    batch_size: 1\n    optimizer: x\n",
        "services:\n  a:\n    batch_size: 1\n    optimizer: x\n",
        "name: web\nbatch_size: 10\nqueue: redis\n",
        "num_nodes: 3\nedges: 4\n",
    ],
)
def test_other_files_are_left_alone(text: str) -> None:
    assert not TrainingSettingsSource().recognises(_file(text))


@pytest.mark.parametrize(
    "text", ["", "lr: [\nbatch_size: 8\n", "- lr: 1\n- batch_size: 2\n", "batch_size:\n  lr: {}\n"]
)
def test_damaged_files_are_read_without_a_crash(text: str) -> None:
    TrainingSettingsSource().read(_file(text), MemoryTree({"conf/config.yaml": text}))


@pytest.mark.parametrize(
    "text",
    [
        "train_settings:\n  num_nodes: 64\n  gpus_per_node: 8\n",
        "run:\n  nodes: 2\n  ntasks_per_node: 4\nmodel:\n  tensor_model_parallel_size: 8\n",
        "defaults:\n  - base\n  - _self_\ncp_size: 1\n",
    ],
)
def test_sizes_alone_make_a_file_of_settings(text: str) -> None:
    assert TrainingSettingsSource().recognises(_file(text))


def test_absolute_names_start_from_the_folder_that_has_them() -> None:
    text = "# @package _global_\ndefaults:\n  - /model: big\n  - _self_\ntrainer:\n  max_steps: 5\n"
    reading = _read(text, "conf/experiment/one.yaml", conf__model__big="tp_size: 4\n")
    assert _values(reading.claims) == {"tensor_parallel_size": 4, "train_steps": 5}
    assert [reference.target for reference in reading.references] == ["conf/model/big.yaml"]
    assert not reading.notes


def test_absolute_names_that_no_folder_has_leave_the_own_settings() -> None:
    reading = _read("defaults:\n  - /model: big\ntrain: {max_steps: 5}\n", "conf/experiment/one.yaml")
    assert _values(reading.claims) == {"train_steps": 5}


def test_gin() -> None:
    text = (
        "include 't5x/examples/small.gin'\nTRAIN_STEPS = 10000\nBATCH_SIZE = 128  # of all hosts\nLR = %gin.REQUIRED\n"
        "train/utils.DatasetConfig:\n  batch_size = %BATCH_SIZE\ninfer_eval/utils.DatasetConfig.batch_size = 32\n"
        "partitioning.PjitPartitioner:\n  num_partitions = 2\n"
    )
    reading = _read(text, "pretrain.gin")
    assert _values(reading.claims) == {"train_steps": 10000, "given_batch_size": 128, "tensor_parallel_size": 2}
    assert [claim.span.line for claim in reading.claims] == [2, 3, 9]


def test_ini() -> None:
    text = "[train]\nbatch_size = 64 ; of one GPU\nlr: 0.1\n[cluster]\ngpus_per_node=8\nnum_nodes=2\n"
    text += "[eval]\nbatch_size=1\n"
    assert _values(_read(text, "run.cfg").claims) == {
        "given_batch_size": 64,
        "learning_rate": 0.1,
        "gpus_per_node": 8,
        "nodes": 2,
    }


def test_settings_of_detectron() -> None:
    text = "_BASE_: a.yaml\nSOLVER:\n  IMS_PER_BATCH: 16\n  BASE_LR: 0.02\n  MAX_ITER: 90000\n"
    assert _values(_read(text).claims) == {"given_batch_size": 16, "learning_rate": 0.02, "train_steps": 90000}


def test_degrees_alone() -> None:
    assert _values(_read("model: a\ntensor-parallel-size: 8\n").claims) == {"tensor_parallel_size": 8}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("setup.cfg", "[metadata]\nname = x\n[flake8]\nmax-line-length = 120\n"),
        ("nginx.conf", "worker_processes 4;\nhttp {\n  server { listen 80; }\n}\n"),
        ("model.gin", "Model.hidden = 4\nModel.dropout = 0.1\n"),
    ],
)
def test_other_assignments(path: str, text: str) -> None:
    assert not TrainingSettingsSource().recognises(_file(text, path))

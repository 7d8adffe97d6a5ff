"""Configuration files of frameworks on a command line, and the settings that the line overrides."""

from __future__ import annotations

import json

import pytest

from preflight.sources.launchers.framework_arguments import ROLE
from tests.sources.launchers.reading_lines import only, read, values

TITAN = """[job]
dump_folder = "out"

[training]
seq_len = 8192

[parallelism]
tensor_parallel_degree = 4
"""
BRIDGE = "model:\n  seq_length: 4096\ntrain:\n  train_iters: 100\n  global_batch_size: 32\n"
LAUNCH = "#!/bin/bash\ntorchrun --nproc_per_node=8 "


@pytest.mark.parametrize("option", ["--job.config_file cfg.toml", "--job.config_file=cfg.toml", "cfg.toml"])
def test_the_file_is_recognised_by_its_content(option: str) -> None:
    reading = read(f"{LAUNCH}-m torchtitan.train {option}\n", cfg_dot_toml=TITAN)
    (reference,) = (found for found in reading.references if found.role == ROLE)
    assert (reference.target, reference.scope.launch) == ("cfg.toml", "run.sh:2")


@pytest.mark.parametrize(
    "written", ["--parallelism.tensor_parallel_degree=2", "--parallelism.tensor-parallel-degree 2"]
)
def test_an_option_overrides_a_key(written: str) -> None:
    reading = read(f"{LAUNCH}-m torchtitan.train --job.config_file cfg.toml {written}\n", cfg_dot_toml=TITAN)
    claim = only(reading, "tensor_parallel_size")
    assert (claim.source, claim.spelling, claim.alternatives) == ("torchtitan", written, (2,))


def test_a_program_identifies_its_framework() -> None:
    reading = read(f"{LAUNCH}-m torchtitan.train --training.seq_len 4096 --checkpoint.enable\n")
    assert values(reading, source="torchtitan") == {"sequence_length": 4096}


def test_settings_without_dashes() -> None:
    reading = read(f"{LAUNCH}pretrain.py --config-file o.yaml train.global_batch_size=$BATCH\n", o_dot_yaml=BRIDGE)
    assert values(reading, source="megatron-bridge") == {"train_batch_size": None}


def test_other_files_are_not_configurations() -> None:
    reading = read(f"{LAUNCH}train.py --config c.yaml --train.global_batch_size 4\n", c_dot_yaml="a: 1\n")
    assert ROLE not in {found.role for found in reading.references}
    assert not values(reading, source="megatron-bridge")


def test_a_registered_recipe() -> None:
    reading = read(
        f"{LAUNCH}-m torchtitan.train --module llama3 --config llama3_8b\n",
        torchtitan__models__llama3__config_registry_dot_py="def llama3_8b():\n    pass\n",
    )
    found = {reference.role: reference.target for reference in reading.references}
    assert found["recipe llama3_8b"] == "torchtitan/models/llama3/config_registry.py"


def test_a_model_in_the_tree_refers_to_its_configuration() -> None:
    model = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8}
    reading = read(f"{LAUNCH}train.py --model_name_or_path models/m\n", models__m__config_dot_json=json.dumps(model))
    assert "models/m/config.json" in {reference.target for reference in reading.references}


def test_the_lock_of_the_tool_that_starts_it_and_nccls_file() -> None:
    script = "#!/bin/bash\nexport NCCL_CONF_FILE=conf/n.conf\nuv run torchrun --nproc_per_node=8 train.py\n"
    reading = read(script, uv_dot_lock="version = 1\n", conf__n_dot_conf="NCCL_DEBUG=INFO\n")
    assert {"uv.lock", "conf/n.conf"} <= {reference.target for reference in reading.references}


SETTINGS = "train:\n  micro_batch_size: 4\n  lr: 0.1\n  num_nodes: 9\n  gpus_per_node: 9\n"


@pytest.mark.parametrize("words", ["--config conf/a.yaml", "-c=conf/a.yaml", "conf/a.yaml"])
def test_settings_of_no_known_framework_belong_to_the_launch(words: str) -> None:
    found = read(f"torchrun --nproc_per_node=4 train.py {words}\n", conf__a_dot_yaml=SETTINGS)
    assert ("conf/a.yaml", "configuration") in {(item.target, item.role) for item in found.references}


@pytest.mark.parametrize("text", ["names: [a, b]\n", "apiVersion: v1\nbatch_size: 3\nlr: 1\n", "batch_size: 3\n"])
def test_other_files_on_the_line_are_not_settings(text: str) -> None:
    found = read("torchrun --nproc_per_node=4 train.py --data conf/a.yaml\n", conf__a_dot_yaml=text)
    assert "conf/a.yaml" not in {item.target for item in found.references if item.role == "configuration"}

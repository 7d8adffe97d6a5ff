from __future__ import annotations

import pytest

from preflight.model.job import Relation, Strength
from tests.sources.launchers.reading_lines import only, read, values

ARGUMENTS = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\nlearning_rate: 1.0e-5\n"


def test_llamafactory_is_configured_by_variables() -> None:
    reading = read(
        "FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=1 NPROC_PER_NODE=8 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
        " llamafactory-cli train a.yaml learning_rate=1e-4",
        a_dot_yaml=ARGUMENTS,
    )
    assert values(reading, source="llamafactory-cli") == {
        "nodes": 2,
        "processes_per_node": 8,
        "node_rank": 1,
        "master_addr": "10.0.0.1",
        "master_port": 29500,
        "rendezvous_backend": "static",
    }
    assert only(reading, "nodes").relation is Relation.REQUIRES
    assert only(reading, "nodes").strength is Strength.ENVIRONMENT
    assert only(reading, "learning_rate").value.value == 1e-4  # type: ignore[union-attr]
    assert [(r.target, r.role) for r in reading.references] == [("a.yaml", "trainer")]
    assert reading.launches[0].launcher == "llamafactory-cli"


def test_llamafactory_used_to_read_the_node_rank_from_rank() -> None:
    reading = read("FORCE_TORCHRUN=1 NNODES=2 RANK=1 llamafactory-cli train a.yaml")
    assert values(reading)["node_rank"] == 1


def test_llamafactory_elastic() -> None:
    reading = read("FORCE_TORCHRUN=1 MIN_NNODES=1 MAX_NNODES=3 RDZV_ID=x MASTER_ADDR=n0 lmf train a.yaml")
    assert values(reading)["rendezvous_backend"] == "c10d"
    assert only(reading, "nodes").alternatives == (1, 2, 3)


def test_llamafactory_on_one_device_claims_no_nodes() -> None:
    reading = read("llamafactory-cli train a.yaml")
    assert len(reading.launches) == 1
    assert values(reading) == {}


@pytest.mark.parametrize(
    "line",
    ["llamafactory-cli chat a.yaml", "axolotl preprocess a.yaml", "trl env", "tune ls"],
)
def test_other_commands_launch_nothing(line: str) -> None:
    assert read(line).launches == ()


def test_axolotl_builds_a_line_of_its_launcher() -> None:
    reading = read("axolotl train a.yaml -- --num_processes 16 --num_machines 2", a_dot_yaml=ARGUMENTS)
    assert reading.launches[0].launcher == "accelerate"
    assert (values(reading)["world_size"], values(reading)["nodes"]) == (16, 2)
    assert ("a.yaml", "trainer") in [(r.target, r.role) for r in reading.references]
    reading = read("axolotl train a.yaml --launcher torchrun -- --nnodes=2 --nproc_per_node=8 --rdzv_endpoint=n0:29500")
    assert reading.launches[0].launcher == "torchrun"
    assert values(reading)["rendezvous_backend"] == "c10d"


def test_trl_accepts_options_of_accelerate() -> None:
    reading = read(
        "trl sft --config a.yaml --num_processes 4 --bf16 --accelerate_config acc.yaml --gradient_accumulation_steps 2",
        a_dot_yaml=ARGUMENTS,
        acc_dot_yaml="distributed_type: MULTI_GPU\nnum_processes: 8\n",
    )
    assert values(reading)["world_size"] == 4
    assert values(reading)["mixed_precision"] == "bf16"
    assert only(reading, "gradient_accumulation_steps").source == "arguments"
    assert {r.role for r in reading.references} >= {"accelerate", "trainer"}


def test_tune_is_standalone_without_an_endpoint() -> None:
    reading = read("tune run --nproc_per_node 4 lora_finetune_distributed --config llama3/8B")
    assert (values(reading)["processes_per_node"], values(reading)["standalone"]) == (4, True)
    reading = read("tune run --nnodes 2 --nproc_per_node 4 --rdzv_endpoint=n0:1 --rdzv_backend=c10d full --config x")
    assert "standalone" not in values(reading)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--bf16", "bf16"),
        ("--bf16 True", "bf16"),
        ("--bf16=true", "bf16"),
        ("--fp16 False", None),
        ("--tf32 True", None),
    ],
)
def test_switches_of_the_trainer_need_no_value(words: str, expected: str | None) -> None:
    assert values(read(f"torchrun train.py {words} --output_dir out")).get("mixed_precision") == expected


def test_swift_makes_options_of_variables() -> None:
    reading = read("NPROC_PER_NODE=8 NNODES=2 NODE_RANK=$R MASTER_ADDR=n0 swift sft --per_device_train_batch_size 1")
    found = values(reading, source="torchrun")
    assert (found["processes_per_node"], found["nodes"], found["master_addr"]) == (8, 2, "n0")
    assert found["node_rank"] is None
    assert only(reading, "nodes").spelling == "NNODES=2"
    assert only(reading, "micro_batch_size_per_gpu").value.value == 1  # type: ignore[union-attr]
    alone = values(read("swift sft --model gpt2"), source="swift")
    assert (alone["nodes"], alone["processes_per_node"]) == (1, 1)


def test_sudo_takes_variables_of_the_program() -> None:
    reading = read(
        "#!/bin/bash\nsudo -E NNODES=2 NPROC_PER_NODE=8 NODE_RANK=0 MASTER_ADDR=n0 llamafactory-cli train a.yaml\n"
    )
    assert len(reading.launches) == 1
    found = values(reading, source="llamafactory-cli")
    assert (found["nodes"], found["processes_per_node"], found["master_addr"]) == (2, 8, "n0")

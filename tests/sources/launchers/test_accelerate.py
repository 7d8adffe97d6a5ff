from __future__ import annotations

import pytest

from preflight.model.job import Known, Relation, Strength, Unresolved
from tests.sources.launchers.reading_lines import only, read, values

FLAGS = "--num_processes 16 --num_machines=2 --machine-rank 1 --main_process_ip n0 --main-process-port 29500"


def test_options_in_every_spelling() -> None:
    reading = read(f"accelerate launch {FLAGS} --mixed_precision bf16 train.py --gradient_accumulation_steps 2")
    assert values(reading, source="accelerate") == {
        "world_size": 16,
        "nodes": 2,
        "node_rank": 1,
        "master_addr": "n0",
        "master_port": 29500,
        "rendezvous_backend": "static",
        "mixed_precision": "bf16",
        "chosen_value": "bf16",
        "script": "train.py",
    }
    assert only(reading, "nodes").relation is Relation.REQUIRES
    assert only(reading, "rendezvous_backend").strength is Strength.DEFAULT
    assert reading.launches[0].launcher == "accelerate"
    # After the script it is the script's own option.
    assert only(reading, "gradient_accumulation_steps").source == "arguments"


@pytest.mark.parametrize(
    "words",
    ["accelerate launch", "accelerate-launch", "python -m accelerate.commands.launch", "uv run accelerate launch"],
)
def test_every_program_name(words: str) -> None:
    assert values(read(f"{words} {FLAGS} train.py"))["world_size"] == 16


@pytest.mark.parametrize(
    "words", ["accelerate config", "accelerate test", "accelerate env", "accelerate launch --help"]
)
def test_other_commands_launch_nothing(words: str) -> None:
    assert read(words).launches == ()


def test_references_have_the_role_of_the_file() -> None:
    reading = read(
        "accelerate launch --config_file acc.yaml --deepspeed_config_file ds.json --deepspeed_hostfile hosts"
        " -m pkg.train",
        acc_dot_yaml="distributed_type: MULTI_GPU\nnum_processes: 8\n",
    )
    roles = {reference.target: reference.role for reference in reading.references}
    assert roles == {"acc.yaml": "accelerate", "ds.json": "config", "hosts": "hostfile", "pkg/train.py": "script"}


def test_deepspeed_reaches_the_other_machines_unless_disabled() -> None:
    line = f"accelerate launch --use_deepspeed {FLAGS}"
    assert read(f"{line} train.py").launches[0].launcher == "deepspeed"
    assert read(f"{line} --deepspeed_multinode_launcher standard train.py").launches[0].launcher == "accelerate"
    file = "distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 16\n"
    reading = read("accelerate launch --config_file acc.yaml train.py", acc_dot_yaml=file)
    assert reading.launches[0].launcher == "deepspeed"
    reading = read("accelerate launch --config_file acc.yaml --num_machines 1 train.py", acc_dot_yaml=file)
    assert reading.launches[0].launcher == "accelerate"


def test_external_values_are_unresolved_and_hide_defaults() -> None:
    reading = read("accelerate launch --num_processes $N --main_process_port 0 $EXTRA train.py")
    assert isinstance(only(reading, "world_size").value, Unresolved)
    assert isinstance(only(reading, "master_port").value, Unresolved)
    assert "rendezvous_backend" not in values(reading)


def test_under_srun_there_is_one_agent_per_machine() -> None:
    reading = read(f"srun accelerate launch {FLAGS} train.py")
    claim = next(c for c in reading.claims if c.quantity == "tasks_per_node" and c.source == "accelerate")
    assert (claim.value, claim.relation) == (Known(1), Relation.REQUIRES)

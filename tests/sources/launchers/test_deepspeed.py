from __future__ import annotations

from preflight.model.job import Known, Relation, Strength
from tests.sources.launchers.reading_lines import is_default, only, read, values


def test_counts_store_and_files() -> None:
    reading = read(
        "deepspeed --hostfile hosts/hf --num_nodes 2 --num_gpus=4 --master_addr n1 train.py"
        " --deepspeed --deepspeed_config conf/ds.json"
    )
    assert only(reading, "processes_per_node").value == Known(4)
    assert only(reading, "master_addr").value == Known("n1")
    assert {(c.relation, c.strength, c.value) for c in reading.claims if c.quantity == "nodes"} == {
        (Relation.SETS, Strength.SCHEDULER, Known(2)),
        (Relation.AT_LEAST, Strength.FLAG, Known(2)),
    }
    port = only(reading, "master_port")
    assert is_default(port) and port.value == Known(29500)
    assert {(r.target, r.role, r.scope.launch) for r in reading.references} == {
        ("hosts/hf", "hostfile", "run.sh:1"),
        ("train.py", "script", "run.sh:1"),
        ("conf/ds.json", "config", "run.sh:1"),
    }


def test_included_slots_are_the_ranks() -> None:
    found = values(read('deepspeed --include "w0:0,1@w1:2,3" --master_port=$P t.py'))
    assert (found["hosts"], found["nodes"], found["processes_per_node"]) == (("w0", "w1"), 2, 2)
    assert found["master_port"] is None
    assert values(read("deepspeed -i w0:0,1@w1:2 t.py"))["processes_per_node"] is None
    assert "processes_per_node" not in values(read("deepspeed --include w0@w1 t.py"))


def test_minus_one_means_not_given() -> None:
    found = values(read("deepspeed --num_nodes=-1 --num_gpus -1 t.py"))
    assert "nodes" not in found and "processes_per_node" not in found


def test_exported_master_is_not_read() -> None:
    assert "master_addr" not in values(read("export MASTER_ADDR=n1\ndeepspeed t.py"))


def test_the_configuration_of_hugging_faces_trainer() -> None:
    reading = read(
        "deepspeed t.py --deepspeed zero3.json --per_device_train_batch_size 4 --gradient_accumulation_steps=2"
    )
    assert ("zero3.json", "config") in {(r.target, r.role) for r in reading.references}
    found = values(reading)
    assert (found["micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]) == (4, 2)


def test_options_are_stated_in_the_order_of_the_line() -> None:
    options = ("num_gpus", "master_port", "hostfile", "num_nodes", "master_addr", "node_rank", "include")
    line = " ".join(f"--{name} {number}" for number, name in enumerate(options))
    found = [claim.quantity for claim in read(f"deepspeed {line} train.py\n").claims]
    prefix = "setting.deepspeed_launcher."
    stated = [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
    assert [name for name in stated if name in options] == list(options)

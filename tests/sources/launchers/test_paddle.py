"""None"""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Relation, Strength
from tests.sources.launchers.reading_lines import only, read, values


@pytest.mark.parametrize(
    "start", ["python -m paddle.distributed.launch", "python -m paddle.distributed.fleet.launch", "fleetrun"]
)
def test_collective_by_addresses(start: str) -> None:
    reading = read(f'{start} --gpus="0,1,2,3" --ips=10.0.0.1,10.0.0.2 --log_dir log t.py --lr 1')
    assert reading.launches[0].launcher == "paddle"
    assert values(reading, source="paddle") == {
        "hosts": ("10.0.0.1", "10.0.0.2"),
        "nodes": 2,
        "processes_per_node": 4,
        "selected_devices": ("0", "1", "2", "3"),
        "master_addr": "10.0.0.1",
        "script": "t.py",
    }
    assert only(reading, "nodes").relation is Relation.REQUIRES
    assert reading.launches[0].arguments == ("--lr", "1")


def test_collective_by_master() -> None:
    found = values(
        read("python -m paddle.distributed.launch --master=n1:49178 --nnodes=2:4 --nproc_per_node 8 --rank 1 t.py")
    )
    assert (found["master_addr"], found["master_port"], found["min_nodes"]) == ("n1", 49178, 2)
    assert (found["processes_per_node"], found["node_rank"], found["rendezvous_backend"]) == (8, 1, "http")


def test_the_oldest_options() -> None:
    found = values(
        read(
            "python -m paddle.distributed.launch --cluster_node_ips=a,b --node_ip=a"
            " --started_port=6170 --selected_gpus=0,1 t.py"
        )
    )
    assert (found["hosts"], found["processes_per_node"], found["master_port"]) == (("a", "b"), 2, 6170)


def test_a_variable_overrides_its_option() -> None:
    reading = read("PADDLE_NNODES=2 python -m paddle.distributed.launch --master=n1:1 --nnodes=4 t.py")
    nodes = only(reading, "nodes")
    assert (nodes.value, nodes.spelling, nodes.strength) == (
        Known(2),
        "PADDLE_NNODES=2",
        Strength.ENVIRONMENT,
    )


def test_parameter_servers_by_list() -> None:
    reading = read(
        "fleetrun --servers=10.0.0.1:6170,10.0.0.2:6170 --workers=10.0.0.3:6171,10.0.0.3:6172 --worker_num=3 t.py"
    )
    found = values(reading, source="paddle", relation=Relation.SETS)
    assert found["ps_mode"] is True
    assert found["ps_server_endpoints"] == ("10.0.0.1:6170", "10.0.0.2:6170")
    assert (found["ps_servers"], found["ps_workers"]) == (2, 2)
    assert found["hosts"] == ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    # A number beside a list must agree with it.
    assert values(reading, relation=Relation.REQUIRES)["ps_workers"] == 3


def test_parameter_servers_by_number_count_on_each_node() -> None:
    found = values(
        read("python -m paddle.distributed.launch --server_num=2 --trainer_num=3 --nnodes=2 --master n1:1 t.py")
    )
    assert (found["ps_servers"], found["ps_workers"], found["nodes"]) == (4, 6, 2)


PS = """
export PADDLE_PSERVERS_IP_PORT_LIST=10.0.0.1:6000,10.0.0.2:6000
export PADDLE_TRAINERS_NUM=2
TRAINING_ROLE=PSERVER POD_IP=10.0.0.2 PADDLE_PORT=6000 python train.py &
TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=1 python train.py &
"""


def test_roles_started_without_a_launcher_are_launches_of_one_job() -> None:
    reading = read(PS)
    server, trainer = reading.launches
    assert (server.launcher, trainer.launcher) == ("python", "python")
    assert only(reading, "ps_role", launch=server.id).value == Known("PSERVER")
    # A server's index is the position of its own endpoint in the list.
    assert only(reading, "ps_index", launch=server.id).value == Known(1)
    assert only(reading, "ps_current_endpoint", launch=server.id).value == Known("10.0.0.2:6000")
    assert only(reading, "ps_index", launch=trainer.id).value == Known(1)
    assert only(reading, "ps_workers", launch=trainer.id).span.line == 3


def test_a_server_outside_the_list_has_no_index() -> None:
    reading = read(PS.replace("POD_IP=10.0.0.2", "POD_IP=10.0.0.9"))
    server = reading.launches[0]
    assert not [c for c in reading.claims if c.quantity == "ps_index" and c.scope.launch == server.id]
    assert only(reading, "ps_current_endpoint", launch=server.id).value == Known("10.0.0.9:6000")


def test_collective_ranks_started_without_a_launcher() -> None:
    reading = read("export PADDLE_TRAINERS_NUM=4 PADDLE_MASTER=n1:777\nPADDLE_TRAINER_ID=2 python t.py")
    found = values(reading, source="environment")
    assert (found["rank"], found["world_size"], found["master_port"]) == (2, 4, 777)
    assert only(reading, "world_size").relation is Relation.REQUIRES


def test_a_model_s_own_launch_script_starts_ranks_as_paddle_does() -> None:
    reading = read(
        "python ./ernie/finetune_launch.py --nproc_per_node 8 --selected_gpus 0,1,2,3 --node_ips 10.1.0.1,10.1.0.2"
        " --node_id 1 ./ernie/run_mrc.py --batch_size 16"
    )
    assert reading.launches[0].launcher == "paddle"
    found = values(reading, source="paddle")
    assert (found["hosts"], found["nodes"], found["node_rank"]) == (("10.1.0.1", "10.1.0.2"), 2, 1)
    assert (found["processes_per_node"], found["master_addr"]) == (8, "10.1.0.1")
    assert reading.launches[0].arguments == ("--batch_size", "16")


def test_a_launch_script_is_recognised_by_its_options() -> None:
    named = read("python start.py --node_ips=a,b --selected_gpus=0,1 train.py")
    assert values(named, source="paddle")["processes_per_node"] == 2
    assert not read("python train.py --node_ips=a,b").launches


def test_a_rank_of_an_interpreter_with_another_name() -> None:
    reading = read("PADDLE_TRAINING_ROLE=TRAINER PADDLE_TRAINERS_NUM=2 PADDLE_TRAINER_ID=1 fluid -u train.py --lr 1")
    found = values(reading, source="environment")
    assert (found["ps_role"], found["ps_index"], found["ps_workers"]) == ("TRAINER", 1, 2)
    assert reading.launches[0].arguments == ("--lr", "1")


def test_the_number_of_trainers_alone_makes_a_rank() -> None:
    world = only(read("PADDLE_TRAINERS_NUM=2 python train.py"), "world_size")
    assert (world.value, world.relation) == (Known(2), Relation.REQUIRES)


def test_the_rendezvous_port_of_gloo() -> None:
    reading = read("fleetrun --servers=a:1,b:1 --workers=a:2,b:2 --http_port=9000 t.py")
    assert only(reading, "gloo_http_port").value == Known(9000)


def test_the_position_of_a_node_in_the_list_is_its_rank() -> None:
    line = "python -m paddle.distributed.launch --cluster_node_ips=a1,b1 --node_ip=b1 --selected_gpus=0 t.py"
    assert (only(read(line), "node_address").value, only(read(line), "node_rank").value) == (Known("b1"), Known(1))
    stranger = read(line.replace("--node_ip=b1", "--node_ip=c1"))
    assert not [claim for claim in stranger.claims if claim.quantity == "node_rank"]
    wrapped = read("python lanch.py --node_ips a1,b1 --current_node_ip a1 t.py")
    assert only(wrapped, "node_rank").value == Known(0)


# Commands of PaddlePaddle 0.x: servers, trainers, and the tool that starts all of them.


def test_a_server() -> None:
    reading = read(
        "paddle pserver --port=7164 --ports_num 2 --ports_num_for_sparse=1 --num_gradient_servers=3 --nics=eth0"
    )
    found = values(reading, source="paddle")
    assert (found["ps_role"], found["ps_workers"], found["pserver_nics"]) == ("PSERVER", 3, ("eth0",))
    assert (found["pserver_port"], found["pserver_ports"], found["pserver_sparse_ports"]) == (7164, 2, 1)
    assert reading.launches[0].launcher == "paddle-v2"


def test_defaults_are_stated_where_no_option_may_hide() -> None:
    port = only(read("paddle pserver --num_gradient_servers=1"), "pserver_port")
    assert (port.strength, port.spelling) == (Strength.DEFAULT, "paddle (without --port: 20134)")
    hidden = read("paddle pserver $ARGS --num_gradient_servers=1")
    assert not [claim for claim in hidden.claims if claim.quantity == "pserver_port"]


def test_a_trainer_with_servers() -> None:
    reading = read(
        "paddle train --pservers=10.0.0.1,10.0.0.2 --trainer_id=1 --local=0 --trainer_count=4 --config=conf/t.py"
    )
    found = values(reading, source="paddle")
    assert (found["ps_role"], found["ps_index"], found["trains_locally"]) == ("TRAINER", 1, False)
    assert (found["pserver_hosts"], found["trainer_threads"]) == (("10.0.0.1", "10.0.0.2"), 4)
    assert reading.launches[0].program == "conf/t.py"
    assert [reference.target for reference in reading.references] == ["conf/t.py"]


def test_a_trainer_without_servers_has_no_role() -> None:
    found = values(read("paddle_trainer --config=t.py --use_gpu=1"), source="paddle")
    assert "ps_role" not in found and "pserver_port" not in found


@pytest.mark.parametrize("line", ["paddle version", "paddle merge_model --x=1", "paddle", "pip install paddle -U"])
def test_other_commands_launch_nothing(line: str) -> None:
    assert not read(line).launches


def test_the_tool_passes_ports_to_trainers_only() -> None:
    reading = read(
        "python scripts/paddle.py --job_dispatch_package=ws --ports_num_for_sparse=2 --local=0 --config=t.py"
    )
    ports = only(reading, "pserver_sparse_ports")
    assert ports.relation is Relation.REQUIRES
    assert only(reading, "cluster_package").value == Known("ws")
    assert "scripts/conf.py" in [reference.target for reference in reading.references]


def test_an_unrelated_script_with_the_same_name() -> None:
    assert not read("python paddle.py --epochs 3").launches

from __future__ import annotations

import pytest

from preflight.job import Known, Relation, Strength
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


def test_the_oldest_spellings() -> None:
    found = values(
        read(
            "python -m paddle.distributed.launch --cluster_node_ips=a,b --node_ip=a"
            " --started_port=6170 --selected_gpus=0,1 t.py"
        )
    )
    assert (found["hosts"], found["processes_per_node"], found["master_port"]) == (("a", "b"), 2, 6170)


def test_a_variable_wins_over_its_option() -> None:
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


def test_roles_started_by_hand_are_launches_of_one_job() -> None:
    reading = read(PS)
    server, trainer = reading.launches
    assert (server.launcher, trainer.launcher) == ("python", "python")
    assert only(reading, "ps_role", launch=server.id).value == Known("PSERVER")
    # A server's index is the place of its own endpoint in the list.
    assert only(reading, "ps_index", launch=server.id).value == Known(1)
    assert only(reading, "ps_current_endpoint", launch=server.id).value == Known("10.0.0.2:6000")
    assert only(reading, "ps_index", launch=trainer.id).value == Known(1)
    assert only(reading, "ps_workers", launch=trainer.id).span.line == 3


def test_a_server_outside_the_list_has_no_index() -> None:
    reading = read(PS.replace("POD_IP=10.0.0.2", "POD_IP=10.0.0.9"))
    server = reading.launches[0]
    assert not [c for c in reading.claims if c.quantity == "ps_index" and c.scope.launch == server.id]
    assert only(reading, "ps_current_endpoint", launch=server.id).value == Known("10.0.0.9:6000")


def test_collective_ranks_started_by_hand() -> None:
    reading = read("export PADDLE_TRAINERS_NUM=4 PADDLE_MASTER=n1:777\nPADDLE_TRAINER_ID=2 python t.py")
    found = values(reading, source="environment")
    assert (found["rank"], found["world_size"], found["master_port"]) == (2, 4, 777)
    assert only(reading, "world_size").relation is Relation.REQUIRES

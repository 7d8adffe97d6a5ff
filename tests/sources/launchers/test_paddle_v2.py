"""Commands of PaddlePaddle 0.x: servers, trainers, and the tool that starts all of them."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Relation, Strength
from tests.sources.launchers.reading_lines import only, read, values


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

"""Roles in the nodes' own environments, library paths, and settings files."""

from __future__ import annotations

import json

import pytest

from preflight.model.findings import Status
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.context.environment import communication_variables_differ
from preflight_checks.context.participants import roles_of_nodes_do_not_fit, tf_configs_do_not_fit
from preflight_checks.probes.environment import Environment, SettingsFile, environment
from preflight_checks.software.packages import library_paths_differ, settings_file_misread
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, local_fleet, one, statuses

LISTS = {
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6170,10.0.0.2:6170",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.3:6171,10.0.0.4:6171",
    "PADDLE_TRAINERS_NUM": "2",
}
PS = job(ps_mode=True)


def node(index: int, **variables: str) -> FactRecord:
    return fact(environment, f"node{index}", Environment({k: v for k, v in variables.items() if v}))


def server(index: int, **changed: str) -> FactRecord:
    own = {"TRAINING_ROLE": "PSERVER", "POD_IP": f"10.0.0.{index + 1}", "PADDLE_PORT": "6170"}
    return node(index, **{**LISTS, **own, **changed})


def trainer(index: int, **changed: str) -> FactRecord:
    own = {"TRAINING_ROLE": "TRAINER", "POD_IP": f"10.0.0.{index + 1}", "PADDLE_TRAINER_ID": str(index - 2)}
    own["PADDLE_CURRENT_ENDPOINT"] = f"10.0.0.{index + 1}:6171"
    return node(index, **{**LISTS, **own, **changed})


def test_roles_that_fit_pass() -> None:
    fitting = facts(server(0), server(1), trainer(2), trainer(3))
    assert statuses(judge(roles_of_nodes_do_not_fit, PS, fleet(4), fitting)) == {"pass"}


@pytest.mark.parametrize(
    ("index", "changed", "words", "nodes"),
    [
        (1, {"PADDLE_PORT": "6190"}, "10.0.0.2:6190", {"node1"}),
        (1, {"TRAINING_ROLE": "SERVER"}, "PSERVER", {"node1"}),
        (0, {"PADDLE_PSERVERS_IP_PORT_LIST": ""}, "cannot find the servers", {"node0"}),
        (3, {"PADDLE_TRAINER_ID": "2"}, "must be below 2", {"node3"}),
        (3, {"PADDLE_TRAINER_ID": "x"}, "must be below 2", {"node3"}),
        (3, {"PADDLE_CURRENT_ENDPOINT": "10.0.0.9:6171"}, "entry 1", {"node3"}),
        (3, {"PADDLE_TRAINER_ID": "0", "PADDLE_CURRENT_ENDPOINT": ""}, "one trainer twice", {"node2", "node3"}),
        (1, {"TRAINING_ROLE": "TRAINER"}, "is not a server", {"node1"}),
    ],
)
def test_inconsistent_roles(index: int, changed: dict[str, str], words: str, nodes: set[str]) -> None:
    records = [server(0), server(1), trainer(2), trainer(3)]
    make = server if index < 2 else trainer
    records[index] = make(index, **changed)
    said = [v for v in judge(roles_of_nodes_do_not_fit, PS, fleet(4), facts(*records)) if v.status is Status.FAIL]
    assert [verdict for verdict in said if words in verdict.message and set(verdict.nodes) == nodes], said


def test_a_reordered_list_is_a_difference() -> None:
    odd = trainer(3, PADDLE_PSERVERS_IP_PORT_LIST="10.0.0.2:6170,10.0.0.1:6170")
    seen = facts(server(0), server(1), trainer(2), odd)
    found = one(judge(communication_variables_differ, PS, fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node3",) and found.severity is not None and found.severity.value == "error"


def test_roles_unset_or_set_by_the_job_are_not_judged() -> None:
    bare = facts(node(0), node(1))
    assert statuses(judge(roles_of_nodes_do_not_fit, PS, fleet(2), bare)) == {"not-applicable"}
    ours = job(ps_mode=True, env_TRAINING_ROLE="TRAINER")
    assert statuses(judge(roles_of_nodes_do_not_fit, ours, fleet(2), bare)) == {"not-applicable"}
    assert statuses(judge(roles_of_nodes_do_not_fit, PS, local_fleet(2), bare)) == {"not-applicable"}
    blind = facts(*(fact(environment, f"node{i}", TIMEOUT) for i in range(2)))
    for check in (roles_of_nodes_do_not_fit, tf_configs_do_not_fit, library_paths_differ):
        assert statuses(judge(check, PS, fleet(2), blind)) == {"unknown"}


CLUSTER = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}


def tf(index: int, role: str, number: int, cluster: object = CLUSTER) -> FactRecord:
    return node(index, TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": role, "index": number}}))


def test_tf_configs() -> None:
    fitting = facts(tf(0, "worker", 0), tf(1, "worker", 1), tf(2, "ps", 0), tf(3, "evaluator", 0))
    assert statuses(judge(tf_configs_do_not_fit, job(), fleet(4), fitting)) == {"pass"}
    twice = facts(tf(0, "worker", 0), tf(1, "worker", 0))
    assert one(judge(tf_configs_do_not_fit, job(), fleet(2), twice), Status.FAIL).nodes == ("node0", "node1")
    beyond = facts(tf(0, "worker", 0), tf(1, "worker", 2))
    assert "its cluster has only 2" in one(judge(tf_configs_do_not_fit, job(), fleet(2), beyond), Status.FAIL).message
    other = facts(tf(0, "worker", 0), tf(1, "worker", 1), tf(2, "ps", 0, {**CLUSTER, "worker": ["b:1", "a:1"]}))
    assert one(judge(tf_configs_do_not_fit, job(), fleet(3), other), Status.FAIL).nodes == ("node2",)
    broken = facts(tf(0, "worker", 0), node(1, TF_CONFIG="{'cluster': {}}"), node(2, TF_CONFIG="[1]"))
    assert one(judge(tf_configs_do_not_fit, job(), fleet(3), broken), Status.FAIL).nodes == ("node1", "node2")
    assert statuses(judge(tf_configs_do_not_fit, job(), fleet(2), facts(node(0), node(1)))) == {"not-applicable"}


def test_another_library_path() -> None:
    seen = facts(node(0, LD_LIBRARY_PATH="/a:/b"), node(1, LD_LIBRARY_PATH="/a:/b:"), node(2, LD_LIBRARY_PATH="/c:/a"))
    found = one(judge(library_paths_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "/c only there; /b not there" in found.message
    order = facts(node(0, PYTHONPATH="/a:/b"), node(1, PYTHONPATH="/a:/b"), node(2, PYTHONPATH="/b:/a"))
    assert "another order" in one(judge(library_paths_differ, job(), fleet(3), order), Status.FAIL).message
    ours = job(env_PYTHONPATH="/a")
    assert statuses(judge(library_paths_differ, ours, fleet(3), order)) == {"pass"}


def test_a_library_folder_missing_on_one_node() -> None:
    def lacking(index: int, *folders: str) -> FactRecord:
        return fact(
            environment, f"node{index}", Environment({"LD_LIBRARY_PATH": "/a:/b"}, missing_folders=list(folders))
        )

    found = one(
        judge(library_paths_differ, job(), fleet(3), facts(lacking(0), lacking(1), lacking(2, "/b"))), Status.FAIL
    )
    assert found.nodes == ("node2",) and "/b" in found.message
    everywhere = facts(*(lacking(index, "/b") for index in range(3)))
    assert statuses(judge(library_paths_differ, job(), fleet(3), everywhere)) == {"pass"}
    most = one(
        judge(library_paths_differ, job(), fleet(3), facts(lacking(0), lacking(1, "/b"), lacking(2, "/b"))), Status.FAIL
    )
    assert set(most.nodes) == {"node1", "node2"}


def test_lines_that_nccl_misreads() -> None:
    file = SettingsFile("/etc/nccl.conf", unread=["line 1: the name is `NCCL_DEBUG ` with its blanks"])
    closed = SettingsFile("/root/.nccl.conf", problem="Permission denied")
    seen = facts(
        fact(environment, "node0", Environment({}, nccl_files=[file])),
        fact(environment, "node1", Environment({}, nccl_files=[file, closed])),
    )
    said = [v for v in judge(settings_file_misread, job(backend="nccl"), fleet(2), seen) if v.status is Status.FAIL]
    assert {verdict.nodes for verdict in said} == {("node0", "node1"), ("node1",)}
    assert statuses(judge(settings_file_misread, job(backend="gloo"), fleet(2), seen)) == {"not-applicable"}
    fine = facts(fact(environment, "node0", Environment({})))
    assert statuses(judge(settings_file_misread, job(backend="nccl"), fleet(1), fine)) == {"pass"}
    blind = facts(fact(environment, "node0", Unavailable("denied", "no")))
    assert statuses(judge(settings_file_misread, job(backend="nccl"), fleet(1), blind)) == {"unknown"}

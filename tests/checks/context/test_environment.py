"""Variables that must agree between nodes, and others that must differ."""

from __future__ import annotations

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Unresolved
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.comparison import group_of, groups
from preflight_checks.context.environment import (
    communication_variables_differ,
    node_identities_collide,
    protocol_differences,
)
from preflight_checks.probes.environment import COLLECTED, Environment, SettingsFile, environment
from tests.checks.check_builders import claim, fact, facts, fleet, job, judge, local_fleet, one, plan, statuses

NCCL_JOB = job(backend="nccl", nodes=4)


def node(name: str, digests: dict[str, str] | None = None, conf: str = "", **variables: str) -> FactRecord:
    files = [SettingsFile("/etc/nccl.conf", settings=dict([conf.split("=")]))] if conf else []
    return fact(environment, name, Environment(variables, digests or {}, files), context=True)


def test_both_environments_are_requested_from_every_node() -> None:
    asked = plan(communication_variables_differ, job(backend="nccl", env_WANDB_API_KEY="****"), fleet(2))
    assert [(request.node, request.context) for request in asked] == [
        ("node0", True),
        ("node1", True),
        ("node0", False),
        ("node1", False),
    ]
    assert all(request.params["hashed"] == ["WANDB_API_KEY"] and "run_key" in request.params for request in asked)
    assert plan(communication_variables_differ, NCCL_JOB, fleet(1)) == []


def test_a_different_algorithm_on_one_node_is_an_error() -> None:
    seen = facts(node("node0", NCCL_ALGO="Ring"), node("node1", NCCL_ALGO="ring"), node("node2", NCCL_ALGO="Tree"))
    found = one(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is Severity.ERROR
    assert "NCCL_ALGO is node2: Tree, but Ring on 2 others" in found.message


def test_the_environment_overrides_nccl_files() -> None:
    seen = facts(node("node0"), node("node1", conf="NCCL_PROTO=LL"), node("node2"))
    found = one(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "LL (/etc/nccl.conf)" in found.message
    assert "/etc/nccl.conf" in found.remedy
    same = facts(*(node(f"node{i}", conf="NCCL_PROTO=LL" if i == 1 else "", NCCL_PROTO="Simple") for i in range(3)))
    assert statuses(judge(communication_variables_differ, NCCL_JOB, fleet(3), same)) == {"pass"}


def test_a_variable_set_to_its_default_is_not_a_difference() -> None:
    seen = facts(node("node0"), node("node1", NCCL_IB_DISABLE="0"), node("node2"))
    assert statuses(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen)) == {"pass"}


@pytest.mark.parametrize(
    "variables",
    [
        {"NCCL_SOCKET_IFNAME": "ib0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"NCCL_DEBUG_FILE": "/tmp/node1.log"},
        {"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": "6170"},
        {"CUDA_VERSION": "12.4"},
        {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1"},
        {"HOROVOD_LOCAL_SIZE": "4"},
        {"SOMETHING_ELSE": "1"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_variables_that_may_differ_are_not_reported(variables: dict[str, str]) -> None:
    seen = facts(node("node0"), node("node1", **variables), node("node2"))
    assert statuses(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen)) == {"pass"}


def test_variables_that_differ_on_one_node_are_one_finding() -> None:
    seen = facts(node("node0"), node("node1", NCCL_IB_TC="106", NCCL_IB_SL="3", OMP_NUM_THREADS="1"), node("node2"))
    found = one(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.WARNING
    assert all(name in found.message for name in ("NCCL_IB_TC", "NCCL_IB_SL", "OMP_NUM_THREADS"))


def test_with_two_nodes_neither_is_odd() -> None:
    seen = facts(node("node0", NCCL_ALGO="Ring"), node("node1", NCCL_ALGO="Tree"))
    found = one(judge(communication_variables_differ, NCCL_JOB, fleet(2), seen), Status.FAIL)
    assert set(found.nodes) == {"node0", "node1"}


def test_nccl_variables_are_information_without_nccl() -> None:
    seen = facts(node("node0"), node("node1", NCCL_ALGO="Tree"), node("node2"))
    found = one(judge(communication_variables_differ, job(backend="gloo"), fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.INFO


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("TORCH_GLOO_LAZY_INIT", "1", Severity.ERROR),
        ("GLOO_DEVICE_TRANSPORT", "TCP_TLS", Severity.ERROR),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", Severity.ERROR),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", Severity.INFO),
        ("ATEN_CPU_CAPABILITY", "default", Severity.WARNING),
        ("MKL_CBWR", "COMPATIBLE", Severity.WARNING),
    ],
)
def test_variables_of_torch_that_differ_on_one_node(name: str, value: str, severity: Severity) -> None:
    stated = job(backend="gloo")
    seen = facts(node("node0"), node("node1"), node("node2", **{name: value}))
    found = one(judge(communication_variables_differ, stated, fleet(3), seen), Status.FAIL)
    assert found.severity is severity and found.nodes == ("node2",)
    broken = {name: ("node2",)} if severity is Severity.ERROR else {}
    assert protocol_differences(stated, seen) == broken
    assert any(name == pattern or name.startswith(pattern.rstrip("*")) for pattern in COLLECTED)


def test_torch_s_own_defaults_are_no_difference() -> None:
    seen = facts(node("node0"), node("node1", TORCH_DISTRIBUTED_DEBUG="OFF", TORCH_GLOO_LAZY_INIT="0"), node("node2"))
    assert statuses(judge(communication_variables_differ, job(backend="gloo"), fleet(3), seen)) == {"pass"}


def test_variables_set_by_the_job_are_not_compared() -> None:
    seen = facts(*(node(f"node{i}", NCCL_ALGO="Ring" if i else "Tree") for i in range(3)))
    assert statuses(
        judge(communication_variables_differ, job(backend="nccl", env_NCCL_ALGO="Ring"), fleet(3), seen)
    ) == {"pass"}


def test_the_master_may_call_itself_localhost() -> None:
    seen = facts(node("node0", MASTER_ADDR="localhost"), *(node(f"node{i}", MASTER_ADDR="job-0") for i in (1, 2)))
    assert statuses(judge(communication_variables_differ, job(backend="gloo"), fleet(3), seen)) == {"pass"}
    two = facts(node("node0"), *(node(f"node{i}", MASTER_ADDR=f"host{i // 2}") for i in (1, 2)))
    assert one(judge(communication_variables_differ, job(), fleet(3), two), Status.FAIL).severity is Severity.ERROR
    flagged = job((claim("master_addr", "host0"),))
    assert statuses(judge(communication_variables_differ, flagged, fleet(3), two)) == {"pass"}


def test_secrets_are_compared_by_their_hashes_and_never_shown() -> None:
    seen = facts(*(node(f"node{i}", {"NCCL_AUTH_TOKEN": "aa" if i else "bb"}) for i in range(3)))
    found = one(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "aa" not in str(found) and "not shown" in found.message


def test_without_the_context_the_nodes_own_environments_are_compared() -> None:
    gone = [fact(environment, f"node{i}", Unavailable("context", "no interpreter"), context=True) for i in range(3)]
    bare = [fact(environment, f"node{i}", Environment({"NCCL_ALGO": "Tree"} if i else {})) for i in range(3)]
    said = judge(communication_variables_differ, NCCL_JOB, fleet(3), facts(*gone, *bare))
    assert one(said, Status.FAIL).nodes == ("node0",)
    assert one(said, Status.UNKNOWN).message == "no interpreter"
    assert statuses(judge(communication_variables_differ, NCCL_JOB, fleet(3), facts(*gone))) == {"unknown"}


def test_an_unread_variable_is_at_most_information() -> None:
    seen = facts(*(node(f"node{i}", BATCH_SIZE=str(8 + (i == 2)), NODE_RANK="0") for i in range(3)))
    found = one(judge(communication_variables_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.INFO and found.nodes == ("node2",)
    assert statuses(judge(node_identities_collide, job(), fleet(3), seen)) == {"pass"}
    reading = job((claim("dataloader_batch_size", Unresolved("$BATCH_SIZE"), "--batch-size $BATCH_SIZE"),))
    found = one(judge(communication_variables_differ, reading, fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.ERROR


RANKED = job((claim("node_rank", Unresolved("$NODE_RANK is set by the caller"), "--node_rank=$NODE_RANK"),))


def test_two_nodes_with_one_identity_collide() -> None:
    seen = facts(*(node(f"node{i}", NODE_RANK=str(min(i, 1))) for i in range(3)))
    found = one(judge(node_identities_collide, RANKED, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1", "node2")
    own = facts(*(node(f"node{i}", NODE_RANK=str(i)) for i in range(3)))
    assert statuses(judge(node_identities_collide, RANKED, fleet(3), own)) == {"pass"}
    assert statuses(judge(node_identities_collide, job(env_NODE_RANK="0"), fleet(3), seen)) == {"pass"}
    assert statuses(judge(node_identities_collide, RANKED, local_fleet(3), seen)) == {"not-applicable"}
    blind = facts(*(fact(environment, f"node{i}", Unavailable("denied", "no")) for i in range(3)))
    assert statuses(judge(node_identities_collide, job(), fleet(3), blind)) == {"unknown"}


def test_equal_host_ids_matter_only_to_nccl() -> None:
    seen = facts(*(node(f"node{i}", NCCL_HOSTID="cloud") for i in range(2)))
    assert statuses(judge(node_identities_collide, NCCL_JOB, fleet(2), seen)) == {"fail"}
    assert statuses(judge(node_identities_collide, job(backend="gloo"), fleet(2), seen)) == {"pass"}


def test_the_table_is_complete() -> None:
    assert {group.kind for group in groups()} == {"agree", "distinct", "own"}
    assert {group.job_kinds for group in groups()} <= {"nccl", "ps", "ranks", "torch", "any"}
    assert all(group.reason for group in groups())
    found = {name: group_of(name) for name in ("NCCL_ALGO", "NCCL_TOPO_FILE", "NCCL_ANYTHING_NEW", "HOME")}
    assert [group and group.kind for group in found.values()] == ["agree", "own", "agree", None]

"""The resources of Slurm and the requests of the header, on facts made for the test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Job
from preflight.model.recording import Cluster, ClusterNode, Fleet, Origin, Partition
from preflight.plugins.authoring import Check
from preflight_checks.scheduler.allocation import (
    account_not_allowed,
    beyond_partition_limits,
    node_out_of_service,
    partition_unavailable,
    scheduler_refuses,
    too_few_fitting_nodes,
)
from tests.checks.check_builders import claim, facts, fleet, job, judge, one, statuses

GIB = 2**30
GPU = Partition("gpu", "UP", 4, 1, 4, "2-00:00:00", True, allowed_qos=("normal",), denied_accounts=("guests",))
CPU = Partition("cpu", "DOWN", 100, None, None, "")
NODES = tuple(ClusterNode(f"g{i}", {"cpu": 64, "memory": 512 * GIB, "gpu": 8}, labels={"a100": ""}) for i in range(4))
CHECKS = (
    partition_unavailable,
    beyond_partition_limits,
    account_not_allowed,
    node_out_of_service,
    too_few_fitting_nodes,
    scheduler_refuses,
)


def asking(*options: str) -> Job:
    return job([claim("batch_option", option, option) for option in options])


def slurm(*nodes: ClusterNode, refusal: str = "", unknown: tuple[str, ...] = (), count: int = 0) -> Fleet:
    cluster = Cluster("slurm", nodes or NODES, unknown, (GPU, CPU), refusal)
    return replace(fleet(count), executor="slurm", cluster=cluster)


FITS = asking("--partition=gpu", "--nodes=4", "--gres=gpu:8", "--time=1-00:00:00", "--mem=500G", "--qos=normal")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.meta.id)
def test_a_request_that_fits_passes(check: Check) -> None:
    assert statuses(judge(check, FITS, slurm(), facts())) == {"pass"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.meta.id)
def test_not_applicable_without_slurm(check: Check) -> None:
    assert statuses(judge(check, FITS, fleet(4), facts())) == {"not-applicable"}
    kubernetes = replace(fleet(4), cluster=Cluster("kubernetes", NODES))
    assert statuses(judge(check, FITS, kubernetes, facts())) == {"not-applicable"}


@pytest.mark.parametrize(
    ("check", "options", "says"),
    [
        (partition_unavailable, ("--partition=gpus",), "has no partition gpus"),
        (partition_unavailable, ("--partition=cpu",), "cpu is DOWN, and starts no jobs"),
        (beyond_partition_limits, ("--nodes=5",), "requests 5 nodes, and partition gpu allows at most 4 (MaxNodes)"),
        (beyond_partition_limits, ("--partition=cpu", "--nodes=101"), "at most 100 (TotalNodes)"),
        (
            beyond_partition_limits,
            ("--time=3-00:00:00",),
            "requests 3-00:00:00, and partition gpu allows at most 2-00:00:00",
        ),
        (account_not_allowed, ("--qos=high",), "partition gpu does not allow the quality of service high"),
        (
            too_few_fitting_nodes,
            ("--nodes=2", "--gres=gpu:a100:9"),
            "2 nodes with 9 GPUs at once, and its partition has 0",
        ),
        (too_few_fitting_nodes, ("--nodes=2", "--constraint=h100"), "2 nodes with h100 at once"),
        (too_few_fitting_nodes, ("--nodes=1", "--mem=1T"), "1024 GiB of memory"),
        (too_few_fitting_nodes, ("--nodes=1", "--ntasks-per-node=8", "--cpus-per-task=16"), "128 cores"),
    ],
)
def test_an_impossible_request_is_an_error_at_its_line(check: Check, options: tuple[str, ...], says: str) -> None:
    found = one(judge(check, asking(*options), slurm(), facts()), Status.FAIL)
    assert says in found.message and found.locations and found.severity is None


@pytest.mark.parametrize(
    "options",
    [
        ("--partition=cpu,gpu",),
        ("--nodes=2-8",),
        ("--nodes=4", "--constraint=a100&ib"),
        ("--time=UNLIMITED",),
        ("--gpus-per-node=a100:8", "--nodes=4"),
    ],
)
def test_possible_requests_pass(options: tuple[str, ...]) -> None:
    for check in CHECKS:
        assert "fail" not in statuses(judge(check, asking(*options), slurm(), facts())), check.meta.id


def test_limits_with_qos_and_child_accounts_are_warnings() -> None:
    found = one(judge(beyond_partition_limits, asking("--nodes=5", "--qos=normal"), slurm(), facts()), Status.FAIL)
    assert found.severity is Severity.WARNING
    found = one(judge(account_not_allowed, asking("--account=guests"), slurm(), facts()), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_nodes_that_are_drained_are_named_with_the_reason() -> None:
    broken = (*NODES[:3], replace(NODES[3], closed="drained: bad cable"))
    found = one(judge(too_few_fitting_nodes, FITS, slurm(*broken), facts()), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("g3",)
    assert "only 3 of these are in service, and g3 is not: g3 is drained: bad cable" in found.message
    named = replace(slurm(*broken), origin=Origin("hosts", "--hosts g[0-3]", named=("g0", "g3")))
    found = one(judge(node_out_of_service, FITS, named, facts()), Status.FAIL)
    assert found.nodes == ("g3",) and "does not allocate it" in found.message and found.severity is None


def test_a_drained_node_of_a_running_allocation_is_a_warning() -> None:
    running = slurm(ClusterNode("node1", {}, closed="mixed+drain: fan"), ClusterNode("x", {}, closed="down"), count=2)
    found = one(judge(node_out_of_service, FITS, running, facts()), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("node1",)


def test_slurms_refusal_is_quoted() -> None:
    found = one(judge(scheduler_refuses, FITS, slurm(refusal="Invalid account"), facts()), Status.FAIL)
    assert 'would not accept the job: "Invalid account"' in found.message
    assert statuses(judge(scheduler_refuses, FITS, slurm(unknown=("it is silent",)), facts())) == {"unknown"}

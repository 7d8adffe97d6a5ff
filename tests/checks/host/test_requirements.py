"""What the user requires of every node: values, and the properties of a golden node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Status
from preflight.model.job import Job
from preflight.model.recording import (
    NUMBERS,
    PROPERTIES,
    VERSIONS,
    FactRecord,
    NodeRecord,
    job_of_nodes,
    parse_requirement,
)
from preflight_checks.host.requirements import _COMMANDS, is_met, node_differs, properties
from preflight_checks.probes.gpus import Gpus, gpus
from preflight_checks.probes.machine import machine
from preflight_checks.probes.rdma import RdmaDevice, RdmaDevices, RdmaPort, rdma
from tests.checks.cards import healthy
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses
from tests.checks.host.test_machines import GOOD

RDMA = RdmaDevices([RdmaDevice("mlx5_0", ports=[RdmaPort(1, "ACTIVE", rate_gbps=400.0), RdmaPort(2, "DOWN")])])


def node_facts(node: str, **changes: Any) -> list[FactRecord]:
    """A node with two GPUs, 1 TiB of memory and one active RDMA port."""
    cards = Gpus("550.54.15", "550.54.15", "12.4", [healthy(0), healthy(1)])
    return [
        fact(machine, node, replace(GOOD, **changes)),
        fact(gpus, node, cards),
        fact(rdma, node, RDMA),
    ]


def nodes_job(*requirements: str, golden: str = "") -> Job:
    return job_of_nodes([parse_requirement(text) for text in requirements], golden)


FOUR = [record for index in range(3) for record in node_facts(f"node{index}")]


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        ("gpus=8", "8", True),
        ("gpus=8", "7", False),
        ("gpus>=4", "8", True),
        ("driver=550", "550.54.15", True),
        ("driver=55", "550.54.15", False),
        ("driver==550", "550.54.15", False),
        ("driver>=535", "550.54.15", True),
        ("driver>=560", "550.54.15", False),
        ("driver=550", "none", False),
        ("kernel=5.15.0", "5.15.0-91-generic", True),
        ("os=Ubuntu", "ubuntu 22.04", True),
        ("os=debian", "ubuntu 22.04", False),
        ("gpu=H100", "NVIDIA H100 80GB HBM3", True),
        ("gpu=H100", "NVIDIA H100 80GB HBM3, NVIDIA A100-SXM4-80GB", False),
        ("memory=1024", "1007.3", True),
        ("memory=1024", "960", False),
        ("memory=1024", "2048", False),
        ("memory>=1024", "2048", True),
        ("rdma-rate=400", "100", False),
    ],
)
def test_values_are_compared_by_their_kind(text: str, value: str, met: bool) -> None:
    assert is_met(parse_requirement(text), value) is met


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpus", "expected NAME=VALUE"),
        ("gpu-s=8", "unknown property 'gpu-s'; did you mean 'gpus'?"),
        ("gpus=eight", "gpus is a number"),
        ("os>=22.04", "os is a text and has no order"),
        ("driver=new", "driver is a version"),
        ("gpus=", "expected NAME=VALUE"),
    ],
)
def test_a_malformed_requirement_is_explained(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_requirement(text)


def test_every_property_can_be_read_and_shown() -> None:
    record = replace(fleet(1).records[0], python="3.11.2")
    assert set(properties(record, facts(*node_facts("node0")))) == set(PROPERTIES) == set(_COMMANDS)
    assert set(NUMBERS) | set(VERSIONS) <= set(PROPERTIES)


def test_a_node_with_another_value_is_named_with_both() -> None:
    found = [*FOUR, *node_facts("node3", online_cpus=96)]
    verdict = one(judge(node_differs, nodes_job("cpus=128", "gpus=2"), fleet(4), facts(*found)), Status.FAIL)
    assert verdict.nodes == ("node3",)
    assert verdict.message == "cpus of node3 is 96, but `--expect cpus=128` requires 128"
    assert verdict.locations[0].snippet == "preflight nodes --expect cpus=128 --expect gpus=2"


def test_a_node_without_a_driver_does_not_meet_a_requirement_about_gpus() -> None:
    seen = facts(fact(gpus, "node0", Gpus(problem="no-driver")), *node_facts("node0")[::2])
    verdicts = judge(node_differs, nodes_job("driver>=535", "gpus=2"), fleet(1), seen)
    assert [verdict.message.partition(",")[0] for verdict in verdicts] == [
        "driver of node0 is none",
        "gpus of node0 is 0",
    ]


def test_a_driver_that_is_loaded_without_its_library_is_not_a_node_without_gpus() -> None:
    seen = facts(fact(gpus, "node0", Gpus(problem="no-library", device_files=8)), *node_facts("node0")[::2])
    assert one(judge(node_differs, nodes_job("gpus=8"), fleet(1), seen), Status.UNKNOWN).required


def test_a_model_that_is_not_known_is_never_met() -> None:
    cards = Gpus("550.54.15", "550.54.15", "12.4", [healthy(0), replace(healthy(1), name="")])
    seen = facts(fact(gpus, "node0", cards), *node_facts("node0")[::2])
    assert one(judge(node_differs, nodes_job("gpu=NVIDIA"), fleet(1), seen), Status.UNKNOWN).required


def test_a_golden_node_whose_gpus_are_not_known_leaves_the_check_undecided() -> None:
    found = [
        fact(machine, "node0", GOOD),
        fact(gpus, "node0", TIMEOUT),
        fact(rdma, "node0", RDMA),
        *node_facts("node1"),
    ]
    verdict = one(judge(node_differs, nodes_job(golden="node0"), fleet(2), facts(*found)), Status.UNKNOWN)
    assert verdict.required and "gpus of the golden node node0 is not known" in verdict.message


def test_what_is_not_known_is_never_met() -> None:
    seen = facts(fact(machine, "node0", GOOD), fact(gpus, "node0", TIMEOUT))
    verdict = one(judge(node_differs, nodes_job("gpus=2"), fleet(1), seen), Status.UNKNOWN)
    assert verdict.required and verdict.nodes == ("node0",)


def test_every_node_must_have_the_properties_of_the_golden_one() -> None:
    found = [*FOUR, *node_facts("node3", kernel="6.1.0-18-amd64")]
    verdict = one(judge(node_differs, nodes_job(golden="node1"), fleet(4), facts(*found)), Status.FAIL)
    assert "kernel of node3 is 6.1.0-18-amd64, but `--golden node1` requires 5.15.0-91-generic" in verdict.message


def test_a_requirement_replaces_the_property_of_the_golden_node() -> None:
    found = [*FOUR, *node_facts("node3", kernel="6.1.0-18-amd64")]
    verdicts = judge(node_differs, nodes_job("kernel>=5.10", golden="node1"), fleet(4), facts(*found))
    assert statuses(verdicts) == {"pass"}


def test_a_golden_node_that_was_not_examined_leaves_the_check_undecided() -> None:
    verdict = one(judge(node_differs, nodes_job(golden="other"), fleet(4), facts(*FOUR)), Status.UNKNOWN)
    assert verdict.required and "was not examined" in verdict.message


def test_a_job_of_files_requires_nothing_of_the_nodes_themselves() -> None:
    assert statuses(judge(node_differs, job(), fleet(4), facts())) == {"not-applicable"}
    assert plan(node_differs, job(), fleet(4)) == []
    assert len(plan(node_differs, nodes_job("cpus=2"), fleet(4))) == 12


def test_an_unreached_node_is_left_to_its_own_check() -> None:
    silent: NodeRecord = fleet(2, node1="no route").records[1]
    assert silent.problem
    verdicts = judge(node_differs, nodes_job("cpus=128"), fleet(2, node1="no route"), facts(*node_facts("node0")))
    assert statuses(verdicts) == {"pass"}

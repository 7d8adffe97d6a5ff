"""Nodes of a Ray cluster: equal, and large enough for the scripts' bundles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Unresolved
from preflight.model.recording import Cluster, ClusterNode, Facts, Fleet
from preflight_checks.probes.packages import Packages, packages
from preflight_checks.scheduler.room import bundle_fits_no_node, ray_nodes_differ
from tests.checks.check_builders import TIMEOUT, claim, fact, facts, fleet, job, judge, one, plan, statuses

JOB = job(ray_role="worker")


def versions(*rays: str, python: str = "3.11.7") -> Facts:
    each = [Packages(python, "/usr/bin/python3", {"ray": ray, "torch": "2.4.0"} if ray else {}) for ray in rays]
    return facts(*(fact(packages, f"node{index}", value, context=True) for index, value in enumerate(each)))


def test_versions_are_requested_only_for_ray_on_several_nodes() -> None:
    assert len(plan(ray_nodes_differ, JOB, fleet(4))) == 4
    assert plan(ray_nodes_differ, job(), fleet(4)) == []
    assert plan(ray_nodes_differ, JOB, fleet(1)) == []
    assert plan(ray_nodes_differ, JOB, replace(fleet(4), executor="ray")) == []


def test_another_patch_of_ray_names_its_node() -> None:
    found = one(judge(ray_nodes_differ, JOB, fleet(3), versions("2.9.3", "2.9.0", "2.9.3")), Status.FAIL)
    assert found.nodes == ("node1",) and "node1: 2.9.0; 2 nodes have 2.9.3" in found.message


def test_another_minor_version_of_ray_is_left_to_ver003() -> None:
    assert statuses(judge(ray_nodes_differ, JOB, fleet(2), versions("2.9.3", "2.60.0"))) == {"pass"}


def test_another_python_is_named_and_another_patch_of_it_is_not() -> None:
    have = [Packages(python, "p", {"ray": "2.9.3"}) for python in ("3.11.7", "3.10.2", "3.11.2")]
    known = facts(*(fact(packages, f"node{index}", value, context=True) for index, value in enumerate(have)))
    found = one(judge(ray_nodes_differ, JOB, fleet(3), known), Status.FAIL)
    assert found.nodes == ("node1",) and "Python differs" in found.message and "3.10" in found.message


def test_equal_nodes_pass_and_missing_facts_are_unknown() -> None:
    assert statuses(judge(ray_nodes_differ, JOB, fleet(2), versions("2.9.3", "2.9.3"))) == {"pass"}
    late = facts(*(fact(packages, f"node{index}", TIMEOUT, context=True) for index in range(2)))
    assert statuses(judge(ray_nodes_differ, JOB, fleet(2), late)) == {"unknown"}


def ray_fleet(*pythons: str) -> Fleet:
    records = [
        replace(record, python=python) for record, python in zip(fleet(len(pythons)).records, pythons, strict=True)
    ]
    return Fleet(tuple(records), "ray")


def test_on_a_running_cluster_the_workers_python_counts() -> None:
    found = one(judge(ray_nodes_differ, JOB, ray_fleet("3.11.7", "3.11.2", "3.12.1"), Facts()), Status.FAIL)
    assert found.nodes == ("node2",)
    assert statuses(judge(ray_nodes_differ, JOB, ray_fleet("3.11.7", "3.11.2"), Facts())) == {"pass"}


def cluster(*resources: dict[str, float], **labels: str) -> Fleet:
    nodes = tuple(ClusterNode(f"n{index}", each, labels=labels) for index, each in enumerate(resources))
    return replace(fleet(2), executor="ray", cluster=Cluster("ray", nodes))


EIGHT = {"CPU": 64.0, "GPU": 8.0}


@pytest.mark.parametrize("bundle", ["CPU 96, GPU 8", "GPU 16", "TPU 1"])
def test_a_bundle_that_fits_no_node_is_an_error(bundle: str) -> None:
    asked = job([claim("ray_bundle", bundle, "bundles=[...]")])
    found = one(judge(bundle_fits_no_node, asked, cluster(EIGHT, {"CPU": 128.0}), Facts()), Status.FAIL)
    assert found.severity is None
    assert f"requests {bundle} on one node" in found.message and "n0:" in found.message
    mild = judge(bundle_fits_no_node, asked, cluster(EIGHT, **{"ray.io/node-group": "w"}), Facts())
    assert one(mild, Status.FAIL).severity is Severity.WARNING


def test_a_bundle_that_fits_one_node_passes() -> None:
    asked = job([claim("ray_bundle", "CPU 8, GPU 1"), claim("ray_train_worker_gpus", 8.0)])
    assert statuses(judge(bundle_fits_no_node, asked, cluster(EIGHT), Facts())) == {"pass"}
    assert statuses(judge(bundle_fits_no_node, asked, cluster({"CPU": 64.0}), Facts())) == {"fail"}


def test_unknown_requests_are_not_judged() -> None:
    asked = job([claim("ray_bundle", Unresolved("given at run time"))])
    assert statuses(judge(bundle_fits_no_node, asked, cluster(EIGHT), Facts())) == {"unknown"}
    assert statuses(judge(bundle_fits_no_node, job(), cluster(EIGHT), Facts())) == {"not-applicable"}
    assert statuses(judge(bundle_fits_no_node, asked, fleet(2), Facts())) == {"not-applicable"}

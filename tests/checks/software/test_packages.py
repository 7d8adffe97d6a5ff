"""Packages and interpreters that differ from node to node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight_checks.probes.installed import Source, installed
from preflight_checks.software.packages import (
    interpreters_differ,
    package_set_differs,
    packages_overwrite_each_other,
    source_trees_differ,
)
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses
from tests.checks.test_context import GOOD

PACKAGES = {"numpy": "1.26.4", "tqdm": "4.66.1", "torch": "2.4.0"}


def node(name: str, packages: dict[str, str] | None = None, **changes: Any) -> FactRecord:
    held = {**PACKAGES, **(packages or {})}
    held = {name: version for name, version in held.items() if version}
    value = replace(GOOD, distributions=held, digest=str(sorted(held.items())), **changes)
    return fact(installed, name, value, context=True)


def test_one_node_needs_no_comparison() -> None:
    for check in (package_set_differs, interpreters_differ, source_trees_differ):
        assert plan(check, job(), fleet(1)) == []
        assert statuses(judge(check, job(), fleet(1), facts())) == {"not-applicable"}
    assert len(plan(packages_overwrite_each_other, job(), fleet(1))) == 1


def test_equal_nodes_pass() -> None:
    same = facts(*(node(f"node{index}") for index in range(3)))
    for check in (package_set_differs, interpreters_differ, source_trees_differ, packages_overwrite_each_other):
        assert statuses(judge(check, job(), fleet(3), same)) == {"pass"}


def test_lockstep_packages_are_warnings_and_others_information() -> None:
    odd = {"numpy": "2.1.0", "tqdm": "4.1.0", "torch": "2.1.0"}
    said = judge(package_set_differs, job(), fleet(3), facts(node("node0"), node("node1"), node("node2", odd)))
    warned, told = sorted((v for v in said if v.status is Status.FAIL), key=lambda v: v.severity is not None)
    assert warned.nodes == told.nodes == ("node2",)
    assert "numpy 2.1.0 on node2 (1.26.4)" in warned.message and "tqdm" not in warned.message
    assert told.severity is Severity.INFO and "tqdm" in told.message
    assert not any("torch" in verdict.message for verdict in said), "VER003 speaks of frameworks"


def test_a_package_missing_on_one_node_is_named() -> None:
    seen = facts(node("node0"), node("node1"), node("node2", {"numpy": ""}))
    assert "numpy none on node2 (1.26.4)" in one(judge(package_set_differs, job(), fleet(3), seen), Status.FAIL).message


def test_many_packages_of_one_node_are_one_finding() -> None:
    odd = {f"package-{index}": "1.0" for index in range(40)}
    found = one(judge(package_set_differs, job(), fleet(2), facts(node("node0"), node("node1", odd))), Status.FAIL)
    assert "40 packages differ" in found.message and "and 32 more" in found.message


def test_a_node_with_the_systems_python() -> None:
    seen = facts(node("node0"), node("node1"), node("node2", kind="system", resolved="/usr/bin/python3.9"))
    found = one(judge(interpreters_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "kind of environment" in found.message


def test_wheels_for_another_processor() -> None:
    odd = node("node2", machine="aarch64", abi="cpython-311-aarch64")
    found = one(judge(interpreters_differ, job(), fleet(3), facts(node("node0"), node("node1"), odd)), Status.FAIL)
    assert "aarch64" in found.message and found.severity is None


def test_a_different_path_is_information() -> None:
    seen = facts(node("node0"), node("node1"), node("node2", resolved="/opt/py/bin/python3.11"))
    assert one(judge(interpreters_differ, job(), fleet(3), seen), Status.FAIL).severity is Severity.INFO


def test_a_source_tree_at_another_commit() -> None:
    trees = [{"megatron-lm": Source("/srv/Megatron-LM", commit * 40)} for commit in "aab"]
    seen = facts(*(node(f"node{index}", sources=tree) for index, tree in enumerate(trees)))
    found = one(judge(source_trees_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "bbbbbbbbbbbb" in found.message


def test_two_distributions_of_the_same_files() -> None:
    both = node("node1", {"paddlepaddle": "2.6.1", "paddlepaddle-gpu": "2.6.1"})
    found = one(judge(packages_overwrite_each_other, job(), fleet(2), facts(node("node0"), both)), Status.FAIL)
    assert found.nodes == ("node1",) and "uninstall paddlepaddle paddlepaddle-gpu" in found.remedy
    twice = facts(node("node0", twice={"torch": ["2.3.0", "2.4.0"]}))
    assert (
        "torch 2.3.0 and torch 2.4.0"
        in one(judge(packages_overwrite_each_other, job(), fleet(1), twice), Status.FAIL).message
    )


def test_unknown_without_facts() -> None:
    blind = facts(*(fact(installed, f"node{index}", TIMEOUT, context=True) for index in range(2)))
    for check in (package_set_differs, interpreters_differ, source_trees_differ, packages_overwrite_each_other):
        assert statuses(judge(check, job(), fleet(2), blind)) == {"unknown"}


def test_a_large_fleet_lists_key_packages_and_a_digest() -> None:
    asked = plan(package_set_differs, job(), fleet(200))
    assert "numpy" in asked[0].params["only"] and plan(package_set_differs, job(), fleet(4))[0].params == {}
    digests = [fact(installed, f"node{i}", replace(GOOD, digest="ab"[i == 2]), context=True) for i in range(3)]
    found = one(judge(package_set_differs, job(), fleet(3), facts(*digests)), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is Severity.INFO

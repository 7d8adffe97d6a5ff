"""Nodes where ranks start slowly."""

from __future__ import annotations

from typing import Any

from preflight.model.findings import Status
from preflight.model.recording import FactRecord
from preflight_checks.context.entry import framework_comes_slowly, framework_imports_slowly
from preflight_checks.probes.start_cost import ImportCost, ReadCost, import_cost, read_cost
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses


def read(index: int, took_s: float, **more: Any) -> FactRecord:
    return fact(read_cost, f"node{index}", ReadCost("torch", "/env/torch", 300, took_s, **more), context=True)


def test_a_node_that_reads_files_slowly() -> None:
    seen = facts(read(0, 0.05), read(1, 0.06), read(2, 2.0))
    found = one(judge(framework_comes_slowly, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "2.0 s on node2" in found.message and "less than 0.06 s" in found.message
    busy = facts(read(0, 0.05), read(1, 0.06), read(2, 0.9))
    assert statuses(judge(framework_comes_slowly, job(), fleet(3), busy)) == {"pass"}
    alike = facts(*(read(i, 2.0) for i in range(3)))
    assert statuses(judge(framework_comes_slowly, job(), fleet(3), alike)) == {"pass"}


def test_a_busy_node_is_inconclusive() -> None:
    seen = facts(read(0, 0.05), read(1, 0.06), read(2, 2.0, load_per_core=4.0))
    said = judge(framework_comes_slowly, job(), fleet(3), seen)
    assert statuses(said) == {"unknown", "pass"} and "load 4.0" in one(said, Status.UNKNOWN).message


def test_reading_files_times_out() -> None:
    seen = facts(*(read(i, 2.6, cut=True) for i in range(2)))
    found = one(judge(framework_comes_slowly, job(), fleet(2), seen), Status.FAIL)
    assert len(found.nodes) == 2 and "every node" in found.message and "more than 2.6 s" in found.message
    assert statuses(judge(framework_comes_slowly, job(), fleet(1), facts(fact(read_cost, "node0", TIMEOUT)))) == {
        "unknown"
    }


def test_an_import_runs_only_in_the_pedantic_profile() -> None:
    assert framework_imports_slowly.meta.profile == "pedantic" and framework_comes_slowly.meta.profile == "default"
    assert len(plan(framework_imports_slowly, job(), fleet(2))) == 2

    def took(index: int, seconds: float) -> FactRecord:
        return fact(import_cost, f"node{index}", ImportCost("torch", seconds), context=True)

    seen = facts(took(0, 2.0), took(1, 2.2), took(2, 28.0))
    found = one(judge(framework_imports_slowly, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "28.0 s" in found.message
    assert statuses(judge(framework_imports_slowly, job(), fleet(2), facts(took(0, 2.0), took(1, 9.0)))) == {"pass"}
    assert statuses(judge(framework_imports_slowly, job(), fleet(2), facts(took(0, 2.0), took(1, 40.0)))) == {"fail"}
    assert statuses(judge(framework_imports_slowly, job(), fleet(1), facts(fact(import_cost, "node0", TIMEOUT)))) == {
        "unknown"
    }

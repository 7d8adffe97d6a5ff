"""Versions side by side: frameworks always, packages where they differ, and never more than a reader can use."""

from __future__ import annotations

from dataclasses import replace

from preflight.exhibit import Cell, Table
from preflight.recording import FactRecord
from preflight_checks.exhibits.versions import versions
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.installed import installed
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.probes.stack import Build, Stack, stack
from tests.checks.build import TIMEOUT, fact, facts, fleet, job
from tests.checks.test_context import GOOD
from tests.checks.test_packages import node as listed

JOB = job(backend="nccl")


def ranks(name: str, torch: str = "2.7.1", *, cuda: str = "12.8", nccl: str = "2.26.2") -> FactRecord:
    """What the ranks' interpreter has of the frameworks."""
    found = {"torch": torch, "nccl": nccl}
    return fact(packages, name, Packages("3.11.7", "/env/bin/python", found, Framework(torch, cuda)), context=True)


def shown(*records: FactRecord, count: int) -> Table:
    """The one table."""
    (found,) = versions(JOB, fleet(count), facts(*records))
    return found


def column(found: Table, name: str) -> list[Cell]:
    """The cells of one column, by node."""
    (place,) = [number for number, column in enumerate(found.columns) if column.name == name]
    return [row.cells[place] for row in found.rows]


def names(found: Table) -> list[str]:
    """The names of the columns."""
    return [column.name for column in found.columns]


def test_frameworks_are_listed_also_where_they_are_the_same() -> None:
    found = shown(ranks("node0"), ranks("node1"), count=2)
    assert names(found) == ["python", "torch", "CUDA runtime", "NCCL"]
    assert [cell.value for cell in found.rows[1].cells] == ["3.11.7", "2.7.1", "12.8", "2.26.2"]
    assert not [cell for row in found.rows for cell in row.cells if cell.odd]


def test_the_odd_framework_is_marked_and_one_that_is_missing_is_said_to_be() -> None:
    lacking = fact(packages, "node3", Packages("3.11.7", "/env/bin/python"), context=True)
    found = shown(ranks("node0"), ranks("node1"), ranks("node2", "2.3.0"), lacking, count=4)
    assert column(found, "torch") == [
        *(Cell("2.7.1"), Cell("2.7.1"), Cell("2.3.0", odd=True), Cell("not installed", odd=True)),
    ]
    assert column(found, "NCCL")[3] == Cell(None, why="it does not say")


def test_a_build_without_cuda_is_told_beside_others_and_passed_over_where_all_are_so() -> None:
    assert column(shown(ranks("node0"), ranks("node1"), ranks("node2", cuda=""), count=3), "CUDA runtime") == [
        *(Cell("12.8"), Cell("12.8"), Cell("none", odd=True)),
    ]
    assert "CUDA runtime" not in names(shown(ranks("node0", cuda=""), ranks("node1", cuda=""), count=2))


def test_the_installed_build_and_the_driver_are_told_where_the_job_needs_gpus() -> None:
    build = Build("torch", "2.7.1", "12.8", "", "9.7.1", "2.26.2")
    found = shown(
        *(fact(stack, f"node{i}", Stack("/env/bin/python", [build])) for i in range(2)),
        fact(stack, "node2", Stack("/env/bin/python", [replace(build, cudnn="8.9.7")])),
        *(fact(gpus, f"node{i}", Gpus("550.54.15" if i else "535.104.5", gpus=[Gpu(0)])) for i in range(3)),
        count=3,
    )
    assert names(found) == ["CUDA runtime", "cuDNN", "NCCL", "driver"]
    assert column(found, "cuDNN")[2] == Cell("8.9.7", odd=True)
    assert column(found, "driver")[0] == Cell("535.104.5", odd=True)


def test_packages_that_are_equal_everywhere_are_counted_and_not_listed() -> None:
    odd = {"numpy": "2.1.0", "tqdm": ""}
    found = shown(listed("node0"), listed("node1"), listed("node2", odd), count=4)
    assert names(found) == ["python", "numpy", "tqdm"], "first what ranks compute with in step"
    assert column(found, "numpy")[2] == Cell("2.1.0", odd=True)
    assert column(found, "tqdm")[2:] == [Cell("not installed", odd=True), Cell(None, why="not told")]
    assert found.note == (
        "0 further packages of 3 of 4 nodes are the same everywhere; what differs from most of them is marked."
    )
    same = shown(listed("node0"), listed("node1"), count=2)
    assert names(same) == ["python"] and same.note.startswith("2 further packages of 2 of 2 nodes are the same")


def test_an_environment_of_its_own_does_not_flood_the_table() -> None:
    odd = {f"package-{number:03}": "1.0" for number in range(400)}
    found = shown(listed("node0"), listed("node1"), listed("node2", odd), count=3)
    assert len(found.columns) == 1 + 24
    assert "376 more differ and are not listed" in found.note
    large = [listed(f"node{number}", odd if number == 7 else None) for number in range(1000)]
    assert len(shown(*large, count=1000).columns) == 1 + 8


def test_what_is_only_summed_up_is_said_to_differ() -> None:
    summed = [fact(installed, f"node{i}", replace(GOOD, distributions={}, digest=str(i // 2))) for i in range(3)]
    assert "some that nodes only summed up differ" in shown(*summed, count=3).note


def test_a_node_that_could_not_be_asked_has_the_reason_and_nothing_is_no_table() -> None:
    found = shown(ranks("node0"), fact(packages, "node1", TIMEOUT, context=True), count=2)
    assert column(found, "python")[1] == Cell(None, why=TIMEOUT.reason)
    assert list(versions(JOB, fleet(2), facts())) == []
    assert list(versions(JOB, fleet(1), facts(fact(packages, "node0", TIMEOUT)))) == []


def test_the_order_in_which_answers_came_changes_nothing() -> None:
    several = [ranks("node0"), listed("node0"), ranks("node1", "2.3.0"), listed("node1", {"numpy": "2.1.0"})]
    assert shown(*several, count=2) == shown(*reversed(several), count=2)

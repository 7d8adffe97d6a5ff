"""The table of versions: frameworks always, other packages where they differ, up to a limit."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.charts import Cell, Table
from preflight.model.recording import FactRecord
from preflight_checks.charts.node_tables import versions
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.installed import installed
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.probes.stack import Build, Stack, stack
from tests.checks.charts.test_node_tables import column
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job
from tests.checks.software.test_packages import node as listed
from tests.checks.test_context import GOOD

JOB = job(backend="nccl")


def ranks(name: str, torch: str = "2.7.1", *, cuda: str = "12.8", nccl: str = "2.26.2") -> FactRecord:
    """The facts about the frameworks in the ranks' interpreter."""
    found = {"torch": torch, "nccl": nccl}
    return fact(packages, name, Packages("3.11.7", "/env/bin/python", found, Framework(torch, cuda)), context=True)


def version_table(*records: FactRecord, count: int) -> Table:
    """The only table."""
    (found,) = versions(JOB, fleet(count), facts(*records))
    return found


def names(table: Table) -> list[str]:
    """The names of the columns."""
    return [column.name for column in table.columns]


def test_frameworks_are_always_listed() -> None:
    found = version_table(ranks("node0"), ranks("node1"), count=2)
    assert names(found) == ["python", "torch", "CUDA runtime", "NCCL"]
    assert [cell.value for cell in found.rows[1].cells] == ["3.11.7", "2.7.1", "12.8", "2.26.2"]
    assert not [cell for row in found.rows for cell in row.cells if cell.odd]


def test_odd_and_missing_frameworks_are_marked() -> None:
    lacking = fact(packages, "node3", Packages("3.11.7", "/env/bin/python"), context=True)
    found = version_table(ranks("node0"), ranks("node1"), ranks("node2", "2.3.0"), lacking, count=4)
    assert column(found, "torch") == [
        *(Cell("2.7.1"), Cell("2.7.1"), Cell("2.3.0", odd=True), Cell("not installed", odd=True)),
    ]
    assert column(found, "NCCL")[3] == Cell(None, why="not reported")


def test_a_build_without_cuda_is_listed_beside_builds_with_it() -> None:
    assert column(version_table(ranks("node0"), ranks("node1"), ranks("node2", cuda=""), count=3), "CUDA runtime") == [
        *(Cell("12.8"), Cell("12.8"), Cell("none", odd=True)),
    ]
    assert "CUDA runtime" not in names(version_table(ranks("node0", cuda=""), ranks("node1", cuda=""), count=2))


def test_build_and_driver_are_listed_for_gpu_jobs() -> None:
    build = Build("torch", "2.7.1", "12.8", "", "9.7.1", "2.26.2")
    found = version_table(
        *(fact(stack, f"node{i}", Stack("/env/bin/python", [build])) for i in range(2)),
        fact(stack, "node2", Stack("/env/bin/python", [replace(build, cudnn="8.9.7")])),
        *(fact(gpus, f"node{i}", Gpus("550.54.15" if i else "535.104.5", gpus=[Gpu(0)])) for i in range(3)),
        count=3,
    )
    assert names(found) == ["CUDA runtime", "cuDNN", "NCCL", "driver"]
    assert column(found, "cuDNN")[2] == Cell("8.9.7", odd=True)
    assert column(found, "driver")[0] == Cell("535.104.5", odd=True)


def test_equal_packages_are_only_counted() -> None:
    odd = {"numpy": "2.1.0", "tqdm": ""}
    found = version_table(listed("node0"), listed("node1"), listed("node2", odd), count=4)
    assert names(found) == ["python", "numpy", "tqdm"], "first what ranks compute with in step"
    assert column(found, "numpy")[2] == Cell("2.1.0", odd=True)
    assert column(found, "tqdm")[2:] == [Cell("not installed", odd=True), Cell(None, why="not reported")]
    assert found.note == (
        "0 further packages of 3 of 4 nodes are the same everywhere; versions that differ from most nodes are marked."
    )
    same = version_table(listed("node0"), listed("node1"), count=2)
    assert names(same) == ["python"] and same.note.startswith("2 further packages of 2 of 2 nodes are the same")


def test_a_node_with_its_own_environment_does_not_flood_the_table() -> None:
    odd = {f"package-{number:03}": "1.0" for number in range(400)}
    found = version_table(listed("node0"), listed("node1"), listed("node2", odd), count=3)
    assert len(found.columns) == 1 + 24
    assert "376 more differ and are not listed" in found.note
    large = [listed(f"node{number}", odd if number == 7 else None) for number in range(1000)]
    assert len(version_table(*large, count=1000).columns) == 1 + 8


def test_a_differing_digest_is_noted() -> None:
    summed = [fact(installed, f"node{i}", replace(GOOD, distributions={}, digest=str(i // 2))) for i in range(3)]
    assert "some that nodes report only as a digest differ" in version_table(*summed, count=3).note


def test_a_missing_fact_has_its_reason_and_no_facts_give_no_table() -> None:
    found = version_table(ranks("node0"), fact(packages, "node1", TIMEOUT, context=True), count=2)
    assert column(found, "python")[1] == Cell(None, why=TIMEOUT.reason)
    assert list(versions(JOB, fleet(2), facts())) == []
    assert list(versions(JOB, fleet(1), facts(fact(packages, "node0", TIMEOUT)))) == []


def test_the_order_of_facts_does_not_matter() -> None:
    several = [ranks("node0"), listed("node0"), ranks("node1", "2.3.0"), listed("node1", {"numpy": "2.1.0"})]
    assert version_table(*several, count=2) == version_table(*reversed(several), count=2)

"""The fault matrix: each row is injected into virtual nodes, and must be found by its check, on its node, in time, and
alone.

`python -m pytest tests/fault_matrix -k NAME` runs rows whose name holds NAME. Every recording is judged a second time,
without nodes, by the same call that runs the check.

The gate runs one row of each area and stage; all of them run with `--thorough`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preflight.plugins import registry
from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import Checked, WarmHead, check, give_shards, write_job
from tests.fault_matrix import (
    context,
    gpu_software,
    gpus,
    host,
    links,
    names,
    nics,
    rdma,
    servers,
    unreachable_nodes,
)

from .fault import EXPECTED, Fault

pytestmark = pytest.mark.thorough

#: Each subject has its own module of rows.
SUBJECTS = (unreachable_nodes, host, context, nics, gpus, links, rdma, gpu_software, names, servers)
ROWS = [row for subject in SUBJECTS for row in subject.FAULTS]
#: Rows that share a cluster run one after the other, those without GPUs first.
ORDERED = sorted(ROWS, key=lambda row: row.gpus)


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster for the row, with shards on every node."""
    row: Fault = request.getfixturevalue("row")
    chosen: Cluster = request.getfixturevalue("gpu_cluster" if row.gpus else "cluster")
    give_shards(chosen.nodes)
    yield chosen


@pytest.mark.parametrize("row", ORDERED, ids=lambda row: row.name)
def test_fault_is_found_on_its_node_and_alone(
    row: Fault, nodes: Cluster, head_of: Callable[[Cluster], WarmHead], tmp_path: Path
) -> None:
    job = write_job(tmp_path, row.job, row.script)
    for name, text in row.files.items():
        (tmp_path / name).write_text(text)
    until = "node" if row.stage == "open" else row.stage
    try:
        with row.inject(nodes):
            checked = check(nodes, job, "--until", until, *row.options, head=head_of(nodes))
    except faults.FaultUnavailable as error:
        pytest.skip(f"this machine cannot show it: {error}")
    if row.status == "fail":
        _check_finding(row, checked)
    else:
        _check_unknown(row, checked)
    assert checked.report["verdict"] == row.verdict, checked.text
    others = {f["id"] for f in checked.report["findings"] if f["severity"] == "error"} - {row.id, *row.follows}
    assert not others, f"{sorted(others)} beside {row.id} in\n{checked.text}"
    checked.require_stage(row.stage)
    _check_charts(row, checked)


def _check_charts(row: Fault, checked: Checked) -> None:
    """Charts can be built for every fault, and show bad links only for the named nodes."""
    assert checked.report["coverage"]["broken"] == []
    shown = {one["id"]: one for one in checked.report["charts"]}
    names = {one["node"]["name"] for one in checked.report["nodes"]}
    # With selected checks alone there may be nothing to show about nodes.
    if "--select" not in row.options:
        assert {row["subject"] for row in shown["nodes"]["rows"]} == names
    if row.id == "LNK001" and row.status == "fail":
        ways = shown["links.reach"]
        bad = [{ways["rows"][m["row"]], ways["columns"][m["column"]]} for m in ways["marks"] if m["state"] == "bad"]
        assert bad and all(ends & set(row.nodes) for ends in bad), ways


def _check_finding(row: Fault, checked: Checked) -> None:
    finding = checked.only(row.id)
    assert sorted(finding["nodes"]) == sorted(row.nodes), checked.text
    assert finding["severity"] == row.severity, checked.text
    _holds(row.words, json.dumps(finding, ensure_ascii=False))


def _check_unknown(row: Fault, checked: Checked) -> None:
    assert not checked.found(row.id), checked.text
    told = [o for o in checked.report["outcomes"] if o["id"] == row.id and o["status"] == "unknown"]
    assert told, f"{row.id} is expected to be unknown in\n{checked.text}"
    _holds((*row.nodes, *row.words), json.dumps(told, ensure_ascii=False))


def _holds(words: tuple[str, ...], text: str) -> None:
    for word in words:
        assert word in text, f"{word!r} is expected in {text}"


def test_every_fault_has_one_row() -> None:
    names = [row.name for row in ROWS]
    assert sorted(names) == sorted(EXPECTED)


#: Checks whose fault cannot be made on virtual nodes, or is made elsewhere: smoke runs and nodes without a job in
#: tests/end_to_end and tests/reference_trainer, allocations and clusters behind an API in tests/executors and
#: tests/end_to_end. Only their judgement is tested in tests/checks. A new check belongs here only if its fault needs
#: hardware that virtual nodes lack (GPUs, network cards with a speed) or a real training run.
WITHOUT_A_ROW = """
    ALC001 ALC002 ALC003 ALC005 ALC006 CKP013 CLK002 CPU003 DSK003 GPU026 KUB040 KUB041 LFT005 LIM005 LNK009
    MEM012 NET002 NET004 NIC002 NIC009 NIC011 NOD002 NOD004 NOD005 PCI001 PCI002 PKG002 PKG004 PLC002 PLC005
    RAY030 RAY031 RDM008 RDM010 RMT004 RMT005 RMT006 SMK001 SMK002 SMK003 SMK004 SMK005 SMK006 SMK007 SMK008
    SMK011 SMK012 SMK013 SMK014 SMK015 SMK016 SMK017 SMK021 SMK024 SMK025 SMK026 SMK027 SMK028 SMK029 SMK031
    SYS001 SYS002 SYS005 SYS006 VER009
"""


def test_every_check_has_a_row() -> None:
    """Fails when a check loses its last row, or a new check has none."""
    checks = {check.meta.id for check in registry.load(registry.CHECKS).items}
    assert checks - {row.id for row in ROWS} == {*WITHOUT_A_ROW.split()}

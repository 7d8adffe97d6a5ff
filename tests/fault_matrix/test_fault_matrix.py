"""The fault matrix: each row made on real virtual nodes, found by its check, at its node, in time, and alone.

`python -m pytest tests/fault_matrix -k NAME` runs rows whose name holds NAME. Every recording is judged a second time,
without nodes, by the same call that runs the check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, faults
from tests.end_to_end.running import NAMED_WITHIN_S, Checked, check, give_shards, write_job
from tests.end_to_end.warm import WarmHead

from . import context, gpu_software, gpus, host, links, names, nics, ports, rdma, reaching, schedulers, servers
from .fault import Fault

pytestmark = pytest.mark.cluster

#: A subject's rows stand in a module of its own.
SUBJECTS = (reaching, ports, host, context, nics, gpus, links, rdma, gpu_software, names, schedulers, servers)
ROWS = [row for subject in SUBJECTS for row in subject.FAULTS]
#: Rows that share a cluster run one after the other, those without GPUs first.
ORDERED = sorted(ROWS, key=lambda row: row.gpus)


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster that the row asks for, with shards on every node."""
    row: Fault = request.getfixturevalue("row")
    chosen: Cluster = request.getfixturevalue("gpu_cluster" if row.gpus else "cluster")
    give_shards(chosen.nodes)
    yield chosen


@pytest.mark.second_try
@pytest.mark.parametrize("row", ORDERED, ids=lambda row: row.name)
def test_a_fault_is_found_at_its_place_in_time_and_alone(
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
        _found(row, checked)
    else:
        _told_to_be_unknown(row, checked)
    assert checked.report["verdict"] == row.verdict, checked.text
    others = {f["id"] for f in checked.report["findings"] if f["severity"] == "error"} - {row.id, *row.follows}
    assert not others, f"{sorted(others)} beside {row.id} in\n{checked.text}"
    assert checked.stage_s(row.stage) < NAMED_WITHIN_S
    _shown(row, checked)


def _shown(row: Fault, checked: Checked) -> None:
    """Whatever is wrong, it can be shown; and the ways that are shown as bad are those of the nodes that are named."""
    assert checked.report["coverage"]["broken"] == []
    shown = {one["id"]: one for one in checked.report["exhibits"]}
    names = {one["node"]["name"] for one in checked.report["nodes"]}
    assert {row["subject"] for row in shown.get("nodes", {"rows": []})["rows"]} == names, (
        "of no nodes there is no table"
    )
    if row.id == "LNK001" and row.status == "fail":
        ways = shown["links.reach"]
        bad = [{ways["rows"][m["row"]], ways["columns"][m["column"]]} for m in ways["marks"] if m["state"] == "bad"]
        assert bad and all(ends & set(row.nodes) for ends in bad), ways


def _found(row: Fault, checked: Checked) -> None:
    finding = checked.one(row.id)
    assert sorted(finding["nodes"]) == sorted(row.nodes), checked.text
    assert finding["severity"] == row.severity, checked.text
    _holds(row.words, json.dumps(finding, ensure_ascii=False))


def _told_to_be_unknown(row: Fault, checked: Checked) -> None:
    assert not checked.found(row.id), checked.text
    told = [o for o in checked.report["outcomes"] if o["id"] == row.id and o["status"] == "unknown"]
    assert told, f"{row.id} is expected to be unknown in\n{checked.text}"
    _holds((*row.nodes, *row.words), json.dumps(told, ensure_ascii=False))


def _holds(words: tuple[str, ...], text: str) -> None:
    for word in words:
        assert word in text, f"{word!r} is expected in {text}"


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)

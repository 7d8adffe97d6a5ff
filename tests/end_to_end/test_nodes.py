"""`preflight nodes` over virtual nodes with GPUs: the node that differs is named, and the others are not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, Gpu, Gpus
from tests.cluster.faults.gpus import gpu_config
from tests.cluster.faults.services import sshd_stopped
from tests.end_to_end.head_command import HARD_LIMIT_S, ROOT, THIS_CHECKOUT, Checked, collect

pytestmark = pytest.mark.thorough


def examined(cluster: Cluster, folder: Path, *options: str) -> Checked:
    """Run the command on the head over all nodes, and judge its recording again here."""
    command = [
        *(sys.executable, "-m", "preflight", "nodes", "--hosts", "node[1-4]"),
        *("--save", str(folder / "recording.json"), "--output", f"json:{folder / 'report.json'}", "--output", "text"),
        *options,
    ]
    done = cluster.head.run(command, cwd=str(ROOT), env=THIS_CHECKOUT, timeout=HARD_LIMIT_S)
    return collect(folder / "nodes", done.returncode, done.stdout, done.stderr)


def errors(found: Checked) -> set[tuple[str, str]]:
    """Every error, with the node it names."""
    return {(f["id"], ",".join(f["nodes"])) for f in found.report["findings"] if f["severity"] == "error"}


def test_equal_nodes_are_a_go_with_all_pairs_of_links(gpu_cluster: Cluster, tmp_path: Path) -> None:
    found = examined(gpu_cluster, tmp_path, "--expect", "gpus=2", "--golden", "node1")
    assert found.code == 0, found.text
    passed: dict[str, Any] = {o["id"]: o for o in found.report["outcomes"] if o["status"] == "pass"}
    # GPUs, machines and links were all judged without a job.
    assert {"NOD001", "NOD005", "GPU011", "SYS001", "LNK001"} <= set(passed), sorted(passed)
    assert found.text.rstrip().endswith("; 4 nodes")


def test_a_node_with_a_missing_gpu_is_named(gpu_cluster: Cluster, tmp_path: Path) -> None:
    with gpu_config(gpu_cluster.node("node3"), Gpus((Gpu(),))):
        found = examined(gpu_cluster, tmp_path, "--until", "node", "--expect", "gpus=2")
    assert ("NOD005", "node3") in errors(found) and {node for _, node in errors(found)} == {"node3"}, found.text


def test_a_node_with_another_driver_differs_from_the_golden_one(gpu_cluster: Cluster, tmp_path: Path) -> None:
    with gpu_config(gpu_cluster.node("node2"), Gpus((Gpu(), Gpu()), driver_version="525.60.13")):
        found = examined(gpu_cluster, tmp_path, "--until", "node", "--golden", "node1")
    assert errors(found) == {("NOD005", "node2")}, found.text
    assert "driver of node2 is 525.60.13, but `--golden node1` requires 535.183.01" in found.only("NOD005")["message"]


def test_a_node_agrees_with_its_own_recording(gpu_cluster: Cluster, tmp_path: Path) -> None:
    examined(gpu_cluster, tmp_path, "--until", "node")
    (tmp_path / "recording.json").rename(tmp_path / "golden.json")
    found = examined(gpu_cluster, tmp_path, "--until", "node", "--golden", f"{tmp_path / 'golden.json'}:node4")
    assert errors(found) == set(), found.text
    judged = [o for o in json.loads((tmp_path / "report.json").read_text())["outcomes"] if o["id"] == "NOD005"]
    assert {o["status"] for o in judged} == {"pass"}


def test_a_silent_node_is_a_no_go_that_names_it_once(gpu_cluster: Cluster, tmp_path: Path) -> None:
    with sshd_stopped(gpu_cluster.node("node4")):
        found = examined(gpu_cluster, tmp_path, "--until", "node", "--expect", "gpus=2")
    assert errors(found) == {("NOD001", "node4")}, found.text

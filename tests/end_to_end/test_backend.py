"""A job that asks for NCCL fails by name on nodes without GPUs, and runs over Gloo only if the user says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.end_to_end.head_command import SCRIPT, Checked, check, give_shards, write_job

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

NCCL_SCRIPT = SCRIPT.replace("gloo", "nccl")


def smoked(cluster: Cluster, folder: Path, script: str, *options: str, python: str) -> Checked:
    """The check of a job; only its smoke run is judged."""
    give_shards(cluster.nodes)
    return check(cluster, write_job(folder, script=script), "--select", "SMK", *options, python=python)


def test_nccl_without_gpus_is_an_error_that_names_the_nodes(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    checked = smoked(cluster, tmp_path, NCCL_SCRIPT, python=warm)
    finding = checked.only("SMK008")
    assert finding["message"].startswith("the job asks for NCCL, and torch 2.")
    assert finding["message"].endswith("finds no GPU on node1, node2, node3, node4")
    assert finding["nodes"] == ["node1", "node2", "node3", "node4"]
    assert any(place["path"].endswith("train.py") for place in finding["locations"])
    assert checked.report["verdict"] == "no-go" and [f["id"] for f in checked.report["findings"]] == ["SMK008"]


def test_the_user_may_smoke_it_over_gloo(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    checked = smoked(cluster, tmp_path, NCCL_SCRIPT, "--smoke-backend", "gloo", python=warm)
    finding = checked.only("SMK008")
    assert finding["severity"] == "info" and "which was not tested" in finding["message"]
    assert checked.code == 0, checked.text
    (done,) = [o for o in checked.report["outcomes"] if o["id"] == "SMK001"]
    assert done["status"] == "pass" and "gloo" in done["subject"]


def test_a_job_that_falls_back_to_gloo_is_go(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    script = SCRIPT.replace('"gloo"', '"nccl" if torch.cuda.is_available() else "gloo"').replace(
        "import argparse\n", "import argparse\n\nimport torch\n"
    )
    give_shards(cluster.nodes)
    # Every check is made: none may ask for the GPUs that the job can do without.
    checked = check(cluster, write_job(tmp_path, script=script), python=warm)
    assert checked.code == 0, checked.text
    (used,) = [o for o in checked.report["outcomes"] if o["id"] == "SMK008"]
    assert used["status"] == "pass" and used["subject"].startswith("backend: Gloo")

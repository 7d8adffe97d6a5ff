"""`preflight smoke` on virtual nodes: a run without a job, and injected faults, each named."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from preflight import api
from tests.cluster import Cluster
from tests.end_to_end.head_command import HARD_LIMIT_S, ROOT, THIS_CHECKOUT

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


def smoke(
    cluster: Cluster, folder: Path, *options: str, python: str = sys.executable
) -> tuple[int, dict[str, Any], str]:
    """Run it in the head without a job: exit code, report, and text output."""
    saved, report = folder / "recording.json", folder / "report.json"
    words = [sys.executable, "-m", "preflight", "smoke", "--python", python, "--save", str(saved)]
    words += ["--output", f"json:{report}", "--output", "text", *options]
    done = cluster.head.run(words, cwd=str(ROOT), env=THIS_CHECKOUT, timeout=HARD_LIMIT_S)
    assert report.exists(), done.stdout + done.stderr
    assert api.judge(saved).exit_code == done.returncode, done.stdout
    return done.returncode, json.loads(report.read_text()), done.stdout


def subjects(report: dict[str, Any], id: str) -> list[str]:
    """The subjects that passed one check."""
    return [outcome["subject"] for outcome in report["outcomes"] if (outcome["id"], outcome["status"]) == (id, "pass")]


def test_servers_and_workers_on_named_nodes(cluster: Cluster, tmp_path: Path) -> None:
    sizes = ("--servers", "2", "--workers", "2", "--mode", "async")
    code, report, text = smoke(cluster, tmp_path, "--hosts", "node[1-4]", *sizes)
    assert code == 0, text
    assert subjects(report, "SMK021") == [
        "parameter-server run: servers 0, 1 and workers 0, 1 on 4 nodes (async, as set by --mode)"
    ]


def test_a_server_that_is_killed_by_an_injected_fault(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    sizes = ("--servers", "2", "--workers", "2", "--inject-fault", "kill:server1")
    code, report, text = smoke(cluster, tmp_path, "--hosts", "node[1-4]", *sizes, python=warm)
    assert code == 0, text
    (named,) = subjects(report, "SMK031")
    assert named.startswith("injected fault: server 1 on node3 was killed at "), named
    (finding,) = report["findings"]
    assert (finding["id"], finding["severity"], finding["nodes"]) == ("SMK021", "info", ["node3"])
    assert "FAULT INJECTED (kill:server1): the options of this run requested it" in text


def test_a_rank_that_is_stopped_by_an_injected_fault(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    code, report, text = smoke(cluster, tmp_path, "--hosts", "node[1-3]", "--inject-fault", "stop:rank1", python=warm)
    assert code == 0, text
    (named,) = subjects(report, "SMK031")
    assert named.startswith("injected fault: rank 1 on node2 was stopped at "), named

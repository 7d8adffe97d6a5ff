"""A server or worker that is killed or stopped is named with its node by the command, and again from its recording."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.end_to_end.head_command import (
    HARD_LIMIT_S,
    ROOT,
    SERVER_JOB,
    SERVER_SCRIPT,
    THIS_CHECKOUT,
    check,
    collect,
    command,
    give_shards,
    write_job,
)
from tests.end_to_end.training_processes import connected_at, process_on

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

#: Enough steps that the run is still active when the signal is sent.
MANY_STEPS = ("--steps", "20000", "--smoke-deadline", "90")


def test_a_healthy_run_is_go(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    checked = check(cluster, write_job(tmp_path, SERVER_JOB, SERVER_SCRIPT), "--smoke-deadline", "90")
    assert (checked.code, checked.report["verdict"]) == (0, "go"), checked.text
    passed = {outcome["id"] for outcome in checked.report["outcomes"] if outcome["status"] == "pass"}
    assert {f"SMK02{number}" for number in range(1, 8)} <= passed
    assert "servers 0, 1 and workers 0, 1 on 4 nodes (async, as in the job)" in checked.text


@pytest.mark.parametrize(("name", "said"), [("KILL", "was killed by SIGKILL"), ("STOP", "is stopped")])
@pytest.mark.parametrize(("node", "who"), [("node2", "server 1"), ("node3", "worker 0")])
def test_a_process_gets_a_signal(
    cluster: Cluster, warm: str, tmp_path: Path, node: str, who: str, name: str, said: str
) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path, SERVER_JOB, SERVER_SCRIPT)
    process = cluster.head.popen(command(job, *MANY_STEPS, python=warm), cwd=str(ROOT), env=THIS_CHECKOUT)
    try:
        pid = process_on(cluster.node(node), connected_at(6170, 2))
        os.kill(pid, signal.Signals[f"SIG{name}"])
        text, progress = process.communicate(timeout=HARD_LIMIT_S)
    except BaseException:
        process.kill_session()
        raise
    checked = collect(job, process.returncode, text, progress)
    finding = checked.only("SMK021")
    assert finding["nodes"] == [node]
    assert finding["message"].startswith(f"{who} on {node} {said}"), finding["message"]
    assert checked.code == 1
    reasons = [r.unavailable.reason for r in checked.recording.facts if r.request.group and r.unavailable is not None]
    assert sum(f"because of {who} on {node}" in reason for reason in reasons) == 3, reasons

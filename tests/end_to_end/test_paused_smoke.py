"""A rank or a head that is stopped for a few seconds in the middle of a smoke run is not a fault of any node."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest

from preflight.agent.process import children_of
from preflight.agent.wire import LEASE_S
from preflight.analysis.culprit import LIMITS
from tests.cluster import Cluster
from tests.end_to_end.head_command import (
    HARD_LIMIT_S,
    ROOT,
    THIS_CHECKOUT,
    Checked,
    collect,
    command,
    give_shards,
    write_job,
)
from tests.end_to_end.training_processes import process_on, with_sockets

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

#: Enough steps that the run is still active when a process is stopped, and few enough that it ends.
STEPS = ("--steps", "300", "--smoke-deadline", "150")


def run_with_pause(cluster: Cluster, tmp_path: Path, python: str, *, whose: str, seconds: float) -> Checked:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    process = cluster.head.popen(command(job, *STEPS, python=python), cwd=str(ROOT), env=THIS_CHECKOUT)
    try:
        rank = process_on(cluster.node("node3"), with_sockets(4))
        pid = rank if whose == "rank" else children_of(process.pid)[0]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for stopped in (pid, process.pid):  # nsenter stops with its child
            os.kill(stopped, signal.SIGCONT)
        text, progress = process.communicate(timeout=HARD_LIMIT_S + 60)
    except BaseException:
        process.kill_session()
        raise
    return collect(job, process.returncode, text, progress)


@pytest.mark.timeout(300)
def test_a_rank_that_returns_within_ten_seconds_is_no_fault(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    checked = run_with_pause(cluster, tmp_path, warm, whose="rank", seconds=LIMITS.stopped_s - 3)
    assert not [f for f in checked.report["findings"] if f["severity"] == "error"], checked.text
    assert "SMK001" in {o["id"] for o in checked.report["outcomes"] if o["status"] == "pass"}, checked.text


@pytest.mark.timeout(300)
def test_a_suspended_head_blames_no_node(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    checked = run_with_pause(cluster, tmp_path, warm, whose="head", seconds=4 * LEASE_S)
    assert not [f for f in checked.report["findings"] if f["severity"] == "error"], checked.text
    assert (checked.code, checked.report["verdict"]) == (3, "incomplete"), checked.text
    assert "preflight itself did not run for" in " ".join(checked.text.split()), checked.text
    assert checked.report["avoided_cost"] is None

"""A healthy smoke run on nodes with four times as many busy processes as processors gives no finding.

`PREFLIGHT_SOAK=50` runs each case so often; without it, once. A busy host may be reported, but no rank may be blamed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.end_to_end.head_command import JOB, SCRIPT, SERVER_JOB, SERVER_SCRIPT, check, give_shards, write_job
from tests.end_to_end.test_healthy_nodes import ROUNDS, busy

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

JOBS = {
    "collective": (JOB, SCRIPT),
    "servers-async": (SERVER_JOB, SERVER_SCRIPT),
    "servers-sync": (SERVER_JOB, SERVER_SCRIPT.replace("True", "False")),
}
#: In these cases a real interpreter imports torch on every busy node.
REAL = ("collective",)
OPTIONS = ("--keep-going", "--smoke-deadline", "150", "--select", "SMK")
#: Findings about the machine itself, which is really busy.
OF_THE_MACHINE = {"SYS002"}


@pytest.mark.timeout(180 * ROUNDS)
@pytest.mark.parametrize("kind", JOBS)
def test_healthy_run_on_busy_nodes_blames_no_rank(cluster: Cluster, warm: str, tmp_path: Path, kind: str) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path, *JOBS[kind])
    told: list[str] = []
    times: list[float] = []
    with busy(4 * (os.cpu_count() or 1)):
        for number in range(ROUNDS):
            began = time.monotonic()
            checked = check(cluster, job, *OPTIONS, python=sys.executable if kind in REAL else warm)
            times.append(time.monotonic() - began)
            print(f"{kind}: round {number + 1} of {ROUNDS} took {times[-1]:.0f} s", flush=True)
            told += [
                f"round {number}: {f['id']} {f['message']}"
                for f in checked.report["findings"]
                if f["severity"] != "info" and f["id"] not in OF_THE_MACHINE
            ]
            passed = {o["id"] for o in checked.report["outcomes"] if o["status"] == "pass"}
            if not passed & {"SMK001", "SMK021"}:
                unknown = [o["reason"] for o in checked.report["outcomes"] if o["status"] == "unknown"]
                told.append(f"round {number}: nothing passed; {unknown}")
    print(f"{kind}: {ROUNDS} rounds, each {min(times):.0f} to {max(times):.0f} s", flush=True)
    assert told == []

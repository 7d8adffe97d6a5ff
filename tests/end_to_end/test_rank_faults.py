"""A rank that is killed, stopped or never starts is named with its node, and again from the recording."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import (
    HARD_LIMIT_S,
    ROOT,
    THIS_CHECKOUT,
    check,
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

#: Enough steps that the run is still active when the fault is injected.
MANY_STEPS = ("--steps", "20000", "--smoke-deadline", "90")


def test_a_healthy_run_is_go(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    checked = check(cluster, write_job(tmp_path), "--smoke-deadline", "150")
    assert checked.code == 0, checked.text
    assert checked.report["verdict"] == "go"
    passed = {outcome["id"] for outcome in checked.report["outcomes"] if outcome["status"] == "pass"}
    assert {"LNK001", "LNK002", "SMK001", "SMK002", "SMK003"} <= passed
    assert not checked.found("SMK013") and not checked.found("SMK011"), checked.text
    told = [o["subject"] for o in checked.report["outcomes"] if o["id"] == "SMK013"]
    assert told == ["network cards of the ranks: eth0 on node1, node2, node3, node4"]
    (bandwidth,) = [o for o in checked.report["outcomes"] if o["id"] == "SMK011"]
    assert "all_reduce" in bandwidth["subject"] + bandwidth["reason"]
    assert checked.report["coverage"]["broken"] == []
    shown = {one["id"]: one for one in checked.report["charts"]}
    assert {mark["state"] for mark in shown["links.reach"]["marks"]} == {"ok"}
    assert len(shown["links.reach"]["marks"]) == 12 and len(shown["links.latency"]["marks"]) == 12
    lanes = shown["smoke.steps"]["lanes"]
    assert [(lane["subject"], lane["node"]) for lane in lanes] == [(f"rank {n}", f"node{n + 1}") for n in range(4)]
    assert all("training a few ordinary steps" in {span["phase"] for span in lane["spans"]} for lane in lanes)
    assert [bar["group"] for bar in shown["smoke.stragglers"]["bars"]] == ["node1", "node2", "node3", "node4"]


@pytest.mark.parametrize(("name", "kind"), [("KILL", "killed"), ("STOP", "stopped")])
def test_a_rank_gets_a_signal(cluster: Cluster, warm: str, tmp_path: Path, name: str, kind: str) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    process = cluster.head.popen(command(job, *MANY_STEPS, python=warm), cwd=str(ROOT), env=THIS_CHECKOUT)
    try:
        # Connections to the store, the head and two peers.
        pid = process_on(cluster.node("node3"), with_sockets(4))
        os.kill(pid, signal.Signals[f"SIG{name}"])
        text, progress = process.communicate(timeout=HARD_LIMIT_S)
    except BaseException:
        process.kill_session()
        raise
    checked = collect(job, process.returncode, text, progress)
    finding = checked.only("SMK001")
    assert finding["nodes"] == ["node3"]
    assert "rank 2" in finding["message"]
    assert kind in finding["message"].lower() or name in finding["message"]
    assert checked.code == 1


def test_a_rank_that_never_starts(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    # One interpreter path for all nodes; on node3 it does not exist.
    python = "/srv/data/python"
    for node in cluster.nodes:
        node.write_text(python, f'#!/bin/sh\nexec {warm} "$@"\n')
        node.must(["chmod", "755", python])
    with faults.missing_file(cluster.node("node3"), python):
        checked = check(cluster, job, "--keep-going", python=python)
    finding = checked.only("SMK001")
    assert finding["nodes"] == ["node3"]
    assert "rank 2" in finding["message"]
    assert checked.code == 1

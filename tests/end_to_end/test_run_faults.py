"""A rank that is killed, stopped or never starts is named with its node, and again from the recording."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from preflight import api
from preflight.agent.process import children_of
from preflight.agent.wire import LEASE_S
from preflight.analysis.culprit import LIMITS
from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import (
    HARD_LIMIT_S,
    ROOT,
    SCRIPT,
    SERVER_JOB,
    SERVER_SCRIPT,
    THIS_CHECKOUT,
    Checked,
    check,
    collect,
    command,
    give_shards,
    write_job,
)
from tests.end_to_end.training_processes import connected_at, process_on, with_sockets

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


# A server or worker that is killed or stopped is named with its node by the command, and again from its recording.


def test_server_faults_a_healthy_run_is_go(cluster: Cluster, tmp_path: Path) -> None:
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


# A rank or a head that is stopped for a few seconds in the middle of a smoke run is not a fault of any node.


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


# `preflight smoke` on virtual nodes: a run without a job, and injected faults, each named.


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


# A job that asks for NCCL fails by name on nodes without GPUs, and runs over Gloo only if the user says so.


NCCL_SCRIPT = SCRIPT.replace("gloo", "nccl")


def smoked(cluster: Cluster, folder: Path, script: str, *options: str, python: str) -> Checked:
    """The check of a job; only its smoke run is judged."""
    give_shards(cluster.nodes)
    return check(cluster, write_job(folder, script=script), "--select", "SMK", *options, python=python)


def test_nccl_without_gpus_is_an_error_that_names_the_nodes(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    checked = smoked(cluster, tmp_path, NCCL_SCRIPT, python=warm)
    finding = checked.only("SMK008")
    assert finding["message"].startswith("the job requests NCCL, and torch 2.")
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

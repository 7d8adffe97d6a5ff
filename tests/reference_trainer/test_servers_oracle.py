"""Faults of single updates between real servers and workers are found and attributed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.model.findings import Status
from preflight.model.recording import Facts
from preflight.plugins.authoring import Check, Verdict
from preflight_checks.smoke.server_results import (
    server_load_uneven,
    server_or_worker_did_not_finish,
    servers_trained_nothing,
    updates_lost_doubled_or_stale,
    wrong_server_result,
)
from preflight_checks.smoke.server_run import group_of, plan_servers
from reference_trainer.collective import steps
from reference_trainer.paddle.paddle_server import LOST
from tests.checks.check_builders import job, local_fleet
from tests.ports import free_ports
from tests.reference_trainer.live import Trial, live
from tests.waiting import until

pytestmark = pytest.mark.thorough

NODES = 4
RESULTS = (wrong_server_result, updates_lost_doubled_or_stale, server_load_uneven, servers_trained_nothing)


class FaultyRun:
    """A run of two servers and two workers with a fault in one of them, and its findings."""

    def __init__(self, mode: str, **fault: Any) -> None:
        pytest.importorskip("torch")
        endpoints = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
        self.job = job(ps_mode=True, ps_update_mode=mode, ps_server_endpoints=endpoints, ps_workers=2)
        requests = plan_servers(self.job, local_fleet(NODES), Facts())
        self.trial: Trial = live(
            [
                replace(r, params={**r.params, "steps": 8, "injected_fault": fault}, group=group_of(self.job))
                for r in requests
            ]
        )

    def messages_of(self, check: Check) -> list[Verdict]:
        return list(check.judge(self.job, local_fleet(NODES), self.trial.facts))

    def faults(self) -> dict[str, list[str]]:
        """The messages of all findings, by check."""
        found: dict[str, list[str]] = {}
        for check in (server_or_worker_did_not_finish, *RESULTS):
            for verdict in self.messages_of(check):
                if verdict.status is Status.FAIL:
                    found.setdefault(check.meta.name, []).append(verdict.message)
        return found


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_a_healthy_run_passes_every_check(mode: str) -> None:
    played = FaultyRun(mode)
    assert played.faults() == {}
    for check in (server_or_worker_did_not_finish, *RESULTS):
        assert {verdict.status for verdict in played.messages_of(check)} == {Status.PASS}, check.meta.name


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_bit_flipped_in_transit_is_found(mode: str) -> None:
    found = FaultyRun(mode, kind="flip", role="worker", index=1, step=2, server=0).faults()
    (message,) = found["wrong-server-result"]
    assert "elements are wrong" in message, message


def test_a_bit_that_flips_in_a_servers_memory_is_found() -> None:
    found = FaultyRun("async", kind="flip", role="server", index=0, step=2).faults()
    assert "wrong-server-result" in found


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("kind", "word"), [("loss", "never came"), ("double", "arrived twice")])
def test_lost_or_doubled_push_is_attributed_to_its_worker(mode: str, kind: str, word: str) -> None:
    found = FaultyRun(mode, kind=kind, role="worker", index=1, step=2, server=0).faults()
    messages = " ".join(found.get("updates-lost-doubled-or-stale", []))
    assert word in messages and "worker 1" in messages, found


def test_a_push_that_a_server_applies_twice_is_found() -> None:
    found = FaultyRun("async", kind="double", role="server", index=0, step=2).faults()
    assert "wrong-server-result" in found


# Whole runs over Paddle's own parameter servers on loopback, with a release that has them and one without.


ROOT = Path(__file__).parents[2]
WITH, WITHOUT = "2.6.2", "3.3.1"
_LIMIT_S = 150.0


class Run:
    """Servers and workers as processes, in the order of their numbers."""

    def __init__(self, version: str, servers: int, workers: int, **common: Any) -> None:
        interpreter = ROOT / ".venv" / "paddle" / version / "bin" / "python"
        if not interpreter.exists():
            pytest.skip(f"no paddlepaddle {version} in .venv/paddle (make test installs it)")
        endpoints = [f"127.0.0.1:{port}" for port in free_ports(servers)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.servers = servers
        for number in range(servers + workers):
            role = "server" if number < servers else "worker"
            index = number if number < servers else number - servers
            params = {
                "rank": number,
                "role": role,
                "index": index,
                "servers": servers,
                "workers": workers,
                "server_endpoints": endpoints,
                "endpoint": endpoints[index] if role == "server" else "",
                "geo_steps": 5,
                "steps": 20,
                "timeout_s": 120,
                "run_id": "one",
                "secret": "00" * 16,
                **common,
            }
            argument = json.dumps({"params": params, "role": role})
            program = [str(interpreter), str(Path(__file__).with_name("paddle_process.py")), argument]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            self.processes.append(
                subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
            )

    def answers(self) -> list[dict[str, Any]]:
        """The answer of each; empty for killed ones."""
        said = [process.communicate(timeout=_LIMIT_S)[0] for process in self.processes]
        return [json.loads(text) if text else {} for text in said]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        run.end()


@pytest.mark.parametrize(("mode", "servers"), [("async", 1), ("async", 2), ("geo", 1)])
def test_workers_learn_and_all_processes_end(runs: list[Run], mode: str, servers: int) -> None:
    runs.append(Run(WITH, servers, 2, mode=mode))
    answers = runs[0].answers()
    assert [answer.get("error") for answer in answers] == [None] * (servers + 2)
    reports = [answer["report"] for answer in answers]
    assert all(report["framework"] == f"paddle {WITH}" for report in reports)
    assert [seen["index"] for seen in reports[0]["seen"]] == [0, 1]
    workers = reports[servers:]
    assert all(report["unmoved"] == [] for report in workers)
    assert all(report["last_loss"] < steps.MAX_LOSS_RATIO * report["first_loss"] for report in workers)
    if mode == "async":
        assert len({report["digest"] for report in workers}) == 1 and workers[0]["digest"]
    assert {rank_events.JOINED, rank_events.SERVERS, rank_events.PARITY, rank_events.DONE} <= set(
        workers[0]["phase_at_s"]
    )


def test_lost_server_ends_the_workers(runs: list[Run]) -> None:
    run = Run(WITH, 1, 2, mode="async", steps=100_000)
    runs.append(run)
    # All workers have connected and Paddle serves: the run has started.
    _until_joined(run)
    run.processes[0].send_signal(signal.SIGKILL)
    answers = run.answers()
    for process, answer in zip(run.processes[1:], answers[1:], strict=True):
        assert process.returncode == LOST or "server 0 disconnected" in answer["error"]


def test_faults_are_injected_into_workers(runs: list[Run]) -> None:
    runs.append(Run(WITH, 1, 2, mode="async", injected_fault={"kind": "kill", "role": "worker", "index": 1, "step": 3}))
    server, _, lost = runs[0].answers()
    assert lost == {} and runs[0].processes[2].returncode == -signal.SIGKILL
    assert "worker 1 disconnected before the end" in server["error"]


def test_fault_is_injected_into_a_server(runs: list[Run]) -> None:
    runs.append(Run(WITH, 1, 1, mode="async", injected_fault={"kind": "kill", "role": "server", "index": 0, "step": 1}))
    _, worker = runs[0].answers()
    assert runs[0].processes[0].returncode == -signal.SIGKILL
    assert runs[0].processes[1].returncode == LOST or "server 0 disconnected" in worker["error"]


def test_missing_worker_is_named_before_paddle_serves(runs: list[Run]) -> None:
    runs.append(Run(WITH, 1, 2, mode="async", timeout_s=6))
    runs[0].processes.pop().kill()
    server, worker = runs[0].answers()
    assert "ranks [2] did not connect" in server["error"]
    waited = [event["waiting_for"] for event in worker["events"] if "waiting_for" in event]
    assert [2] in waited


def test_wheel_without_servers_is_reported_at_once(runs: list[Run]) -> None:
    runs.append(Run(WITHOUT, 1, 1, mode="async"))
    # The first process to import it reports the failure; the others end because of it.
    said = [answer.get("error", "") for answer in runs[0].answers()]
    assert any(f"paddle {WITHOUT} was built without the parameter server" in text for text in said), said


def _until_joined(run: Run) -> None:
    """Wait until each worker has two connections to its server's port: that of the handshake, and Paddle's own."""
    until(lambda: all(_threads(process.pid) > 8 for process in run.processes[1:]), within_s=_LIMIT_S)


def _threads(pid: int) -> int:
    """The number of threads of a process: only Paddle's client has many."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))

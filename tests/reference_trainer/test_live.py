"""Real collective ranks under real agents on this machine: a fault of one rank is named in time.

The cases are those in which torch and Paddle hang without a message."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.model.recording import Facts
from preflight.model.requests import Request, probe_name
from preflight_checks.smoke.server_run import plan_servers
from reference_trainer.collective.rank import rank as run_rank
from tests.checks.check_builders import job, local_fleet
from tests.ports import free_ports
from tests.reference_trainer.live import (
    LAUNCHED,
    SignalTrigger,
    Trial,
    live,
)

WORLD_SIZE = 2


MANY_STEPS = 5000


def ranks(count: int = WORLD_SIZE, *, odd: dict[int, dict[str, Any]] | None = None, steps: int = 6) -> list[Request]:
    """This many ranks, some of them with other parameters."""
    pytest.importorskip("torch")
    (port,) = free_ports(1)
    found = []
    for number in range(count):
        params: dict[str, Any] = {
            "rank": number,
            "world_size": count,
            "local_rank": 0,
            "local_world_size": 1,
            "master_addr": "127.0.0.1",
            "master_port": port,
            "backend": "gloo",
            "interface": "lo",
            "steps": steps,
            **(odd or {}).get(number, {}),
        }
        found.append(Request(probe_name(run_rank), f"node{number}", params, context=True, group="g"))
    return found


@pytest.mark.thorough
def test_a_healthy_run_ends_with_a_report_from_every_rank() -> None:
    trial = live(ranks(), fresh=True)
    assert (trial.culprit, trial.failures) == (None, [])
    assert [record.value["mismatches"] for record in trial.records] == [[], []]


# With two steps the known sums are collectives 1 to 11; the timed ones follow, mostly reported only by heartbeats.
@pytest.mark.thorough
@pytest.mark.parametrize(("steps", "number"), [(10, 4), (2, 15)])
def test_a_stuck_rank_is_named_with_its_stack(steps: int, number: int) -> None:
    trial = live(ranks(odd={1: {"injected_fault": {"stall_before": number}}}, steps=steps))
    found = trial.require_culprit()
    assert (found.rank, found.kind) == (1, "stuck") and f"did not enter collective {number}" in found.because
    assert not trial.cut_off
    assert any("_counted" in e.data["stacks"] for e in trial.events if "stacks" in e.data and e.node == found.node)


def contradiction(requests: list[Request]) -> Trial:
    """A run that ends as soon as all ranks have reported their identity."""
    trial = live(requests)
    assert not trial.cut_off
    return trial


@pytest.mark.thorough
@pytest.mark.parametrize("absent", [0, 1])
def test_rank_that_never_starts_is_named_at_once(absent: int) -> None:
    found = contradiction([request for request in ranks() if request.params["rank"] != absent]).require_culprit()
    assert (found.rank, found.kind) == (None, "missing")
    assert f"no process was started as rank {absent}: all were configured with 2 ranks" in found.because


@pytest.mark.thorough
def test_a_rank_with_another_port_of_the_master() -> None:
    found = contradiction(ranks(3, odd={1: {"master_port": 9}})).require_culprit()
    assert (found.rank, found.kind) == (1, "mismatch") and "the master at 127.0.0.1:9," in found.because


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, 1])
def test_two_ranks_with_one_number(number: int) -> None:
    found = contradiction(ranks(odd={1 - number: {"rank": number}})).require_culprit()
    assert found.kind == "mismatch"
    assert f"are both rank {number}; no process is rank {1 - number}" in found.because
    assert f"node{1 - number}-{1 - number}" in found.because and f"node{number}-{number}" in found.because


@pytest.mark.thorough
def test_ranks_that_disagree_on_their_number() -> None:
    found = contradiction(ranks(odd={1: {"world_size": 3}})).require_culprit()
    assert (found.rank, found.kind) == (1, "mismatch")
    assert "was configured with 3 ranks, but rank 0 with 2 ranks" in found.because


@pytest.mark.thorough
def test_a_surplus_rank_is_named() -> None:
    found = contradiction(ranks(3, odd={number: {"world_size": 2} for number in range(3)})).require_culprit()
    assert (found.rank, found.kind) == (2, "mismatch") and "is one too many" in found.because


PHASES = {"start": LAUNCHED, "middle": rank_events.EXACT, "end": rank_events.PARITY}


@pytest.mark.thorough
@pytest.mark.parametrize("when", PHASES)
@pytest.mark.parametrize("trigger", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_is_killed_or_stopped_is_named(number: int, when: str, trigger: signal.Signals) -> None:
    requests = ranks(steps=MANY_STEPS if when == "middle" else 6)
    node = f"node{number}-{number}"
    trial = live(requests, trigger=SignalTrigger(node, trigger, PHASES[when]))
    assert trial.signal_sent_s, "it was through before the signal came"
    found = trial.require_culprit()
    assert (found.name, found.node) == (f"rank {number}", node), found
    assert found.kind == ("dead" if trigger is signal.SIGKILL else "stopped"), found
    assert not trial.cut_off
    others = [failure for failure in trial.failures if not failure.startswith(node)]
    assert all(f"because of {found.title}" in failure for failure in others), trial.failures


# Real servers and workers under real agents on this machine: a fault of one of them is named in time.


SERVERS, WORKERS = 2, 2


#: Nodes of servers 0 and 1 and of workers 0 and 1: each process is alone on one.
SERVER_0, SERVER_1, WORKER_0, WORKER_1 = range(4)


#: Enough steps that no process is finished when a signal is sent.
SERVERS_LIVE_MANY_STEPS = 4000


def planned(mode: str = "async", *, steps: int = 6, **more: Any) -> list[Request]:
    """The plan of a job with two servers and two workers, with one machine as four nodes."""
    pytest.importorskip("torch")
    endpoints = tuple(f"127.0.0.1:{port}" for port in free_ports(SERVERS))
    told = job(ps_mode=True, ps_update_mode=mode, ps_server_endpoints=endpoints, ps_workers=WORKERS)
    found = [*plan_servers(told, local_fleet(4), Facts())]
    return [replace(request, params={**request.params, "steps": steps, **more}) for request in found]


def with_changes(requests: Sequence[Request], number: int, **changes: Any) -> list[Request]:
    """The same requests, but with other parameters for one process."""
    return [
        replace(request, params={**request.params, **changes}) if request.params["rank"] == number else request
        for request in requests
    ]


def without(requests: Sequence[Request], numbers: Iterable[int]) -> list[Request]:
    """The same requests, but some processes are never started."""
    return [request for request in requests if request.params["rank"] not in numbers]


def node(requests: Sequence[Request], number: int) -> str:
    """The node of a process."""
    return next(f"{r.node}-{place}" for place, r in enumerate(requests) if r.params["rank"] == number)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["sync", "async", "geo", "ssp"])
def test_healthy_run_ends_with_a_report_from_every_process(mode: str) -> None:
    # Jobs have no name for bounded staleness.
    requests = [replace(r, params={**r.params, "mode": mode, "staleness": 2}) for r in planned()]
    trial = live(requests, fresh=mode in ("sync", "async"))
    assert (trial.culprit, trial.failures) == (None, [])
    assert [record.value["mismatches"] for record in trial.records] == [[]] * 4
    ends = {event.data["to"] for event in trial.events if event.data.get("result") == "open"}
    assert ends == {SERVER_0, SERVER_1}


@pytest.mark.thorough
def test_server_that_never_starts_is_named_at_once() -> None:
    found = live(without(planned(), [SERVER_1])).require_culprit()
    assert (found.rank, found.kind) == (None, "missing")
    assert found.because.startswith("no process was started as server 1: all were configured with 2 servers")


@pytest.mark.thorough
def test_worker_that_never_starts_is_named_at_once() -> None:
    found = live(without(planned(), [WORKER_1])).require_culprit()
    assert found.because.startswith("no process was started as worker 1: all were configured with 2 workers")


def servers_live_contradiction(requests: Sequence[Request]) -> Trial:
    """A run that ends as soon as every process has reported its identity."""
    trial = live(requests)
    assert trial.require_culprit().kind == "mismatch", trial.require_culprit()
    assert not trial.cut_off
    return trial


@pytest.mark.thorough
def test_a_worker_with_another_port_for_a_server() -> None:
    requests = planned()
    endpoints = [requests[0].params["server_endpoints"][0], "127.0.0.1:9"]
    found = servers_live_contradiction(with_changes(requests, WORKER_1, server_endpoints=endpoints)).require_culprit()
    assert found.name == "worker 1" and found.node == node(requests, WORKER_1)
    assert "was configured with the servers" in found.because and "127.0.0.1:9," in found.because


@pytest.mark.thorough
@pytest.mark.parametrize("index", [0, 1])
def test_two_workers_with_one_index(index: int) -> None:
    other = WORKER_1 if index == 0 else WORKER_0
    found = servers_live_contradiction(with_changes(planned(), other, index=index)).require_culprit()
    assert {found.rank, *found.also} == {WORKER_0, WORKER_1}
    assert f"are both worker {index}; no process is worker {1 - index}" in found.because


@pytest.mark.thorough
def test_two_servers_with_one_endpoint() -> None:
    requests = planned()
    found = servers_live_contradiction(
        with_changes(requests, SERVER_1, index=0, endpoint=requests[0].params["endpoint"])
    ).require_culprit()
    assert {found.rank, *found.also} == {SERVER_0, SERVER_1}


@pytest.mark.thorough
def test_workers_that_disagree_on_their_number() -> None:
    found = servers_live_contradiction(with_changes(planned(), WORKER_1, workers=3)).require_culprit()
    assert found.rank == WORKER_1 and "was configured with 3 workers" in found.because


@pytest.mark.thorough
def test_a_role_that_does_not_exist() -> None:
    found = servers_live_contradiction(with_changes(planned(), SERVER_1, role="SERVERS")).require_culprit()
    assert found.rank == SERVER_1 and "the role 'SERVERS'" in found.because


@pytest.mark.thorough
def test_server_endpoint_missing_from_the_list() -> None:
    found = servers_live_contradiction(with_changes(planned(), SERVER_1, endpoint="127.0.0.9:60783")).require_culprit()
    assert found.rank == SERVER_1 and "127.0.0.9:60783, which is not in its own list" in found.because


@pytest.mark.thorough
def test_a_server_whose_address_is_another_hosts() -> None:
    requests = planned()
    endpoints = [requests[0].params["endpoint"], "192.0.2.1:6170"]
    everybody = [replace(r, params={**r.params, "server_endpoints": endpoints}) for r in requests]
    found = servers_live_contradiction(with_changes(everybody, SERVER_1, endpoint="192.0.2.1:6170")).require_culprit()
    assert found.rank == SERVER_1 and "192.0.2.1 is not an address of this host" in found.because


@pytest.mark.thorough
def test_an_index_that_is_empty() -> None:
    found = servers_live_contradiction(with_changes(planned(), WORKER_0, index="")).require_culprit()
    assert found.rank == WORKER_0 and "the index '', which is not a number" in found.because


@pytest.mark.thorough
def test_a_model_of_another_shape_names_the_first_tensor() -> None:
    ours = {"dense": [["hidden.weight", [256, 784]], ["hidden.bias", [256]]], "tables": []}
    theirs = {"dense": [["hidden.weight", [128, 784]], ["hidden.bias", [128]]], "tables": []}
    found = servers_live_contradiction(with_changes(planned(model=ours), WORKER_1, model=theirs)).require_culprit()
    assert found.rank == WORKER_1
    assert "hidden.weight [128, 784] float32 here and hidden.weight [256, 784] float32" in found.because


@pytest.mark.thorough
def test_another_mode() -> None:
    found = servers_live_contradiction(with_changes(planned(), WORKER_1, mode="sync")).require_culprit()
    assert {found.rank, *found.also} >= {WORKER_1} and "the mode sync" in found.because


@pytest.mark.thorough
def test_port_held_by_another_process() -> None:
    import socket

    requests = planned()
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", int(requests[SERVER_1].params["endpoint"].rpartition(":")[2])))
        holder.listen()
        found = live(requests).require_culprit()
    assert (found.rank, found.kind) == (SERVER_1, "endpoint") and "must serve, but cannot listen" in found.because


SERVERS_LIVE_PHASES = {"start": LAUNCHED, "middle": rank_events.EXACT, "end": rank_events.SERVERS}


@pytest.mark.thorough
@pytest.mark.parametrize("when", SERVERS_LIVE_PHASES)
@pytest.mark.parametrize("number", [SERVER_1, WORKER_1], ids=["server", "worker"])
@pytest.mark.parametrize("trigger", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_that_is_killed_or_stopped_is_named(number: int, when: str, trigger: signal.Signals) -> None:
    requests = planned(steps=SERVERS_LIVE_MANY_STEPS if when == "middle" else 6)
    for _ in range(3):
        trial = live(requests, trigger=SignalTrigger(node(requests, number), trigger, SERVERS_LIVE_PHASES[when]))
        # On a busy machine the last phase may be over when the signal is sent: then no process was affected.
        if trial.signal_sent_s and trial.failures:
            break
    assert trial.signal_sent_s, "it was through before the signal came"
    found = trial.require_culprit()
    name = "server 1" if number == SERVER_1 else "worker 1"
    assert (found.rank, found.name, found.node) == (number, name, node(requests, number)), found
    assert found.kind == ("dead" if trigger is signal.SIGKILL else "stopped"), found
    assert ("SIGKILL" if trigger is signal.SIGKILL else "state T") in found.because
    assert not trial.cut_off
    others = [failure for failure in trial.failures if not failure.startswith(found.node)]
    assert all(f"because of {found.title}" in failure for failure in others), trial.failures


@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "number"), [("async", WORKER_1), ("sync", WORKER_1), ("async", SERVER_1)])
def test_a_process_that_stalls_is_named_with_its_stack(mode: str, number: int) -> None:
    fault = {"kind": "stall", "role": "server" if number == SERVER_1 else "worker", "index": 1, "step": 3}
    trial = live(planned(mode, steps=20, injected_fault=fault))
    found = trial.require_culprit()
    assert (found.rank, found.kind) == (number, "stuck"), found
    assert any(event.data.get("event") == rank_events.FAULT_INJECTED for event in trial.events)
    assert not trial.cut_off
    assert any("stacks" in event.data for event in trial.events)


# Stages of a pipeline under real agents: the stalled one is named, whichever stages wait for each other.


@pytest.mark.thorough
@pytest.mark.parametrize(("stuck", "schedule"), [(0, "1f1b"), (1, "gpipe")])
def test_stalled_stage_is_named(stuck: int, schedule: str) -> None:
    wanted = {"pipeline": {"stages": 3, "microbatches": 4, "schedule": schedule}}
    odd = {r: {**wanted, **({"injected_fault": {"stall_microbatch": 2}} if r == stuck else {})} for r in range(3)}
    found = live(ranks(3, odd=odd)).require_culprit()
    assert (found.rank, found.kind) == (stuck, "stuck")
    assert set(found.waiting) == {0, 1, 2} - {stuck}


# A rank started by a launcher ends cleanly, whatever its threads are doing.


#: The program with nine watchdog threads without a pause, so that some are inside torch at any time.
WATCHED = """
import runpy, threading
import reference_trainer.common.watchdog as watch

watch.POLL_S = 0.0
start = watch.RankWatchdog.start

def nine_times(self):
    start(self)
    for _ in range(8):
        threading.Thread(target=self._run, daemon=True).start()

watch.RankWatchdog.start = nine_times
runpy.run_module("reference_trainer", run_name="__main__")
"""


@pytest.mark.thorough
def test_threads_inside_torch_do_not_abort_a_finished_rank() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED],
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.returncode, done.stderr.count("terminate called")) == (0, 0), done.stderr
    assert "preflight smoke: GO: 1 rank on 1 host" in done.stdout


@pytest.mark.thorough
def test_process_without_a_launcher_reports_it() -> None:
    environment = {key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH", "HOME")}
    done = subprocess.run(
        [sys.executable, "-m", "reference_trainer"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "preflight smoke: NO-GO: " in done.stdout


# An uncaught C++ exception ends the process only after its other threads had time.


PROGRAM = """
import ctypes, os, sys, threading, time
from reference_trainer.paddle.collective_rank import delay_abort
if sys.argv[1] != "none":
    assert delay_abort(float(sys.argv[1]))
threading.Timer(0.5, lambda: (print("named", flush=True), os._exit(7))).start()
ctypes.PyDLL("libstdc++.so.6")._ZSt9terminatev()
"""


@pytest.mark.parametrize(
    ("delay", "code", "said"), [("none", -signal.SIGABRT, ""), ("20", 7, "named\n"), ("0.01", -signal.SIGABRT, "")]
)
def test_a_thread_may_end_the_process_before_it_aborts(delay: str, code: int, said: str) -> None:
    try:
        ctypes.CDLL("libstdc++.so.6")
    except OSError:
        pytest.skip("this machine has no shared library of C++")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, delay], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (code, said), done.stderr

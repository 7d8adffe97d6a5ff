"""Real servers and workers under real agents on this machine: a fault of one of them is named in time.

The cases are those in which Paddle's own servers and trainers hang without a message.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.model.recording import Facts
from preflight.model.requests import Request
from preflight_checks.smoke.server_run import plan_servers
from tests.checks.check_builders import job, local_fleet
from tests.ports import free_ports
from tests.reference_trainer.live import (
    LAUNCHED,
    SignalTrigger,
    Trial,
    live,
)

pytestmark = pytest.mark.thorough

SERVERS, WORKERS = 2, 2
#: Nodes of servers 0 and 1 and of workers 0 and 1: each process is alone on one.
SERVER_0, SERVER_1, WORKER_0, WORKER_1 = range(4)
#: Enough steps that no process is finished when a signal is sent.
MANY_STEPS = 4000


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


@pytest.mark.parametrize("mode", ["sync", "async", "geo", "ssp"])
def test_healthy_run_ends_with_a_report_from_every_process(mode: str) -> None:
    # Jobs have no name for bounded staleness.
    requests = [replace(r, params={**r.params, "mode": mode, "staleness": 2}) for r in planned()]
    trial = live(requests, fresh=mode in ("sync", "async"))
    assert (trial.culprit, trial.failures) == (None, [])
    assert [record.value["mismatches"] for record in trial.records] == [[]] * 4
    ends = {event.data["to"] for event in trial.events if event.data.get("result") == "open"}
    assert ends == {SERVER_0, SERVER_1}


def test_server_that_never_starts_is_named_at_once() -> None:
    found = live(without(planned(), [SERVER_1])).require_culprit()
    assert (found.rank, found.kind) == (None, "missing")
    assert found.because.startswith("no process was started as server 1: all were configured with 2 servers")


def test_worker_that_never_starts_is_named_at_once() -> None:
    found = live(without(planned(), [WORKER_1])).require_culprit()
    assert found.because.startswith("no process was started as worker 1: all were configured with 2 workers")


def contradiction(requests: Sequence[Request]) -> Trial:
    """A run that ends as soon as every process has reported its identity."""
    trial = live(requests)
    assert trial.require_culprit().kind == "mismatch", trial.require_culprit()
    assert not trial.cut_off
    return trial


def test_a_worker_with_another_port_for_a_server() -> None:
    requests = planned()
    endpoints = [requests[0].params["server_endpoints"][0], "127.0.0.1:9"]
    found = contradiction(with_changes(requests, WORKER_1, server_endpoints=endpoints)).require_culprit()
    assert found.name == "worker 1" and found.node == node(requests, WORKER_1)
    assert "was configured with the servers" in found.because and "127.0.0.1:9," in found.because


@pytest.mark.parametrize("index", [0, 1])
def test_two_workers_with_one_index(index: int) -> None:
    other = WORKER_1 if index == 0 else WORKER_0
    found = contradiction(with_changes(planned(), other, index=index)).require_culprit()
    assert {found.rank, *found.also} == {WORKER_0, WORKER_1}
    assert f"are both worker {index}; no process is worker {1 - index}" in found.because


def test_two_servers_with_one_endpoint() -> None:
    requests = planned()
    found = contradiction(
        with_changes(requests, SERVER_1, index=0, endpoint=requests[0].params["endpoint"])
    ).require_culprit()
    assert {found.rank, *found.also} == {SERVER_0, SERVER_1}


def test_workers_that_disagree_on_their_number() -> None:
    found = contradiction(with_changes(planned(), WORKER_1, workers=3)).require_culprit()
    assert found.rank == WORKER_1 and "was configured with 3 workers" in found.because


def test_a_role_that_does_not_exist() -> None:
    found = contradiction(with_changes(planned(), SERVER_1, role="SERVERS")).require_culprit()
    assert found.rank == SERVER_1 and "the role 'SERVERS'" in found.because


def test_server_endpoint_missing_from_the_list() -> None:
    found = contradiction(with_changes(planned(), SERVER_1, endpoint="127.0.0.9:60783")).require_culprit()
    assert found.rank == SERVER_1 and "127.0.0.9:60783, which is not in its own list" in found.because


def test_a_server_whose_address_is_another_hosts() -> None:
    requests = planned()
    endpoints = [requests[0].params["endpoint"], "192.0.2.1:6170"]
    everybody = [replace(r, params={**r.params, "server_endpoints": endpoints}) for r in requests]
    found = contradiction(with_changes(everybody, SERVER_1, endpoint="192.0.2.1:6170")).require_culprit()
    assert found.rank == SERVER_1 and "192.0.2.1 is not an address of this host" in found.because


def test_an_index_that_is_empty() -> None:
    found = contradiction(with_changes(planned(), WORKER_0, index="")).require_culprit()
    assert found.rank == WORKER_0 and "the index '', which is not a number" in found.because


def test_a_model_of_another_shape_names_the_first_tensor() -> None:
    ours = {"dense": [["hidden.weight", [256, 784]], ["hidden.bias", [256]]], "tables": []}
    theirs = {"dense": [["hidden.weight", [128, 784]], ["hidden.bias", [128]]], "tables": []}
    found = contradiction(with_changes(planned(model=ours), WORKER_1, model=theirs)).require_culprit()
    assert found.rank == WORKER_1
    assert "hidden.weight [128, 784] float32 here and hidden.weight [256, 784] float32" in found.because


def test_another_mode() -> None:
    found = contradiction(with_changes(planned(), WORKER_1, mode="sync")).require_culprit()
    assert {found.rank, *found.also} >= {WORKER_1} and "the mode sync" in found.because


def test_port_held_by_another_process() -> None:
    import socket

    requests = planned()
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", int(requests[SERVER_1].params["endpoint"].rpartition(":")[2])))
        holder.listen()
        found = live(requests).require_culprit()
    assert (found.rank, found.kind) == (SERVER_1, "endpoint") and "must serve, but cannot listen" in found.because


PHASES = {"start": LAUNCHED, "middle": rank_events.EXACT, "end": rank_events.SERVERS}


@pytest.mark.parametrize("when", PHASES)
@pytest.mark.parametrize("number", [SERVER_1, WORKER_1], ids=["server", "worker"])
@pytest.mark.parametrize("trigger", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_that_is_killed_or_stopped_is_named(number: int, when: str, trigger: signal.Signals) -> None:
    requests = planned(steps=MANY_STEPS if when == "middle" else 6)
    for _ in range(3):
        trial = live(requests, trigger=SignalTrigger(node(requests, number), trigger, PHASES[when]))
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


@pytest.mark.parametrize(("mode", "number"), [("async", WORKER_1), ("sync", WORKER_1), ("async", SERVER_1)])
def test_a_process_that_stalls_is_named_with_its_stack(mode: str, number: int) -> None:
    fault = {"kind": "stall", "role": "server" if number == SERVER_1 else "worker", "index": 1, "step": 3}
    trial = live(planned(mode, steps=20, injected_fault=fault))
    found = trial.require_culprit()
    assert (found.rank, found.kind) == (number, "stuck"), found
    assert any(event.data.get("event") == rank_events.FAULT_INJECTED for event in trial.events)
    assert not trial.cut_off
    assert any("stacks" in event.data for event in trial.events)

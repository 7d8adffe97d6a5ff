"""Every fault is found and attributed to its shard, element and process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from preflight.agent import rank_events
from tests.reference_trainer.ps.conftest import Answers

pytestmark = pytest.mark.thorough

PushParts = Callable[..., Answers]
MODES = ("sync", "async", "ssp", "geo")
MODEL = {"dense": [["a", [30, 20]], ["b", [40]]], "tables": [["t", 211, 4]]}


def with_fault(parts: PushParts, member: str, fault: dict[str, Any], **params: Any) -> Answers:
    """A run of two servers and three workers, one of which injects a fault."""
    given = {"model": MODEL, "slice_bytes": 1024, "steps": 6, "geo_steps": 2, **params}
    return parts(2, 3, overrides={member: {"injected_fault": fault}}, **given)


def mismatches(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All mismatches in these reports."""
    return [mismatch for answer in answers for mismatch in answer["report"]["mismatches"]]


@pytest.mark.parametrize("mode", MODES)
def test_lost_push_is_attributed_to_worker_server_and_element(parts: PushParts, mode: str) -> None:
    answers = with_fault(parts, "worker 1", {"kind": "loss", "server": 1, "step": 1}, mode=mode)
    servers, workers = answers.reports
    assert servers[0]["violations"] == []
    assert servers[1]["violations"] == ["push 1 of worker 1 to server 1 (exact phase) never came"]
    for worker in workers:
        wrong = [m for m in worker["mismatches"] if "shard" in m["operation"]]
        assert wrong and all("server 1" in m["operation"] for m in worker["mismatches"])
        assert wrong[0]["contributions"] == {"1": 0}
        assert "element " in wrong[0]["explanation"] and "worker 1" in wrong[0]["explanation"]
        rows = [m for m in worker["mismatches"] if m["operation"].startswith("rows ")]
        assert rows and "of table t: " in rows[0]["explanation"]


@pytest.mark.parametrize("mode", MODES)
def test_duplicate_push_is_applied_once(parts: PushParts, mode: str) -> None:
    answers = with_fault(parts, "worker 2", {"kind": "double", "server": 0, "step": 1}, mode=mode)
    servers, _ = answers.reports
    assert servers[1]["violations"] == []
    assert servers[0]["violations"] and all("arrived twice" in said for said in servers[0]["violations"])
    assert all("push 1 of worker 2 to server 0" in said for said in servers[0]["violations"])
    assert mismatches(answers.workers) == []


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_push_that_a_server_applies_twice_is_found_by_every_worker(parts: PushParts, mode: str) -> None:
    answers = with_fault(parts, "server 1", {"kind": "double", "step": 2}, mode=mode)
    _, workers = answers.reports
    for worker in workers:
        wrong = [m for m in worker["mismatches"] if "server 1" in m["operation"]]
        assert wrong and all("server 0" not in m["operation"] for m in worker["mismatches"])
        # A pull in between may hold the push of some of them.
        last = [m for m in wrong if m["operation"].startswith("weights after")]
        assert last[0]["contributions"] == {"0": 2, "1": 2, "2": 2}
        assert "push 2 of worker 1 was applied twice" in last[0]["explanation"]


@pytest.mark.parametrize("mode", MODES)
def test_one_flipped_bit_of_a_push_is_found_where_it_arrives(parts: PushParts, mode: str) -> None:
    fault = {"kind": "flip", "server": 1, "shard": 0, "element": 3, "bit": 22, "step": 2}
    answers = with_fault(parts, "worker 0", fault, mode=mode)
    assert answers.servers[0]["report"]["mismatches"] == []
    (mismatch,) = answers.servers[1]["report"]["mismatches"]
    assert mismatch["operation"] == "push 2 of worker 0 to server 1, shard 0"
    assert (mismatch["index"], mismatch["wrong"], mismatch["flipped_bits"]) == (3, 1, "0x00400000")
    assert "bit 22" in mismatch["explanation"] and mismatch["explanation"].startswith("element ")
    _, workers = answers.reports
    assert all("shard 0 of server 1" in m["operation"] and m["wrong"] == 1 for m in mismatches(answers.workers))
    assert all(worker["mismatches"] for worker in workers)


def test_one_flipped_bit_in_a_servers_memory_is_found_by_the_workers(parts: PushParts) -> None:
    # Later additions may round a low bit of a sum away; then it is not a fault.
    fault = {"kind": "flip", "shard": 0, "element": 5, "bit": 21, "step": 3}
    answers = with_fault(parts, "server 0", fault, mode="async")
    assert mismatches(answers.servers) == [], "every push was right"
    _, workers = answers.reports
    assert all(worker["mismatches"][0]["operation"].endswith("shard 0 of server 0") for worker in workers)


def test_losses_in_training_show_as_missing_pushes(parts: PushParts) -> None:
    fault = {"kind": "loss", "server": 0, "step": 4, "phase": "servers"}
    servers, _ = with_fault(parts, "worker 0", fault, mode="sync").reports
    assert servers[0]["violations"] == ["push 4 of worker 0 to server 0 (training phase) never came"]


def test_delay_is_not_a_fault_but_others_wait(parts: PushParts) -> None:
    fault = {"kind": "delay", "seconds": 0.05, "phase": "servers"}
    servers, workers = with_fault(parts, "worker 1", fault, mode="sync", steps=10).reports
    assert all(server["violations"] == [] for server in servers)
    waited = {seen["index"]: seen["waited_s"] for seen in servers[0]["seen"]}
    assert waited[1] < min(waited[0], waited[2]), "the slow one never waits"
    assert sum(workers[1]["compute_s"]) > 0.5


@pytest.mark.parametrize("mode", ["sync", "async", "ssp"])
@pytest.mark.parametrize("mid_push", [False, True], ids=["between", "mid-push"])
def test_killed_worker_is_named_by_every_process(parts: PushParts, mode: str, mid_push: bool) -> None:
    fault = {"kind": "kill", "step": 2, "mid_push": mid_push, "phase": "servers"}
    answers = with_fault(parts, "worker 1", fault, mode=mode)
    assert answers.workers[1]["code"] == -signal.SIGKILL
    for survivor in (*answers.servers, answers.workers[0], answers.workers[2]):
        assert survivor["kind"] == "blocked" and "worker 1" in survivor["error"], survivor["error"]
        (problem,) = [e for e in survivor["events"] if e["event"] == rank_events.PROBLEM]
        assert problem["consequence"] is True
    because = [e["because"] for s in answers.servers for e in s["events"] if "because" in e]
    assert because == [[3]] * len(because) and because


def test_a_killed_server_is_named_by_every_worker(parts: PushParts) -> None:
    fault = {"kind": "kill", "step": 2, "phase": "servers"}
    answers = with_fault(parts, "server 1", fault, mode="async")
    assert answers.servers[1]["code"] == -signal.SIGKILL
    assert all(w["kind"] == "blocked" and "server 1" in w["error"] for w in answers.workers)
    assert "server 1" in answers.servers[0]["error"], "the other server hears why its workers leave"


def test_a_stopped_server_is_named_within_the_deadline(parts: PushParts) -> None:
    fault = {"kind": "stop", "step": 3, "phase": "servers"}
    answers = with_fault(parts, "server 1", fault, mode="sync", least_limit_s=2.0, stopped=("server 1",))
    waited = []
    for worker in answers.workers:
        assert worker["kind"] == "blocked" and "server 1" in worker["error"]
        waits = [e for e in worker["events"] if e["event"] == rank_events.ENTERING and e["waiting_for"] == [1]]
        waited += [worker["ended_s"] - waits[-1]["at_s"]] if waits else []
    assert waited, "whoever waits for that server says so; the others hear of it from server 0"
    assert max(waited) < 10, "the deadline is 2 s; the rest is for a busy machine"


@pytest.mark.parametrize("kind", ["stop", "stall"])
def test_stalled_worker_is_named_by_the_servers(parts: PushParts, kind: str) -> None:
    fault = {"kind": kind, "step": 3, "phase": "servers"}
    answers = with_fault(parts, "worker 2", fault, mode="sync", least_limit_s=2.0, stopped=("worker 2",))
    for survivor in (*answers.servers, *answers.workers[:2]):
        assert "worker 2" in survivor["error"] and survivor["kind"] == "blocked", survivor["error"]
    lacking = [e for s in answers.servers for e in s["events"] if e.get("waiting_for") == [4]]
    assert lacking, "the servers say who is missing"

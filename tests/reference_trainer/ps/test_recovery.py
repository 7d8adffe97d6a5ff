"""A backup worker replaces a lost or lagging one; the others continue, and no push is lost or applied twice."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.reference_trainer.ps.conftest import Answers

pytestmark = pytest.mark.thorough

PushParts = Callable[..., Answers]
MODEL = {"dense": [["a", [30, 20]], ["b", [40]]], "tables": [["t", 211, 4]]}


def recovered(parts: PushParts, fault: dict[str, Any], mode: str, **params: Any) -> Answers:
    """A run of two servers and three workers in which worker 1 injects a fault and one backup worker waits."""
    given = {"model": MODEL, "slice_bytes": 1024, "steps": 8, "staleness": 2, "mode": mode, **params}
    return parts(2, 3, spares=1, overrides={"worker 1": {"injected_fault": fault}}, **given)


def whole(answers: Answers) -> list[dict[str, Any]]:
    """The servers' reports of a run with the right bits although worker 1 was lost."""
    survivors = (*answers.servers, answers.workers[0], answers.workers[2], *answers.spares)
    assert [a.get("error") for a in survivors] == [None] * len(survivors), [a.get("detail") for a in survivors]
    servers = [server["report"] for server in answers.servers]
    found = [answer["report"] for answer in survivors[len(servers) :]]
    assert all(server["violations"] == [] and server["mismatches"] == [] for server in servers)
    assert all(worker["mismatches"] == [] for worker in found)
    assert len({worker["digest"] for worker in found}) == 1
    (spare,) = (answer["report"] for answer in answers.spares)
    assert (spare["spare"], spare["replaced"], spare["index"]) == (True, 1, 1)
    assert [[one["worker"] for one in server["replaced"]] for server in servers] == [[1], [1]]
    assert all(seen["pushes"] == server["expected_pushes"] for server in servers for seen in server["seen"])
    return servers


@pytest.mark.parametrize("mode", ["async", "ssp", "geo"])
@pytest.mark.parametrize("phase", ["exact", "servers"])
@pytest.mark.parametrize("mid_push", [False, True], ids=["between", "mid-push"])
def test_a_killed_worker_is_replaced_and_every_bit_is_right(
    parts: PushParts, mode: str, phase: str, mid_push: bool
) -> None:
    fault = {"kind": "kill", "step": 3, "phase": phase, "mid_push": mid_push, "server": 1}
    answers = recovered(parts, fault, mode, geo_steps=2)
    assert answers.workers[1]["code"] == -signal.SIGKILL
    servers = whole(answers)
    if mode == "ssp":
        assert all(int(ahead) <= 2 for server in servers for ahead in server["staleness"])
    assert all(
        "is gone" in one["why"] or "closed its connection" in one["why"] for s in servers for one in s["replaced"]
    )
    assert not any(one["lagged"] for s in servers for one in s["replaced"])


def test_a_lagging_worker_is_replaced_and_the_bound_does_not_deadlock(parts: PushParts) -> None:
    fault = {"kind": "stop", "step": 3, "phase": "servers"}
    servers = whole(recovered(parts, fault, "ssp", lag_s=1.0, timeout_s=30, stopped=("worker 1",)))
    assert [(one["lagged"], "has delayed the others for 1 s" in one["why"]) for one in servers[0]["replaced"]] == [
        (True, True)
    ]


def test_unused_backup_worker_ends_with_the_run(parts: PushParts) -> None:
    answers = parts(2, 2, spares=1, mode="async", model=MODEL)
    servers, _ = answers.reports
    (spare,) = (answer["report"] for answer in answers.spares)
    assert (spare["index"], spare["replaced"], spare["steps"]) == (-1, None, 0)
    assert all(server["replaced"] == [] for server in servers)


def test_second_loss_without_a_second_backup_ends_the_run(parts: PushParts) -> None:
    drills = {
        "worker 0": {"injected_fault": {"kind": "kill", "step": 2, "phase": "servers"}},
        "worker 1": {"injected_fault": {"kind": "kill", "step": 2, "phase": "servers"}},
    }
    answers = parts(1, 3, spares=1, mode="async", steps=200, model=MODEL, overrides=drills)
    assert answers.servers[0]["kind"] == "blocked" and "is gone" in answers.servers[0]["error"]
    # The server names the lost worker, and then closes its connections: one of the two reaches the worker first.
    assert any(text in answers.workers[2]["error"] for text in ("is gone", "Connection reset by peer"))

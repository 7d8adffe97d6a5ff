"""The AdmissionCheck controller against a STUB of the API server that holds objects in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio
import pytest

from preflight.services.admission import judgement as judging
from preflight.services.admission.cluster import CHECKS, WORKLOADS, ClusterError, Controller
from preflight.services.admission.judgement import Judgement, Policy, Resource, Workers
from tests.services.admission.objects import broken, good
from tests.waiting import becomes

NAME = "preflight/admission-check"


class Stub:
    """A STUB of what the controller asks of an API server."""

    def __init__(self, job: dict[str, Any] | None, *, check: str = "lint") -> None:
        self.job = job
        self.check = {
            "metadata": {"name": "lint", "generation": 1},
            "spec": {"controllerName": NAME if check == "lint" else "other/controller"},
        }
        self.workload: dict[str, Any] = {
            "metadata": {
                "name": "w",
                "namespace": "team-a",
                "resourceVersion": "5",
                "ownerReferences": [
                    {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "finetune", "controller": True}
                ],
            },
            "status": {
                "conditions": [{"type": "QuotaReserved", "status": "True"}],
                "admissionChecks": [
                    {"name": "lint", "state": "Pending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                    {"name": "other", "state": "Pending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                ],
            },
        }
        self.patches: list[tuple[str, Mapping[str, Any]]] = []
        self.problem: ClusterError | None = None

    def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        if self.job is None:
            raise ClusterError("missing", "not found")
        return copy.deepcopy(self.job)

    def list_all(self, resource: Resource) -> tuple[list[dict[str, Any]], str]:
        return [copy.deepcopy(self.check if resource == CHECKS else self.workload)], "5"

    def watch(self, resource: Resource, since: str, seconds: int) -> Iterator[dict[str, Any]]:
        return iter(())

    def patch_status(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> None:
        if self.problem is not None:
            raise self.problem
        self.patches.append((resource.plural, copy.deepcopy(body)))
        if resource == WORKLOADS:
            self.workload["status"]["admissionChecks"] = body["status"]["admissionChecks"]
        else:
            self.check["status"] = dict(body["status"])

    def resource_of(self, api_version: str, kind: str) -> Resource:
        return Resource("kubeflow.org", "pytorchjobs", version="v1")


@pytest.fixture(autouse=True)
def judge_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Judge in this process: what processes do is tested with the webhook."""

    async def judge_object(self: Workers, value: Mapping[str, Any], namespace: str) -> Judgement:
        found = judging.judge(value, namespace, self.policy, str(tmp_path), (), is_last=True)
        assert isinstance(found, Judgement)
        return found

    monkeypatch.setattr(Workers, "judge_object", judge_object)


def run(stub: Stub, policy: Policy | None = None) -> Stub:
    """One pass of the controller."""
    workers = Workers(policy or Policy())
    try:
        anyio.run(Controller(stub, workers, NAME).pass_over, 1)
    finally:
        workers.close()
    return stub


def state(stub: Stub, name: str = "lint") -> tuple[str, str]:
    found = next(each for each in stub.workload["status"]["admissionChecks"] if each["name"] == name)
    return found["state"], found["message"]


def test_a_good_job_becomes_ready_and_a_broken_one_is_rejected() -> None:
    assert state(run(Stub(good()))) == ("Ready", "preflight found no fault")
    kind, message = state(run(Stub(broken())))
    assert kind == "Rejected" and "GPU001" in message


def test_the_states_of_other_controllers_stay() -> None:
    stub = run(Stub(broken()))
    assert state(stub, "other") == ("Pending", "")
    body = next(body for plural, body in stub.patches if plural == "workloads")
    assert body["metadata"] == {"resourceVersion": "5"}


def test_the_check_is_said_to_be_served() -> None:
    stub = run(Stub(good()))
    (condition,) = stub.check["status"]["conditions"]  # type: ignore[index]
    assert (condition["type"], condition["status"], condition["observedGeneration"]) == ("Active", "True", 1)
    written = len(stub.patches)
    run(stub)
    assert len(stub.patches) == written, "a second pass has nothing to write"


@pytest.mark.parametrize(("on_failure", "expected"), [("allow", "Ready"), ("refuse", "Retry")], ids=["open", "closed"])
def test_a_job_that_cannot_be_read_is_never_rejected(on_failure: str, expected: str) -> None:
    kind, message = state(run(Stub(None), Policy(on_failure=on_failure)))
    assert kind == expected and "could not check" in message


def _no_quota(stub: Stub) -> None:
    stub.workload["status"]["conditions"] = []


def _finished(stub: Stub) -> None:
    stub.workload["status"]["conditions"].append({"type": "Finished", "status": "True"})


@pytest.mark.parametrize("change", [_no_quota, _finished])
def test_what_waits_for_no_answer_is_left_alone(change: Callable[[Stub], None]) -> None:
    stub = Stub(broken())
    change(stub)
    assert state(run(stub)) == ("Pending", "")


def test_checks_of_another_controller_are_left_alone() -> None:
    assert run(Stub(broken(), check="other")).patches == []


def test_a_conflict_is_left_to_the_next_event_and_other_troubles_are_not() -> None:
    stub = Stub(good())
    stub.problem = ClusterError("blocked", "conflict")
    assert state(run(stub)) == ("Pending", "")
    stub.problem = ClusterError("denied", "forbidden")
    with pytest.raises(ClusterError):
        run(stub)


def test_a_workload_that_takes_long_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = []
    most = [0]

    async def judge_object(self: Workers, value: Mapping[str, Any], namespace: str) -> Judgement:
        running.append(1)
        most[0] = max(most[0], len(running))
        # Alone it would wait until its deadline.
        await becomes(lambda: most[0] >= 2)
        running.pop()
        return Judgement(True)

    monkeypatch.setattr(Workers, "judge_object", judge_object)
    stub = Stub(good())
    workloads = [
        {**stub.workload, "metadata": {**stub.workload["metadata"], "name": f"w{number}"}} for number in range(6)
    ]
    monkeypatch.setattr(
        stub, "list_all", lambda resource: ([stub.check] if resource == CHECKS else copy.deepcopy(workloads), "5")
    )
    run(stub, Policy(max_concurrent=2, deadline_s=2))
    written = [
        body["status"]["admissionChecks"][0]["message"] for plural, body in stub.patches if plural == "workloads"
    ]
    assert written == ["preflight found no fault"] * 6
    assert most == [2]

"""Submitted objects and what they refer to: refused, warned about, or admitted in silence."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from preflight._util.usage_error import UsageError
from preflight.model.configuration import Configuration, FileIgnores, SeverityChoice, Waiver
from preflight.services.admission.judgement import (
    InvalidReview,
    Judgement,
    Policy,
    Read,
    Reference,
    Wanted,
    answer,
    judge,
    levels_of,
    not_judged,
    object_file,
    read_review,
    uid_in,
)
from tests.services.admission.objects import UID, broken, cluster_queue, good, local_queue, pytorch_job, review

_QUEUE = Reference("LocalQueue", "gpus", "team-a")
_POOL = Reference("ClusterQueue", "pool")
_QUOTAS = Reference("ResourceQuota", "", "team-a")


def judged(
    value: Any, folder: Path, *reads: Read, policy: Policy | None = None, namespace: str = "team-a"
) -> Judgement:
    """The judgement once these objects are read, and no others can be."""
    found = judge(value, namespace, policy or Policy(), str(folder), reads, is_last=True)
    assert isinstance(found, Judgement)
    return found


def test_the_good_job_is_admitted_in_silence(tmp_path: Path) -> None:
    assert judged(good(), tmp_path) == Judgement(True)


def test_the_broken_job_is_refused_with_fields_for_lines(tmp_path: Path) -> None:
    found = judged(broken(), tmp_path)
    assert not found.allowed
    assert {rule for rule, _ in found.findings} == {"GPU001", "WLD001"}
    assert "at: spec.pytorchReplicaSpecs.Master.template.spec.containers[0].command[2]" in found.message
    assert "fix: Start 4 processes on each node, or request 8 GPUs." in found.message
    assert ".yaml" not in found.message


def test_levels_decide_by_namespace(tmp_path: Path) -> None:
    policy = Policy(refuse_at="error", namespaces=(("sandbox-*", "never"),))
    found = judged(broken(), tmp_path, policy=policy, namespace="sandbox-7")
    assert found.allowed and found.result == "warned"
    assert any(warning.startswith("error[GPU001]") for warning in found.warnings)
    assert not judged(broken(), tmp_path, policy=policy).allowed


def test_a_warning_refuses_if_the_policy_says_so(tmp_path: Path) -> None:
    value = good()
    for role in value["spec"]["pytorchReplicaSpecs"].values():
        del role["template"]["spec"]["containers"][0]["volumeMounts"]
    lenient, strict = judged(value, tmp_path), judged(value, tmp_path, policy=Policy(refuse_at="warning"))
    assert lenient.allowed and lenient.warnings[0].startswith("warning[KUB002]")
    assert not strict.allowed and "KUB002" in strict.message


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(ignore=("GPU001", "WLD001")),
        Configuration(severities=(SeverityChoice("GPU001", "info"), SeverityChoice("WLD001", "info"))),
        Configuration(file_ignores=(FileIgnores("team-a/", ("GPU", "WLD")),)),
        Configuration(waivers=tuple(Waiver(rule, "known", paths=("team-a/*",)) for rule in ("GPU001", "WLD001"))),
    ],
    ids=["ignore", "severity", "per-file-ignores", "waive"],
)
def test_the_configuration_of_the_project_holds_here(configuration: Configuration, tmp_path: Path) -> None:
    assert judged(broken(), tmp_path, policy=Policy(configuration)).allowed


def test_what_is_ignored_for_one_namespace_counts_in_another(tmp_path: Path) -> None:
    policy = Policy(Configuration(file_ignores=(FileIgnores("team-b/", ("GPU", "WLD")),)))
    assert not judged(broken(), tmp_path, policy=policy).allowed


def test_an_annotation_suppresses_a_finding_that_is_not_mandatory(tmp_path: Path) -> None:
    value = copy.deepcopy(broken())
    value["metadata"]["annotations"] = {"preflight/ignore": "GPU001, WLD001 a drill"}
    assert judged(value, tmp_path).allowed
    assert not judged(value, tmp_path, policy=Policy(Configuration(mandatory=("GPU001",)))).allowed


def test_what_the_job_refers_to_is_asked_for_step_by_step(tmp_path: Path) -> None:
    first = judge(good(), "team-a", Policy(), str(tmp_path), ())
    assert first == Wanted((_QUEUE, _QUOTAS))
    reads = (Read(_QUEUE, (local_queue(),)), Read(_QUOTAS))
    assert judge(good(), "team-a", Policy(), str(tmp_path), reads) == Wanted((_POOL,))
    reads = (*reads, Read(_POOL, (cluster_queue(64),)))
    assert judge(good(), "team-a", Policy(), str(tmp_path), reads) == Judgement(True)


def test_a_queue_that_can_never_admit_the_job_is_named(tmp_path: Path) -> None:
    reads = (Read(_QUEUE, (local_queue(),)), Read(_POOL, (cluster_queue(4),)))
    found = judged(good(), tmp_path, *reads)
    assert "nominalQuota" in found.message + " ".join(found.warnings)
    assert "ClusterQueue pool: spec.resourceGroups[0].flavors[0].resources[0].nominalQuota" in found.message


def test_a_runtime_is_joined_with_its_job(tmp_path: Path) -> None:
    container = {
        "name": "node",
        "image": "registry.example/train:1",
        "command": ["torchrun", "--nproc_per_node=8", "train.py"],
        "resources": {"limits": {"nvidia.com/gpu": "4"}},
    }
    pod = {"template": {"spec": {"template": {"spec": {"containers": [container]}}}}, "name": "node"}
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch"},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [pod]}}},
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "t"},
        "spec": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2}},
    }
    wanted = judge(job, "team-a", Policy(), str(tmp_path), ())
    reference = Reference("ClusterTrainingRuntime", "torch")
    assert isinstance(wanted, Wanted) and reference in wanted.references
    found = judged(job, tmp_path, Read(reference, (runtime,)))
    assert ("GPU001", "error") in found.findings


def test_what_could_not_be_read_is_said_and_is_no_pass(tmp_path: Path) -> None:
    found = judged(good(), tmp_path, Read(_QUEUE, problem="localqueues is forbidden"))
    assert found.allowed and found.result == "undecided"
    assert found.warnings == (
        "preflight could not read LocalQueue gpus in namespace team-a, so rules that depend on it were "
        "skipped: localqueues is forbidden",
    )


def test_without_a_cluster_the_references_are_named(tmp_path: Path) -> None:
    found = judge(good(), "team-a", Policy(), str(tmp_path), None)
    assert isinstance(found, Judgement) and found.result == "undecided"
    assert "LocalQueue gpus in namespace team-a" in found.warnings[0]


def test_a_fault_of_another_object_is_not_blamed_on_this_one(tmp_path: Path) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "team-a"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "64"}},
    }
    assert judged(good(), tmp_path, Read(_QUOTAS, (quota,))).allowed


def test_the_api_server_decides_about_the_schema(tmp_path: Path) -> None:
    value = good()
    value["spec"]["pytorchReplicaSpecs"]["Worker"]["replica"] = 4
    found = judged(value, tmp_path)
    # The server in use accepted the field, so it is not refused for it.
    assert found.allowed and any("KUB032" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "value",
    [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "b"}},
        {"kind": ["PyTorchJob"]},
        {},
    ],
    ids=range(4),
)
def test_other_objects_pass_in_silence(value: dict[str, Any], tmp_path: Path) -> None:
    found = judged(value, tmp_path)
    assert found.allowed and not found.warnings and found.result == "not-a-job"


def test_secrets_stay_in_the_object(tmp_path: Path) -> None:
    secret = "hf_" + "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
    value = broken()
    for role in value["spec"]["pytorchReplicaSpecs"].values():
        container = role["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "HF_TOKEN", "value": secret}, {"name": "API_PASSWORD", "value": "hunter2-hunter2"}]
        container["command"] += [f"--token={secret}", "--password", "hunter2-hunter2"]
    found = judged(value, tmp_path)
    said = found.message + " ".join(found.warnings)
    assert not found.allowed
    assert secret not in said and "hunter2" not in said


def test_messages_hold_no_control_characters_and_fit_into_headers(tmp_path: Path) -> None:
    value = pytorch_job(nodes=4, processes=8, name="x\x1b[2J\r\n::error::\u202e" * 40)
    for number in range(60):
        role = copy.deepcopy(value["spec"]["pytorchReplicaSpecs"]["Worker"])
        value["spec"]["pytorchReplicaSpecs"][f"W\x1b]0;{number}\x07\n"] = role
    found = judged(value, tmp_path, policy=Policy(refuse_at="never"))
    said = found.message + "".join(found.warnings)
    assert found.warnings
    assert not any(ord(character) < 32 or character == "\u202e" for character in said)
    assert all(len(warning) <= 256 for warning in found.warnings)
    assert sum(len(warning.encode()) for warning in found.warnings) <= 4096


def test_an_object_that_could_not_be_judged_is_treated_as_the_policy_says() -> None:
    opened, closed = not_judged(Policy(), "no time"), not_judged(Policy(on_failure="refuse"), "no time")
    assert opened.allowed and opened.warnings == ("preflight could not check this object: no time",)
    assert not closed.allowed and "fail closed" in closed.message
    assert opened.result == closed.result == "not-judged"


def test_levels_are_read_from_the_command_line() -> None:
    assert levels_of([], "warning") == ("warning", ())
    assert levels_of(["never", "team-*=error"], "error") == ("never", (("team-*", "error"),))
    for wrong in (["eror"], ["=error"], ["a=b=nothing"], ["error", "never"]):
        with pytest.raises(UsageError):
            levels_of(wrong, "error")


def test_fields_are_found_by_line() -> None:
    file = object_file(good(), "team-a")
    lines = file.text.splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "--nproc_per_node=4" in line)
    assert file.field_at(number) == "spec.pytorchReplicaSpecs.Master.template.spec.containers[0].command[2]"
    assert file.path == "team-a/PyTorchJob-finetune.yaml"
    assert file.field_at(0) == ""


# Requests of the API server: which are judged, which are not, and the form of the answer.


_OWNED = [{"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "u", "controller": True}]


def test_a_request_is_read() -> None:
    found = read_review(review(good()))
    assert (found.uid, found.kind, found.namespace, found.operation) == (UID, "PyTorchJob", "team-a", "CREATE")
    assert found.skipped == ""


@pytest.mark.parametrize(
    ("value", "request_", "why"),
    [
        (None, {"operation": "DELETE"}, "no object"),
        (good(), {"subResource": "status"}, "a subresource"),
        (pytorch_job(deletionTimestamp="2026-01-01T00:00:00Z"), {"operation": "UPDATE"}, "being deleted"),
        (pytorch_job(resourceVersion="2"), {"operation": "UPDATE", "oldObject": good()}, "unchanged"),
        (
            pytorch_job(ownerReferences=_OWNED),
            {"userInfo": {"username": "system:serviceaccount:kube-system:job-controller"}},
            "created by a controller",
        ),
        (
            pytorch_job(ownerReferences=_OWNED),
            {"userInfo": {"username": "system:kube-controller-manager"}},
            "created by a controller",
        ),
    ],
)
def test_what_needs_no_judgement(value: Any, request_: dict[str, Any], why: str) -> None:
    assert read_review(review(value, **request_)).skipped == why


@pytest.mark.parametrize(
    "name",
    [
        "alice",
        # An account of the namespace itself, which everybody has who may start a pod there.
        "system:serviceaccount:team-a:default",
        "system:serviceaccount:kube-system",
        "system:serviceaccount:x:y:z",
        "system:kube-controller-manager-of-alice",
    ],
)
def test_who_writes_an_owner_into_an_object_is_not_believed(name: str) -> None:
    found = read_review(review(pytorch_job(ownerReferences=_OWNED), userInfo={"username": name}))
    assert found.skipped == ""


def test_what_belongs_to_an_object_that_is_not_judged_is_judged() -> None:
    owned = [{**_OWNED[0], "apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}]
    controller = {"username": "system:serviceaccount:argo:argo"}
    assert read_review(review(pytorch_job(ownerReferences=owned), userInfo=controller)).skipped == ""
    hostile = [{**_OWNED[0], "kind": ["Job"]}]
    assert read_review(review(pytorch_job(ownerReferences=hostile), userInfo=controller)).skipped == ""


def test_a_changed_object_is_judged() -> None:
    assert read_review(review(pytorch_job(nodes=3), operation="UPDATE", oldObject=good())).skipped == ""


def test_a_changed_annotation_is_judged() -> None:
    # It may suppress a finding, and the suppression may go.
    old = pytorch_job(annotations={"preflight/ignore": "GPU001 known"})
    assert read_review(review(good(), operation="UPDATE", oldObject=old)).skipped == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":7}}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"a b"}}',
        review(good()).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"),
        b'{"a":' * 100_000,
        b'{"a":' + b"9" * 10_000 + b"}",
    ],
    ids=range(11),
)
def test_anything_else_is_refused_with_a_reason(body: bytes) -> None:
    with pytest.raises(InvalidReview) as refused:
        read_review(body)
    assert str(refused.value)


def test_the_uid_of_a_request_that_is_cut_is_found() -> None:
    body = review({**good(), "padding": "x" * 10_000})
    assert uid_in(body[:3000]) == UID
    assert uid_in(b"nothing here") == ""


def test_the_answer_has_the_form_of_v1() -> None:
    document = json.loads(answer(UID, Judgement(False, "no\nway", ("careful",))))
    assert document == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": UID,
            "allowed": False,
            "status": {"status": "Failure", "reason": "Forbidden", "code": 403, "message": "no\nway"},
            "warnings": ["careful"],
        },
    }
    assert "status" not in json.loads(answer(UID, Judgement(True)))["response"]

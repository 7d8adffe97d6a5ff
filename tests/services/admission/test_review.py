"""Requests of the API server: which are judged, which are not, and the form of the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from preflight.services.admission.judgement import Judgement
from preflight.services.admission.review import InvalidReview, answer, read_review, uid_in
from tests.services.admission.objects import UID, good, pytorch_job, review

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
            "made by a controller",
        ),
        (
            pytorch_job(ownerReferences=_OWNED),
            {"userInfo": {"username": "system:kube-controller-manager"}},
            "made by a controller",
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

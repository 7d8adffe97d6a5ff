"""AdmissionReview of admission.k8s.io/v1: the request of the API server, and the answer to it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from preflight.services.admission.judgement import Judgement

_API_VERSION = "admission.k8s.io/v1"
#: The API server writes `request.uid` first, so that an answer is possible without reading the rest.
_HEAD_BYTES = 4096
_UID = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([0-9A-Za-z-]{1,64})"')
_FORBIDDEN = 403
#: Kinds that the API server asks about, as the chart tells it, so that what belongs to them was judged with them.
JUDGED_OWNERS = frozenset(
    (
        *("PyTorchJob", "MPIJob", "TFJob", "PaddleJob", "XGBoostJob", "JAXJob", "TrainJob", "Job", "CronJob"),
        *("JobSet", "LeaderWorkerSet", "RayJob", "RayCluster"),
    )
)
_ACCOUNT, _CONTROLLER_MANAGER = "system:serviceaccount:", "system:kube-controller-manager"


class InvalidReview(Exception):
    """The body is not a request that can be answered."""


@dataclass(frozen=True, slots=True)
class Review:
    """One request.

    Args:
        skipped: why the object needs no judgement; empty if it does.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    operation: str
    value: Mapping[str, Any]
    skipped: str = ""


def uid_in(body: bytes) -> str:
    """The uid of a request that cannot be read, from its first bytes; empty if it is not there."""
    found = _UID.search(body[:_HEAD_BYTES])
    return found[1].decode() if found else ""


def read_review(body: bytes) -> Review:
    """Read a request.

    Raises:
        InvalidReview: it is not an AdmissionReview of version v1, or nested too deeply.
    """
    try:
        document = json.loads(body)
    except RecursionError:
        raise InvalidReview("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidReview(f"it is not JSON: {error}") from None
    request = document.get("request") if isinstance(document, dict) else None
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview" or not isinstance(request, dict):
        raise InvalidReview("it is not an AdmissionReview with a request")
    if document.get("apiVersion") != _API_VERSION:
        raise InvalidReview(f"it is an AdmissionReview of version {str(document.get('apiVersion'))[:60]!r}, not v1")
    uid = request.get("uid")
    if not isinstance(uid, str) or not re.fullmatch(r"[0-9A-Za-z-]{1,64}", uid):
        raise InvalidReview("the request has no uid")
    value = request.get("object")
    kind = request.get("kind")
    return Review(
        uid,
        _text(kind.get("kind") if isinstance(kind, dict) else ""),
        _text(request.get("namespace")),
        _text(request.get("name")),
        _text(request.get("operation")),
        value if isinstance(value, dict) else {},
        _why_skipped(request, value),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _why_skipped(request: Mapping[str, Any], value: object) -> str:
    if not isinstance(value, dict):
        return "no object"
    if request.get("subResource"):
        return "a subresource"
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if metadata.get("deletionTimestamp"):
        # The removal of a finalizer must never be refused.
        return "being deleted"
    old = request.get("oldObject")
    if request.get("operation") == "UPDATE" and isinstance(old, dict) and _judged_part(old) == _judged_part(value):
        return "unchanged"
    if _is_made_by_a_controller(request, metadata):
        return "made by a controller"
    return ""


def _judged_part(value: Mapping[str, Any]) -> object:
    """The part of an object that a judgement depends on."""
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    rest = {key: part for key, part in value.items() if key not in ("metadata", "status")}
    return rest, metadata.get("labels"), metadata.get("annotations")


def _is_made_by_a_controller(request: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a controller made the object for another one, which was judged.

    Anybody can write an owner into an object, so only a controller is believed. Controllers of jobs do not run beside
    the jobs: a service account of the object's own namespace belongs to those who may submit it.
    """
    user = request.get("userInfo")
    name = _text(user.get("username") if isinstance(user, dict) else "")
    account = name.removeprefix(_ACCOUNT).split(":") if name.startswith(_ACCOUNT) else []
    is_controller = name == _CONTROLLER_MANAGER or (len(account) == 2 and account[0] != request.get("namespace"))
    owners = metadata.get("ownerReferences")
    return (
        is_controller
        and isinstance(owners, list)
        and any(
            isinstance(each, dict) and each.get("controller") is True and _text(each.get("kind")) in JUDGED_OWNERS
            for each in owners
        )
    )


def answer(uid: str, judgement: Judgement) -> bytes:
    """The AdmissionReview with the answer, as JSON."""
    response: dict[str, Any] = {"uid": uid, "allowed": judgement.allowed}
    if not judgement.allowed:
        response["status"] = {
            "status": "Failure",
            "reason": "Forbidden",
            "code": _FORBIDDEN,
            "message": judgement.message,
        }
    if judgement.warnings:
        response["warnings"] = list(judgement.warnings)
    document = {"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response}
    return json.dumps(document, ensure_ascii=True).encode()

"""Target: the body of a request to the admission webhook, as a user's object shapes it."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterator

import yaml

from preflight.services.admission import judgement
from preflight.services.admission import judgement as review
from preflight.services.admission.judgement import Judgement, Policy
from tests.fuzz import mutation, seeds, words
from tests.fuzz.limits import MIB, Limits
from tests.fuzz.target import Fault, Target, sometimes

_UID = "0df28fbd-5f5f-11e8-bc74-36e6bb280816"
_LONGEST_WARNING, _ALL_WARNINGS = 256, 4096


def targets() -> Iterator[Target]:
    """The webhook's own reading and judging, in this process."""
    yield Target(
        "admission", _admission, _bodies, words.quantities, mutation.document, 64 * 1024, Limits(6.0, 256 * MIB)
    )


@functools.cache
def _folder() -> str:
    return tempfile.mkdtemp(prefix="preflight-")


def _bodies() -> Iterator[bytes]:
    """A review of every object in the manifests of the rules' cases."""
    for text in seeds.recognised_by("kubernetes"):
        try:
            documents = list(yaml.safe_load_all(text))
        except (yaml.YAMLError, UnicodeDecodeError, ValueError):
            continue
        for value in documents[:4]:
            if isinstance(value, dict):
                yield _review(value)


def _review(value: object) -> bytes:
    request = {
        "uid": _UID,
        "kind": {"kind": "PyTorchJob"},
        "namespace": "team-a",
        "operation": "CREATE",
        "object": value,
    }
    document = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(document, default=str).encode()


def _admission(data: bytes) -> None:
    try:
        found = review.read_review(data)
    except review.InvalidReview:
        return
    if found.skipped:
        return
    result = judgement.judge(found.value, found.namespace, Policy(), _folder(), None)
    if not isinstance(result, Judgement):
        raise Fault("without a cluster the judgement waits for objects")
    response = json.loads(review.answer(found.uid, result))["response"]
    for text in (result.message.replace("\n", ""), *result.warnings):
        if any(ord(character) < 32 or ord(character) == 127 for character in text):
            raise Fault("a control character in an answer", repr(text))
    if any(len(warning) > _LONGEST_WARNING for warning in result.warnings):
        raise Fault("a warning is too long for a header", max(result.warnings, key=len))
    if sum(len(warning.encode("utf-8", "replace")) for warning in result.warnings) > _ALL_WARNINGS:
        raise Fault("the warnings are too long for a header")
    if response["allowed"] is not (not result.message):
        raise Fault("a refusal without a reason, or a reason without a refusal")
    if sometimes(data) and judgement.judge(found.value, found.namespace, Policy(), _folder(), None) != result:
        raise Fault("a different answer the second time")

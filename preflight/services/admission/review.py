"""Reviews of admission.k8s.io/v1: the request of the API server, the processes that judge it, and the answer.

What a hostile object does to a reader (time, memory, a crash of native code) ends with its process. The processes are
forks of one that has loaded everything (`prepared.py`), so a killed one costs the next object nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import anyio
import anyio.to_thread

from preflight.services.admission import judgement
from preflight.services.admission.judgement import MAX_ROUNDS, Judgement, Policy, Read, Reference, Wanted

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


#: Reads one object from the cluster; called in a thread.
Reader = Callable[[Reference], Read]


_FORKS = multiprocessing.get_context("forkserver")
_PREPARED = "preflight.services.admission.prepared"
#: Seconds that the first process may take, which loads everything.
_START_S = 120.0


class WorkerDied(Exception):
    """The process of a judgement ended without an answer."""


class Overloaded(Exception):
    """Too many requests wait already."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a worker made of a request: the review, and a judgement or what it still needs."""

    review: Review
    result: Judgement | Wanted


@dataclass
class Workers:
    """The processes that judge. `reader` is None without access to a cluster."""

    policy: Policy
    reader: Reader | None = None
    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="preflight-"))
    waiting: int = 0
    _limiter: anyio.CapacityLimiter | None = None

    def close(self) -> None:
        """Remove the empty folder that is the root of the files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    async def warm(self) -> None:
        """Start the process that the others are forked from; raises like `judge_body`."""
        _FORKS.set_forkserver_preload([_PREPARED])
        with anyio.fail_after(_START_S):
            await self._run(_nothing)

    async def judge_body(self, body: bytes) -> Step:
        """Judge the body of a request.

        Raises:
            InvalidReview: it is not an AdmissionReview.
            Overloaded: too many requests wait.
            TimeoutError: raised by the caller's deadline.
            WorkerDied: the process died.
        """
        return await self._rounds(lambda reads, is_last: (_step, body, self.policy, self.folder, reads, is_last))

    async def judge_object(self, value: Mapping[str, Any], namespace: str) -> Judgement:
        """Judge an object that was read from the cluster; raises like `judge_body`."""
        step = await self._rounds(
            lambda reads, is_last: (_step_of_object, value, namespace, self.policy, self.folder, reads, is_last)
        )
        assert isinstance(step.result, Judgement)
        return step.result

    async def _rounds(self, call: Callable[[tuple[Read, ...] | None, bool], tuple[Any, ...]]) -> Step:
        if self.waiting >= self.policy.max_waiting + self.policy.max_concurrent:
            raise Overloaded
        self.waiting += 1
        try:
            reads: tuple[Read, ...] | None = () if self.reader is not None else None
            for number in range(MAX_ROUNDS + 1):
                step: Step = await self._run(*call(reads, number == MAX_ROUNDS))
                if isinstance(step.result, Judgement):
                    return step
                reads = (*(reads or ()), *await self._read(step.result.references))
            raise AssertionError("the last round judges")
        finally:
            self.waiting -= 1

    async def _read(self, references: tuple[Reference, ...]) -> tuple[Read, ...]:
        found: dict[Reference, Read] = {}

        async def read(reference: Reference) -> None:
            assert self.reader is not None
            found[reference] = await anyio.to_thread.run_sync(self.reader, reference, abandon_on_cancel=True)

        async with anyio.create_task_group() as group:
            for reference in references:
                group.start_soon(read, reference)
        return tuple(found[reference] for reference in references)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self.policy.max_concurrent)
        async with self._limiter:
            seconds = max(0.0, min(anyio.current_effective_deadline() - anyio.current_time(), _START_S))
            # The thread ends by itself, with its process, at the same deadline.
            return await anyio.to_thread.run_sync(_in_a_process, function, arguments, seconds, abandon_on_cancel=True)


def _in_a_process(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any:
    """The result of a call in a new process, which is gone afterwards.

    Raises:
        TimeoutError: it takes longer than this.
        WorkerDied: it ended before its answer.
    """
    receiver, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_answer, args=(sender, function, arguments), daemon=True)
    try:
        process.start()
        sender.close()
        if not receiver.poll(seconds):
            raise TimeoutError
        result = receiver.recv()
    except EOFError:
        raise WorkerDied from None
    finally:
        receiver.close()
        if process.pid is not None:
            process.kill()
            process.join()
    if isinstance(result, Exception):
        raise result
    return result


def _answer(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The main function of a process: send the result of a call, or what it raised."""
    try:
        result = function(*arguments)
    except InvalidReview as error:
        result = error
    except Exception as error:
        # Not every exception can be sent.
        result = WorkerDied(f"{type(error).__name__}: {error}"[:2000])
    sender.send(result)


def _nothing() -> None:
    """Prove that a process can be started."""


def _step(body: bytes, policy: Policy, folder: str, reads: tuple[Read, ...] | None, is_last: bool) -> Step:
    found = read_review(body)
    slim = Review(found.uid, found.kind, found.namespace, found.name, found.operation, {}, found.skipped)
    if found.skipped:
        return Step(slim, Judgement(True, result="skipped"))
    return Step(slim, judgement.judge(found.value, found.namespace, policy, folder, reads, is_last=is_last))


def _step_of_object(
    value: Mapping[str, Any], namespace: str, policy: Policy, folder: str, reads: tuple[Read, ...] | None, is_last: bool
) -> Step:
    result = judgement.judge(value, namespace, policy, folder, reads, is_last=is_last)
    return Step(Review("", str(value.get("kind")), namespace, "", "", {}), result)

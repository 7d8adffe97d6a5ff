"""Judges one submitted object by its own text and by the objects of the cluster that it refers to.

Runs in a separate process, which is killed at the deadline (`workers.py`). Everything here is pure except for an empty
folder, the root of the files.
"""

from __future__ import annotations

import bisect
import fnmatch
import json
import multiprocessing
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import yaml

from preflight._util import toml
from preflight._util.redaction import scrub
from preflight._util.sanitize import clean
from preflight._util.sequences import join_some, value_at
from preflight._util.usage_error import UsageError, similar_names
from preflight._util.yaml_output import to_yaml
from preflight.model.configuration import Configuration
from preflight.model.findings import Finding, Severity, VerdictKind

#: Largest number of rounds in which objects lead to further ones: a label to a queue, the queue to its ClusterQueue.
MAX_ROUNDS = 3
#: Largest number of objects that are read for one submission.
MAX_REFERENCES = 40
#: Clients show warnings of up to 256 characters each, and 4096 in total.
_WARNING_LENGTH = 256
_WARNINGS_LENGTH = 4000
_MESSAGE_LENGTH = 8000
_CUT = "..."
_MAX_NAMED = 3
#: The rule about objects that the API server rejects. Here the server in use has already accepted the object.
_SCHEMA_RULE = "manifest-refused"


@dataclass(frozen=True, slots=True)
class Read:
    """The cluster's response for one reference: its objects, or the reason why there are none."""

    reference: Reference
    objects: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Objects that must be read before the judgement."""

    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result for a submission.

    Args:
        allowed: whether it is admitted.
        message: why it is refused.
        warnings: notes for its author, each of at most 256 characters.
        result: `passed`, `warned`, `refused`, `undecided` or `not-judged`.
        findings: id of the rule and severity of each finding.
    """

    allowed: bool
    message: str = ""
    warnings: tuple[str, ...] = ()
    result: str = "passed"
    findings: tuple[tuple[str, str], ...] = field(default=())


def judge(
    value: Mapping[str, Any],
    namespace: str,
    policy: Policy,
    folder: str,
    reads: tuple[Read, ...] | None,
    *,
    is_last: bool = False,
) -> Judgement | Wanted:
    """Judge an object, or return further objects to read, unless `is_last`; `reads` is None without a cluster."""
    try:
        own = object_file(value, namespace)
    except NotWritable as error:
        return not_judged(policy, str(error))
    if not _may_be_a_job(own):
        return Judgement(True, result="not-a-job")
    files = {own.path: own}
    documents = [value]
    for read in reads or ():
        for each in read.objects:
            try:
                file = object_file(each, _text(value_at(each, "metadata", "namespace")))
            except NotWritable:
                # An object of the cluster that was not read is unknown, like a missing one.
                continue
            files.setdefault(file.path, file)
            documents.append(each)
    if reads is not None and not is_last:
        requested = {read.reference for read in reads}
        wanted = references_of(files.values(), documents, namespace) - requested
        if not requested and namespace:
            wanted |= {Reference(kind, "", namespace) for kind, resource in RESOURCES.items() if resource.listed}
        more = tuple(sorted(wanted))[: max(0, MAX_REFERENCES - len(requested))]
        if more:
            return Wanted(more)
    return _judge_files(own, value, files, namespace, policy, Path(folder), reads)


def _may_be_a_job(file: ObjectFile) -> bool:
    from preflight.sources.base import SourceFile
    from preflight.sources.kubernetes.workloads import KubernetesSource

    return KubernetesSource().recognises(SourceFile(file.path, file.text, "", len(file.text)))


def _judge_files(
    object_file: ObjectFile,
    value: Mapping[str, Any],
    files: Mapping[str, ObjectFile],
    namespace: str,
    policy: Policy,
    folder: Path,
    reads: tuple[Read, ...] | None,
) -> Judgement:
    from preflight import api
    from preflight.sources.kubernetes.objects import TRAINING_KINDS

    # Objects that lint does not look for by name are named together with the job.
    other_paths = [path for path, file in files.items() if path != object_file.path and file.kind in _NAMED_TOGETHER]
    report = api.lint(
        [folder / object_file.path, *(folder / path for path in other_paths)],
        root=folder,
        configuration=policy.configuration,
        given={folder / path: file.text.encode("utf-8", "surrogatepass") for path, file in files.items()},
    )
    shown = _FindingText(files, object_file)
    refused: list[str] = []
    warnings: list[str] = []
    findings: list[tuple[str, str]] = []
    for finding in report.findings:
        if finding.severity is Severity.INFO or (finding.locations and finding.locations[0].path in other_paths):
            # Faults of other objects do not count. A runtime or script is a part of the job.
            continue
        findings.append((finding.id, finding.severity.value))
        if finding.name != _SCHEMA_RULE and policy.refuses(finding.severity, namespace):
            refused.append(shown.full(finding))
        else:
            warnings.append(shown.short(finding))
    undecided = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    warnings.extend(
        shown.line(f"preflight could not decide {outcome.id} {outcome.name}: {outcome.reason}") for outcome in undecided
    )
    if report.verdict is VerdictKind.NOT_JUDGED and not refused:
        if object_file.kind not in TRAINING_KINDS:
            return Judgement(True, result="not-a-job")
        warnings.append(shown.line("preflight did not check this object: it recognized no command that starts ranks"))
    missing = [
        shown.line(
            f"preflight could not read {read.reference.words}, so rules that depend on it were skipped: {read.problem}"
        )
        for read in reads or ()
        if read.problem
    ]
    if reads is None and (unread := sorted(references_of([object_file], [value], namespace))):
        names = join_some([reference.words for reference in unread], _MAX_NAMED)
        missing.append(
            shown.line(f"preflight has no access to the cluster, so rules that depend on these were skipped: {names}")
        )
    warnings.extend(missing)
    result = "refused" if refused else "warned" if findings else "undecided" if warnings else "passed"
    message = _message(refused) if refused else ""
    return Judgement(not refused, message, _limit_warnings(warnings), result, tuple(findings))


#: Kinds that lint joins with a job only if both are passed to it.
_NAMED_TOGETHER = ("PersistentVolumeClaim", "ResourceQuota", "Queue")


class _FindingText:
    """Formats findings for people who do not see the files: with fields of their object instead of lines."""

    def __init__(self, files: Mapping[str, ObjectFile], own: ObjectFile) -> None:
        self._files = files
        self._own = own
        paths = "|".join(re.escape(path) for path in sorted(files, key=len, reverse=True))
        self._place = re.compile(rf"({paths})(?::(\d+)(?::\d+)?)?")

    def full(self, finding: Finding) -> str:
        """Return the finding with its field and remedy, on lines of its own."""
        remedy = f"\n  fix: {self.line(finding.remedy)}" if finding.remedy else ""
        at = finding.locations[0] if finding.locations else None
        place = f"\n  at: {self.line(self._field(at.path, at.line))}" if at is not None else ""
        return f"{finding.severity.value}[{finding.id}] {finding.name}: {self.line(finding.message)}{place}{remedy}"

    def short(self, finding: Finding) -> str:
        remedy = f" Fix: {finding.remedy}" if finding.remedy else ""
        return self.line(f"{finding.severity.value}[{finding.id}] {finding.name}: {finding.message}{remedy}")

    def line(self, text: str) -> str:
        """Return one line without secrets and control characters, in which fields replace file lines."""
        named = self._place.sub(lambda found: self._field(found[1], int(found[2] or 0)), text)
        return " ".join(clean(scrub(named)).split())

    def _field(self, path: str, line: int) -> str:
        file = self._files.get(path)
        field_name = file.field_at(line) if file is not None and line else ""
        if path == self._own.path:
            return field_name or "the object"
        kind, _, name = path.rpartition("/")[2].removesuffix(".yaml").partition("-")
        return f"{kind} {name}: {field_name}" if field_name else f"{kind} {name}"


def _message(refused: list[str]) -> str:
    count = f"{len(refused)} fault{'s' if len(refused) > 1 else ''}"
    text = f"preflight found {count} that would stop, hang or corrupt this job:\n" + "\n".join(refused)
    return text if len(text) <= _MESSAGE_LENGTH else text[: _MESSAGE_LENGTH - len(_CUT)] + _CUT


def _limit_warnings(warnings: list[str]) -> tuple[str, ...]:
    limited: list[str] = []
    left = _WARNINGS_LENGTH
    for number, warning in enumerate(dict.fromkeys(warnings)):
        text = warning if len(warning) <= _WARNING_LENGTH else warning[: _WARNING_LENGTH - len(_CUT)] + _CUT
        left -= len(text.encode("utf-8", "replace"))
        if left < 0:
            limited.append(f"and {len(warnings) - number} more; `preflight lint` shows all")
            break
        limited.append(text)
    return tuple(limited)


def not_judged(policy: Policy, reason: str, *, answer: str = "") -> Judgement:
    """Return the policy's judgement for an object that could not be judged."""
    text = f"preflight could not check this object: {reason}"
    if (answer or policy.on_failure) == "refuse":
        return Judgement(False, f"{text}; it is refused because the webhook is set to fail closed", result="not-judged")
    return Judgement(True, warnings=_limit_warnings([text]), result="not-judged")


#: Lowest severities that refuse an object; with `never` all findings are only warnings.
LEVELS = ("error", "warning", "never")
#: An object in etcd has at most 1.5 MiB, and an update contains it twice.
MAX_BODY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Policy:
    """How submitted objects are judged.

    Args:
        configuration: which rules run, how severe their findings are, and what is waived. Patterns of files match
            `NAMESPACE/KIND-NAME.yaml`.
        refuse_at: one of LEVELS, for namespaces that `namespaces` does not list.
        namespaces: patterns of namespaces with their own level; the first that matches counts.
        on_failure: `allow` or `refuse`, for an object that cannot be judged: no time, too many requests, a crash.
        on_too_large: `allow` or `refuse`, for a request above `max_body_bytes`.
        max_body_bytes: the largest request that is read.
        max_concurrent: requests that are judged at the same time, each in its own process.
        max_waiting: requests that wait for their turn; further ones are not judged.
        deadline_s: seconds for one request. The API server's own limit counts if it is shorter.
    """

    configuration: Configuration = field(default_factory=Configuration)
    refuse_at: str = "error"
    namespaces: tuple[tuple[str, str], ...] = ()
    on_failure: str = "allow"
    on_too_large: str = "allow"
    max_body_bytes: int = MAX_BODY_BYTES
    max_concurrent: int = 2
    max_waiting: int = 32
    deadline_s: float = 8.0

    def level(self, namespace: str) -> str:
        """Return the mildest severity that refuses an object of this namespace, or `never`."""
        for pattern, level in self.namespaces:
            if fnmatch.fnmatchcase(namespace, pattern):
                return level
        return self.refuse_at

    def refuses(self, severity: Severity, namespace: str) -> bool:
        """Return whether a finding of this severity refuses an object of this namespace."""
        level = self.level(namespace)
        return (severity is Severity.ERROR and level != "never") or (
            severity is Severity.WARNING and level == "warning"
        )


def levels_of(values: Sequence[str], default: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Parse `--refuse-at error` and `--refuse-at 'team-*=never'`. Raises UsageError."""
    general: list[str] = []
    namespaces: list[tuple[str, str]] = []
    for value in values:
        namespace, sign, level = value.rpartition("=")
        if level not in LEVELS or (sign and not namespace):
            near = similar_names(level.lower(), LEVELS)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(LEVELS)}, or NAMESPACE=LEVEL"
            raise UsageError(f"--refuse-at {value}: {level!r} is not a level; {hint}")
        if sign:
            namespaces.append((namespace, level))
        else:
            general.append(level)
    if len(general) > 1:
        raise UsageError(f"--refuse-at {' and '.join(general)}: pass one level for all namespaces, and NAMESPACE=LEVEL")
    return (general[0] if general else default), tuple(namespaces)


Object = Mapping[str, Any]

#: The folder of objects without a namespace; a namespace cannot have this name.
CLUSTER = "_cluster"
#: Parts that the API server or clients add, which are not about the job.
_IRRELEVANT = ("managedFields", "resourceVersion", "uid", "selfLink", "generation", "creationTimestamp")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_PATH = 160


class NotWritable(Exception):
    """An object cannot be written as a manifest."""


@dataclass(frozen=True)
class ObjectFile:
    """One object as a YAML file at `NAMESPACE/KIND-NAME.yaml`."""

    path: str
    text: str
    kind: str = ""

    @cached_property
    def _starts(self) -> tuple[list[int], list[str]]:
        found = list(_field_starts(yaml.compose(self.text, Loader=_LOADER)))
        return [line for line, _ in found], [name for _, name in found]

    def field_at(self, line: int) -> str:
        """Return the field whose text contains a line (1-based): `spec.template.spec.containers[0].args[2]`."""
        lines, names = self._starts
        position = bisect.bisect_right(lines, line) - 1
        return names[position] if position >= 0 else ""


def object_file(value: Object, namespace: str) -> ObjectFile:
    """Return the file of an object; `namespace` is empty for cluster-wide ones. Raises NotWritable."""
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name = _file_part(metadata.get("name") or metadata.get("generateName"))
    path = f"{_file_part(namespace) or CLUSTER}/{_file_part(value.get('kind'))}-{name}.yaml"
    kept = {key: part for key, part in value.items() if key not in ("metadata", "status")}
    about = {key: part for key, part in metadata.items() if key not in _IRRELEVANT}
    annotations = about.get("annotations")
    if isinstance(annotations, Mapping):
        about["annotations"] = {key: part for key, part in annotations.items() if key != _APPLIED}
    if namespace:
        about.setdefault("namespace", namespace)
    ordered: dict[Any, Any] = {key: kept.pop(key) for key in ("apiVersion", "kind") if key in kept}
    document: dict[Any, Any] = {**ordered, "metadata": about, **kept}
    try:
        text = to_yaml(document, width=2**20)
    except RecursionError:
        raise NotWritable("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError):
        raise NotWritable("it contains characters that a manifest cannot contain") from None
    return ObjectFile(path, text, _text(value.get("kind")))


def _file_part(value: object) -> str:
    """Return a name as part of a path: without separators, and short."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", value if isinstance(value, str) else "").strip(".")[:120]


def _field_starts(root: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """Yield the first line of each field (1-based) in order, with its path."""
    waiting: list[tuple[int, yaml.Node, str]] = [(0, root, "")] if root is not None else []
    while waiting:
        line, node, path = waiting.pop()
        if path:
            yield line, path
        below: list[tuple[int, yaml.Node, str]] = []
        if isinstance(node, yaml.MappingNode):
            below = [(key.start_mark.line + 1, value, _join_path(path, str(key.value))) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            below = [(item.start_mark.line + 1, item, f"{path}[{number}]") for number, item in enumerate(node.value)]
        waiting.extend(reversed(below))


def _join_path(path: str, key: str) -> str:
    step = key if re.fullmatch(r"[\w-]{1,80}", key) else f"[{key[:80]}]"
    if not path:
        return step
    return f"{path}{step}" if step.startswith("[") else f"{path}.{step}"[-_MAX_PATH:]


#: The namespace of objects of the whole cluster.
_NONE = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind in the API. `listed`: all objects of a namespace matter, whatever their names."""

    group: str
    plural: str
    namespaced: bool = True
    listed: bool = False
    version: str = ""


#: The kinds that are read together with a job.
RESOURCES = {kind: Resource(**row) for kind, row in toml.beside(__file__, "resources.toml").items()}


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """An object of the cluster; with an empty name, all objects of the kind in the namespace."""

    kind: str
    name: str
    namespace: str = ""

    @property
    def words(self) -> str:
        """Return the reference for a message: `LocalQueue q in namespace team-a`."""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.kind} {self.name}{where}" if self.name else f"every {self.kind}{where}"


def references_of(
    files: Iterable[ObjectFile], documents: Sequence[Mapping[str, Any]], namespace: str
) -> set[Reference]:
    """Return the objects that these objects of a namespace refer to, as far as they can be read from a cluster."""
    from preflight.sources.formats import lenient_yaml
    from preflight.sources.kubernetes.inputs import referenced_names

    names: set[tuple[str, str]] = set()
    for file in files:
        roots = [document.root for document in lenient_yaml.parse_all(file.text) if document.root is not None]
        names |= referenced_names(roots)
    for document in documents:
        names.update(_further_names(document))
    found = set()
    for kind, name in names:
        resource = RESOURCES.get(kind)
        if resource is not None and isinstance(name, str):
            found.add(Reference(kind, name, namespace if resource.namespaced else _NONE))
    return found


def _further_names(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names that lint joins only if the objects are passed together with the job."""
    spec = document.get("spec")
    if document.get("apiVersion") == "batch.volcano.sh/v1alpha1" and isinstance(spec, Mapping):
        yield "Queue", spec.get("queue") or "default"
    waiting: list[Any] = [spec]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Mapping):
            if isinstance(claim := value_at(here, "persistentVolumeClaim", "claimName"), str):
                yield "PersistentVolumeClaim", claim
            waiting.extend(here.values())
        elif isinstance(here, list):
            waiting.extend(here)


# Reviews of admission.k8s.io/v1: the request of the API server, the processes that judge it, and the response. The
# damage that a hostile object does (time, memory, a crash of native code) ends with its process. The processes are
# forks of one that has loaded everything (`prepared.py`), so a killed process does not delay the next object.


_API_VERSION = "admission.k8s.io/v1"
#: The API server writes `request.uid` first, so that a response is possible without reading the rest.
_HEAD_BYTES = 4096
_UID = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([0-9A-Za-z-]{1,64})"')
_FORBIDDEN = 403
#: Kinds that the chart registers for review: objects that belong to them were judged with them.
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
    """One request; `skipped` is why the object needs no judgement, else empty."""

    uid: str
    kind: str
    namespace: str
    name: str
    operation: str
    value: Mapping[str, Any]
    skipped: str = ""


def uid_in(body: bytes) -> str:
    """Return the uid of an unreadable request, from its first bytes; empty if they contain no uid."""
    found = _UID.search(body[:_HEAD_BYTES])
    return found[1].decode() if found else ""


def read_review(body: bytes) -> Review:
    """Parse a request. Raises InvalidReview unless it is an AdmissionReview of version v1."""
    try:
        document = json.loads(body)
    except RecursionError:
        raise InvalidReview("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidReview(f"it is not JSON: {error}") from None
    request = value_at(document, "request")
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview" or not isinstance(request, dict):
        raise InvalidReview("it is not an AdmissionReview with a request")
    if document.get("apiVersion") != _API_VERSION:
        raise InvalidReview(f"it is an AdmissionReview of version {str(document.get('apiVersion'))[:60]!r}, not v1")
    uid = request.get("uid")
    if not isinstance(uid, str) or not re.fullmatch(r"[0-9A-Za-z-]{1,64}", uid):
        raise InvalidReview("the request has no uid")
    value = request.get("object")
    return Review(
        uid,
        _text(value_at(request, "kind", "kind")),
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
    if value_at(value, "metadata", "deletionTimestamp"):
        # The removal of a finalizer must never be refused.
        return "being deleted"
    old = request.get("oldObject")
    if request.get("operation") == "UPDATE" and isinstance(old, dict) and _judged_part(old) == _judged_part(value):
        return "unchanged"
    if _is_made_by_a_controller(request, value):
        return "created by a controller"
    return ""


def _judged_part(value: Mapping[str, Any]) -> object:
    """Return the part of an object that affects the judgement."""
    rest = {key: part for key, part in value.items() if key not in ("metadata", "status")}
    return rest, value_at(value, "metadata", "labels"), value_at(value, "metadata", "annotations")


def _is_made_by_a_controller(request: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Return whether a controller made the object for another object, which was judged.

    Anybody can write an owner into an object, so only a controller is trusted. Controllers of jobs do not run in the
    namespace of the jobs: a service account of the object's own namespace belongs to people who may submit it.
    """
    name = _text(value_at(request, "userInfo", "username"))
    account = name.removeprefix(_ACCOUNT).split(":") if name.startswith(_ACCOUNT) else []
    is_controller = name == _CONTROLLER_MANAGER or (len(account) == 2 and account[0] != request.get("namespace"))
    owners = value_at(value, "metadata", "ownerReferences")
    return (
        is_controller
        and isinstance(owners, list)
        and any(
            isinstance(each, dict) and each.get("controller") is True and _text(each.get("kind")) in JUDGED_OWNERS
            for each in owners
        )
    )


def answer(uid: str, judgement: Judgement) -> bytes:
    """Return the AdmissionReview with the response, as JSON."""
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
#: Time limit in seconds for the first process, which loads everything.
_START_S = 120.0


class WorkerDied(Exception):
    """The process of a judgement ended without a result."""


class Overloaded(Exception):
    """Too many requests wait already."""


@dataclass(frozen=True, slots=True)
class Step:
    """The output of a worker: the review, and a judgement or the objects that it still needs."""

    review: Review
    result: Judgement | Wanted


@dataclass
class Workers:
    """The processes that judge. `reader` is None if there is no access to a cluster."""

    policy: Policy
    reader: Reader | None = None
    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="preflight-"))
    waiting: int = 0
    _limiter: anyio.CapacityLimiter | None = None

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    async def warm(self) -> None:
        """Start the process that the others are forked from; raises like `judge_body`."""
        _FORKS.set_forkserver_preload([_PREPARED])
        with anyio.fail_after(_START_S):
            await self._run(_do_nothing)

    async def judge_body(self, body: bytes) -> Step:
        """Judge the body of a request. Raises InvalidReview, Overloaded, WorkerDied, or the caller's TimeoutError."""
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
            raise AssertionError("the last round decides")
        finally:
            self.waiting -= 1

    async def _read(self, references: tuple[Reference, ...]) -> tuple[Read, ...]:
        read_by_reference: dict[Reference, Read] = {}

        async def read(reference: Reference) -> None:
            assert self.reader is not None
            read_by_reference[reference] = await anyio.to_thread.run_sync(
                self.reader, reference, abandon_on_cancel=True
            )

        async with anyio.create_task_group() as group:
            for reference in references:
                group.start_soon(read, reference)
        return tuple(read_by_reference[reference] for reference in references)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self.policy.max_concurrent)
        async with self._limiter:
            seconds = max(0.0, min(anyio.current_effective_deadline() - anyio.current_time(), _START_S))
            # The thread ends by itself, with its process, at the same deadline.
            return await anyio.to_thread.run_sync(
                _call_in_process, function, arguments, seconds, abandon_on_cancel=True
            )


def _call_in_process(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any:
    """Return the result of a call in a new process. Raises TimeoutError after `seconds`, or WorkerDied."""
    receiver, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_send_result, args=(sender, function, arguments), daemon=True)
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


def _send_result(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Send the result of a call, or its exception. This is the main function of a process."""
    try:
        result = function(*arguments)
    except InvalidReview as error:
        result = error
    except Exception as error:
        # Some exceptions cannot be sent to another process.
        result = WorkerDied(f"{type(error).__name__}: {error}"[:2000])
    sender.send(result)


def _do_nothing() -> None:
    """Prove that a process can be started."""


def _step(body: bytes, policy: Policy, folder: str, reads: tuple[Read, ...] | None, is_last: bool) -> Step:
    found = read_review(body)
    slim = Review(found.uid, found.kind, found.namespace, found.name, found.operation, {}, found.skipped)
    if found.skipped:
        return Step(slim, Judgement(True, result="skipped"))
    return Step(slim, judge(found.value, found.namespace, policy, folder, reads, is_last=is_last))


def _step_of_object(
    value: Mapping[str, Any], namespace: str, policy: Policy, folder: str, reads: tuple[Read, ...] | None, is_last: bool
) -> Step:
    result = judge(value, namespace, policy, folder, reads, is_last=is_last)
    return Step(Review("", str(value.get("kind")), namespace, "", "", {}), result)

"""Judges one submitted object by its own text and by the objects that it refers to.

Runs in a process of its own, which is killed at the deadline (`workers.py`). Everything here is pure but for an empty
folder, which is the root of the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from preflight._util.redaction import scrub
from preflight._util.sanitize import clean
from preflight.model.findings import Finding, Severity, VerdictKind
from preflight.services.admission.policy import Policy
from preflight.services.admission.references import RESOURCES, Reference, references_of
from preflight.services.admission.submission import NotWritable, ObjectFile, object_file

#: Rounds in which objects lead to further ones: a label to a queue, that to its ClusterQueue.
MAX_ROUNDS = 3
#: Objects that are read for one submission.
MAX_REFERENCES = 40
#: Clients show warnings of up to 256 characters each, and 4096 in all.
_WARNING_LENGTH = 256
_WARNINGS_LENGTH = 4000
_MESSAGE_LENGTH = 8000
_CUT = "..."
_MAX_NAMED = 3
#: The rule that says what the API server rejects. The server itself has accepted the object, by the release in use.
_SCHEMA_RULE = "manifest-refused"


@dataclass(frozen=True, slots=True)
class Read:
    """The answer of the cluster about one reference: its objects, or why there are none."""

    reference: Reference
    objects: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Objects that are needed before the judgement."""

    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer to a submission.

    Args:
        allowed: whether it is admitted.
        message: why it is refused.
        warnings: what its author should know, each of at most 256 characters.
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
    """Judge an object, or name further objects that have to be read first.

    Args:
        value: the object as submitted.
        namespace: where it is submitted; empty for an object of the whole cluster.
        folder: an empty folder.
        reads: what has been read so far; None if there is no access to a cluster.
        is_last: no further objects can be read.
    """
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
            about = each.get("metadata")
            place = about.get("namespace") if isinstance(about, Mapping) else ""
            try:
                file = object_file(each, place if isinstance(place, str) else "")
            except NotWritable:
                # An object of the cluster that was not read is unknown, as one that is not there.
                continue
            files.setdefault(file.path, file)
            documents.append(each)
    if reads is not None and not is_last:
        asked = {read.reference for read in reads}
        wanted = references_of(files.values(), documents, namespace) - asked
        if not asked and namespace:
            wanted |= {Reference(kind, "", namespace) for kind, resource in RESOURCES.items() if resource.listed}
        more = tuple(sorted(wanted))[: max(0, MAX_REFERENCES - len(asked))]
        if more:
            return Wanted(more)
    return _judged(own, value, files, namespace, policy, Path(folder), reads)


def _may_be_a_job(file: ObjectFile) -> bool:
    from preflight.sources.base import SourceFile
    from preflight.sources.kubernetes.kubernetes_source import KubernetesSource

    return KubernetesSource().recognises(SourceFile(file.path, file.text, "", len(file.text)))


def _judged(
    own: ObjectFile,
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
    beside = [path for path, file in files.items() if path != own.path and file.kind in _NAMED_TOGETHER]
    report = api.lint(
        [folder / own.path, *(folder / path for path in beside)],
        root=folder,
        configuration=policy.configuration,
        given={folder / path: file.text.encode("utf-8", "surrogatepass") for path, file in files.items()},
    )
    shown = _Shown(files, own)
    refused: list[str] = []
    warnings: list[str] = []
    findings: list[tuple[str, str]] = []
    for finding in report.findings:
        if finding.severity is Severity.INFO or (finding.locations and finding.locations[0].path in beside):
            # A fault of another object is not this one's. A runtime or script is a part of the job.
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
        if own.kind not in TRAINING_KINDS:
            return Judgement(True, result="not-a-job")
        warnings.append(shown.line("preflight did not judge this object: it recognised no launch of ranks in it"))
    missing = [
        shown.line(
            f"preflight could not read {read.reference.words}, so what depends on it was not judged: {read.problem}"
        )
        for read in reads or ()
        if read.problem
    ]
    if reads is None and (unread := sorted(references_of([own], [value], namespace))):
        names = ", ".join(reference.words for reference in unread[:_MAX_NAMED]) + (
            ", ..." if len(unread) > _MAX_NAMED else ""
        )
        missing.append(
            shown.line(f"preflight has no access to the cluster, so what depends on these was not judged: {names}")
        )
    warnings.extend(missing)
    result = "refused" if refused else "warned" if findings else "undecided" if warnings else "passed"
    message = _message(refused) if refused else ""
    return Judgement(not refused, message, _limited(warnings), result, tuple(findings))


#: Kinds that lint joins with a job only if both are named.
_NAMED_TOGETHER = ("PersistentVolumeClaim", "ResourceQuota", "Queue")


class _Shown:
    """Writes findings for people who do not see the files: with fields of their object instead of lines."""

    def __init__(self, files: Mapping[str, ObjectFile], own: ObjectFile) -> None:
        self._files = files
        self._own = own
        paths = "|".join(re.escape(path) for path in sorted(files, key=len, reverse=True))
        self._place = re.compile(rf"({paths})(?::(\d+)(?::\d+)?)?")

    def full(self, finding: Finding) -> str:
        """The finding with its field and remedy, on lines of its own."""
        remedy = f"\n  fix: {self.line(finding.remedy)}" if finding.remedy else ""
        at = finding.locations[0] if finding.locations else None
        place = f"\n  at: {self.line(self._field(at.path, at.line))}" if at is not None else ""
        return f"{finding.severity.value}[{finding.id}] {finding.name}: {self.line(finding.message)}{place}{remedy}"

    def short(self, finding: Finding) -> str:
        """The finding as one line."""
        remedy = f" Fix: {finding.remedy}" if finding.remedy else ""
        return self.line(f"{finding.severity.value}[{finding.id}] {finding.name}: {finding.message}{remedy}")

    def line(self, text: str) -> str:
        """One line without secrets and control characters, and with fields for lines."""
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
    text = f"preflight found {count} that would stop, hang or spoil this job:\n" + "\n".join(refused)
    return text if len(text) <= _MESSAGE_LENGTH else text[: _MESSAGE_LENGTH - len(_CUT)] + _CUT


def _limited(warnings: list[str]) -> tuple[str, ...]:
    found: list[str] = []
    left = _WARNINGS_LENGTH
    for number, warning in enumerate(dict.fromkeys(warnings)):
        text = warning if len(warning) <= _WARNING_LENGTH else warning[: _WARNING_LENGTH - len(_CUT)] + _CUT
        left -= len(text.encode("utf-8", "replace"))
        if left < 0:
            found.append(f"and {len(warnings) - number} more; `preflight lint` shows all of them")
            break
        found.append(text)
    return tuple(found)


def not_judged(policy: Policy, reason: str, *, answer: str = "") -> Judgement:
    """The answer for an object that could not be judged, as the policy says."""
    text = f"preflight could not judge this object: {reason}"
    if (answer or policy.on_failure) == "refuse":
        return Judgement(False, f"{text}; it is refused because the webhook is set to fail closed", result="not-judged")
    return Judgement(True, warnings=_limited([text]), result="not-judged")

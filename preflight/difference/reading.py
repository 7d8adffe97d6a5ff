"""A report out of a file that holds one as JSON, or a recording, which is judged first. Told apart by their content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from preflight import report as reports
from preflight.complaint import said
from preflight.errors import UsageError
from preflight.recording import Recording
from preflight.report import Report
from preflight.saved import load

#: Reports stay far below; what is larger is a recording, or nothing of ours.
_LARGEST_BYTES = 1 << 30


def report_in(path: Path, judge: Callable[[Recording], Report]) -> Report:
    """The report that a file holds, or the one on the recording that it holds.

    The jobs of a report are left out: they are the bulk of it, and no comparison looks at them.

    Raises:
        UsageError: it cannot be read, or holds neither.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    document = _document(data)
    kind = _kind(document) if document is not None else ""
    if document is not None and kind == "report":
        return _report(document, path)
    if kind:
        raise UsageError(f"{path} is {kind}; a report (`-o json:report.json`) or a recording (`--save`) is expected")
    try:
        recording = load(data, to_judge=True)
    except ValueError as error:
        raise UsageError(
            f"{path} is neither a report (`-o json:report.json`) nor a recording (`--save`): {error}"
        ) from None
    return judge(recording)


def _document(data: bytes) -> dict[str, Any] | None:
    """The JSON object in the file; None where it surely is a recording, which is then read once, and as one."""
    if (b'"claims"' in data and b'"coverage"' not in data) or len(data) > _LARGEST_BYTES:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _kind(document: dict[str, Any]) -> str:
    """What a JSON object of ours is; empty for a recording, and for what nobody knows."""
    if "coverage" in document and "outcomes" in document:
        return "report"
    if "runs" in document and "$schema" in document:
        return "a SARIF log, which does not hold all that is compared"
    if "answer" in document and "logs" in document:
        return "a diagnosis"
    if "answer" in document and "appeared" in document:
        return "a comparison"
    if {*document} == {"schema_version", "findings"}:
        return "a baseline"
    return ""


def _report(document: dict[str, Any], path: Path) -> Report:
    version = document.get("schema_version")
    if version != reports.SCHEMA_VERSION:
        known = reports.SCHEMA_VERSION
        raise UsageError(f"the report {path} has the schema version {version!r}; this preflight reads {known}")
    try:
        read = reports.adapter().validate_python({**document, "jobs": ()})
    except ValueError as error:
        raise UsageError(f"{path} is no report that this preflight can read: {said(error)}") from None
    assert isinstance(read, Report)
    return read

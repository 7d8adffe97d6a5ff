"""Loads a report from a JSON report, or from a recording, which is judged first; the content shows which it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from preflight._util import regular_file
from preflight._util.usage_error import UsageError
from preflight._util.validation import format_errors
from preflight.engine import report as reports
from preflight.engine.report import Report
from preflight.model.recording import Recording
from preflight.model.recording_io import MAX_BYTES, load


def report_in(path: Path, judge: Callable[[Recording], Report]) -> Report:
    """Return the report in a file, or the one about the recording in it.

    The jobs of a report are omitted: they make up most of its size, and no comparison uses them.

    Raises:
        UsageError: the file cannot be read, or contains neither.
    """
    try:
        data = regular_file.read(path, MAX_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    document = _document(data)
    kind = _kind(document) if document is not None else ""
    if document is not None and kind == "report":
        return _report(document, path)
    if kind:
        raise UsageError(f"{path} is {kind}; expected a report (`-o json:report.json`) or a recording (`--save`)")
    try:
        recording = load(data, to_judge=True)
    except ValueError as error:
        raise UsageError(
            f"{path} is neither a report (`-o json:report.json`) nor a recording (`--save`): {error}"
        ) from None
    return judge(recording)


def _document(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object in the file; None if it is certainly a recording, which is then read only once."""
    if b'"claims"' in data and b'"coverage"' not in data:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _kind(document: dict[str, Any]) -> str:
    """Return the kind of one of our JSON documents; empty for a recording or an unknown object."""
    if "coverage" in document and "outcomes" in document:
        return "report"
    if "runs" in document and "$schema" in document:
        return "a SARIF log, which lacks some of what is compared"
    if "answer" in document and "logs" in document:
        return "a diagnosis"
    if "answer" in document and "appeared" in document:
        return "a comparison"
    if {*document} == {"schema_version", "findings"}:
        return "a baseline"
    return ""


def _report(document: dict[str, Any], path: Path) -> Report:
    version = document.get("schema_version")
    if version == 1:
        document = _with_current_keys(document)
    elif version != reports.SCHEMA_VERSION:
        known = reports.SCHEMA_VERSION
        raise UsageError(f"the report {path} has schema version {version!r}; this preflight reads 1 to {known}")
    try:
        read = reports.adapter().validate_python({**document, "jobs": ()})
    except ValueError as error:
        raise UsageError(
            f"{path} is not a report that this version of preflight can read: {format_errors(error)}"
        ) from None
    assert isinstance(read, Report)
    return read


#: Keys of the first version of reports that have another name now, by the object that holds them.
_RENAMED_KEYS = {
    "": {"saved": "avoided_cost", "exhibits": "charts"},
    "run": {"wish": "smoke_options"},
    "coverage": {
        "not_told": "unknown_outcomes",
        "remarks": "suppression_notes",
        "idle_suppressions": "unused_suppressions",
        "idle_baseline": "unused_baseline",
    },
}


def _with_current_keys(document: dict[str, Any]) -> dict[str, Any]:
    """Return a report of the first version as one of the current version."""
    found = _renamed(document, _RENAMED_KEYS[""]) | {"schema_version": reports.SCHEMA_VERSION}
    for name in ("run", "coverage"):
        if isinstance(found.get(name), dict):
            found[name] = _renamed(found[name], _RENAMED_KEYS[name])
    options = found["run"].get("smoke_options") if isinstance(found.get("run"), dict) else None
    if isinstance(options, dict):
        found["run"]["smoke_options"] = _renamed(options, {"drill": "injected_fault"})
    return found


def _renamed(content: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in content.items()}

"""SARIF 2.1.0, which code-scanning pages and editors read.

A finding is a `fail` result. A required check that could not be decided is an `open` result, so that it is visible and
does not look like a pass. A finding about a node has that node as logical location. Its physical location is the claim
that caused the check, otherwise the beginning of the job's first file: GitHub rejects a log if any result lacks a
physical location.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from preflight._util.json_output import escape_control_chars
from preflight._util.sanitize import clean, fold_nodes
from preflight.engine.report import ExitCode, Report
from preflight.model.findings import Finding, Fix, Location, Outcome, Severity
from preflight.reporters.base import Style

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
#: Rules of other files are `external`.
_SUPPRESSED = {"": "inSource", "comment": "inSource"}
_FINGERPRINT = "preflight/v1"
_ROOT = "ROOT"
#: Exit codes of runs that reached a verdict.
_VERDICT_CODES = (ExitCode.GO, ExitCode.NO_GO, ExitCode.INCOMPLETE, ExitCode.NOT_JUDGED)


class SarifReporter:
    """Renders one run with one result per finding."""

    name = "sarif"

    def render(self, report: Report, style: Style) -> bytes:
        written = json.dumps(log(report), indent=2, ensure_ascii=False).encode("utf-8", "replace")
        return escape_control_chars(written.decode()).encode() + b"\n"


def log(report: Report) -> dict[str, Any]:
    """Return the SARIF log of `report` as plain values."""
    opened = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    rules = _rules(report, opened)
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    nowhere = _beginning(report)
    results = [_result(finding, index, nowhere) for finding in (*report.findings, *report.suppressed)]
    results.extend(_open_result(outcome, index, nowhere) for outcome in opened)
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "preflight", "version": report.tool.version, "rules": rules}},
        "automationDetails": {"id": f"preflight/{report.run.verb}/"},
        "invocations": [_invocation(report)],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The directory that was linted."}}},
        "artifacts": [
            {
                "location": {"uri": _uri(file.path), "uriBaseId": _ROOT},
                "length": file.size_bytes,
                "hashes": {"sha-256": file.sha256},
            }
            for file in report.inputs
        ],
        "columnKind": "unicodeCodePoints",
        "properties": {"verdict": report.verdict.value, **_injected_fault(report)},
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _injected_fault(report: Report) -> dict[str, str]:
    """Return the injected fault, if any. With an injected fault the results show nothing about the nodes."""
    fault = report.run.smoke_options.injected_fault
    return {"injected_fault": fault.option_text} if fault is not None else {}


def _invocation(report: Report) -> dict[str, Any]:
    invocation: dict[str, Any] = {
        "executionSuccessful": report.exit_code in _VERDICT_CODES,
        "exitCode": int(report.exit_code),
    }
    problems = [
        {
            "level": "error",
            "message": {"text": clean(f"{broken.where} of {broken.plugin} cannot be used: {broken.why}")},
        }
        for broken in report.coverage.broken
    ]
    if problems:
        invocation["toolExecutionNotifications"] = problems
    notes = [
        {
            "level": "warning" if note.kind == "waiver-expired" else "note",
            "descriptor": {"id": note.kind},
            "message": {"text": clean(note.message)},
            **({"locations": [_physical(note.location)]} if note.location is not None else {}),
        }
        for note in report.coverage.suppression_notes
    ]
    if notes:
        invocation["toolConfigurationNotifications"] = notes
    return invocation


def _rules(report: Report, opened: list[Outcome]) -> list[dict[str, Any]]:
    """Return a descriptor for each rule that has a result. Documentation is included if the rule is installed."""
    from preflight.plugins.installed import all_items, declared_by

    wanted = {f.id: (f.name, _LEVELS[f.severity]) for f in (*report.suppressed, *report.findings)}
    for outcome in opened:
        wanted.setdefault(outcome.id, (outcome.name, "warning"))
    known = {item.meta.id: item.meta for item in (*all_items(), *declared_by(report.configuration.site))}
    descriptors = []
    for id in sorted(wanted):
        name, level = wanted[id]
        meta = known.get(id)
        doc = inspect.cleandoc(meta.doc) if meta else ""
        descriptor: dict[str, Any] = {
            "id": id,
            "name": name,
            "shortDescription": {"text": doc.splitlines()[0] if doc else name},
            "defaultConfiguration": {"level": _LEVELS[meta.severity] if meta else level},
        }
        descriptor["fullDescription"] = {"text": _full_description(doc) or name}
        descriptor["help"] = {"text": doc or name}
        if meta:
            descriptor["properties"] = {"tags": ["distributed-training"], "precision": meta.confidence.value}
        descriptors.append(descriptor)
    return descriptors


def _full_description(doc: str) -> str:
    paragraphs = doc.split("\n\n")
    return " ".join(" ".join(paragraphs[:2]).split()).replace("What it checks: ", "", 1)


def _beginning(report: Report) -> dict[str, Any]:
    """Return the first position of the job's first file, for results without a location; empty without files."""
    if not report.inputs:
        return {}
    artifact = {"uri": _uri(report.inputs[0].path), "uriBaseId": _ROOT}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": 1}}}


def _result(finding: Finding, index: dict[str, int], nowhere: dict[str, Any]) -> dict[str, Any]:
    on = f"\non {fold_nodes(finding.nodes)}" if finding.nodes else ""
    message = finding.message + on + (f"\nFix: {finding.remedy}" if finding.remedy else "")
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": index[finding.id],
        "level": _LEVELS[finding.severity],
        "kind": "fail",
        "message": {"text": clean(message, keep_newlines=True)},
        "partialFingerprints": {_FINGERPRINT: finding.fingerprint},
    }
    result["locations"] = [_primary(finding, nowhere)]
    if finding.locations[1:]:
        result["relatedLocations"] = [
            {**_physical(location), "id": number} for number, location in enumerate(finding.locations[1:], 1)
        ]
    if finding.evidence:
        result["properties"] = {
            "evidence": [
                {"fact": e.fact, "node": e.node, "observed": clean(e.observed), "expected": clean(e.expected)}
                for e in finding.evidence
            ]
        }
    if finding.fix is not None:
        result["fixes"] = [_fix(finding.fix)]
    # An empty list means that nothing suppresses it; a missing list would mean that this is unknown.
    result["suppressions"] = (
        [{"kind": _SUPPRESSED.get(finding.suppressed_by, "external"), "justification": clean(finding.suppression)}]
        if finding.suppression
        else []
    )
    return result


def _fix(fix: Fix) -> dict[str, Any]:
    changes: dict[str, list[dict[str, Any]]] = {}
    for edit in fix.edits:
        # A deleted line ends where the next one begins.
        whole = edit.expected.endswith("\n")
        deleted = {
            "startLine": edit.line,
            "startColumn": edit.column,
            "endLine": edit.line + whole,
            "endColumn": 1 if whole else edit.column + len(edit.expected),
        }
        inserted = {"insertedContent": {"text": edit.replacement}} if edit.replacement else {}
        changes.setdefault(edit.path, []).append({"deletedRegion": deleted, **inserted})
    return {
        "description": {"text": clean(fix.description)},
        "artifactChanges": [
            {"artifactLocation": {"uri": _uri(path), "uriBaseId": _ROOT}, "replacements": replacements}
            for path, replacements in changes.items()
        ],
    }


def _open_result(outcome: Outcome, index: dict[str, int], nowhere: dict[str, Any]) -> dict[str, Any]:
    location = _physical(outcome.locations[0]) if outcome.locations else nowhere
    return {
        "ruleId": outcome.id,
        "ruleIndex": index[outcome.id],
        "level": "none",
        "kind": "open",
        "message": {"text": clean(f"{outcome.subject}: {outcome.reason}", keep_newlines=True)},
        "locations": [{**location, "logicalLocations": [{"name": clean(outcome.subject)}]}],
        "suppressions": [],
    }


def _primary(finding: Finding, nowhere: dict[str, Any]) -> dict[str, Any]:
    location = _physical(finding.locations[0]) if finding.locations else dict(nowhere)
    if finding.nodes:
        location["logicalLocations"] = [{"name": clean(node), "kind": "resource"} for node in finding.nodes]
    elif not finding.locations:
        location["logicalLocations"] = [{"name": clean(finding.subject)}]
    return location


def _physical(location: Location) -> dict[str, Any]:
    region: dict[str, Any] = {
        "startLine": location.line,
        "startColumn": location.column,
        "endLine": location.end_line,
        "endColumn": location.end_column,
    }
    if location.snippet:
        region["snippet"] = {"text": clean(location.snippet)}
    found: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": {"uri": _uri(location.path), "uriBaseId": _ROOT}, "region": region}
    }
    if location.note:
        found["message"] = {"text": clean(location.note)}
    return found


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path, errors="replace")


REPORTER = SarifReporter()

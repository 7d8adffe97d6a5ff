"""Code actions: the edits of `preflight lint --fix`, and comments that suppress a finding."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lsprotocol import types

from preflight._util.sanitize import clean
from preflight.commands.fix import Files, plan
from preflight.model.findings import Edit, Finding
from preflight.services.language_server.diagnostics import PlacedFinding, Places, placed_findings
from preflight.services.language_server.folder import Folder, Watch
from preflight.services.language_server.uris import uri_of

FIX_ALL = "source.fixAll.preflight"
KINDS = (types.CodeActionKind.QuickFix.value, FIX_ALL)
#: Findings of one range that get actions; each suppression is tried by judging the job with it.
MAX_FINDINGS = 8
_REASON = "say why"
#: Files whose comments begin with `//`; JSON has none.
_SLASHES = frozenset((".json", ".jsonc", ".json5", ".hjson"))


class BufferFiles(Files):
    """The files of a folder as they were judged, with the unsaved texts of the editor; nothing is written.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.root)
        self._folder = folder

    def read(self, path: str) -> bytes:
        """The content of a file that was judged. Raises OSError; ValueError for one that is not regular or outside."""
        content = self._folder.buffer(path)
        return super().read(path) if content is None else content


def actions(
    folder: Folder,
    path: str,
    range: types.Range,
    only: Sequence[str] | None,
    versions: Mapping[str, int],
    watch: Watch,
) -> list[types.CodeAction]:
    """The actions for a range of a file.

    Args:
        folder: its jobs have the findings.
        path: the file, relative to the folder.
        range: what the editor asks about.
        only: kinds of actions that it wants; None for all.
        versions: of the open files by path, so that an edit of an outdated text is refused.
        watch: stops the judging of suppressions.

    Raises:
        Superseded: it was stopped.
    """
    places = Places(folder)
    findings = placed_findings(folder, path, places)
    found: list[types.CodeAction] = []
    if _wants(only, types.CodeActionKind.QuickFix.value):
        for placed in [one for one in findings if _touches(one.range, range)][:MAX_FINDINGS]:
            found += _fixes(folder, placed, places, versions)
            found += _suppressions(folder, path, placed, places, versions, watch)
    if only is not None and _wants(only, FIX_ALL):
        found += _fix_all(folder, path, places, versions)
    return found


def _fixes(
    folder: Folder, placed: PlacedFinding, places: Places, versions: Mapping[str, int]
) -> Iterator[types.CodeAction]:
    finding = placed.finding
    report = folder.jobs[placed.job].report
    if finding.fix is None or report is None:
        return
    planned = plan(replace(report, findings=(finding,)), BufferFiles(folder), unsafe=True)
    if not planned.fixed:
        return
    what = clean(finding.fix.description)
    yield types.CodeAction(
        f"{what} ({finding.id})"
        if finding.fix.safe
        else f"{what} ({finding.id}, unsafe: may change what the job does)",
        types.CodeActionKind.QuickFix,
        [_diagnostic_of(placed)],
        is_preferred=finding.fix.safe,
        edit=_edit(folder, finding.fix.edits, places, versions),
    )


def _fix_all(folder: Folder, path: str, places: Places, versions: Mapping[str, int]) -> Iterator[types.CodeAction]:
    edits: dict[Edit, None] = {}
    for judged in folder.jobs_with(path):
        if judged.report is not None:
            planned = plan(judged.report, BufferFiles(folder), unsafe=False)
            edits.update((edit, None) for one in planned.fixed if one.fix for edit in one.fix.edits)
    if edits and not _overlap(list(edits)):
        yield types.CodeAction(
            "Apply all safe fixes of preflight",
            FIX_ALL,
            edit=_edit(folder, list(edits), places, versions),
        )


def _overlap(edits: Sequence[Edit]) -> bool:
    ordered = sorted(edits, key=lambda edit: (edit.path, edit.line, edit.column))
    return any(
        (first.path, first.line) == (second.path, second.line)
        and first.column + max(1, len(first.expected)) > second.column
        for first, second in itertools.pairwise(ordered)
    )


def _suppressions(
    folder: Folder, path: str, placed: PlacedFinding, places: Places, versions: Mapping[str, int], watch: Watch
) -> Iterator[types.CodeAction]:
    """A comment above the finding, if the job judged with it has the finding suppressed and no other one."""
    finding = placed.finding
    text = places.text(path)
    line = finding.locations[0].line
    # A command that backslashes continue cannot contain a comment.
    while line > 1 and text.line(line - 1).endswith("\\"):
        line -= 1
    indent = re.match(r"\s*", text.line(line))
    sign = "//" if os.path.splitext(path)[1].lower() in _SLASHES else "#"  # noqa: PTH122
    ending = "\r\n" if "\r\n" in text.text else "\n"
    comment = f"{indent[0] if indent else ''}{sign} preflight: ignore[{finding.id}] {_REASON}{ending}"
    at = text.offset(line, 1)
    changed = text.text[:at] + comment + text.text[at:]
    judged = folder.judged_with(placed.job, path, changed.encode("utf-8", "replace"), watch)
    before = folder.jobs[placed.job].report
    if judged is None or before is None or not _is_suppressed(finding, judged.suppressed):
        return
    if {_identity(one) for one in judged.findings} - {_identity(one) for one in before.findings}:
        return
    start = text.position(at)
    edit = types.TextEdit(types.Range(start, start), comment)
    yield types.CodeAction(
        f"Suppress {finding.id} {finding.name} here with a comment",
        types.CodeActionKind.QuickFix,
        [_diagnostic_of(placed)],
        is_preferred=False,
        edit=_workspace_edit(folder, {path: [edit]}, versions),
    )


def _is_suppressed(finding: Finding, suppressed: Sequence[Finding]) -> bool:
    return any(one.fingerprint == finding.fingerprint for one in suppressed)


def _identity(finding: Finding) -> tuple[str, str]:
    return finding.id, finding.fingerprint


def _diagnostic_of(placed: PlacedFinding) -> types.Diagnostic:
    """Enough of a diagnostic for the editor to see which one the action is about."""
    return types.Diagnostic(
        placed.range, clean(placed.finding.message, keep_newlines=True), code=placed.finding.id, source="preflight"
    )


def _edit(folder: Folder, edits: Sequence[Edit], places: Places, versions: Mapping[str, int]) -> types.WorkspaceEdit:
    by_path: dict[str, list[types.TextEdit]] = {}
    for edit in edits:
        text = places.text(edit.path)
        start = text.offset(edit.line, edit.column)
        place = types.Range(text.position(start), text.position(start + len(edit.expected)))
        by_path.setdefault(edit.path, []).append(types.TextEdit(place, edit.replacement))
    return _workspace_edit(folder, by_path, versions)


def _workspace_edit(
    folder: Folder, by_path: Mapping[str, list[types.TextEdit]], versions: Mapping[str, int]
) -> types.WorkspaceEdit:
    return types.WorkspaceEdit(
        document_changes=[
            types.TextDocumentEdit(
                types.OptionalVersionedTextDocumentIdentifier(uri_of(Path(folder.root / path)), versions.get(path)),
                list(edits),
            )
            for path, edits in sorted(by_path.items())
        ]
    )


def _wants(only: Sequence[str] | None, kind: str) -> bool:
    return only is None or any(kind == wanted or kind.startswith(f"{wanted}.") for wanted in only)


def _touches(first: types.Range, second: types.Range) -> bool:
    return _at(first.start) <= _at(second.end) and _at(second.start) <= _at(first.end)


def _at(position: types.Position) -> tuple[int, int]:
    return position.line, position.character

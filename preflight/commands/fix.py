"""Applies the fixes of findings, to unchanged files only, each completely or not at all."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from preflight._util import regular_file
from preflight._util.sanitize import clean
from preflight.engine.report import Report
from preflight.model.findings import Edit, Finding, Fix
from preflight.reporters.text.groups import count
from preflight.sources.formats.tree import MAX_BYTES

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """The old and new content of a file; `path` is relative to the root."""

    path: str
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A fix that was not applied, and the reason."""

    finding: Finding
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Fixes to apply together, the resulting files, refused fixes, and the number of unsafe fixes that are left."""

    files: Files
    fixed: tuple[Finding, ...] = ()
    changes: tuple[ChangedFile, ...] = ()
    refused: tuple[Refused, ...] = ()
    unsafe_left: int = 0

    def written(self) -> Plan:
        """Write the files, each completely or not at all, and return the plan with its results."""
        failed: dict[str, str] = {}
        for change in self.changes:
            try:
                self.files.write(change)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                failed[change.path] = f"{change.path} cannot be written: {why}"
        late = [Refused(finding, failed[path]) for finding in self.fixed for path in _paths(finding) if path in failed]
        gone = {id(refused.finding) for refused in late}
        return replace(
            self,
            fixed=tuple(finding for finding in self.fixed if id(finding) not in gone),
            changes=tuple(change for change in self.changes if change.path not in failed),
            refused=(*self.refused, *late),
        )

    def diff(self) -> str:
        """Return the changes as a unified diff with paths as in git; what looks like a secret is hidden."""
        shown: list[str] = []
        for change in self.changes:
            before, after = _lines(change.before), _lines(change.after)
            lines = difflib.unified_diff(before, after, f"a/{change.path}", f"b/{change.path}")
            hide = _line_formatter(change)
            shown.extend(_diff_line(line, hide) for line in lines)
        return "".join(shown)

    def summary(self, *, is_preview: bool) -> str:
        """Return what was done, or would be done, one line each."""
        findings, files = count(len(self.fixed), "finding"), count(len(self.changes), "file")
        lines = [f"{'would fix' if is_preview else 'fixed'} {findings} in {files}"] if self.fixed else []
        lines.extend(f"not fixed: {refused.finding.id}: {refused.reason}" for refused in self.refused)
        if self.unsafe_left:
            lines.append(f"{self.unsafe_left} more with --unsafe-fixes; review them with --diff first")
        return "\n".join(f"preflight: {line}" for line in lines or ["nothing to fix"])


def plan(report: Report, files: Files, *, unsafe: bool) -> Plan:
    """Plan the fixes of a report's findings, worst first; suppressed findings are ignored.

    A fix that overlaps another is refused, and can be applied in the next run.
    """
    hashes = {file.path: file.sha256 for file in report.inputs}
    drafts: dict[str, _Draft | str] = {}
    fixed: list[Finding] = []
    refused: list[Refused] = []
    left = 0
    for finding in report.findings:
        fix = finding.fix
        if fix is None:
            continue
        if not fix.safe and not unsafe:
            left += 1
            continue
        for path in {edit.path for edit in fix.edits}:
            if path not in drafts:
                drafts[path] = _draft(path, hashes.get(path, ""), files)
        why = _apply_fix(fix, drafts)
        if why:
            refused.append(Refused(finding, why))
        else:
            fixed.append(finding)
    ready = [draft for _, draft in sorted(drafts.items()) if isinstance(draft, _Draft) and draft.edits]
    return Plan(files, tuple(fixed), tuple(draft.changed() for draft in ready), tuple(refused), left)


def _apply_fix(fix: Fix, drafts: Mapping[str, _Draft | str]) -> str:
    """Apply all edits of a fix to the drafts, or none; return the reason if none, otherwise an empty string."""
    edits: list[tuple[_Draft, int, Edit]] = []
    for edit in fix.edits:
        draft = drafts[edit.path]
        if isinstance(draft, str):
            return draft
        start = draft.start_of(edit)
        if start is None:
            return f"{edit.path}:{edit.line} no longer contains `{edit.expected}`"
        if draft.is_taken(start, edit):
            return f"another fix also edits {edit.path}:{edit.line}; run again"
        end = start + len(edit.expected)
        if any(second is draft and _do_overlap((start, end), (at, at + len(e.expected))) for second, at, e in edits):
            return f"its edits of {edit.path}:{edit.line} overlap"
        edits.append((draft, start, edit))
    for draft, start, edit in edits:
        draft.edits[(start, start + len(edit.expected))] = edit.replacement
    return ""


def _do_overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first == second or (first[0] < second[1] and second[0] < first[1])


@dataclass(slots=True)
class _Draft:
    """A file under edit. Its text is as sources see it: without a byte-order mark, with unchanged line endings."""

    path: str
    before: bytes
    text: str
    starts: list[int]
    edits: dict[tuple[int, int], str] = field(default_factory=dict)

    def start_of(self, edit: Edit) -> int | None:
        """Return the offset of the edit; None if the expected text is not found."""
        if not 1 <= edit.line <= len(self.starts):
            return None
        start = self.starts[edit.line - 1] + edit.column - 1
        end = self.starts[edit.line] if edit.line < len(self.starts) else len(self.text)
        inside = start + len(edit.expected) <= end
        return start if inside and self.text.startswith(edit.expected, start) else None

    def is_taken(self, start: int, edit: Edit) -> bool:
        """Return whether an accepted edit that is not identical overlaps this range."""
        end = start + len(edit.expected)
        same = self.edits.get((start, end))
        if same is not None:
            return same != edit.replacement
        return any(_do_overlap((start, end), second) for second in self.edits)

    def changed(self) -> ChangedFile:
        pieces: list[str] = []
        at = 0
        for (start, end), replacement in sorted(self.edits.items()):
            pieces += (self.text[at:start], replacement)
            at = end
        after = "".join((*pieces, self.text[at:])).encode()
        return ChangedFile(self.path, self.before, (_BOM if self.before.startswith(_BOM) else b"") + after)


def _draft(path: str, sha256: str, files: Files) -> _Draft | str:
    """Return the file ready for editing, or the reason why it cannot be edited."""
    try:
        content = files.read(path)
        if hashlib.sha256(content).hexdigest() != sha256:
            return f"{path} changed since it was checked; run again"
        text = content.removeprefix(_BOM).decode()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return f"{path} is not UTF-8"
    except ValueError as error:
        return f"{path} {error}"
    starts = [0]
    while (found := text.find("\n", starts[-1])) >= 0:
        starts.append(found + 1)
    return _Draft(path, content, text, starts)


class Files:
    """Reads and rewrites the files below a root."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)

    def read(self, path: str) -> bytes:
        """Return the content of a regular file inside the root. Raises OSError, or ValueError for any other file."""
        real = self._real(path)
        try:
            return regular_file.read(real, MAX_BYTES, follow_links=False)
        except regular_file.NotRegular as error:
            raise ValueError(f"is {error.kind}, not a regular file") from None

    def write(self, change: ChangedFile) -> None:
        """Replace a file, preserving owner, mode and inner links. Raises OSError, or ValueError if it changed."""
        if self.read(change.path) != change.before:
            raise ValueError("changed since it was checked; run again")
        real = Path(self._real(change.path))
        status = real.stat()
        owner = (status.st_uid, status.st_gid)
        regular_file.replace(
            real,
            change.after,
            mode=stat.S_IMODE(status.st_mode),
            owner=owner if owner != (os.getuid(), os.getgid()) else None,
            durable=True,
        )

    def _real(self, path: str) -> str:
        real = os.path.realpath(f"{self._root}/{path}", strict=True)
        if not real.startswith(self._root.rstrip("/") + "/"):
            raise ValueError("is outside the root")
        return real


def _lines(content: bytes) -> list[str]:
    # Split only at line feeds, as all other code here counts lines.
    found = re.split(r"(?<=\n)", content.decode().removeprefix("\ufeff"))
    return found if found[-1] else found[:-1]


def _line_formatter(change: ChangedFile) -> Callable[[str], str]:
    """Return a function that hides the secrets of the whole file, because one line of a diff may not show a secret's
    name.
    """
    from preflight.sources.base import SourceFile
    from preflight.sources.secrets import shown_lines

    text = change.before.decode("utf-8", "replace").removeprefix("\ufeff")
    return shown_lines(SourceFile(change.path, text, "", len(change.before)))


def _diff_line(line: str, hide: Callable[[str], str]) -> str:
    text = line.rstrip("\r\n")
    missing = "" if line.endswith("\n") else "\n\\ No newline at end of file"
    return f"{line[:1]}{clean(hide(text[1:])) if text[1:] else ''}{missing}\n"


def _paths(finding: Finding) -> set[str]:
    return {edit.path for edit in finding.fix.edits} if finding.fix is not None else set()

"""Applying the fixes of findings: only where a file still is what was judged, and each file whole or not at all."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Edit, Finding, Fix
from preflight.redact import scrub
from preflight.report import Report
from preflight.reporters.clean import clean

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Changed:
    """What a file of the tree is, and what it is to be; `path` is relative to the root."""

    path: str
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A fix that was not made, and why."""

    finding: Finding
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Fixes that go together, the files as they are then, and those that were not made.

    `unsafe_left` counts the fixes that only unsafe fixing would make.
    """

    files: Files
    fixed: tuple[Finding, ...] = ()
    changes: tuple[Changed, ...] = ()
    refused: tuple[Refused, ...] = ()
    unsafe_left: int = 0

    def written(self) -> Plan:
        """Write the files, each whole or not at all; the plan as it came true."""
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
        """The changes as a unified diff with paths as git writes them; what looks like a secret is hidden in it."""
        lines: list[str] = []
        for change in self.changes:
            before, after = _lines(change.before), _lines(change.after)
            lines.extend(difflib.unified_diff(before, after, f"a/{change.path}", f"b/{change.path}"))
        return "".join(_shown(line) for line in lines)

    def summary(self, *, would: bool) -> str:
        """What was done, or would be, for whoever watches: a line each."""
        findings, files = _count(len(self.fixed), "finding"), _count(len(self.changes), "file")
        lines = [f"{'would fix' if would else 'fixed'} {findings} in {files}"] if self.fixed else []
        lines.extend(f"not fixed: {refused.finding.id}: {refused.why}" for refused in self.refused)
        if self.unsafe_left:
            lines.append(f"{self.unsafe_left} more with --unsafe-fixes; read them first")
        return "\n".join(f"preflight: {line}" for line in lines or ["nothing to fix"])


def plan(report: Report, files: Files, *, unsafe: bool) -> Plan:
    """What fixing the findings of a report comes to.

    Args:
        report: its suppressed findings are left alone.
        files: those that the report speaks of.
        unsafe: make unsafe fixes, too.

    Fixes are taken worst finding first; one that would touch what another one edits is refused, and finds its turn
    when the result is judged again.
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
        why = _made(fix, drafts)
        if why:
            refused.append(Refused(finding, why))
        else:
            fixed.append(finding)
    ready = [draft for _, draft in sorted(drafts.items()) if isinstance(draft, _Draft) and draft.edits]
    return Plan(files, tuple(fixed), tuple(draft.changed() for draft in ready), tuple(refused), left)


def _made(fix: Fix, drafts: Mapping[str, _Draft | str]) -> str:
    """Take all edits of a fix into the drafts, or none of them; why not, where not."""
    found: list[tuple[_Draft, int, Edit]] = []
    for edit in fix.edits:
        draft = drafts[edit.path]
        if isinstance(draft, str):
            return draft
        start = draft.start_of(edit)
        if start is None:
            return f"{edit.path}:{edit.line} does not read `{edit.expected}` there"
        if draft.is_taken(start, edit):
            return f"another fix edits {edit.path}:{edit.line}, too; run again"
        end = start + len(edit.expected)
        if any(other is draft and _touch((start, end), (at, at + len(e.expected))) for other, at, e in found):
            return f"its edits of {edit.path}:{edit.line} overlap"
        found.append((draft, start, edit))
    for draft, start, edit in found:
        draft.edits[(start, start + len(edit.expected))] = edit.replacement
    return ""


def _touch(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two stretches share characters, are the same place, or one lies within the other."""
    return one == other or (one[0] < other[1] and other[0] < one[1])


@dataclass(slots=True)
class _Draft:
    """A file that is being edited. Its text is as sources see it: without a byte-order mark, line ends as they are."""

    path: str
    before: bytes
    text: str
    starts: list[int]
    edits: dict[tuple[int, int], str] = field(default_factory=dict)

    def start_of(self, edit: Edit) -> int | None:
        """Where the edit begins; None where its text does not stand."""
        if not 1 <= edit.line <= len(self.starts):
            return None
        start = self.starts[edit.line - 1] + edit.column - 1
        end = self.starts[edit.line] if edit.line < len(self.starts) else len(self.text)
        inside = start + len(edit.expected) <= end
        return start if inside and self.text.startswith(edit.expected, start) else None

    def is_taken(self, start: int, edit: Edit) -> bool:
        """Whether an edit that was taken touches this place, and is not the very same."""
        end = start + len(edit.expected)
        same = self.edits.get((start, end))
        if same is not None:
            return same != edit.replacement
        return any(_touch((start, end), other) for other in self.edits)

    def changed(self) -> Changed:
        """The file with all edits made."""
        pieces: list[str] = []
        at = 0
        for (start, end), replacement in sorted(self.edits.items()):
            pieces += (self.text[at:start], replacement)
            at = end
        after = "".join((*pieces, self.text[at:])).encode()
        return Changed(self.path, self.before, (_BOM if self.before.startswith(_BOM) else b"") + after)


def _draft(path: str, sha256: str, files: Files) -> _Draft | str:
    """The file, ready for edits; or why it cannot be edited."""
    try:
        content = files.read(path)
        if hashlib.sha256(content).hexdigest() != sha256:
            return f"{path} changed since it was judged; run again"
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
    """The files below a root as they are on disk, for reading and for writing them anew."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)

    def read(self, path: str) -> bytes:
        """The content of a regular file inside the root. Raises OSError; ValueError for any other."""
        real = self._real(path)
        if not stat.S_ISREG(Path(real).lstat().st_mode):
            raise ValueError("is no regular file")
        return Path(real).read_bytes()

    def write(self, change: Changed) -> None:
        """Put the new content in the place of the old, with owner and mode kept. A link inside the root stays one.

        Raises:
            OSError: it cannot be written; then nothing has changed.
            ValueError: it is no longer the file that was read.
        """
        if self.read(change.path) != change.before:
            raise ValueError("changed since it was judged; run again")
        real = Path(self._real(change.path))
        status = real.stat()
        descriptor, temporary = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name[:64]}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(change.after)
                stream.flush()
                os.fsync(descriptor)
            if (status.st_uid, status.st_gid) != (os.getuid(), os.getgid()):
                os.chown(temporary, status.st_uid, status.st_gid)
            Path(temporary).chmod(stat.S_IMODE(status.st_mode))
            Path(temporary).replace(real)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _real(self, path: str) -> str:
        real = os.path.realpath(f"{self._root}/{path}", strict=True)
        if not real.startswith(self._root.rstrip("/") + "/"):
            raise ValueError("leads outside the root")
        return real


def _lines(content: bytes) -> list[str]:
    # By line feeds alone, as everything else here counts lines.
    found = re.split(r"(?<=\n)", content.decode().removeprefix("\ufeff"))
    return found if found[-1] else found[:-1]


def _shown(line: str) -> str:
    text = line.rstrip("\r\n")
    missing = "" if line.endswith("\n") else "\n\\ No newline at end of file"
    return f"{line[:1]}{clean(scrub(text[1:])) if text[1:] else ''}{missing}\n"


def _paths(finding: Finding) -> set[str]:
    return {edit.path for edit in finding.fix.edits} if finding.fix is not None else set()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

"""One folder of an editor: its jobs, and conversion between positions of the editor and of preflight.

preflight counts lines at line feeds and columns in characters, both from 1. An editor also ends a line at a carriage
return, counts from 0, and counts columns in the units that it agreed on with the server, usually those of UTF-16.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes, urlsplit

from lsprotocol import types

from preflight import __version__, api
from preflight._util.budget import running
from preflight._util.roots import repository_of
from preflight.commands.fix import Files
from preflight.config.resolve import Choices, read_jobs, resolve_settings
from preflight.engine.judge import judge
from preflight.model.job import Job, NoteKind
from preflight.model.progress import Step
from preflight.model.recording import Configuration, Recording
from preflight.sources.base import defaults_assumed
from preflight.sources.discovery.walk import Excluded, walk
from preflight.sources.formats.tree import MAX_BYTES

if TYPE_CHECKING:
    from pygls.workspace import PositionCodec

    from preflight.engine.report import Report


_EDITOR_LINE_END = re.compile(r"\r\n|\n|\r")


class Text:
    """The text of one file without a byte-order mark; `codec` converts characters to the editor's units."""

    def __init__(self, text: str, codec: PositionCodec) -> None:
        self.text = text
        self._codec = codec
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._editor_starts = [0, *(match.end() for match in _EDITOR_LINE_END.finditer(text))]

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a line and column of preflight, moved into the text if it is outside."""
        if line > len(self._starts):
            return len(self.text)
        start = self._starts[max(line, 1) - 1]
        end = self._starts[line] - 1 if 0 < line < len(self._starts) else len(self.text)
        return min(start + max(column, 1) - 1, max(start, end))

    def place(self, position: types.Position) -> tuple[int, int]:
        """Return the line and column of preflight at a position of the editor."""
        offset = self.offset_at(position)
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def offset_at(self, position: types.Position) -> int:
        """Return the offset at a position of the editor, moved into the text if it is outside."""
        if position.line >= len(self._editor_starts):
            return len(self.text)
        line = self._editor_line(max(position.line, 0))
        start = self._editor_starts[max(position.line, 0)]
        units = 0
        for index, character in enumerate(line):
            if units >= position.character:
                return start + index
            units += self._codec.client_num_units(character)
        return start + len(line)

    def position(self, offset: int) -> types.Position:
        line = bisect_right(self._editor_starts, offset) - 1
        before = self._editor_line(line)[: offset - self._editor_starts[line]]
        return types.Position(line, self._codec.client_num_units(before))

    def range(self, line: int, column: int, end_line: int, end_column: int) -> types.Range:
        """Return the editor's range between two places of preflight."""
        start = self.offset(line, column)
        end = max(start, self.offset(end_line, end_column))
        return types.Range(self.position(start), self.position(end))

    def line(self, number: int) -> str:
        """Return a line of preflight, counted from 1, without its end; empty if there is none."""
        if not 1 <= number <= len(self._starts):
            return ""
        end = self._starts[number] if number < len(self._starts) else len(self.text)
        return self.text[self._starts[number - 1] : end].rstrip("\r\n")

    def _editor_line(self, number: int) -> str:
        start = self._editor_starts[number]
        end = self._editor_starts[number + 1] if number + 1 < len(self._editor_starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")


#: Longest URI of a file: Linux allows paths of 4096 bytes, and each byte may become three characters.
_MAX_LENGTH = 3 * 4096 + 16


def path_of(uri: str) -> Path | None:
    """Return the absolute path of a `file:` URI; None for any other URI, such as that of an unsaved new document."""
    if len(uri) > _MAX_LENGTH:
        return None
    try:
        parts = urlsplit(uri)
        path = os.fsdecode(unquote_to_bytes(parts.path.encode("utf-8", "surrogatepass")))
    except ValueError:
        return None
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost") or not path.startswith("/"):
        return None
    # With `..` removed, so that a path that begins with a folder's path is inside the folder.
    return None if "\0" in path else Path(os.path.normpath(path))


def uri_of(path: Path) -> str:
    return path.as_uri()


#: Until the folder has been read, only this many files in the folder of an open file are read.
_MAX_BESIDE = 100
_BOM = b"\xef\xbb\xbf"


class Superseded(BaseException):
    """A run was stopped, because a newer change exists or its deadline has passed.

    Not an `Exception`, so that no handler of a reader or rule catches it.
    """


class Watch:
    """Stops a run between two files or rules: when `stop` is set, or after `deadline_s` seconds."""

    def __init__(self, stop: threading.Event, deadline_s: float) -> None:
        self._stop = stop
        self._end = time.monotonic() + deadline_s

    def __call__(self, step: Step) -> None:
        if self._stop.is_set() or time.monotonic() > self._end:
            raise Superseded


@dataclass(frozen=True, slots=True)
class JudgedJob:
    """A job as read, and the report on it alone; no report if none of its files is open."""

    job: Job
    report: Report | None = None

    @property
    def paths(self) -> frozenset[str]:
        """Return every file that was read for the job."""
        return frozenset(file.path for file in self.job.files)


class Folder:
    """The jobs of one folder, outside which nothing is read.

    `choices` are the server's options; `is_workspace`: the user opened the folder itself, not single files in it.
    """

    def __init__(self, root: Path, choices: Choices, codec: PositionCodec, *, is_workspace: bool) -> None:
        self.root = root
        self.codec = codec
        self.jobs: dict[str, JudgedJob] = {}
        #: Whether all jobs of the folder were known when the disk was last read.
        self.is_complete = not is_workspace
        self._is_workspace = is_workspace
        self._choices = choices
        self._files = Files(root)
        self._buffers: dict[str, bytes] = {}
        self._configuration = Configuration()
        self._assumed: dict[str, Job] = {}

    def relative(self, path: Path) -> str:
        return os.path.relpath(path, self.root)

    def read_all(self, buffers: Mapping[str, bytes], watch: Watch) -> None:
        """Read the whole folder, and judge the jobs that open files (`buffers`) belong to.

        Raises Superseded if stopped (earlier results are kept), and UsageError for an unusable configuration.
        """
        if not self._is_workspace:
            self.read_again(buffers, frozenset(buffers), watch)
            return
        self._configure()
        # Open files need not be on disk, and a person who opens an ignored file means it.
        files = walk(self.root, "", exclude=self._configuration.exclude).files
        self._accept(self._read({*files, *self._judged_paths(buffers)}, buffers, watch), buffers, watch)
        self.is_complete = True

    def read_again(self, buffers: Mapping[str, bytes], touched: frozenset[str], watch: Watch) -> None:
        """Read and judge the jobs again whose texts differ from the last run, or that have `touched` files.

        Raises Superseded if stopped (earlier results are kept), and UsageError for an unusable configuration.
        """
        paths = {*buffers, *self._buffers}
        changed = {path for path in paths if buffers.get(path) != self._buffers.get(path)} | touched
        if not changed:
            return
        self._configure()
        concerned = {name for name, judged in self.jobs.items() if changed & _named_in(judged.job)}
        elsewhere: set[str] = set()
        inside: set[str] = set()
        for name, judged in self.jobs.items():
            (inside if name in concerned else elsewhere).update(judged.paths)
        entries = changed & self._judged_paths(buffers)
        if not self.is_complete:
            for path in list(entries):
                entries |= self._sibling_files(path)
        kept = {name: judged for name, judged in self.jobs.items() if name not in concerned}
        found = self._read((entries | inside) - elsewhere, buffers, watch)
        self._accept({**kept, **found}, buffers, watch)

    def jobs_with(self, path: str) -> list[JudgedJob]:
        """Return the jobs that a file belongs to."""
        return [judged for judged in self.jobs.values() if path in judged.paths]

    def planned_jobs(self, path: str, watch: Watch) -> list[Job]:
        """Return the jobs of a file as `preflight plan` reads them: variables of the caller have their defaults."""
        found: list[Job] = []
        for judged in self.jobs_with(path):
            name = judged.job.name
            if name not in self._assumed:
                with defaults_assumed():
                    read = self._read(judged.paths, self._buffers, watch)
                self._assumed[name] = read[name].job if name in read else judged.job
            found.append(self._assumed[name])
        return found

    def buffer(self, path: str) -> bytes | None:
        """Return the editor's text that was judged; None for a file that is not open."""
        return self._buffers.get(path)

    def content(self, path: str) -> bytes | None:
        """Return the content of a file as it was judged: the editor's text if it is open; None if it cannot be read."""
        if path in self._buffers:
            return self._buffers[path]
        try:
            return self._files.read(path)
        except (OSError, ValueError):
            return None

    def text(self, path: str) -> Text:
        """Return the text of a file as it was judged; empty if it cannot be read."""
        content = self.content(path) or b""
        text = content.removeprefix(_BOM).decode("utf-8", "replace") if len(content) <= MAX_BYTES else ""
        return Text(text, self.codec)

    def judge_with(self, name: str, path: str, content: bytes, watch: Watch) -> Report | None:
        """Return the report on a job with other content in one of its files; None if the job would then not exist."""
        judged = self.jobs.get(name)
        if judged is None:
            return None
        read = self._read(judged.paths, {**self._buffers, path: content}, watch)
        return self._judge(read[name].job, watch).report if name in read else None

    def _configure(self) -> None:
        chosen = resolve_settings(self._choices, self.root, self.root, repository_of(self.root))
        if chosen.configuration != self._configuration:
            self.jobs = {name: replace(judged, report=None) for name, judged in self.jobs.items()}
            self._configuration = chosen.configuration

    def _judged_paths(self, buffers: Mapping[str, bytes]) -> set[str]:
        """Return the open files that the configuration does not exclude."""
        excluded = Excluded(self._configuration.exclude)
        return {path for path in buffers if not _is_excluded(path, excluded)}

    def _read(
        self, only: set[str] | frozenset[str], buffers: Mapping[str, bytes], watch: Watch
    ) -> dict[str, JudgedJob]:
        given = {self.root / path: content for path, content in buffers.items()}
        with running():
            jobs, _ = read_jobs(
                [self.root],
                root=self.root,
                exclude=self._configuration.exclude,
                given=given,
                candidates=only,
                progress=watch,
            )
        return {job.name: JudgedJob(job) for job in jobs}

    def _accept(self, found: dict[str, JudgedJob], buffers: Mapping[str, bytes], watch: Watch) -> None:
        """Judge the jobs with open files, and replace the earlier results."""
        judged: dict[str, JudgedJob] = {}
        for name, one in found.items():
            before = self.jobs.get(name)
            if one.paths.isdisjoint(buffers):
                judged[name] = JudgedJob(one.job)
            elif before is not None and before.report is not None and before.job == one.job:
                judged[name] = before
            else:
                judged[name] = self._judge(one.job, watch)
        self.jobs = judged
        self._buffers = dict(buffers)
        self._assumed = {}

    def _judge(self, job: Job, watch: Watch) -> JudgedJob:
        recording = Recording(
            jobs=(job,), created=api.now(), tool_version=__version__, configuration=self._configuration
        )
        with running():
            return JudgedJob(job, judge(recording, progress=watch))

    def _sibling_files(self, path: str) -> set[str]:
        """Return files in the folder of a file, as long as it is unknown which files belong together."""
        found: set[str] = set()
        folder = os.path.dirname(path)  # noqa: PTH120
        with contextlib.suppress(OSError), os.scandir(self.root / folder) as entries:
            for entry in entries:
                if len(found) >= _MAX_BESIDE:
                    break
                if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                    found.add(f"{folder}/{entry.name}" if folder else entry.name)
        return found


def _named_in(job: Job) -> set[str]:
    """Return the files of a job, those that it refers to, and those that it could not read."""
    names = {file.path for file in job.files}
    names.update(reference.target for reference in job.references)
    names.update(note.span.path for note in job.notes if note.kind is not NoteKind.MISSING)
    return names


def _is_excluded(path: str, excluded: Excluded) -> bool:
    folders = Path(path).parents
    above = any(excluded.has(folder.as_posix(), is_folder=True) for folder in folders if folder.name)
    return above or excluded.has(path, is_folder=False)


def closest(folders: Iterable[Path], path: Path) -> Path | None:
    """Return the innermost of the folders that contains a path."""
    return max(
        (folder for folder in folders if folder in path.parents), key=lambda folder: len(folder.parts), default=None
    )

"""The files of a tree and their sources: which source reads each, which may start a job, and their readings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from preflight._util.budget import BudgetExceeded, current
from preflight.model.job import WHOLE_JOB, Note, NoteDetail, NoteKind, Scope, Span
from preflight.model.progress import Progress, Step, ignore
from preflight.sources.base import Reading, Source, SourceFile, Tree
from preflight.sources.discovery.parallel import budget_note, read_ahead, read_source
from preflight.sources.shell.shell_source import startable

_BATCH = re.compile(r"^#(?:SBATCH|PBS|BSUB|COBALT)\s", re.MULTILINE)
#: Unit tests start parts of jobs. They are skipped in a folder, but can still be named.
_TEST_NAME = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test|conftest)\.py$")
_TEST_FOLDER = re.compile(r"(?:^|/)(?:tests?|testing|(?:unit|functional|integration|e2e|system)[-_]?tests?|e2e)/", re.I)
_TEST_WORDS = re.compile(r"^[ \t]*(?:async )?def test_|^(?:import|from) (?:pytest|unittest)\b", re.MULTILINE)


@dataclass(slots=True)
class RecognisedFiles:
    """The files of one tree; the kind and the reading of each are determined only once, however many jobs reach it."""

    tree: Tree
    sources: tuple[Source, ...]
    processes: int = 1
    progress: Progress = ignore
    #: Files of a known kind that were skipped in folders, with the reason.
    skipped: dict[str, str] = field(default_factory=dict)
    #: Files that made a source crash.
    crash_notes: dict[str, Note] = field(default_factory=dict)
    _kinds: dict[str, Source | None] = field(default_factory=dict)
    _readings: dict[tuple[str, str, str, Scope], Reading] = field(default_factory=dict)

    def candidates(self, paths: Sequence[str], below: str) -> list[str]:
        """The files of the folder `below` that may start a job: of a known kind, without tests and scripts that start
        nothing.
        """
        kinds: dict[str, Source] = {}
        # Texts are not kept here: a folder may hold more than fits into memory.
        for path in paths:
            file = self.tree.read(path)
            if isinstance(file, SourceFile) and (source := self.source_of(file, "")) is not None:
                kinds[path] = source
        shell = (self.tree.read(path) for path, source in kinds.items() if source.name == "shell")
        scripts = startable(file for file in shell if isinstance(file, SourceFile))
        found: list[str] = []
        for path, source in kinds.items():
            # Folders of tests hold configuration that is wrong on purpose, and scripts that start parts of jobs.
            in_tests = source.name != "shell" and _TEST_FOLDER.search(path[len(below) :]) is not None
            if in_tests or self.is_unit_test(path):
                self.skipped[path] = "unit tests"
            elif not getattr(source, "starts_jobs", True):
                # There may be hundreds, one for each experiment. They are read where a launch names them.
                self.skipped[path] = "settings that no launch names"
            elif source.name != "shell" or path in scripts:
                found.append(path)
        return found

    def unread(self, paths: Sequence[str], below: str) -> list[Note]:
        """The `paths` among the files of the folder `below` that cannot be read, with the reason.

        A file that is part of a job, judging by its name and its first bytes, has a required note: without its
        content the folder was not judged. For any other file only the note is kept: a dataset is not a job.
        """
        return [note for path in paths if (note := self._unread(path, below)) is not None]

    def _unread(self, path: str, below: str) -> Note | None:
        found = self.tree.read(path)
        note = self.crash_notes.get(path) if isinstance(found, SourceFile) else found
        if note is None or _TEST_FOLDER.search(path[len(below) :]):
            return None
        # An unreadable file is of unknown kind; its presence shows that the user means it.
        counts = note.required or self._is_part(path) or note.detail is NoteDetail.DENIED
        # For a file that is not part of a job it is enough to record that it was skipped.
        kind = NoteKind.UNSUPPORTED if note.kind is NoteKind.UNREADABLE and not counts else note.kind
        return replace(note, kind=kind, required=counts)

    def _is_part(self, path: str) -> bool:
        """Whether an unreadable file is of a known kind, judging by its name and first bytes."""
        head = getattr(self.tree, "head", None)
        file = head(path) if head is not None else None
        source = self.source_of(file or SourceFile(path, "", "", 0), "")
        self._kinds.pop(path, None)
        return source is not None

    def read_ahead(self, paths: Sequence[str]) -> None:
        """Read entries in several processes, if that is faster."""
        if self.processes < 2:
            return
        files = [file for path in paths if isinstance(file := self.tree.read(path), SourceFile)]
        if sum(file.size_bytes for file in files) > current().limits.held_bytes:
            return  # More than is kept in memory: each is read when its turn comes.
        wanted = [(source, file) for file in files if (source := self.source_of(file, "")) is not None]
        readings = read_ahead(
            wanted,
            self.tree,
            self.processes,
            on_progress=lambda number: self.progress(Step("files", number, len(wanted))),
        )
        for source, file, reading in readings:
            self._readings.setdefault((source.name, file.path, "", WHOLE_JOB), reading)

    def rank(self, path: str) -> int:
        """The position of a file's kind among the sources: entry scripts come first."""
        file = self.tree.read(path)
        source = self.source_of(file, "") if isinstance(file, SourceFile) else None
        return self.sources.index(source) if source is not None else len(self.sources)

    def reading(self, source: Source, file: SourceFile, role: str, scope: Scope) -> Reading:
        """The reading of a file of the tree itself by `source`."""
        key = (source.name, file.path, role, scope)
        if key not in self._readings:
            self._readings[key] = read_source(source, file, self.tree, scope=scope, role=role)
        return self._readings[key]

    def is_batch_script(self, path: str) -> bool:
        """Whether this file has an `#SBATCH` header."""
        file = self.tree.read(path)
        return isinstance(file, SourceFile) and bool(_BATCH.search(file.text[:8192])) and self.rank(path) == 0

    def is_unit_test(self, path: str) -> bool:
        """Whether this is a Python file of tests, judging by its name and content."""
        if not _TEST_NAME.search(path):
            return False
        file = self.tree.read(path)
        return isinstance(file, SourceFile) and _TEST_WORDS.search(file.text) is not None

    def source_of(self, file: SourceFile, role: str) -> Source | None:
        """The source of `file`: the one that recognises it, otherwise the one that reads files in that role."""
        if file.path not in self._kinds:
            self._kinds[file.path] = self._recognise(file)
        by_role = next((s for s in self.sources if role and role in getattr(s, "roles", ())), None)
        return self._kinds[file.path] or by_role

    def _recognise(self, file: SourceFile) -> Source | None:
        try:
            return current().attempt(lambda: self._first_source(file), file.size_bytes)
        except BudgetExceeded as exceeded:
            self.crash_notes[file.path] = budget_note(file.path, exceeded)
            return None

    def _first_source(self, file: SourceFile) -> Source | None:
        """The first source that recognises the file. A source that crashes is reported and not used again."""
        for source in self.sources:
            try:
                if source.recognises(file):
                    return source
            except Exception as error:
                message = (
                    f"the {source.name} reader crashed on {file.path} before reading it, which is a bug in it: "
                    f"{type(error).__name__}: {error}"
                )
                place = Span(file.path, 1, 1, 1, 1)
                self.crash_notes[file.path] = Note(NoteKind.CRASHED, message, place, required=True)
        return None

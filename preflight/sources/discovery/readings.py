"""The files of a tree, the sources that read them, and their readings: one at a time, or ahead of time in a pool of
processes.

Workers only save time. Each is a fork of this process, so that it sees the same files, and returns with every reading
its requests to the tree and the answers: a reading is used only if the tree gives the same answers here. A file without
a usable reading, for whatever reason, is read here.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from preflight._util.budget import BudgetExceeded, current, free_memory_after, left_out, spend
from preflight.model.job import WHOLE_JOB, LeftOut, Note, NoteDetail, NoteKind, Scope, Span
from preflight.model.progress import Progress, Step, ignore
from preflight.sources.base import Reading, Source, SourceFile, Tree
from preflight.sources.discovery.walk import Walked, walk
from preflight.sources.formats.tree import DirectoryTree, OverlayTree, note_at
from preflight.sources.secrets import shown_lines, without_secrets
from preflight.sources.shell.shell_source import startable

_BATCH_HEADER = re.compile(r"^#(?:SBATCH|PBS|BSUB|COBALT)\s", re.MULTILINE)
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
        """Return the files of the folder `below` that may start a job: of a known kind, without tests and scripts that
        start nothing.
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
        """Return the `paths` among the files of the folder `below` that cannot be read, with the reason.

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
        """Return whether an unreadable file is of a known kind, judging by its name and first bytes."""
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
        """Return the position of a file's kind among the sources: entry scripts come first."""
        file = self.tree.read(path)
        source = self.source_of(file, "") if isinstance(file, SourceFile) else None
        return self.sources.index(source) if source is not None else len(self.sources)

    def reading(self, source: Source, file: SourceFile, role: str, scope: Scope) -> Reading:
        """Return the reading of a file of the tree itself by `source`."""
        key = (source.name, file.path, role, scope)
        if key not in self._readings:
            self._readings[key] = read_source(source, file, self.tree, scope=scope, role=role)
        return self._readings[key]

    def is_batch_script(self, path: str) -> bool:
        """Return whether the file at `path` has an `#SBATCH` header."""
        file = self.tree.read(path)
        return isinstance(file, SourceFile) and bool(_BATCH_HEADER.search(file.text[:8192])) and self.rank(path) == 0

    def is_document(self, path: str) -> bool:
        """Return whether the file is a document whose command lines are examples for readers."""
        file = self.tree.read(path)
        source = self.source_of(file, "") if isinstance(file, SourceFile) else None
        return source is not None and source.name == "document"

    def is_unit_test(self, path: str) -> bool:
        """Return whether the file at `path` is a Python file of tests, judging by its name and content."""
        if not _TEST_NAME.search(path):
            return False
        file = self.tree.read(path)
        return isinstance(file, SourceFile) and _TEST_WORDS.search(file.text) is not None

    def source_of(self, file: SourceFile, role: str) -> Source | None:
        """Return the source of `file`: the one that recognises it, otherwise the one that reads files in that role.

        A line that submits a task file identifies its orchestrator, whatever its keys look like.
        """
        if file.path not in self._kinds:
            self._kinds[file.path] = self._recognise(file)
        by_role = next((s for s in self.sources if role and role in getattr(s, "roles", ())), None)
        if by_role is not None and getattr(by_role, "decided_by_role", False):
            return by_role
        return self._kinds[file.path] or by_role

    def _recognise(self, file: SourceFile) -> Source | None:
        try:
            return current().attempt(lambda: self._first_source(file), file.size_bytes)
        except BudgetExceeded as exceeded:
            self.crash_notes[file.path] = budget_note(file.path, exceeded)
            return None

    def _first_source(self, file: SourceFile) -> Source | None:
        """Return the first source that recognises the file. A source that crashes is reported and not used again."""
        for source in self.sources:
            try:
                if source.recognises(file):
                    return source
            except Exception as error:
                message = (
                    f"the {source.name} reader crashed on {file.path} before reading it, which is a bug in the reader: "
                    f"{type(error).__name__}: {error}"
                )
                place = Span(file.path, 1, 1, 1, 1)
                self.crash_notes[file.path] = Note(NoteKind.CRASHED, message, place, required=True)
        return None


#: Below this many files (a second's work) one process is as quick; with 300 to 600 files two save a quarter of the time
#: on two free processors, and nothing on busy ones.
MIN_FILES = 200
#: Another process is started only for at least this many files.
_FILES_PER_PROCESS = 50
#: Files that a process reads before it returns their readings.
_BATCH_SIZE = 16
#: Time limit in seconds for the next batch of readings, which takes a fraction of a second.
BATCH_TIMEOUT_S = 20.0
_STEPS_PER_CLAIM = 10
#: How much a worker process may grow; a file that needs more memory is read by the parent.
_MEMORY_BYTES = 96 << 20

#: A request to the tree, and its answer: a file read (as `state`), a path resolved relative to another file, or the
#: names in a folder.
_Lookups: TypeAlias = dict[tuple[str, ...], str | None]


@dataclass(frozen=True, slots=True)
class _WorkerReading:
    """A worker process's result for one file.

    Args:
        number: the number of the file.
        spent: the steps and ticks it took.
        raw: the reading with secrets, which a source may keep; `clean` is the same without.
        lookups: the requests to the tree.
        exceeded: instead of a reading, the exceeded limit, in words that follow "it takes".
    """

    number: int
    spent: tuple[int, int]
    raw: Reading = field(default_factory=Reading)
    clean: Reading = field(default_factory=Reading)
    lookups: _Lookups = field(default_factory=dict)
    exceeded: str = ""


def read_source(source: Source, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
    """Read a file with a source, without secrets; a crash, or work beyond the budget, becomes a note."""
    try:
        return current().attempt(lambda: _read(source, file, tree, scope, role)[1], file.size_bytes)
    except BudgetExceeded as exceeded:
        free_memory_after(exceeded)
        return Reading(notes=(budget_note(file.path, exceeded),))
    except Exception as error:
        error_text = shown_lines(file)(f"{type(error).__name__}: {error}")
        message = f"the {source.name} reader crashed on {file.path}, which is a bug in the reader: {error_text}"
        return Reading(notes=(note_at(file.path, NoteKind.CRASHED, message, required=True),))


def budget_note(path: str, exceeded: BudgetExceeded) -> Note:
    """Return the note for a file that exceeds the budget."""
    message = (
        f"reading {path} was stopped, because it needs {exceeded.excess}; nothing in it was checked. Split it, "
        "simplify it, or skip it with --exclude"
    )
    return note_at(path, NoteKind.TOO_LARGE, message, required=True)


def _read(source: Source, file: SourceFile, tree: Tree, scope: Scope, role: str) -> tuple[Reading, Reading]:
    """Return the source's reading, and the same without secrets."""
    raw = source.read(file, tree, scope=scope, role=role)
    # The work of rules, the report, and the memory of both grow with the number of claims.
    spend(_STEPS_PER_CLAIM * (len(raw.claims) + len(raw.references) + len(raw.launches) + len(raw.suppressions)))
    clean = without_secrets(raw)
    notes = tuple(
        note_at(file.path, NoteKind.TOO_LARGE, f"{file.path}: {what}; the rest was not checked", required=True)
        for what in left_out()
    )
    return raw, replace(clean, notes=(*clean.notes, *notes)) if notes else clean


def read_ahead(
    files: Sequence[tuple[Source, SourceFile]],
    tree: Tree,
    jobs: int,
    *,
    on_progress: Callable[[int], None] = lambda number: None,
) -> list[tuple[Source, SourceFile, Reading]]:
    """Read files, in the scope of the whole job and without a role, with at most `jobs` processes; empty for few files,
    or one process.

    A source that caches readings has `is_kept(file)`, which must be true for a file to be read ahead, and `keep(file,
    tree, reading)`, which gets its reading. `tell` is called with the number of readings so far.
    """
    # A fork of a process with threads may wait forever for a lock that none of its threads holds.
    if jobs < 2 or len(files) < MIN_FILES or not sys.platform.startswith("linux") or threading.active_count() > 1:
        return []
    chosen = [(source, file) for source, file in files if getattr(source, "is_kept", lambda file: True)(file)]
    count = min(jobs, len(chosen) // _FILES_PER_PROCESS)
    if count < 2 or len(chosen) < MIN_FILES:
        return []
    taken: list[tuple[Source, SourceFile, Reading]] = []
    budget = current()
    # Closed at once, however this ends.
    with closing(_worker_readings(chosen, tree, count)) as readings:
        for number, reading in enumerate(readings):
            on_progress(number)
            source, file = chosen[reading.number]
            if not budget.allows(*reading.spent, file.size_bytes):
                exceeded = BudgetExceeded(reading.exceeded or "more work than this run has left")
                taken.append((source, file, Reading(notes=(budget_note(file.path, exceeded),))))
            elif reading.exceeded:
                # A worker has only a share of the budget: the file is read again, here.
                continue
            elif all(_answer(tree, question) == answer for question, answer in reading.lookups.items()):
                if hasattr(source, "keep"):
                    source.keep(file, tree, reading.raw)
                taken.append((source, file, reading.clean))
    return taken


def _answer(tree: Tree, question: tuple[str, ...]) -> str | None:
    if len(question) == 1:
        return state(tree.read(question[0]))
    if len(question) == 3:
        return "/".join(tree.names(question[0]))
    return tree.resolve(question[0], relative_to=question[1])


@dataclass(slots=True)
class _RecordingTree:
    """A tree that records its requests."""

    tree: Tree
    error_text: _Lookups = field(default_factory=dict)

    def read(self, path: str) -> SourceFile | Note:
        """See `Tree`."""
        found = self.tree.read(path)
        self.error_text[(path,)] = state(found)
        return found

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """See `Tree`."""
        found = self.error_text[path, relative_to] = self.tree.resolve(path, relative_to=relative_to)
        return found

    def names(self, folder: str) -> tuple[str, ...]:
        """See `Tree`."""
        found = self.tree.names(folder)
        self.error_text[folder, "", "names"] = "/".join(found)
        return found


class _Reader:
    """Reads files in a worker process: it is forked with the files and the tree as they are in its parent."""

    def __init__(self, files: Sequence[tuple[Source, SourceFile]], tree: Tree) -> None:
        self._files = files
        self._recorder = _RecordingTree(tree)

    def read(self, numbers: Sequence[int]) -> list[_WorkerReading]:
        """Return the readings of the files with these numbers, except those that crash or need more memory.

        The parent reads those again, and reports the errors.
        """
        batch: list[_WorkerReading] = []
        budget = current()
        for number in numbers:
            source, file = self._files[number]
            self._recorder.error_text = {}
            make = functools.partial(_read, source, file, self._recorder, WHOLE_JOB, "")
            try:
                raw, clean = budget.attempt(make, file.size_bytes)
            except BudgetExceeded as exceeded:
                free_memory_after(exceeded)
                if not exceeded.of_memory:
                    batch.append(_WorkerReading(number, budget.last, exceeded=exceeded.excess))
                continue
            except Exception:
                continue
            clean = raw if clean == raw else clean
            batch.append(_WorkerReading(number, budget.last, raw, clean, self._recorder.error_text))
        return batch


#: Set in a worker process.
_reader: _Reader | None = None


def _start_worker(reader: _Reader, parent: int, mask: Iterable[int], count: int) -> None:
    """Prepare one of `count` worker processes. They end with their parent, which alone handles interrupts."""
    global _reader
    from preflight.agent.process import die_with_parent

    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    gc.freeze()
    current().continue_in_child(_MEMORY_BYTES, count)
    _reader = reader


def _read_batch(numbers: Sequence[int]) -> list[_WorkerReading]:
    """In a worker: the readings of the files with these numbers."""
    assert _reader is not None
    return _reader.read(numbers)


def _worker_readings(
    files: Sequence[tuple[Source, SourceFile]], tree: Tree, count: int
) -> Generator[_WorkerReading, None, None]:
    """Yield the readings of `count` worker processes. However this ends, all processes are ended."""
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor, TimeoutError
    from concurrent.futures.process import BrokenProcessPool

    # The longest first, so that the last ones to finish are short.
    order = sorted(range(len(files)), key=lambda number: -files[number][1].size_bytes)
    others = set(multiprocessing.active_children())
    # Interrupts are blocked until the pool knows the workers, which ignore them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    pool = None
    futures: list[Future[list[_WorkerReading]]] = []
    try:
        try:
            pool = ProcessPoolExecutor(
                count,
                mp_context=multiprocessing.get_context("fork"),
                initializer=_start_worker,
                initargs=(_Reader(files, tree), os.getpid(), mask, count),
            )
            futures += [
                pool.submit(_read_batch, order[at : at + _BATCH_SIZE]) for at in range(0, len(order), _BATCH_SIZE)
            ]
        except (OSError, BrokenProcessPool) as error:
            _log_problem("no worker processes could be started: %s", error)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for future in futures:
            try:
                yield from future.result(timeout=BATCH_TIMEOUT_S)
            except TimeoutError:
                _log_problem("worker processes returned nothing within %g s", BATCH_TIMEOUT_S)
                return
            except BrokenProcessPool as error:
                _log_problem("a worker process died: %s", error)
                return
            except Exception as error:
                # A reading of a plugin's source that cannot be sent to another process.
                _log_problem("a result cannot be sent between processes: %s", error)
    finally:
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _log_problem(message: str, *details: object) -> None:
    """Log why files are read by this process instead; the report is the same."""
    import logging

    logging.getLogger(__name__).info(f"{message}; reading the files in this process", *details)


def below(root: Path, path: str | Path) -> str:
    """Return `path` relative to the root, with links as written, unless only their target is inside."""
    # os.path and not pathlib: `..` must be removed and links must stay.
    plain = os.path.relpath(os.path.abspath(path), os.path.abspath(root))  # noqa: PTH100
    if plain == ".." or plain.startswith("../"):
        plain = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
    return plain


class TreeSnapshot:
    """The files, folders and missing paths of one tree, each examined once.

    Args:
        root: the directory that no path may leave.
        exclude: patterns of files to skip in folders.
        given: the content of files that are not read from disk.
        only: the candidates of folders (relative to the root), instead of those that a walk finds; None walks.
    """

    def __init__(
        self,
        root: Path,
        exclude: Sequence[str] = (),
        given: Mapping[Path, bytes] | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self.root = root
        self.exclude = tuple(exclude)
        self._only = None if only is None else tuple(sorted(only))
        self.tree = DirectoryTree(root)
        over = {below(root, path): content for path, content in (given or {}).items()}
        self.files: Tree = OverlayTree(self.tree, over) if over else self.tree
        self._walked: dict[str, Walked] = {}
        self._folders: dict[str, bool] = {}
        self._skipped: list[LeftOut] = []

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Return the files of folders that were skipped although their names would qualify."""
        walked = dict.fromkeys(entry for walked in self._walked.values() for entry in walked.left_out)
        return (*walked, *self._skipped)

    def note_skipped(self, reasons: Mapping[str, str]) -> None:
        """Record files that are not read as separate jobs, by path with the reason; they are counted by folder."""
        counts = Counter((path.rpartition("/")[0] or ".", reason) for path, reason in reasons.items())
        self._skipped = [LeftOut(folder, reason, files) for (folder, reason), files in sorted(counts.items())]

    def is_folder(self, path: str) -> bool:
        """Return whether `path` (relative to the root) is a folder."""
        if path not in self._folders:
            self._folders[path] = (self.root / path).is_dir()
        return self._folders[path]

    def walk(self, below: str) -> Walked:
        """Return the candidates below a folder."""
        if below not in self._walked and self._only is not None:
            start = "" if below in (".", "") else f"{below}/"
            self._walked[below] = Walked(tuple(path for path in self._only if path.startswith(start)), (), below)
        elif below not in self._walked:
            self._walked[below] = walk(self.root, below, exclude=self.exclude)
        return self._walked[below]

    def reads(self) -> dict[str, Any]:
        """Return everything that was read, as JSON: contents as their SHA-256."""
        return {
            "folders": self._folders,
            "walked": {below: _sum(walked) for below, walked in self._walked.items()},
            "read": {path: state(found) for path, found in self.tree.requests.items()},
            "there": dict(self.tree.existence_requests),
            "listed": {folder: list(names) for folder, names in self.tree.listed_folders.items()},
        }

    def is_unchanged(self, reads: dict[str, Any]) -> bool:
        """Return whether everything is unchanged; contents read for this are kept for later use."""
        return (
            all(self.is_folder(path) is answer for path, answer in reads["folders"].items())
            and all(_sum(self.walk(below)) == answer for below, answer in reads["walked"].items())
            and all(self.tree.exists(path) is answer for path, answer in reads["there"].items())
            and all(list(self.tree.names(folder)) == answer for folder, answer in reads.get("listed", {}).items())
            and all(state(self.tree.read(path)) == answer for path, answer in reads["read"].items())
        )


def _sum(walked: Walked) -> str:
    left_out = [[entry.path, entry.reason, entry.files, entry.more] for entry in walked.left_out]
    content = [walked.files, [note.message for note in walked.notes], left_out]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def state(file: SourceFile | Note) -> str:
    """Return the state of a path as a short string: the SHA-256 of a file, or why there is none."""
    return file.sha256 if isinstance(file, SourceFile) else f"{file.kind.value}: {file.message}"

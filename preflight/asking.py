"""Asking sources: for one file, or ahead of time for many, by processes of our own that hand their readings back.

Processes bring time and nothing else. Each is a copy of this one as it stood, so that it sees the same files, and with
every reading it hands back what it asked the tree and what the tree said: a reading is taken only where the tree says
the same here. What is not brought, for whatever reason, is read here as if nobody had been asked before.
"""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import field
from typing import Any, TypeAlias

from preflight.job import WHOLE_JOB, Note, NoteKind, Scope, Span
from preflight.lazy.dataclasses import dataclass
from preflight.looking import state
from preflight.sources.base import Reading, Source, SourceFile, Tree
from preflight.sources.redaction import without_secrets

#: Below this many files (a second's work) one process is as quick; with 300 to 600 files two save a quarter of the time
#: on two free processors, and nothing on busy ones.
FEWEST_FILES = 200
#: A process is started for so many files at least.
_FILES_EACH = 50
#: Readings are handed back so many at a time.
_BATCH = 16
#: Seconds in which some process must say something; a reading takes a fraction of one.
PATIENCE_S = 20.0
_LENGTH = struct.Struct("!Q")

#: What a reading asked the tree, and the answer: a file read (as `state`), or a path resolved in another file.
_Asked: TypeAlias = dict[tuple[str, ...], str | None]


def asked(source: Source, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
    """What a source says about a file, without secrets; a crash becomes a note."""
    try:
        return without_secrets(source.read(file, tree, scope=scope, role=role))
    except Exception as error:
        message = (
            f"the {source.name} reader crashed on {file.path}, which is a bug in it: {type(error).__name__}: {error}"
        )
        return Reading(notes=(Note(NoteKind.CRASHED, message, Span(file.path, 1, 1, 1, 1), required=True),))


def asked_ahead(
    wanted: Sequence[tuple[Source, SourceFile]],
    tree: Tree,
    jobs: int,
    *,
    tell: Callable[[int], None] = lambda number: None,
) -> list[tuple[Source, SourceFile, Reading]]:
    """Readings of the whole job and no role, made by at most `jobs` processes; for few files, or one job, none.

    A source that keeps readings of its own has `is_kept(file)`, without which a file is not read ahead, and
    `keep(file, tree, reading)`, which gets its reading. `tell` hears how many there are so far.
    """
    # A copy of a process with threads may wait for ever for a lock that no thread of it holds.
    if jobs < 2 or len(wanted) < FEWEST_FILES or not sys.platform.startswith("linux") or threading.active_count() > 1:
        return []
    chosen = [(source, file) for source, file in wanted if getattr(source, "is_kept", _always)(file)]
    count = min(jobs, len(chosen) // _FILES_EACH)
    if count < 2 or len(chosen) < FEWEST_FILES:
        return []
    taken: list[tuple[Source, SourceFile, Reading]] = []
    # Closed at once, whatever interrupts this.
    with closing(_brought(chosen, tree, count)) as brought:
        for number, (index, raw, clean, said) in enumerate(brought):
            tell(number)
            source, file = chosen[index]
            if all(_answer(tree, question) == answer for question, answer in said.items()):
                if hasattr(source, "keep"):
                    source.keep(file, tree, raw)
                taken.append((source, file, clean))
    return taken


def _always(file: SourceFile) -> bool:
    return True


def _answer(tree: Tree, question: tuple[str, ...]) -> str | None:
    if len(question) == 1:
        return state(tree.read(question[0]))
    return tree.resolve(question[0], relative_to=question[1])


@dataclass(slots=True)
class _Noting:
    """A tree that writes down what it is asked."""

    tree: Tree
    said: _Asked = field(default_factory=dict)

    def read(self, path: str) -> SourceFile | Note:
        """As the tree itself."""
        found = self.tree.read(path)
        self.said[(path,)] = state(found)
        return found

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """As the tree itself."""
        found = self.said[path, relative_to] = self.tree.resolve(path, relative_to=relative_to)
        return found


def _brought(
    wanted: Sequence[tuple[Source, SourceFile]], tree: Tree, count: int
) -> Generator[tuple[int, Reading, Reading, _Asked], None, None]:
    """What `count` processes bring. However this ends, none of them is left."""
    # The longest first, dealt in turns, so that all have about as much to do.
    order = sorted(range(len(wanted)), key=lambda index: -wanted[index][1].size_bytes)
    workers: dict[int, _Worker] = {}
    try:
        for start in range(count):
            try:
                _start(workers, wanted, order[start::count], tree)
            except OSError:
                break
        with selectors.DefaultSelector() as selector:
            for descriptor in workers:
                selector.register(descriptor, selectors.EVENT_READ)
            until = time.monotonic() + PATIENCE_S
            while selector.get_map():
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready:
                    return
                until = time.monotonic() + PATIENCE_S
                for key, _ in ready:
                    piece = os.read(key.fd, 1 << 20)
                    if not piece:
                        selector.unregister(key.fd)
                    yield from workers[key.fd].heard(piece)
    finally:
        for descriptor, worker in workers.items():
            os.close(descriptor)
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        for worker in workers.values():
            with suppress(ChildProcessError):
                os.waitpid(worker.pid, 0)


@dataclass(slots=True)
class _Worker:
    """A process that reads, and what it has said that is not yet whole."""

    pid: int
    _rest: bytearray = field(default_factory=bytearray)

    def heard(self, piece: bytes) -> Iterator[Any]:
        """The readings that are whole with this piece."""
        self._rest += piece
        while len(self._rest) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._rest)[0]
            if len(self._rest) < end:
                return
            # Our own process wrote it, into a pipe that nobody else has.
            content = bytes(self._rest[_LENGTH.size : end])
            del self._rest[:end]
            try:
                batch = pickle.loads(content)
            except Exception:
                continue  # Something of a plugin that cannot be handed over; it is read here.
            yield from batch


def _start(
    workers: dict[int, _Worker], wanted: Sequence[tuple[Source, SourceFile]], mine: Sequence[int], tree: Tree
) -> None:
    """Start a process that reads those of `wanted` with the numbers `mine`.

    Raises:
        OSError: there is no room for one.
    """
    parent = os.getpid()
    # An interrupt is for the parent, which ends its processes: until it knows this one, it waits.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        reading, writing = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        if pid == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                for descriptor in (reading, *workers):
                    os.close(descriptor)
                _work(writing, wanted, mine, tree, parent)
            finally:
                # Nothing of what the parent set up for its own end is done twice.
                os._exit(0)
        workers[reading] = _Worker(pid)
        os.close(writing)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    writing: int, wanted: Sequence[tuple[Source, SourceFile]], mine: Sequence[int], tree: Tree, parent: int
) -> None:
    gc.freeze()
    noting = _Noting(tree)
    batch: list[tuple[int, Reading, Reading, _Asked]] = []
    for index in mine:
        if os.getppid() != parent:
            return
        source, file = wanted[index]
        noting.said = {}
        try:
            raw = source.read(file, noting)
            clean = without_secrets(raw)
        except Exception:
            continue  # The parent meets it, too, and says so.
        batch.append((index, raw, raw if clean == raw else clean, noting.said))
        if len(batch) == _BATCH:
            _hand_over(writing, batch)
            batch = []
    _hand_over(writing, batch)


def _hand_over(writing: int, batch: Sequence[Any]) -> None:
    content = pickle.dumps(batch, pickle.HIGHEST_PROTOCOL)
    left = memoryview(_LENGTH.pack(len(content)) + content)
    while left:
        left = left[os.write(writing, left) :]

"""The files of a failed run: its logs, streamed line by line, and the dumps, stacks and events next to them."""

from __future__ import annotations

import gzip
import json
import os
import re
import select
import stat
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from preflight._util import regular_file
from preflight._util.redaction import scrub
from preflight._util.sanitize import clean
from preflight._util.usage_error import UsageError, nearest_path
from preflight.commands.diagnose import flight_recorder, hangs
from preflight.commands.diagnose.flight_recorder import Dump
from preflight.commands.diagnose.hangs import Hang, Stack
from preflight.commands.diagnose.log_lines import member_of_file

#: Bytes per read; a longer line is split.
CHUNK_BYTES = 1 << 20
_CHUNK = "1 MiB"
#: Number of bytes kept of the beginning and of the end of a longer line.
_KEPT_BYTES = 16 << 10
#: Limits of CPU time for one log and for all logs.
MAX_SECONDS = 15.0
MAX_SECONDS_OF_ALL = 600.0
#: Largest number of files read from a folder; a run of ten thousand ranks with two files each has fewer.
MAX_FILES = 50_000
#: Files of a log folder that are not logs but describe the run: dumps of collectives, preflight's own events.
_BESIDE = re.compile(r"(?i)\.(json|jsonl|pkl|pickle)$")
#: Files of a log folder that are not logs: data, models, code.
_NO_LOG = re.compile(
    r"(?i)\.(bin|pt|pth|ckpt|safetensors|npy|npz|parquet|arrow|tar|zip|so|pyc|py|sh|json|jsonl|ya?ml|toml|png|jpe?g|"
    r"onnx|pdparams|pdopt|pdmodel|h5|db|sqlite|tfevents.*|whl|nsys-rep|pkl|pickle|md|html|css|js)$|events\.out\.tfevents"
)
_GZIP = b"\x1f\x8b"
_OTHER_COMPRESSION = {b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"BZh91AY": "bzip2", b"PK\x03\x04": "zip"}
#: Largest amount read of one log, uncompressed; this takes some seconds.
MAX_BYTES = 512 << 20
#: Largest amount read of all logs together.
MAX_BYTES_OF_ALL = 8 << 30
#: How long a FIFO or standard input may be silent.
PIPE_WAIT_S = 15.0
STDIN_WAIT_S = 600.0
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log: its path, its name in the result, and whether the user named it or it was found in a folder.

    `is_log` is false for a file in a folder that is read only if it turns out to be a dump or preflight's events.
    """

    path: Path | None
    name: str
    is_named: bool = True
    is_log: bool = True


@dataclass(slots=True)
class ReadState:
    """The progress of reading a file, updated while its chunks are consumed."""

    size_bytes: int = 0
    problem: str = ""


def logs_in(paths: Sequence[str | Path]) -> tuple[LogFile, ...]:
    """Return the named files (`-`: standard input) and the likely logs in folders. Raises UsageError."""
    logs: dict[str, LogFile] = {}
    for given_path in paths:
        if str(given_path) == "-":
            logs["-"] = LogFile(None, "standard input")
            continue
        path = Path(given_path)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            hint = nearest_path(Path(path)) or "; name the logs of a run, or the folder that contains them"
            raise UsageError(f"{path}: {error.strerror}{hint}") from None
        if stat.S_ISDIR(mode):
            for name in _files_in(path):
                log = LogFile(name, name.as_posix(), is_named=False, is_log=not _NO_LOG.search(name.name))
                logs.setdefault(str(name.resolve()), log)
        elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            logs.setdefault(str(path.resolve()), LogFile(path, path.as_posix()))
        else:
            raise UsageError(f"{path} is neither a file nor a folder")
        if len(logs) > MAX_FILES:
            raise UsageError(f"more than {MAX_FILES} files; name a folder with the logs of one run")
    return tuple(logs.values())


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield possible logs in a folder and its subfolders in natural order, without links; special files are reported as
    not read.
    """
    for here, folders, names in os.walk(folder):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=natural_key)
        for name in sorted(names, key=natural_key):
            path = Path(here) / name
            if name.startswith(".") or path.is_symlink():
                continue
            if _NO_LOG.search(name) and not (_BESIDE.search(name) and path.is_file()):
                continue
            yield path


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts `log.9` before `log.10`."""
    return [(0, int(part), "") if part.isascii() and part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name)]


_DIGITS = re.compile(r"([0-9]{1,18})")


def chunks(log: LogFile, stdin: IO[bytes] | None, reading: ReadState) -> Iterator[bytes]:
    """Yield a log in chunks of whole lines; an error sets `reading.problem`. A malicious log may never end."""
    try:
        if log.path is None:
            if stdin is not None:
                yield from _whole_lines(_pipe_chunks(stdin, STDIN_WAIT_S), reading, MAX_BYTES)
            return
        if log.is_named and stat.S_ISFIFO(log.path.stat().st_mode):
            with _pipe(log.path) as pipe:
                yield from _whole_lines(_pipe_chunks(pipe, PIPE_WAIT_S, opened_by_us=True), reading, MAX_BYTES)
            return
        with regular_file.open_regular(log.path) as raw:
            yield from _file_pieces(raw, reading)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reading.problem = f"the compressed data is truncated or damaged ({error}); the data before that was read"
    except TimeoutError as error:
        reading.problem = f"{error}; the data before that was read" if reading.size_bytes else str(error)
    except OSError as error:
        reading.problem = f"cannot be read: {error.strerror or error}"


def _file_pieces(raw: IO[bytes], reading: ReadState) -> Iterator[bytes]:
    head = raw.read(7)
    for magic, name in _OTHER_COMPRESSION.items():
        if head.startswith(magic):
            reading.problem = f"is compressed with {name}, which is not supported; unpack it first"
            return
    raw.seek(0)
    if head.startswith(_GZIP):
        with gzip.GzipFile(fileobj=raw) as opened:
            yield from _whole_lines(_pieces(cast("IO[bytes]", opened)), reading, MAX_BYTES)
        return
    size = os.fstat(raw.fileno()).st_size
    if size <= MAX_BYTES:
        yield from _whole_lines(_pieces(raw), reading, MAX_BYTES)
        return
    # The last lines of a run matter most; the first ones show how it began.
    half = MAX_BYTES // 2
    yield from _whole_lines(_pieces(raw), reading, half)
    raw.seek(size - half)
    yield from _whole_lines(_pieces(raw), reading, half)
    limit = regular_file.size_of(half)
    reading.problem = f"has {regular_file.size_of(size)}, of which only the first and last {limit} were read"


@contextmanager
def _pipe(path: Path) -> Iterator[IO[bytes]]:
    # Open without waiting for a writer; reading waits for it.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as pipe:
        yield pipe


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    # Yield what is available at once, so that readable data before damage is not lost.
    take = getattr(stream, "read1", stream.read)
    while piece := take(CHUNK_BYTES):
        yield piece


def _pipe_chunks(stream: IO[bytes], wait_s: float, *, opened_by_us: bool = False) -> Iterator[bytes]:
    """Yield the chunks of a pipe. Raises TimeoutError after `wait_s` seconds without data."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        yield from _pieces(stream)  # A stream in memory, which never blocks.
        return
    until = time.monotonic() + wait_s
    anything = False
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(descriptor, CHUNK_BYTES) if ready else None
        if piece:
            anything = True
            until = time.monotonic() + wait_s
            yield piece
        elif piece is None:
            raise TimeoutError(f"no data arrived for {wait_s:g} s")
        elif anything or not opened_by_us:
            return
        elif time.monotonic() >= until:
            raise TimeoutError(f"is a FIFO, and nothing was written to it for {wait_s:g} s")
        else:
            time.sleep(_LOOK_S)  # A FIFO that no process has opened for writing looks like one at its end.


def _whole_lines(pieces: Iterator[bytes], reading: ReadState, max_bytes: int) -> Iterator[bytes]:
    """Join chunks so that they end at a line end, up to `max_bytes`."""
    held_pieces: list[bytes] = []
    size = used = 0
    started_at = time.thread_time()
    try:
        for piece in pieces:
            if used + len(piece) > max_bytes:
                limit = regular_file.size_of(max_bytes)
                reading.problem = f"is larger than {limit}, the limit for one log; the rest was not read"
                break
            used += len(piece)
            reading.size_bytes += len(piece)
            held_pieces.append(piece)
            size += len(piece)
            if size >= CHUNK_BYTES:
                whole = b"".join(held_pieces)
                cut = whole.rfind(b"\n") + 1 or whole.rfind(b"\r") + 1
                if not cut:
                    # No log has such a line: it is data, or a hole in the file, and slow to search.
                    reading.problem = f"has a line longer than {_CHUNK}, of which parts were not read"
                    whole = whole[:_KEPT_BYTES] + b" " + whole[-_KEPT_BYTES:]
                    cut = len(whole)
                yield whole[:cut]
                held_pieces, size = [whole[cut:]], len(whole) - cut
                if time.thread_time() - started_at > MAX_SECONDS:
                    reading.problem = f"took more than {MAX_SECONDS:g} s to read; the rest was not read"
                    return
    except (EOFError, OSError, zlib.error):
        # Keep what could be read before the damage.
        yield b"".join(held_pieces)
        raise
    if size:
        yield b"".join(held_pieces)


_HEAD_BYTES = 8192
_MAX_EVENTS_BYTES = 64 << 20
_MAX_EVENTS = 200_000
#: Limit of CPU time for all of these files.
_MAX_SECONDS = 120.0
#: Number of files of each kind; the largest jobs have one for each rank.
_MAX_FILES = 20_000
#: Number of calls kept of all dumps together; a thousand ranks that wait in a hundred collectives each have fewer.
_MAX_CALLS = 1_000_000
_MAX_TEXT = 400
_LAST_NUMBER = re.compile(r"(?P<rank>\d{1,6})(?:\.[a-z]{1,8})?$")


@dataclass(frozen=True, slots=True)
class Reported:
    """A rule or check that preflight reported before or during the run."""

    id: str
    text: str
    path: str


@dataclass(slots=True)
class SideFiles:
    """The dumps, stacks and events of a run. `reported` is keyed by the id of the rule or check."""

    dumps: list[Dump] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    reported: dict[str, Reported] = field(default_factory=dict)
    _calls: int = 0
    _spent_s: float = 0.0

    def read(self, log: LogFile) -> tuple[bool, int, str]:
        """Read a dump, stacks or preflight's events; return whether it is one, its size, and why it was not read."""
        if log.path is None or len(self.dumps) + len(self.stacks) > _MAX_FILES:
            return False, 0, ""
        try:
            with regular_file.open_regular(log.path) as stream:
                head = stream.read(_HEAD_BYTES)
                if hangs.looks_like_stacks(head):
                    return self._read_stack(log.name, head + stream.read(hangs.MAX_BYTES))
                if _looks_like_events(head):
                    return self._read_events(log.name, head + stream.read(_MAX_EVENTS_BYTES))
                if not flight_recorder.looks_like_dump(head):
                    return False, 0, ""
                if self._spent_s > _MAX_SECONDS:
                    # A log may also begin with a brace, and is then scanned as a log.
                    return head.startswith(b"\x80"), 0, "was not read as a dump: earlier dumps took too long to read"
                data = head + stream.read(flight_recorder.MAX_BYTES)
        except OSError:
            # Reading it as a log reports the reason.
            return False, 0, ""
        started_at = time.thread_time()
        try:
            return self._read_dump(log, data)
        finally:
            self._spent_s += time.thread_time() - started_at

    def _read_dump(self, log: LogFile, data: bytes) -> tuple[bool, int, str]:
        is_pickle = data.startswith(b"\x80")
        if len(data) > flight_recorder.MAX_BYTES:
            return (
                is_pickle,
                0,
                f"is larger than {regular_file.size_of(flight_recorder.MAX_BYTES)}, the limit for a dump",
            )
        try:
            dump = flight_recorder.read_dump(data, _rank_of(log.name), log.name)
        except ValueError as error:
            # A log may begin with a brace, but not with the first byte of a pickle.
            return is_pickle, len(data), f"is a dump that cannot be read: {error}" if is_pickle else ""
        if dump is None:
            return is_pickle, len(data), "is a pickle, but not a dump of the Flight Recorder" if is_pickle else ""
        if dump.rank < 0:
            return True, len(data), "is a dump without a rank; give it a name such as nccl_trace_rank_3"
        # A rank may have a pickle with stacks and a JSON file of the same calls without stacks.
        known = next((at for at, other in enumerate(self.dumps) if other.rank == dump.rank), None)
        self._calls += len(dump.calls)
        if self._calls > _MAX_CALLS:
            return True, len(data), "was not read: earlier dumps have too many collectives"
        if known is None:
            self.dumps.append(dump)
        elif not any(call.place for call in self.dumps[known].calls):
            self.dumps[known] = dump
        return True, len(data), ""

    def _read_stack(self, name: str, data: bytes) -> tuple[bool, int, str]:
        rank = member_of_file(name).rank
        if rank is None:
            return (
                True,
                len(data),
                ("has the stacks of a process but not its rank; give it a name such as py-spy-rank_3.txt"),
            )
        stack = hangs.read_stack(data.decode("utf-8", "replace"), rank, name)
        if stack is not None:
            self.stacks.append(stack)
        return True, len(data), ""

    def _read_events(self, name: str, data: bytes) -> tuple[bool, int, str]:
        for line in data.splitlines()[:_MAX_EVENTS]:
            if b'"finding"' not in line:
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            found = _parse_reported(event, name)
            if found is not None:
                self.reported.setdefault(found.id, found)
        return True, len(data), ""

    def hang(self) -> Hang | None:
        """Return the explanation of a hang, from dumps of collectives or else from stacks."""
        return hangs.find_hang(self.dumps) or hangs.find_hang_in_stacks(self.stacks)

    def notes(self) -> tuple[str, ...]:
        """Return a note about ranks that left no dump although the dumps of others list them."""
        missing = hangs.ranks_without_dump(self.dumps)
        return (f"{hangs.format_ranks(missing)} left no dump",) if missing else ()


def reported_before(reported: Iterable[Reported]) -> tuple[str, ...]:
    """Return a line for each rule or check that preflight reported before the run."""
    return tuple(f"preflight reported {item.id} beforehand: {item.text} ({item.path})" for item in reported)


def _rank_of(name: str) -> int | None:
    """Return the rank in the name of a dump: `nccl_trace_rank_3`, `_dump_3`, `trace.3.json`."""
    rank = member_of_file(name).rank
    if rank is None and (number := _LAST_NUMBER.search(name)) is not None:
        rank = int(number["rank"])
    return rank


def _looks_like_events(head: bytes) -> bool:
    first = head.split(b"\n", 1)[0]
    return first.startswith(b"{") and b'"run-began"' in first and b'"schema_version"' in first


def _parse_reported(event: Any, path: str) -> Reported | None:
    finding = event.get("finding") if isinstance(event, dict) and event.get("type") == "finding" else None
    if not isinstance(finding, dict) or finding.get("suppressed_by"):
        return None
    name, text = finding.get("id"), finding.get("message")
    if not isinstance(name, str) or not isinstance(text, str):
        return None
    return Reported(clean(name)[:40], scrub(clean(text))[:_MAX_TEXT], path)

"""Finds log files and streams their lines: compressed or not, of any size, with any bytes."""

from __future__ import annotations

import gzip
import os
import re
import select
import stat
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from preflight._util import regular_file
from preflight._util.suggest import nearest_path
from preflight._util.usage_error import UsageError

#: Bytes per read; a longer line is split.
CHUNK_BYTES = 1 << 20
_CHUNK = "1 MiB"
#: Of a longer line, this much of its beginning and of its end is kept.
_KEPT_BYTES = 16 << 10
#: Processor time for one log, and for all of them.
MAX_SECONDS = 15.0
MAX_SECONDS_OF_ALL = 600.0
#: Largest number of files read from a folder; a run of ten thousand ranks with two files each has fewer.
MAX_FILES = 50_000
#: Files of a log folder that are not logs: data, models, code.
#: Files of a log folder that hold something else about the run: dumps of collectives, preflight's own events.
_BESIDE = re.compile(r"(?i)\.(json|jsonl|pkl|pickle)$")
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

    `is_log` is false for a file of a folder that is read only if it turns out to be a dump or preflight's events.
    """

    path: Path | None
    name: str
    is_named: bool = True
    is_log: bool = True


@dataclass(slots=True)
class ReadState:
    """The result of reading a file, filled in while its chunks are consumed."""

    size_bytes: int = 0
    problem: str = ""


def logs_in(paths: Sequence[str | Path]) -> tuple[LogFile, ...]:
    """Return the logs in `paths`: the named files, and the files in named folders that look like logs, in stable order.

    The path `-` is standard input.

    Raises:
        UsageError: a path does not exist, or is neither a file nor a folder.
    """
    found: dict[str, LogFile] = {}
    for given in paths:
        if str(given) == "-":
            found["-"] = LogFile(None, "standard input")
            continue
        path = Path(given)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            hint = nearest_path(Path(path)) or "; name the logs of a run, or a folder of them"
            raise UsageError(f"{path}: {error.strerror}{hint}") from None
        if stat.S_ISDIR(mode):
            for name in _files_in(path):
                log = LogFile(name, name.as_posix(), is_named=False, is_log=not _NO_LOG.search(name.name))
                found.setdefault(str(name.resolve()), log)
        elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            found.setdefault(str(path.resolve()), LogFile(path, path.as_posix()))
        else:
            raise UsageError(f"{path} is neither a file nor a folder")
        if len(found) > MAX_FILES:
            raise UsageError(f"more than {MAX_FILES} files; name a folder of one run")
    return tuple(found.values())


def _files_in(folder: Path) -> Iterator[Path]:
    """Return the files below a folder that may be logs, in natural order; links are not followed.

    Special files are included so that they are reported as not read.
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


def chunks(found: LogFile, given: IO[bytes] | None, reading: ReadState) -> Iterator[bytes]:
    """Yield the bytes of a log in chunks that end with a line; only a line longer than a chunk is split.

    An error ends the stream and sets `reading.problem`. A hostile log may unpack to terabytes or never end.
    """
    try:
        if found.path is None:
            if given is not None:
                yield from _whole_lines(_pipe_chunks(given, STDIN_WAIT_S), reading, MAX_BYTES)
            return
        if found.is_named and stat.S_ISFIFO(found.path.stat().st_mode):
            with _pipe(found.path) as pipe:
                yield from _whole_lines(_pipe_chunks(pipe, PIPE_WAIT_S, opened_by_us=True), reading, MAX_BYTES)
            return
        with regular_file.open_regular(found.path) as raw:
            yield from _of_file(raw, reading)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reading.problem = f"the compressed data is truncated or damaged ({error}); what came before was read"
    except TimeoutError as error:
        reading.problem = f"{error}; what came before was read" if reading.size_bytes else str(error)
    except OSError as error:
        reading.problem = f"cannot be read: {error.strerror or error}"


def _of_file(raw: IO[bytes], reading: ReadState) -> Iterator[bytes]:
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
    reading.problem = f"has {regular_file.size_of(size)}, of which the first and the last {limit} were read"


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
    """Yield the chunks of a pipe as they arrive.

    Raises:
        TimeoutError: nothing arrived for `wait_s` seconds.
    """
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
            raise TimeoutError(f"is a FIFO to which nothing was written for {wait_s:g} s")
        else:
            time.sleep(_LOOK_S)  # A FIFO that no process has opened for writing looks like one at its end.


def _whole_lines(pieces: Iterator[bytes], reading: ReadState, max_bytes: int) -> Iterator[bytes]:
    """Join chunks so that they end with a line, up to `max_bytes`."""
    held: list[bytes] = []
    size = used = 0
    began = time.thread_time()
    try:
        for piece in pieces:
            if used + len(piece) > max_bytes:
                limit = regular_file.size_of(max_bytes)
                reading.problem = f"is larger than {limit}, the limit for one log; the rest was not read"
                break
            used += len(piece)
            reading.size_bytes += len(piece)
            held.append(piece)
            size += len(piece)
            if size >= CHUNK_BYTES:
                whole = b"".join(held)
                cut = whole.rfind(b"\n") + 1 or whole.rfind(b"\r") + 1
                if not cut:
                    # No log has such a line: it is data, or a hole in the file, and slow to search.
                    reading.problem = f"has a line longer than {_CHUNK}; parts of it were not read"
                    whole = whole[:_KEPT_BYTES] + b" " + whole[-_KEPT_BYTES:]
                    cut = len(whole)
                yield whole[:cut]
                held, size = [whole[cut:]], len(whole) - cut
                if time.thread_time() - began > MAX_SECONDS:
                    reading.problem = f"took more than {MAX_SECONDS:g} s to read; the rest was not read"
                    return
    except (EOFError, OSError, zlib.error):
        # Keep what could be read before the damage.
        yield b"".join(held)
        raise
    if size:
        yield b"".join(held)

"""Which files are logs, and their lines as streams: compressed or not, of any size, whatever bytes they hold."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from preflight.errors import UsageError
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.near import nearest_path

#: So much is read at a time; a line longer than that is cut into several.
CHUNK_BYTES = 1 << 20
#: Of a folder so many files are read; a run of ten thousand ranks with two files each has fewer.
MOST_FILES = 50_000
#: Files of a log folder that are no logs: data, models, code.
_NO_LOG = lazy_pattern(
    r"(?i)\.(bin|pt|pth|ckpt|safetensors|npy|npz|parquet|arrow|tar|zip|so|pyc|py|sh|json|jsonl|ya?ml|toml|png|jpe?g|"
    r"onnx|pdparams|pdopt|pdmodel|h5|db|sqlite|tfevents.*|whl|nsys-rep|pkl|pickle|md|html|css|js)$|events\.out\.tfevents"
)
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Found:
    """A log: where it is, and how it is called in the answer."""

    path: Path | None
    name: str


@dataclass(slots=True)
class Reading:
    """What became of reading a file, filled while its chunks are taken."""

    size_bytes: int = 0
    problem: str = ""


def logs_in(paths: Sequence[str | Path]) -> tuple[Found, ...]:
    """The logs that `paths` stand for: files as they are, and what of folders looks like logs, in a stable order.

    A path of None's place, `-`, is standard input.

    Raises:
        UsageError: a path does not exist, or is neither a file nor a folder.
    """
    found: dict[str, Found] = {}
    for given in paths:
        if str(given) == "-":
            found["-"] = Found(None, "standard input")
            continue
        path = Path(given)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            hint = nearest_path(Path(path)) or "; name the logs of a run, or a folder of them"
            raise UsageError(f"{path}: {error.strerror}{hint}") from None
        if stat.S_ISDIR(mode):
            for name in _below(path):
                found.setdefault(str(name.resolve()), Found(name, name.as_posix()))
        elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            found.setdefault(str(path.resolve()), Found(path, path.as_posix()))
        else:
            raise UsageError(f"{path} is neither a file nor a folder")
        if len(found) > MOST_FILES:
            raise UsageError(f"more than {MOST_FILES} files; name a folder of one run")
    return tuple(found.values())


def _below(folder: Path) -> Iterator[Path]:
    """Regular files below a folder that may be logs, sorted as people count; links are not followed."""
    for here, folders, names in os.walk(folder):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=counted)
        for name in sorted(names, key=counted):
            path = Path(here) / name
            if name.startswith(".") or _NO_LOG.search(name) or path.is_symlink() or not path.is_file():
                continue
            yield path


def counted(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts `log.9` before `log.10`."""
    return [(0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part) for part in _DIGITS.split(name)]


_DIGITS = lazy_pattern(r"([0-9]{1,18})")


def chunks(found: Found, given: IO[bytes] | None, reading: Reading) -> Iterator[bytes]:
    """The bytes of a log in pieces that end with a line; only a line longer than a piece is cut.

    What cannot be read ends the stream, and `reading.problem` says why.
    """
    try:
        if found.path is None:
            if given is not None:
                yield from _whole_lines(given, reading)
            return
        with found.path.open("rb") as raw:
            head = raw.peek(2)[:2] if found.path.is_file() else b""
            if head == _GZIP:
                with gzip.GzipFile(fileobj=raw) as opened:
                    yield from _whole_lines(cast("IO[bytes]", opened), reading)
            else:
                yield from _whole_lines(raw, reading)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reading.problem = f"compressed data that end early or are damaged ({error}); what came before was read"
    except OSError as error:
        reading.problem = f"cannot be read: {error.strerror or error}"


def _whole_lines(stream: IO[bytes], reading: Reading) -> Iterator[bytes]:
    # What there is at once: of damaged data nothing that could be read is lost.
    take = getattr(stream, "read1", stream.read)
    held: list[bytes] = []
    size = 0
    while True:
        try:
            piece = take(CHUNK_BYTES)
        except (EOFError, OSError, zlib.error):
            yield b"".join(held)
            raise
        if not piece:
            break
        reading.size_bytes += len(piece)
        held.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            whole = b"".join(held)
            cut = whole.rfind(b"\n") + 1 or len(whole)
            yield whole[:cut]
            held, size = [whole[cut:]], len(whole) - cut
    if size:
        yield b"".join(held)

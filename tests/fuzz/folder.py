"""A folder of files as one input: each file begins with a line `>>> PATH`. A person can read and write such a case."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

_MARK = b">>> "
_MAX_FILES = 24
_MAX_PATH_LENGTH = 120
#: Memory where the system has such a folder: thousands of small trees a minute are written and removed.
_MEMORY = Path("/dev/shm")


def packed(files: Mapping[str, bytes]) -> bytes:
    """The files as one input."""
    return b"".join(_MARK + path.encode() + b"\n" + content.rstrip(b"\n") + b"\n" for path, content in files.items())


def unpacked(data: bytes) -> dict[str, bytes]:
    """The files of an input; text before the first mark is a script. Paths that leave the folder are dropped."""
    found: dict[str, bytes] = {}
    for number, part in enumerate(data.split(b"\n" + _MARK)[:_MAX_FILES]):
        if number == 0 and not part.startswith(_MARK):
            found["run.sh"] = part
            continue
        name, _, content = part.removeprefix(_MARK).partition(b"\n")
        path = name.decode("utf-8", "replace").strip()
        if _is_inside(path) and not _clashes(path, found):
            found[path] = content + (b"" if content.endswith(b"\n") else b"\n")
    return found


def _is_inside(path: str) -> bool:
    pure = PurePosixPath(path)
    plain = path == str(pure) and path.isprintable() and len(path.encode()) <= _MAX_PATH_LENGTH
    return plain and path not in ("", ".") and not pure.is_absolute() and ".." not in pure.parts


def _clashes(path: str, found: Mapping[str, bytes]) -> bool:
    """Whether one of the paths would be both a file and a folder."""
    above = {str(parent) for parent in PurePosixPath(path).parents}
    return any(other in above or path in map(str, PurePosixPath(other).parents) for other in found)


@contextlib.contextmanager
def temporary_folder(files: Mapping[str, bytes]) -> Iterator[Path]:
    """The files in a new folder, always called `tree`, so that messages about them are the same each time."""
    base = Path(tempfile.mkdtemp(prefix="preflight-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        root = base / "tree"
        root.mkdir()
        for path, content in files.items():
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        yield root
    finally:
        shutil.rmtree(base, ignore_errors=True)

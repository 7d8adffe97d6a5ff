"""The files a source may look at: regular files, inside one root, below a size.

What lies in the tree may be hostile (a pull request from a stranger), so a link to /etc/shadow, a FIFO that
never answers, a device, or ten gigabytes of zeros must each come back as a note: no content, hang or crash.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from preflight.job import Note, NoteKind, Span
from preflight.sources.base import SourceFile, Tree

#: Launch scripts and configuration are a few KiB; large training scripts stay below 1 MiB.
LARGEST_BYTES = 10 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_MIB = 1024 * 1024


class DirectoryTree:
    """The regular files below a directory.

    Args:
        root: the directory; links inside it may lead anywhere inside it, and nowhere else.
        largest_bytes: files above this are not read.

    Answers are cached: one file is read once, so that every source sees the same bytes.
    """

    def __init__(self, root: Path, *, largest_bytes: int = LARGEST_BYTES) -> None:
        self.root = root
        self.largest_bytes = largest_bytes
        self._real_root = os.path.realpath(root)
        self._read: dict[str, SourceFile | Note] = {}
        self._there: dict[str, bool] = {}
        self._folders: dict[str, str] = {}

    def read(self, path: str) -> SourceFile | Note:
        """The file at `path` (relative to the root), or a note that says why it cannot be had."""
        if path not in self._read:
            self._read[path] = self._load(path)
        return self._read[path]

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """`path`, as written in `relative_to`, as a path relative to the root; None when it leads outside."""
        inside = path
        if path.startswith("/"):
            for root in (str(self.root.absolute()), self._real_root):
                below = os.path.relpath(os.path.normpath(path), root)
                if below != ".." and not below.startswith("../"):
                    inside = below
                    relative_to = ""
                    break
            else:
                return None
        return _resolve(inside, relative_to, self.exists)

    def exists(self, path: str) -> bool:
        """Whether there is something at `path` (relative to the root) that is not outside."""
        known = self._there.get(path)
        if known is None:
            known = self._there[path] = self._look(path)
        return known

    @property
    def was_read(self) -> Mapping[str, SourceFile | Note]:
        """Everything that was asked for so far, and what came of it."""
        return self._read

    @property
    def was_there(self) -> Mapping[str, bool]:
        """Everything whose existence was asked for so far."""
        return self._there

    def _look(self, path: str) -> bool:
        above = posixpath.dirname(path)
        # Of a directory that is not there nothing needs to be looked for; imports ask for many such files.
        if above and above != path and not self.exists(above):
            return False
        try:
            return self._is_inside(self._real(path, strict=True))
        except (OSError, ValueError):
            return False

    def _real(self, path: str, *, strict: bool = False) -> str:
        """Where `path` leads to. The folders on the way are resolved once, as most of what is asked for is not there.

        Raises:
            OSError: with `strict`, there is nothing.
        """
        folder, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            return os.path.realpath(self._at(path), strict=strict)
        known = self._folders.get(folder)
        if known is None:
            known = self._folders[folder] = os.path.realpath(self._at(folder))
        place = f"{known.rstrip('/')}/{name}"
        try:
            status = os.lstat(place)
        except OSError:
            if strict:
                raise
            return place
        return os.path.realpath(place, strict=strict) if stat.S_ISLNK(status.st_mode) else place

    def _at(self, path: str) -> str:
        return f"{self._real_root}/{path}"

    def _is_inside(self, real: str) -> bool:
        return real == self._real_root or real.startswith(self._real_root.rstrip("/") + "/")

    def _load(self, path: str) -> SourceFile | Note:
        try:
            # Not strictly, so that a link out of the root is called that also where it leads to nothing.
            real = self._real(path)
            if not self._is_inside(real):
                return _outside(path)
            content = self._content(path, real)
        except ValueError as error:
            return note_at(path, NoteKind.UNREADABLE, f"{path!r} cannot be the name of a file: {error}")
        except OSError as error:
            return _from_os_error(path, error)
        return content if isinstance(content, Note) else decode(path, content)

    def _content(self, path: str, real: str) -> bytes | Note:
        # Looked at before it is opened: opening a device can already do something.
        before = os.lstat(real)
        if stat.S_ISLNK(before.st_mode):
            # All links were followed; one that is left over is part of a circle.
            return _loop(path)
        if not stat.S_ISREG(before.st_mode):
            return _not_regular(path, before.st_mode)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(real, flags)
        with os.fdopen(descriptor, "rb", buffering=0) as opened:
            # And again afterwards: it may have been exchanged in between.
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return _not_regular(path, status.st_mode)
            if (status.st_dev, status.st_ino) != (before.st_dev, before.st_ino):
                return note_at(path, NoteKind.UNREADABLE, f"{path} changed while it was being opened; run again")
            if status.st_size > self.largest_bytes:
                return self._too_large(path, status.st_size)
            pieces: list[bytes] = []
            left = self.largest_bytes + 1
            while left > 0 and (piece := opened.read(left)):
                pieces.append(piece)
                left -= len(piece)
        content = b"".join(pieces)
        if len(content) > self.largest_bytes:
            return self._too_large(path, len(content))
        return content

    def _too_large(self, path: str, size: int) -> Note:
        return note_at(
            path,
            NoteKind.TOO_LARGE,
            f"{path} has {size / _MIB:.1f} MiB, more than the {self.largest_bytes / _MIB:g} MiB that are read"
            " of one file; exclude it if it is data, or split it if it is configuration",
        )


class MemoryTree:
    """Files that exist only as text: for tests, standard input, and files that a script writes itself."""

    def __init__(self, files: Mapping[str, str | bytes], *, largest_bytes: int = LARGEST_BYTES) -> None:
        self.files = dict(files)
        self.largest_bytes = largest_bytes

    def read(self, path: str) -> SourceFile | Note:
        """The file at `path`, or a note when there is none."""
        content = self.files.get(path)
        if content is None:
            if self._exists(path):
                return _not_regular(path, stat.S_IFDIR)
            return _missing(path)
        raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        if len(raw) > self.largest_bytes:
            limit = self.largest_bytes / _MIB
            message = f"{path} has {len(raw) / _MIB:.1f} MiB, more than the {limit:g} MiB that are read of one file"
            return note_at(path, NoteKind.TOO_LARGE, message)
        return decode(path, raw)

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """`path`, as written in `relative_to`; None when it is absolute or leads above the root."""
        return None if path.startswith("/") else _resolve(path, relative_to, self._exists)

    def _exists(self, path: str) -> bool:
        return path in self.files or any(name.startswith(path + "/") for name in self.files)


class OverlayTree:
    """Another tree with some files laid over it: what a here-document writes is read as if it were there."""

    def __init__(self, base: Tree, files: Mapping[str, str | bytes]) -> None:
        self._base = base
        self._over = MemoryTree(files)

    def read(self, path: str) -> SourceFile | Note:
        """The laid-over file, else that of the tree below."""
        return self._over.read(path) if path in self._over.files else self._base.read(path)

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """As the tree below, but laid-over files exist."""
        over = self._over.resolve(path, relative_to=relative_to)
        return over if over in self._over.files else self._base.resolve(path, relative_to=relative_to)


def decode(path: str, content: bytes) -> SourceFile | Note:
    """`content` as a source file; a note when it is binary. A byte-order mark is dropped."""
    zero = content.find(b"\0")
    if zero >= 0:
        message = f"{path} is no text: a NUL byte stands at offset {zero}; exclude it, or save it again as UTF-8"
        return note_at(path, NoteKind.MALFORMED, message)
    text = content.removeprefix(_BOM).decode("utf-8", "replace")
    return SourceFile(path, text, hashlib.sha256(content).hexdigest(), len(content))


def note_at(path: str, kind: NoteKind, message: str) -> Note:
    """A note about a whole file; it points at its first character."""
    return Note(kind, message, Span(path, 1, 1, 1, 1))


def _resolve(path: str, relative_to: str, exists: Callable[[str], bool]) -> str | None:
    if not path:
        return None
    candidates: list[str | None] = []
    for start in (posixpath.dirname(relative_to), ""):
        joined = posixpath.normpath(posixpath.join(start, path))
        outside = joined == ".." or joined.startswith(("../", "/"))
        candidates.append(None if outside else joined)
    for candidate in candidates:
        if candidate is not None and exists(candidate):
            return candidate
    return candidates[0]


def _missing(path: str) -> Note:
    return note_at(path, NoteKind.MISSING, f"{path} does not exist")


def _loop(path: str) -> Note:
    return note_at(path, NoteKind.UNREADABLE, f"{path} is a symbolic link that leads back to itself")


def _outside(path: str) -> Note:
    message = f"{path} leads outside the directory being looked at and is not followed; copy the file into it"
    return note_at(path, NoteKind.OUTSIDE, message)


def _not_regular(path: str, mode: int) -> Note:
    kinds = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISLNK, "a symbolic link"),
    )
    what = next((name for test, name in kinds if test(mode)), "something else")
    return note_at(path, NoteKind.UNREADABLE, f"{path} is {what}, not a regular file, and is not read")


def _from_os_error(path: str, error: OSError) -> Note:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _missing(path)
    if error.errno == errno.ELOOP:
        return _loop(path)
    reason = error.strerror or type(error).__name__
    return note_at(path, NoteKind.UNREADABLE, f"{path} cannot be read: {reason}")

"""The files that a source may read: regular files inside one root and below a size limit.

The tree may be hostile (an unknown author's pull request), so a link to /etc/shadow, a FIFO that never answers, a
device, or ten gigabytes of zeros must each result in a note, never in content, a hang or a crash.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import itertools
import os
import posixpath
import re
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from preflight._util import regular_file
from preflight._util.budget import Limits
from preflight.model.job import Note, NoteDetail, NoteKind, Span
from preflight.sources.base import SourceFile, Tree

#: Launch scripts and configuration are a few KiB; large training scripts stay below 1 MiB.
MAX_BYTES = 10 * 1024 * 1024
#: Entries of one folder that are listed.
MAX_NAMES = 5_000
#: Templates of YAML by their names, which `envsubst`, Jinja and the like fill in.
TEMPLATE_SUFFIXES = (".yaml-template", ".yml-template", ".yaml.template", ".yml.template", ".template")
_BOM = b"\xef\xbb\xbf"
_MIB = 1024 * 1024
#: The bytes that show the kind of a file.
_HEAD_BYTES = 64 * 1024
_WIDE = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_REQUIREMENTS = re.compile(r"(?:^|/)(?:requirements|constraints)[^/]*$", re.I)


class DirectoryTree:
    """The regular files below a directory.

    Args:
        root: the directory; links inside it may only lead to other places inside it.
        max_file_bytes: files above this are not read.
        max_cached_bytes: memory for texts; the least recently used ones beyond it are dropped and read again on demand.

    Answers are cached, so that every source sees the same bytes.
    """

    def __init__(
        self, root: Path, *, max_file_bytes: int = MAX_BYTES, max_cached_bytes: int = Limits().held_bytes
    ) -> None:
        self.root = root
        self.max_file_bytes = max_file_bytes
        self._real_root = os.path.realpath(root)
        self._read: dict[str, SourceFile | Note] = {}
        #: Texts in memory, the least recently used first, and their size.
        self._texts: dict[str, SourceFile] = {}
        self._text_bytes = 0
        self._most_text_bytes = max_cached_bytes
        self._existence: dict[str, bool] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._folders: dict[str, str] = {}

    def read(self, path: str) -> SourceFile | Note:
        """Return the file at `path` (relative to the root), or a note with the reason why it cannot be read."""
        found = self._texts.get(path) or self._read.get(path)
        if found is None:
            found = self._load(path)
            self._keep(path, found)
        elif isinstance(found, _DroppedText):
            found = self._reload(path, found)
        return found

    def head(self, path: str) -> SourceFile | None:
        """Return the beginning of the file at `path`, whatever its size or content; None if it cannot be read."""
        try:
            real = self._real(path)
            content = self._content(path, real, _HEAD_BYTES) if self._is_inside(real) else None
        except (OSError, ValueError):
            return None
        if not isinstance(content, bytes):
            return None
        return SourceFile(path, _text(content.replace(b"\0", b"")), "", len(content))

    def _keep(self, path: str, found: SourceFile | Note) -> None:
        """Store a text; drop the least recently used ones, but keep their state."""
        self._read[path] = found
        if isinstance(found, Note):
            return
        self._texts[path] = found
        self._text_bytes += sys.getsizeof(found.text)
        while self._text_bytes > self._most_text_bytes and len(self._texts) > 1:
            oldest = next(iter(self._texts))
            file = self._texts.pop(oldest)
            self._text_bytes -= sys.getsizeof(file.text)
            self._read[oldest] = _DroppedText(oldest, "", file.sha256, file.size_bytes)

    def _reload(self, path: str, gone: SourceFile) -> SourceFile | Note:
        """Read a dropped text again; every source must see the same bytes."""
        found = self._load(path)
        if isinstance(found, SourceFile) and found.sha256 != gone.sha256:
            found = note_at(path, NoteKind.UNREADABLE, f"{path} changed while it was being read; run again")
        self._keep(path, found)
        return found

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """Return `path`, as written in `relative_to`, as a path relative to the root; None if it leads outside the
        root.
        """
        inside = path
        if path.startswith("~"):
            return _elsewhere(path, relative_to, self.exists)
        if path.startswith("/"):
            for root in (str(self.root.absolute()), self._real_root):
                below = os.path.relpath(os.path.normpath(path), root)
                if below != ".." and not below.startswith("../"):
                    inside = below
                    relative_to = ""
                    break
            else:
                return _elsewhere(path, relative_to, self.exists)
        found = _resolve(inside, relative_to, self.exists)
        first, _, rest = inside.partition("/")
        # A command may run in the folder above, where the root has its own name.
        is_from_above = first == self.root.absolute().name and self.exists(rest)
        return rest if is_from_above and found is not None and not self.exists(found) else found

    def exists(self, path: str) -> bool:
        """Return whether `path` (relative to the root) exists and is inside the root."""
        known = self._existence.get(path)
        if known is None:
            known = self._existence[path] = self._look(path)
        return known

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the entries of a folder, at most `MAX_NAMES`."""
        known = self._names.get(folder)
        if known is None:
            known = self._names[folder] = self._list_folder(folder)
        return known

    def _list_folder(self, folder: str) -> tuple[str, ...]:
        found: list[str] = []
        try:
            real = self._real(folder, strict=True) if folder else self._real_root
            if not self._is_inside(real):
                return ()
            with os.scandir(real) as entries:
                for entry in itertools.islice(entries, MAX_NAMES):
                    if not entry.name.startswith(".") and not entry.is_symlink():
                        found.append(entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name)
        except (OSError, ValueError):
            return ()
        return tuple(sorted(found))

    @property
    def listed_folders(self) -> Mapping[str, tuple[str, ...]]:
        """Return every folder whose names have been requested so far."""
        return self._names

    @property
    def requests(self) -> Mapping[str, SourceFile | Note]:
        """Return all requests so far, with their results."""
        return self._read

    @property
    def existence_requests(self) -> Mapping[str, bool]:
        """Return all existence checks so far, with their results."""
        return self._existence

    def _look(self, path: str) -> bool:
        above = posixpath.dirname(path)
        # In a missing directory nothing needs to be looked up; imports request many such files.
        if above and above != path and not self.exists(above):
            return False
        try:
            return self._is_inside(self._real(path, strict=True))
        except (OSError, ValueError):
            return False

    def _real(self, path: str, *, strict: bool = False) -> str:
        """Return the target of `path`. Parent folders are resolved only once, because most requested files do not
        exist.

        Raises:
            OSError: with `strict`, if it does not exist.
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
            # Not strictly, so that a link out of the root is reported as one even if its target does not exist.
            real = self._real(path)
            if not self._is_inside(real):
                return _outside(path)
            content = self._content(path, real)
        except ValueError as error:
            return note_at(path, NoteKind.UNREADABLE, f"{path!r} cannot be the name of a file: {error}")
        except OSError as error:
            if error.errno == errno.ENOENT and Path(self._at(path)).is_symlink():
                message = f"{path} is a symbolic link to a missing file, which may be in a submodule"
                return note_at(path, NoteKind.UNREADABLE, message)
            return _from_os_error(path, error)
        return content if isinstance(content, Note) else decode(path, content)

    def _content(self, path: str, real: str, max_bytes: int = 0) -> bytes | Note:
        """Return the whole content, or the first `max_bytes` bytes."""
        try:
            if max_bytes:
                with regular_file.open_regular(real, follow_links=False) as stream:
                    return regular_file.read_up_to(stream, max_bytes)
            return regular_file.read(real, self.max_file_bytes, follow_links=False)
        except regular_file.NotRegular as error:
            # All links were followed; a remaining one is part of a circle.
            if error.is_link:
                return _loop(path)
            return _not_regular(path, error.kind, NoteDetail.DIRECTORY if error.errno == errno.EISDIR else None)
        except regular_file.TooLarge as error:
            return self._too_large(path, error.size_bytes)
        except regular_file.Exchanged:
            return note_at(path, NoteKind.UNREADABLE, f"{path} changed while it was being opened; run again")

    def _too_large(self, path: str, size: int) -> Note:
        return note_at(
            path,
            NoteKind.TOO_LARGE,
            f"{path} has {size / _MIB:.1f} MiB, more than the limit of {self.max_file_bytes / _MIB:g} MiB"
            " for a file; exclude it if it is data, or split it if it is configuration",
        )


class MemoryTree:
    """Files that exist only as text: for tests, standard input, and files that a script writes itself."""

    def __init__(self, files: Mapping[str, str | bytes], *, max_file_bytes: int = MAX_BYTES) -> None:
        self.files = dict(files)
        self.max_file_bytes = max_file_bytes

    def read(self, path: str) -> SourceFile | Note:
        """Return the file at `path`, or a note if there is none."""
        content = self.files.get(path)
        if content is None:
            if self._exists(path):
                return _not_regular(path, "a directory", NoteDetail.DIRECTORY)
            return _missing(path)
        raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        if len(raw) > self.max_file_bytes:
            limit = self.max_file_bytes / _MIB
            message = f"{path} has {len(raw) / _MIB:.1f} MiB, more than the limit of {limit:g} MiB for a file"
            return note_at(path, NoteKind.TOO_LARGE, message)
        return decode(path, raw)

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """Return `path`, as written in `relative_to`; None if it is absolute and names no file of the tree, or leads
        above the root.
        """
        if path.startswith(("/", "~")):
            return _elsewhere(path, relative_to, self._exists)
        return _resolve(path, relative_to, self._exists)

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the entries of a folder."""
        start = f"{folder}/" if folder else ""
        found: set[str] = set()
        for path in self.files:
            name, slash, _ = path[len(start) :].partition("/") if path.startswith(start) else ("", "", "")
            if name and not name.startswith("."):
                found.add(name + slash)
        return tuple(sorted(found))

    def _exists(self, path: str) -> bool:
        return path in self.files or any(name.startswith(path + "/") for name in self.files)


class OverlayTree:
    """Another tree, overlaid with some files, so that the output of a here-document is read as if the file existed."""

    def __init__(self, base: Tree, files: Mapping[str, str | bytes | None]) -> None:
        self._base = base
        self._overlay = MemoryTree({path: text for path, text in files.items() if text is not None})
        #: Files of the underlying tree that are overwritten, with a text that is not known.
        self._hidden = files.keys() - self._overlay.files.keys()

    def read(self, path: str) -> SourceFile | Note:
        """Return the overlaid file, otherwise that of the underlying tree."""
        if path in self._hidden:
            return _missing(path)
        return self._overlay.read(path) if path in self._overlay.files else self._base.read(path)

    def head(self, path: str) -> SourceFile | None:
        """Return the beginning of a file in the underlying tree; None if that tree is not a directory."""
        return self._base.head(path) if isinstance(self._base, DirectoryTree) else None

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """Resolve a path as in the underlying tree, except that overlaid files exist."""
        over = self._overlay.resolve(path, relative_to=relative_to)
        return over if over in self._overlay.files else self._base.resolve(path, relative_to=relative_to)

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the entries of a folder of either tree."""
        return tuple(sorted({*self._base.names(folder), *self._overlay.names(folder)}))


def decode(path: str, content: bytes) -> SourceFile | Note:
    """Decode `content` as a source file; a note if it is binary. A byte-order mark is dropped."""
    zero = content.find(b"\0")
    if zero >= 0:
        # pip reads requirement files in the encoding of their byte-order mark, and Windows writes them so.
        wide = next((name for mark, name in _WIDE if content.startswith(mark)), "")
        if not wide or not _REQUIREMENTS.search(path):
            encoding = (
                f"{path} is in {wide.upper()}" if wide else f"{path} is not text: it has a NUL byte at offset {zero}"
            )
            return note_at(path, NoteKind.UNREADABLE, f"{encoding}; exclude it, or save it again as UTF-8")
        text = content.decode(wide, "replace").lstrip("\ufeff").replace("\0", "")
    else:
        text = _text(content)
    return SourceFile(path, text, hashlib.sha256(content).hexdigest(), len(content))


def _text(content: bytes) -> str:
    return content.removeprefix(_BOM).decode("utf-8", "replace")


class _DroppedText(SourceFile):
    """A file that was read and whose text was dropped."""


def note_at(
    path: str, kind: NoteKind, message: str, detail: NoteDetail | None = None, *, required: bool = False
) -> Note:
    """Return a note about a whole file; it points at its first character."""
    return Note(kind, message, Span(path, 1, 1, 1, 1), detail=detail, required=required)


#: A file of a project at the path that it has on a node or in an image: not below a folder of the system.
_ELSEWHERE = re.compile(
    r"(?:~|/(?!(?:bin|sbin|usr|lib|lib64|etc|proc|sys|dev|tmp|var|run|boot|opt/conda)/)[\w.@-]{1,100})"
    r"/(?:[\w.@-]{1,100}/){0,8}(?:[\w.@-]{1,100}\.(?:py|sh|bash|json|ya?ml|toml)|\w{0,40}(?:hosts?|hostfile|nodefile|machinefile)"
    r"(?:\.txt)?)"
)


def _elsewhere(path: str, relative_to: str, exists: Callable[[str], bool]) -> str | None:
    """Return the file of the tree that a node or container has at `path`: the longest end of `path` that names a
    file.
    """
    parts = path.split("/")[1:] if _ELSEWHERE.fullmatch(path) else ()
    for start in range(len(parts)):
        rest = "/".join(parts[start:])
        found = _resolve(rest, relative_to, exists)
        if found is not None and exists(found):
            return found
    return None


def _resolve(path: str, relative_to: str, exists: Callable[[str], bool]) -> str | None:
    if not path:
        return None
    candidates: list[str | None] = []
    # What reads a file may run in any folder above it: paths count from the nearest of them that has the file.
    start = posixpath.dirname(relative_to)
    folders = [start]
    while start and start != "/":
        start = posixpath.dirname(start)
        folders.append(start)
    for folder in folders:
        joined = posixpath.normpath(posixpath.join(folder, path))
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
    message = (
        f"{path} is a link to a file outside the scanned directory and is not followed; copy the file into "
        "that directory"
    )
    return note_at(path, NoteKind.OUTSIDE, message)


def _not_regular(path: str, kind: str, detail: NoteDetail | None) -> Note:
    return note_at(path, NoteKind.UNREADABLE, f"{path} is {kind}, not a regular file, and is not read", detail)


def _from_os_error(path: str, error: OSError) -> Note:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _missing(path)
    if error.errno == errno.ELOOP:
        return _loop(path)
    reason = error.strerror or type(error).__name__
    detail = NoteDetail.DENIED if error.errno in (errno.EACCES, errno.EPERM) else None
    return note_at(path, NoteKind.UNREADABLE, f"{path} cannot be read: {reason}", detail)

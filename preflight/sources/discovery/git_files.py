"""What git lists in a folder: the files of its index, and those that `.gitignore` files and patterns exclude.

git itself is not run: the configuration of a repository can name commands (`core.fsmonitor`) that it then executes, and
the repository may be hostile. The index is read here, versions 2 to 4, with bounds on everything in it: the prefix
compression of version 4 could otherwise encode gigabytes of paths in a few megabytes. Format: gitformat-index(5).

This is a convenience, not a protection: a hidden file can still be named, and files that git tracks are never hidden
by a `.gitignore`. The files come from the tree that is judged, so their size, their patterns and the time for matching
are bounded. If a bound is reached, nothing is hidden any more: judging too much is better than judging too little.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from preflight._util import regular_file
from preflight._util.usage_error import UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


#: Repositories of half a million files have such an index.
MAX_BYTES = 64 << 20
_MAX_ENTRIES = 600_000
_MAX_INDEXED_PATH_LENGTH = 4096
_MAX_PATH_BYTES = 64 << 20
#: For a `.git` that is a file, and for the file it names.
_MAX_LINK_LENGTH = 8192
_HEADER = struct.Struct("!4sII")
_FLAGS = struct.Struct("!H")
#: Times, device, inode, mode, owner and size of an entry; the mode is the seventh number.
_STATUS_BYTES = 40
_MODE = struct.Struct("!24xI12x")
_EXTENDED = 0x4000
_LINK, _FOLDER = 0o160000, 0o040000


class UnreadableIndex(Exception):
    """The index cannot be read; the message gives the reason."""


class Tracked(NamedTuple):
    """The content of the index, relative to the top of the repository: `files`, and all `folders` that contain one."""

    files: frozenset[str]
    folders: frozenset[str]

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Whether git tracks the file, or anything in the folder."""
        return path in (self.folders if is_folder else self.files)


def tracked_in(top: Path) -> Tracked:
    """The tracked files of the repository whose top folder is `top`, which contains `.git`.

    A repository without an index (nothing was ever added) tracks nothing.

    Raises:
        Unreadable: there is an index, and it cannot be read.
    """
    try:
        folder = git_folder(top)
        content = regular_file.read(folder / "index", MAX_BYTES, follow_links=False)
    except FileNotFoundError:
        return Tracked(frozenset(), frozenset())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UnreadableIndex(f"the index of {top / '.git'} cannot be read: {why}") from None
    try:
        names = _names(content)
    except (struct.error, LookupError, ValueError) as error:
        raise UnreadableIndex(f"the index of {top / '.git'} cannot be read: {error}") from None
    files = frozenset(name for name in names if not name.endswith("/"))
    folders: set[str] = {name.rstrip("/") for name in names if name.endswith("/")}
    for name in (*files, *folders):
        above = name.rpartition("/")[0]
        while above and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
    return Tracked(files, frozenset(folders))


def git_folder(top: Path) -> Path:
    """The folder of a repository's own files: in a submodule or a linked worktree `.git` is a file that names it."""
    place = top / ".git"
    if place.is_dir():
        return place
    target = regular_file.read(place, _MAX_LINK_LENGTH, follow_links=False).decode("utf-8", "surrogateescape")
    if not target.startswith("gitdir: "):
        raise ValueError("`.git` is neither a folder nor a file with `gitdir: PATH`")
    return top / target.removeprefix("gitdir: ").rstrip("\r\n")


def _names(content: bytes) -> list[str]:
    signature, version, count = _HEADER.unpack_from(content)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("it is not an index of version 2, 3 or 4")
    if count > _MAX_ENTRIES or count * (_STATUS_BYTES + 22) > len(content):
        raise ValueError(f"it declares {count} files, more than its size allows")
    # SHA-1 almost everywhere; the index does not name the algorithm.
    for hash_bytes in (20, 32):
        try:
            return _parse_entries(content, version, count, hash_bytes)
        except (struct.error, LookupError, ValueError) as error:
            problem = error
    raise problem


def _parse_entries(content: bytes, version: int, count: int, hash_bytes: int) -> list[str]:
    at = _HEADER.size
    end = len(content) - hash_bytes
    before = b""
    total = 0
    found: list[str] = []
    for _ in range(count):
        start = at
        (mode,) = _MODE.unpack_from(content, at)
        at += _STATUS_BYTES + hash_bytes
        (flags,) = _FLAGS.unpack_from(content, at)
        at += 4 if flags & _EXTENDED and version > 2 else 2
        if version == 4:
            strip, at = _decode_number(content, at)
            if strip > len(before):
                raise ValueError("a path removes more characters than the previous path has")
            before = before[: len(before) - strip]
        else:
            before = b""
        zero = content.index(b"\0", at, end)
        name = before + content[at:zero]
        total += len(name)
        if not name or len(name) > _MAX_INDEXED_PATH_LENGTH or total > _MAX_PATH_BYTES or name.startswith(b"/"):
            raise ValueError("a path in it is empty, absolute or too long")
        before = name
        # Version 4 has no padding; before, entries are filled up to a multiple of 8 bytes with at least one zero.
        at = zero + 1 if version == 4 else start + (zero - start) // 8 * 8 + 8
        kind = mode & 0o170000
        # A submodule is a folder with a repository of its own; in a sparse index a folder represents all files below
        # it.
        found.append(os.fsdecode(name).rstrip("/") + ("/" if kind in (_LINK, _FOLDER) else ""))
    if at > end:
        raise ValueError("it ends early")
    if _has_link(content, at, end):
        raise ValueError("it is a split index, whose other part is not read")
    return found


def _has_link(content: bytes, at: int, end: int) -> bool:
    """Whether the extensions say that most entries are in another file (`core.splitIndex`)."""
    while at + 8 <= end:
        if content[at : at + 4] == b"link":
            return True
        at += 8 + int.from_bytes(content[at + 4 : at + 8], "big")
    if at != end:
        raise ValueError("its extensions end early")
    return False


def _decode_number(content: bytes, at: int) -> tuple[int, int]:
    """Decode a variable-length number, encoded as offsets in packs are; return it and its end."""
    value = content[at] & 0x7F
    while content[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (content[at] & 0x7F)
        if value > _MAX_INDEXED_PATH_LENGTH:
            raise ValueError("a path removes more characters than the previous path has")
    return value, at + 1


_MAX_IGNORE_FILE_BYTES = 64 * 1024
_MAX_PATTERNS = 1000
_MAX_PATTERN_LENGTH = 200
_MAX_STARS = 4
_STARS = re.compile(r"\*+")
#: The time of matching grows with the length of a name to the power of the stars in a pattern; longer names are not
#: matched.
_MAX_NAME_LENGTH = {0: 255, 1: 255, 2: 255, 3: 100, 4: 40}
_MAX_MATCHED_PATH_LENGTH = 1024
#: Processor seconds for all matching of one walk; a large repository needs a tenth of one.
MAX_SECONDS = 3.0


def problem(pattern: str) -> str:
    """Why a pattern of a configuration file, which may be hostile, is rejected; empty if it is valid."""
    if not pattern.strip() or not _is_valid(pattern):
        return f"{pattern!r} is not a pattern; expected one as in a .gitignore"
    if not _is_plain(pattern):
        return f"a pattern may have at most {_MAX_PATTERN_LENGTH} characters and {_MAX_STARS} stars"
    return ""


def relocate(patterns: Iterable[str], folder: Path, root: Path) -> tuple[str, ...]:
    """Convert patterns relative to `folder` to ones relative to `root`.

    Patterns that can only match outside the root are dropped. A folder elsewhere counts as the root.
    """
    if folder in root.parents:
        down = root.relative_to(folder).parts
        return tuple(moved for pattern in patterns if (moved := _below(pattern, down)))
    if root in folder.parents:
        path = folder.relative_to(root).as_posix()
        return tuple(
            f"/{path}/{pattern.lstrip('/') if _is_anchored(pattern) else f'**/{pattern}'}" for pattern in patterns
        )
    return tuple(patterns)


def _is_anchored(pattern: str) -> bool:
    """Whether a pattern matches a path rather than a name in any folder."""
    return "/" in pattern.rstrip("/")


def _below(pattern: str, down: Sequence[str]) -> str:
    """The pattern relative to a subfolder; empty if it matches nothing there."""
    left = pattern.lstrip("/").split("/") if _is_anchored(pattern) else []
    if not left or left[0] == "**":
        return pattern
    for step in down:
        if left[0] == "**":
            break
        if not fnmatchcase(step, left[0]):
            return ""
        left = left[1:]
        if not left or left == [""]:
            # It matches a folder that contains the root, and so everything.
            return "*"
    return "/" + "/".join(left)


class Excluded:
    """Patterns that the user gave, relative to the root.

    Raises:
        UsageError: an invalid pattern.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        for pattern in patterns:
            if pattern.strip() and not _is_valid(pattern):
                raise UsageError(f"{pattern!r} is not a pattern of files to exclude; expected one as in a .gitignore")
        self._patterns = _Patterns.of(patterns) if patterns else None

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path` is excluded."""
        return self._patterns is not None and self._patterns.answer(path, is_folder=is_folder) is True


class Ignored:
    """The `.gitignore` files on the path to each folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        #: By folder, only those that have one; searched from the innermost outwards.
        self._specs: dict[str, _Patterns] = {}
        self._spent_s = 0.0

    def enter_above(self, folder: str) -> None:
        """Use the `.gitignore` files of all folders above `folder`, but not its own; a named folder counts even if
        ignored.
        """
        parts = folder.split("/") if folder else []
        for depth in range(len(parts)):
            self.enter("/".join(parts[:depth]))
            if self.has("/".join(parts[: depth + 1]), is_folder=True):
                self._specs.clear()

    def enter(self, folder: str) -> None:
        """Use the folder's own `.gitignore`."""
        lines = _lines(self._root / folder / ".gitignore")
        if lines:
            self._specs[folder] = _Patterns.of(lines)

    @property
    def gave_up(self) -> bool:
        """Whether matching took too long, so nothing is ignored any more."""
        return self._spent_s > MAX_SECONDS

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path` is ignored: the innermost file with a matching pattern decides, as in git."""
        if not self._specs or self.gave_up:
            return False
        began = time.thread_time()
        folder, answer = path, None
        while folder and answer is None:
            folder = folder.rpartition("/")[0]
            patterns = self._specs.get(folder)
            if patterns is not None:
                below = path[len(folder) + 1 :] if folder else path
                answer = patterns.answer(below, is_folder=is_folder)
        self._spent_s += time.thread_time() - began
        return answer is True


def _lines(file: Path) -> list[str]:
    try:
        text = regular_file.read(file, _MAX_IGNORE_FILE_BYTES, follow_links=False).decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    kept = [line for line in lines[:_MAX_PATTERNS] if _is_plain(line)]
    # With a negated pattern missing, more would be hidden than the file says.
    exceptions = [sum(line.startswith("!") for line in some) for some in (lines, kept)]
    valid = [line for line in lines if line.startswith("!") and not _is_valid(line)] if len(set(exceptions)) > 1 else []
    return kept if exceptions[0] - len(valid) == exceptions[1] else []


def _is_plain(pattern: str) -> bool:
    """Whether a pattern is of the usual kind; a hostile one could make matching slow."""
    return len(pattern) <= _MAX_PATTERN_LENGTH and len(_STARS.findall(pattern)) <= _MAX_STARS and _is_valid(pattern)


def _is_valid(pattern: str) -> bool:
    try:
        _spec([pattern])
    except ValueError:
        return False
    return True


def _spec(lines: Iterable[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


class _Patterns(NamedTuple):
    """Patterns of one location, and the maximum length of a name that they are matched with."""

    spec: GitIgnoreSpec
    max_name_length: int

    @classmethod
    def of(cls, lines: Sequence[str]) -> _Patterns:
        stars = max((len(_STARS.findall(name)) for line in lines for name in line.split("/")), default=0)
        return cls(_spec(lines), _MAX_NAME_LENGTH[min(stars, _MAX_STARS)])

    def answer(self, path: str, *, is_folder: bool) -> bool | None:
        """Whether the last matching pattern hides `path`; None if none matches, or it is too long."""
        if len(path) > _MAX_MATCHED_PATH_LENGTH or len(max(path.split("/"), key=len)) > self.max_name_length:
            return None
        return self.spec.check_file(f"{path}/" if is_folder else path).include

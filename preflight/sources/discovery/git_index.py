"""Reads the files that git tracks from the index of a repository: the list that `git ls-files` prints.

git itself is not run: the configuration of a repository can name commands (`core.fsmonitor`) that it then executes, and
the repository may be hostile. The index is read here, versions 2 to 4, with bounds on everything in it: the prefix
compression of version 4 could otherwise encode gigabytes of paths in a few megabytes. Format: gitformat-index(5).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from preflight._util import regular_file

#: Repositories of half a million files have such an index.
MAX_BYTES = 64 << 20
_MAX_ENTRIES = 600_000
_MAX_PATH_LENGTH = 4096
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
        if not name or len(name) > _MAX_PATH_LENGTH or total > _MAX_PATH_BYTES or name.startswith(b"/"):
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
        if value > _MAX_PATH_LENGTH:
            raise ValueError("a path removes more characters than the previous path has")
    return value, at + 1

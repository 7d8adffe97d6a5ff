"""A folder of results outside every tree that is judged: bounded in size, and never needed.

It lies in the user's own cache directory, is written whole or not at all, and whatever in it cannot be trusted (another
owner, others may write, a sum that does not fit) is treated as if it were not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from preflight.lazy.patterns import lazy_pattern

#: All entries together; the oldest go first.
LARGEST_BYTES = 256 * 1024 * 1024
LARGEST_ENTRY_BYTES = 64 * 1024 * 1024
_KEY = lazy_pattern(r"[0-9a-f]{64}")


def default_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """`$XDG_CACHE_HOME/preflight`, else `~/.cache/preflight`; None where the user has no such place."""
    base = environment.get("XDG_CACHE_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "preflight"
    try:
        return Path.home() / ".cache" / "preflight"
    except RuntimeError:
        return None


def is_apart(folder: Path, root: Path) -> bool:
    """Whether the cache lies outside the tree: one that a repository brings along is not to be believed."""
    held, place = root.resolve(), folder.resolve()
    return place != held and held not in place.parents


class Cache:
    """Entries by key (a SHA-256 in hex). Nothing here raises: what cannot be read or written is not there."""

    def __init__(self, folder: Path, *, largest_bytes: int = LARGEST_BYTES) -> None:
        self.folder = folder
        self.largest_bytes = largest_bytes

    def get(self, key: str) -> bytes | None:
        """The entry, or None when there is none or it is not what was written."""
        try:
            if not self._is_ours():
                return None
            path = self._path(key)
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as stream:
                status = os.fstat(descriptor)
                trusted = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
                if not trusted or status.st_size > LARGEST_ENTRY_BYTES:
                    return None
                sum_, _, content = stream.read().partition(b"\n")
            if sum_.decode("ascii", "replace") != hashlib.sha256(content).hexdigest():
                return None
            with contextlib.suppress(OSError):
                os.utime(path)
        except (OSError, ValueError):
            return None
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep an entry; older ones go when there is no room."""
        if len(content) > min(LARGEST_ENTRY_BYTES, self.largest_bytes):
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours():
                return
            path = self._path(key)
            part = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            self._prune()
        except (OSError, ValueError):
            return

    def drop(self, key: str) -> None:
        """Let an entry go."""
        with contextlib.suppress(OSError, ValueError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(key)
        return self.folder / key

    def _is_ours(self) -> bool:
        status = self.folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022

    def _prune(self) -> None:
        with os.scandir(self.folder) as found:
            entries = [(entry.stat(follow_symlinks=False), entry.path) for entry in found]
        total = sum(status.st_size for status, _ in entries)
        for status, path in sorted(entries, key=lambda item: (item[0].st_mtime_ns, item[1])):
            if total <= self.largest_bytes:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108
            total -= status.st_size


def default_cache() -> Cache | None:
    """The cache in the user's own directory; None where there is no such place."""
    folder = default_folder()
    return Cache(folder) if folder is not None else None


def apart_from_repositories(root: Path) -> Cache | None:
    """The cache, where no tree can have brought it along: what is kept there for nodes is run on them."""
    cache = default_cache()
    if cache is None or not is_apart(cache.folder, root):
        return None
    place = cache.folder.resolve()
    return None if any(os.path.lexists(folder / ".git") for folder in (place, *place.parents)) else cache

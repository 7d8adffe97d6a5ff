"""A folder of cached results outside every checked tree, limited in size and never required.

The folder is in the user's cache directory, and entries are written completely or not at all. Anything in the folder
that cannot be trusted (another owner, writable by others, a wrong checksum) is treated as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from preflight._util import regular_file

#: Largest size of all entries together; the oldest are deleted first.
MAX_BYTES = 256 * 1024 * 1024
MAX_ENTRY_BYTES = 64 * 1024 * 1024
_KEY = re.compile(r"[0-9a-f]{64}")


def default_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return `$XDG_CACHE_HOME/preflight`, otherwise `~/.cache/preflight`; None if the user has no such directory."""
    return user_folder(environment, "XDG_CACHE_HOME", ".cache")


def user_folder(environment: Mapping[str, str], variable: str, below_home: str) -> Path | None:
    """Return the folder `preflight` below the folder in `variable`, otherwise below one in the user's home."""
    base = environment.get(variable, "")
    if base and Path(base).is_absolute():
        return Path(base) / "preflight"
    try:
        return Path.home() / below_home / "preflight"
    except RuntimeError:
        return None


def is_outside(folder: Path, root: Path) -> bool:
    """Return whether the cache is outside the tree: a cache that comes with a repository cannot be trusted."""
    held, place = root.resolve(), folder.resolve()
    return place != held and held not in place.parents


class Cache:
    """Entries by key (a SHA-256 in hex). No method raises: an unreadable entry counts as missing."""

    def __init__(self, folder: Path, *, max_file_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_file_bytes = max_file_bytes

    def get(self, key: str) -> bytes | None:
        """Return the entry; None if it does not exist or is damaged."""
        try:
            if not self._is_ours():
                return None
            path = self._path(key)
            with regular_file.open_regular(path, max_file_bytes=MAX_ENTRY_BYTES, follow_links=False) as stream:
                status = os.fstat(stream.fileno())
                if status.st_uid != os.geteuid() or status.st_mode & 0o022:
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
        """Store an entry; older ones are deleted to make room."""
        if len(content) > min(MAX_ENTRY_BYTES, self.max_file_bytes):
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours():
                return
            path = self._path(key)
            checksum = hashlib.sha256(content).hexdigest().encode()
            regular_file.replace(path, checksum + b"\n" + content, mode=0o600)
            self._prune()
        except (OSError, ValueError):
            return

    def drop(self, key: str) -> None:
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
            if total <= self.max_file_bytes:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108
            total -= status.st_size


def default_cache() -> Cache | None:
    """Return the cache in the user's cache directory; None if the user has no such directory."""
    folder = default_folder()
    return Cache(folder) if folder is not None else None


def cache_outside(root: Path) -> Cache | None:
    """Return the cache if it is outside `root` and every repository, because it stores code for nodes."""
    cache = default_cache()
    if cache is None or not is_outside(cache.folder, root):
        return None
    place = cache.folder.resolve()
    return None if any(os.path.lexists(folder / ".git") for folder in (place, *place.parents)) else cache

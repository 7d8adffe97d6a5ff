"""What `.gitignore` files and exclude patterns leave out of a folder, with git's own meaning.

A convenience, never a guard: what is hidden here can still be named. The files come from the tree that is judged, so
their size and their patterns are bounded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.lazy.patterns import lazy_pattern

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_LARGEST_IGNORE = 64 * 1024
_MOST_PATTERNS = 1000
_LONGEST_PATTERN = 200
_MOST_STARS = 4
_STARS = lazy_pattern(r"\*+")


def problem(pattern: str) -> str:
    """Why a pattern of a configuration file, which may be a stranger's, is not taken; empty when it is."""
    if not pattern.strip() or not _is_valid(pattern):
        return f"{pattern!r} is no pattern; expected one as in a .gitignore"
    if not _is_plain(pattern):
        return f"a pattern has at most {_LONGEST_PATTERN} characters and {_MOST_STARS} stars"
    return ""


def relocated(patterns: Iterable[str], folder: Path, root: Path) -> tuple[str, ...]:
    """Patterns that are relative to `folder` as they are relative to `root`.

    Those that can only match outside the root are left out. A folder that lies elsewhere counts as the root.
    """
    if folder in root.parents:
        down = root.relative_to(folder).parts
        return tuple(moved for one in patterns if (moved := _below(one, down)))
    if root in folder.parents:
        way = folder.relative_to(root).as_posix()
        return tuple(f"/{way}/{one.lstrip('/') if _is_anchored(one) else f'**/{one}'}" for one in patterns)
    return tuple(patterns)


def _is_anchored(pattern: str) -> bool:
    """Whether a pattern speaks of a place, and not of a name in any folder."""
    return "/" in pattern.rstrip("/")


def _below(pattern: str, down: Sequence[str]) -> str:
    """A pattern as seen from a folder further down; empty where it matches nothing there."""
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
            # It matches a folder that holds the root, and so everything.
            return "*"
    return "/" + "/".join(left)


class Excluded:
    """Patterns that the user gave, relative to the root.

    Raises:
        UsageError: a pattern that is none.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        for pattern in patterns:
            if pattern.strip() and not _is_valid(pattern):
                raise UsageError(f"{pattern!r} is no pattern to exclude files by; expected one as in a .gitignore")
        self._spec = _spec(patterns) if patterns else None

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path` is left out."""
        return self._spec is not None and _answer(self._spec, path, is_folder) is True


class Ignored:
    """The `.gitignore` files on the way to each folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        #: By folder, only those that have one; asked from the innermost outwards.
        self._specs: dict[str, GitIgnoreSpec] = {}

    def enter_above(self, folder: str) -> None:
        """Take those of all folders above `folder` into account, not its own; what is ignored and named, is meant."""
        parts = folder.split("/") if folder else []
        for depth in range(len(parts)):
            self.enter("/".join(parts[:depth]))
            if self.has("/".join(parts[: depth + 1]), is_folder=True):
                self._specs.clear()

    def enter(self, folder: str) -> None:
        """Take the folder's own `.gitignore` into account."""
        lines = _lines(self._root / folder / ".gitignore")
        if lines:
            self._specs[folder] = _spec(lines)

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path` is left out: the innermost file that says something of it decides, as in git."""
        if not self._specs:
            return False
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            spec = self._specs.get(folder)
            if spec is not None:
                below = path[len(folder) + 1 :] if folder else path
                answer = _answer(spec, below, is_folder)
                if answer is not None:
                    return answer
        return False


def _lines(file: Path) -> list[str]:
    try:
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_IGNORE:
            return []
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            text = stream.read(_LARGEST_IGNORE).decode("utf-8", "replace")
    except OSError:
        return []
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [line for line in lines if _is_plain(line)][:_MOST_PATTERNS]


def _is_plain(pattern: str) -> bool:
    """Whether a pattern is one of the usual ones; a hostile one could make matching slow."""
    return len(pattern) <= _LONGEST_PATTERN and len(_STARS.findall(pattern)) <= _MOST_STARS and _is_valid(pattern)


def _is_valid(pattern: str) -> bool:
    try:
        _spec([pattern])
    except ValueError:
        return False
    return True


def _spec(lines: Iterable[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def _answer(spec: GitIgnoreSpec, path: str, is_folder: bool) -> bool | None:
    return spec.check_file(f"{path}/" if is_folder else path).include

"""Applies `.gitignore` files and exclude patterns to a folder, with git's own semantics.

This is a convenience, not a protection: a hidden file can still be named, and files that git tracks are never hidden
by a `.gitignore`. The files come from the tree that is judged, so their size, their patterns and the time for matching
are bounded. If a bound is reached, nothing is hidden any more: judging too much is better than judging too little.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from preflight._util import regular_file
from preflight._util.usage_error import UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_MAX_IGNORE_FILE_BYTES = 64 * 1024
_MAX_PATTERNS = 1000
_MAX_PATTERN_LENGTH = 200
_MAX_STARS = 4
_STARS = re.compile(r"\*+")
#: The time of matching grows with the length of a name to the power of the stars in a pattern; longer names are not
#: matched.
_MAX_NAME_LENGTH = {0: 255, 1: 255, 2: 255, 3: 100, 4: 40}
_MAX_PATH_LENGTH = 1024
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
        if len(path) > _MAX_PATH_LENGTH or len(max(path.split("/"), key=len)) > self.max_name_length:
            return None
        return self.spec.check_file(f"{path}/" if is_folder else path).include

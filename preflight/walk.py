"""The files of a directory that may be part of a job, without the folders that never are."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from preflight.job import Note, NoteKind, Span

#: More files than this are not looked at; a note says so.
MOST_FILES = 4000
MOST_FOLDERS = 4000
DEEPEST = 12
#: Folders that begin with a dot are left out anyway.
_SKIPPED = frozenset(["node_modules", "venv", "__pycache__", "site-packages", "wandb", "mlruns"])
_SUFFIXES = frozenset(
    (
        ".sh",
        ".bash",
        ".sbatch",
        ".slurm",
        ".slrm",
        ".job",
        ".sub",
        ".py",
        ".json",
        ".jsonc",
        ".hjson",
        ".yaml",
        ".yml",
        ".toml",
        ".txt",
        ".conf",
        ".hosts",
        "",
    )
)


@dataclass(frozen=True, slots=True)
class Walked:
    """Paths relative to the root, sorted; notes say what was left out."""

    files: tuple[str, ...]
    notes: tuple[Note, ...] = ()


def walk(root: Path, below: str) -> Walked:
    """The candidates in `below` (relative to `root`), hidden and foreign folders and ignored files left out."""
    files: list[str] = []
    for path in _candidates(root, below):
        if len(files) >= MOST_FILES:
            message = f"{below} holds more than {MOST_FILES} files; name the folder or the files of the job"
            return Walked(tuple(files), (Note(NoteKind.TOO_LARGE, message, Span(below, 1, 1, 1, 1)),))
        files.append(path)
    return Walked(tuple(files))


def _candidates(root: Path, below: str) -> Iterator[str]:
    ignored = _Ignored(root)
    folders = [("" if below in (".", "") else below, 0)]
    seen = 0
    while folders and seen < MOST_FOLDERS:
        folder, depth = folders.pop()
        seen += 1
        try:
            with os.scandir(root / folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        ignored.enter(folder)
        inner: list[tuple[str, int]] = []
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name.startswith(".") or entry.name in _SKIPPED or ignored.has(path, is_folder=is_folder):
                continue
            if is_folder:
                if depth < DEEPEST:
                    inner.append((path, depth + 1))
            elif os.path.splitext(entry.name)[1].lower() in _SUFFIXES and not entry.is_dir():  # noqa: PTH122
                yield path
        folders.extend(reversed(inner))


class _Ignored:
    """What the `.gitignore` files on the way leave out. A convenience: what is hidden here can still be named."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._patterns: list[tuple[str, re.Pattern[str], bool, bool]] = []

    def enter(self, folder: str) -> None:
        """Take the folder's own `.gitignore` into account."""
        file = self._root / folder / ".gitignore"
        try:
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_IGNORE:
                return
            lines = file.read_text("utf-8", "replace").splitlines()
        except OSError:
            return
        for line in lines[:_MOST_PATTERNS]:
            pattern = line.strip()
            kept = pattern.startswith("!")
            pattern = pattern.removeprefix("!")
            if not pattern or pattern.startswith("#") or not _is_plain(pattern):
                continue
            only_folders = pattern.endswith("/")
            self._patterns.append((folder, _expression(pattern.rstrip("/")), only_folders, kept))

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path` is left out; the last pattern that fits decides, as in git."""
        for folder, pattern, only_folders, kept in reversed(self._patterns):
            start = f"{folder}/" if folder else ""
            if (is_folder or not only_folders) and path.startswith(start) and pattern.fullmatch(path[len(start) :]):
                return not kept
        return False


def _is_plain(pattern: str) -> bool:
    """Whether a pattern is one of the usual ones; a hostile one could make matching slow."""
    return len(pattern) <= _LONGEST_PATTERN and pattern.count("*") <= _MOST_STARS


def _expression(pattern: str) -> re.Pattern[str]:
    anchored = "/" in pattern
    parts = []
    for piece in re.split(r"(\*\*/|/\*\*|\*|\?)", pattern.lstrip("/")):
        parts.append(_WILD.get(piece) or re.escape(piece))
    return re.compile(("" if anchored else "(?:.*/)?") + "".join(parts), re.DOTALL)


_WILD = {"**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "?": "[^/]"}
_LARGEST_IGNORE = 64 * 1024
_MOST_PATTERNS = 500
_LONGEST_PATTERN = 120
_MOST_STARS = 4

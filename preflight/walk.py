"""The files of a directory that may be part of a job, without the folders that never are."""

from __future__ import annotations

import os
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
    """What `.gitignore` files leave out, where the library that reads them is installed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._specs: list[tuple[str, object]] = []
        try:
            import pathspec
        except ImportError:
            self._read = None
        else:
            self._read = pathspec

    def enter(self, folder: str) -> None:
        """Take the folder's own `.gitignore` into account."""
        file = self._root / folder / ".gitignore"
        if self._read is None or not file.is_file() or file.is_symlink():
            return
        try:
            lines = file.read_text("utf-8", "replace")[:100_000].splitlines()
            self._specs.append((folder, self._read.GitIgnoreSpec.from_lines(lines)))
        except (OSError, ValueError):
            return

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path` is left out."""
        for folder, spec in self._specs:
            start = f"{folder}/" if folder else ""
            if path.startswith(start) and spec.match_file(path[len(start) :] + ("/" if is_folder else "")):  # type: ignore[attr-defined]
                return True
        return False

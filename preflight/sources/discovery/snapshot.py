"""Records what one run reads in a tree, so that another run can tell whether it would read the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from preflight.model.job import LeftOut, Note
from preflight.sources.base import SourceFile, Tree
from preflight.sources.discovery.walk import Walked, walk
from preflight.sources.formats.tree import DirectoryTree, OverlayTree


def below(root: Path, path: str | Path) -> str:
    """`path` relative to the root, with links as written, unless only their target is inside."""
    # os.path and not pathlib: `..` must be removed and links must stay.
    plain = os.path.relpath(os.path.abspath(path), os.path.abspath(root))  # noqa: PTH100
    if plain == ".." or plain.startswith("../"):
        plain = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
    return plain


class TreeSnapshot:
    """The files, folders and missing paths of one tree, each examined once.

    Args:
        root: the directory that no path may leave.
        exclude: patterns of files to skip in folders.
        given: the content of files that are not read from disk.
        only: the candidates of folders (relative to the root), instead of those that a walk finds; None walks.
    """

    def __init__(
        self,
        root: Path,
        exclude: Sequence[str] = (),
        given: Mapping[Path, bytes] | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self.root = root
        self.exclude = tuple(exclude)
        self._only = None if only is None else tuple(sorted(only))
        self.tree = DirectoryTree(root)
        over = {below(root, path): content for path, content in (given or {}).items()}
        self.files: Tree = OverlayTree(self.tree, over) if over else self.tree
        self._walked: dict[str, Walked] = {}
        self._folders: dict[str, bool] = {}
        self._skipped: list[LeftOut] = []

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The files of folders that were skipped although their names would qualify."""
        walked = dict.fromkeys(entry for walked in self._walked.values() for entry in walked.left_out)
        return (*walked, *self._skipped)

    def note_skipped(self, reasons: Mapping[str, str]) -> None:
        """Record files that are not read as separate jobs, by path with the reason; they are counted by folder."""
        counts = Counter((path.rpartition("/")[0] or ".", reason) for path, reason in reasons.items())
        self._skipped = [LeftOut(folder, reason, files) for (folder, reason), files in sorted(counts.items())]

    def is_folder(self, path: str) -> bool:
        """Whether `path` (relative to the root) is a folder."""
        if path not in self._folders:
            self._folders[path] = (self.root / path).is_dir()
        return self._folders[path]

    def walk(self, below: str) -> Walked:
        """The candidates below a folder."""
        if below not in self._walked and self._only is not None:
            start = "" if below in (".", "") else f"{below}/"
            self._walked[below] = Walked(tuple(path for path in self._only if path.startswith(start)), (), below)
        elif below not in self._walked:
            self._walked[below] = walk(self.root, below, exclude=self.exclude)
        return self._walked[below]

    def reads(self) -> dict[str, Any]:
        """Everything that was read, as JSON: contents as their SHA-256."""
        return {
            "folders": self._folders,
            "walked": {below: _sum(walked) for below, walked in self._walked.items()},
            "read": {path: state(found) for path, found in self.tree.requests.items()},
            "there": dict(self.tree.existence_requests),
            "listed": {folder: list(names) for folder, names in self.tree.listed_folders.items()},
        }

    def is_unchanged(self, reads: dict[str, Any]) -> bool:
        """Whether everything is unchanged; contents read for this are kept for later use."""
        return (
            all(self.is_folder(path) is answer for path, answer in reads["folders"].items())
            and all(_sum(self.walk(below)) == answer for below, answer in reads["walked"].items())
            and all(self.tree.exists(path) is answer for path, answer in reads["there"].items())
            and all(list(self.tree.names(folder)) == answer for folder, answer in reads.get("listed", {}).items())
            and all(state(self.tree.read(path)) == answer for path, answer in reads["read"].items())
        )


def _sum(walked: Walked) -> str:
    left_out = [[entry.path, entry.reason, entry.files, entry.more] for entry in walked.left_out]
    content = [walked.files, [note.message for note in walked.notes], left_out]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def state(file: SourceFile | Note) -> str:
    """The state of a path as a short string: the SHA-256 of a file, or why there is none."""
    return file.sha256 if isinstance(file, SourceFile) else f"{file.kind.value}: {file.message}"

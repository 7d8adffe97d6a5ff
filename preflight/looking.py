"""What one run looks at in a tree, written down so that another run can tell whether it would see the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from preflight.job import Note
from preflight.sources.base import SourceFile, Tree
from preflight.sources.tree import DirectoryTree, OverlayTree
from preflight.walk import Walked, walk


def below(root: Path, path: str | Path) -> str:
    """`path` relative to the root, links as they are written unless only their target lies inside."""
    # os.path and not pathlib: `..` must go and links must stay.
    plain = os.path.relpath(os.path.abspath(path), os.path.abspath(root))  # noqa: PTH100
    if plain == ".." or plain.startswith("../"):
        plain = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
    return plain


class Look:
    """The files, folders and absences of one tree, each looked at once.

    Args:
        root: the directory nothing leads out of.
        exclude: patterns of what is not looked for in folders.
        given: the content of files that is not read from disk.
    """

    def __init__(self, root: Path, exclude: Sequence[str] = (), given: Mapping[Path, bytes] | None = None) -> None:
        self.root = root
        self.exclude = tuple(exclude)
        self.tree = DirectoryTree(root)
        over = {below(root, path): content for path, content in (given or {}).items()}
        self.files: Tree = OverlayTree(self.tree, over) if over else self.tree
        self._walked: dict[str, Walked] = {}
        self._folders: dict[str, bool] = {}

    def is_folder(self, path: str) -> bool:
        """Whether `path` (relative to the root) is a folder."""
        if path not in self._folders:
            self._folders[path] = (self.root / path).is_dir()
        return self._folders[path]

    def walk(self, below: str) -> Walked:
        """The candidates below a folder."""
        if below not in self._walked:
            self._walked[below] = walk(self.root, below, exclude=self.exclude)
        return self._walked[below]

    def seen(self) -> dict[str, Any]:
        """Everything that was looked at and what was there, as JSON: contents as their SHA-256."""
        return {
            "folders": self._folders,
            "walked": {below: _sum(walked) for below, walked in self._walked.items()},
            "read": {path: state(found) for path, found in self.tree.was_read.items()},
            "there": dict(self.tree.was_there),
        }

    def sees(self, seen: dict[str, Any]) -> bool:
        """Whether everything is as it was; what is read for that is kept for whoever goes on with this look."""
        return (
            all(self.is_folder(path) is answer for path, answer in seen["folders"].items())
            and all(_sum(self.walk(below)) == answer for below, answer in seen["walked"].items())
            and all(self.tree.exists(path) is answer for path, answer in seen["there"].items())
            and all(state(self.tree.read(path)) == answer for path, answer in seen["read"].items())
        )


def _sum(walked: Walked) -> str:
    said = [walked.files, [note.message for note in walked.notes]]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def state(found: SourceFile | Note) -> str:
    """What was found at a path, in a few words: the SHA-256 of a file, or why there is none."""
    return found.sha256 if isinstance(found, SourceFile) else f"{found.kind.value}: {found.message}"

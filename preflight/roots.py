"""The paths that a verb was given, and the directory they are relative to, which nothing may leave."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from preflight.errors import UsageError
from preflight.near import nearest_path


def root_of(paths: Sequence[str | Path], root: str | Path | None = None) -> Path:
    """The directory to which the paths in a report over `paths` are relative."""
    return Path(root) if root is not None else _common_root([Path(path) for path in paths])


def chosen_in(
    paths: Sequence[str | Path], root: str | Path | None, given: Mapping[Path, bytes] | None
) -> tuple[Path, list[Path]]:
    """The root, and the paths, each known to exist inside it."""
    chosen = [Path(path) for path in paths] or [Path()]
    for path in chosen:
        if not os.path.lexists(path) and path not in (given or {}):
            hint = nearest_path(path) or "; name a job's script, its configuration or a directory"
            raise UsageError(f"{path} does not exist{hint}")
    top = Path(root) if root is not None else _common_root(chosen)
    if not top.is_dir():
        raise UsageError(f"the root {top} is not a directory")
    held = top.resolve()
    for path in chosen:
        # A link to a file counts where the link stands; a folder is what it leads to.
        whole = path.is_dir() or path.name in ("", "..")
        place = path.resolve() if whole else path.absolute().parent.resolve() / path.name
        if place != held and held not in place.parents:
            raise UsageError(f"{path} lies outside --root {top}; name a root that holds it")
    return top, chosen


def _common_root(paths: Sequence[Path]) -> Path:
    """The working directory when everything lies in it, else the directory that holds all paths."""
    here = Path.cwd().resolve()
    folders = [folder_of(path) for path in paths]
    if all(folder == here or here in folder.parents for folder in folders):
        return here
    top = folders[0]
    while not all(folder == top or top in folder.parents for folder in folders):
        top = top.parent
    return top


def folder_of(path: Path) -> Path:
    """The folder itself, or the one a file is named in."""
    return path.resolve() if os.path.isdir(path) else path.absolute().parent.resolve()  # noqa: PTH112

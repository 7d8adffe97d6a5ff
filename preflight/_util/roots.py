"""The folder to which the paths of a run are relative, and the repository around it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from preflight._util.usage_error import UsageError, nearest_path


def root_of(paths: Sequence[str | Path], root: str | Path | None = None) -> Path:
    """Return the directory that paths in a report on `paths` are relative to."""
    return Path(root) if root is not None else _common_root([Path(path) for path in paths])


def resolve_paths(
    paths: Sequence[str | Path], root: str | Path | None, given: Mapping[Path, bytes] | None
) -> tuple[Path, list[Path]]:
    """Return the root and the paths; each path exists inside the root."""
    chosen = [Path(path) for path in paths] or [Path()]
    for path in chosen:
        if not os.path.lexists(path) and path not in (given or {}):
            hint = nearest_path(path) or "; name a job's script, its configuration or a directory"
            raise UsageError(f"{path} does not exist{hint}")
    top = Path(root) if root is not None else _common_root(chosen)
    if not top.is_dir():
        raise UsageError(f"the root {top} is not a directory")
    resolved_top = top.resolve()
    for path in chosen:
        # A link to a file counts at its own location; a folder is resolved.
        whole = path.is_dir() or path.name in ("", "..")
        place = path.resolve() if whole else path.absolute().parent.resolve() / path.name
        if place != resolved_top and resolved_top not in place.parents:
            raise UsageError(f"{path} is outside --root {top}; pass a root that contains it")
    return top, chosen


def _common_root(paths: Sequence[Path]) -> Path:
    """Return the working directory if everything is in it, otherwise the directory that contains all paths."""
    here = Path.cwd().resolve()
    folders = [folder_of(path) for path in paths]
    if all(folder == here or here in folder.parents for folder in folders):
        return here
    top = folders[0]
    while not all(folder == top or top in folder.parents for folder in folders):
        top = top.parent
    return top


def repository_of(folder: Path) -> Path:
    """Return the top of the innermost repository that contains a folder; the folder itself if there is none."""
    place = folder.resolve()
    return next((above for above in (place, *place.parents) if os.path.lexists(above / ".git")), folder)


def folder_of(path: Path) -> Path:
    return path.resolve() if os.path.isdir(path) else path.absolute().parent.resolve()  # noqa: PTH112

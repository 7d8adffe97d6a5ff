"""The jobs in the files that a command is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.model.progress import Progress, ignore
from preflight.plugins import registry
from preflight.sources.discovery.walk import resolve_paths

if TYPE_CHECKING:
    from preflight.model.job import Job, LeftOut


def jobs_in(
    paths: Sequence[str | Path],
    *,
    root: str | Path | None = None,
    exclude: Sequence[str] = (),
    given: Mapping[Path, bytes] | None = None,
    progress: Progress = ignore,
) -> tuple[Job, ...]:
    """The jobs that the files in `paths` describe; `exclude` are patterns of files to skip in folders.

    Raises:
        UsageError: a path does not exist, or is outside `root`; a pattern of `exclude` is invalid.
    """
    return read_jobs(paths, root=root, exclude=exclude, given=given, progress=progress)[0]


def read_jobs(
    paths: Sequence[str | Path],
    *,
    root: str | Path | None = None,
    exclude: Sequence[str] = (),
    given: Mapping[Path, bytes] | None = None,
    only: Collection[str] | None = None,
    progress: Progress = ignore,
) -> tuple[tuple[Job, ...], tuple[LeftOut, ...]]:
    """The jobs as `jobs_in` returns them, and the files of folders that were skipped.

    With `only`, folders consist of these candidates (relative to `root`) and are not walked: to read some jobs of a
    folder again.
    """
    from preflight.sources.discovery.assemble import assemble
    from preflight.sources.discovery.snapshot import TreeSnapshot

    top, chosen = resolve_paths(paths, root, given)
    snapshot = TreeSnapshot(top, exclude, given, only)
    jobs = assemble(top, chosen, sources=registry.sources(), snapshot=snapshot, progress=progress)
    return jobs, snapshot.left_out

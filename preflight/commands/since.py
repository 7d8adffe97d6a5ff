"""`lint --since`: checks the jobs that a change affects, and reports what is new since an earlier commit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from preflight import __version__
from preflight._util.usage_error import UsageError
from preflight.config.baseline import of_findings
from preflight.engine.judge import judge
from preflight.engine.report import Report
from preflight.model.configuration import Configuration, Since
from preflight.model.job import Job, LeftOut
from preflight.model.progress import Progress, ignore
from preflight.model.recording import Recording
from preflight.plugins import registry
from preflight.sources.discovery.assemble import assemble
from preflight.sources.discovery.git_revision import Revision, UnreadableRevision, open_revision
from preflight.sources.discovery.readings import TreeSnapshot, below


@dataclass(frozen=True, slots=True)
class Versions:
    """The jobs of the working tree and of an earlier commit.

    Args:
        jobs: all jobs of the working tree.
        touched: the jobs with a file that was changed, added or removed.
        changed: the paths of these files.
        old_root: a folder with the commit's files, which exists while `versions_of` is open.
        old_jobs: jobs of the commit that share a file with a job in `touched`, or had a file that was removed.
        left_out: skipped files in the working tree's folders.
    """

    commit: str
    jobs: tuple[Job, ...]
    touched: tuple[Job, ...]
    changed: tuple[str, ...]
    old_root: Path
    old_jobs: tuple[Job, ...]
    left_out: tuple[LeftOut, ...]


def lint_since(
    root: Path,
    paths: Sequence[Path],
    revision: str,
    configuration: Configuration,
    *,
    created: str,
    processes: int = 1,
    progress: Progress = ignore,
) -> Report:
    """Check the jobs that differ from a commit, without the commit's findings. Raises UsageError if it cannot be
    read.
    """
    with versions_of(root, paths, revision, configuration.exclude, processes=processes, progress=progress) as versions:
        return judge_versions(versions, revision, configuration, created=created, progress=progress)


def judge_versions(
    versions: Versions, revision: str, configuration: Configuration, *, created: str, progress: Progress = ignore
) -> Report:
    """Return the report on the touched jobs. Both versions are checked with the same configuration."""

    def recording(jobs: tuple[Job, ...], settings: Configuration, left_out: tuple[LeftOut, ...]) -> Recording:
        return Recording(
            jobs=jobs, created=created, tool_version=__version__, configuration=settings, left_out=left_out
        )

    existing = judge(recording(versions.old_jobs, configuration, ())).findings if versions.old_jobs else ()
    # A finding of the baseline is suppressed in both versions, and reported as such.
    since = Since(
        revision,
        versions.commit,
        of_findings(existing).entries,
        versions.changed,
        len(versions.jobs) - len(versions.touched),
    )
    settings = replace(configuration, since=since)
    return judge(recording(versions.touched, settings, versions.left_out), progress=progress)


@contextmanager
def versions_of(
    root: Path,
    paths: Sequence[Path],
    revision: str,
    exclude: Sequence[str] = (),
    *,
    branch_point: bool = False,
    processes: int = 1,
    progress: Progress = ignore,
) -> Iterator[Versions]:
    """Read both versions of the jobs in `paths`; `branch_point` is the last common commit. Raises UsageError."""
    try:
        with (
            open_revision(root, revision, branch_point=branch_point) as old,
            tempfile.TemporaryDirectory(prefix="preflight-") as name,
        ):
            snapshot = TreeSnapshot(root, exclude)
            sources = registry.sources()
            jobs = assemble(root, paths, sources=sources, snapshot=snapshot, jobs=processes, progress=progress)
            change = _Change(old, root)
            touched = tuple(job for job in map(change.touched_part, jobs) if job is not None)
            removed = change.removed()
            place = Path(name).resolve()
            old_jobs: tuple[Job, ...] = ()
            if touched or removed:
                old.write(place)
                old_paths = [path for path in (place / below(root, path) for path in paths) if path.exists()]
                if old_paths:
                    earlier = TreeSnapshot(place, exclude)
                    old_jobs = assemble(place, old_paths, sources=sources, snapshot=earlier, jobs=processes)
            if removed:
                touched = _add_jobs_with_removed_files(jobs, touched, old_jobs, removed)
            names = {file.path for job in touched for file in job.files}
            yield Versions(
                old.commit,
                jobs,
                touched,
                tuple(sorted(change.changed & names | removed & {f.path for job in old_jobs for f in job.files})),
                place,
                tuple(job for job in old_jobs if (names | removed) & {file.path for file in job.files}),
                snapshot.left_out,
            )
    except UnreadableRevision as error:
        raise UsageError(f"--since {revision}: {error}") from None


class _Change:
    """The difference between a commit and the working tree, determined for the files that matter."""

    def __init__(self, old: Revision, root: Path) -> None:
        self._old = old
        self._root = root
        self._known: dict[str, bool] = {}

    @property
    def changed(self) -> set[str]:
        """Return the files that are different or new."""
        return {path for path, unchanged in self._known.items() if not unchanged}

    def removed(self) -> set[str]:
        return {path for path in self._old.files if not (self._root / path).exists()}

    def touched_part(self, job: Job) -> Job | None:
        """Return the job if the change touches it, otherwise its notes on changed files that must be read, otherwise
        None.
        """
        # Each file is compared, so that `changed` has all of them.
        unchanged = [self._is_unchanged(file.path) for file in job.files]
        if not all(unchanged) or any(self._is_removed(reference.target) for reference in job.references):
            return job
        notes = tuple(note for note in job.notes if note.required and not self._is_unchanged(note.span.path))
        return Job(job.name, notes=notes) if notes else None

    def _is_removed(self, path: str) -> bool:
        return path in self._old.files and not (self._root / path).exists()

    def _is_unchanged(self, path: str) -> bool:
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._old.is_unchanged(path, self._root)
        return known


def _add_jobs_with_removed_files(
    jobs: Sequence[Job], touched: Sequence[Job], old_jobs: Sequence[Job], removed: set[str]
) -> tuple[Job, ...]:
    """Add the jobs that had a removed file and no longer refer to it."""
    lost = {file.path for old in old_jobs if removed & {f.path for f in old.files} for file in old.files}
    whole = {job.name: job for job in touched}
    return tuple(
        job if lost & {file.path for file in job.files} else whole[job.name]
        for job in jobs
        if job.name in whole or lost & {file.path for file in job.files}
    )

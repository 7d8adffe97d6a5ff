"""What a change does to the jobs of a repository: new findings, those on changed lines, and what the ranks will run."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from preflight._util import regular_file
from preflight.commands.plan.compose import plan_of
from preflight.commands.plan.plan_changes import Change, changes_between
from preflight.commands.since import Versions, judge_versions, versions_of
from preflight.engine.report import Report
from preflight.model.configuration import Configuration
from preflight.model.job import Job
from preflight.sources.formats.tree import MAX_BYTES

#: Lines between the first and the last difference of two files that are compared; comparing more takes too long.
_MAX_COMPARED_LINES = 2000


@dataclass(frozen=True, slots=True)
class JobChange:
    """What changes for the ranks of one job."""

    job: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """What a comment says.

    Args:
        report: on the jobs that the change touches, with the findings that are new.
        on_changed_lines: fingerprints of the findings with a location on a line that was changed or added.
        plans: by job, only those for whose ranks something changes.
        not_compared: why there was nothing to compare with; the report is then on all jobs. Empty otherwise.
    """

    report: Report
    on_changed_lines: frozenset[str] = frozenset()
    plans: tuple[JobChange, ...] = ()
    not_compared: str = ""


def change_report(
    root: Path,
    paths: Sequence[Path],
    revision: str,
    configuration: Configuration,
    *,
    created: str,
    branch_point: bool = False,
    processes: int = 1,
) -> ChangeReport:
    """Compare the jobs in `paths` with those of a commit.

    Raises:
        UsageError: the commit cannot be read.
    """
    with versions_of(
        root, paths, revision, configuration.exclude, branch_point=branch_point, processes=processes
    ) as versions:
        report = judge_versions(versions, revision, configuration, created=created)
        lines = {path: _changed_lines_of(path, versions.old_root, root) for path in versions.changed}
        on_changed_lines = frozenset(
            finding.fingerprint
            for finding in report.findings
            if any(place.line in lines.get(place.path, ()) for place in finding.locations)
        )
        return ChangeReport(report, on_changed_lines, tuple(_plans(versions)))


def _plans(versions: Versions) -> list[JobChange]:
    old = {job.name: job for job in versions.old_jobs}
    new = {job.name: job for job in versions.touched}
    found = []
    for name in sorted({*old, *new}):
        changes = changes_between(plan_of(_one(old.get(name))), plan_of(_one(new.get(name))))
        if changes:
            found.append(JobChange(name, changes))
    return found


def _one(job: Job | None) -> tuple[Job, ...]:
    return () if job is None else (job,)


def _changed_lines_of(path: str, old_root: Path, root: Path) -> frozenset[int]:
    return changed_lines(_lines(old_root / path), _lines(root / path))


def _lines(path: Path) -> list[str]:
    try:
        return regular_file.read(path, MAX_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return []


def changed_lines(old: Sequence[str], new: Sequence[str]) -> frozenset[int]:
    """The numbers (from 1) of the lines of `new` that are not in `old`. Between the first and the last difference of
    large files, all lines count.
    """
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(before), len(after)) > _MAX_COMPARED_LINES:
        return frozenset(range(start + 1, start + len(after) + 1))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return frozenset(
        start + 1 + line
        for kind, _, _, first, last in matcher.get_opcodes()
        if kind != "equal"
        for line in range(first, last)
    )

"""From files to jobs: reads the named files, follows their references, and joins files that belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from preflight._util.budget import BudgetExceeded, current, free_memory_after, running
from preflight.model.job import Job, Note, NoteKind, Span
from preflight.model.job.derive import with_derived
from preflight.model.progress import Progress, Step, ignore
from preflight.sources.base import Source, SourceFile
from preflight.sources.discovery.collect import collect_job
from preflight.sources.discovery.files import RecognisedFiles
from preflight.sources.discovery.related import companions, siblings
from preflight.sources.discovery.snapshot import TreeSnapshot, below
from preflight.sources.discovery.walk import Walked
from preflight.sources.formats.claim_redaction import job_without_secrets
from preflight.sources.given_variables import given_secrets
from preflight.sources.secrets import is_searched, secrets_of_files

#: Claims of a script that do not make it a job of its own.
_IDLE_QUANTITIES = frozenset(
    (
        *("script", "argument_default", "strict_arguments", "local_rank_argument", "loop_over_epochs", "entry_point"),
        *("training_framework", "package", "wheel_cuda", "paddle_version", "installing_line"),
        *("declared_options", "imported_framework", "script_feature"),
    )
)

#: Sources that describe something which a job may use: alone they start nothing.
_DESCRIPTIVE_SOURCES = frozenset(("model", "lock"))


def assemble(
    root: Path,
    paths: Sequence[str | Path],
    *,
    sources: Sequence[Source],
    exclude: Sequence[str] = (),
    snapshot: TreeSnapshot | None = None,
    jobs: int = 1,
    progress: Progress = ignore,
) -> tuple[Job, ...]:
    """The jobs that `paths` (files or directories inside `root`) describe, by name.

    Files named together form one job, except that each of several batch scripts is a submission of its own. In a
    directory every recognised file that no other refers to starts a job, except unit tests and files that match
    `exclude`; sibling scripts for the nodes of one job (node0.sh, node1.sh) form one that is marked as probable. A file
    that cannot be read becomes a note, never an exception. `snapshot` records the examined files. The files of large
    directories are read by at most `jobs` processes. `progress` is called for every file of a directory.
    """
    with running():
        return _assemble(root, paths, tuple(sources), snapshot or TreeSnapshot(root, exclude), jobs, progress)


def _assemble(
    root: Path,
    paths: Sequence[str | Path],
    sources: tuple[Source, ...],
    snapshot: TreeSnapshot,
    jobs: int,
    progress: Progress,
) -> tuple[Job, ...]:
    recognised = RecognisedFiles(snapshot.files, sources, jobs, progress)
    progress(Step("files"))
    found = [below(root, path) for path in paths]
    named = list(dict.fromkeys(path for path in found if not snapshot.is_folder(path)))
    found_jobs = _named_jobs(recognised, named) if named else []
    done = {file.path for job in found_jobs for file in job.files}
    for path in found:
        if snapshot.is_folder(path):
            walked = snapshot.walk(path)
            fresh = replace(walked, files=tuple(file for file in walked.files if file not in done))
            found_jobs.extend(_directory_jobs(recognised, fresh))
            done.update(file.path for job in found_jobs for file in job.files)
    snapshot.note_skipped({path: reason for path, reason in recognised.skipped.items() if path not in done})
    jobs_found = (_complete(job, recognised) for job in found_jobs)
    return tuple(sorted(jobs_found, key=lambda job: job.name))


def _without_secrets(job: Job, recognised: RecognisedFiles) -> Job:
    """Hide a secret found in one file of a job wherever any of its files is quoted."""
    found = (recognised.tree.read(file.path) for file in job.files)
    files = [file for file in found if isinstance(file, SourceFile)]
    secrets = secrets_of_files(files) | given_secrets()
    unsearched = frozenset(file.path for file in files if not is_searched(file))
    return job_without_secrets(job, secrets, unsearched) if secrets or unsearched else job


def _complete(job: Job, recognised: RecognisedFiles) -> Job:
    """The job with derived claims, and without secrets."""
    try:
        return current().attempt(
            lambda: _without_secrets(with_derived(job), recognised), sum(file.size_bytes for file in job.files)
        )
    except BudgetExceeded as exceeded:
        free_memory_after(exceeded)
        message = f"deriving further claims of {job.name} was stopped, because it takes {exceeded.excess}"
        # A quote of one file may contain a secret of another one.
        notes = (note for note in job.notes if not note.span.snippet)
        return Job(job.name, files=job.files, notes=(*notes, _note(NoteKind.TOO_LARGE, message, job.name)))


def _named_jobs(recognised: RecognisedFiles, named: Sequence[str]) -> list[Job]:
    batches = [path for path in named if recognised.is_batch_script(path)]
    if len(batches) < 2:
        return _collect_jobs(recognised, named, explicit=True)
    jobs = [job for path in batches for job in _collect_jobs(recognised, [path], explicit=True)]
    reached = {file.path for job in jobs for file in job.files}
    rest = [path for path in named if path not in reached]
    return [*jobs, *(_collect_jobs(recognised, rest, explicit=True) if rest else [])]


def _directory_jobs(recognised: RecognisedFiles, walked: Walked) -> list[Job]:
    recognised.progress(Step("files", 0, len(walked.files)))
    candidates = recognised.candidates(walked.files, walked.below)
    unread = recognised.unread(walked.files, walked.below)
    recognised.read_ahead(candidates)
    referred: set[str] = set()
    built: dict[str, list[Job]] = {}
    # Shell scripts first: the files they reach are not jobs of their own.
    for number, path in enumerate(sorted(candidates, key=lambda p: (recognised.rank(p), p))):
        recognised.progress(Step("jobs", number, len(candidates)))
        if path in referred:
            continue
        built[path] = _collect_jobs(recognised, [path], explicit=False)
        referred.update(file.path for job in built[path] for file in job.files if file.path != path)
    entries = [path for path in built if path not in referred]
    notes = list(walked.notes)
    joined: dict[str, tuple[str, ...]] = {}
    try:
        joined = current().attempt(lambda: _find_siblings(entries, built), 1024 * len(entries))
    except BudgetExceeded as exceeded:
        where = walked.below or "."
        message = (
            f"determining which scripts in {where} belong together was stopped, because it takes {exceeded.excess}"
        )
        notes.append(_note(NoteKind.TOO_LARGE, message, where))
    jobs: list[Job] = []
    for path in entries:
        members = joined.get(path, ())
        if not members:
            jobs.extend(built[path])
        elif path == members[0]:
            jobs.extend(replace(job, probable=True) for job in _collect_jobs(recognised, members, explicit=False))
    kept: list[Job] = []
    for job in jobs:
        if job.launches or job.claims or not all(note.kind is NoteKind.TOO_LARGE for note in job.notes):
            kept.extend([job] if _is_job(job) else [])
        else:
            # Nothing of the job was read. Such jobs can be thousands, so only their notes are kept.
            notes.extend(job.notes)
    # A file that is read as part of a job has its note there.
    known = {note.span.path for job in kept for note in job.notes}
    notes.extend(note for note in unread if note.span.path not in known)
    if notes and kept:
        kept[0] = replace(kept[0], notes=(*kept[0].notes, *notes))
    elif notes:
        kept.append(Job(walked.below or ".", notes=tuple(notes)))
    return kept


def _find_siblings(entries: Sequence[str], built: Mapping[str, Sequence[Job]]) -> dict[str, tuple[str, ...]]:
    joined = siblings(entries, built)
    return joined | companions([path for path in entries if path not in joined], built)


def _note(kind: NoteKind, message: str, path: str) -> Note:
    return Note(kind, message, Span(path, 1, 1, 1, 1), required=True)


def _is_job(job: Job) -> bool:
    if job.launches or any(note.required or note.kind is not NoteKind.MISSING for note in job.notes):
        return True
    return any(
        claim.quantity not in _IDLE_QUANTITIES
        and claim.source not in _DESCRIPTIVE_SOURCES
        and (claim.source == "environment" or not claim.quantity.startswith("env."))
        for claim in job.claims
    )


def _collect_jobs(recognised: RecognisedFiles, entries: Sequence[str], *, explicit: bool) -> list[Job]:
    """The job of `entries`, and those of the batch scripts that it submits."""
    gathering = collect_job(recognised, entries, explicit=explicit)
    jobs = [gathering.job()]
    known = {file.path for file in jobs[0].files}
    for path in gathering.submitted:
        if path not in known and isinstance(recognised.tree.read(path), SourceFile):
            jobs.append(collect_job(recognised, [path], explicit=False).job())
            known.add(path)
    return jobs

"""From files to jobs: read what was named, follow what it refers to, and put together what belongs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from preflight.companions import companions
from preflight.gathering import gathered
from preflight.job import Job, NoteKind
from preflight.job.derive import with_derived
from preflight.looking import Look, below
from preflight.progress import Progress, Step, ignore
from preflight.recognised import Recognised
from preflight.siblings import siblings
from preflight.sources.base import Source, SourceFile
from preflight.walk import Walked

#: What a script says that is no reason to call it a job of its own.
_IDLE = frozenset(
    (
        *("script", "argument_default", "strict_arguments", "local_rank_argument", "loop_over_epochs", "entry_point"),
        *("training_framework", "package", "wheel_cuda", "paddle_version", "installing_line"),
        "declared_options",
    )
)


def assemble(
    root: Path,
    paths: Sequence[str | Path],
    *,
    sources: Sequence[Source],
    exclude: Sequence[str] = (),
    look: Look | None = None,
    jobs: int = 1,
    progress: Progress = ignore,
) -> tuple[Job, ...]:
    """The jobs that `paths` (files or directories inside `root`) describe, by name.

    Files named together form one job, except that each of several batch scripts is a submission of its own. In a
    directory every recognised file that no other refers to starts a job, unit tests and what the patterns of `exclude`
    fit excepted; sibling scripts for the nodes of one job (node0.sh, node1.sh) form one that is marked probable. What
    cannot be read becomes a note, never an exception. `look` writes down what was looked at for it. The files of
    large directories are read by at most `jobs` processes. `progress` hears of every file of a directory.
    """
    look = look or Look(root, exclude)
    recognised = Recognised(look.files, tuple(sources), jobs, progress)
    progress(Step("files"))
    found = [below(root, path) for path in paths]
    named = list(dict.fromkeys(path for path in found if not look.is_folder(path)))
    found_jobs = _named_jobs(recognised, named) if named else []
    done = {file.path for job in found_jobs for file in job.files}
    for path in found:
        if look.is_folder(path):
            walked = look.walk(path)
            fresh = replace(walked, files=tuple(file for file in walked.files if file not in done))
            found_jobs.extend(_directory_jobs(recognised, fresh))
            done.update(file.path for job in found_jobs for file in job.files)
    return tuple(sorted((with_derived(job) for job in found_jobs), key=lambda job: job.name))


def _named_jobs(recognised: Recognised, named: Sequence[str]) -> list[Job]:
    batches = [path for path in named if recognised.is_batch_script(path)]
    if len(batches) < 2:
        return _jobs(recognised, named, explicit=True)
    jobs = [job for path in batches for job in _jobs(recognised, [path], explicit=True)]
    reached = {file.path for job in jobs for file in job.files}
    rest = [path for path in named if path not in reached]
    return [*jobs, *(_jobs(recognised, rest, explicit=True) if rest else [])]


def _directory_jobs(recognised: Recognised, walked: Walked) -> list[Job]:
    recognised.progress(Step("files", 0, len(walked.files)))
    candidates = recognised.candidates(walked.files, walked.below)
    recognised.read_ahead(candidates)
    referred: set[str] = set()
    built: dict[str, list[Job]] = {}
    # Shell scripts first: what they reach is no job of its own.
    for number, path in enumerate(sorted(candidates, key=lambda p: (recognised.rank(p), p))):
        recognised.progress(Step("jobs", number, len(candidates)))
        if path in referred:
            continue
        built[path] = _jobs(recognised, [path], explicit=False)
        referred.update(file.path for job in built[path] for file in job.files if file.path != path)
    entries = [path for path in built if path not in referred]
    joined = siblings(entries, built)
    joined |= companions([path for path in entries if path not in joined], built)
    jobs: list[Job] = []
    for path in entries:
        members = joined.get(path, ())
        if not members:
            jobs.extend(built[path])
        elif path == members[0]:
            jobs.extend(replace(job, probable=True) for job in _jobs(recognised, members, explicit=False))
    kept = [job for job in jobs if _is_job(job)]
    if walked.notes and kept:
        kept[0] = replace(kept[0], notes=(*kept[0].notes, *walked.notes))
    return kept


def _is_job(job: Job) -> bool:
    if job.launches or any(note.required or note.kind is not NoteKind.MISSING for note in job.notes):
        return True
    return any(
        claim.quantity not in _IDLE and (claim.source == "environment" or not claim.quantity.startswith("env."))
        for claim in job.claims
    )


def _jobs(recognised: Recognised, entries: Sequence[str], *, explicit: bool) -> list[Job]:
    """The job of `entries`, and those of the batch scripts that it submits."""
    gathering = gathered(recognised, entries, explicit=explicit)
    jobs = [gathering.job()]
    known = {file.path for file in jobs[0].files}
    for path in gathering.submitted:
        if path not in known and isinstance(recognised.tree.read(path), SourceFile):
            jobs.append(gathered(recognised, [path], explicit=False).job())
            known.add(path)
    return jobs

"""The verbs as functions. They never print and never exit; a user's mistake raises `UsageError`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING

from preflight import __version__, catalog, report
from preflight.engine import SMOKE
from preflight.errors import UsageError
from preflight.judging import collecting_seldom
from preflight.judging import judge as judge
from preflight.progress import Progress, ignore, patiently
from preflight.recording import Configuration, Recording, Wish
from preflight.report import Report
from preflight.roots import chosen_in, folder_of, root_of
from preflight.saved import load, save
from preflight.selecting import broken_for, checks_for, configured, plugins, rules_for
from preflight.wish import hold_to_servers, job_of

if TYPE_CHECKING:
    from preflight.brief import Brief, Read
    from preflight.cache import Cache
    from preflight.check_options import CheckOptions
    from preflight.config_file import Choices, Chosen
    from preflight.diagnosis.model import Diagnosis, Pointer
    from preflight.difference.model import Difference
    from preflight.fix import Plan
    from preflight.job import Job
    from preflight.judgement import Rule

#: Each check plans what it wants to know for each job, so that a repository of thousands takes minutes before any node
#: is asked; and nobody submits so many at once.
MOST_JOBS = 32


def lint(
    paths: Sequence[str | Path] = (".",),
    *,
    root: str | Path | None = None,
    configuration: Configuration | None = None,
    given: Mapping[Path, bytes] | None = None,
    cache: Cache | None = None,
    jobs: int = 1,
    progress: Progress = ignore,
) -> Report:
    """Judge the jobs in `paths` from their files alone. Nothing in them is executed.

    Args:
        paths: files or directories; several files named together are read as one job.
        root: directory that references may not leave, and to which paths in the report are relative. Without it
            the nearest directory above that holds all paths and the working directory.
        given: the content of files among `paths` that is not read from disk, and need not be there: standard input.
        cache: where reports are kept, and taken from when nothing they depend on has changed. The report is the same
            to the letter, but for the time at which it was made.
        jobs: how many processes may read the files of large folders. The report is the same to the letter.
        progress: hears how far it is.

    Raises:
        UsageError: a path does not exist, or lies outside `root`; `configuration` names an unknown rule, or
            excludes a pattern that is none.
    """
    wanted = configured(configuration, lambda: rules_for(configuration))
    top, chosen = chosen_in(paths, root, given)
    with collecting_seldom():
        return _lint(top, chosen, wanted, None if given else cache, given, jobs, progress)


def _lint(
    top: Path,
    chosen: Sequence[Path],
    wanted: Configuration,
    cache: Cache | None,
    given: Mapping[Path, bytes] | None,
    processes: int,
    progress: Progress,
) -> Report:
    from preflight.assemble import assemble
    from preflight.looking import Look, below

    look, created = Look(top, wanted.exclude, given), now()
    key = ""
    if cache is not None:
        from preflight import remembering
        from preflight.cache import is_apart

        if is_apart(cache.folder, top):
            asked = (__version__, plugins(), broken_for("lint"), wanted, created[:10], str(top.resolve()))
            modules = {type(item).__module__ for item in catalog.sources()}
            modules |= {rule.judge.__module__ for rule in catalog.rules()}
            key = remembering.key_of((*asked, [below(top, path) for path in chosen]), {*modules, __name__})
            known = remembering.recall(cache, key, look, created)
            if known is not None:
                return replace(known, configuration=wanted)
    jobs = assemble(top, chosen, sources=catalog.sources(), look=look, jobs=processes, progress=progress)
    recording = Recording(jobs=jobs, created=created, tool_version=__version__, configuration=wanted)
    found = judge(recording, progress=progress)
    if cache is not None and key:
        remembering.remember(cache, key, look, found)
    return found


def usable_cpus() -> int:
    """How many processes can read files at the same time on this machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check(
    paths: Sequence[str | Path],
    options: CheckOptions,
    *,
    backup: bool = False,
    root: str | Path | None = None,
    configuration: Configuration | None = None,
    progress: Progress | None = None,
) -> tuple[Recording, Report]:
    """Lint the job in `paths`, look at its nodes and between them, train a few steps, and judge what was recorded.

    With `backup` a spare worker of a parameter-server job waits for a place meanwhile, as in `smoke`.

    Raises:
        UsageError: the paths hold no job or more than MOST_JOBS, the nodes cannot be told, or `configuration` names
            an unknown check.
    """
    wish = Wish(backup=backup)

    def read(tell: Progress) -> Brief:
        wanted = configured(configuration, lambda: (*rules_for(configuration), *checks_for(configuration)))
        jobs = _few(jobs_in(paths, root=root, exclude=wanted.exclude, progress=patiently(tell)))
        hold_to_servers(wish, jobs, True)
        return _brief("check", jobs, wanted, wish, options)

    return _record("check", read, options, progress, chosen_in(paths, root, None)[0])


def smoke(
    paths: Sequence[str | Path],
    options: CheckOptions,
    *,
    wish: Wish | None = None,
    root: str | Path | None = None,
    configuration: Configuration | None = None,
    progress: Progress | None = None,
) -> tuple[Recording, Report]:
    """Train a few steps on the nodes of the job in `paths`, and judge by that alone.

    The files are read, for how many run where and in which mode, and not judged; the nodes are asked only what the run
    itself needs. Without `paths` the run is over the nodes that `options` name: a collective, or the servers and
    workers that `wish` counts.

    Raises:
        UsageError: the paths hold no job or more than MOST_JOBS, the nodes cannot be told, the wish does not fit the
            job, or `configuration` names an unknown check.
    """
    asked = wish or Wish()
    if paths and (asked.servers or asked.workers):
        raise UsageError("--servers and --workers are for a run without a job; the job's own files count them")
    if not paths and not options.python:
        raise UsageError("without a job nothing names the interpreter that ranks run with; pass --python PATH")
    if asked.backup and asked.mode == "sync":
        raise UsageError("--backup: where servers wait for every worker (--mode sync) none can be replaced")

    def read(tell: Progress) -> Brief:
        wanted = configured(
            configuration, lambda: [check for check in checks_for(configuration) if check.when == SMOKE]
        )
        if paths:
            jobs = _few(jobs_in(paths, root=root, exclude=wanted.exclude, progress=patiently(tell)))
        else:
            jobs = (job_of(asked),)
        hold_to_servers(asked, jobs, bool(paths))
        return _brief(SMOKE, jobs, wanted, asked, options)

    return _record(SMOKE, read, options, progress, chosen_in(paths, root, None)[0])


def _few(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """The jobs, where nodes can be looked at for all of them. Raises UsageError for a repository's worth."""
    if len(jobs) > MOST_JOBS:
        some = ", ".join(job.name for job in jobs[:3])
        raise UsageError(
            f"these paths hold {len(jobs)} jobs ({some}, ...), and nodes are looked at for at most {MOST_JOBS} at "
            "once; name the script that is to be submitted"
        )
    return jobs


def _brief(verb: str, jobs: tuple[Job, ...], wanted: Configuration, wish: Wish, options: CheckOptions) -> Brief:
    from preflight.brief import Brief

    stages = frozenset(options.stages(verb))

    def rules() -> Sequence[Rule]:
        return rules_for(wanted)

    def prepare() -> None:
        from preflight.lazy.validators import validator
        from preflight.saved_shape import document

        validator(document())
        if verb != SMOKE:
            rules()
        catalog.exhibitors(stages)

    base = Recording(jobs=jobs, created=now(), tool_version=__version__, configuration=wanted, verb=verb, wish=wish)
    return Brief(base, checks_for(wanted, stages), rules, prepare)


def _record(
    verb: str, read: Read, options: CheckOptions, progress: Progress | None, top: Path
) -> tuple[Recording, Report]:
    from preflight.cache import apart_from_repositories
    from preflight.run import record

    def conclude(recording: Recording, tell: Progress) -> tuple[Recording, Report]:
        # What is judged is what a saved recording will hold, to the letter, so that `judge` cannot differ from `check`.
        recording = load(save(recording), to_judge=True)
        return recording, judge(recording, progress=tell)

    return record(verb, read, options, conclude, progress=progress, cache=apart_from_repositories(top))


def diagnose(
    logs: Sequence[str | Path],
    *,
    symptoms: Sequence[str | Path] = (),
    given: IO[bytes] | None = None,
    progress: Progress = ignore,
) -> Diagnosis:
    """What the logs of a run say of its first failure: whom it befell, why, and which rule or check tells before.

    Args:
        logs: files and folders; `-` stands for the stream `given`.
        symptoms: tables of symptoms beside those that come with rules and checks, and before them.

    Raises:
        UsageError: a path does not exist, or a table cannot be used.
    """
    from preflight.diagnosis.diagnose import diagnose as read
    from preflight.diagnosis.table import known

    table = known([Path(path) for path in symptoms])
    return read(logs, table, _pointers, version=__version__, given=given, progress=progress)


def diff(
    old: Report | Recording | str | Path,
    new: Report | Recording | str | Path,
    *,
    fail_on: str = "",
    allow_incomplete: bool = False,
) -> Difference:
    """What changed from one report to a newer one.

    Args:
        old, new: reports, recordings, or the files that they were written to. Recordings are judged first.
        fail_on: the mildest severity that counts; empty = that of the newer report's configuration.
        allow_incomplete: what is not told any more does not count.

    Raises:
        UsageError: a file cannot be read, or holds neither.
    """
    from preflight.difference.compare import compare

    sides = _report_of(old), _report_of(new)
    names = _named(old, "old"), _named(new, "new")
    return compare(*sides, names=names, fail_on=fail_on, allow_incomplete=allow_incomplete)


def _report_of(given: Report | Recording | str | Path) -> Report:
    if isinstance(given, Report):
        return given
    if isinstance(given, Recording):
        return judge(given)
    from preflight.difference.reading import report_in

    return report_in(Path(given), judge)


def _named(given: Report | Recording | str | Path, otherwise: str) -> str:
    return str(given) if isinstance(given, str | Path) else otherwise


def _pointers() -> dict[str, Pointer]:
    """Every rule and check, as a diagnosis points at it."""
    from preflight.diagnosis.model import Pointer

    rules = {rule.meta.id: Pointer(rule.meta.id, rule.meta.name, "lint") for rule in catalog.rules()}
    return rules | {one.meta.id: Pointer(one.meta.id, one.meta.name, one.when) for one in catalog.checks()}


def crashed(error: BaseException, *, verb: str) -> Report:
    """The report of a run of `verb` that a bug in preflight ended; its exit code is 5."""
    return report.crashed(error, verb=verb, created=now(), version=__version__)


def configure(
    choices: Choices, paths: Sequence[str | Path], *, root: str | Path | None = None, read_baseline: bool = True
) -> Chosen:
    """The configuration of a run over `paths`: what `choices` say, over what the nearest configuration file says.

    That file is looked for from the folder that holds all paths upward, to `root` or the top of the repository.

    Raises:
        UsageError: the file cannot be used, or something names what there is not.
    """
    from preflight.config_file import choose

    named = [Path(path) for path in paths] or [Path()]
    folders = [folder_of(path) for path in named]
    start = Path(os.path.commonpath(folders))
    here = root_of(named, root)
    tops = (folder for folder in (start, *start.parents) if os.path.lexists(folder / ".git"))
    top = here if root is not None else next(tops, here)
    return choose(choices, here, start, top, read_baseline=read_baseline)


def fixes(report: Report, paths: Sequence[str | Path], *, root: str | Path | None = None, unsafe: bool) -> Plan:
    """What fixing the findings of a report over `paths` comes to. Nothing is written yet."""
    from preflight.fix import Files, plan

    return plan(report, Files(root_of(paths, root)), unsafe=unsafe)


def jobs_in(
    paths: Sequence[str | Path],
    *,
    root: str | Path | None = None,
    exclude: Sequence[str] = (),
    given: Mapping[Path, bytes] | None = None,
    progress: Progress = ignore,
) -> tuple[Job, ...]:
    """The jobs that the files in `paths` describe; `exclude` are patterns of what is left out of folders.

    Raises:
        UsageError: a path does not exist, or lies outside `root`; a pattern of `exclude` is none.
    """
    from preflight.assemble import assemble
    from preflight.looking import Look

    top, chosen = chosen_in(paths, root, given)
    return assemble(top, chosen, sources=catalog.sources(), look=Look(top, exclude, given), progress=progress)


def now() -> str:
    """The time of now, as recordings have it: ISO 8601 with the offset of this place."""
    return datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds")

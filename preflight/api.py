"""The commands as functions. They never print and never exit; a user's mistake raises `UsageError`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING

from preflight import __version__
from preflight._util.budget import running
from preflight._util.roots import folder_of, repository_of, resolve_paths, root_of
from preflight._util.usage_error import UsageError
from preflight.config.resolve import jobs_in, read_jobs
from preflight.engine import report
from preflight.engine.judge import judge as judge
from preflight.engine.report import Report
from preflight.model.configuration import NODES, SMOKE, check_server_options, job_of
from preflight.model.progress import Progress, delayed, ignore
from preflight.model.recording import Configuration, Recording
from preflight.plugins import registry
from preflight.plugins.authoring import Check
from preflight.plugins.installed import broken_for, check_names, checks_for, plugins, rules_for

if TYPE_CHECKING:
    from preflight._util.cache import Cache
    from preflight.commands.comment import ChangeReport
    from preflight.commands.diagnose.diagnosis import Diagnosis, Pointer
    from preflight.commands.diff.difference import Difference
    from preflight.commands.fix import Plan as FixPlan
    from preflight.commands.history.account import Account
    from preflight.commands.plan.job_plan import Plan
    from preflight.config.resolve import Choices, RunSettings
    from preflight.model.configuration import RunOptions
    from preflight.model.job import Job, LeftOut
    from preflight.runner.preparation import LoadedJobs, LoadJobs

#: Each check plans its requests for each job, so a repository with thousands of jobs would take minutes before any node
#: is queried.
MAX_JOBS = 32


def lint(
    paths: str | Path | Sequence[str | Path] = ".",
    *,
    root: str | Path | None = None,
    configuration: Configuration | None = None,
    plugins: Sequence[str | Path] = (),
    site_rules: Sequence[str | Path] = (),
    set: Mapping[str, str] | None = None,
    given: Mapping[Path, bytes] | None = None,
    cache: Cache | None = None,
    jobs: int = 1,
    since: str = "",
    progress: Progress = ignore,
) -> Report:
    """Check the jobs in `paths` by their files alone. Nothing in the files is executed.

    Args:
        paths: a file or directory, or several of them; files named together are read as one job.
        root: directory that references may not leave, and to which paths in the report are relative. Without it, the
        nearest directory that contains all paths and the working directory.
        plugins: Python files with further rules, which are executed.
        site_rules: TOML files with further rules, in addition to those of `configuration`.
        set: variables that the job is submitted with, for values that the files do not set.
        given: the content of files among `paths` that are not read from disk and need not exist, such as standard
        input.
        cache: stores reports and reuses one if nothing it depends on has changed; only the report's time differs.
        jobs: how many processes may read large folders; does not affect the report.
        since: a git revision. Only jobs that changed since then are judged, and only findings that are new count.
        progress: called with each progress update.

    Raises:
        UsageError: a path does not exist, or is outside `root`; `configuration` names an unknown rule, or has an
        invalid exclude pattern; a file of `plugins` or `site_rules` cannot be used; `since` is not a commit of this
        repository, or `given` is set as well.
    """
    with _extend_configuration(configuration, plugins, site_rules, set) as extended:
        wanted = check_names(extended, lambda: rules_for(extended))
        top, chosen = resolve_paths(_as_list(paths), root, given)
        with running():
            if since:
                from preflight.commands.since import lint_since

                if given:
                    raise UsageError("--since compares files with a commit and cannot be used with standard input")
                return lint_since(top, chosen, since, wanted, created=now(), processes=jobs, progress=progress)
            # A cached report does not record the variables that it was made with.
            return _lint(top, chosen, wanted, None if given or set else cache, given, jobs, progress)


def _as_list(paths: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    return [paths] if isinstance(paths, str | Path) else paths


@contextmanager
def _extend_configuration(
    configuration: Configuration | None,
    plugins: Sequence[str | Path],
    site_rules: Sequence[str | Path],
    variables: Mapping[str, str] | None,
) -> Iterator[Configuration | None]:
    """Use further rules and variables for one call; yield the configuration. Raises UsageError for a bad file."""
    with ExitStack() as stack:
        if plugins:
            stack.enter_context(registry.added_plugin_files([Path(path) for path in _as_list(plugins)]))
        if variables:
            from preflight.sources.base import set_variables

            stack.enter_context(set_variables(variables))
        if site_rules:
            from preflight.plugins.site.loader import load

            site = load([Path(path) for path in _as_list(site_rules)])
            own = configuration or Configuration()
            configuration = replace(
                own, site_rules=(*own.site_rules, *site.rules), site_checks=(*own.site_checks, *site.checks)
            )
        yield configuration


def _lint(
    top: Path,
    chosen: Sequence[Path],
    wanted: Configuration,
    cache: Cache | None,
    given: Mapping[Path, bytes] | None,
    processes: int,
    progress: Progress,
) -> Report:
    from preflight.sources.discovery.assemble import assemble
    from preflight.sources.discovery.readings import TreeSnapshot, below

    sources = registry.sources()
    snapshot, created = TreeSnapshot(top, wanted.exclude, given), now()
    key = ""
    if cache is not None:
        from preflight._util.cache import is_outside
        from preflight.engine import report_cache

        if is_outside(cache.folder, top):
            requested = (__version__, plugins(), broken_for("lint"), wanted, created[:10], str(top.resolve()))
            modules = {type(item).__module__ for item in sources}
            modules |= {rule.judge.__module__ for rule in registry.rules()}
            key = report_cache.key_of((*requested, [below(top, path) for path in chosen]), {*modules, __name__})
            known = report_cache.load_report(cache, key, snapshot, created)
            if known is not None:
                return replace(known, configuration=wanted)
    jobs = assemble(top, chosen, sources=sources, snapshot=snapshot, jobs=processes, progress=progress)
    recording = Recording(
        jobs=jobs, created=created, tool_version=__version__, configuration=wanted, left_out=snapshot.left_out
    )
    found = judge(recording, progress=progress)
    if cache is not None and key:
        report_cache.store_report(cache, key, snapshot, found)
    return found


def change_report(
    paths: Sequence[str | Path],
    since: str,
    *,
    root: str | Path | None = None,
    configuration: Configuration | None = None,
    head: str = "",
) -> ChangeReport:
    """Return the effect of a change on the jobs in `paths`: new findings, and changes for the ranks. Nothing is
    executed.

    Args:
        since: the target branch or commit of the change. The base is the last commit that both have in common.
        root, configuration: as for `lint`.
        head: the last commit of the change. If the working tree is its merge into `since`, as CI checks it out, the
            other parent of that merge is the base.

    Raises:
        UsageError: as for `lint`.
    """
    from preflight.commands.comment import change_report as make
    from preflight.sources.discovery.git_revision import commit_of

    wanted = check_names(configuration, lambda: rules_for(configuration))
    top, chosen = resolve_paths(paths, root, None)
    is_merge = bool(head) and commit_of(top, "HEAD^2") == head
    with running():
        return make(
            top,
            chosen,
            "HEAD^1" if is_merge else since,
            wanted,
            created=now(),
            branch_point=not is_merge,
            processes=usable_cpus(),
        )


def plan(
    paths: str | Path | Sequence[str | Path] = ".",
    *,
    root: str | Path | None = None,
    variables: Mapping[str, str] | None = None,
    price_per_gpu_hour: float | None = None,
) -> Plan:
    """Return what each rank of the jobs in `paths` will run, according to their files. Nothing in them is executed.

    Args:
        paths, root: as for `lint`.
        variables: the variables that the job is submitted with, for values that the files do not set. Other variables
        get their default if the files have one.
        price_per_gpu_hour: in the user's currency.

    Raises:
        UsageError: a path does not exist, or is outside `root`.
    """
    from preflight.commands.plan.compose import plan_of
    from preflight.sources.base import defaults_assumed, set_variables

    with set_variables(variables or {}), defaults_assumed() as assumed:
        jobs = jobs_in(_as_list(paths), root=root)
    return plan_of(jobs, given_values=variables, assumed=assumed, price_per_gpu_hour=price_per_gpu_hour)


def usable_cpus() -> int:
    """Return the number of processes that can read files at the same time on this machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check(
    paths: str | Path | Sequence[str | Path],
    options: RunOptions,
    *,
    root: str | Path | None = None,
    configuration: Configuration | None = None,
    progress: Progress | None = None,
) -> tuple[Recording, Report]:
    """Lint the job in `paths`, check its nodes and the links between them, train a few steps, and judge the recording.

    Raises:
        UsageError: the paths contain no job or more than MAX_JOBS, the nodes are unknown, `options.smoke` does not fit
            the job, or `configuration` names an unknown check.
    """

    def load_jobs(progress: Progress) -> LoadedJobs:
        settings = check_names(configuration, lambda: (*rules_for(configuration), *checks_for(configuration)))
        found, left_out = read_jobs(_as_list(paths), root=root, exclude=settings.exclude, progress=delayed(progress))
        jobs = _limit_jobs(found)
        check_server_options(options.smoke, jobs, has_files=True)
        return _load_jobs("check", jobs, settings, options, left_out)

    return _run("check", options, load_jobs, progress, resolve_paths(_as_list(paths), root, None)[0])


def smoke(
    paths: str | Path | Sequence[str | Path],
    options: RunOptions,
    *,
    root: str | Path | None = None,
    configuration: Configuration | None = None,
    progress: Progress | None = None,
) -> tuple[Recording, Report]:
    """Train a few steps on the nodes of the job in `paths`, and judge only that.

    The files are read to see how many ranks run where and in which mode, and are not judged; only the facts that the
    run needs are collected. Without `paths` the run uses the nodes that `options` name: a collective, or the servers
    and workers that `options.smoke` counts.

    Raises:
        UsageError: the paths contain no job or more than MAX_JOBS, the nodes are unknown, `options.smoke` does not fit
            the job, or `configuration` names an unknown check.
    """
    requested = options.smoke
    paths = _as_list(paths)
    if paths and (requested.servers or requested.workers):
        raise UsageError("--servers and --workers are valid only without PATHS; the job's files set these numbers")
    if not paths and not options.python:
        raise UsageError("without a job the Python interpreter of the ranks is unknown; pass --python PATH")
    if requested.backup and requested.mode == "sync":
        raise UsageError(
            "--backup does not work with --mode sync, where servers wait for every worker; use another --mode"
        )

    def load_jobs(progress: Progress) -> LoadedJobs:
        settings = check_names(
            configuration, lambda: [check for check in checks_for(configuration) if check.when == SMOKE]
        )
        if paths:
            jobs = _limit_jobs(jobs_in(paths, root=root, exclude=settings.exclude, progress=delayed(progress)))
        else:
            jobs = (job_of(requested),)
        check_server_options(requested, jobs, has_files=bool(paths))
        return _load_jobs(SMOKE, jobs, settings, options)

    return _run(SMOKE, options, load_jobs, progress, resolve_paths(paths, root, None)[0])


def nodes(
    options: RunOptions,
    *,
    requirements: Sequence[str] = (),
    golden: str = "",
    configuration: Configuration | None = None,
    progress: Progress | None = None,
) -> tuple[Recording, Report]:
    """Check nodes and the links between them without a job, and judge the recording.

    Args:
        requirements: requirements on every node: `gpus=8`, `driver>=535`, as for `preflight nodes --expect`.
        golden: a node whose properties all others must have; or one in a saved recording, as `FILE` or `FILE:NODE`.

    Raises:
        UsageError: the nodes are unknown, or a requirement is invalid.
    """
    from preflight.commands.manifest import profile_of
    from preflight.model.recording import job_of_nodes, parse_requirement

    required = []
    for text in requirements:
        try:
            required.append(parse_requirement(text))
        except ValueError as error:
            raise UsageError(f"--expect {text}: {error}") from None
    profile = profile_of(golden) if golden else ()
    job = job_of_nodes(required, golden if profile is None else "", profile or ())
    if SMOKE in options.stages(NODES) and not options.python:
        raise UsageError("without a job the Python interpreter of the ranks is unknown; pass --python PATH")

    def load_jobs(progress: Progress) -> LoadedJobs:
        settings = check_names(configuration, lambda: checks_for(configuration))
        return _load_jobs(NODES, (job,), settings, options)

    return _run(NODES, options, load_jobs, progress, Path())


def _limit_jobs(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Return the jobs. Raises UsageError if there are more than MAX_JOBS."""
    if len(jobs) > MAX_JOBS:
        some = ", ".join(job.name for job in jobs[:3])
        raise UsageError(
            f"these paths contain {len(jobs)} jobs ({some}, ...), but one run checks at most {MAX_JOBS}; name the "
            "script that you submit"
        )
    return jobs


def _load_jobs(
    command: str,
    jobs: tuple[Job, ...],
    configuration: Configuration,
    options: RunOptions,
    left_out: tuple[LeftOut, ...] = (),
) -> LoadedJobs:
    from preflight.runner.preparation import LoadedJobs

    recording = Recording(
        jobs=jobs,
        created=now(),
        tool_version=__version__,
        configuration=configuration,
        verb=command,
        smoke_options=options.smoke,
        left_out=left_out,
    )
    return LoadedJobs(recording, checks_for(configuration, frozenset(options.stages(command))))


def _run(
    command: str, options: RunOptions, load_jobs: LoadJobs, progress: Progress | None, top: Path
) -> tuple[Recording, Report]:
    """Make a live run and judge it. An interrupt during judging is recorded and does not lose the run."""
    from preflight._util.cache import cache_outside
    from preflight.model.recording_io import load, save
    from preflight.runner import run
    from preflight.runner.supervisor import Terminated, exit_code_of, termination_raises

    recording = run.run(command, options, load_jobs, progress=progress, cache=cache_outside(top))
    # The input of judging is exactly the content of a saved recording, so that `judge` cannot differ from `check`.
    recording = load(save(recording), to_judge=True)
    try:
        with termination_raises():
            return recording, judge(recording, progress=progress or ignore)
    except (KeyboardInterrupt, Terminated) as interrupt:
        recording = replace(recording, interrupted=recording.interrupted or exit_code_of(interrupt))
        return recording, judge(recording)


def diagnose(
    logs: str | Path | Sequence[str | Path],
    *,
    symptoms: Sequence[str | Path] = (),
    given: IO[bytes] | None = None,
    progress: Progress = ignore,
) -> Diagnosis:
    """Find the first failure in the logs of a run: which process failed, why, and which rule or check finds it in
    advance.

    Args:
        logs: files and folders; `-` means the stream `given`.
        symptoms: additional tables of symptoms, used before those of rules and checks.

    Raises:
        UsageError: a path does not exist, or a table cannot be used.
    """
    from preflight.commands.diagnose.pipeline import diagnose as read
    from preflight.commands.diagnose.scan import load_symptoms

    table = load_symptoms([Path(path) for path in symptoms])
    return read(_as_list(logs), table, _pointers, version=__version__, stdin=given, progress=progress)


def diff(
    old: Report | Recording | str | Path,
    new: Report | Recording | str | Path,
    *,
    fail_on: str = "",
    allow_incomplete: bool = False,
) -> Difference:
    """Compare a report with a newer one.

    Args:
        old, new: reports, recordings, or the files that they were written to. Recordings are judged first.
        fail_on: the lowest severity that counts; empty for that of the newer report's configuration.
        allow_incomplete: outcomes that became unknown do not count.

    Raises:
        UsageError: a file cannot be read, or is neither.
    """
    from preflight.commands.diff.compare import compare

    sides = _report_of(old), _report_of(new)
    names = _name_of(old, "old"), _name_of(new, "new")
    return compare(*sides, names=names, fail_on=fail_on, allow_incomplete=allow_incomplete)


def _report_of(given: Report | Recording | str | Path) -> Report:
    if isinstance(given, Report):
        return given
    if isinstance(given, Recording):
        return judge(given)
    from preflight.commands.diff.compare import report_in

    return report_in(Path(given), judge)


def _name_of(given: Report | Recording | str | Path, default: str) -> str:
    return str(given) if isinstance(given, str | Path) else default


def history(address: str, *, days: int | None = 90, hosts: str = "", add: Sequence[str | Path] = ()) -> Account:
    """Return the account of the runs in a database.

    Args:
        address: `sqlite:///FILE` or `postgresql://HOST/NAME`.
        days: only the runs of this many days before the newest one; None for all.
        hosts: only stories about these nodes, as names or ranges (`node[1-4]`).
        add: recordings and reports that are added first; a known one is not added again.

    Raises:
        UsageError: the database or a file cannot be read, or a run cannot be stored.
    """
    from preflight._util.hostnames import expand_hosts
    from preflight.commands.history.account import account_of, restrict_to
    from preflight.commands.history.database import open_database
    from preflight.commands.history.past import add_run, load_past, why_not_kept

    reports = [(str(path), _report_of(path)) for path in add]
    for name, found in reports:
        if why := why_not_kept(found):
            raise UsageError(f"--add {name}: the history does not store this run: {why}")
    try:
        names = frozenset(expand_hosts(hosts)) if hosts else frozenset()
    except ValueError as error:
        raise UsageError(f"--hosts {hosts}: {error}") from None
    database = open_database(address, create=bool(add))
    try:
        for _, found in reports:
            add_run(database, found)
        account = account_of(load_past(database, days=days), database.label)
    finally:
        database.close()
    return restrict_to(account, names) if names else account


def _pointers(ids: Collection[str]) -> dict[str, Pointer]:
    from preflight.commands.diagnose.diagnosis import Pointer

    return {
        item.meta.id: Pointer(item.meta.id, item.meta.name, item.when if isinstance(item, Check) else "lint")
        for item in registry.items_with_ids(ids)
    }


def crashed(error: BaseException, *, verb: str) -> Report:
    """Return the report of a run of the command `verb` that a bug in preflight ended; its exit code is 5."""
    return report.crashed(error, verb=verb, created=now(), version=__version__)


def configure(
    choices: Choices, paths: Sequence[str | Path], *, root: str | Path | None = None, read_baseline: bool = True
) -> RunSettings:
    """Return the configuration of a run over `paths`: the `choices`, applied to the nearest configuration file.

    The search for that file starts at the folder that contains all paths, and goes up to `root` or the top of the
    repository.

    Raises:
        UsageError: the file cannot be used, or contains an unknown name.
    """
    from preflight.config.resolve import resolve_settings

    named = [Path(path) for path in paths] or [Path()]
    folders = [folder_of(path) for path in named]
    start = Path(os.path.commonpath(folders))
    here = root_of(named, root)
    # The search goes up from the root, not from the paths: a submodule is a separate repository, not the protected one.
    top = here if root is not None else repository_of(here)
    return resolve_settings(choices, here, start, top, read_baseline=read_baseline)


def fixes(report: Report, paths: Sequence[str | Path], *, root: str | Path | None = None, unsafe: bool) -> FixPlan:
    """Return the edits that would fix the findings of a report over `paths`. Nothing is written yet."""
    from preflight.commands.fix import Files, plan

    return plan(report, Files(root_of(paths, root)), unsafe=unsafe)


def now() -> str:
    """Return the current time in the format of recordings: ISO 8601 with the local offset."""
    return datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds")

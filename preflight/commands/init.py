"""Scans a project, chooses the settings of a first configuration, and writes it with all other keys as comments."""

from __future__ import annotations

import configparser
import json
import os
import re
import textwrap
import typing
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Annotated

from preflight import __version__
from preflight._util.sanitize import clean, neutralize_commands
from preflight._util.toml import parse
from preflight._util.usage_error import UsageError
from preflight.config.baseline import DEFAULT_NAME
from preflight.config.document import Settings, load_from_tree, validate_settings
from preflight.config.resolve import NAMES, jobs_in
from preflight.engine.judge import judge
from preflight.engine.report import Report
from preflight.model.configuration import Configuration, Site
from preflight.model.findings import PROFILES, Finding
from preflight.model.job import Job
from preflight.model.recording import Recording
from preflight.reporters.text.groups import count
from preflight.sources.base import SourceFile
from preflight.sources.discovery.walk import problem
from preflight.sources.formats.tree import DirectoryTree

#: Folders whose jobs are often not the project's own: examples, tests, copies. Third-party code under a common
#: name (`third_party`, `vendor`) is always left out.
FOREIGN_FOLDERS = frozenset(
    (
        *("examples", "example", "samples", "demo", "demos", "tutorials", "docs", "doc", "tests", "test", "benchmarks"),
        *("external", "externals", "extern", "deps", "submodules", "subprojects"),
        *("legacy", "archive", "old", "deprecated"),
    )
)
#: Variables that name interfaces, by the library that reads them.
INTERFACES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"),
    *("FLAGS_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include", "HOROVOD_GLOO_IFACE"),
)
_MAX_NAMED = 12


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with jobs that may not belong to the project. `others`: whether it is a submodule that others
    maintain.
    """

    path: str
    jobs: int
    findings: int = 0
    others: bool = False


@dataclass(frozen=True, slots=True)
class NamedInterface:
    """A variable that names interfaces or devices, its value, and its first location."""

    variable: str
    value: str
    place: str


@dataclass(frozen=True, slots=True)
class ProjectScan:
    """The result of scanning a folder.

    Args:
        jobs: names of the jobs; `files` is the number of files that define them.
        launchers: the launchers that start ranks there, most frequent first.
        counts: the number of findings per profile, as are `errors` and `warnings`.
        worst: ids of the rules with the most findings under the widest profile, most frequent first.
        systems: the systems for which files are written (`slurm`, `kubernetes`, `ray`, `hostfile`), each with its first
            job.
    """

    jobs: tuple[str, ...]
    files: int
    launchers: tuple[str, ...]
    systems: Mapping[str, str]
    folders: tuple[Folder, ...]
    interfaces: tuple[NamedInterface, ...]
    counts: Mapping[str, int]
    errors: Mapping[str, int]
    warnings: Mapping[str, int]
    worst: tuple[str, ...]


def scan_project(jobs: Sequence[Job], reports: Mapping[str, Report], others: Sequence[Folder] = ()) -> ProjectScan:
    """Scan the jobs and the reports on them per profile, relative to the folder; `others` are excluded folders."""
    findings = {profile: report.findings for profile, report in reports.items()}
    widest = max(findings.values(), key=len, default=())
    launchers = Counter(launch.launcher for job in jobs for launch in job.launches)
    return ProjectScan(
        jobs=tuple(job.name for job in jobs),
        files=len({file.path for job in jobs for file in job.files}),
        launchers=_sort_by_frequency(launchers),
        systems=_systems(jobs),
        folders=(*others, *_folders(jobs, widest)),
        interfaces=_interfaces(jobs),
        counts={profile: len(found) for profile, found in findings.items()},
        errors={profile: _count_severity(found, "error") for profile, found in findings.items()},
        warnings={profile: _count_severity(found, "warning") for profile, found in findings.items()},
        worst=_sort_by_frequency(Counter(finding.id for finding in widest)),
    )


def _sort_by_frequency(counts: Counter[str]) -> tuple[str, ...]:
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))


def _count_severity(findings: Iterable[Finding], severity: str) -> int:
    return sum(finding.severity.value == severity for finding in findings)


def _systems(jobs: Iterable[Job]) -> dict[str, str]:
    found: dict[str, str] = {}
    for job in jobs:
        kinds = {file.kind for file in job.files}
        sources = {claim.source for claim in job.claims}
        started = {"ray"} & {launch.launcher for launch in job.launches}
        for system in sorted(kinds & {"kubernetes", "hostfile"} | sources & {"slurm"} | started):
            found.setdefault(system, job.name)
    return found


def _folders(jobs: Sequence[Job], findings: Iterable[Finding]) -> tuple[Folder, ...]:
    """Return the folders with jobs that may not belong to the project; none if they contain all jobs."""
    at = [_foreign_folder(job.name) for job in jobs]
    file_counts = Counter(path for path in at if path)
    counts = Counter(_foreign_folder(finding.locations[0].path) for finding in findings if finding.locations)
    if sum(file_counts.values()) == len(jobs):
        return ()
    return tuple(Folder(path, file_counts[path], counts[path]) for path in sorted(file_counts))


def _foreign_folder(path: str) -> str:
    """Return a file's outermost ancestor folder that may not belong to the project; empty if there is none."""
    folders = reversed(PurePosixPath(path).parents)
    return next((folder.as_posix() for folder in folders if folder.name.lower() in FOREIGN_FOLDERS), "")


def _interfaces(jobs: Iterable[Job]) -> tuple[NamedInterface, ...]:
    found: dict[tuple[str, str], NamedInterface] = {}
    for job in jobs:
        for variable in INTERFACES:
            for claim in job.about(f"env.{variable}"):
                for value in claim.alternatives:
                    if isinstance(value, str) and value:
                        place = f"{claim.span.path}:{claim.span.line}"
                        found.setdefault((variable, value), NamedInterface(variable, value, place))
    return tuple(found[key] for key in sorted(found))[:_MAX_NAMED]


#: Among more findings than this, those that stop a job are easily overlooked.
MANY_FINDINGS = 30


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision: its subject, the choice, and the reason."""

    about: str
    choice: str
    because: str


@dataclass(frozen=True, slots=True)
class Recommendations:
    """The keys to set or suggest, the decisions to print, excluded and suggested folders, and a job for `executor`."""

    profile: str
    fail_on: str
    excluded: tuple[Folder, ...]
    offered: tuple[Folder, ...]
    accepts: bool
    executor: str
    job: str
    decisions: tuple[Decision, ...]


def choose_settings(scan: ProjectScan, *, executor: str, because: str, accept: bool) -> Recommendations:
    """Return the choices for a folder; `executor` is what a check would use here, and `accept` plans a baseline."""
    profile, why_profile = _profile(scan)
    fail_on, why_fail_on = _fail_on(scan, profile, accept=accept)
    excluded = tuple(folder for folder in scan.folders if folder.others)
    offered = tuple(folder for folder in scan.folders if not folder.others)
    executor_name, why_executor = (executor, because) if executor else _choose_executor(scan)
    written_for = {"ssh": "hostfile"}.get(executor_name, executor_name)
    job = scan.systems.get(written_for, next(iter(scan.jobs), ""))
    findings = scan.counts.get(profile, 0)
    decisions = [
        Decision("profile", profile, why_profile),
        Decision("fail-on", fail_on, why_fail_on),
        *(
            Decision("exclude", f"{folder.path}/", f"a submodule, with {count(folder.jobs, 'job')}")
            for folder in excluded
        ),
        *(
            Decision("exclude?", f"{folder.path}/", f"{_content_of(folder)}; not skipped by default")
            for folder in offered
        ),
    ]
    if accept:
        decisions.append(Decision("baseline", "written", f"{count(findings, 'finding')} of this run do not count"))
    elif findings:
        why = f"{count(findings, 'finding')} in this run; `init --accept` or `preflight baseline write` accepts them"
        decisions.append(Decision("baseline?", "none", why))
    decisions.append(Decision("executor", executor_name, why_executor))
    return Recommendations(profile, fail_on, excluded, offered, accept, executor_name, job, tuple(decisions))


def _profile(scan: ProjectScan) -> tuple[str, str]:
    gate, default = scan.counts.get("gate", 0), scan.counts.get("default", 0)
    if default > MANY_FINDINGS and gate < default:
        return (
            "gate",
            f"{default} findings under `default` are too many to start with; `gate` reports only the {gate} that "
            "stop jobs",
        )
    more = scan.counts.get("pedantic", 0) - default
    also = f"; `pedantic` would find {more} more" if more > 0 else ""
    return "default", f"{count(default, 'finding')}{also}"


def _fail_on(scan: ProjectScan, profile: str, *, accept: bool) -> tuple[str, str]:
    errors, warnings = scan.errors.get(profile, 0), scan.warnings.get(profile, 0)
    if not scan.jobs:
        return "error", "the default"
    if not errors and not warnings:
        return "warning", "there are no warnings now, so new warnings can fail the run"
    if accept:
        return "warning", "today's findings are accepted, so only new findings count"
    return (
        "error",
        f"{count(errors, 'error')} and {count(warnings, 'warning')} now; use `warning` once the warnings are fixed",
    )


def _choose_executor(scan: ProjectScan) -> tuple[str, str]:
    """Choose the executor by the scheduler in the files, if this machine's environment gives none."""
    for system, executor, why in (
        ("slurm", "slurm", "the files have Slurm headers"),
        ("kubernetes", "kubernetes", "the files contain Kubernetes manifests"),
        ("ray", "ray", "the files start Ray"),
        ("hostfile", "ssh", "a hostfile names the nodes: --hostfile"),
    ):
        if system in scan.systems:
            return executor, why
    return "ssh", "no file names a scheduler; name the nodes with --hosts"


def _content_of(folder: Folder) -> str:
    return f"{count(folder.jobs, 'job')}, {count(folder.findings, 'finding')}"


NAME = NAMES[0]


@dataclass(frozen=True, slots=True)
class FirstConfig:
    """A first configuration: its text, the reasons for its choices, and the report under the chosen profile."""

    text: str
    scan: ProjectScan
    chosen: Recommendations
    report: Report


def make_first_config(
    folder: Path, *, environment: Mapping[str, str], created: str, accept: bool = False
) -> FirstConfig:
    """Create the configuration for a folder, without writing it. `created` is in ISO 8601. Raises UsageError."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; expected the folder that contains the jobs")
    jobs = jobs_in([folder], root=folder)
    held = {path: sum(job.name.startswith(f"{path}/") for job in jobs) for path in _submodules(folder)}
    others = tuple(Folder(path, count, others=True) for path, count in sorted(held.items()) if count)
    if others:
        jobs = jobs_in([folder], root=folder, exclude=[pattern(item) for item in others])
    reports = {
        profile: judge(Recording(jobs, created, __version__, configuration=Configuration(profile=profile)))
        for profile in PROFILES
    }
    scan = scan_project(jobs, reports, others)
    executor, because = _surroundings(environment)
    choices = choose_settings(scan, executor=executor, because=because, accept=accept)
    text = render_config(scan, choices, year=int(created[:4]))
    problems = validate_settings(parse(text))
    if isinstance(problems, list):
        raise AssertionError(f"the generated configuration is invalid: {problems[0].message}")
    return FirstConfig(text, scan, choices, reports[choices.profile])


def refuse_to_replace(folder: Path) -> None:
    """Raise UsageError if the folder already has a configuration, in `preflight.toml` or `pyproject.toml`."""
    if os.path.lexists(folder / NAME):
        raise UsageError(f"{folder / NAME} already exists; --force replaces it, --print shows the new content")
    project = folder / NAMES[1]
    if project.is_file() and _has_our_table(project, folder):
        raise UsageError(f"{project} contains [tool.preflight], which {NAME} would override; --force writes it anyway")


def _has_our_table(project: Path, folder: Path) -> bool:
    try:
        return load_from_tree(project, folder, folder, Site()) is not None
    except UsageError:
        # The table exists, although with mistakes.
        return True


def _surroundings(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the executor that recognizes the environment, and the reason; both are empty if none does."""
    from preflight.runner.preparation import recognising_executors

    return next(((executor.name, reason) for executor, reason in recognising_executors(environment)), ("", ""))


def _submodules(folder: Path) -> tuple[str, ...]:
    """Return the folders of git submodules from `.gitmodules`; none if the file cannot be read."""
    read = DirectoryTree(folder).read(".gitmodules")
    if not isinstance(read, SourceFile):
        return ()
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    try:
        parser.read_string(read.text)
    except configparser.Error:
        return ()
    named = (parser.get(section, "path", fallback="") for section in parser.sections())
    return tuple(PurePosixPath(path).as_posix() for path in named if path)


_COMMENT = textwrap.TextWrapper(
    110, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
)
_MAX_JOBS = 8
#: Characters with a meaning in a .gitignore pattern.
_SIGNS = re.compile(r"([\\*?\[\]!# ])")


def render_config(scan: ProjectScan, chosen: Recommendations, *, year: int) -> str:
    """Return the whole file; `year` is the current year, for the example of a waiver that expires."""
    from preflight.reporters.html.page import text_templates

    reasons = {decision.about: decision.because for decision in chosen.decisions}
    text = text_templates(__package__, "first_configuration.toml.jinja").render(
        scan=scan,
        chosen=chosen,
        year=year,
        reasons=reasons,
        why_baseline=reasons.get("baseline") or reasons.get("baseline?"),
        baseline=DEFAULT_NAME,
        max_jobs=_MAX_JOBS,
        could_skip=", ".join(map(pattern, chosen.offered)),
        clean=clean,
        comment=_comment,
        count=count,
        meant=_describe_key,
        pattern=pattern,
        patterns=_patterns,
        quoted=_quote,
    )
    return "\n".join(map(_without_commands, text.split("\n")))


def _without_commands(line: str) -> str:
    """Return the line without CI commands, which names of folders may contain; a pattern keeps its meaning."""
    return neutralize_commands(line) if line.startswith("#") else line.replace("##", r"#\u0023")


def _patterns(folders: Iterable[Folder]) -> str:
    patterns = [written for folder in folders if not problem(written := pattern(folder))] or ["examples/"]
    return ", ".join(map(_quote, patterns))


def pattern(folder: Folder) -> str:
    """Return the .gitignore pattern that excludes a folder."""
    escaped = _SIGNS.sub(r"\\\1", folder.path)
    return f"/{escaped}/"


def _describe_key(name: str, explanation: str = "") -> str:
    return "\n".join(map(_comment, filter(None, (_MEANINGS[name], explanation))))


def _comment(text: str) -> str:
    return _COMMENT.fill(" ".join(clean(text).split()))


def _quote(text: str) -> str:
    """Return a TOML string: as in JSON, but without surrogate escapes for characters beyond the first plane."""
    written = json.dumps(text, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\ud800-\udfff\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", written)


def _meanings() -> dict[str, str]:
    hints = typing.get_type_hints(Settings, include_extras=True)
    named = {field.name: hints[field.name] for field in fields(Settings)}
    return {
        name.replace("_", "-"): typing.get_args(hint)[1]
        for name, hint in named.items()
        if typing.get_origin(hint) is Annotated
    }


_MEANINGS = _meanings()

"""Scans a project for what a configuration could mention, and chooses the settings of a first one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from preflight.engine.report import Report
from preflight.model.findings import Finding
from preflight.model.job import Job, Known, OneOf
from preflight.reporters.text.groups import count

#: Folders whose jobs are often not the project's own: examples, tests, copies. Third-party code under a common
#: name (`third_party`, `vendor`) is always left out.
FOREIGN_FOLDERS = frozenset(
    (
        *("examples", "example", "samples", "demo", "demos", "tutorials", "docs", "doc", "tests", "test", "benchmarks"),
        *(
            "external",
            "externals",
            "extern",
            "deps",
            "submodules",
            "subprojects",
            "legacy",
            "archive",
            "old",
            "deprecated",
        ),
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
    """A folder with jobs that may not belong to the project; `others`: it is a submodule, maintained elsewhere."""

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
        jobs: names of the jobs; `files` is the number of files they were read from.
        launchers: the launchers that start ranks there, the most frequent first.
        counts: findings under each profile; `errors` and `warnings` under each.
        worst: ids of the rules with most findings under the widest profile, the most frequent first.
        systems: the systems that files are written for (`slurm`, `kubernetes`, `ray`, `hostfile`), each with its first
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
    """Scan these jobs and the reports on them by profile; paths are relative to the folder.

    `others` are folders whose jobs were excluded.
    """
    findings = {profile: report.findings for profile, report in reports.items()}
    widest = max(findings.values(), key=len, default=())
    launchers = Counter(launch.launcher for job in jobs for launch in job.launches)
    return ProjectScan(
        jobs=tuple(job.name for job in jobs),
        files=len({file.path for job in jobs for file in job.files}),
        launchers=_by_frequency(launchers),
        systems=_systems(jobs),
        folders=(*others, *_folders(jobs, widest)),
        interfaces=_interfaces(jobs),
        counts={profile: len(found) for profile, found in findings.items()},
        errors={profile: _count_severity(found, "error") for profile, found in findings.items()},
        warnings={profile: _count_severity(found, "warning") for profile, found in findings.items()},
        worst=_by_frequency(Counter(finding.id for finding in widest)),
    )


def _by_frequency(counts: Counter[str]) -> tuple[str, ...]:
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
    """Return the folders with such a name that contain files of jobs, unless all jobs are in them."""
    at = [_foreign_folder(job.name) for job in jobs]
    held = Counter(path for path in at if path)
    counts = Counter(_foreign_folder(finding.locations[0].path) for finding in findings if finding.locations)
    if sum(held.values()) == len(jobs):
        return ()
    return tuple(Folder(path, held[path], counts[path]) for path in sorted(held))


def _foreign_folder(path: str) -> str:
    """Return the outermost folder above a file that may not belong to the project; empty if there is none."""
    for folder in reversed(PurePosixPath(path).parents):
        if folder.name.lower() in FOREIGN_FOLDERS:
            return folder.as_posix()
    return ""


def _interfaces(jobs: Iterable[Job]) -> tuple[NamedInterface, ...]:
    found: dict[tuple[str, str], NamedInterface] = {}
    for job in jobs:
        for variable in INTERFACES:
            for claim in job.about(f"env.{variable}"):
                value = claim.value
                values = (
                    (value.value,) if isinstance(value, Known) else value.values if isinstance(value, OneOf) else ()
                )
                for one in values:
                    if isinstance(one, str) and one:
                        place = f"{claim.span.path}:{claim.span.line}"
                        found.setdefault((variable, one), NamedInterface(variable, one, place))
    return tuple(found[key] for key in sorted(found))[:_MAX_NAMED]


#: With more findings than this at the start, the ones that stop a job are easily overlooked.
MANY_FINDINGS = 30


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision: its subject, the choice, and the reason."""

    about: str
    choice: str
    because: str


@dataclass(frozen=True, slots=True)
class Recommendations:
    """The keys to set, the keys to offer as comments, and the decisions to print.

    `excluded` folders are excluded, `offered` ones could be; `job` is a job that `executor` can run.
    """

    profile: str
    fail_on: str
    excluded: tuple[Folder, ...]
    offered: tuple[Folder, ...]
    accepts: bool
    executor: str
    job: str
    decisions: tuple[Decision, ...]


def chosen(scan: ProjectScan, *, executor: str, because: str, accept: bool) -> Recommendations:
    """Return the choices for a folder.

    Args:
        executor: the one that a check from here would use; empty if the environment gives none. `because` is the
            reason.
        accept: today's findings will be accepted by a baseline.
    """
    profile, why_profile = _profile(scan)
    fail_on, why_fail_on = _fail_on(scan, profile, accept=accept)
    excluded = tuple(folder for folder in scan.folders if folder.others)
    offered = tuple(folder for folder in scan.folders if not folder.others)
    executor_name, why_executor = (executor, because) if executor else _executor(scan)
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
            f"{default} findings under `default` are too many to start with; `gate` has only the {gate} that stop jobs",
        )
    more = scan.counts.get("pedantic", 0) - default
    also = f"; `pedantic` would find {more} more" if more > 0 else ""
    return "default", f"{count(default, 'finding')}{also}"


def _fail_on(scan: ProjectScan, profile: str, *, accept: bool) -> tuple[str, str]:
    errors, warnings = scan.errors.get(profile, 0), scan.warnings.get(profile, 0)
    if not scan.jobs:
        return "error", "the default"
    if not errors and not warnings:
        return "warning", "there are no warnings now, so new ones can fail"
    if accept:
        return "warning", "today's findings are accepted, so only new ones count"
    return (
        "error",
        f"{count(errors, 'error')} and {count(warnings, 'warning')} now; use `warning` once they are fixed",
    )


def _executor(scan: ProjectScan) -> tuple[str, str]:
    """Choose the executor by the scheduler that the files are written for, if this machine's environment gives none."""
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

"""What a folder holds that a configuration could speak of: jobs, folders apart, interfaces, findings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from preflight.job import Job, Known, OneOf, Value
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Finding
from preflight.report import Report

#: Folders whose jobs are often nobody's own: shown, tested or copied from elsewhere. Other people's code under a common
#: name (`third_party`, `vendor`) is left out of every folder anyway.
APART = frozenset(
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
#: Variables that name interfaces, by whoever reads them.
INTERFACES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"),
    *("FLAGS_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include", "HOROVOD_GLOO_IFACE"),
)
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with jobs of its own that may not be meant; `others`: it is a submodule, which others write."""

    path: str
    jobs: int
    findings: int = 0
    others: bool = False


@dataclass(frozen=True, slots=True)
class NamedInterface:
    """A variable that names interfaces or devices, what it says, and where it stands first."""

    variable: str
    value: str
    place: str


@dataclass(frozen=True, slots=True)
class Survey:
    """What is found in a folder.

    Args:
        jobs: names of the jobs; `files` is how many files they were read from.
        launchers: what starts ranks there, the most frequent first.
        counts: findings under each profile; `errors` and `warnings` under each.
        worst: ids of the rules with most findings under the widest profile, the most frequent first.
        systems: what files are written for (`slurm`, `kubernetes`, `ray`, `hostfile`), each with the first such job.
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


def surveyed(jobs: Sequence[Job], reports: Mapping[str, Report], others: Sequence[Folder] = ()) -> Survey:
    """What these jobs, and the reports on them by profile, tell; paths are relative to the folder.

    `others` are folders whose jobs were left out.
    """
    findings = {profile: report.findings for profile, report in reports.items()}
    widest = max(findings.values(), key=len, default=())
    launchers = Counter(launch.launcher for job in jobs for launch in job.launches)
    return Survey(
        jobs=tuple(job.name for job in jobs),
        files=len({file.path for job in jobs for file in job.files}),
        launchers=_most_first(launchers),
        systems=_systems(jobs),
        folders=(*others, *_folders(jobs, widest)),
        interfaces=_interfaces(jobs),
        counts={profile: len(found) for profile, found in findings.items()},
        errors={profile: _of(found, "error") for profile, found in findings.items()},
        warnings={profile: _of(found, "warning") for profile, found in findings.items()},
        worst=_most_first(Counter(finding.id for finding in widest)),
    )


def _most_first(counts: Counter[str]) -> tuple[str, ...]:
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))


def _of(findings: Iterable[Finding], severity: str) -> int:
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
    """The folders with such a name that hold the files of jobs, unless all jobs lie in them."""
    at = [_apart(job.name) for job in jobs]
    held = Counter(path for path in at if path)
    said = Counter(_apart(finding.locations[0].path) for finding in findings if finding.locations)
    if sum(held.values()) == len(jobs):
        return ()
    return tuple(Folder(path, held[path], said[path]) for path in sorted(held))


def _apart(path: str) -> str:
    """The outermost folder above a file that may not be meant; empty where there is none."""
    for folder in reversed(PurePosixPath(path).parents):
        if folder.name.lower() in APART:
            return folder.as_posix()
    return ""


def _values(value: Value) -> tuple[object, ...]:
    if isinstance(value, OneOf):
        return value.values
    return (value.value,) if isinstance(value, Known) else ()


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
    return tuple(found[key] for key in sorted(found))[:_MOST_NAMED]

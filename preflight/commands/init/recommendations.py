"""Chooses the settings of a first configuration from what was found, each with its reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.commands.init.project_scan import Folder, ProjectScan

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
    count = scan.counts.get(profile, 0)
    decisions = [
        Decision("profile", profile, why_profile),
        Decision("fail-on", fail_on, why_fail_on),
        *(
            Decision("exclude", f"{folder.path}/", f"a submodule, with {_count_text(folder.jobs, 'job')}")
            for folder in excluded
        ),
        *(
            Decision("exclude?", f"{folder.path}/", f"{_content_of(folder)}; not skipped by default")
            for folder in offered
        ),
    ]
    if accept:
        decisions.append(Decision("baseline", "written", f"{_count_text(count, 'finding')} of this run do not count"))
    elif count:
        why = f"{_count_text(count, 'finding')} in this run; `init --accept` or `preflight baseline write` accepts them"
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
    return "default", f"{_count_text(default, 'finding')}{also}"


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
        f"{_count_text(errors, 'error')} and {_count_text(warnings, 'warning')} now; use `warning` once they are fixed",
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
    return f"{_count_text(folder.jobs, 'job')}, {_count_text(folder.findings, 'finding')}"


def _count_text(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

"""What a first configuration says because of what was found, each with the reason. Pure."""

from __future__ import annotations

from preflight.beginning.survey import Folder, Survey
from preflight.lazy.dataclasses import dataclass

#: With more findings than this at the start nobody reads them all, and the ones that stop a job are lost among them.
MANY = 30


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing that was decided: what about, what, and why."""

    about: str
    choice: str
    because: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the file sets, what it only offers, and the decisions for whoever reads along.

    `excluded` are folders that are left out, `offered` those that could be; `job` is one that `executor` suits.
    """

    profile: str
    fail_on: str
    excluded: tuple[Folder, ...]
    offered: tuple[Folder, ...]
    accepts: bool
    executor: str
    job: str
    decisions: tuple[Decision, ...]


def chosen(survey: Survey, *, executor: str, because: str, accept: bool) -> Chosen:
    """The choices for a folder.

    Args:
        executor: the one that a check from here would take, and `because` of what; empty where the surroundings say
            nothing.
        accept: what is found now is to be accepted by a baseline.
    """
    profile, why_profile = _profile(survey)
    fail_on, why_fail_on = _fail_on(survey, profile, accept=accept)
    excluded = tuple(folder for folder in survey.folders if folder.others)
    offered = tuple(folder for folder in survey.folders if not folder.others)
    way, why_way = (executor, because) if executor else _way(survey)
    written_for = {"ssh": "hostfile"}.get(way, way)
    job = survey.systems.get(written_for, next(iter(survey.jobs), ""))
    count = survey.counts.get(profile, 0)
    decisions = [
        Decision("profile", profile, why_profile),
        Decision("fail-on", fail_on, why_fail_on),
        *(
            Decision("exclude", f"{folder.path}/", f"a submodule, with {_counted(folder.jobs, 'job')}")
            for folder in excluded
        ),
        *(Decision("exclude?", f"{folder.path}/", f"{_held(folder)}; not left out by itself") for folder in offered),
    ]
    if accept:
        decisions.append(Decision("baseline", "written", f"{_counted(count, 'finding')} of today do not count"))
    elif count:
        why = f"{_counted(count, 'finding')} of today; `init --accept` or `preflight baseline write` accepts them"
        decisions.append(Decision("baseline?", "none", why))
    decisions.append(Decision("executor", way, why_way))
    return Chosen(profile, fail_on, excluded, offered, accept, way, job, tuple(decisions))


def _profile(survey: Survey) -> tuple[str, str]:
    gate, default = survey.counts.get("gate", 0), survey.counts.get("default", 0)
    if default > MANY and gate < default:
        return (
            "gate",
            f"{default} findings under `default` are many to begin with; `gate` has {gate}, which stop jobs",
        )
    more = survey.counts.get("pedantic", 0) - default
    also = f"; `pedantic` would find {more} more" if more > 0 else ""
    return "default", f"{_counted(default, 'finding')}{also}"


def _fail_on(survey: Survey, profile: str, *, accept: bool) -> tuple[str, str]:
    errors, warnings = survey.errors.get(profile, 0), survey.warnings.get(profile, 0)
    if not survey.jobs:
        return "error", "the default"
    if not errors and not warnings:
        return "warning", "there is no warning now, and none need come"
    if accept:
        return "warning", "what there is now is accepted, so only new ones count"
    return (
        "error",
        f"{_counted(errors, 'error')} and {_counted(warnings, 'warning')} now; `warning` when these are mended",
    )


def _way(survey: Survey) -> tuple[str, str]:
    """By what the files are written for, where this machine says nothing."""
    for system, executor, why in (
        ("slurm", "slurm", "the files have headers of Slurm"),
        ("kubernetes", "kubernetes", "the files hold manifests of Kubernetes"),
        ("ray", "ray", "the files start Ray"),
        ("hostfile", "ssh", "a hostfile names the nodes: --hostfile"),
    ):
        if system in survey.systems:
            return executor, why
    return "ssh", "no file names a scheduler; name the nodes with --hosts"


def _held(folder: Folder) -> str:
    return f"{_counted(folder.jobs, 'job')}, {_counted(folder.findings, 'finding')}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

"""Looking at a folder for a first configuration of it, and the text that comes of it."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from preflight import __version__, api
from preflight.beginning.choices import Chosen, chosen
from preflight.beginning.page import page, pattern
from preflight.beginning.survey import Folder, Survey, surveyed
from preflight.config_document import found
from preflight.config_file import NAMES
from preflight.configuration import Configuration, Site
from preflight.errors import UsageError
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import PROFILES
from preflight.recording import Recording
from preflight.report import Report
from preflight.settings import validated
from preflight.sources.base import SourceFile
from preflight.sources.tree import DirectoryTree
from preflight.toml_places import loads

NAME = NAMES[0]


@dataclass(frozen=True, slots=True)
class Beginning:
    """A first configuration: its text, what it was chosen from, and the report under the chosen profile."""

    text: str
    survey: Survey
    chosen: Chosen
    report: Report


def begin(folder: Path, *, environment: Mapping[str, str], created: str, accept: bool = False) -> Beginning:
    """The configuration for a folder. Nothing is written.

    Args:
        environment: the variables of this process, which tell in which surroundings it is.
        created: the time of today, in ISO 8601.
        accept: a baseline of what is found now will be written.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; the one that holds the jobs is expected")
    jobs = api.jobs_in([folder], root=folder)
    held = {path: sum(job.name.startswith(f"{path}/") for job in jobs) for path in _submodules(folder)}
    others = tuple(Folder(path, count, others=True) for path, count in sorted(held.items()) if count)
    if others:
        jobs = api.jobs_in([folder], root=folder, exclude=[pattern(one) for one in others])
    reports: dict[str, Report] = {}
    for profile in PROFILES:
        asked = Configuration(profile=profile)
        reports[profile] = api.judge(Recording(jobs, created, __version__, configuration=asked))
    survey = surveyed(jobs, reports, others)
    executor, because = _surroundings(environment)
    choices = chosen(survey, executor=executor, because=because, accept=accept)
    text = page(survey, choices, year=int(created[:4]))
    problems = validated(loads(text))
    if isinstance(problems, list):
        raise AssertionError(f"a configuration was written that cannot be read: {problems[0].message}")
    return Beginning(text, survey, choices, reports[choices.profile])


def refuse_to_replace(folder: Path) -> None:
    """Raise UsageError where the folder has a configuration already, in either file."""
    if os.path.lexists(folder / NAME):
        raise UsageError(f"{folder / NAME} is there already; --force replaces it, --print shows what would stand there")
    project = folder / NAMES[1]
    if project.is_file() and _speaks_of_us(project, folder):
        raise UsageError(f"{project} holds [tool.preflight], which {NAME} would hide; --force writes it all the same")


def _speaks_of_us(project: Path, folder: Path) -> bool:
    try:
        return found(project, folder, folder, Site()) is not None
    except UsageError:
        # It does, if only with mistakes.
        return True


def _surroundings(environment: Mapping[str, str]) -> tuple[str, str]:
    """The executor that recognises where we are, and by what; empty where none does."""
    from preflight.reach import recognising

    return next(((found.name, reason) for found, reason in recognising(environment)), ("", ""))


def _submodules(folder: Path) -> tuple[str, ...]:
    """The folders of git submodules, as `.gitmodules` names them; none where that cannot be read."""
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

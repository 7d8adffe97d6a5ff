"""Examines a folder and makes its first configuration."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from preflight import __version__
from preflight._util.toml_spans import loads
from preflight._util.usage_error import UsageError
from preflight.commands.init.config_text import page, pattern
from preflight.commands.init.project_scan import Folder, ProjectScan, scan_project
from preflight.commands.init.recommendations import Recommendations, chosen
from preflight.config.choices import NAMES
from preflight.config.document import load_found
from preflight.config.jobs import jobs_in
from preflight.config.schema import validated
from preflight.engine.judge import judge
from preflight.engine.report import Report
from preflight.model.configuration import Configuration, Site
from preflight.model.findings import PROFILES
from preflight.model.recording import Recording
from preflight.sources.base import SourceFile
from preflight.sources.formats.tree import DirectoryTree

NAME = NAMES[0]


@dataclass(frozen=True, slots=True)
class FirstConfig:
    """A first configuration: its text, the choices behind it, and the report under the chosen profile."""

    text: str
    scan: ProjectScan
    chosen: Recommendations
    report: Report


def make_first_config(
    folder: Path, *, environment: Mapping[str, str], created: str, accept: bool = False
) -> FirstConfig:
    """Make the configuration for a folder. Nothing is written.

    Args:
        environment: the variables of this process, which may reveal a scheduler.
        created: the current time, in ISO 8601.
        accept: a baseline of today's findings will be written.

    Raises:
        UsageError: the folder does not exist.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; expected the one that contains the jobs")
    jobs = jobs_in([folder], root=folder)
    held = {path: sum(job.name.startswith(f"{path}/") for job in jobs) for path in _submodules(folder)}
    others = tuple(Folder(path, count, others=True) for path, count in sorted(held.items()) if count)
    if others:
        jobs = jobs_in([folder], root=folder, exclude=[pattern(item) for item in others])
    reports: dict[str, Report] = {}
    for profile in PROFILES:
        configuration = Configuration(profile=profile)
        reports[profile] = judge(Recording(jobs, created, __version__, configuration=configuration))
    scan = scan_project(jobs, reports, others)
    executor, because = _surroundings(environment)
    choices = chosen(scan, executor=executor, because=because, accept=accept)
    text = page(scan, choices, year=int(created[:4]))
    problems = validated(loads(text))
    if isinstance(problems, list):
        raise AssertionError(f"the generated configuration is invalid: {problems[0].message}")
    return FirstConfig(text, scan, choices, reports[choices.profile])


def refuse_to_replace(folder: Path) -> None:
    """Raise UsageError if the folder already has a configuration, in either file."""
    if os.path.lexists(folder / NAME):
        raise UsageError(f"{folder / NAME} already exists; --force replaces it, --print shows the new content")
    project = folder / NAMES[1]
    if project.is_file() and _has_our_table(project, folder):
        raise UsageError(f"{project} contains [tool.preflight], which {NAME} would override; --force writes it anyway")


def _has_our_table(project: Path, folder: Path) -> bool:
    try:
        return load_found(project, folder, folder, Site()) is not None
    except UsageError:
        # It has the table, although with mistakes.
        return True


def _surroundings(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the executor that recognises the environment, and the reason; empty if none does."""
    from preflight.runner.node_selection import recognising_executors

    return next(((executor.name, reason) for executor, reason in recognising_executors(environment)), ("", ""))


def _submodules(folder: Path) -> tuple[str, ...]:
    """Return the folders of git submodules from `.gitmodules`; none if it cannot be read."""
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

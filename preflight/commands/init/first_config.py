"""Examines a folder and writes its first configuration: chosen keys are set, all others are comments.

A line that begins with `#` and a space is explanation; a line that begins with only `#` is a key that could be set.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Annotated

from preflight import __version__
from preflight._util.sanitize import clean, neutralize_commands
from preflight._util.toml import parse
from preflight._util.usage_error import UsageError
from preflight.commands.init.project_scan import Folder, ProjectScan, Recommendations, chosen, scan_project
from preflight.config.baseline import DEFAULT_NAME
from preflight.config.document import Settings, load_found, validated
from preflight.config.resolve import NAMES
from preflight.config.selection import jobs_in
from preflight.engine.judge import judge
from preflight.engine.report import Report
from preflight.model.configuration import Configuration, Site
from preflight.model.findings import PROFILES
from preflight.model.recording import Recording
from preflight.sources.base import SourceFile
from preflight.sources.discovery.git_files import problem
from preflight.sources.formats.tree import DirectoryTree

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
    problems = validated(parse(text))
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


_WIDTH = 110
_MAX_JOBS = 8
#: Characters with a meaning in a .gitignore pattern.
_SIGNS = re.compile(r"([\\*?\[\]!# ])")


def page(scan: ProjectScan, chosen: Recommendations, *, year: int) -> str:
    """Return the whole file; `year` is the current one, for the example of a waiver that expires."""
    lines = [
        "# Configuration of preflight. Every key: docs/configuration.md, or `preflight schema config`.",
        '# To set a commented key, remove the "#" before it.',
        "",
        *_found_jobs(scan, chosen),
        "",
    ]
    for block in _keys(scan, chosen):
        lines.extend((*block, ""))
    lines.extend(_tables(scan, chosen, year))
    return "\n".join(map(_without_commands, lines)).rstrip("\n") + "\n"


def _without_commands(line: str) -> str:
    """Return the line without CI commands, which names of folders may contain; a pattern keeps its meaning."""
    return neutralize_commands(line) if line.startswith("#") else line.replace("##", r"#\u0023")


def _found_jobs(scan: ProjectScan, chosen: Recommendations) -> Iterator[str]:
    if not scan.jobs:
        yield "# No job found here yet; these are the defaults."
        return
    by = f", started by {', '.join(scan.launchers[:6])}" if scan.launchers else ""
    jobs = "1 job" if len(scan.jobs) == 1 else f"{len(scan.jobs)} jobs"
    yield from _comment(f"Found: {jobs} in {scan.files} files{by}:")
    for name in scan.jobs[:_MAX_JOBS]:
        yield f"#   {clean(name)}"
    if len(scan.jobs) > _MAX_JOBS:
        yield f"#   and {len(scan.jobs) - _MAX_JOBS} more (`preflight lint --list-files`)"
    yield "#"
    yield from _comment(f"To check the nodes of one: preflight check {chosen.job} --on {chosen.executor}")
    if scan.interfaces:
        yield "#"
        yield from _comment(
            "Interfaces and devices that the files name. If every node of the site has the same ones, a site rule can"
        )
        yield from _comment('require them of all jobs (docs/configuration.md, "Site rules"):')
        for item in scan.interfaces:
            yield f"#   {clean(item.variable)}={clean(item.value)}   {clean(item.place)}"


def _keys(scan: ProjectScan, chosen: Recommendations) -> Iterator[Sequence[str]]:
    """Return the keys above all tables, each with its meaning."""
    reasons = {decision.about: decision.because for decision in chosen.decisions}
    example = scan.worst[0] if scan.worst else "ENV003"
    yield _key("profile", _text(chosen.profile), f"gate, default or pedantic. Now: {reasons['profile']}")
    yield _key("fail-on", _text(chosen.fail_on), f"error, warning or info. Now: {reasons['fail-on']}")
    yield _exclude(chosen)
    yield _baseline(chosen, reasons)
    yield _key("select", f"[{_text(example[:3])}]", "", offered=True)
    yield _key("ignore", f"[{_text(example)}]", "", offered=True)
    yield _key("mandatory", f"[{_text(example[:3])}]", "", offered=True)
    yield _key("allow-incomplete", "true", "", offered=True)
    yield _key("output", _text("json"), "`preflight lint --help` lists them.", offered=True)
    yield _key("site-rules", f"[{_text('site-rules.toml')}]", "", offered=True)
    yield _key("price-per-gpu-hour", "2.5", "", offered=True)


def _exclude(chosen: Recommendations) -> Sequence[str]:
    """Return the exclude patterns: folders with third-party code are excluded; the others are listed with their
    content.
    """
    explanation = (
        "Third-party code (third_party, vendor, node_modules ...) and files that .gitignore names are always skipped."
    )
    lines = _key("exclude", _patterns(chosen.excluded or chosen.offered), explanation, offered=not chosen.excluded)
    if chosen.offered and chosen.excluded:
        more = [f"Could be skipped as well: {', '.join(pattern(folder) for folder in chosen.offered)}"]
        return [*lines[:-1], *(line for item in more for line in _comment(item)), lines[-1]]
    return lines


def _patterns(folders: Iterable[Folder]) -> str:
    patterns = [written for folder in folders if not problem(written := pattern(folder))] or ["examples/"]
    return f"[{', '.join(map(_text, patterns))}]"


def pattern(folder: Folder) -> str:
    """Return the .gitignore pattern that excludes a folder."""
    escaped = _SIGNS.sub(r"\\\1", folder.path)
    return f"/{escaped}/"


def _baseline(chosen: Recommendations, reasons: dict[str, str]) -> Sequence[str]:
    why = reasons.get("baseline") or reasons.get("baseline?") or ""
    return _key("baseline", _text(DEFAULT_NAME), f"Now: {why}" if why else "", offered=not chosen.accepts)


def _tables(scan: ProjectScan, chosen: Recommendations, year: int) -> Iterator[str]:
    example = scan.worst[0] if scan.worst else "ENV003"
    folder = pattern(chosen.offered[0]) if chosen.offered else "examples/"
    yield from _meant("severity")
    yield from ("#[severity]", f'#{example} = "info"', "")
    yield from _meant("per-file-ignores")
    yield from ("#[per-file-ignores]", f"#{_text(folder)} = [{_text(example[:3])}]", "")
    yield from _meant("waive")
    yield "#[[waive]]"
    yield f"#rule = {_text(example)}"
    yield '#reason = "why it is accepted; shown in every report"'
    yield f"#paths = [{_text(folder)}]"
    yield '#hosts = ["node[1-4]"]'
    yield '#owner = "who is responsible"'
    yield f"#expires = {year + 1}-12-31"


def _key(name: str, value: str, explanation: str, *, offered: bool = False) -> list[str]:
    """Return the lines of a key, its description first; an `offered` key is commented out."""
    return [*_meant(name, explanation), f"{'#' if offered else ''}{name} = {value}"]


def _meant(name: str, explanation: str = "") -> list[str]:
    """Return the description of a key, followed by the explanation if there is one."""
    return [*_comment(_MEANINGS[name]), *(_comment(explanation) if explanation else ())]


def _comment(text: str) -> list[str]:
    """Return text as comment lines of a readable width."""
    lines: list[str] = []
    line = "#"
    for word in clean(text).split():
        if len(line) + 1 + len(word) > _WIDTH and line != "#":
            lines.append(line)
            line = "#"
        line += f" {word}"
    return [*lines, line]


def _text(text: str) -> str:
    """Return a TOML string: as in JSON, but characters beyond the first plane have no surrogate escapes."""
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

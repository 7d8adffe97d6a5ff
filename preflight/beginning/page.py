"""The text of a first `preflight.toml`: what is chosen stands there, all else as comments that can be taken away. Pure.

A line that begins with `#` and a blank is for people; one that begins with `#` alone is a key that could be set.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Annotated

from preflight.baseline import DEFAULT_NAME
from preflight.beginning.choices import Chosen
from preflight.beginning.survey import Folder, Survey
from preflight.ignoring import problem
from preflight.lazy.patterns import lazy_pattern
from preflight.reporters.clean import clean
from preflight.settings import Settings

_WIDTH = 110
_MOST_JOBS = 8
#: Signs that have a meaning in a pattern of .gitignore.
_SIGNS = lazy_pattern(r"([\\*?\[\]!# ])")


def page(survey: Survey, chosen: Chosen, *, year: int) -> str:
    """The whole file; `year` is the current one, for the example of a waiver that ends."""
    lines = [
        "# Configuration of preflight. Every key: docs/configuration.md, or `preflight schema config`.",
        '# Take the "#" away from a line that begins with it and no blank, and its key is set.',
        "",
        *_found(survey, chosen),
        "",
    ]
    for block in _keys(survey, chosen):
        lines.extend((*block, ""))
    lines.extend(_tables(survey, chosen, year))
    return "\n".join(lines).rstrip("\n") + "\n"


def _found(survey: Survey, chosen: Chosen) -> Iterator[str]:
    if not survey.jobs:
        yield "# No job was recognised here yet; what follows are the defaults."
        return
    by = f", started by {', '.join(survey.launchers[:6])}" if survey.launchers else ""
    jobs = "1 job" if len(survey.jobs) == 1 else f"{len(survey.jobs)} jobs"
    yield from _said(f"Found: {jobs} in {survey.files} files{by}:")
    for name in survey.jobs[:_MOST_JOBS]:
        yield f"#   {clean(name)}"
    if len(survey.jobs) > _MOST_JOBS:
        yield f"#   and {len(survey.jobs) - _MOST_JOBS} more (`preflight lint --list-files`)"
    yield "#"
    yield from _said(f"To look at the nodes of one: preflight check {chosen.job} --on {chosen.executor}")
    if survey.interfaces:
        yield "#"
        yield from _said(
            "Interfaces and devices that the files name. If every node of the site has the same, a site rule can"
        )
        yield from _said('hold all jobs to them (docs/configuration.md, "Site rules"):')
        for item in survey.interfaces:
            yield f"#   {clean(item.variable)}={clean(item.value)}   {clean(item.place)}"


def _keys(survey: Survey, chosen: Chosen) -> Iterator[Sequence[str]]:
    """The keys in front of all tables, each with its meaning."""
    reasons = {decision.about: decision.because for decision in chosen.decisions}
    example = survey.worst[0] if survey.worst else "ENV003"
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


def _exclude(chosen: Chosen) -> Sequence[str]:
    """Folders that others write are left out; of the others it is said what they hold."""
    told = "Other people's code (third_party, vendor, node_modules ...) and what .gitignore names are left out anyway."
    lines = _key("exclude", _patterns(chosen.excluded or chosen.offered), told, offered=not chosen.excluded)
    if chosen.offered and chosen.excluded:
        more = [f"Could be left out as well: {', '.join(pattern(folder) for folder in chosen.offered)}"]
        return [*lines[:-1], *(line for one in more for line in _said(one)), lines[-1]]
    return lines


def _patterns(folders: Iterable[Folder]) -> str:
    patterns = [written for folder in folders if not problem(written := pattern(folder))] or ["examples/"]
    return f"[{', '.join(map(_text, patterns))}]"


def pattern(folder: Folder) -> str:
    """What leaves a folder out, as in .gitignore."""
    escaped = _SIGNS.sub(r"\\\1", folder.path)
    return f"/{escaped}/"


def _baseline(chosen: Chosen, reasons: dict[str, str]) -> Sequence[str]:
    why = reasons.get("baseline") or reasons.get("baseline?") or ""
    return _key("baseline", _text(DEFAULT_NAME), f"Now: {why}" if why else "", offered=not chosen.accepts)


def _tables(survey: Survey, chosen: Chosen, year: int) -> Iterator[str]:
    example = survey.worst[0] if survey.worst else "ENV003"
    folder = pattern(chosen.offered[0]) if chosen.offered else "examples/"
    yield from _meant("severity")
    yield from ("#[severity]", f'#{example} = "info"', "")
    yield from _meant("per-file-ignores")
    yield from ("#[per-file-ignores]", f"#{_text(folder)} = [{_text(example[:3])}]", "")
    yield from _meant("waive")
    yield "#[[waive]]"
    yield f"#rule = {_text(example)}"
    yield '#reason = "why it is accepted; it stands in every report"'
    yield f"#paths = [{_text(folder)}]"
    yield '#hosts = ["node[1-4]"]'
    yield '#owner = "who answers for it"'
    yield f"#expires = {year + 1}-12-31"


def _key(name: str, value: str, told: str, *, offered: bool = False) -> list[str]:
    """A key with what it means; `offered` ones are a comment."""
    return [*_meant(name, told), f"{'#' if offered else ''}{name} = {value}"]


def _meant(name: str, told: str = "") -> list[str]:
    """What the reader of configurations says of a key, and what more there is to say."""
    return [*_said(_MEANINGS[name]), *(_said(told) if told else ())]


def _said(text: str) -> list[str]:
    """Text as comments of a reader's width, on as many lines as it takes."""
    lines: list[str] = []
    line = "#"
    for word in clean(text).split():
        if len(line) + 1 + len(word) > _WIDTH and line != "#":
            lines.append(line)
            line = "#"
        line += f" {word}"
    return [*lines, line]


def _text(text: str) -> str:
    """A text as TOML writes it: as JSON does, but that nothing outside the first plane has an escape of two halves."""
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

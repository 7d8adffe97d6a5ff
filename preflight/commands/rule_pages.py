"""Markdown pages about rules and checks, made from their docstrings: an index, and one page per area."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from preflight.model.findings import Severity
from preflight.model.requests import probe_name
from preflight.model.stages import STAGES
from preflight.plugins import registry
from preflight.plugins.authoring import HEADINGS, Check, Rule
from preflight.reporters.output import replace_file

INDEX = "README.md"
#: The table of what checks observe; its name differs from every area's, which has three letters.
COSTS = "CHECKS.md"
_HEADING = re.compile(rf"^({'|'.join((*HEADINGS, 'Evidence'))}):[ \t]*", re.MULTILINE)
_CODE = re.compile(r"(`+[^`]*`+)")
_BADGES = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "info"}
_HEADER = "<!-- Written by `make site` from the docstrings; edit those. -->"


def pages(items: Sequence[Rule | Check]) -> dict[str, str]:
    """Return the text of each page by its file name. The same items give the same text."""
    by_area: dict[str, list[Rule | Check]] = {}
    for item in sorted(items, key=lambda item: item.meta.id):
        by_area.setdefault(item.meta.area, []).append(item)
    found = {f"{area}.md": _area(area, here) for area, here in by_area.items()}
    checks = [item for item in items if isinstance(item, Check)]
    costs = {COSTS: _costs(sorted(checks, key=lambda item: (STAGES.index(item.when), item.meta.id)))} if checks else {}
    return {INDEX: _index(by_area), **costs, **found}


def write(folder: Path, items: Sequence[Rule | Check]) -> list[Path]:
    """Write the pages to a folder, delete those of former areas, and return the changed files.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages(items)
    changed: list[Path] = []
    for path in sorted(folder.glob("*.md")):
        if path.name not in wanted and _HEADER in path.read_text("utf-8"):
            path.unlink()
            changed.append(path)
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:
            replace_file(path, text.encode("utf-8"), mode=0o644)
            changed.append(path)
    return changed


def _index(by_area: dict[str, list[Rule | Check]]) -> str:
    rules = sum(isinstance(item, Rule) for items in by_area.values() for item in items)
    checks = sum(map(len, by_area.values())) - rules
    lines = [
        "# Rules and checks",
        "",
        _HEADER,
        "",
        f"{rules} rules read a job's files (`lint`); {checks} checks judge what was observed on its nodes (`check`).",
        "Each can be selected, ignored, suppressed and given another severity by its id or name.",
        "",
    ]
    for area, items in by_area.items():
        lines += [
            f"## [{_title(area)}]({area}.md)",
            "",
            "| id | name | when | severity | fix | |",
            "|---|---|---|---|---|---|",
        ]
        for item in items:
            meta = item.meta
            fix = meta.fix if meta.fix != "none" else ""
            row = (
                f"[{meta.id}]({area}.md#{_anchor(item)})",
                meta.name,
                _stage_of(item),
                _BADGES[meta.severity],
                fix,
                _prose(_first(meta.doc)).replace("|", "\\|"),
            )
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _costs(checks: Sequence[Check]) -> str:
    """Return a table of what every check observes on a node, what that costs, and what is lost without root."""
    lines = [
        "# What checks observe",
        "",
        _HEADER,
        "",
        "Every fact is observed by a probe in its own process, with a deadline. Root is never required. What",
        "cannot be observed without root is listed here, and in the report as *could not be decided*.",
        "",
        "| id | name | stage | facts | cost on a node | lost without root |",
        "|---|---|---|---|---|---|",
    ]
    for item in checks:
        facts = "; ".join(dict.fromkeys(_subject(probe) for probe in item.probes)) or "none"
        row = (
            f"[{item.meta.id}]({item.meta.area}.md#{_anchor(item)})",
            item.meta.name,
            item.when,
            facts,
            item.cost,
            item.without_root or "nothing",
        )
        cells = (row[0], *(_prose(cell).replace("|", "\\|") for cell in row[1:]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _subject(probe: Callable[..., object]) -> str:
    """Return the first sentence of a probe's docstring, which tells what it observes."""
    return _first(inspect.getdoc(probe) or probe_name(probe)).split(". ")[0].rstrip(".")


def _area(area: str, items: Sequence[Rule | Check]) -> str:
    parts = [f"# {area}: {_title(area)}", _HEADER]
    parts.extend(_item(item) for item in items)
    return "\n\n".join(parts) + "\n"


def _item(item: Rule | Check) -> str:
    meta = item.meta
    kind = "rule, reads files only" if isinstance(item, Rule) else f"check, {item.when} stage"
    facts = [kind, meta.severity.value, f"confidence {meta.confidence.value}", f"profile {meta.profile}"]
    if meta.applies_to:
        facts.append(f"applies to {meta.applies_to}")
    if meta.fix != "none":
        facts.append(f"fix: {meta.fix}")
    facts += [f"since {meta.since}", meta.stage]
    if isinstance(item, Check):
        facts.append(f"costs: {item.cost}")
        facts += [f"lost without root: {item.without_root}"] if item.without_root else []
    doc = inspect.cleandoc(meta.doc)
    parts = [f"## {meta.id} {meta.name}", "*" + " · ".join(facts) + "*", _prose(_first(doc))]
    pieces = _HEADING.split(doc)
    for heading, text in zip(pieces[1::2], pieces[2::2], strict=True):
        parts.append(f"**{heading}.** {_prose(inspect.cleandoc(text))}")
    return "\n\n".join(parts)


def _first(doc: str) -> str:
    """Return the first paragraph on one line."""
    return " ".join(inspect.cleandoc(doc).partition("\n\n")[0].split())


def _prose(text: str) -> str:
    """Return text in which only back quotes are markup."""
    pieces = _CODE.split(text)
    return "".join(piece if number % 2 else re.sub(r"([*<\[])", r"\\\1", piece) for number, piece in enumerate(pieces))


def _title(area: str) -> str:
    title = registry.areas().get(area, area)
    return title[:1].upper() + title[1:]


def _stage_of(item: Rule | Check) -> str:
    return "lint" if isinstance(item, Rule) else item.when


def _anchor(item: Rule | Check) -> str:
    """Return the anchor that GitHub gives the heading of an item."""
    return f"{item.meta.id.lower()}-{item.meta.name}"

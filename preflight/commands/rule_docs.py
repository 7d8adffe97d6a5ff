"""Explains rules and checks from their own docstrings: on a terminal, and as Markdown pages."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from preflight._util import regular_file
from preflight._util.sequences import grouped
from preflight._util.usage_error import UsageError
from preflight.model.configuration import STAGES
from preflight.model.requests import probe_name
from preflight.plugins import registry
from preflight.plugins.authoring import HEADINGS, Check, Meta, Rule
from preflight.plugins.installed import all_items
from preflight.reporters.html.page import text_templates


def explanation(name: str, site_rules: Sequence[Path] = (), *, width: int | None = None) -> str:
    """Return the docstring of the rule or check with this id or name, with its metadata; for an area, the list of its
    rules.

    For a symptom of `diagnose`, return its table entry. Paragraphs wider than `width` are wrapped.

    Raises:
        UsageError: if the name is unknown; the message suggests the nearest.
    """
    known: dict[str, Rule | Check] = {}
    items = all_items(site_rules)
    for item in items:
        known[item.meta.id] = known[item.meta.name] = item
    chosen = known.get(name.upper()) or known.get(name.lower())
    area = [item for item in items if item.meta.area == name.upper()]
    if chosen is None and area:
        return _rows(area, width).rstrip("\n")
    if chosen is None and (symptom := _symptom(name.lower(), known)) is not None:
        return _wrap(symptom, width)
    if chosen is None:
        near = registry.nearest(name, (*known, *_symptoms()))
        hint = f"; the nearest: {', '.join(near)}" if near else ""
        raise UsageError(f"{name!r} is not a rule or check{hint} (`preflight rules` lists all)")
    meta = chosen.meta
    kind = "rule: reads only files" if isinstance(chosen, Rule) else f"check: {chosen.when} stage"
    facts = (
        kind,
        meta.severity.value,
        f"confidence {meta.confidence.value}",
        f"profile {meta.profile}",
        *([f"applies to {meta.applies_to}"] if meta.applies_to else []),
        *([f"fix {meta.fix}"] if meta.fix != "none" else []),
        f"since {meta.since}",
        meta.stage,
    )
    lines = [" · ".join(facts)]
    if isinstance(chosen, Check):
        lines.append(f"cost on a node: {chosen.cost} · lost without root: {chosen.without_root or 'nothing'}")
    above = "\n".join(_wrap(line, width) for line in lines)
    return f"{meta.id} {meta.name}\n{above}\n\n{_wrap(inspect.cleandoc(meta.doc), width)}"


def _symptoms() -> tuple[str, ...]:
    from preflight.commands.diagnose.scan import load_symptoms

    return tuple(row.symptom.id for row in load_symptoms().rows)


def _symptom(name: str, known: Mapping[str, Rule | Check]) -> str | None:
    """Return what is known about a log symptom; None if the name is unknown."""
    from preflight.commands.diagnose.diagnosis import Kind
    from preflight.commands.diagnose.scan import load_symptoms

    row = next((row for row in load_symptoms().rows if row.symptom.id == name), None)
    if row is None:
        return None
    symptom = row.symptom
    kind = f"cause, {symptom.certainty.value}" if symptom.kind is Kind.CAUSE else symptom.kind.value
    before = [f"{item.meta.id} {item.meta.name}" for at in symptom.found_by if (item := known.get(at)) is not None]
    parts = {
        "What it means": [symptom.meaning],
        "What to do": [symptom.remedy],
        "Found before the run by": before or [f"nothing: {symptom.beyond}" if symptom.beyond else "nothing"],
        "Looks like": [line for line in row.lines if not line.startswith("@")],
        "Evidence": list(symptom.sources),
    }
    if symptom.kind is Kind.COMPLETION:
        del parts["What to do"], parts["Found before the run by"]
    text = "".join(
        f"\n\n{title}\n" + "\n".join(f"    {line.strip()}" for line in lines) for title, lines in parts.items()
    )
    return f"{symptom.id}\nsymptom in logs · {kind} · {', '.join(symptom.systems)}{text}"


def _wrap(page: str, width: int | None) -> str:
    """Wrap paragraphs that are wider than `width`; a paragraph consists of adjacent lines with the same indentation."""
    if width is None:
        return page
    filled: list[str] = []
    for indent, group in itertools.groupby(page.split("\n"), lambda line: line[: len(line) - len(line.lstrip())]):
        for blank, lines in itertools.groupby(group, lambda line: not line):
            text = list(lines)
            if not blank and max(map(len, text)) > width:
                wrapper = textwrap.TextWrapper(
                    max(width, len(indent) + 20),
                    initial_indent=indent,
                    subsequent_indent=indent,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                text = wrapper.wrap(" ".join(line.strip() for line in text))
            filled.extend(text)
    return "\n".join(filled)


def listing(output: str, site_rules: Sequence[Path] = (), *, width: int | None = None) -> str:
    """Return one or two lines per rule or check (`text`), all metadata (`json`), or everything (`markdown`)."""
    found = all_items(site_rules)
    if output == "markdown":
        return "\n".join(pages(found).values())
    if output == "json":
        return json.dumps([_as_json(item) for item in found], indent=2) + "\n"
    return _rows(found, width)


def vocabulary() -> str:
    """Return one line per quantity that files can give: its name, its type or unit, and its meaning."""
    from preflight.model.job.value import QUANTITIES

    rows = [(item.name, item.unit or item.kind.__name__, item.meaning) for item in QUANTITIES.values()]
    names, kinds = max(len(name) for name, _, _ in rows), max(len(kind) for _, kind, _ in rows)
    return "".join(f"{name:<{names}}  {kind:<{kinds}}  {meaning}\n" for name, kind, meaning in sorted(rows))


def _rows(items: Sequence[Rule | Check], width: int | None = None) -> str:
    rows = [(item.meta, _stage_of(item)) for item in items]
    longest = max((len(meta.name) for meta, _ in rows), default=0)
    lines: list[str] = []
    for meta, stage in rows:
        line = f"{meta.id}  {meta.name:<{longest}}  {stage:<5}  {meta.severity.value:<7}"
        if width is not None and len(line) + 2 + len(_first_line(meta)) > width:
            lines += [line.rstrip(), _wrap(f"        {_first_line(meta)}", width)]
        else:
            lines.append(f"{line}  {_first_line(meta)}")
    return "\n".join(lines) + "\n" if lines else ""


def _stage_of(item: Rule | Check) -> str:
    return "lint" if isinstance(item, Rule) else item.when


def _first_line(meta: Meta) -> str:
    return meta.doc.strip().splitlines()[0] if meta.doc.strip() else ""


def _as_json(item: Rule | Check) -> dict[str, object]:
    meta = item.meta
    return {
        "id": meta.id,
        "name": meta.name,
        "when": _stage_of(item),
        "severity": meta.severity.value,
        "confidence": meta.confidence.value,
        "profile": meta.profile,
        "stage": meta.stage,
        "since": meta.since,
        "fix": meta.fix,
        "applies_to": meta.applies_to,
        "needs": list(meta.needs),
        "evidence": [item if isinstance(item, str) else item[1] for item in meta.evidence],
        **(
            {
                "probes": [probe_name(probe) for probe in item.probes],
                "cost": item.cost,
                "without_root": item.without_root,
            }
            if isinstance(item, Check)
            else {}
        ),
        "doc": inspect.cleandoc(meta.doc),
    }


INDEX = "README.md"
#: The page of observed facts; its name differs from every area's, which has three letters.
COSTS = "CHECKS.md"
_HEADING = re.compile(rf"^({'|'.join((*HEADINGS, 'Evidence'))}):[ \t]*", re.MULTILINE)
_CODE = re.compile(r"(`+[^`]*`+)")
_HEADER = "<!-- Written by `make site` from the docstrings; edit those. -->"


def pages(items: Sequence[Rule | Check]) -> dict[str, str]:
    """Return the text of each page by its file name. The same items give the same text."""
    by_area = grouped((item.meta.area, item) for item in sorted(items, key=lambda item: item.meta.id))
    checks = [item for item in items if isinstance(item, Check)]
    checks.sort(key=lambda item: (STAGES.index(item.when), item.meta.id))
    counts = {"rules": len(items) - len(checks), "checks": len(checks)}
    found = {INDEX: _render("rule_index.md.jinja", by_area=by_area, **counts)}
    if checks:
        found[COSTS] = _render("check_costs.md.jinja", checks=checks, facts_of=_facts)
    for area, here in by_area.items():
        found[f"{area}.md"] = _render("rule_area.md.jinja", area=area, items=here, sections_of=_sections)
    return found


def write(folder: Path, items: Sequence[Rule | Check]) -> list[Path]:
    """Write the pages, delete those of former areas, and return the changed files. Raises OSError."""
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
            regular_file.replace(path, text.encode("utf-8"), mode=0o644)
            changed.append(path)
    return changed


def _render(template: str, **values: Any) -> str:
    return text_templates(__package__, template).render(
        **values,
        header=_HEADER,
        cell=lambda text: _prose(text).replace("|", "\\|"),
        first=_first_paragraph,
        link_to=_link_to,
        prose=_prose,
        stage_of=_stage_of,
        title_of=_title,
    )


def _facts(check: Check) -> str:
    return "; ".join(dict.fromkeys(map(_subject, check.probes))) or "none"


def _subject(probe: Callable[..., object]) -> str:
    """Return the first sentence of a probe's docstring, which describes what it observes."""
    return _first_paragraph(inspect.getdoc(probe) or probe_name(probe)).split(". ")[0].rstrip(".")


def _sections(doc: str) -> Iterator[tuple[str, str]]:
    pieces = _HEADING.split(inspect.cleandoc(doc))
    return zip(pieces[1::2], map(inspect.cleandoc, pieces[2::2]), strict=True)


def _first_paragraph(doc: str) -> str:
    return " ".join(inspect.cleandoc(doc).partition("\n\n")[0].split())


def _prose(text: str) -> str:
    """Return the text with all Markdown markup escaped except back quotes."""
    pieces = _CODE.split(text)
    return "".join(piece if number % 2 else re.sub(r"([*<\[])", r"\\\1", piece) for number, piece in enumerate(pieces))


def _title(area: str) -> str:
    title = registry.areas().get(area, area)
    return title[:1].upper() + title[1:]


def _link_to(item: Rule | Check) -> str:
    """Return a link to the heading of a rule or check, with GitHub's anchor."""
    meta = item.meta
    return f"[{meta.id}]({meta.area}.md#{meta.id.lower()}-{meta.name})"

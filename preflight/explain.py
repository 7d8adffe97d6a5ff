"""What rules and checks there are, and what each is for, from their own docstrings."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence

from preflight import catalog
from preflight.errors import UsageError
from preflight.judgement import Check, Meta, Rule


def everything() -> tuple[Rule | Check, ...]:
    """All rules and checks, by id."""
    found: list[Rule | Check] = [*catalog.rules(), *catalog.checks()]
    return tuple(sorted(found, key=lambda item: item.meta.id))


def explanation(name: str) -> str:
    """The docstring of the rule or check with this id or name, with its metadata above; of an area, its list.

    Raises:
        UsageError: there is none; the message names the nearest.
    """
    known: dict[str, Rule | Check] = {}
    for item in everything():
        known[item.meta.id] = known[item.meta.name] = item
    chosen = known.get(name.upper()) or known.get(name.lower())
    area = [item for item in everything() if item.meta.area == name.upper()]
    if chosen is None and area:
        return _rows(area).rstrip("\n")
    if chosen is None:
        near = catalog.nearest(name, known)
        hint = f"; the nearest: {', '.join(near)}" if near else ""
        raise UsageError(f"there is no rule or check {name!r}{hint} (preflight rules lists them all)")
    meta = chosen.meta
    kind = "rule: reads files only" if isinstance(chosen, Rule) else f"check: {chosen.when} stage"
    facts = (
        kind,
        meta.severity.value,
        f"confidence {meta.confidence.value}",
        f"profile {meta.profile}",
        f"since {meta.since}",
        meta.stage,
    )
    return f"{meta.id} {meta.name}\n{' · '.join(facts)}\n\n{inspect.cleandoc(meta.doc)}"


def listing(output: str) -> str:
    """A line each (`text`), or all metadata (`json`)."""
    if output == "json":
        return json.dumps([_as_json(item) for item in everything()], indent=2) + "\n"
    return _rows(everything())


def _rows(items: Sequence[Rule | Check]) -> str:
    rows = [(item.meta, _kind(item)) for item in items]
    width = max((len(meta.name) for meta, _ in rows), default=0)
    lines = [
        f"{meta.id}  {meta.name:<{width}}  {kind:<5}  {meta.severity.value:<7}  {_first_line(meta)}"
        for meta, kind in rows
    ]
    return "\n".join(lines) + "\n" if lines else ""


def _kind(item: Rule | Check) -> str:
    return "lint" if isinstance(item, Rule) else item.when


def _first_line(meta: Meta) -> str:
    return meta.doc.strip().splitlines()[0] if meta.doc.strip() else ""


def _as_json(item: Rule | Check) -> dict[str, object]:
    meta = item.meta
    return {
        "id": meta.id,
        "name": meta.name,
        "when": _kind(item),
        "severity": meta.severity.value,
        "confidence": meta.confidence.value,
        "profile": meta.profile,
        "stage": meta.stage,
        "since": meta.since,
        "fix": meta.fix,
        "applies_to": meta.applies_to,
        "needs": list(meta.needs),
        "evidence": list(meta.evidence),
        "doc": inspect.cleandoc(meta.doc),
    }

"""Write `docs/report.md`: every field of a report, from the docstrings and types of its classes."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight.engine import report
from preflight.model import charts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "report.md"
_HEAD = """# The report, field by field

The output of `--output json`; written from the code by `make docs`. [report.schema.json](report.schema.json) describes
it for validators, and [formats.md](formats.md) what other formats contain. Within a `schema_version`, fields are added
but never removed: ignore fields that you do not know. Every field is always present; unknown values are `null` or
empty.

A sketch:

    {"verdict": "no-go", "exit_code": 1, "findings": [{"id": "WLD001", "severity": "error", "message": "...",
     "locations": [{"path": "run.sh", "line": 3, ...}], "nodes": [], "fingerprint": "..."}], ...}
"""
_PLAIN = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "anything"}
#: The end of a clause in a docstring: a sentence, a part of one, or a list of `field`s.
_CLAUSES = re.compile(r"(?<=\.)\s+|;\s+|,\s+(?=`\w+` )")
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*)$")


@dataclass(frozen=True, slots=True)
class Documented:
    """A class as the page shows it."""

    kind: type
    title: str
    about: str
    fields: tuple[tuple[str, str, str], ...]


def classes(top: type = report.Report) -> tuple[type, ...]:
    """Return the class and every dataclass that its fields lead to, nearest first."""
    found: dict[type, None] = {top: None}
    waiting = [top]
    while waiting:
        for hint in _hints(waiting.pop(0)).values():
            for kind in _dataclasses(hint):
                if kind not in found:
                    found[kind] = None
                    waiting.append(kind)
    return tuple(found)


def documented() -> tuple[Documented, ...]:
    kinds = classes()
    titles = _titles(kinds)
    found = []
    for kind in kinds:
        hints, meanings = _hints(kind), descriptions(kind)
        rows = tuple(
            (f.name, _format_type(hints[f.name], titles), meanings.get(f.name, "")) for f in dataclasses.fields(kind)
        )
        found.append(Documented(kind, titles[kind], _prose(kind)[0], rows))
    return tuple(found)


def descriptions(kind: type) -> dict[str, str]:
    """Return the description of each field: from `Args:`, else from the sentence of the docstring with its name."""
    found = dict(_entries(inspect.getdoc(kind) or ""))
    clauses = [clause for text in (*_prose(kind), *found.values()) for clause in _CLAUSES.split(text)]
    for field in dataclasses.fields(kind):
        naming = [clause.rstrip(".") + "." for clause in clauses if f"`{field.name}`" in clause]
        if field.name not in found and naming:
            found[field.name] = " ".join(naming)
    return found


def page() -> str:
    parts = [_HEAD]
    for one in documented():
        parts.append(f"\n## {one.title}\n\n{_cell(one.about)}\n\n| field | type | what it is |\n|---|---|---|\n")
        parts.extend(f"| `{name}` | {kind} | {_cell(meanings)} |\n" for name, kind, meanings in one.fields)
    return "".join(parts)


def _entries(doc: str) -> Iterator[tuple[str, str]]:
    """Yield the fields below `Args:`, each with its text."""
    names: list[str] = []
    text: list[str] = []
    for line in [*doc.partition("Args:\n")[2].split("\n"), ""]:
        entry = _ENTRY.match(line)
        if names and (entry or not line.startswith(" " * 5)):
            yield from ((name, " ".join(text)) for name in names)
            names = []
        if entry:
            names, text = entry[1].split(", "), [entry[2]]
        elif names:
            text.append(line.strip())
        elif line and not line.startswith(" "):
            return


def _prose(kind: type) -> list[str]:
    """Return the paragraphs of a docstring before `Args:`."""
    doc = (inspect.getdoc(kind) or "").partition("Args:\n")[0]
    return [" ".join(paragraph.split()) for paragraph in doc.split("\n\n") if paragraph.strip()]


def _hints(kind: type) -> dict[str, Any]:
    # The classes of charts are not imported with the report.
    known = {**vars(charts), **vars(sys.modules[kind.__module__])}
    return typing.get_type_hints(kind, globalns=known)


def _dataclasses(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _dataclasses(part)


def _titles(kinds: Sequence[type]) -> dict[type, str]:
    """Return the title of each class; a second class with the same name gets its module's name."""
    found: dict[type, str] = {}
    for kind in kinds:
        taken = kind.__name__ in found.values()
        found[kind] = f"{kind.__name__} of {kind.__module__.rpartition('.')[2]}" if taken else kind.__name__
    return found


def _format_type(hint: Any, titles: Mapping[type, str]) -> str:
    """Return a type in JSON terms."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_format_type(part, titles) for part in parts))
    if origin is tuple:
        return f"list of {_format_type(parts[0], titles)}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object of {_format_type(parts[1], titles)}"
    if isinstance(hint, type) and issubclass(hint, enum.IntEnum):
        return " or ".join(f"`{member.value}`" for member in hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " or ".join(f"`{member.value}`" for member in hint)
    title = titles[hint]
    return f"[{title}](#{title.lower().replace(' ', '-')})"


def _cell(text: str) -> str:
    meanings = text[:1].upper() + text[1:] if text[:1] != "`" else text
    return meanings.replace("|", "\\|")


def main() -> int:
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())

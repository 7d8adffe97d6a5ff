"""What a configuration file may say: its keys, their types and meanings, and what is wrong with any other."""

from __future__ import annotations

import datetime
import functools
import typing
from collections.abc import Mapping
from dataclasses import field, fields
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

from preflight.document import schema_of
from preflight.lazy.dataclasses import dataclass
from preflight.toml_places import KeyPath, inside

#: More mistakes than this are not told of one document.
_MOST_PROBLEMS = 100

SeverityName = Literal["error", "warning", "info"]


def _spelled(name: str) -> str:
    return name.replace("_", "-")


#: Taken by pydantic from the class: unknown keys are refused, and keys are written with hyphens.
SPELLED: Any = {"extra": "forbid", "alias_generator": _spelled}


@dataclass(frozen=True, slots=True)
class Waive:
    """A rule or check that this site accepts, for a reason."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    rule: Annotated[str, "Id or name of the rule or check."]
    reason: Annotated[str, "Why it is accepted; it stands in every report."]
    paths: Annotated[list[str], "Patterns, as in .gitignore, of the files it holds for; all without it."] = field(
        default_factory=list
    )
    hosts: Annotated[list[str], "Nodes it holds for, by name or range (node[1-4]); all without it."] = field(
        default_factory=list
    )
    owner: Annotated[str | None, "Who answers for it."] = None
    expires: Annotated[datetime.date | None, "The last day on which it holds: 2026-12-31."] = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The keys of preflight.toml, and of [tool.preflight] in pyproject.toml."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    select: Annotated[list[str], "Only these rules and checks, by id, name or area."] = field(default_factory=list)
    ignore: Annotated[list[str], "Not these rules and checks, by id, name or area."] = field(default_factory=list)
    profile: Annotated[Literal["gate", "default", "pedantic"] | None, "How strict."] = None
    severity: Annotated[
        dict[str, SeverityName],
        "How bad findings are, by id, name or area; one that is not sure enough is a warning at most.",
    ] = field(default_factory=dict)
    fail_on: Annotated[SeverityName | None, "The mildest finding that makes the verdict no-go."] = None
    allow_incomplete: Annotated[bool | None, "Exit 0 instead of 3 when something could not be told."] = None
    exclude: Annotated[list[str], "Patterns, as in .gitignore, of files that are not looked for in folders."] = field(
        default_factory=list
    )
    per_file_ignores: Annotated[dict[str, list[str]], "Rules that do not count in files, by pattern."] = field(
        default_factory=dict
    )
    mandatory: Annotated[
        list[str], "Rules and checks that run whatever is ignored, and whose findings nothing suppresses."
    ] = field(default_factory=list)
    baseline: Annotated[str | None, "File of accepted findings, relative to this one."] = None
    site_rules: Annotated[
        list[str], "Files of site rules, relative to this one; only in a configuration named with --config."
    ] = field(default_factory=list)
    output: Annotated[str | None, "Format of the report on standard output."] = None
    price_per_gpu_hour: Annotated[float | None, "What an hour of a GPU costs, to tell what a no-go saved."] = None
    waive: Annotated[list[Waive], "What this site accepts, each with a reason."] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong in a document, and at which of its keys or values."""

    path: KeyPath
    message: str
    at_value: bool = True


def validated(document: Mapping[str, Any]) -> Settings | list[Problem]:
    """The settings a document holds, or everything that is wrong with it."""
    from pydantic import ValidationError

    try:
        settings = _adapter().validate_python(document)
    except ValidationError as error:
        return [
            problem_of(one, Settings, document)
            for one in error.errors(include_url=False, include_context=True)[:_MOST_PROBLEMS]
        ]
    assert isinstance(settings, Settings)
    # What pydantic would take for true or false as well: "yes", 1.
    said = document.get("allow-incomplete", False)
    if not isinstance(said, bool):
        return [
            Problem(("allow-incomplete",), f"`allow-incomplete` is expected to be true or false, not {_kind(said)}")
        ]
    return settings


def problem_of(error: Any, top: type, document: Mapping[str, Any]) -> Problem:
    """One complaint of pydantic in our words, for a document that ought to be a `top`."""
    # Members of unions are named in the location, which is no part of the document.
    path = tuple(step for step in error["loc"] if step != "[key]")
    kind, name = error["type"], ".".join(str(step) for step in path)
    if kind == "unexpected_keyword_argument" or kind == "extra_forbidden":
        return Problem(path, _unknown_key(str(path[-1]), _keys_at(top, path[:-1])), at_value=False)
    if kind in ("missing", "missing_argument"):
        where = f" in [[{_table(path)}]]" if len(path) > 1 else ""
        return Problem(path[:-1], f"`{path[-1]}` is missing{where}", at_value=False)
    seen = _kind(inside(document, path))
    if kind == "literal_error":
        expected = error["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        return Problem(path, f"`{name}` is one of {expected}, not {_shown(error['input'])}")
    expected = {
        "string_type": "text",
        "list_type": "a list",
        "dict_type": "a table",
        "bool_type": "true or false",
        "bool_parsing": "true or false",
        "date_from_datetime_parsing": "a date (2026-12-31)",
        "date_parsing": "a date (2026-12-31)",
        "date_type": "a date (2026-12-31)",
        "int_type": "a whole number",
        "float_type": "a number",
        "float_parsing": "a number",
    }.get(kind, "a table" if kind.startswith("dataclass") else "")
    if expected:
        return Problem(path, f"`{name}` is expected to be {expected}, not {seen}")
    return Problem(path, f"`{name}`: {error['msg'].removeprefix('Value error, ')}")


def _unknown_key(key: str, known: list[str]) -> str:
    near = get_close_matches(key.lower().replace("_", "-"), known, n=1, cutoff=0.6)
    return f"there is no key `{key}` here; " + (
        f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
    )


def _keys_at(top: type, path: KeyPath) -> list[str]:
    """The keys of the class that describes what stands at `path`."""
    found: Any = top
    for step in path:
        if isinstance(step, str) and hasattr(found, "__dataclass_fields__"):
            hints = typing.get_type_hints(found)
            found = next((hints[f.name] for f in fields(found) if _spelled(f.name) == step), None)
        found = next((t for t in typing.get_args(found) if hasattr(t, "__dataclass_fields__")), found)
    return [_spelled(f.name) for f in fields(found)] if hasattr(found, "__dataclass_fields__") else []


def _table(path: KeyPath) -> str:
    return ".".join(str(step) for step in path[:-1] if isinstance(step, str))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return _shown(value)
    if isinstance(value, datetime.date):
        return str(value)
    return "a list" if isinstance(value, list) else "a table" if isinstance(value, Mapping) else "nothing"


def _shown(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:59] + "…"


@functools.cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Settings)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a configuration file."""
    return described(_adapter(), "preflight configuration", Settings, Waive)


def described(adapter: Any, title: str, top: type, *inner: type) -> dict[str, Any]:
    """The schema of what is read as a `top`, with the meanings that the classes give their keys."""
    found = schema_of(adapter, title, mode="validation")
    for kind in (top, *inner):
        properties = found["properties"] if kind is top else found["$defs"][kind.__name__]["properties"]
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            if typing.get_origin(hint) is Annotated:
                properties[_spelled(name)]["description"] = typing.get_args(hint)[1]
    return found

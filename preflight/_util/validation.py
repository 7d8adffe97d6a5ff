"""Validation by pydantic, and the errors in a document that a user wrote, with their locations."""

from __future__ import annotations

import datetime
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from preflight._util.json_output import schema_of
from preflight._util.sequences import join_some, value_at
from preflight._util.toml import KeyPath
from preflight._util.usage_error import similar_names

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@functools.cache
def type_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's validator of a type hint, imported and built on first use; it raises ValueError."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def format_errors(error: ValueError) -> str:
    """Format a validator's first three errors as `place: message`."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [": ".join(filter(None, (_path(problem["loc"]), problem["msg"]))) for problem in problems]
    return join_some(shown, 3, "; ")


def _path(location: tuple[int | str, ...]) -> str:
    """Format a path such as `facts[3].request.node`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")


def hyphenated(name: str) -> str:
    return name.replace("_", "-")


#: Used by pydantic: unknown keys are rejected, and keys are written with hyphens.
HYPHENATED: Any = {"extra": "forbid", "alias_generator": hyphenated}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a document, and the keys or indexes that lead to it."""

    path: KeyPath
    message: str
    at_value: bool = True


def problem_of(error: Any, top: type, document: Mapping[str, Any]) -> Problem:
    """Translate one pydantic error about a document that should be a `top`."""
    # The location includes names of union members, which are not part of the document.
    path = tuple(step for step in error["loc"] if step != "[key]")
    kind, name = error["type"], ".".join(str(step) for step in path)
    if kind == "unexpected_keyword_argument" or kind == "extra_forbidden":
        return Problem(path, _unknown_key(str(path[-1]), _keys_at(top, path[:-1])), at_value=False)
    if kind in ("missing", "missing_argument"):
        where = f" in [[{_table(path)}]]" if len(path) > 1 else ""
        return Problem(path[:-1], f"`{path[-1]}` is missing{where}", at_value=False)
    seen = kind_of(value_at(document, *path))
    if kind == "literal_error":
        expected = error["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        return Problem(path, f"`{name}` must be one of {expected}, not {_format_value(error['input'])}")
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
        return Problem(path, f"`{name}` must be {expected}, not {seen}")
    return Problem(path, f"`{name}`: {error['msg'].removeprefix('Value error, ')}")


def _unknown_key(key: str, known_keys: list[str]) -> str:
    near = similar_names(key.lower().replace("_", "-"), known_keys)
    return f"unknown key `{key}`; " + (f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known_keys)}")


def _keys_at(top: type, path: KeyPath) -> list[str]:
    """Return the keys of the class that describes the value at `path`."""
    found: Any = top
    for step in path:
        if isinstance(step, str) and hasattr(found, "__dataclass_fields__"):
            hints = typing.get_type_hints(found)
            found = next((hints[f.name] for f in fields(found) if hyphenated(f.name) == step), None)
        found = next((t for t in typing.get_args(found) if hasattr(t, "__dataclass_fields__")), found)
    return [hyphenated(f.name) for f in fields(found)] if hasattr(found, "__dataclass_fields__") else []


def _table(path: KeyPath) -> str:
    return ".".join(str(step) for step in path[:-1] if isinstance(step, str))


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return _format_value(value)
    if isinstance(value, datetime.date):
        return str(value)
    return "a list" if isinstance(value, list) else "a table" if isinstance(value, Mapping) else "nothing"


def _format_value(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:59] + "…"


def describe_schema(adapter: Any, title: str, top: type, *inner: type) -> dict[str, Any]:
    """Return the schema of input for a `top`, with the descriptions of the keys in its classes."""
    found = schema_of(adapter, title, mode="validation")
    for kind in (top, *inner):
        properties = found["properties"] if kind is top else found["$defs"][kind.__name__]["properties"]
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            if typing.get_origin(hint) is Annotated:
                properties[hyphenated(name)]["description"] = typing.get_args(hint)[1]
    return found

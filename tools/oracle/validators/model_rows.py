"""Rows for the values that pydantic models accept for each key: kind, bounds, choices, and the key that replaces it.

Runs in the environment of a framework, so it imports only pydantic and the standard library.
"""

import enum
import pathlib
import types
import typing

from pydantic import BaseModel

KINDS = {int: "int", float: "float", bool: "bool", str: "str", list: "list", dict: "section", pathlib.Path: "path"}


def rows(section, model):
    """Yield the rows of a section and its subsections; the name of the top section is empty."""
    if section:
        yield {"key": section, "kind": "section", "closed": model.model_config.get("extra") == "forbid"}
    for name, field in model.model_fields.items():
        key = f"{section}.{name}" if section else name
        inner = [item for item in (field.annotation, *typing.get_args(field.annotation)) if isinstance(item, type)]
        nested = next((item for item in inner if issubclass(item, BaseModel)), None)
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        row = {"key": key, "nullable": type(None) in inner}
        if field.alias:
            row["alias"] = f"{section}.{field.alias}" if section else field.alias
        if extra.get("deprecated") and extra.get("new_param") and extra.get("set_new_param", True):
            row["replaced_by"] = f"{section}.{extra['new_param']}"
        if nested is not None:
            others = [item for item in _options(field) if item is not nested]
            nested_rows = list(rows(key, nested))
            nested_rows[0].update({**row, "nullable": row["nullable"]})
            if others:
                nested_rows[0]["kind"] = "any"
            yield from nested_rows
            continue
        row.update(kind_of(field))
        yield row


def _options(field):
    """Return the types that a field accepts, without None."""
    found = [field.annotation]
    while any(typing.get_origin(item) in (typing.Union, types.UnionType, typing.Annotated) for item in found):
        opened = []
        for item in found:
            origin = typing.get_origin(item)
            if origin is typing.Annotated:
                opened.append(typing.get_args(item)[0])
            elif origin in (typing.Union, types.UnionType):
                opened.extend(typing.get_args(item))
            else:
                opened.append(item)
        found = opened
    return [item for item in found if item is not type(None)]


def _kind_of_type(item):
    """Return the kind of a type; `any` if it has none."""
    found = typing.get_origin(item) or item
    if isinstance(found, type) and issubclass(found, str):
        return "str"
    return KINDS.get(found, "any") if isinstance(found, type) else "any"


def kind_of(field):
    """Return kind, choices and bounds of a field; `any` if they cannot be expressed."""
    options = _options(field)
    literals = [item for item in options if typing.get_origin(item) is typing.Literal]
    words = [getattr(value, "value", value) for item in literals for value in typing.get_args(item)]
    plain = [item for item in options if item not in literals]
    if len(plain) == 2 and set(plain) == {int, float}:
        plain = [float]
    if not plain and words:
        return {"kind": KINDS.get(type(words[0]), "any"), "choices": words}
    enums = [item for item in plain if isinstance(item, type) and issubclass(item, enum.Enum)]
    if len(plain) == len(enums) > 1:
        values = [member.value for item in enums for member in item]
        return {"kind": "str", "choices": [*dict.fromkeys(values), *words]}
    if len(plain) == 2 and not words:
        # A text, or one of these; an enumeration of texts is one, too.
        kinds = [_kind_of_type(item) for item in plain]
        for one, other in (kinds, reversed(kinds)):
            if one == "str" and other in ("str", "list", "section"):
                return {"kind": one} if other == one else {"kind": one, "also": other}
            if one == "bool" and other == "str":
                return {"kind": one, "also": other}
    if len(plain) != 1:
        return {"kind": "any"}
    found = typing.get_origin(plain[0]) or plain[0]
    if not isinstance(found, type):
        return {"kind": "any"}
    row = {"kind": KINDS.get(found, "any")}
    if issubclass(found, enum.Enum):
        values = [member.value for member in found]
        if not all(isinstance(value, str | int) for value in values):
            return {"kind": "any"}
        row = {"kind": KINDS.get(type(values[0]), "any"), "choices": [*values, *words]}
    elif words and row["kind"] != "any":
        row["words"] = words
    for item in field.metadata:
        for theirs, ours in (("ge", "minimum"), ("gt", "above"), ("le", "maximum")):
            if getattr(item, theirs, None) is not None:
                row[ours] = getattr(item, theirs)
    return row

"""pydantic's validators for dataclasses, without what it takes pydantic to get ready.

Its core validates by a description of what is expected. pydantic finds that description out from annotations, with more
care than a document of ours needs: that takes a tenth of a second for what one check reads, and most of another to be
imported. Here it is written from the few kinds of annotations that our documents and facts consist of; a class with any
other is left to pydantic. What comes of either is the same, complaints included, which a test holds them to.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

#: What the core calls these.
_PLAIN = {Any: "any", object: "any", str: "str", int: "int", float: "float", bool: "bool", type(None): "none"}


class _Unknown(Exception):
    """An annotation that is left to pydantic."""


@functools.cache
def validator(kind: Any, *, again: bool = False) -> Any:
    """What takes JSON (`validate_json`) or plain values (`validate_python`) apart as a `kind`, which may be any hint.

    `again` is for what a stranger made: instances of dataclasses are looked through as well, and numbers are finite.
    Both raise ValueError, that is pydantic's ValidationError, with the places that are wrong.
    """
    settings = {"revalidate_instances": "always", "allow_inf_nan": False} if again else {}
    writer = _Writer(settings)
    try:
        schema = writer.schema(kind)
    except (_Unknown, NameError):
        from pydantic import TypeAdapter

        # A class may have no configuration given to it; what is made again are our own, which are written above.
        return TypeAdapter(kind).validator
    from pydantic_core import SchemaValidator

    whole = {"type": "definitions", "schema": schema, "definitions": list(writer.definitions.values())}
    return SchemaValidator(whole, settings)  # type: ignore[arg-type]


class _Writer:
    """Writes the core's description of a hint; each dataclass stands in `definitions` once."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self.definitions: dict[type, dict[str, Any]] = {}

    def schema(self, hint: Any) -> dict[str, Any]:
        """Raises _Unknown."""
        if isinstance(hint, typing.Hashable) and hint in _PLAIN:
            return {"type": _PLAIN[hint]}
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union(inner)
        if origin is typing.Literal:
            return {"type": "literal", "expected": list(inner)}
        if origin is tuple and len(inner) == 2 and inner[1] is ...:
            return {"type": "tuple", "items_schema": [self.schema(inner[0])], "variadic_item_index": 0}
        if origin is tuple and inner:
            return {"type": "tuple", "items_schema": [self.schema(item) for item in inner]}
        if origin is list:
            return {"type": "list", "items_schema": self.schema(inner[0])}
        if origin in (dict, Mapping):
            keys, values = map(self.schema, inner)
            return {"type": "dict", "keys_schema": keys, "values_schema": values}
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _enumeration(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self._dataclass(hint)
        raise _Unknown(hint)

    def _union(self, choices: tuple[Any, ...]) -> dict[str, Any]:
        found = [self.schema(choice) for choice in choices if choice is not type(None)]
        one = found[0] if len(found) == 1 else {"type": "union", "choices": found}
        return {"type": "nullable", "schema": one} if type(None) in choices else one

    def _dataclass(self, kind: type) -> dict[str, Any]:
        ref = f"{kind.__module__}.{kind.__qualname__}:{id(kind)}"
        if kind not in self.definitions:
            self.definitions[kind] = {}
            hints = typing.get_type_hints(kind, include_extras=True)
            fields = dataclasses.fields(kind)
            arguments = {
                "type": "dataclass-args",
                "dataclass_name": kind.__name__,
                "fields": [self._field(field, hints[field.name]) for field in fields],
            }
            self.definitions[kind].update(
                type="dataclass",
                cls=kind,
                ref=ref,
                schema=arguments,
                fields=[field.name for field in fields],
                post_init=hasattr(kind, "__post_init__"),
                # Those of a parent as well, which no `__dict__` of an instance would fill.
                slots=hasattr(kind, "__slots__"),
                config={"title": kind.__name__, **self._settings},
            )
        return {"type": "definition-ref", "schema_ref": ref}

    def _field(self, field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
        if not field.init:
            raise _Unknown(field.name)
        schema = self.schema(hint)
        if field.default is not dataclasses.MISSING:
            schema = {"type": "default", "schema": schema, "default": field.default}
        elif field.default_factory is not dataclasses.MISSING:
            schema = {"type": "default", "schema": schema, "default_factory": field.default_factory}
        return {"type": "dataclass-field", "name": field.name, "schema": schema}


def _enumeration(kind: type[enum.Enum]) -> dict[str, Any]:
    described: dict[str, Any] = {"type": "enum", "cls": kind, "members": list(kind)}
    # In this order, for the core tells no other kinds apart.
    plain = next((name for base, name in ((int, "int"), (str, "str"), (float, "float")) if issubclass(kind, base)), "")
    return {**described, "sub_type": plain} if plain else described

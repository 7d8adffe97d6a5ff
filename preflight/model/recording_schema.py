"""The schema of a saved recording as classes, which validate it and generate its JSON Schema."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal

from preflight.model.job import Claim
from preflight.model.recording import SCHEMA_VERSION, Recording
from preflight.model.requests import Request, Unavailable

#: Fields of a request that differ between nodes; all others are shared by the nodes that get the request.
OWN = ("node", "params", "peers")
SHARED = tuple(item.name for item in dataclasses.fields(Request) if item.name not in (*OWN, "because"))
#: Fields of a recording other than its facts.
REST = tuple(item.name for item in dataclasses.fields(Recording) if item.name not in ("facts", "schema_version"))


@functools.cache
def document() -> Any:
    """The class of a document of the current format."""
    series = build_class(
        Request,
        SHARED,
        Series=(
            ("because", tuple[int, ...], ()),
            ("provenance", str, ""),
            ("nodes", tuple[str, ...], dataclasses.MISSING),
            ("params", tuple[int, ...], dataclasses.MISSING),
            ("peers", tuple[tuple[str, ...], ...], ()),
            ("values", tuple[int | None, ...], dataclasses.MISSING),
            ("unavailable", dict[int, Unavailable], dict),
            ("started_s", tuple[float, ...], dataclasses.MISSING),
            ("finished_s", tuple[float, ...], dataclasses.MISSING),
        ),
    )
    return build_class(
        Recording,
        REST,
        Recording=(
            ("schema_version", Literal[SCHEMA_VERSION], SCHEMA_VERSION),
            ("claims", tuple[Claim, ...], ()),
            ("params", tuple[dict[str, Any], ...], ()),
            ("values", tuple[Any, ...], ()),
            ("facts", tuple[series, ...], ()),  # type: ignore[valid-type]
        ),
    )


def build_class(model: type[Any], names: Sequence[str], **more: Sequence[tuple[str, Any, Any]]) -> type:
    """A class with these fields of `model` and additional ones, each with a type and a default (or its factory)."""
    ((name, others),) = more.items()
    replaced = {other[0] for other in others}
    hints = typing.get_type_hints(model)
    fields: list[tuple[str, Any, Any]] = [
        (item.name, hints[item.name], _same_default(item))
        for item in dataclasses.fields(model)
        if item.name in names and item.name not in replaced
    ]
    fields += [(other, kind, _default(value)) for other, kind, value in others]
    return dataclasses.make_dataclass(name, fields, frozen=True, slots=True, kw_only=True)


def _default(value: Any) -> Any:
    if value is dict:
        return field(default_factory=dict)
    return field() if value is dataclasses.MISSING else field(default=value)


def _same_default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return field(default_factory=item.default_factory)
    return field() if item.default is dataclasses.MISSING else field(default=item.default)

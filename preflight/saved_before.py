"""The earlier forms of a saved recording: the first, which had no tables, and the second, which had a line a fact."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from preflight.job import Claim
from preflight.lazy.validators import validator
from preflight.observation import FactRecord, Unavailable
from preflight.recording import SCHEMA_VERSION, Recording
from preflight.request import Request
from preflight.saved_shape import REST, made_of

_OWN = ("node", "peers", "because")
_ASKED = tuple(item.name for item in dataclasses.fields(Request) if item.name not in _OWN)


def read_first(data: bytes) -> Recording:
    """The recording in a document of the first form. Raises ValueError where the document is wrong."""
    found: Recording = validator(Recording).validate_json(data)
    return dataclasses.replace(found, facts=tuple(found.facts), schema_version=SCHEMA_VERSION)


def read_second(data: bytes) -> Recording:
    """The recording in a document of the second form. Raises ValueError where the document is wrong."""
    document = validator(_second()).validate_json(data)
    return Recording(**{name: getattr(document, name) for name in REST}, facts=tuple(_facts(document, document.claims)))


def row_of(table: Sequence[Any], row: int, name: str, place: str) -> Any:
    """That row of a table of the document, for what stands at `place`. Raises ValueError where there is none."""
    if not 0 <= row < len(table):
        raise ValueError(f"{place}: there is no row {row} in {name}, which has {len(table)}")
    return table[row]


def _facts(document: Any, claims: Sequence[Claim]) -> Iterator[FactRecord]:
    because = [
        tuple(row_of(claims, row, "claims", f"asked[{number}].because") for row in asked.because)
        for number, asked in enumerate(document.asked)
    ]
    for number, fact in enumerate(document.facts):
        asked = row_of(document.asked, fact.asked, "asked", f"facts[{number}].asked")
        shared = {name: getattr(asked, name) for name in _ASKED}
        request = Request(node=fact.node, peers=fact.peers, because=because[fact.asked], **shared)
        value = None if fact.value is None else row_of(document.values, fact.value, "values", f"facts[{number}].value")
        yield FactRecord(request, value, fact.unavailable, fact.started_s, fact.finished_s, asked.provenance)


@functools.cache
def _second() -> Any:
    asked = made_of(Request, _ASKED, Asked=(("because", tuple[int, ...], ()), ("provenance", str, "")))
    fact = made_of(
        Request,
        ("node", "peers"),
        Fact=(
            ("asked", int, dataclasses.MISSING),
            ("value", int | None, None),
            ("unavailable", Unavailable | None, None),
            ("started_s", float, 0.0),
            ("finished_s", float, 0.0),
        ),
    )
    return made_of(
        Recording,
        REST,
        Recording=(
            ("schema_version", Literal[2], 2),
            ("claims", tuple[Claim, ...], ()),
            ("asked", tuple[asked, ...], ()),  # type: ignore[valid-type]
            ("values", tuple[Any, ...], ()),
            ("facts", tuple[fact, ...], ()),  # type: ignore[valid-type]
        ),
    )

"""Earlier formats of a saved recording: the first, which had no tables, and the second, which had one line per fact."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from preflight._util.validation import type_adapter
from preflight.model.job import Claim
from preflight.model.recording import SCHEMA_VERSION, Recording
from preflight.model.recording_schema import REST, build_class
from preflight.model.requests import FactRecord, Request, Unavailable

_OWN = ("node", "peers", "because")
_ASKED = tuple(item.name for item in dataclasses.fields(Request) if item.name not in _OWN)


#: Modules whose probes have other names in older recordings.
_MOVED = {
    "preflight_checks.probes.launching": "preflight_checks.probes.launcher_tools",
    "reference_trainer.collective": "reference_trainer.collective.rank",
    "reference_trainer.paddle.server": "reference_trainer.paddle.paddle_server",
    "reference_trainer.paddle.worker": "reference_trainer.paddle.paddle_worker",
}


#: Keys that had other names before the fourth format, in the recording and in parameters of ranks.
_RENAMED_KEYS = {"wish": "smoke_options", "drill": "injected_fault"}


def with_current_probes(data: bytes) -> bytes:
    """Return the document of a recording with every probe under its current name."""
    for old, new in _MOVED.items():
        data = data.replace(f'"{old}:'.encode(), f'"{new}:'.encode())
    return data


def with_current_keys(data: bytes) -> bytes:
    """Return a document of the first three formats with every key under its current name."""
    for old, new in _RENAMED_KEYS.items():
        data = data.replace(f'"{old}":'.encode(), f'"{new}":'.encode())
    return data


def read_first(data: bytes) -> Recording:
    """Parse a document of the first format. Raises ValueError if the document is invalid."""
    found: Recording = type_adapter(Recording).validate_json(data)
    return dataclasses.replace(found, facts=tuple(found.facts), schema_version=SCHEMA_VERSION)


def read_second(data: bytes) -> Recording:
    """Parse a document of the second format. Raises ValueError if the document is invalid."""
    document = type_adapter(_second()).validate_json(data)
    return Recording(**{name: getattr(document, name) for name in REST}, facts=tuple(_facts(document, document.claims)))


def row_of(table: Sequence[Any], row: int, name: str, place: str) -> Any:
    """That row of a table of the document, for the reference at `place`. Raises ValueError if it does not exist."""
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
    asked = build_class(Request, _ASKED, Asked=(("because", tuple[int, ...], ()), ("provenance", str, "")))
    fact = build_class(
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
    return build_class(
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

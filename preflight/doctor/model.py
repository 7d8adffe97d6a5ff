"""The whole of an examination, in one versioned shape that is printed and that programs read."""

from __future__ import annotations

from typing import Any

from preflight.document import schema_of, to_bytes
from preflight.examination import Look
from preflight.lazy.dataclasses import dataclass

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Examination:
    """What was looked at, in a fixed order.

    `lint`, `check` and `smoke` say whether the verb can do anything here; `ways` are the executors that can be used.
    `exit_code` is 0 unless nothing at all can be done.
    """

    version: str
    looks: tuple[Look, ...]
    lint: bool
    check: bool
    smoke: bool
    ways: tuple[str, ...]
    exit_code: int
    schema_version: int = SCHEMA_VERSION


def to_json(examination: Examination) -> bytes:
    """The examination as a JSON document."""
    return to_bytes(examination, indent=2)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the JSON document."""
    from pydantic import TypeAdapter

    return schema_of(TypeAdapter(Examination), "preflight examination")

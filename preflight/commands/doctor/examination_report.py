"""The result of an examination, in one versioned shape that is printed and that programs read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from preflight._util.json_output import schema_of, to_bytes
from preflight.model.doctor_items import DoctorItem

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Examination:
    """The examined items, in a fixed order.

    `lint`, `check` and `smoke` tell whether the command can do anything here; `executors` are the executors that can be
    used. `exit_code` is 0 unless nothing at all can be done.
    """

    version: str
    items: tuple[DoctorItem, ...]
    lint: bool
    check: bool
    smoke: bool
    executors: tuple[str, ...]
    exit_code: int
    schema_version: int = SCHEMA_VERSION


def to_json(examination: Examination) -> bytes:
    """Return the examination as a JSON document."""
    return to_bytes(examination, indent=2)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of that document."""
    from pydantic import TypeAdapter

    return schema_of(TypeAdapter(Examination), "preflight examination")

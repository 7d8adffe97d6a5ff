"""Recordings, facts and charts are validated by pydantic, at every depth, with the locations of errors."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from preflight._util.validation import format_errors, type_adapter
from preflight.model.charts import Bar, Bars, Cell, Column, Matrix, Row, Table
from preflight.model.job import Job
from preflight.model.recording import Recording
from preflight.model.recording_io import document_class
from preflight.plugins import registry


def return_types() -> dict[str, Any]:
    """The return type of every probe."""
    found: dict[str, Any] = {}
    for check in registry.checks():
        for probe in check.probes:
            function = inspect.unwrap(probe)
            found[f"{function.__module__}:{function.__qualname__}"] = typing.get_type_hints(function)["return"]
    return found


RETURN_TYPES = return_types()


def test_pydantic_can_validate_the_return_type_of_every_probe() -> None:
    for kind in RETURN_TYPES.values():
        adapter = type_adapter(kind)
        assert adapter is type_adapter(kind)
        with pytest.raises(ValidationError):
            adapter.validate_json('[[["?"]]]')


@pytest.mark.parametrize("kind", [document_class(), Recording, tuple[Job, ...]], ids=["document", "recording", "jobs"])
def test_invalid_documents_are_rejected_with_the_location(kind: Any) -> None:
    text = json.dumps([{"name": 3}] if kind == tuple[Job, ...] else {"jobs": [{"name": 3}]})
    with pytest.raises(ValueError) as caught:
        type_adapter(kind).validate_json(text)
    assert "[0].name: Input should be a valid string" in format_errors(caught.value)


def table(value: Any) -> Table:
    return Table("t", "title", "note", (Column("size"),), (Row("node1", (Cell(value),)),))


@pytest.mark.parametrize(
    ("chart", "place"),
    [
        (table(float("nan")), "rows[0].cells[0].value"),
        (table([1]), "rows[0].cells[0].value"),
        (dataclasses.replace(table(1), rows=(Row("node1", "a"),)), "rows[0].cells"),  # type: ignore[arg-type]
        (Matrix("m", "t", "n", "ms", ("a",), ("b",), ({"row": 0},)), "marks[0].column"),  # type: ignore[arg-type]
        (Bars("b", "t", "n", "s", (Bar("x", "a", float("inf")),)), "bars[0].value"),
    ],
)
def test_charts_of_plugins_are_validated_to_the_last_cell(chart: Any, place: str) -> None:
    with pytest.raises(ValueError) as caught:
        type_adapter(type(chart)).validate_python(chart)
    assert format_errors(caught.value).startswith(place)


def test_a_chart_of_lists_becomes_one_of_tuples() -> None:
    loose = dataclasses.replace(table(1), rows=[Row("node1", [Cell(1)])])  # type: ignore[arg-type]
    assert type_adapter(Table).validate_python(loose) == table(1)


class Model(BaseModel):
    """A type that the probe of a plugin may return."""

    size: int


def test_a_plugin_may_use_any_type_that_pydantic_validates() -> None:
    assert type_adapter(Model).validate_json('{"size": 3}') == Model(size=3)
    with pytest.raises(ValidationError):
        type_adapter(list[Model]).validate_python([{"size": "many"}])

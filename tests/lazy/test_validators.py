"""Validators that are written here do what pydantic's own do, with the same complaints."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import typing
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from preflight import catalog
from preflight.exhibit import Bars, Layout, Matrix, Table, Timeline
from preflight.job import Job
from preflight.lazy.validators import validator
from preflight.recording import Recording
from preflight.saved_shape import document

EXHIBITS = (Table, Matrix, Timeline, Bars, Layout)
#: What stands in the place of something of a document that is spoilt.
WRONG: tuple[Any, ...] = (None, True, 0, -1, 1.5, "", "12", "nan", [], [None], {}, {"a": 1}, {"0": []}, 10**30)


def answers() -> dict[str, Any]:
    """What every probe of every check returns."""
    hints: dict[str, Any] = {}
    for check in catalog.checks():
        for probe in check.probes:
            function = inspect.unwrap(probe)
            hints[f"{function.__module__}:{function.__qualname__}"] = typing.get_type_hints(function)["return"]
    return hints


ANSWERS = answers()


@functools.cache
def of(hint: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """JSON of this hint."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    plain = {str: st.text(max_size=3), int: st.integers(), bool: st.booleans(), type(None): st.none()}
    if hint in (Any, object):
        return st.sampled_from(WRONG)
    if hint is float:
        return st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["nan", "inf", 3]))
    if hint in plain:
        return plain[hint]
    if origin is Literal:
        return st.sampled_from(inner)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from([member.value for member in hint])
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {field.name: of(hints[field.name], depth + 1) for field in dataclasses.fields(hint)}
        needed = {f.name for f in dataclasses.fields(hint) if f.default is f.default_factory is dataclasses.MISSING}
        optional = {name: values for name, values in fields.items() if name not in needed}
        return st.fixed_dictionaries({name: fields[name] for name in needed}, optional=optional if depth < 4 else {})
    most = 2 if depth < 4 else 0
    if origin is tuple and inner[-1] is not ...:
        return st.tuples(*(of(item, depth + 1) for item in inner)).map(list)
    if origin in (list, tuple):
        return st.lists(of(inner[0], depth + 1), max_size=most) if most else st.just([])
    if origin in (dict, Mapping):
        keys = of(inner[0]).map(lambda key: key if isinstance(key, str) else json.dumps(key))
        return st.dictionaries(keys, of(inner[1], depth + 1), max_size=most) if most else st.just({})
    return st.one_of(*(of(choice, depth + 1) for choice in inner if depth < 6 or choice is type(None)))


def spoilt(value: Any, draw: Any) -> Any:
    """The same with something wrong somewhere."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 4)) == 0:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: spoilt(value[name], draw)}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], spoilt(value[at], draw), *value[at + 1 :]]
    return draw(st.sampled_from(WRONG))


def outcome(validate: Any, value: Any) -> Any:
    """What comes of it: the value as text, with its types, or the complaints."""
    try:
        return repr(validate(value))
    except ValidationError as error:
        return error.errors(include_url=False, include_context=False)


def same(ours: Any, theirs: Any, value: Any) -> None:
    """Of JSON and of plain values."""
    text = json.dumps(value)
    assert outcome(ours.validate_json, text) == outcome(theirs.validate_json, text)
    assert outcome(ours.validate_python, value) == outcome(theirs.validate_python, value)


def hold(kind: Any, examples: int) -> None:
    """Whole and spoilt documents of this kind come to the same."""
    ours, theirs = validator(kind), TypeAdapter(kind)

    @settings(max_examples=examples)
    @given(st.data())
    def held(data: st.DataObject) -> None:
        value = data.draw(of(kind))
        same(ours, theirs, value)
        same(ours, theirs, spoilt(value, data.draw))

    held()


@pytest.mark.parametrize("probe", sorted(ANSWERS))
def test_answers_of_probes(probe: str) -> None:
    hold(ANSWERS[probe], 25)


@pytest.mark.parametrize("kind", [document(), Recording, tuple[Job, ...]], ids=["document", "recording", "jobs"])
def test_documents(kind: Any) -> None:
    hold(kind, 150)


@dataclasses.dataclass(slots=True)
class Slotted:
    """Has no room for more."""

    size: int


@dataclasses.dataclass
class Roomy(Slotted):
    """Has room, and keeps what its parent holds where that keeps it."""

    names: list[str] = dataclasses.field(default_factory=list)


def test_a_child_without_slots_of_one_with_slots() -> None:
    hold(Roomy, 25)
    assert validator(Roomy).validate_json('{"size": 3}') == Roomy(3)


@pytest.mark.parametrize("kind", EXHIBITS)
def test_exhibits_are_looked_through_again(kind: Any) -> None:
    # A class may have no configuration given to it, a tuple of it may.
    configuration = ConfigDict(revalidate_instances="always", allow_inf_nan=False)
    ours, theirs = validator(kind, again=True), TypeAdapter(tuple[kind], config=configuration)  # type: ignore[valid-type]

    def told(found: Any) -> Any:
        return [{**one, "loc": one["loc"][1:]} for one in found] if isinstance(found, list) else found[1:-2]

    @settings(max_examples=100)
    @given(st.data())
    def held(data: st.DataObject) -> None:
        value = spoilt(data.draw(of(kind)), data.draw)
        assert outcome(ours.validate_python, value) == told(outcome(theirs.validate_python, (value,)))
        with_it = kind(**value) if isinstance(value, dict) and _takes(kind, value) else value
        assert outcome(ours.validate_python, with_it) == told(outcome(theirs.validate_python, (with_it,)))

    held()


def _takes(kind: Any, named: dict[str, Any]) -> bool:
    """Whether it can be made of these, right or wrong."""
    try:
        kind(**named)
    except (TypeError, ValueError, AttributeError):
        return False
    return True


def test_all_that_is_read_is_written_here_and_not_by_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("left to pydantic")

    monkeypatch.setattr("pydantic.TypeAdapter", refuse)
    validator.cache_clear()
    for hint in (*ANSWERS.values(), document(), tuple[Job, ...]):
        validator(hint)
    for kind in EXHIBITS:
        validator(kind, again=True)


class Level(enum.IntEnum):
    """A number."""

    LOW = 1
    HIGH = 2


class Share(float, enum.Enum):
    """A part."""

    HALF = 0.5
    ALL = 1.0


class Word(str, enum.Enum):
    """A text."""

    ONE = "1"


@pytest.mark.parametrize("kind", [Level, Share, Word])
@pytest.mark.parametrize("value", [1, 1.0, "1", "1.0", 0.5, "0.5", True, 3, None])
def test_enumerations_of_numbers_and_texts(kind: Any, value: Any) -> None:
    same(validator(kind), TypeAdapter(kind), value)


class Model(BaseModel):
    """Of a stranger's probe."""

    size: int


def test_a_stranger_may_use_whatever_pydantic_takes() -> None:
    assert validator(Model).validate_json('{"size": 3}') == Model(size=3)
    with pytest.raises(ValidationError):
        validator(list[Model]).validate_python([{"size": "many"}])

"""Records behave like the standard library's dataclasses."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from preflight.agent import record


def made(by: Any) -> Any:
    """The same classes, defined with one of the two modules."""

    @by.dataclass(frozen=True)
    class Base:
        name: str
        sizes: list[int] = by.field(default_factory=list)
        note: str = ""

    @by.dataclass(frozen=True)
    class Derived(Base):
        """With one more."""

        note: str = "more"
        last: float = 0.5

    @by.dataclass
    class Open:
        count: int = 0

    return Base, Derived, Open


BOTH = pytest.mark.parametrize("looked_at", [False, True], ids=["at first", "once looked at"])


@pytest.fixture
def classes(request: pytest.FixtureRequest) -> Any:
    found = made(record)
    if request.node.callspec.params.get("looked_at"):
        assert [len(dataclasses.fields(cls)) for cls in found] == [3, 4, 1]
    return found


@BOTH
def test_values_names_and_defaults(classes: Any, looked_at: bool) -> None:
    base, derived, _ = classes
    assert repr(base("a", note="b")) == repr(made(dataclasses)[0]("a", note="b"))
    assert repr(derived("a", [1])) == repr(made(dataclasses)[1]("a", [1]))
    assert base("a").sizes is not base("a").sizes
    assert (base.note, derived.last, hasattr(base, "sizes")) == ("", 0.5, False)
    assert record.names_of(derived) == ("name", "sizes", "note", "last")


@BOTH
def test_equality_and_hashes(classes: Any, looked_at: bool) -> None:
    base, derived, open_ = classes
    assert base("a") == base("a") != base("b")
    assert base("a", []) != derived("a", [], "", 0.5)
    assert hash(base("a", ())) == hash(base("a", ()))
    with pytest.raises(TypeError):
        hash(open_())
    with pytest.raises(TypeError):
        hash(base("a"))


@BOTH
@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), (("a",), {"name": "b"}), (("a",), {"nothing": 1}), (("a", [], "", 4), {}), ((), {"note": ""})],
)
def test_wrong_arguments_are_rejected(classes: Any, values: Any, named: Any, looked_at: bool) -> None:
    with pytest.raises(TypeError):
        classes[0](*values, **named)


@BOTH
def test_frozen_records_do_not_change(classes: Any, looked_at: bool) -> None:
    base, _, open_ = classes
    value, free = base("a"), open_()
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.name
    free.count = 3
    assert (value.name, free) == ("a", open_(3))


def test_records_created_before_the_conversion_stay_equal() -> None:
    base, derived, _ = made(record)
    before = derived("a", [1])
    assert dataclasses.is_dataclass(derived)
    assert dataclasses.asdict(before) == {"name": "a", "sizes": [1], "note": "more", "last": 0.5}
    assert before == derived("a", [1]) and repr(before) == repr(derived("a", [1]))
    assert dataclasses.replace(before, name="b") == record.replace(before, name="b") == derived("b", [1])
    assert dataclasses.fields(base)[2].default == ""


def test_defining_records_does_not_import_dataclasses() -> None:
    code = (
        "import sys, preflight.agent.record as r; r.dataclass(type('A', (), {})); print('dataclasses' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "False\n"

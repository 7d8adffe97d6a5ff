"""Lazily written dataclasses are the library's in all that anybody can see of them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import types
from dataclasses import KW_ONLY, field
from typing import Any, ClassVar

import pytest
from pydantic import TypeAdapter

from preflight.lazy import dataclasses as lazy


def made(dataclass: Any) -> types.SimpleNamespace:
    """The same classes, made by one of the two decorators."""

    @dataclass(frozen=True, slots=True)
    class Plain:
        """Usual here."""

        name: str
        sizes: tuple[int, ...] = ()
        note: str | None = None
        often: list[str] = field(default_factory=list)
        kind: ClassVar[str] = "plain"

    @dataclass(frozen=True, slots=True)
    class Derived(Plain):
        """With one more, and another default."""

        note: str | None = "more"
        last: float = 0.5

    @dataclass(frozen=True)
    class Open:
        """With a dict, and no default."""

        left: int
        right: int = field(default=2, compare=False)
        unseen: int = field(default=3, repr=False, hash=False)

    @dataclass(slots=True)
    class Changing:
        """May change, so it has no hash."""

        count: int = 0

    @dataclass(slots=True, unsafe_hash=True)
    class Hashed:
        """May change and has one."""

        count: int = 0

    @dataclass(slots=True, eq=False)
    class Apart:
        """Equal to itself alone."""

        count: int = 0

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        """All by name."""

        late: int = 1
        needed: str

    @dataclass(frozen=True, slots=True)
    class Mixed:
        """Some by name, one made afterwards."""

        first: int
        _: KW_ONLY
        second: int = 2
        total: int = field(init=False)
        stated: int = field(init=False, default=7)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.first + self.second)

    @dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        """Left to the library."""

        place: int

    @dataclass(frozen=True)
    class Own:
        """Says itself how it is shown and compared."""

        value: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

        def __hash__(self) -> int:
            return 5

    @dataclass
    class Self:
        """Made by its own hands."""

        value: int

        def __init__(self) -> None:
            self.value = 9

    @dataclass(frozen=True, slots=True)
    class Empty:
        """Nothing in it."""

    return types.SimpleNamespace(**{k: v for k, v in locals().items() if isinstance(v, type)})


THEIRS, OURS = made(dataclasses.dataclass), made(lazy.dataclass)

#: Values for an instance of a class, and others.
GIVEN: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Plain", ("a",), {}),
    ("Plain", ("a", (1, 2)), {"note": "b"}),
    ("Plain", (), {"name": "a", "often": ["c"]}),
    ("Plain", (), {}),
    ("Plain", ("a", (), None, [], 5), {}),
    ("Plain", ("a",), {"name": "b"}),
    ("Plain", ("a",), {"other": 1}),
    ("Derived", ("a",), {}),
    ("Derived", ("a", (), "n", [], 2.0), {}),
    ("Open", (1,), {}),
    ("Open", (1, 5, 6), {}),
    ("Open", (), {}),
    ("Changing", (), {}),
    ("Changing", (3,), {}),
    ("Hashed", (3,), {}),
    ("Apart", (3,), {}),
    ("Named", (), {"needed": "x"}),
    ("Named", (), {}),
    ("Named", (1, "x"), {}),
    ("Mixed", (1,), {}),
    ("Mixed", (1,), {"second": 5}),
    ("Mixed", (1, 5), {}),
    ("Mixed", (1,), {"total": 5}),
    ("Ordered", (1,), {}),
    ("Own", (1,), {}),
    ("Self", (), {}),
    ("Empty", (), {}),
    ("Empty", (1,), {}),
]


def told(make: Any) -> tuple[str, Any]:
    """What comes of it: a value, or the kind of an error."""
    try:
        return "value", make()
    except Exception as error:
        return "error", type(error)


@pytest.mark.parametrize(("name", "values", "named"), GIVEN)
def test_instances_show_compare_hash_and_copy_as_the_library_s_do(
    name: str, values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    found = []
    for classes in (THEIRS, OURS):
        cls = getattr(classes, name)
        how, one = told(lambda cls=cls: cls(*values, **named))  # type: ignore[misc]
        if how == "error":
            found.append((how, one))
            continue
        other = cls(*values, **named)
        items = [(item.name, getattr(one, item.name)) for item in dataclasses.fields(one)]
        found.append(
            (
                repr(one),
                items,
                dataclasses.asdict(one),
                one == other,
                one != other,
                one == object(),
                copy.deepcopy(one) == one,
                copy.copy(one) == one,
                told(lambda one=one, other=other: hash(one) == hash(other)),  # type: ignore[misc]
                *(told(lambda one=one, at=at: setattr(one, at, 1)) for at, _ in items),  # type: ignore[misc]
                *(told(lambda one=one, at=at: delattr(one, at)) for at, _ in items),  # type: ignore[misc]
                hasattr(one, "__dict__"),
            )
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("name", list(vars(THEIRS)))
def test_a_class_looks_like_the_library_s(name: str) -> None:
    theirs, ours = getattr(THEIRS, name), getattr(OURS, name)
    assert dataclasses.is_dataclass(ours)
    shape = [
        [(f.name, f.type, f.default, f.default_factory, f.init, f.kw_only, f.compare) for f in dataclasses.fields(cls)]
        for cls in (theirs, ours)
    ]
    assert shape[0] == shape[1]
    assert [getattr(cls, "__match_args__", None) for cls in (ours,)] == [theirs.__match_args__]
    assert ours.__doc__ == theirs.__doc__
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    assert hasattr(ours, "__slots__") == hasattr(theirs, "__slots__")


def test_once_written_a_method_is_what_the_library_would_have_written() -> None:
    for name in ("Plain", "Derived", "Open", "Named", "Mixed"):
        theirs, ours = getattr(THEIRS, name), getattr(made(lazy.dataclass), name)
        assert "values" in inspect.signature(ours).parameters
        told(lambda ours=ours: ours())  # type: ignore[misc]
        of_theirs, of_ours = (list(inspect.signature(cls).parameters.values()) for cls in (theirs, ours))
        assert [(p.name, p.kind) for p in of_ours] == [(p.name, p.kind) for p in of_theirs]


def test_values_are_replaced_and_read_back_as_with_the_library() -> None:
    one = OURS.Plain("a", (1,))
    assert dataclasses.replace(one, note="c") == OURS.Plain("a", (1,), "c")
    assert TypeAdapter(OURS.Open).validate_python({"left": 3}) == OURS.Open(3)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'name'"):
        one.name = "b"
    assert OURS.Plain("a").often is not OURS.Plain("a").often
    assert OURS.Plain("a") != OURS.Derived("a", note=None)
    assert len({OURS.Open(1), OURS.Open(1, 9), OURS.Open(2)}) == 2


def test_a_value_that_is_not_even_equal_to_itself_is_compared_as_in_a_tuple() -> None:
    never = float("nan")
    assert [cls(never) == cls(never) for cls in (OURS.Changing, THEIRS.Changing)] == [True, True]


def test_an_instance_that_holds_itself_can_be_shown() -> None:
    for classes in (OURS, THEIRS):
        one = classes.Changing()
        one.count = one
        assert repr(one).endswith("Changing(count=...)")


def test_a_frozen_class_must_not_say_how_it_is_changed() -> None:
    for dataclass in (dataclasses.dataclass, lazy.dataclass):
        with pytest.raises(TypeError, match="__setattr__"):

            @dataclass(frozen=True)
            class _Wrong:
                value: int

                def __setattr__(self, name: str, value: object) -> None:
                    """Not allowed."""

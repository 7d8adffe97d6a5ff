"""Laws of values under branches, arithmetic and conversion from text."""

from __future__ import annotations

import math
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.model.job import Known, OneOf, Plain, Unresolved, Value, alternatives, as_int, join, lift, one_of
from preflight.model.job.value import MAX_ALTERNATIVES

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
PLAINS = SCALARS | st.tuples(SCALARS, SCALARS)
SMALL = st.integers(0, 40)
VALUES = st.builds(one_of, st.lists(SMALL, max_size=20)) | st.just(Unresolved("$N is set by the caller"))


def same(left: Value, right: Value) -> bool:
    """Equal except for the order of alternatives and the reason of unresolved values."""
    if isinstance(left, Unresolved) or isinstance(right, Unresolved):
        return isinstance(left, Unresolved) and isinstance(right, Unresolved)
    return set(alternatives(left)) == set(alternatives(right))


@given(st.lists(PLAINS, max_size=24))
def test_one_of_keeps_distinct_values_in_order(values: list[Plain]) -> None:
    found = one_of(values)
    kept = alternatives(found)
    distinct = list(dict.fromkeys((type(value), value) for value in values))
    if 0 < len(distinct) <= MAX_ALTERNATIVES:
        assert [(type(value), value) for value in kept] == distinct
    else:
        assert isinstance(found, Unresolved)


def test_values_of_different_types_are_different() -> None:
    assert one_of([1, True, 1.0, "1"]) == OneOf((1, True, 1.0, "1"))
    assert len(alternatives(one_of([1, True, 1.0, "1"]))) == 4


@given(VALUES)
def test_joining_a_value_with_itself_changes_nothing(value: Value) -> None:
    assert same(join([value, value]), value)


@given(VALUES, VALUES)
def test_the_order_of_branches_does_not_matter(left: Value, right: Value) -> None:
    assert same(join([left, right]), join([right, left]))


@given(VALUES, VALUES, VALUES)
def test_branches_may_meet_in_any_grouping(first: Value, second: Value, third: Value) -> None:
    assert same(join([join([first, second]), third]), join([first, join([second, third])]))


@given(VALUES)
def test_a_value_unresolved_in_one_branch_stays_unresolved(value: Value) -> None:
    outside = Unresolved("$NNODES is set by the caller")
    assert isinstance(join([value, outside]), Unresolved)
    assert isinstance(lift(operator.add, value, outside), Unresolved)


@given(st.lists(SMALL, min_size=1, max_size=3), st.lists(SMALL, min_size=1, max_size=3))
def test_lift_reaches_every_combination_and_no_other(left: list[int], right: list[int]) -> None:
    found = lift(operator.mul, one_of(left), one_of(right))
    assert set(alternatives(found)) == {a * b for a in left for b in right}


@pytest.mark.parametrize(
    "fault",
    [lambda: 1 // 0, lambda: int("x"), lambda: len(3), lambda: int(math.inf), lambda: math.exp(1e6)],
    ids=["division", "text", "type", "infinity", "overflow"],
)
def test_arithmetic_that_fails_leaves_the_value_unresolved(fault: object) -> None:
    assert isinstance(lift(lambda _: fault(), Known(1)), Unresolved)  # type: ignore[operator]


@given(st.integers())
def test_whole_numbers_are_read_from_text(number: int) -> None:
    assert as_int(Known(str(number))) == Known(number)
    assert as_int(Known(number)) == Known(number)


@given(PLAINS)
def test_as_int_never_raises_and_gives_whole_numbers_only(value: Plain) -> None:
    for number in alternatives(as_int(Known(value))):
        assert type(number) is int


@pytest.mark.parametrize("value", [True, None, 1.5, math.inf, math.nan, "", "eight", "1.0", "0x10", ("1",), "9" * 5000])
def test_a_text_that_is_not_a_number_is_unresolved(value: Plain) -> None:
    assert isinstance(as_int(Known(value)), Unresolved)


def test_one_bad_alternative_makes_the_number_unresolved() -> None:
    assert isinstance(as_int(OneOf(("8", "auto"))), Unresolved)
    assert as_int(OneOf(("8", "08", 8))) == Known(8)


def test_hostile_numbers_of_alternatives_end_quickly() -> None:
    wide = one_of(range(MAX_ALTERNATIVES))
    assert isinstance(lift(lambda *numbers: sum(numbers), *[wide] * 30), Unresolved)
    assert isinstance(one_of(range(10**6)), Unresolved)

from __future__ import annotations

import pytest

from preflight.model.job import Known, OneOf, Unresolved
from preflight.sources.hydra.overrides import (
    Action,
    Opaque,
    OverrideError,
    Sweep,
    as_value,
    parse,
    parse_value,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-20", -20),
        ("1_000", 1000),
        ("010", "010"),
        ("1e-4", 1e-4),
        (".5", 0.5),
        ("True", True),
        ("NULL", None),
        ("", ""),
        ("foo-bar_10", "foo-bar_10"),
        ("a/b.c", "a/b.c"),
        ("x:y", "x:y"),
        ("'hello, world'", "hello, world"),
        ('"it\\"s"', 'it"s'),
        ("a\\,b", "a,b"),
        ("[1, 2,[a]]", [1, 2, ["a"]]),
        ("[]", []),
        ("{a:1,b:{c:x}}", {"a": 1, "b": {"c": "x"}}),
        ("${a.b}", "${a.b}"),
        ("${oc.env:X,${y}}", "${oc.env:X,${y}}"),
        ("1,2,x", Sweep((1, 2, "x"))),
        ("choice(1,2)", Sweep((1, 2))),
        ("range(1,4)", Sweep((1, 2, 3))),
        ("range(3)", Sweep((0, 1, 2))),
        ("int('4')", 4),
    ],
)
def test_values(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("text", "action", "key", "package", "given"),
    [
        ("trainer.nnodes=2", Action.CHANGE, "trainer.nnodes", None, True),
        ("+a=1", Action.ADD, "a", None, True),
        ("++a.b=1", Action.FORCE, "a.b", None, True),
        ("~a.b", Action.DELETE, "a.b", None, False),
        ("db@src=mysql", Action.CHANGE, "db", "src", True),
        ("model/part=p", Action.CHANGE, "model/part", None, True),
        ("a[0]=1", Action.CHANGE, "a[0]", None, True),
    ],
)
def test_heads(text: str, action: Action, key: str, package: str | None, given: bool) -> None:
    found = parse(text)
    assert (found.action, found.key, found.package, found.given) == (action, key, package, given)


@pytest.mark.parametrize(
    "text", ["a=[1,2", "a={b", "a='x", "a=${b", "a=[1]2", "--flag", "train.py", "a=" + "[" * 50 + "]" * 50]
)
def test_other_texts_are_not_overrides(text: str) -> None:
    with pytest.raises(OverrideError):
        parse(text)


def test_elements_as_values_of_claims() -> None:
    assert as_value(Sweep((4, 8))) == OneOf((4, 8))
    assert as_value([1, 2]) == Known((1, 2))
    assert isinstance(as_value(Opaque("glob(*)")), Unresolved)
    assert isinstance(as_value([[1]]), Unresolved)
    assert isinstance(parse_value("range(0,1000000)"), Opaque)

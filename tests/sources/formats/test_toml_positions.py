"""Positions of keys and values in a TOML document, and of mistakes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight._util.toml import TomlError, parse, value_at
from preflight.sources.formats.lenient_toml import Positions

TEXT = '''# comment = "no"
title = "a # not a comment"
"quoted key" . b = [ 1, # one
  [2, 3], { x = 1, "y" = """
multi""" },
]
[owner]
name = 'it''s'

[[waive]]
rule = "A"
[[waive]]
  rule = "B"
  [waive.inner]
  deep.er = true
[a.b]
c = 2026-01-01
'''.replace("'it''s'", "'its'")


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        (("title",), (2, 1), (2, 9)),
        (("quoted key", "b"), (3, 16), (3, 20)),
        (("quoted key", "b", 0), (3, 22), (3, 22)),
        (("quoted key", "b", 1, 1), (4, 7), (4, 7)),
        (("quoted key", "b", 2, "x"), (4, 13), (4, 17)),
        (("quoted key", "b", 2, "y"), (4, 20), (4, 26)),
        (("owner",), (7, 2), (7, 2)),
        (("owner", "name"), (8, 1), (8, 8)),
        (("waive", 0), (10, 1), (10, 1)),
        (("waive", 0, "rule"), (11, 1), (11, 8)),
        (("waive", 1, "rule"), (13, 3), (13, 10)),
        (("waive", 1, "inner", "deep", "er"), (15, 8), (15, 13)),
        (("a", "b", "c"), (17, 1), (17, 5)),
        (("a", "b", "missing"), (16, 4), (16, 4)),
        (("nowhere",), (1, 1), (1, 1)),
    ],
)
def test_keys_and_values_are_found(path: tuple[str | int, ...], key: tuple[int, int], value: tuple[int, int]) -> None:
    parse(TEXT)
    positions = Positions(TEXT)
    assert positions.of(path) == key
    assert positions.of(path, value=True) == value


def test_values_are_found_by_their_path() -> None:
    assert value_at(parse(TEXT), ("waive", 1, "inner", "deep", "er")) is True
    assert value_at(parse(TEXT), ("waive", 7)) is None


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("a = \n", 1, 5), ("a = 1\nb == 2\n", 2, 4), ('a = "', 1, 1), ("a = 1\na = 2\n", 2, 6), ("[a\n", 1, 3)],
)
def test_invalid_toml_is_reported_with_its_position(text: str, line: int, column: int) -> None:
    with pytest.raises(TomlError) as raised:
        parse(text)
    assert (raised.value.line, raised.value.column) == (line, column)


def test_deep_nesting_does_not_crash() -> None:
    with pytest.raises(TomlError):
        parse("a = " + "[" * 100_000)


@given(st.text(alphabet="ab.=[]{}\"'#\n ,1-", max_size=60))
def test_any_valid_document_has_positions(text: str) -> None:
    Positions(text)

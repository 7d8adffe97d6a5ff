"""Text of several files: every span is in the file that the characters come from."""

from __future__ import annotations

import pytest

from preflight.sources.base import SourceFile
from preflight.sources.formats import structured as module
from preflight.sources.formats.lenient_yaml import parse
from preflight.sources.formats.structured import (
    Origin,
    Piece,
    TooLong,
    compose_file,
    file_pieces,
    file_text_of,
    places_of,
    shift_node,
)
from preflight.sources.shell.shell_document import FileText

FIRST = FileText("a.yaml", "one: 1\ntwo: {{ x }}\n")
SECOND = FileText("b.sh", "#!/bin/sh\ntorchrun a.py\n")


def _file() -> module.ComposedFile:
    value = SECOND.span(10, 18)
    pieces = [
        Piece(FIRST.text[:12], Origin(FIRST, 0, 12)),
        Piece("8\n", Origin(FIRST, 12, 19, exact=False, value=value)),
        Piece(SECOND.text[10:], Origin(SECOND, 10, len(SECOND.text))),
    ]
    return compose_file(SourceFile("a.yaml", FIRST.text, "s", 1), pieces)


def test_spans_are_those_of_the_files_that_the_pieces_come_from() -> None:
    file = _file()
    assert file.text == "one: 1\ntwo: 8\ntorchrun a.py\n"
    places = places_of(file)
    two = places.span(12, 13)
    assert (two.path, two.line, two.column, two.end_column) == ("a.yaml", 2, 6, 13)
    assert two.snippet == "two: {{ x }}"
    run = file_text_of(file).span(14, 22)
    assert (run.path, run.line, run.column, run.snippet) == ("b.sh", 2, 1, "torchrun a.py")


def test_a_filled_in_value_has_the_location_of_its_assignment() -> None:
    places = places_of(_file())
    value = places.value_span(12, 13)
    assert value is not None
    assert (value.path, value.line) == ("b.sh", 2)
    assert places.value_span(0, 3) is None


def test_a_range_within_one_file_is_one_span_and_over_two_files_the_first_part() -> None:
    places = places_of(_file())
    both = places.span(5, 13)
    assert (both.path, both.line, both.end_line) == ("a.yaml", 1, 2)
    across = places.span(7, 20)
    assert (across.path, across.line) == ("a.yaml", 2)


def test_composed_text_can_be_composed_again() -> None:
    again = compose_file(_file(), [*file_pieces(_file()), *file_pieces(SourceFile("c.yaml", "c: 1\n", "", 5))])
    last = places_of(again).span(len(again.text) - 5, len(again.text) - 4)
    assert (last.path, last.line, last.column) == ("c.yaml", 1, 1)


def test_a_plain_file_keeps_its_own_places() -> None:
    file = SourceFile("p.yaml", "a: 1\n", "", 5)
    assert places_of(file).span(3, 4).path == file_text_of(file).span(3, 4).path == "p.yaml"
    assert places_of(file).value_span(3, 4) is None


def test_nodes_are_shifted_with_their_members() -> None:
    root = parse("a: [1, {b: 2}]\n").root
    assert root is not None
    moved = shift_node(root, 10)
    inner = moved.at("a")
    assert inner is not None
    assert (moved.start, inner.items[1].members[0].key_start) == (root.start + 10, 8 + 10)


def test_a_text_that_is_too_long_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LENGTH", 10)
    with pytest.raises(TooLong):
        compose_file(SourceFile("a", "", "", 0), [Piece("x" * 11, Origin(FIRST, 0, 1, exact=False))])


def test_an_empty_text_can_be_composed() -> None:
    empty = compose_file(SourceFile("a.yaml", "", "", 0), [])
    assert empty.text == ""
    assert places_of(empty).span(0, 0).path == "a.yaml"

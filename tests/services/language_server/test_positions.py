"""Places of preflight and of an editor in one text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types
from pygls.workspace import PositionCodec

from preflight._util.spans import Places
from preflight.services.language_server.folder import Text

_TEXTS = st.text(st.sampled_from("ab \n\r\t\x0b\x0c\x85\u2028é🚀"), max_size=40)
_ENCODINGS = st.sampled_from(list(types.PositionEncodingKind))


@given(_TEXTS, _ENCODINGS, st.data())
def test_a_place_is_the_same_there_and_back(
    text: str, encoding: types.PositionEncodingKind, data: st.DataObject
) -> None:
    made = Text(text, PositionCodec(encoding))
    offset = data.draw(st.integers(0, len(text)))
    span = Places("x", text).span(offset, offset)
    if text[:offset].endswith("\r") and text[offset:].startswith("\n"):
        return  # Between the two halves of a line end an editor has no position.
    assert made.offset(span.line, span.column) == offset
    assert made.offset_at(made.position(offset)) == offset
    assert made.place(made.position(offset)) == (span.line, span.column)


@given(_TEXTS, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_no_position_is_outside_the_text(text: str, line: int, character: int) -> None:
    made = Text(text, PositionCodec())
    assert 0 <= made.offset_at(types.Position(line, character)) <= len(text)
    assert 0 <= made.offset(line, character) <= len(text)
    made.range(line, character, character, line)


def test_units_are_those_that_the_editor_chose() -> None:
    text = "a\né🚀b\n"
    for encoding, units in (("utf-8", 6), ("utf-16", 3), ("utf-32", 2)):
        made = Text(text, PositionCodec(types.PositionEncodingKind(encoding)))
        assert made.position(text.index("b")) == types.Position(1, units)

"""The display capabilities of a stream: colours, width, height, characters."""

from __future__ import annotations

import io
import os

import pytest

from preflight._util.terminal import (
    MIN_HEIGHT,
    MIN_WIDTH,
    PLAIN_WIDTH,
    can_redraw,
    encoded,
    encoding_of,
    height_of,
    is_terminal,
    wants_color,
    width_of,
)


class Screen(io.TextIOWrapper):
    """A stream that claims to be a terminal, with a given encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "chosen", "terminal", "expected"),
    [
        ({}, None, True, True),
        ({}, None, False, False),
        ({"NO_COLOR": "1"}, None, True, False),
        ({"NO_COLOR": ""}, None, True, True),
        ({"NO_COLOR": "1"}, True, False, True),
        ({"FORCE_COLOR": "1"}, None, False, True),
        ({"CLICOLOR_FORCE": "1"}, None, False, True),
        ({"CLICOLOR_FORCE": "0"}, None, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, None, True, False),
        ({"FORCE_COLOR": "1"}, False, True, False),
        ({"CLICOLOR": "0"}, None, True, False),
        ({"TERM": "dumb"}, None, True, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, None, True, True),
    ],
)
def test_precedence_of_colour_settings(
    environ: dict[str, str], chosen: bool | None, terminal: bool, expected: bool
) -> None:
    stream = Screen() if terminal else io.StringIO()
    assert wants_color(stream, chosen, environ=environ) is expected


def test_a_dumb_terminal_is_not_redrawn() -> None:
    assert can_redraw(Screen(), {"TERM": "xterm"})
    assert not can_redraw(Screen(), {"TERM": "dumb"})
    assert not can_redraw(io.StringIO(), {"TERM": "xterm"})


def test_a_closed_stream_is_not_a_terminal() -> None:
    stream = io.StringIO()
    stream.close()
    assert not is_terminal(stream)


def test_a_pipe_has_a_fixed_width_and_no_height(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert (width_of(io.StringIO()), height_of(io.StringIO())) == (PLAIN_WIDTH, None)


@pytest.mark.parametrize(
    ("columns", "lines", "expected"),
    [("60", "50", (60, 50)), ("20", "5", (MIN_WIDTH, MIN_HEIGHT)), ("900", "24", (140, 24))],
)
def test_the_size_of_a_terminal_is_bounded(
    monkeypatch: pytest.MonkeyPatch, columns: str, lines: str, expected: tuple[int, int]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", lines)
    assert (width_of(Screen()), height_of(Screen())) == expected


def test_the_size_is_that_of_the_stream_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    ours, theirs = os.openpty()
    try:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        with os.fdopen(theirs, "w") as stream:
            assert (width_of(stream), height_of(stream)) == (77, 33)
    finally:
        os.close(ours)


def test_characters_that_a_terminal_lacks_are_replaced() -> None:
    assert encoding_of(Screen("latin-1")) == "iso8859-1"
    assert encoded("cut… ×2 · 训", "iso8859-1") == "cut~ x2 - \\u8bad".encode("latin-1")
    assert encoded("cut… ×2", "utf-8") == "cut… ×2".encode()
    assert encoded("\ud800", "utf-8") == b"?"


def test_other_streams_get_utf_8() -> None:
    assert encoding_of(io.TextIOWrapper(io.BytesIO(), encoding="latin-1")) == "utf-8"

"""What is shown while a check runs: calm lines into a file, one moving line on a terminal."""

from __future__ import annotations

import io

import pytest

from preflight.progress import Step
from preflight.reporters import live
from preflight.reporters.live import live_progress

STEPS = (
    Step("open", 1, 2, ("b",), 14.0),
    Step("open", 2, 2, (), 13.0, "b: no route to host\x1b[2J"),
    Step("node", 0, 4, ("a",), 10.0),
    Step("node", 4, 4),
    Step("smoke", 0, 2, note="a: first step"),
    Step("smoke", 0, 2, note="b: init\x1b[2J"),
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    """A stream whose reader went away."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def watch(stream: io.StringIO) -> str:
    """Everything written while all the steps are taken."""
    with live_progress(stream) as progress:
        for step in STEPS:
            progress(step)
    return stream.getvalue()


def test_a_file_gets_a_line_a_stage_and_every_note() -> None:
    assert watch(io.StringIO()).splitlines() == [
        "preflight: reaching the nodes",
        "preflight:   b: no route to host\\x1b[2J",
        "preflight: looking at the nodes",
        "preflight: training a few steps",
    ]


def test_a_terminal_shows_notes_and_keeps_no_other_line() -> None:
    written = watch(Terminal())
    assert "b: no route to host\\x1b[2J" in written
    assert "\x1b[2J" not in written


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    assert watch(Gone()) == ""


def test_a_dumb_terminal_gets_the_calm_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert watch(Terminal()).startswith("preflight: reaching the nodes\n")


def test_a_log_hears_how_far_the_ranks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_LOGGED_S", 0.0)
    assert watch(io.StringIO()).splitlines()[-2:] == [
        "preflight:   a first step",
        "preflight:   a first step, b init\\x1b[2J",
    ]


def test_the_end_of_the_smoke_run_is_no_phase_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_LOGGED_S", 0.0)
    stream = io.StringIO()
    with live_progress(stream) as progress:
        progress(Step("smoke", 0, 1, note="a: done"))
        progress(Step("smoke", 1, 1, note="smoke run.sh"))
    assert "run.sh" not in stream.getvalue()

"""What goes to a screen is told in short where it does not fit, and all of it is kept where its reader can open it."""

from __future__ import annotations

import io
import shlex
import stat
import sys
from pathlib import Path

import pytest

from preflight import deliver, last_page
from preflight.judgement import failed
from preflight.report import Report
from preflight.reporters.base import Style
from tests.building import a_recording, a_rule, job, judged, span


class Screen(io.TextIOWrapper):
    """A terminal that remembers what was written to it."""

    def __init__(self, *, terminal: bool = True) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def text(self) -> str:
        """Everything so far."""
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder for what programs remember; a screen of 80 by 24."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return tmp_path / "preflight"


def report(findings: int = 20) -> Report:
    """A report with so many findings."""
    verdicts = [failed("x", f"fault {n}", at=span(f"run{n}.sh"), remedy="-") for n in range(findings)]
    return judged(a_recording(job()), [a_rule(lambda _: verdicts)])


def written(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool = True, wanted: str = "text", style: Style | None = None
) -> str:
    """What a screen shows of twenty findings."""
    screen = Screen(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", screen)
    deliver.deliver(report(), deliver.outputs([wanted]), color=False, style=style)
    return screen.text


def test_a_low_screen_gets_a_summary_and_a_file_gets_everything(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = written(monkeypatch)
    kept = state / "last-lint.txt"
    assert len(shown.splitlines()) < 24
    assert f"  less {shlex.quote(str(kept))}" in shown.splitlines()
    assert all(f"fault {n}\n" in kept.read_text() for n in range(20))
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("terminal", "wanted", "style"),
    [
        (False, "text", None),
        (True, "text", Style(verbosity=1)),
        (True, "text", Style(concise=True)),
        (True, "json", None),
    ],
    ids=["pipe", "verbose", "concise", "json"],
)
def test_whoever_wants_everything_gets_it(
    state: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, wanted: str, style: Style | None
) -> None:
    shown = written(monkeypatch, terminal=terminal, wanted=wanted, style=style)
    assert all(f"fault {n}" in shown for n in range(20))
    assert not state.exists()


def test_where_nothing_can_be_kept_the_option_is_named(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "preflight").write_text("no folder")
    assert "-v or a pipe (| cat) shows all 20 findings" in written(monkeypatch)


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "last-lint.txt").symlink_to(precious)
    assert last_page.keep("lint", b"page\n", at=tmp_path)
    assert precious.read_text() == "mine"
    assert (tmp_path / "last-lint.txt").read_text() == "page\n"


def test_a_verb_is_no_path(tmp_path: Path) -> None:
    assert last_page.keep("../lint", b"", at=tmp_path) == ""


def test_what_a_report_quotes_is_no_command_to_a_runner(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hostile = "x\n::set-output name=verdict::go\n\u3000::error::y ##[add-mask]z"
    rule = a_rule(lambda _: [failed("x", hostile, at=span(snippet=hostile), remedy=hostile)])
    shown = []
    for runner in ("", "true"):
        monkeypatch.setenv("GITHUB_ACTIONS", runner)
        deliver.deliver(judged(a_recording(job()), [rule]), deliver.outputs(["text"]), color=False)
        shown.append(capfd.readouterr().out)
    assert any(line.strip().startswith("::") for line in shown[0].splitlines()) and "##[" in shown[0]
    assert not any(line.strip().startswith("::") for line in shown[1].splitlines()) and "##[" not in shown[1]
    assert [line.replace(" ", "") for line in shown[0].splitlines()] == [
        line.replace(" ", "") for line in shown[1].splitlines()
    ]

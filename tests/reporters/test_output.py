"""A report that does not fit the screen is shortened, and the full text is saved for its reader."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import stat
import sys
from pathlib import Path

import pytest

from preflight._util.usage_error import UsageError
from preflight.engine.report import Report
from preflight.plugins.authoring import failed
from preflight.reporters import output
from preflight.reporters.base import Style
from preflight.reporters.events import open_event_stream
from tests.builders import job, judged, make_recording, make_rule, span


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
    """The user's state folder, and a screen of 80 by 24."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return tmp_path / "preflight"


def report(findings: int = 20) -> Report:
    """A report with this many findings."""
    verdicts = [failed("x", f"fault {n}", at=span(f"run{n}.sh"), remedy="-") for n in range(findings)]
    return judged(make_recording(job()), [make_rule(lambda _: verdicts)])


def written(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool = True, wanted: str = "text", style: Style | None = None
) -> str:
    """The output for a report of twenty findings."""
    screen = Screen(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", screen)
    output.deliver(report(), output.outputs([wanted]), color=False, style=style)
    return screen.text


def test_a_small_screen_gets_a_summary_and_a_file_everything(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_full_report_on_request(
    state: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, wanted: str, style: Style | None
) -> None:
    shown = written(monkeypatch, terminal=terminal, wanted=wanted, style=style)
    assert all(f"fault {n}" in shown for n in range(20))
    assert not state.exists()


def test_without_a_state_folder_the_summary_names_the_option(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "preflight").write_text("no folder")
    assert "-v or a pipe (| cat) shows all 20 findings" in written(monkeypatch)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "last-lint.txt").symlink_to(precious)
    assert output.keep("lint", b"page\n", at=tmp_path)
    assert precious.read_text() == "mine"
    assert (tmp_path / "last-lint.txt").read_text() == "page\n"


def test_a_command_name_cannot_be_a_path(tmp_path: Path) -> None:
    assert output.keep("../lint", b"", at=tmp_path) == ""


HOSTILE = "x\n::set-output name=verdict::go\n\u3000::error::y ##[add-mask]z ##vso[task.complete]done ##teamcity[x '1']"


@pytest.mark.parametrize("runner", ["", "true"])
@pytest.mark.parametrize(
    "wanted", ["text", "json", "sarif", "gitlab", "junit", "html", "openmetrics", "github", "github-summary"]
)
@pytest.mark.parametrize("to_file", [False, True])
def test_quoted_text_is_not_a_command_to_a_runner(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    runner: str,
    wanted: str,
    to_file: bool,
) -> None:
    rule = make_rule(lambda _: [failed("x", HOSTILE, at=span(snippet=HOSTILE), remedy=HOSTILE)])
    monkeypatch.setenv("GITHUB_ACTIONS", runner)
    target = f"{wanted}:{tmp_path / 'report'}" if to_file else wanted
    output.deliver(judged(make_recording(job()), [rule]), output.outputs([target]), color=False)
    shown = (tmp_path / "report").read_text() if to_file else capfd.readouterr().out
    lines = [line.strip() for line in shown.splitlines()]
    if wanted == "github":
        # Only our own commands: the runner parses one command per line.
        assert all(re.match(r"::(?:error|warning|notice) \S", line) for line in lines)
        return
    assert not [line for line in lines if line.startswith("::")]
    assert not re.search(r"(?i)##(?:vso|teamcity)?\[", shown)


@pytest.mark.parametrize("wanted", ["json", "sarif"])
def test_a_document_means_the_same_without_commands(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], wanted: str
) -> None:
    rule = make_rule(lambda _: [failed("x", HOSTILE, at=span(snippet=HOSTILE), remedy=HOSTILE)])
    found = judged(make_recording(job()), [rule])
    (target,) = output.outputs([wanted])
    output.deliver(found, [target], color=False)
    assert json.loads(capfd.readouterr().out) == json.loads(target.reporter.render(found, Style()))


# --- where files are written ---


def test_a_link_of_the_name_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    Path("report.json").symlink_to(precious)
    output.write(Path("report.json"), b"{}")
    assert (precious.read_text(), Path("report.json").read_text()) == ("mine", "{}")
    assert not Path("report.json").is_symlink()


def test_a_link_to_a_pipe_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("report.json").symlink_to("pipe")
    # The pipe has no reader, so writing into it would wait forever.
    output.write(Path("report.json"), b"{}")
    assert Path("report.json").read_text() == "{}"


def test_a_folder_link_leading_outside_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tree", "outside", "tree/inside"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "tree")
    Path("out").symlink_to(tmp_path / "outside")
    Path("in").symlink_to("inside")
    for path in (Path("out/report.json"), tmp_path / "tree" / "out" / "report.json"):
        with pytest.raises(UsageError, match=r"it is a link to .*outside, outside the working directory"):
            output.write(path, b"{}")
    assert not list((tmp_path / "outside").iterdir())
    output.write(Path("in/report.json"), b"{}")
    output.write(tmp_path / "outside" / "report.json", b"{}")
    output.write(Path("../outside/other.json"), b"{}")
    assert {path.name for path in (tmp_path / "outside").iterdir()} == {"report.json", "other.json"}


def test_a_pipe_of_the_shell_is_written_into() -> None:
    reading, writing = os.pipe()
    output.write(Path(f"/dev/fd/{writing}"), b"{}")
    os.close(writing)
    with os.fdopen(reading) as stream:
        assert stream.read() == "{}"


def test_events_follow_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "tree").mkdir()
    monkeypatch.chdir(tmp_path / "tree")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    Path("events.jsonl").symlink_to(precious)
    with open_event_stream("events.jsonl", "lint"):
        pass
    assert precious.read_text() == "mine" and Path("events.jsonl").stat().st_size
    Path("out").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="it is a link to"), open_event_stream("out/events.jsonl", "lint"):
        pass

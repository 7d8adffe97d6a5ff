"""The display capabilities of a stream: colours, width, height, characters."""

from __future__ import annotations

import io
import json
import logging
import os
import stat
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from preflight import api
from preflight._util import log
from preflight._util.json_output import to_bytes
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
from preflight.cli.main import run
from preflight.config.resolve import jobs_in
from preflight.engine.report import adapter, to_json
from preflight.model.recording import Recording
from tests.builders import job, make_recording, reached


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


# `--debug` and `--log-file` log what a run does, without secrets; without these options nothing is logged.


JOB = "#!/bin/bash\nexport HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345\npython3 train.py\n"


SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"


@pytest.fixture(autouse=True)
def _no_handler_is_left() -> object:
    yield
    assert not logging.getLogger("preflight").handlers
    assert logging.getLogger("preflight").level == logging.NOTSET


@pytest.fixture
def log_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(JOB)
    (tmp_path / "train.py").write_text("print('x')\n")
    return tmp_path


@pytest.mark.parametrize("first", [True, False], ids=["before the command", "after it"])
def test_a_check_logs_each_command_its_reason_and_duration(log_job: Path, first: bool) -> None:
    words = ["check", "run.sh", "--on", "local", "--until", "node", "--no-config"]
    option = ["--log-file", "run.log"]
    run([*option, *words] if first else [*words, *option])
    text = (log_job / "run.log").read_text()
    assert "executor local chosen: --on local" in text
    assert "local0: agent ready after" in text
    assert f"run {sys.executable} -I -u" in text
    assert "local0: request 1 " in text and " took " in text
    assert SECRET not in text
    assert stat.S_IMODE((log_job / "run.log").stat().st_mode) == 0o600


def test_debug_logs_to_standard_error(log_job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(["--debug", "check", "run.sh", "--on", "local", "--until", "node", "--no-config"])
    errors = capfd.readouterr().err
    assert "executor local chosen" in errors
    assert SECRET not in errors


def test_without_the_options_nothing_is_logged(log_job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(["check", "run.sh", "--on", "local", "--until", "node", "--no-config"])
    assert "executor local chosen" not in capfd.readouterr().err
    assert sorted(path.name for path in log_job.iterdir()) == ["run.sh", "train.py"]


@pytest.mark.parametrize(
    "message",
    [
        f"run ssh node1 env HF_TOKEN={SECRET} python3",
        "run docker login --password hunter2secretvalue99",
        "run curl https://user:hunter2secretvalue99@host/",
    ],
)
def test_no_secret_of_a_command_line_or_a_traceback_is_logged(tmp_path: Path, message: str) -> None:
    log.log_to_file(tmp_path / "log")
    logger = logging.getLogger("preflight.executors.base")
    logger.debug("%s", message)
    try:
        raise ValueError(message)
    except ValueError:
        logger.debug("failed", exc_info=True)
    log.close_log()
    text = (tmp_path / "log").read_text()
    assert text.count("run ") >= 2
    assert SECRET not in text and "hunter2secretvalue99" not in text


def test_control_characters_are_escaped_and_long_messages_cut(tmp_path: Path) -> None:
    log.log_to_file(tmp_path / "log")
    logging.getLogger("preflight.x").debug("node said \x1b]0;owned\x07 %s", "a" * 2 * log.MAX_MESSAGE_LENGTH)
    log.close_log()
    text = (tmp_path / "log").read_text()
    assert "\x1b" not in text and "\x07" not in text
    assert "more characters" in text and len(text) < 2 * log.MAX_MESSAGE_LENGTH


def test_an_unwritable_log_file_is_a_usage_error(log_job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--log-file", "none/run.log", "lint", "run.sh"]) == 2
    assert "--log-file none/run.log: cannot write: No such file or directory" in capfd.readouterr().err


# Documents are written exactly as pydantic would write them; it generates their schemas and reads them.


ROOT = Path(__file__).resolve().parents[2]


def test_a_report_follows_its_schema() -> None:
    report = api.lint([ROOT / "examples" / "megatron-slurm" / "broken"], root=ROOT / "examples")
    assert report.findings and report.jobs[0].claims
    assert json.loads(to_json(report)) == json.loads(adapter().dump_json(report))


def test_a_recording_follows_its_schema() -> None:
    jobs = jobs_in([ROOT / "examples" / "deepspeed-hostfile" / "good"], root=ROOT)
    recording = make_recording(*jobs, job(), verb="check", nodes=reached("a", "b"), stages=("node",))
    assert json.loads(to_bytes(recording, indent=1)) == json.loads(TypeAdapter(Recording).dump_json(recording))


def test_characters_that_utf_8_cannot_encode_are_replaced() -> None:
    assert json.loads(to_bytes({"half": "\ud800"}, indent=1)) == {"half": "?"}

"""`--debug` and `--log-file` log what a run does, without secrets; without these options nothing is logged."""

from __future__ import annotations

import logging
import stat
import sys
from pathlib import Path

import pytest

from preflight._util import log
from preflight.cli.main import run

JOB = "#!/bin/bash\nexport HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345\npython3 train.py\n"
SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"


@pytest.fixture(autouse=True)
def _no_handler_is_left() -> object:
    yield
    assert not logging.getLogger("preflight").handlers
    assert logging.getLogger("preflight").level == logging.NOTSET


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(JOB)
    (tmp_path / "train.py").write_text("print('x')\n")
    return tmp_path


@pytest.mark.parametrize("first", [True, False], ids=["before the command", "after it"])
def test_a_check_logs_each_command_its_reason_and_duration(job: Path, first: bool) -> None:
    words = ["check", "run.sh", "--on", "local", "--until", "node", "--no-config"]
    option = ["--log-file", "run.log"]
    run([*option, *words] if first else [*words, *option])
    text = (job / "run.log").read_text()
    assert "executor local chosen: --on local" in text
    assert "local0: agent ready after" in text
    assert f"run {sys.executable} -I -u" in text
    assert "local0: request 1 " in text and " took " in text
    assert SECRET not in text
    assert stat.S_IMODE((job / "run.log").stat().st_mode) == 0o600


def test_debug_logs_to_standard_error(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(["--debug", "check", "run.sh", "--on", "local", "--until", "node", "--no-config"])
    errors = capfd.readouterr().err
    assert "executor local chosen" in errors
    assert SECRET not in errors


def test_without_the_options_nothing_is_logged(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(["check", "run.sh", "--on", "local", "--until", "node", "--no-config"])
    assert "executor local chosen" not in capfd.readouterr().err
    assert sorted(path.name for path in job.iterdir()) == ["run.sh", "train.py"]


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


def test_an_unwritable_log_file_is_a_usage_error(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--log-file", "none/run.log", "lint", "run.sh"]) == 2
    assert "--log-file none/run.log: cannot write: No such file or directory" in capfd.readouterr().err

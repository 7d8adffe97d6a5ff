"""`preflight diagnose` as a command: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.cli import main
from preflight.commands.diagnose.diagnosis import LogProcess
from preflight.commands.diagnose.diagnosis_text import format_members
from tests.commands.diagnose.cases import FOLDER

RECORDED = FOLDER / "logs" / "recorded"


def test_the_text_names_rank_line_meaning_remedy_and_check(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(RECORDED / "checkpoint-disk-full")
    assert main.run(["diagnose", "torchrun.log"]) == 1
    said = " ".join(capfd.readouterr().out.split())
    for part in (
        "rank 1 failed first: disk-full",
        "--> torchrun.log:",
        "iostream error",
        "raised at /home/anna/job/train.py:43",
        "means: A file, usually a checkpoint, could not be written completely",
        "do: Free space",
        "CKP012 checkpoint-does-not-fit",
        "rank 0 failed as a consequence",
        "CAUSE NAMED disk-full of rank 1; 1 log",
    ):
        assert part in said


def test_without_a_cause_the_text_names_a_suspect(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diagnose", str(RECORDED / "nodes-stopped")]) == 3
    said = capfd.readouterr().out
    assert "no log says why; look at rank 3 on node2 first" in said
    assert "DON'T KNOW" in said


def test_json_is_written_to_a_file_in_addition_to_the_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "diagnosis.json"
    log = tmp_path / "run.log"
    log.write_text("step 1 loss 2.5\nstep 2 loss 2.4\nINFO Training completed.\n")
    assert main.run(["diagnose", str(log), "-v", "-o", "text", "-o", f"json:{target}"]) == 0
    assert "COMPLETED" in capfd.readouterr().out
    assert json.loads(target.read_text())["answer"] == "completed"


def test_a_run_without_a_last_word_is_not_called_healthy(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diagnose", str(RECORDED / "torchrun-healthy")]) == 3
    said = " ".join(capfd.readouterr().out.split())
    assert "no line says that the run failed, and none that it completed" in said
    assert "NO END SEEN" in said


def test_the_other_exit_codes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diagnose", str(tmp_path)]) == 4
    assert main.run(["diagnose", str(tmp_path / "absent")]) == 2
    assert main.run(["diagnose", str(tmp_path), "-o", "sarif"]) == 2
    assert "choose from text, json" in capfd.readouterr().err


def test_control_characters_of_a_log_never_reach_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = b"[rank1]: CUDA out of memory \x1b]0;gone\x07 \xc2\x9b31m \xe2\x80\xae!\n"
    (tmp_path / "a\x1b]0;x\x07.log").write_bytes(content)
    assert main.run(["diagnose", str(tmp_path), "-v", "--color"]) == 1
    said = capfd.readouterr().out
    assert "\x1b]" not in said
    assert not set("\x07\x9b\u202e") & set(said)


def test_processes_are_folded() -> None:
    ranks = [LogProcess(rank=n) for n in (0, 1, 2, 4, 7)]
    assert format_members(ranks) == "ranks 0-2, 4, 7"
    assert format_members([LogProcess(rank=3, host="b")]) == "rank 3 on b"
    assert (
        format_members([LogProcess(local_rank=1, host="b"), LogProcess(role="server 0")])
        == "local rank 1 on b, server 0"
    )

"""`preflight diagnose` as a command: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight import cli
from preflight.diagnosis.model import Party
from preflight.diagnosis.telling import named
from tests.diagnosis.cases import FOLDER

RECORDED = FOLDER / "logs" / "recorded"


def test_the_story_names_rank_line_meaning_remedy_and_what_looks_for_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(RECORDED / "checkpoint-disk-full")
    assert cli.run(["diagnose", "torchrun.log"]) == 1
    said = " ".join(capfd.readouterr().out.split())
    for part in (
        "rank 1 failed first: disk-full",
        "--> torchrun.log:",
        "iostream error",
        "raised at /home/anna/job/train.py:43",
        "means: A file could not be written whole",
        "do: Make room",
        "CKP012 checkpoint-does-not-fit",
        "rank 0 went down because of it",
        "CAUSE NAMED disk-full of rank 1; 1 log",
    ):
        assert part in said


def test_without_a_cause_it_says_so_and_whom_to_look_at(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["diagnose", str(RECORDED / "nodes-stopped")]) == 3
    said = capfd.readouterr().out
    assert "no log says why; look at rank 3 on node2 first" in said
    assert "DON'T KNOW" in said


def test_json_goes_to_a_file_beside_the_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "diagnosis.json"
    logs = str(RECORDED / "torchrun-healthy")
    assert cli.run(["diagnose", logs, "-v", "-o", "text", "-o", f"json:{target}"]) == 0
    assert "NOTHING FOUND WRONG" in capfd.readouterr().out
    assert json.loads(target.read_text())["answer"] == "nothing-wrong"


def test_the_other_exit_codes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["diagnose", str(tmp_path)]) == 4
    assert cli.run(["diagnose", str(tmp_path / "absent")]) == 2
    assert cli.run(["diagnose", str(tmp_path), "-o", "sarif"]) == 2
    assert "known are text, json" in capfd.readouterr().err


def test_what_a_hostile_log_holds_never_reaches_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = b"[rank1]: CUDA out of memory \x1b]0;gone\x07 \xc2\x9b31m \xe2\x80\xae!\n"
    (tmp_path / "a\x1b]0;x\x07.log").write_bytes(content)
    assert cli.run(["diagnose", str(tmp_path), "-v", "--color"]) == 1
    said = capfd.readouterr().out
    assert "\x1b]" not in said
    assert not set("\x07\x9b\u202e") & set(said)


def test_parties_are_folded() -> None:
    ranks = [Party(rank=n) for n in (0, 1, 2, 4, 7)]
    assert named(ranks) == "ranks 0-2, 4, 7"
    assert named([Party(rank=3, host="b")]) == "rank 3 on b"
    assert named([Party(local_rank=1, host="b"), Party(role="server 0")]) == "local rank 1 on b, server 0"

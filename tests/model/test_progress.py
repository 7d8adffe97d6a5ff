"""Every command that may take long reports its progress, from the first step to the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight import api
from preflight.cli.main import run
from preflight.model.progress import Step, delayed
from preflight.model.recording_io import save
from tests.builders import job, make_recording, reached


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve small jobs."""
    for number in range(12):
        script = f"#!/bin/bash\ntorchrun --nnodes=2 --master_port={29500 + number} train{number}.py\n"
        (tmp_path / f"run{number}.sh").write_text(script)
    return tmp_path


def stages(steps: list[Step]) -> list[str]:
    """The stages in the order in which they began."""
    return list(dict.fromkeys(step.stage for step in steps))


def test_lint_reports_progress_of_files_jobs_and_rules(folder: Path) -> None:
    steps: list[Step] = []
    api.lint([folder], root=folder, progress=steps.append)
    assert stages(steps) == ["files", "jobs", "judge"]
    assert [step.done for step in steps if step.stage == "jobs"] == list(range(12))
    judged = [step for step in steps if step.stage == "judge"]
    assert [step.done for step in judged] == list(range(judged[0].total))


def test_judge_reports_progress_of_reading_and_judging(tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    path.write_bytes(save(make_recording(job(), verb="check", nodes=reached("a", "b"), stages=("node",))))
    steps: list[Step] = []
    api.judge(path, progress=steps.append)
    assert stages(steps) == ["recording", "judge"]
    assert steps[-1].done == steps[-1].total - 1


def test_diagnose_reports_progress_of_each_log(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"rank{number}.log").write_text("RuntimeError: CUDA out of memory\n")
    steps: list[Step] = []
    api.diagnose([tmp_path], progress=steps.append)
    assert [(step.stage, step.done, step.total) for step in steps] == [("logs", n, 3) for n in range(3)]


def test_a_quick_run_shows_no_progress() -> None:
    now, steps = [10.0], list[Step]()
    tell = delayed(steps.append, after_s=1.0, clock=lambda: now[0])
    tell(Step("files", 1, 9))
    now[0] = 11.0
    tell(Step("files", 2, 9))
    assert [step.done for step in steps] == [2]


@pytest.mark.parametrize("verb", ["lint", "judge", "diagnose"])
def test_a_quick_command_shows_no_progress(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, log = folder / "recording.json", folder / "rank0.log"
    recording.write_bytes(save(make_recording(job())))
    log.write_text("all is well\n")
    named = {"lint": folder / "run0.sh", "judge": recording, "diagnose": log}[verb]
    run([verb, str(named)])
    assert capsys.readouterr().err == ""

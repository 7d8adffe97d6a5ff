"""Typing mistakes on the command line: commands, options, values, ids, files."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight._util.usage_error import nearest, nearest_path
from preflight.cli.main import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a job in it."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.sbatch").write_text("#!/bin/bash\ntorchrun --nnodes=2 train.py\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["lnit", "jobs"], "No such command 'lnit'. Did you mean 'lint'?"),
        (["lint", "--selct", "RDV"], "No such option: --selct. Did you mean --select?"),
        (["check", "x", "--hostss", "a"], "No such option: --hostss. Did you mean --hosts?"),
        (["lint", "--hosts", "a"], "smoke and check have it."),
        (["judge", "--until", "node", "x"], "judge has no option --until; nodes and check have it."),
        (["lint", "--profile", "gat"], "Did you mean 'gate'?"),
        (["lint", "--fail-on", "eror"], "Did you mean 'error'?"),
        (["schema", "recoding"], "Did you mean 'recording'?"),
        (["rules", "-o", "markdwn"], "Did you mean 'markdown'?"),
        (["baseline", "wirte"], "Did you mean 'write'?"),
        (["lint", "--output", "sari"], "did you mean 'sarif'?"),
        (["lint", "--select", "RDV01"], "the nearest: RDV001"),
        (["lint", "job"], "job does not exist; did you mean jobs?"),
        (["lint", "jobs/trian.sbatch"], "jobs/trian.sbatch does not exist; did you mean jobs/train.sbatch?"),
        (["lint", "job/train.sbatch"], "did you mean jobs/train.sbatch?"),
        (["judge", "jobs/train.sbath"], "did you mean jobs/train.sbatch?"),
        (["diagnose", "job"], "did you mean jobs?"),
        (["judge", "jobs/train.sbatch"], "; `preflight check --save FILE` writes one"),
        (["smoke", "--hosts", "a", "--python", "p", "--drill", "kil:rank1"], "did you mean kill?"),
        (["lint", "--quiet", "-v"], "--quiet and --verbose exclude each other"),
        (["lint", "--concise", "--statistics"], "exclude each other"),
    ],
)
def test_a_typo_gets_a_suggestion(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert hint in " ".join(said.split())
    assert "Traceback" not in said


def test_an_unrelated_word_gets_no_hint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "zzzzzz"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_suggestions_ignore_case() -> None:
    assert nearest("readme.MD", ["README.md", "run.sh"]) == "README.md"
    assert nearest("x", ["README.md"]) == ""


def test_a_misspelt_folder_gets_a_suggestion(folder: Path) -> None:
    assert nearest_path(Path("job/other.sh")) == "; there is jobs"
    assert nearest_path(Path("jobs")) == ""

"""A file of settings that a launch names counts against GO unless something is read from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight import api
from preflight.model.findings import VerdictKind


def job(folder: Path, arguments: str) -> Path:
    (folder / "run.sh").write_text(f"#!/bin/bash\ntorchrun --nproc_per_node=8 train.py {arguments}\n")
    (folder / "train.py").write_text('import torch.distributed as dist\n\ndist.init_process_group("nccl")\n')
    (folder / "own.yaml").write_text("alpha: {beta: 2}\n")
    return folder


@pytest.mark.parametrize("arguments", ["--cfg own.yaml", "--config=own.yaml", "-c own.yaml"])
def test_settings_that_no_source_reads_are_named(arguments: str, tmp_path: Path) -> None:
    report = api.lint(job(tmp_path, arguments))
    assert (report.verdict, report.exit_code) == (VerdictKind.INCOMPLETE, 3)
    (unread,) = report.understood.files_unread
    assert "`own.yaml` holds the settings of this launch, and no source reads a file of this kind" in unread.reason


@pytest.mark.parametrize("arguments", ["", "--data own.yaml", "--cfg absent.yaml", "--cfg $CONFIG"])
def test_other_arguments_change_nothing(arguments: str, tmp_path: Path) -> None:
    assert api.lint(job(tmp_path, arguments)).verdict is VerdictKind.GO


def test_a_script_that_reads_its_settings_itself_is_understood(tmp_path: Path) -> None:
    folder = job(tmp_path, "--cfg own.yaml")
    script = folder / "train.py"
    script.write_text(f"import yaml\n{script.read_text()}settings = yaml.safe_load(open('own.yaml'))\n")
    report = api.lint(folder)
    assert report.verdict is VerdictKind.GO
    assert any("only the script knows what they mean" in item.reason for item in report.coverage.unknown_outcomes)

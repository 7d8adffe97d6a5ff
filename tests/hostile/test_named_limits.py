"""Limits of readers: a file beyond a limit is named, and the verdict is incomplete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from preflight import api
from preflight._util import regular_file
from preflight.model.findings import VerdictKind

_LAUNCH = "mpirun -np 4 python train.py\n"


def _reasons(path: Path) -> str:
    report = api.lint([path], root=path.parent)
    # A finding outranks unread files.
    assert report.verdict in (VerdictKind.INCOMPLETE, VerdictKind.NO_GO)
    return " ".join(outcome.reason for outcome in report.coverage.unknown_outcomes if outcome.required)


def test_directives_of_a_batch_script_beyond_the_limit(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n" + "#PBS -l walltime=1:00\n" * 500 + _LAUNCH)
    assert "directives for the scheduler after the first 400 were not read" in _reasons(script)


def test_value_too_long_to_evaluate(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=2\na=" + "x" * 150_000 + "\nb=$a$a\ntorchrun --nnodes=2 t.py $b\n")
    assert "200000 characters" in _reasons(script)


def test_a_named_script_that_is_not_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('nccl'\n")
    assert "not Python 3" in _reasons(script)


def test_a_pipe_is_read_up_to_a_limit_and_a_deadline() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as stream:
        os.write(writing, b"x" * 1000)
        assert regular_file.read_pipe(stream, 100, 10) == b"x" * 100
        with pytest.raises(TimeoutError, match=r"not closed within 0\.2 s"):
            regular_file.read_pipe(stream, 100_000, 0.2)
        os.close(writing)

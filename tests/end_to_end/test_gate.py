"""Errors stop the smoke run, unless they are suppressed in the file or --keep-going is set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.head_command import ROOT
from tests.ports import free_port

pytestmark = pytest.mark.thorough

JOB = """\
torchrun --nnodes=2 --nproc_per_node=1 --node_rank="$NODE_RANK" --master_addr=localhost --master_port={} train.py{}
"""


@pytest.mark.parametrize(
    ("comment", "options", "skipped"),
    [
        ("", [], True),
        ("  # preflight: ignore[RDV001] both nodes are this machine", [], False),
        ("", ["--keep-going"], False),
    ],
    ids=["error", "suppressed", "kept going"],
)
def test_errors_stop_the_smoke_run(tmp_path: Path, comment: str, options: list[str], skipped: bool) -> None:
    (tmp_path / "run.sh").write_text(JOB.format(free_port(), comment))
    (tmp_path / "train.py").write_text("print('nothing distributed here')\n")
    # An interpreter that ends at once: the test is whether ranks are started, not what they do.
    command = [sys.executable, "-m", "preflight", "check", str(tmp_path / "run.sh"), "--on", "local"]
    report = tmp_path / "report.json"
    subprocess.run(
        [*command, "--python", "/bin/false", "--select", "RDV", "--select", "SMK", *options, "-o", f"json:{report}"],
        cwd=ROOT,
        timeout=60,
        check=False,
        capture_output=True,
    )
    stages = {stage["name"]: stage["skipped"] for stage in json.loads(report.read_text())["run"]["stages"]}
    assert bool(stages["smoke"]) is skipped
    if skipped:
        assert "RDV001" in stages["smoke"]

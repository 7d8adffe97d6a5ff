"""An interrupted run still writes its report, and leaves no process behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.head_command import ROOT
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.thorough

JOB = """\
torchrun --nnodes=2 --nproc_per_node=1 --node_rank="$NODE_RANK" --master_addr=127.0.0.1 --master_port={} train.py
"""
#: How long preflight and its processes may take to end.
GONE_WITHIN_S = 5.0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_partial_report_is_written(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "run.sh").write_text(JOB.format(free_port()))
    (tmp_path / "train.py").write_text('import torch.distributed as dist\n\ndist.init_process_group("gloo")\n')
    command = [sys.executable, "-m", "preflight", "check", str(tmp_path / "run.sh"), "--on", "local"]
    # An interpreter that never answers, so the run is still active when the signal is sent.
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 300\n")
    sleeper.chmod(0o755)
    report = tmp_path / "report.json"
    process = subprocess.Popen(
        [*command, "--python", str(sleeper), "--keep-going", "--output", f"json:{report}"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "checking the nodes" in line:
            break
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, errors = process.communicate(timeout=GONE_WITHIN_S + 10)
    assert "Traceback" not in errors
    assert process.returncode == code
    written = json.loads(report.read_text())
    assert written["exit_code"] == code
    assert written["run"]["stages"][-1]["skipped"] == "it was interrupted"
    assert [record["problem"] for record in written["nodes"]] == ["", ""]
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in below))

"""A rank started by a launcher ends cleanly, whatever its threads are doing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.thorough

#: The program with nine watchdog threads without a pause, so that some are inside torch at any time.
WATCHED = """
import runpy, threading
import reference_trainer.common.watchdog as watch

watch.POLL_S = 0.0
start = watch.RankWatchdog.start

def nine_times(self):
    start(self)
    for _ in range(8):
        threading.Thread(target=self._run, daemon=True).start()

watch.RankWatchdog.start = nine_times
runpy.run_module("reference_trainer", run_name="__main__")
"""


def test_threads_inside_torch_do_not_abort_a_finished_rank() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED],
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.returncode, done.stderr.count("terminate called")) == (0, 0), done.stderr
    assert "preflight smoke: GO: 1 rank on 1 host" in done.stdout


def test_process_without_a_launcher_reports_it() -> None:
    environment = {key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH", "HOME")}
    done = subprocess.run(
        [sys.executable, "-m", "reference_trainer"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "preflight smoke: NO-GO: " in done.stdout

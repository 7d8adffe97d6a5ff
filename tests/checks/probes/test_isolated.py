"""Tasks in their own processes: results before a hang or a crash are kept, and a hung task is not awaited."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from preflight_checks.probes.isolated import Send, run_isolated
from tests.waiting import scaled


def _quick(say: Send) -> None:
    say({"name": "é" * 40000})
    say({"count": 2})


def _hangs(say: Send) -> None:
    say({"name": "early"})
    say({"at": "a call"})
    time.sleep(60)


def _raises(say: Send) -> None:
    say({"at": "reading"})
    raise ValueError("no such thing")


def _is_killed(say: Send) -> None:
    say({"at": "computing"})
    os.kill(os.getpid(), signal.SIGKILL)


def test_each_task_reports_separately() -> None:
    quick, hung, broken, killed = run_isolated([_quick, _hangs, _raises, _is_killed], scaled(1.0))
    assert (quick.problem, quick.values) == ("", {"name": "é" * 40000, "count": 2})
    assert (hung.problem, hung.at, hung.values) == ("timeout", "a call", {"name": "early"})
    assert (broken.problem, broken.at) == ("crashed", "reading") and "no such thing" in broken.detail
    assert killed.problem == "crashed" and "signal 9" in killed.detail


def test_nothing_to_do() -> None:
    assert run_isolated([], 0.1) == []


def test_no_child_process_remains() -> None:
    """Runs in its own interpreter, because other tests leave children of their own."""
    program = (
        "import os\n"
        f"from {__name__} import _hangs, _quick, run_isolated\n"
        "run_isolated([_hangs, _quick], 0.2)\n"
        "try:\n"
        "    print(*os.waitpid(-1, os.WNOHANG))\n"
        "except ChildProcessError:\n"
        "    print('none')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout.strip(), ended.stderr) == ("none", ""), "a child was not reaped"

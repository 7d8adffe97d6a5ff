"""An uncaught C++ exception ends the process only after its other threads had time."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, sys, threading, time
from reference_trainer.paddle.collective_rank import delay_abort
if sys.argv[1] != "none":
    assert delay_abort(float(sys.argv[1]))
threading.Timer(0.5, lambda: (print("named", flush=True), os._exit(7))).start()
ctypes.PyDLL("libstdc++.so.6")._ZSt9terminatev()
"""


@pytest.mark.parametrize(
    ("delay", "code", "said"), [("none", -signal.SIGABRT, ""), ("20", 7, "named\n"), ("0.01", -signal.SIGABRT, "")]
)
def test_a_thread_may_end_the_process_before_it_aborts(delay: str, code: int, said: str) -> None:
    try:
        ctypes.CDLL("libstdc++.so.6")
    except OSError:
        pytest.skip("this machine has no shared library of C++")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, delay], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (code, said), done.stderr

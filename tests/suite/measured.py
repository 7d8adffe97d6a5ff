"""The most memory and the CPU time of a program, whatever process starts it.

Linux counts the memory of a process before `exec` towards the program it becomes (`ru_maxrss`), so that a program that
a test worker of 1.5 GB starts has taken 1.5 GB before its first instruction. A small process in between starts it here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Starts the program named in its arguments, waits for it, and writes what it used into the pipe.
_STARTER = """
import json, os, sys
pipe = int(sys.argv[1])
os.set_inheritable(pipe, False)
pid = os.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(pid, 0)
said = [os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024]
os.write(pipe, json.dumps(said).encode())
"""


@dataclass(frozen=True)
class Measured:
    """How a program ended and what it used, with the processes that it waited for.

    Args:
        code: the exit status, negative for a signal.
        peak_bytes: the most memory of any one process.
    """

    code: int
    output: str
    cpu_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"exit {self.code}, {self.cpu_s:.1f} s of CPU time, {self.peak_bytes >> 20} MiB, at a load of"
            f" {os.getloadavg()[0]:.1f}: {self.output[-2000:]}"
        )


def measured(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
) -> Measured:
    """Run a command, and wait for it at most so many seconds by the clock.

    Raises:
        subprocess.TimeoutExpired: it was still running, and has been killed with all that it started.
    """
    reading, writing = os.pipe()
    with open(reading, "rb") as report:  # noqa: PTH123
        starter = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _STARTER, str(writing), *map(str, command)],
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            start_new_session=True,
        )
        os.close(writing)
        try:
            output, _ = starter.communicate(timeout=timeout_s)
        except BaseException:
            os.killpg(starter.pid, signal.SIGKILL)
            starter.communicate()
            raise
        code, cpu_s, peak_bytes = json.loads(report.read())
    return Measured(code, output.decode("utf-8", "replace"), cpu_s, peak_bytes)

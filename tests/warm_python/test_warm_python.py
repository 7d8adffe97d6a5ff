"""The stand-in for Python does what Python does, but has torch already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.waiting import until
from tests.warm_python import warm_python

pytestmark = pytest.mark.thorough

#: Detects the fork by a module that a fresh interpreter has not imported.
WARM = "import sys; print('torch' in sys.modules)"


def run(
    program: str, *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"]} if env is None else env
    return subprocess.run(
        [program, *words], env=environment, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def python() -> str:
    pytest.importorskip("torch")
    return warm_python()


@pytest.mark.parametrize(
    ("words", "warm"),
    [
        (("-c", WARM), True),
        (("-I", "-S", "-u", "-c", WARM), True),
        (("-X", "utf8", "-c", WARM), False),
    ],
)
def test_only_command_lines_that_it_knows_are_forked(python: str, words: tuple[str, ...], warm: bool) -> None:
    assert run(python, *words).stdout == f"{warm}\n"


def test_preloaded_libraries_and_variables_of_python_need_a_fresh_interpreter(python: str) -> None:
    for name in ("LD_PRELOAD", "PYTHONPATH"):
        assert run(python, "-c", WARM, env={name: ""}).stdout == "False\n"
    assert run(python, "-c", WARM, env={"PYTHONUNBUFFERED": "1"}).stdout == "True\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os, sys; print(sys.argv, sorted(os.environ.items()), os.getcwd(), sys.path)",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a reason')",
        "import os; os.kill(os.getpid(), 15)",
        "import signal; print([signal.getsignal(n) for n in (2, 13, 15, 17)])",
        "import os; print(os.umask(0), os.sched_getaffinity(0), sorted(os.listdir('/proc/self/fd')))",
        "import sys; print(sys.stdin.read(), __name__)",
        "import atexit; atexit.register(print, 'the end')",
    ],
)
def test_a_program_runs_as_in_a_fresh_interpreter(python: str, tmp_path: Path, code: str) -> None:
    fresh, warm = (
        run(program, "-c", code, "an argument", env={"NAME": "value", "LANG": "C.UTF-8"}, cwd=tmp_path)
        for program in (sys.executable, python)
    )
    assert (warm.returncode, warm.stdout, warm.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_a_fork_that_executes_the_stand_in_keeps_its_pid_and_is_fresh(python: str) -> None:
    again = "import os, sys; print(os.getpid(), sys.argv, dict(os.environ), 'json.tool' in sys.modules); sys.exit(4)"
    code = (
        f"import json.tool, os\nwords = [{python!r}, '-c', {again!r}, 'x']\n"
        "pid = os.fork()\nif not pid: os.execvpe(words[0], words, {'A': 'b'})\n"
        "_, status = os.waitpid(pid, 0)\nprint(pid, os.waitstatus_to_exitcode(status))"
    )
    done = run(python, "-c", code)
    first, second = done.stdout.splitlines()
    pid = second.split()[0]
    assert first == f"{pid} ['-c', 'x'] {{'A': 'b'}} False" and second == f"{pid} 4", done


def test_signals_reach_the_program_which_ends_with_the_stand_in(python: str) -> None:
    code = (
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
        "print(os.getpid(), flush=True)\nwhile True: time.sleep(0.05)"
    )
    with subprocess.Popen([python, "-u", "-c", code], env={}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "asked\n"
        process.kill()
        until(lambda: not Path(f"/proc/{pid}").exists())

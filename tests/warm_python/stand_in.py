"""Starts the warm process and holds the path of the program that stands in for Python."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.devices import compile_program


@functools.cache
def warm_python() -> str:
    """The program, started on first use; it ends with this process."""
    python = WarmPython()
    python.__enter__()
    atexit.register(python.__exit__)
    return python.path


class WarmPython:
    """`with WarmPython() as python:` makes `python.path` start Python programs in a process that has imported torch.

    The folder is one that virtual nodes see: they have a /tmp of their own.
    """

    def __enter__(self) -> WarmPython:
        self.folder = Path(tempfile.mkdtemp(prefix="warm-python-", dir="/var/tmp"))
        #: The program; its folder may stand in front of others on PATH.
        self.path = str(self.folder / "python3")
        shutil.copy(compile_program("client.c", Path(__file__).parent), self.path)
        (self.folder / "real").symlink_to(sys.executable)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        # One thread, because a thread pool does not survive a fork.
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py")), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**own, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"ready\n":
            self.__exit__()
            raise RuntimeError("the warm Python did not start")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(10)
        self._server.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

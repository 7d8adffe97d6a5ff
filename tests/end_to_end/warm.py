"""A head with preflight already imported, for tests that run it hundreds of times.

A process on the cluster's head imports everything once, and forks for each command line; the fork behaves like a new
`python -m preflight`. Imports are half of the work of such a process.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.cluster import Cluster
from tests.cluster.namespace import NodeProcess

__all__ = ["WarmHead"]


class WarmHead:
    """Runs `preflight` with some arguments on the head of a cluster; `close` ends it."""

    def __init__(self, cluster: Cluster, folder: Path, environment: dict[str, str]) -> None:
        self._folder = str(folder)
        #: It accepts no more commands, for example after a timeout.
        self.closed = False
        command = [sys.executable, "-c", "from tests.end_to_end.warm import serve; serve()"]
        self._server: NodeProcess = cluster.head.popen(
            command, cwd=self._folder, env=environment, stdin=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, arguments: Sequence[str], output_path: Path, *, timeout: float) -> subprocess.CompletedProcess[str]:
        """Like `cluster.head.run` of a new process; its output goes through two files beside `output_path`."""
        assert self._server.stdin is not None and self._server.stdout is not None
        files = [f"{output_path}.out", f"{output_path}.err"]
        with suppress(BrokenPipeError):  # Its last output gives the reason.
            self._server.stdin.write(json.dumps({"arguments": [*arguments], "files": files}) + "\n")
            self._server.stdin.flush()
        until = time.monotonic() + timeout
        ready, _, _ = select.select([self._server.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            self.close()
            raise subprocess.TimeoutExpired([*arguments], timeout)
        answer = self._server.stdout.readline()
        assert answer.startswith("{"), answer + self._server.stdout.read()
        output, errors = (Path(name).read_text(errors="backslashreplace") for name in files)
        return subprocess.CompletedProcess([*arguments], json.loads(answer)["code"], output, errors)

    def close(self) -> None:
        """End it and its command."""
        self.closed = True
        self._server.kill_session()
        self._server.wait(timeout=10)


def serve() -> None:
    """Runs on the head: for each line of arguments, one line with the exit code."""
    from preflight.cli import main
    from preflight.plugins import registry

    for group in (registry.RULES, registry.CHECKS, registry.SOURCES, registry.EXECUTORS, registry.REPORTERS):
        registry.load(group)
    # Like a new process, it does not import from its working directory.
    sys.path[:] = [place for place in sys.path if place]
    judged = False
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(asked["arguments"], asked["files"], main.run)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)
        if not judged:
            judged = _judge(asked["arguments"])


def _become(arguments: list[str], files: list[str], run: object) -> None:
    code = 70
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        outputs = [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) for name in files]
        for there, here in zip((nothing, *outputs), (0, 1, 2), strict=True):
            os.dup2(there, here)
            os.close(there)
        assert callable(run)
        code = run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _judge(arguments: list[str]) -> bool:
    """Judge the recording here too, so that later forks inherit its validators."""
    from preflight import api
    from preflight.model.recording_io import load

    saved = Path(arguments[arguments.index("--save") + 1])
    if not saved.exists():
        return False
    api.judge(load(saved.read_bytes()))
    return True

"""Running commands inside the namespaces of one process of the cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

__all__ = ["HOME", "ClusterError", "Namespace", "NodeProcess", "base_environment"]

HOME = "/run/home/root"
"""Root's home on every node: private, in memory, and empty but for `.ssh`."""

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
File = int | IO[str] | IO[bytes] | None


class ClusterError(RuntimeError):
    """The virtual cluster failed, not the program under test."""


def base_environment() -> dict[str, str]:
    """The environment of every command: nothing of the caller's except this Python, first on PATH."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
        "HOME": HOME,
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
    }


class NodeProcess(subprocess.Popen[str]):
    """A running command; signals go to the command itself, not to the `nsenter` that carries it."""

    def send_signal(self, sig: int) -> None:
        """Send `sig` to the command; its exit status comes back as usual."""
        if self.poll() is not None:
            return
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with contextlib.suppress(OSError):
            pids = children.read_text().split()
            os.kill(int(pids[0]) if pids else self.pid, sig)

    def kill_session(self) -> None:
        """Kill the command and everything that it started in its own process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class Namespace:
    """The view of one process: its network, mounts, host name and processes.

    `pid` is the process as the caller sees it; every command enters all its namespaces.
    """

    def __init__(self, pid: int, working_folder: str) -> None:
        self.pid = pid
        self._working_folder = working_folder
        self._started: list[NodeProcess] = []

    def path(self, inside: str) -> Path:
        """The caller's path of the file `inside` this namespace. Use real paths: absolute links would lead to the
        caller's root.
        """
        return Path(f"/proc/{self.pid}/root{inside}")

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: File = subprocess.DEVNULL,
        stdout: File = subprocess.PIPE,
        stderr: File = subprocess.PIPE,
        own_session: bool = True,
    ) -> NodeProcess:
        """Start `argv` here; `env` is added to a clean environment, nothing is inherited.

        `own_session=False` keeps the caller's terminal, for interactive use.
        """
        environment = base_environment() | dict(env or {})
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "--"]
        process = NodeProcess(
            [*enter, "env", f"--chdir={cwd or self._working_folder}", "--", *argv],
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="backslashreplace",
            start_new_session=own_session,
        )
        self._started.append(process)
        return process

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        input: str | None = None,
        timeout: float = 30.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` here to its end; after `timeout` seconds kill it and raise `TimeoutExpired`."""
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        with self.popen(argv, env=env, cwd=cwd, stdin=stdin) as process:
            try:
                output, errors = process.communicate(input, timeout=timeout)
            except BaseException:
                process.kill_session()
                raise
            finally:
                self._started.remove(process)
        return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)

    def must(self, argv: Sequence[str], *, input: str | None = None, timeout: float = 10.0) -> str:
        """Run a command of the cluster itself; return its output, or raise `ClusterError` with it."""
        done = self.run(argv, input=input, timeout=timeout)
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def reap(self) -> None:
        """Collect the commands still known, after their namespaces are gone."""
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._started.clear()

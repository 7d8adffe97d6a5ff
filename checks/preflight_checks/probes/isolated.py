"""Run tasks that may never return, each in its own process with a deadline.

One GPU that hangs in its driver must not hide the other seven, and results from before it hung still count.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict

from preflight.agent import process

#: Reports results so far; the key `at` names the current operation.
Send = Callable[[Dict[str, Any]], None]
Task = Callable[[Send], None]

_MAX_BYTES = 1 << 20


@dataclass
class TaskResult:
    """The report of one task. `problem` is empty, `timeout` or `crashed`; `at` is its last operation."""

    values: dict[str, Any] = field(default_factory=dict)
    at: str = ""
    problem: str = ""
    detail: str = ""
    took_s: float = 0.0


def run_isolated(tasks: list[Task], deadline_s: float) -> list[TaskResult]:
    """Run all tasks at the same time, each in a fork, and read their reports until they end or the deadline passes.

    A late task is killed but not waited for, because a task that is stuck in the kernel cannot end; the agent adopts it
    when this process ends. Raises OSError if no process can be started.
    """
    started_at = time.monotonic()
    running: dict[int, _Child] = {}
    results = [TaskResult() for _ in tasks]
    try:
        for task, result in zip(tasks, results):
            child = _fork(task, result)
            running[child.fd] = child
        while running:
            remaining = started_at + deadline_s - time.monotonic()
            if remaining <= 0:
                break
            ready, _, _ = select.select(list(running), [], [], remaining)
            for fd in ready:
                if not running[fd].receive():
                    running.pop(fd).end(time.monotonic() - started_at)
    finally:
        for child in running.values():
            child.kill_late(time.monotonic() - started_at)
    return results


class _Child:
    def __init__(self, pid: int, fd: int, results: TaskResult) -> None:
        self.pid = pid
        self.fd = fd
        self._result = results
        self._rest = b""
        self._ended = False

    def receive(self) -> bool:
        data = os.read(self.fd, 65536)
        self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            message = json.loads(line.decode("utf-8"))
            self._result.at = message.pop("at", self._result.at)
            self._ended = self._ended or message.pop("end", False)
            self._result.detail = message.pop("crash", self._result.detail)
            self._result.values.update(message)
        return bool(data) and len(self._rest) < _MAX_BYTES

    def end(self, took_s: float) -> None:
        """Record how the task ended, once it has closed its pipe."""
        os.close(self.fd)
        _, status = os.waitpid(self.pid, 0)
        self._result.took_s = round(took_s, 3)
        if not self._ended:
            self._result.problem = "crashed"
            if os.WIFSIGNALED(status):
                self._result.detail = f"it was killed by signal {os.WTERMSIG(status)}"
            self._result.detail = self._result.detail or f"it exited with code {os.WEXITSTATUS(status)}"

    def kill_late(self, took_s: float) -> None:
        """Kill a late task; the agent reaps it."""
        os.close(self.fd)
        self._result.took_s = round(took_s, 3)
        self._result.problem = "timeout"
        try:
            os.kill(self.pid, signal.SIGKILL)
            for _ in range(5):
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    break
                time.sleep(0.01)
        except OSError:
            pass


def _fork(task: Task, results: TaskResult) -> _Child:
    read, write = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if pid:
        os.close(write)
        return _Child(pid, read, results)
    code = 1
    try:
        process.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os.close(read)

        def send(values: dict[str, Any]) -> None:
            data = memoryview(json.dumps(values, separators=(",", ":")).encode("utf-8") + b"\n")
            while data:
                data = data[os.write(write, data) :]

        try:
            task(send)
            send({"end": True})
            code = 0
        except Exception as error:
            send({"crash": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)

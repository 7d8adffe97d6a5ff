"""Work that may never return, each piece in a process of its own under a deadline.

One GPU that hangs in its driver must not hide the other seven, and what was learnt before it hung still counts.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

from preflight.node import process
from preflight.node.record import ANNOTATED, dataclass, field

if ANNOTATED:
    from typing import Any, Callable, Dict, List

    #: Says what is known so far; the key `at` names what is being waited for.
    Say = Callable[[Dict[str, Any]], None]
    Task = Callable[[Say], None]

_LONGEST_BYTES = 1 << 20


@dataclass
class Heard:
    """What one task said. `problem` is empty, `timeout` or `crashed`; `at` is what it was doing last."""

    values: Dict[str, Any] = field(default_factory=dict)
    at: str = ""
    problem: str = ""
    detail: str = ""
    took_s: float = 0.0


def apart(tasks: List[Task], deadline_s: float) -> List[Heard]:
    """Run all tasks at the same time, each in a fork, and hear them until they end or the deadline passes.

    A task that is late is killed and not waited for: one that is stuck in the kernel cannot end, and the agent takes
    over what is left when this process goes. Raises OSError where no process can be started.
    """
    began = time.monotonic()
    running: Dict[int, _Child] = {}
    heard = [Heard() for _ in tasks]
    try:
        for task, one in zip(tasks, heard):
            child = _fork(task, one)
            running[child.fd] = child
        while running:
            left = began + deadline_s - time.monotonic()
            if left <= 0:
                break
            ready, _, _ = select.select(list(running), [], [], left)
            for fd in ready:
                if not running[fd].hear():
                    running.pop(fd).end(time.monotonic() - began)
    finally:
        for child in running.values():
            child.give_up(time.monotonic() - began)
    return heard


class _Child:
    def __init__(self, pid: int, fd: int, heard: Heard) -> None:
        self.pid = pid
        self.fd = fd
        self._heard = heard
        self._rest = b""
        self._ended = False

    def hear(self) -> bool:
        """Take what it has said; False at the end of it."""
        data = os.read(self.fd, 65536)
        self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            said = json.loads(line.decode("utf-8"))
            self._heard.at = said.pop("at", self._heard.at)
            self._ended = self._ended or said.pop("end", False)
            self._heard.detail = said.pop("crash", self._heard.detail)
            self._heard.values.update(said)
        return bool(data) and len(self._rest) < _LONGEST_BYTES

    def end(self, took_s: float) -> None:
        """It closed its end: see how it went."""
        os.close(self.fd)
        _, status = os.waitpid(self.pid, 0)
        self._heard.took_s = round(took_s, 3)
        if not self._ended:
            self._heard.problem = "crashed"
            if os.WIFSIGNALED(status):
                self._heard.detail = "it was ended by signal %d" % os.WTERMSIG(status)
            self._heard.detail = self._heard.detail or "it ended with code %d" % os.WEXITSTATUS(status)

    def give_up(self, took_s: float) -> None:
        """It is too late: kill it, and leave the reaping to whoever can wait."""
        os.close(self.fd)
        self._heard.took_s = round(took_s, 3)
        self._heard.problem = "timeout"
        try:
            os.kill(self.pid, signal.SIGKILL)
            for _ in range(5):
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    break
                time.sleep(0.01)
        except OSError:
            pass


def _fork(task: Task, heard: Heard) -> _Child:
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
        return _Child(pid, read, heard)
    code = 1
    try:
        process.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os.close(read)

        def say(values: Dict[str, Any]) -> None:
            data = memoryview(json.dumps(values, separators=(",", ":")).encode("utf-8") + b"\n")
            while data:
                data = data[os.write(write, data) :]

        try:
            task(say)
            say({"end": True})
            code = 0
        except Exception as error:
            say({"crash": "%s: %s" % (type(error).__name__, error)})
    finally:
        os._exit(code)

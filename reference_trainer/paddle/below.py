"""Paddle's server in a process below the one that speaks for it: it imports, says so, serves when told, and is killed.

Paddle's server has no way to end, and holds the interpreter while it serves.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time

from preflight.node import process
from preflight.node.wire import ProbeUnavailable
from reference_trainer.paddle import program
from reference_trainer.ps.settings import Settings


class Below:
    """Paddle's server in a process of its own: it imports, says so, and serves when told to."""

    def __init__(self, told: Settings, listener: socket.socket) -> None:
        reading, self._saying = os.pipe()
        self._hearing, writing = os.pipe()
        self._heard = b""
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(reading)
            os.close(writing)
            return
        process.die_with_parent()
        os.close(self._saying)
        os.close(self._hearing)
        listener.close()
        _serve_paddle(told, reading, writing)

    def ready(self, timeout_s: float) -> str:
        """Its version of paddle, once it is imported. Raises ProbeUnavailable with what it said instead."""
        ends = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._hearing, selectors.EVENT_READ)
            while b"\n" not in self._heard:
                left = ends - time.monotonic()
                if left <= 0:
                    raise ProbeUnavailable("timeout", "paddle was not imported within %g s" % timeout_s)
                if selector.select(left):
                    part = os.read(self._hearing, 4096)
                    if not part:
                        raise RuntimeError("paddle's server %s while it was imported" % self._ending())
                    self._heard += part
        kind, _, text = self._heard.split(b"\n", 1)[0].decode("utf-8", "replace").partition(" ")
        if kind != "ready":
            raise ProbeUnavailable(kind, text)
        return text

    def go(self) -> None:
        """Let it serve: its port is free."""
        os.write(self._saying, b"go\n")

    def gone(self) -> str:
        """How it ended; empty while it runs."""
        if not self.pid:
            return "ended"
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return ""
        self.pid = 0
        return _how(status)

    def _ending(self) -> str:
        if not self.pid:
            return "ended"
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return _how(status)

    def end(self) -> None:
        """Kill it, if it still runs."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        os.close(self._saying)
        os.close(self._hearing)


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "was killed by %s" % signal.Signals(os.WTERMSIG(status)).name
    return "exited with %d" % os.WEXITSTATUS(status)


def _serve_paddle(told: Settings, reading: int, writing: int) -> None:
    """The process below: never returns."""
    code = 1
    try:
        program.environment(told, "server", "")
        paddle = program.load()
        os.write(writing, b"ready %s\n" % str(paddle.__version__).encode())
        if os.read(reading, 16) == b"go\n":
            cut = program.Program(paddle, told)
            cut.fleet.init_server()
            cut.fleet.run_server()
            code = 0
    except ProbeUnavailable as error:
        os.write(writing, ("%s %s\n" % (error.kind, error.reason.replace("\n", " "))).encode())
    except BaseException as error:
        sys.stderr.write("%s: %s\n" % (type(error).__name__, error))
    finally:
        sys.stderr.flush()
        os._exit(code)

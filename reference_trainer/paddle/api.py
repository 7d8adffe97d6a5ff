"""Paddle's server in a child process of the process that reports for it: it imports, reports, serves on command, and is
killed.

Paddle's server cannot be stopped, and holds the interpreter while it serves.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time

from preflight.agent import process
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.paddle import static_program
from reference_trainer.ps.settings import Settings


class PaddleServerProcess:
    """Paddle's server in a separate process: it imports, reports, and serves on command."""

    def __init__(self, config: Settings, listener: socket.socket) -> None:
        reading, self._writing = os.pipe()
        self._reading, writing = os.pipe()
        self._received = b""
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(reading)
            os.close(writing)
            return
        process.die_with_parent()
        os.close(self._writing)
        os.close(self._reading)
        listener.close()
        _serve_paddle(config, reading, writing)

    def ready(self, timeout_s: float) -> str:
        """The server's version of paddle, once imported. Raises ProbeUnavailable with its output if that fails."""
        ends = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._reading, selectors.EVENT_READ)
            while b"\n" not in self._received:
                left = ends - time.monotonic()
                if left <= 0:
                    raise ProbeUnavailable("timeout", "paddle was not imported within %g s" % timeout_s)
                if selector.select(left):
                    part = os.read(self._reading, 4096)
                    if not part:
                        raise RuntimeError("paddle's server %s while it was imported" % self._ending())
                    self._received += part
        kind, _, text = self._received.split(b"\n", 1)[0].decode("utf-8", "replace").partition(" ")
        if kind != "ready":
            raise ProbeUnavailable(kind, text)
        return text

    def serve(self) -> None:
        """Start serving; its port must be free."""
        os.write(self._writing, b"go\n")

    def exit_reason(self) -> str:
        """A description of how it ended; empty while it runs."""
        if not self.pid:
            return "ended"
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return ""
        self.pid = 0
        return _describe_status(status)

    def _ending(self) -> str:
        if not self.pid:
            return "ended"
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return _describe_status(status)

    def end(self) -> None:
        """Kill it if it is still running."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        os.close(self._writing)
        os.close(self._reading)


def _describe_status(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "was killed by %s" % signal.Signals(os.WTERMSIG(status)).name
    return "exited with %d" % os.WEXITSTATUS(status)


def _serve_paddle(config: Settings, reading: int, writing: int) -> None:
    """The child process: never returns."""
    code = 1
    try:
        static_program.environment(config, "server", "")
        paddle = static_program.load()
        os.write(writing, b"ready %s\n" % str(paddle.__version__).encode())
        if os.read(reading, 16) == b"go\n":
            cut = static_program.Program(paddle, config)
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

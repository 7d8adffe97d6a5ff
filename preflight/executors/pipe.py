"""A channel over the standard streams of a child process, how an agent is started over it, and agents on this
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio

from preflight._util.log import command_text
from preflight._util.usage_error import UsageError
from preflight.agent import bootstrap, process
from preflight.executors.base import (
    Bundle,
    Channel,
    Executor,
    ExecutorError,
    GatheredNodes,
    NodeRequest,
    Option,
    await_bundle,
)
from preflight.model.recording import Node

#: Largest size of a shell banner before the agent's first line.
MAX_NOISE_BYTES = 1 << 20
#: How long the transport may take to exit after its channel was closed.
CLOSE_S = 2.0
_STDERR_BYTES = 8192
#: Number of characters printed before the agent started that are kept for the reason of a failure.
_NOISE_BYTES = 2048
#: Number of last lines, and of their characters, that the message about a timeout quotes.
_PRINTED_LINES, _PRINTED_CHARACTERS = 3, 300
#: The exit code of ssh when the connection is lost.
_SSH_FAILED = 255
_CHUNK = 1 << 16
#: How long the rest of a short frame may take.
_FINISH_S = 2.0

_log = logging.getLogger(__name__)

Diagnose = Callable[[int | None, str], ExecutorError]


class StartingChannel(Channel, Protocol):
    """A channel over which an agent is being started."""

    async def exit_code(self, deadline_s: float) -> int | None:
        """Return the exit code of the transport; None if it is still running at the deadline, or unknown."""
        ...

    def push_back(self, data: bytes) -> None:
        """Make `receive` return `data` first."""
        ...


def make_nonce() -> str:
    """Return a random line that no banner contains."""
    return f"preflight-{secrets.token_hex(12)}"


def _die_with_parent() -> None:
    # SIGTERM, because the process may be an agent's guardian, which then ends what is below it.
    process.die_with_parent(signal.SIGTERM)


def _wrap_to_die_with_parent(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], Callable[[], None] | None]:
    """Return the command line that makes a command end with this process, and a function to run in the fork before it.

    Running code in a fork requires a copy of this whole process, which costs more than starting ssh; a system program
    for the purpose avoids the copy.
    """
    program = shutil.which(command[0], path=environment.get("PATH")) if _setpriv() else None
    # If the program is missing, the error must name it instead of setpriv.
    return ([*_setpriv(), *command], None) if program is not None else (list(command), _die_with_parent)


@functools.cache
def _setpriv() -> tuple[str, ...]:
    """Return the setpriv of util-linux, with the options for that purpose, if its version has them (since 2.33)."""
    path = shutil.which("setpriv")
    words = (path or "", "--pdeathsig", "TERM", "--")
    try:
        done = subprocess.run([*words, "true"], capture_output=True, timeout=2.0)
    except (OSError, subprocess.SubprocessError):
        return ()
    return words if done.returncode == 0 else ()


class PipeChannel:
    """The streams of one child process. The child dies with this process, even if this process is killed."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        description: str,
        environment: Mapping[str, str] | None = None,
        close_s: float = CLOSE_S,
        ignores_sigterm: bool = False,
        bytes_per_s: int = 0,
    ) -> None:
        """Start `command`. Raises OSError if it cannot be run.

        `bytes_per_s` limits sending if the transport loses data that its other end does not read in time.
        """
        self._bytes_per_s = bytes_per_s
        #: Held while a frame is being written, so that no other thread writes into it.
        self._sending = threading.Lock()
        self._description = description
        self._close_s = close_s
        self._ignores_sigterm = ignores_sigterm
        self._stream, theirs = socket.socketpair()
        self._errors, their_errors = socket.socketpair()
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s: run %s", description, command_text(command))
        words, before = _wrap_to_die_with_parent(command, os.environ if environment is None else environment)
        try:
            # In a separate session, so that Ctrl-C reaches only the head, which then ends everything in order.
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                words,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=their_errors.fileno(),
                env=None if environment is None else dict(environment),
                start_new_session=True,
                preexec_fn=before,
            )
        except BaseException:
            self._stream.close()
            self._errors.close()
            raise
        finally:
            theirs.close()
            their_errors.close()
        self._stream.setblocking(False)
        self._errors.setblocking(False)
        self._pushed_back = b""
        self._stderr = bytearray()
        self._errors_ended = False
        asyncio.get_running_loop().add_reader(self._errors.fileno(), self._read_errors)
        self._closed = False

    @property
    def description(self) -> str:
        return self._description

    @property
    def pid(self) -> int:
        """Return the process of the transport."""
        return self._process.pid

    def _read_errors(self) -> None:
        """Read available standard error, without waiting, and only a part of it if there is too much."""
        for _ in range(64):
            try:
                data = self._errors.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self._errors.fileno())
                self._errors_ended = True
                return
            self._stderr += data
            del self._stderr[:-_STDERR_BYTES]

    def error_tail(self) -> str:
        # The end of the output may be noticed before the loop has read its last part.
        if not self._errors_ended:
            self._read_errors()
        return self._stderr.decode("utf-8", "replace").strip()

    def push_back(self, data: bytes) -> None:
        self._pushed_back = data + self._pushed_back

    async def send(self, data: bytes) -> None:
        while not self._sending.acquire(blocking=False):
            await anyio.sleep(0.001)
        try:
            await self._send(data)
        except OSError as error:
            raise ExecutorError(
                "unreachable", f"{self.description} is gone: {error.strerror or error}", self.error_tail()
            ) from error
        finally:
            self._sending.release()

    async def _send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        if not self._bytes_per_s:
            await loop.sock_sendall(self._stream, data)
            return
        for begin in range(0, len(data), _CHUNK):
            piece = data[begin : begin + _CHUNK]
            await loop.sock_sendall(self._stream, piece)
            await anyio.sleep(len(piece) / self._bytes_per_s)

    def send_nowait(self, frame: bytes) -> None:
        """Send one short frame from any thread; skip it if another is being written or sending would block."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            left = memoryview(frame)
            left = left[self._stream.send(left) :]
            # A started frame must be completed; otherwise the next one would be read as its remainder.
            until = time.monotonic() + _FINISH_S
            while left and time.monotonic() < until:
                select.select([], [self._stream], [], 0.1)
                with contextlib.suppress(BlockingIOError):
                    left = left[self._stream.send(left) :]
        except (OSError, ValueError):
            # Full, or gone: the reader of the stream notices.
            pass
        finally:
            self._sending.release()

    async def receive(self) -> bytes:
        if self._pushed_back:
            data, self._pushed_back = self._pushed_back, b""
            return data
        try:
            return await asyncio.get_running_loop().sock_recv(self._stream, _CHUNK)
        except OSError:
            return b""

    async def exit_code(self, deadline_s: float) -> int | None:
        """Return the exit code of the transport; None if it is still running at the deadline."""
        with anyio.move_on_after(deadline_s):
            if self._process.poll() is None:
                await self._wait_for_exit()
        return self._process.poll()

    async def _wait_for_exit(self) -> None:
        """Wait for the end of the process without reaping it."""
        try:
            fd = os.pidfd_open(self._process.pid)
        except (OSError, AttributeError):
            # A kernel before 5.3, a sandbox, or another system.
            while self._process.poll() is None:
                await anyio.sleep(0.01)
            return
        loop, ended = asyncio.get_running_loop(), anyio.Event()
        loop.add_reader(fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    async def aclose(self) -> None:
        """Close the stream, which ends the agent; a transport that does not end by itself is killed."""
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_WR)
            if await self.exit_code(self._close_s) is None:
                self._process.terminate()
                if await self.exit_code(CLOSE_S) is None:
                    self._process.kill()
                    await self.exit_code(CLOSE_S)
            if not self._errors_ended:
                self._read_errors()
                asyncio.get_running_loop().remove_reader(self._errors.fileno())
                self._errors_ended = True
            # Stop watching it, or the loop would not watch another descriptor with the same number.
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._stream.fileno())
            loop.remove_writer(self._stream.fileno())
            self._stream.close()
            self._errors.close()
            _log.debug("%s: closed, exit code %s", self._description, self._process.poll())

    def abandon(self) -> None:
        """End the transport at once, without waiting for the agent to notice the end of its stream."""
        if self._ignores_sigterm:
            self._process.kill()
        else:
            self._process.terminate()


async def start_agent(
    channel: StartingChannel, name: str, nonce: str, *, bundle: Bundle, diagnose: Diagnose, deadline_s: float
) -> None:
    """Wait for the loader's nonce, send the bundle, and leave the channel at the agent's first frame.

    `diagnose` builds the error of a transport that ended (from its exit code and output, standard error last) or, with
    None for the code, of one that sent nothing in time; `name` is the node's, for the errors built here. Time spent
    waiting for the bundle does not count. The channel is closed on any error.
    """
    received = bytearray()
    started = False
    size = 0
    try:
        with anyio.move_on_after(deadline_s) as scope:
            await _skip_noise(channel, name, f"\n{nonce}\n".encode(), received, diagnose)
            started = True
            content = await await_bundle(bundle, scope)
            size = len(content)
            await channel.send(bootstrap.bootstrap_message(content, "preflight.agent.guardian:main", {"nonce": nonce}))
            received += await channel.receive()
            if not received:
                code = await channel.exit_code(CLOSE_S)
                if code != _SSH_FAILED:
                    raise diagnose(code, channel.error_tail())
                raise _stall_error(channel, name, size)
            channel.push_back(bytes(received))
        if scope.cancelled_caught:
            if started:
                raise _stall_error(channel, name, size)
            error = diagnose(None, channel.error_tail())
            noise = bootstrap.without_mark(received[-_STDERR_BYTES:].decode("utf-8", "replace"))
            raise ExecutorError(error.kind, error.message + _printed_lines(noise), error.detail or noise)
    except BaseException:
        channel.abandon()
        await channel.aclose()
        raise


def _printed_lines(text: str) -> str:
    """Return the last lines that a node printed instead of starting Python, to end a message; empty if none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = " | ".join(lines[-_PRINTED_LINES:])
    return f'; the node printed: "{shown[-_PRINTED_CHARACTERS:]}"' if shown else ""


async def _skip_noise(
    channel: StartingChannel, name: str, mark: bytes, received: bytearray, diagnose: Diagnose
) -> None:
    """Read up to `mark`, and leave the data after it in `received`."""
    while (place := received.find(mark)) < 0:
        data = await channel.receive()
        if not data:
            code = await channel.exit_code(CLOSE_S)
            # A shell that refuses a session says so on standard output.
            printed = received[-_NOISE_BYTES:].decode("utf-8", "replace")
            raise diagnose(code, f"{printed}\n{channel.error_tail()}" if printed.strip() else channel.error_tail())
        received += data
        if len(received) > MAX_NOISE_BYTES:
            raise ExecutorError(
                "crashed",
                f"{name}: more than {MAX_NOISE_BYTES} bytes were printed before the agent could start; check what "
                "the login shell's startup files print there",
                received[-_STDERR_BYTES:].decode("utf-8", "replace"),
            )
    del received[: place + len(mark)]


def _stall_error(channel: StartingChannel, name: str, size: int) -> ExecutorError:
    """Explain that Python started on the node, but did not answer when the bundle was sent."""
    return ExecutorError(
        "timeout",
        f"{name}: {channel.description} works and Python started there, but there was no response to the {size} "
        "bytes sent next: small messages pass, but bulk data stalls. The cause is usually a switch port or tunnel "
        f"with a smaller MTU than the hosts'; try `ping -M do -s 1472 {name}` and larger sizes",
        channel.error_tail(),
    )


def no_python(
    name: str, lines: Sequence[str], code: int | None, error_text: str, *, where: str = "there"
) -> ExecutorError | None:
    """Explain a start that failed for lack of a usable Python `where`; None otherwise. `code` None: still running."""
    missing = next((line for line in lines if bootstrap.NO_PYTHON_MARK in line), "")
    if not missing and code != bootstrap.NO_PYTHON:
        return None
    return ExecutorError(
        "missing",
        f"{name}: no Python >= 3.8 {where}: tried {tried_interpreters(missing)}; install Python 3.8 or newer",
        error_text,
    )


def tried_interpreters(missing: str) -> str:
    """Return the interpreters that a node tried, by the line with which it reports that none is usable."""
    tried = missing.partition(bootstrap.NO_PYTHON_MARK)[2].split()
    return ", ".join(tried) if tried else "none of " + ", ".join(bootstrap.INTERPRETERS) + " exists"


#: Largest number of agents on this machine, because the number of nodes may come from a file.
MAX_LOCAL = 16
#: Exit code of a shell script used as interpreter that does not find its program.
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class LocalExecutor(Executor):
    """Runs agents on this machine with `interpreter`, adding `environment`."""

    interpreter: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "local"

    options = (Option("python", "Interpreter that runs the agents, instead of preflight's own.", "/usr/bin/python3"),)

    def configured(self, settings: Mapping[str, str]) -> LocalExecutor:
        return replace(self, interpreter=settings.get("python", self.interpreter))

    async def check_usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Return a description; this machine is always usable."""
        return f"this machine can represent up to {MAX_LOCAL} nodes; links between them are not measured"

    async def gather(self, request: NodeRequest) -> GatheredNodes | None:
        """Return as many nodes as the job has, all here. Raises UsageError if they are too many."""
        if request.named_nodes:
            nodes = tuple(replace(node, address="localhost") for node in request.named_nodes)
            return GatheredNodes(nodes, "this machine")
        count = request.count or 1
        if count > MAX_LOCAL:
            raise UsageError(
                f"the job has {count} nodes, but --on local supports at most {MAX_LOCAL} on this machine; "
                f"name fewer with --hosts local[1-{MAX_LOCAL}]"
            )
        nodes = tuple(Node(f"local{index}", index, "localhost") for index in range(count))
        played = "one node" if count == 1 else f"{count} nodes"
        return GatheredNodes(nodes, f"this machine as {played}")

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> PipeChannel:
        """Start an agent here. Raises ExecutorError if the interpreter cannot be run or does not answer."""
        nonce = make_nonce()
        command = bootstrap.arguments(self.interpreter, nonce, ["-I", "-u"])
        try:
            channel = PipeChannel(
                command,
                description=f"the agent's process for {node.name} on this machine",
                environment={**os.environ, **self.environment},
            )
        except OSError as error:
            raise ExecutorError(
                "missing", f"{node.name}: `{self.interpreter}` cannot be run: {error.strerror}"
            ) from error

        def diagnose(code: int | None, error_text: str) -> ExecutorError:
            if code is None:
                return ExecutorError(
                    "timeout", f"{node.name}: `{self.interpreter}` did not start within {deadline_s:g} s", error_text
                )
            if code == _NOT_FOUND:
                return ExecutorError("missing", f"{node.name}: `{self.interpreter}` cannot be run", error_text)
            if code == bootstrap.TOO_OLD:
                return ExecutorError(
                    "missing", f"{node.name}: `{self.interpreter}` is older than Python 3.8", error_text
                )
            last_line = f": {error_text.splitlines()[-1]}" if error_text else ""
            return ExecutorError(
                "crashed", f"{node.name}: the agent ended with exit code {code}{last_line}", error_text
            )

        await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=deadline_s)
        return channel


EXECUTOR = LocalExecutor()

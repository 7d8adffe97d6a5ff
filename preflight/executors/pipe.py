"""A channel over the standard streams of a child process, and how an agent is started over it.

Shared by every executor whose transport is a command: the local interpreter, ssh, and the launchers of schedulers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import anyio

from preflight.executors.base import Bundle, Channel, ExecutorError, uncounted
from preflight.node import bootstrap, process

#: Shell banners come before the agent speaks; more than this is no banner.
LARGEST_NOISE_BYTES = 1 << 20
#: How long the transport may take to leave after its channel was closed.
CLOSE_S = 2.0
_STDERR_BYTES = 8192
#: How ssh ends when the connection is lost.
_SSH_FAILED = 255
_CHUNK = 1 << 16
#: How long a short frame that was begun may take to be finished.
_FINISH_S = 2.0

Diagnose = Callable[[int | None, str], ExecutorError]


class Starting(Channel, Protocol):
    """A channel whose agent is still to be started over it."""

    async def exit_code(self, deadline_s: float) -> int | None:
        """How what carries the channel ended; None when it has not by then, or nobody knows."""
        ...

    def push_back(self, data: bytes) -> None:
        """Have `receive` return `data` first."""
        ...


def new_nonce() -> str:
    """A line that no banner contains."""
    return f"preflight-{secrets.token_hex(12)}"


def _end_with_us() -> None:
    # SIGTERM, because the process may be an agent's guardian, which then ends what is below it.
    process.die_with_parent(signal.SIGTERM)


def _ending_with_us(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], Callable[[], None] | None]:
    """How to start a command so that it ends with this process: what to run, and what to do before that in the fork.

    To do anything in a fork needs a copy of this whole process, which costs more than ssh's own start; where the system
    has a program for it, nothing is copied.
    """
    there = shutil.which(command[0], path=environment.get("PATH")) if _setpriv() else None
    # Without a program to run, the error is to be about that one.
    return ([*_setpriv(), *command], None) if there is not None else (list(command), _end_with_us)


@functools.cache
def _setpriv() -> tuple[str, ...]:
    """util-linux's setpriv with the options for that, where there is one that knows them (since 2.33)."""
    path = shutil.which("setpriv")
    words = (path or "", "--pdeathsig", "TERM", "--")
    try:
        done = subprocess.run([*words, "true"], capture_output=True, timeout=2.0)
    except (OSError, subprocess.SubprocessError):
        return ()
    return words if done.returncode == 0 else ()


class PipeChannel:
    """The streams of one child process. It dies with this process, even when that is killed."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        description: str,
        environment: Mapping[str, str] | None = None,
        close_s: float = CLOSE_S,
        deaf: bool = False,
        bytes_per_s: int = 0,
    ) -> None:
        """Start `command`. Raises OSError when it cannot be run.

        Args:
            close_s: how long it gets to end by itself.
            deaf: it heeds no SIGTERM.
            bytes_per_s: send no faster, where the transport loses what its other end does not read in time.
        """
        self._bytes_per_s = bytes_per_s
        #: Held while a frame is on its way, so that none is cut by what another thread says.
        self._sending = threading.Lock()
        self._description = description
        self._close_s = close_s
        self._deaf = deaf
        self._stream, theirs = socket.socketpair()
        self._errors, their_errors = socket.socketpair()
        words, before = _ending_with_us(command, os.environ if environment is None else environment)
        try:
            # A session of its own, so that Ctrl-C reaches only the head, which then ends things in order.
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
        asyncio.get_running_loop().add_reader(self._errors.fileno(), self._hear_errors)
        self._closed = False

    @property
    def description(self) -> str:
        """How the node was reached."""
        return self._description

    @property
    def pid(self) -> int:
        """The process that carries the channel."""
        return self._process.pid

    def _hear_errors(self) -> None:
        """Take what there is on standard error, without waiting, and without end where it floods."""
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

    def last_words(self) -> str:
        """The end of what the transport wrote to standard error."""
        # The end of its output may be known before the loop has come round to its last words.
        if not self._errors_ended:
            self._hear_errors()
        return self._stderr.decode("utf-8", "replace").strip()

    def push_back(self, data: bytes) -> None:
        """Have `receive` return `data` first."""
        self._pushed_back = data + self._pushed_back

    async def send(self, data: bytes) -> None:
        """Write all of `data`. Raises ExecutorError when the other end is gone."""
        while not self._sending.acquire(blocking=False):
            await anyio.sleep(0.001)
        try:
            await self._send(data)
        except OSError as error:
            raise ExecutorError(
                "unreachable", f"{self.description} is gone: {error.strerror or error}", self.last_words()
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

    def speak(self, frame: bytes) -> None:
        """Send one short frame from any thread; nothing happens while another is on its way, or where it would wait."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            left = memoryview(frame)
            left = left[self._stream.send(left) :]
            # Begun is to be finished, or the next frame would be taken for the rest of this one.
            until = time.monotonic() + _FINISH_S
            while left and time.monotonic() < until:
                select.select([], [self._stream], [], 0.1)
                with contextlib.suppress(BlockingIOError):
                    left = left[self._stream.send(left) :]
        except (OSError, ValueError):
            # Full, or gone: whoever reads the stream finds out.
            pass
        finally:
            self._sending.release()

    async def receive(self) -> bytes:
        """The next bytes; empty at the end of the stream."""
        if self._pushed_back:
            data, self._pushed_back = self._pushed_back, b""
            return data
        try:
            return await asyncio.get_running_loop().sock_recv(self._stream, _CHUNK)
        except OSError:
            return b""

    async def exit_code(self, deadline_s: float) -> int | None:
        """How the transport ended; None when it has not by then."""
        with anyio.move_on_after(deadline_s):
            if self._process.poll() is None:
                await self._ended()
        return self._process.poll()

    async def _ended(self) -> None:
        """Wait for the end of the process, which is not buried by that."""
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
        """Close the stream, which ends the agent; a transport that stays is killed."""
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
                self._hear_errors()
                asyncio.get_running_loop().remove_reader(self._errors.fileno())
                self._errors_ended = True
            # A number that the loop still watches would not be watched when it is the next descriptor's.
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._stream.fileno())
            loop.remove_writer(self._stream.fileno())
            self._stream.close()
            self._errors.close()

    def abandon(self) -> None:
        """End the transport at once, without waiting for the agent to see the end of its stream."""
        if self._deaf:
            self._process.kill()
        else:
            self._process.terminate()


async def start_agent(
    channel: Starting, name: str, nonce: str, *, bundle: Bundle, diagnose: Diagnose, deadline_s: float
) -> None:
    """Wait for the loader's nonce, send the bundle, and leave the channel at the agent's first frame.

    `diagnose` makes the error of a transport that ended (its exit code and last words) or, with None for the
    code, of one that said nothing in time; `name` is the node's, for the errors made here. Time that the bundle is
    waited for does not count. The channel is closed on any error.
    """
    heard = bytearray()
    started = False
    size = 0
    try:
        with anyio.move_on_after(deadline_s) as scope:
            await _past_noise(channel, name, f"\n{nonce}\n".encode(), heard, diagnose)
            started = True
            content = await uncounted(bundle, scope)
            size = len(content)
            await channel.send(bootstrap.first_words(content, "preflight.node.guardian:main", {"nonce": nonce}))
            heard += await channel.receive()
            if not heard:
                code = await channel.exit_code(CLOSE_S)
                if code != _SSH_FAILED:
                    raise diagnose(code, channel.last_words())
                raise _stalled(channel, name, size)
            channel.push_back(bytes(heard))
        if scope.cancelled_caught:
            if started:
                raise _stalled(channel, name, size)
            error = diagnose(None, channel.last_words())
            noise = heard[-_STDERR_BYTES:].decode("utf-8", "replace")
            raise ExecutorError(error.kind, error.message, error.detail or noise)
    except BaseException:
        channel.abandon()
        await channel.aclose()
        raise


async def _past_noise(channel: Starting, name: str, mark: bytes, heard: bytearray, diagnose: Diagnose) -> None:
    """Read up to `mark`; what was read after it is left in `heard`."""
    while (place := heard.find(mark)) < 0:
        data = await channel.receive()
        if not data:
            raise diagnose(await channel.exit_code(CLOSE_S), channel.last_words())
        heard += data
        if len(heard) > LARGEST_NOISE_BYTES:
            raise ExecutorError(
                "crashed",
                f"{name}: more than {LARGEST_NOISE_BYTES} bytes were printed before the agent could start; "
                "look at what the login shell's start-up files print there",
                heard[-_STDERR_BYTES:].decode("utf-8", "replace"),
            )
    del heard[: place + len(mark)]


def _stalled(channel: Starting, name: str, size: int) -> ExecutorError:
    """The agent's few first bytes came, and then nothing after it was sent some thousands."""
    return ExecutorError(
        "timeout",
        f"{name}: {channel.description} works and Python started there, but the {size} bytes sent next were not "
        "answered: small messages pass and bulk data stalls. A switch port or tunnel with a smaller MTU than the "
        f"hosts' does this; try `ping -M do -s 1472 {name}` and larger sizes",
        channel.last_words(),
    )

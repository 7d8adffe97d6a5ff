"""A channel over the standard streams of a child process, and how an agent is started over it.

Shared by every executor whose transport is a command: the local interpreter, ssh, and the launchers of schedulers.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence

import anyio

from preflight.executors.base import ExecutorError
from preflight.node import bootstrap, process

#: Shell banners come before the agent speaks; more than this is no banner.
LARGEST_NOISE_BYTES = 1 << 20
#: How long the transport may take to leave after its channel was closed.
CLOSE_S = 2.0
_STDERR_BYTES = 8192
#: How ssh ends when the connection is lost.
_SSH_FAILED = 255
_CHUNK = 1 << 16

Diagnose = Callable[[int | None, str], ExecutorError]


def new_nonce() -> str:
    """A line that no banner contains."""
    return f"preflight-{secrets.token_hex(12)}"


def _end_with_us() -> None:
    # SIGTERM, because the process may be an agent's guardian, which then ends what is below it.
    process.die_with_parent(signal.SIGTERM)


class PipeChannel:
    """The streams of one child process. It dies with this process, even when that is killed."""

    def __init__(
        self, command: Sequence[str], *, description: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `command`. Raises OSError when it cannot be run."""
        self._description = description
        self._stream, theirs = socket.socketpair()
        self._errors, their_errors = socket.socketpair()
        try:
            # A session of its own, so that Ctrl-C reaches only the head, which then ends things in order.
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                list(command),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=their_errors.fileno(),
                env=None if environment is None else dict(environment),
                start_new_session=True,
                preexec_fn=_end_with_us,
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
        try:
            await asyncio.get_running_loop().sock_sendall(self._stream, data)
        except OSError as error:
            raise ExecutorError(
                "unreachable", f"{self.description} is gone: {error.strerror or error}", self.last_words()
            ) from error

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
            while self._process.poll() is None:
                await anyio.sleep(0.01)
        return self._process.poll()

    async def aclose(self) -> None:
        """Close the stream, which ends the agent; a transport that stays is killed."""
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_WR)
            if await self.exit_code(CLOSE_S) is None:
                self._process.terminate()
                if await self.exit_code(CLOSE_S) is None:
                    self._process.kill()
                    await self.exit_code(CLOSE_S)
            if not self._errors_ended:
                self._hear_errors()
                asyncio.get_running_loop().remove_reader(self._errors.fileno())
                self._errors_ended = True
            self._stream.close()
            self._errors.close()

    def abandon(self) -> None:
        """End the transport at once, without waiting for the agent to see the end of its stream."""
        self._process.terminate()


async def start_agent(
    channel: PipeChannel, name: str, nonce: str, *, bundle: bytes, diagnose: Diagnose, deadline_s: float
) -> None:
    """Wait for the loader's nonce, send the bundle, and leave the channel at the agent's first frame.

    `diagnose` makes the error of a transport that ended (its exit code and last words) or, with None for the
    code, of one that said nothing in time; `name` is the node's, for the errors made here. The channel is closed
    on any error.
    """
    heard = bytearray()
    started = False
    try:
        with anyio.move_on_after(deadline_s) as scope:
            await _past_noise(channel, name, f"\n{nonce}\n".encode(), heard, diagnose)
            started = True
            await channel.send(bootstrap.first_words(bundle, "preflight.node.guardian:main", {"nonce": nonce}))
            heard += await channel.receive()
            if not heard:
                code = await channel.exit_code(CLOSE_S)
                if code != _SSH_FAILED:
                    raise diagnose(code, channel.last_words())
                raise _stalled(channel, name, len(bundle))
            channel.push_back(bytes(heard))
        if scope.cancelled_caught:
            if started:
                raise _stalled(channel, name, len(bundle))
            error = diagnose(None, channel.last_words())
            noise = heard[-_STDERR_BYTES:].decode("utf-8", "replace")
            raise ExecutorError(error.kind, error.message, error.detail or noise)
    except BaseException:
        channel.abandon()
        await channel.aclose()
        raise


async def _past_noise(channel: PipeChannel, name: str, mark: bytes, heard: bytearray, diagnose: Diagnose) -> None:
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


def _stalled(channel: PipeChannel, name: str, size: int) -> ExecutorError:
    """The agent's few first bytes came, and then nothing after it was sent some thousands."""
    return ExecutorError(
        "timeout",
        f"{name}: {channel.description} works and Python started there, but the {size} bytes sent next were not "
        "answered: small messages pass and bulk data stalls. A switch port or tunnel with a smaller MTU than the "
        f"hosts' does this; try `ping -M do -s 1472 {name}` and larger sizes",
        channel.last_words(),
    )

"""The head's end of a bridge: calls with deadlines, and channels to agents, over one child process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from preflight.agent import bootstrap, wire
from preflight.agent.wire import UNAVAILABLE_KINDS
from preflight.executors.base import ExecutorError
from preflight.executors.bridge import mux
from preflight.executors.bundle import pack
from preflight.executors.pipe import CLOSE_S, PipeChannel, make_nonce

_PACKAGE = "preflight.executors.bridge"
#: Time for an interpreter and its imports; client libraries are imported by the calls that need them.
START_S = 10.0
#: The largest frame: a cluster's report about ten thousand nodes. Bytes of agents arrive in pieces of 256 KiB.
_MAX_FRAME_BYTES = 64 * 1024 * 1024
#: Largest number of unread bytes from one agent.
_MAX_UNREAD_BYTES = 16 * 1024 * 1024
#: Largest number of bytes in transit to the bridge before a sender waits.
_MAX_UNSENT_BYTES = 4 * 1024 * 1024


class Bridge:
    """One process that runs `module:function` of this package, with all calls and streams through it."""

    def __init__(self, entry: str, *, interpreter: str, environment: Mapping[str, str] | None = None) -> None:
        """`entry` is for example `ray_side:main`; `environment` is added to this process's own."""
        self._entry = entry
        self._interpreter = interpreter
        self._environment = {**os.environ, **(environment or {})}
        self._pipe: PipeChannel | None = None
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._channels: dict[int, BridgedChannel] = {}
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._unsent_bytes = 0
        self._drained = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = anyio.Lock()
        self._failure = ""

    async def call(self, name: str, parameters: Mapping[str, Any] | None = None, *, deadline_s: float) -> Any:
        """Return the result of the side's `do_NAME`. Raises ExecutorError if it fails or misses the deadline."""
        return await self._request(next(self._numbers), name, parameters or {}, deadline_s)

    async def open(self, parameters: Mapping[str, Any], *, description: str, deadline_s: float) -> BridgedChannel:
        """Open a channel to the process that the side's `open` starts. Raises ExecutorError as `call` does."""
        number = next(self._numbers)
        channel = BridgedChannel(self, number, description)
        self._channels[number] = channel
        try:
            await self._request(number, "open", parameters, deadline_s)
        except BaseException:
            del self._channels[number]
            self._enqueue(mux.CLOSE, number)
            raise
        return channel

    async def _request(self, number: int, name: str, parameters: Mapping[str, Any], deadline_s: float) -> Any:
        await self._start()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            if self._failure:
                raise ExecutorError("crashed", self._failure)
            self._enqueue(mux.CALL, number, json.dumps({"call": name, "parameters": dict(parameters)}).encode())
            with anyio.fail_after(deadline_s):
                reply = await answer
        except TimeoutError:
            raise ExecutorError("timeout", f"no response within {deadline_s:g} s") from None
        finally:
            del self._calls[number]
        if "value" in reply:
            return reply["value"]
        raise ExecutorError(reply["kind"], reply["message"], reply["detail"])

    async def _start(self) -> None:
        async with self._starting:
            if self._pipe is not None:
                return
            nonce = make_nonce()
            # Isolated, because the working directory may contain any modules; `mux` restores what the user set.
            command = bootstrap.arguments(self._interpreter, nonce, ["-I", "-u"])
            try:
                pipe = PipeChannel(
                    command, description="the bridge", environment=self._environment, close_s=mux.SHUTDOWN_S
                )
            except OSError as error:
                raise ExecutorError("missing", f"`{self._interpreter}` cannot be run: {error.strerror}") from error
            try:
                with anyio.move_on_after(START_S) as scope:
                    rest = await self._read_to_nonce(pipe, f"\n{nonce}\n".encode())
                    await pipe.send(bootstrap.bootstrap_message(_bundle(), f"{_PACKAGE}.{self._entry}", {}))
                if scope.cancelled_caught:
                    words = pipe.error_tail()
                    raise ExecutorError("timeout", f"`{self._interpreter}` did not start within {START_S:g} s", words)
            except BaseException:
                pipe.abandon()
                await pipe.aclose()
                raise
            self._pipe = pipe
            self._tasks = [
                asyncio.create_task(self._send_all(pipe)),
                asyncio.create_task(self._read_output(pipe, rest)),
            ]

    async def _read_to_nonce(self, pipe: PipeChannel, mark: bytes) -> bytes:
        received = b""
        while mark not in received:
            data = await pipe.receive()
            if not data:
                code, words = await pipe.exit_code(CLOSE_S), pipe.error_tail()
                if code == bootstrap.TOO_OLD:
                    raise ExecutorError("missing", f"`{self._interpreter}` is older than Python 3.8", words)
                raise ExecutorError("crashed", f"`{self._interpreter}` ended with exit code {code}", words)
            received += data
        return received.split(mark, 1)[1]

    def _enqueue(self, kind: int, number: int, payload: bytes = b"") -> None:
        if self._pipe is not None and not self._failure:
            data = mux.frame(kind, number, payload)
            self._unsent_bytes += len(data)
            self._unsent.put_nowait(data)

    async def send(self, number: int, data: bytes) -> None:
        """Write `data` to a stream, waiting while too much is in transit. Raises ExecutorError without a bridge."""
        while self._unsent_bytes > _MAX_UNSENT_BYTES and not self._failure:
            self._drained.clear()
            await self._drained.wait()
        if self._failure:
            raise ExecutorError("unreachable", self._failure)
        self._enqueue(mux.DATA, number, data)

    def close(self, number: int) -> None:
        self._enqueue(mux.CLOSE, number)

    async def _send_all(self, pipe: PipeChannel) -> None:
        with contextlib.suppress(ExecutorError):
            while True:
                data = await self._unsent.get()
                await pipe.send(data)
                self._unsent_bytes -= len(data)
                self._drained.set()

    async def _read_output(self, pipe: PipeChannel, received: bytes) -> None:
        waiting = bytearray(received)
        while True:
            while len(waiting) >= mux.HEADER.size:
                length, kind, number = mux.HEADER.unpack_from(waiting)
                if length > _MAX_FRAME_BYTES:
                    pipe.abandon()
                    self._on_lost(f"the bridge announced a frame of {length} bytes", pipe.error_tail())
                    return
                end = mux.HEADER.size + length
                if len(waiting) < end:
                    break
                payload = bytes(waiting[mux.HEADER.size : end])
                del waiting[:end]
                self._dispatch(kind, number, payload)
            data = await pipe.receive()
            if not data:
                break
            waiting += data
        code = await pipe.exit_code(CLOSE_S)
        words = pipe.error_tail()
        self._on_lost(f"the client library's process ended with exit code {code}", words)

    def _dispatch(self, kind: int, number: int, payload: bytes) -> None:
        if kind == mux.ANSWER:
            answer = self._calls.get(number)
            if answer is not None and not answer.done():
                answer.set_result(_parse_answer(payload))
        elif number in self._channels:
            channel = self._channels[number]
            if kind == mux.DATA:
                channel.take(payload)
            elif kind == mux.END:
                del self._channels[number]
                channel.ended(*_parse_end(payload))

    def _on_lost(self, reason: str, error_text: str) -> None:
        self._failure = reason + (f": {error_text.splitlines()[-1]}" if error_text else "")
        self._drained.set()
        reply = {"kind": "crashed", "message": self._failure, "detail": error_text}
        for answer in self._calls.values():
            if not answer.done():
                answer.set_result(reply)
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.ended(None, self._failure)

    async def aclose(self) -> None:
        """Close all calls and streams, let the bridge delete created objects, and end it. Never raises."""
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        with anyio.CancelScope(shield=True):
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._on_lost("the bridge was closed", "")
            await pipe.aclose()


def _parse_answer(payload: bytes) -> dict[str, Any]:
    """Parse the answer to a call: a value, or an error."""
    try:
        found = wire.parse(payload, max_bytes=_MAX_FRAME_BYTES, max_items=4_000_000)
    except ValueError as error:
        found = {"message": f"the bridge sent an invalid response: {error}"}
    if isinstance(found, dict) and "value" in found:
        return found
    reply = found if isinstance(found, dict) else {}
    kind = reply.get("kind")
    return {
        "kind": kind if kind in UNAVAILABLE_KINDS else "crashed",
        "message": str(reply.get("message", "the bridge sent an invalid response"))[:4096],
        "detail": str(reply.get("detail", ""))[:65536],
    }


def _parse_end(payload: bytes) -> tuple[int | None, str]:
    """Parse the end of a stream: the exit code of its process, if known, and its standard error."""
    try:
        found = wire.parse(payload)
    except ValueError as error:
        return None, f"the bridge sent an invalid end message: {error}"
    if not isinstance(found, dict):
        return None, ""
    code = found.get("code")
    return code if type(code) is int else None, str(found.get("words", ""))[:65536]


class BridgedChannel:
    """One stream through a bridge, as a `preflight.executors.base.Channel`."""

    def __init__(self, bridge: Bridge, number: int, description: str) -> None:
        self._bridge = bridge
        self._number = number
        self._description = description
        self._received = bytearray()
        self._changed = asyncio.Event()
        self._end: tuple[int | None, str] | None = None

    @property
    def description(self) -> str:
        return self._description

    def take(self, data: bytes) -> None:
        """Store bytes that arrived."""
        if len(self._received) + len(data) > _MAX_UNREAD_BYTES:
            # The head reads faster than any agent writes.
            self._bridge.close(self._number)
            self.ended(None, f"it sent more than {_MAX_UNREAD_BYTES} bytes faster than they could be read")
            return
        self._received += data
        self._changed.set()

    def ended(self, code: int | None, error_text: str) -> None:
        """Record the end of the stream."""
        self._end = (code, error_text)
        self._changed.set()

    def push_back(self, data: bytes) -> None:
        self._received[:0] = data
        self._changed.set()

    async def send(self, data: bytes) -> None:
        if self._end is not None:
            raise ExecutorError("unreachable", f"{self._description} is gone", self.error_tail())
        await self._bridge.send(self._number, data)

    async def receive(self) -> bytes:
        while not self._received:
            if self._end is not None:
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._received)
        self._received.clear()
        return data

    async def exit_code(self, deadline_s: float) -> int | None:
        """Return the exit code of the process on the node; None if it has not ended or is unknown."""
        with anyio.move_on_after(deadline_s):
            while self._end is None:
                self._changed.clear()
                await self._changed.wait()
        return self._end[0] if self._end is not None else None

    def error_tail(self) -> str:
        return self._end[1] if self._end is not None else ""

    def abandon(self) -> None:
        self._bridge.close(self._number)

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            self._bridge.close(self._number)
            await self.exit_code(CLOSE_S)


@functools.cache
def _bundle() -> bytes:
    """Return the modules that run in a bridge, packed as by `preflight.executors.bundle`."""
    folder = Path(__file__).parent
    modules = {"preflight": "", "preflight.executors": "", "preflight.agent": "", _PACKAGE: ""}
    packages: Sequence[str] = tuple(modules)
    for path in sorted(folder.glob("*.py")):
        if path.stem not in ("__init__", "head"):
            modules[f"{_PACKAGE}.{path.stem}"] = path.read_text(encoding="utf-8")
    for module in (bootstrap,):
        modules[module.__name__] = Path(str(module.__file__)).read_text(encoding="utf-8")
    return pack(modules, packages)

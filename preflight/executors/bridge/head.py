"""The head's end of a bridge: calls with deadlines, and channels to agents, over one process beside us."""

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

from preflight.bundle import packed
from preflight.executors.base import ExecutorError
from preflight.executors.bridge import mux
from preflight.executors.pipe import CLOSE_S, PipeChannel, new_nonce
from preflight.node import bootstrap

_PACKAGE = "preflight.executors.bridge"
#: An interpreter and its imports; client libraries themselves are imported by the calls that need them.
START_S = 10.0
#: What may lie unread on its way to the bridge before a sender waits.
_MOST_UNSENT_BYTES = 4 * 1024 * 1024


class Bridge:
    """One process that runs `module:function` of this package, and everything that goes through it."""

    def __init__(self, entry: str, *, interpreter: str, environment: Mapping[str, str] | None = None) -> None:
        """`entry` is `ray_side:main`; `environment` is laid over our own."""
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
        self._gone = ""

    async def call(self, name: str, parameters: Mapping[str, Any] | None = None, *, deadline_s: float) -> Any:
        """What the side's `do_NAME` returns. Raises ExecutorError with what it said, or when it is late."""
        return await self._ask(next(self._numbers), name, parameters or {}, deadline_s)

    async def open(self, parameters: Mapping[str, Any], *, description: str, deadline_s: float) -> BridgedChannel:
        """A channel to what the side's `open` starts. Raises ExecutorError as `call` does."""
        number = next(self._numbers)
        channel = BridgedChannel(self, number, description)
        self._channels[number] = channel
        try:
            await self._ask(number, "open", parameters, deadline_s)
        except BaseException:
            del self._channels[number]
            self._post(mux.CLOSE, number)
            raise
        return channel

    async def _ask(self, number: int, name: str, parameters: Mapping[str, Any], deadline_s: float) -> Any:
        await self._started()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            if self._gone:
                raise ExecutorError("crashed", self._gone)
            self._post(mux.CALL, number, json.dumps({"call": name, "parameters": dict(parameters)}).encode())
            with anyio.fail_after(deadline_s):
                said = await answer
        except TimeoutError:
            raise ExecutorError("timeout", f"no answer within {deadline_s:g} s") from None
        finally:
            del self._calls[number]
        if "value" in said:
            return said["value"]
        raise ExecutorError(said["kind"], said["message"], said["detail"])

    async def _started(self) -> None:
        async with self._starting:
            if self._pipe is not None:
                return
            nonce = new_nonce()
            # Isolated, because the working directory may hold modules of anybody's; `mux` puts back what the user set.
            command = bootstrap.arguments(self._interpreter, nonce, ["-I", "-u"])
            try:
                pipe = PipeChannel(
                    command, description="the bridge", environment=self._environment, close_s=mux.LEAVE_S
                )
            except OSError as error:
                raise ExecutorError("missing", f"`{self._interpreter}` cannot be run: {error.strerror}") from error
            try:
                with anyio.move_on_after(START_S) as scope:
                    rest = await self._past(pipe, f"\n{nonce}\n".encode())
                    await pipe.send(bootstrap.first_words(_bundle(), f"{_PACKAGE}.{self._entry}", {}))
                if scope.cancelled_caught:
                    words = pipe.last_words()
                    raise ExecutorError("timeout", f"`{self._interpreter}` did not start in {START_S:g} s", words)
            except BaseException:
                pipe.abandon()
                await pipe.aclose()
                raise
            self._pipe = pipe
            self._tasks = [asyncio.create_task(self._send_all(pipe)), asyncio.create_task(self._hear_all(pipe, rest))]

    async def _past(self, pipe: PipeChannel, mark: bytes) -> bytes:
        heard = b""
        while mark not in heard:
            data = await pipe.receive()
            if not data:
                code, words = await pipe.exit_code(CLOSE_S), pipe.last_words()
                if code == bootstrap.TOO_OLD:
                    raise ExecutorError("missing", f"`{self._interpreter}` is older than Python 3.8", words)
                raise ExecutorError("crashed", f"`{self._interpreter}` ended with exit code {code}", words)
            heard += data
        return heard.split(mark, 1)[1]

    def _post(self, kind: int, number: int, payload: bytes = b"") -> None:
        if self._pipe is not None and not self._gone:
            data = mux.frame(kind, number, payload)
            self._unsent_bytes += len(data)
            self._unsent.put_nowait(data)

    async def send(self, number: int, data: bytes) -> None:
        """Have `data` written to a stream; waits while too much is on its way. Raises ExecutorError when gone."""
        while self._unsent_bytes > _MOST_UNSENT_BYTES and not self._gone:
            self._drained.clear()
            await self._drained.wait()
        if self._gone:
            raise ExecutorError("unreachable", self._gone)
        self._post(mux.DATA, number, data)

    def close(self, number: int) -> None:
        """End a stream."""
        self._post(mux.CLOSE, number)

    async def _send_all(self, pipe: PipeChannel) -> None:
        with contextlib.suppress(ExecutorError):
            while True:
                data = await self._unsent.get()
                await pipe.send(data)
                self._unsent_bytes -= len(data)
                self._drained.set()

    async def _hear_all(self, pipe: PipeChannel, heard: bytes) -> None:
        waiting = bytearray(heard)
        while True:
            while len(waiting) >= mux.HEADER.size:
                length, kind, number = mux.HEADER.unpack_from(waiting)
                end = mux.HEADER.size + length
                if len(waiting) < end:
                    break
                payload = bytes(waiting[mux.HEADER.size : end])
                del waiting[:end]
                self._take(kind, number, payload)
            data = await pipe.receive()
            if not data:
                break
            waiting += data
        code = await pipe.exit_code(CLOSE_S)
        words = pipe.last_words()
        self._lose(f"the process that holds the client library ended with exit code {code}", words)

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == mux.ANSWER:
            answer = self._calls.get(number)
            if answer is not None and not answer.done():
                answer.set_result(json.loads(payload))
        elif number in self._channels:
            channel = self._channels[number]
            if kind == mux.DATA:
                channel.take(payload)
            elif kind == mux.END:
                del self._channels[number]
                channel.ended(**json.loads(payload))

    def _lose(self, why: str, words: str) -> None:
        self._gone = why + (f": {words.splitlines()[-1]}" if words else "")
        self._drained.set()
        said = {"kind": "crashed", "message": self._gone, "detail": words}
        for answer in self._calls.values():
            if not answer.done():
                answer.set_result(said)
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.ended(None, self._gone)

    async def aclose(self) -> None:
        """End everything that goes through the bridge, let it take back what it made, and end it. Never raises."""
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        with anyio.CancelScope(shield=True):
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._lose("the bridge was closed", "")
            await pipe.aclose()


class BridgedChannel:
    """One stream through a bridge, as `preflight.executors.base.Channel`."""

    def __init__(self, bridge: Bridge, number: int, description: str) -> None:
        self._bridge = bridge
        self._number = number
        self._description = description
        self._heard = bytearray()
        self._news = asyncio.Event()
        self._end: tuple[int | None, str] | None = None

    @property
    def description(self) -> str:
        """How the node was reached."""
        return self._description

    def take(self, data: bytes) -> None:
        """Bytes that arrived."""
        self._heard += data
        self._news.set()

    def ended(self, code: int | None, words: str) -> None:
        """There will be no more."""
        self._end = (code, words)
        self._news.set()

    def push_back(self, data: bytes) -> None:
        """Have `receive` return `data` first."""
        self._heard[:0] = data
        self._news.set()

    async def send(self, data: bytes) -> None:
        """Write all of `data`. Raises ExecutorError when the other end is gone."""
        if self._end is not None:
            raise ExecutorError("unreachable", f"{self._description} is gone", self.last_words())
        await self._bridge.send(self._number, data)

    async def receive(self) -> bytes:
        """The next bytes; empty at the end of the stream."""
        while not self._heard:
            if self._end is not None:
                return b""
            self._news.clear()
            await self._news.wait()
        data = bytes(self._heard)
        self._heard.clear()
        return data

    async def exit_code(self, deadline_s: float) -> int | None:
        """How the process on the node ended; None when it has not by then, or nobody knows."""
        with anyio.move_on_after(deadline_s):
            while self._end is None:
                self._news.clear()
                await self._news.wait()
        return self._end[0] if self._end is not None else None

    def last_words(self) -> str:
        """The end of what the process, or the transport, said."""
        return self._end[1] if self._end is not None else ""

    def abandon(self) -> None:
        """End the stream without waiting for anything."""
        self._bridge.close(self._number)

    async def aclose(self) -> None:
        """End the stream, which ends the agent."""
        with anyio.CancelScope(shield=True):
            self._bridge.close(self._number)
            await self.exit_code(CLOSE_S)


@functools.cache
def _bundle() -> bytes:
    """The modules that run in a bridge, as `preflight.bundle` makes one of those that run on nodes."""
    folder = Path(__file__).parent
    modules = {"preflight": "", "preflight.executors": "", "preflight.node": "", _PACKAGE: ""}
    packages: Sequence[str] = tuple(modules)
    for path in sorted(folder.glob("*.py")):
        if path.stem not in ("__init__", "head"):
            modules[f"{_PACKAGE}.{path.stem}"] = path.read_text(encoding="utf-8")
    for module in (bootstrap,):
        modules[module.__name__] = Path(str(module.__file__)).read_text(encoding="utf-8")
    return packed(modules, packages)

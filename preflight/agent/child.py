"""Handles one request in its child process: imports the target, runs it, and sends back the result."""

from __future__ import annotations

import enum
import faulthandler
import importlib
import math
import os
import select
import signal
import sys
import threading
import time

from preflight.agent import process
from preflight.agent.wire import (
    AgentRequest,
    Done,
    Event,
    Failed,
    FrameReader,
    ProbeUnavailable,
    Signal,
    WireError,
    encode_answer,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Sequence

    Emit = Callable[[Any], None]

#: Requests the stacks of all threads of a child. A real-time signal, because jobs and schedulers use SIGUSR1/2.
STACKS_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 11
_TRACEBACK_BYTES = 8192
#: A longer reason is cut: exceptions may quote the text they could not parse.
_REASON_CHARACTERS = 4096
#: The longest pause of a target; a deadline would end it first.
_MAX_PAUSE_S = 3600.0


class ReplyWriter:
    """The destination of one request's frames. Threads of the target may emit at the same time."""

    def __init__(self, request_id: int, fd: int) -> None:
        self._id = request_id
        self._fd = fd
        self._lock = threading.Lock()

    def emit(self, data: Any) -> None:
        """Send an event: a mapping or a dataclass."""
        self.event("child", plain(data))

    def event(self, origin: str, data: dict[str, Any]) -> None:
        """Send an event with this origin."""
        self.send(Event(self._id, time.time(), origin, data))

    def send(self, message: Any) -> None:
        data = memoryview(encode_answer(message))
        with self._lock:
            while data:
                try:
                    data = data[os.write(self._fd, data) :]
                except BlockingIOError:
                    select.select([], [self._fd], [], 1.0)


class RequestRun:
    """A running request; while its target pauses, others may run."""

    def __init__(self, writer: ReplyWriter, request_id: int, target: str, params: dict[str, Any]) -> None:
        self._writer = writer
        self._id = request_id
        self._target = target
        self._params = params
        self._looks: Iterator[float] | None = None
        #: When it continues, by the monotonic clock.
        self.resumes_at_s = 0.0

    def resume(self) -> bool:
        """Run the target to its next pause or end (which sends one Done or Failed); return whether it has ended."""
        try:
            self._writer.send(Done(self._id, plain(self._value())))
        except _Pause as pause:
            self.resumes_at_s = time.monotonic() + pause.seconds
            return False
        except ProbeUnavailable as error:
            self._writer.send(Failed(self._id, error.kind, error.reason[:_REASON_CHARACTERS]))
        except WireError as error:
            reason = f"{self._target} cannot send its result: {error}"
            self._writer.send(Failed(self._id, "crashed", reason))
        except BaseException as error:  # SystemExit too: a library that exits is a crash of the probe.
            import traceback

            reason = (f"{type(error).__name__}: {error}")[:_REASON_CHARACTERS]
            self._writer.send(Failed(self._id, "crashed", reason, traceback.format_exc()[-_TRACEBACK_BYTES:]))
        return True

    def finish(self) -> None:
        while True:
            time.sleep(max(0.0, self.resumes_at_s - time.monotonic()))
            if self.resume():
                return

    def _value(self) -> Any:
        """Return the target's return value. Raises _Pause when it pauses."""
        if self._looks is None:
            function = _resolve(self._target)
            looks = getattr(function, "looks", None)
            if looks is None:
                return function(self._params, self._writer.emit) if _takes_two(function) else function(self._params)
            self._looks = looks(self._params)
        try:
            seconds = float(next(self._looks))
        except StopIteration as end:
            return end.value
        raise _Pause(min(seconds, _MAX_PAUSE_S))


class _Pause(Exception):
    """The target pauses for this many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


def answer(writer: ReplyWriter, request_id: int, target: str, params: dict[str, Any]) -> None:
    """Run the target and send exactly one Done or Failed."""
    RequestRun(writer, request_id, target, params).finish()


def _resolve(target: str) -> Callable[..., Any]:
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{target} is not a function")
    return found  # type: ignore[no-any-return]


def _takes_two(function: Callable[..., Any]) -> bool:
    code = getattr(function, "__code__", None)
    if code is not None and not hasattr(function, "__wrapped__"):
        return int(code.co_argcount) >= 2
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in parameters) >= 2


def plain(value: Any) -> Any:
    """Convert a value to JSON's types; NaN and infinities become strings. Raises TypeError if impossible."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if hasattr(type(value), "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a probe returned {type(value).__name__!r}, which has no JSON form")


def listen_for_stacks() -> None:
    """Dump all stacks to standard error on `STACKS_SIGNAL`, even if the interpreter is stuck in C."""
    try:
        faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)
    except (AttributeError, ValueError, OSError, RuntimeError):
        pass


def main(bundle: bytes, fd_in: int, fd_out: int, *, id: int, target: str, params: dict[str, Any]) -> None:
    """Entry of a child in the job context, called by the loader; never returns."""
    writer = ReplyWriter(id, fd_out)
    listen_for_stacks()
    threading.Thread(target=_follow_agent, args=(fd_in,), daemon=True, name="preflight-agent").start()
    version = "%d.%d.%d" % sys.version_info[:3]
    writer.event("start", {"pid": os.getpid(), "python": version, "executable": sys.executable or ""})
    code = 0
    try:
        answer(writer, id, target, params)
    except (OSError, WireError):
        code = 1
    process.exit_now(code)


def _follow_agent(fd: int) -> None:
    """Follow the agent's commands; at the pipe's end, the only sign in a container, kill all descendants and exit."""
    reader = FrameReader()
    while True:
        data = _read(fd)
        if not data:
            for pid in process.descendants(os.getpid()):
                process.kill_all([pid])
            os._exit(1)
        try:
            for message in reader.feed(data):
                if isinstance(message, Signal) and message.what == "stacks":
                    faulthandler.dump_traceback(file=2, all_threads=True)
        except WireError:
            continue


def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, 65536)
        except BlockingIOError:
            select.select([fd], [], [])
        except OSError:
            return b""


def run_forked(requests: Sequence[AgentRequest], fd_out: int) -> tuple[int, str | None]:
    """Run the requests of a forked child. Returns the exit code, and the error if an answer could not be sent."""
    listen_for_stacks()
    try:
        answering = [
            RequestRun(ReplyWriter(request.id, fd_out), request.id, request.target, request.params)
            for request in requests
        ]
        # Other requests run during pauses.
        for paused in [item for item in answering if not item.resume()]:
            paused.finish()
        return 0, None
    except (OSError, WireError) as error:
        return 1, str(error)

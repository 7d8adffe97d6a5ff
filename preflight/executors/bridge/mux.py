"""The bridge's own end: frames on two descriptors, calls answered by threads, and many byte streams at once.

A frame is a length, a kind, the number of a call or stream, and the payload. Nothing blocks anything else: each call
has a thread, each stream a reader and a writer thread.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import struct
import sys
import threading
import time
import traceback
from typing import Any, Callable, Iterator

#: Head to bridge: a call, bytes for a stream, the end of a stream.
CALL, DATA, CLOSE = 1, 2, 3
#: Bridge to head: the answer to a call; DATA; a stream ended, and how.
ANSWER, END = 4, 5
HEADER = struct.Struct(">IBI")
#: Unsent bytes of one stream; a node bundle is far smaller.
MAX_WAITING_BYTES = 64 * 1024 * 1024
#: Time for the bridge to exit after the head is gone, including the deletion of created objects.
SHUTDOWN_S = 8
#: Share of this time for closing streams.
CLOSE_S = 1.5


class BridgeError(Exception):
    """A problem to report to the user; `kind` is one of `preflight.agent.wire.UNAVAILABLE_KINDS`."""

    def __init__(self, kind: str, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.detail = detail


class Stream:
    """A byte stream of a process on a node; one thread calls each method, which may block."""

    def read(self) -> bytes:
        """Return the next bytes of its standard output; empty at the end."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Write all of `data` to its standard input. Raises OSError or BridgeError if it is gone."""
        raise NotImplementedError

    def exit_state(self) -> tuple[int | None, str]:
        """Return, after the end of the stream, the process's exit code, if known, and the end of standard error."""
        raise NotImplementedError

    def close(self) -> None:
        """End the stream; `read` then returns. Called by any thread, perhaps twice. Never raises."""
        raise NotImplementedError


class BridgeServer:
    """Base class for a client library.

    Subclasses have a method `do_NAME(**parameters)` for each call, which returns JSON, and a method `start` that
    starts a process on a node and returns its Stream; all raise BridgeError.
    """

    start: Callable[..., Stream]

    def close(self) -> None:
        """Delete the objects that this side created. Called once at the end, however the run ended."""


def serve(side: BridgeServer, fd_in: int, fd_out: int) -> None:
    """Answer the head until it closes its end or a signal arrives; then close the side. Never returns."""
    restore_module_path()
    mux = _Mux(side, fd_out)

    # In a thread, because the main thread may be busy.
    signal.signal(signal.SIGTERM, lambda *_: _thread(mux.shut_down))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for kind, number, payload in read_frames(fd_in):
            mux.take(kind, number, payload)
    except (OSError, ValueError, struct.error):
        traceback.print_exc()
    mux.shut_down()


def restore_module_path() -> None:
    """Restore the user's module path, without relative paths, which may be the job's tree."""
    import site

    here = os.path.realpath(os.getcwd())
    for path in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        inside = os.path.commonpath((here, os.path.realpath(path))) == here and here != os.sep
        if os.path.isabs(path) and not inside and path not in sys.path:
            sys.path.append(path)
    try:
        own = site.getusersitepackages()
        # A virtual environment does not see the user's packages.
        if sys.prefix == sys.base_prefix and os.path.isdir(own):
            site.addsitedir(own)
    except (AttributeError, OSError, KeyError, ValueError):
        pass


def read_frames(fd: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield every frame that arrives on `fd`, until its end."""
    while True:
        header = _read_exactly(fd, HEADER.size)
        if header is None:
            return
        length, kind, number = HEADER.unpack(header)
        payload = _read_exactly(fd, length)
        if payload is None:
            return
        yield kind, number, payload


def frame(kind: int, number: int, payload: bytes) -> bytes:
    """Return one frame as bytes."""
    return HEADER.pack(len(payload), kind, number) + payload


def _read_exactly(fd: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _Mux:
    def __init__(self, side: BridgeServer, fd_out: int) -> None:
        self._side = side
        self._fd_out = fd_out
        self._sending = threading.Lock()
        self._shutting_down = threading.Lock()
        self._streams: dict[int, _StreamThreads] = {}
        #: Streams that the head gave up before they were open.
        self._abandoned: set[int] = set()
        self._opening = threading.Lock()

    def take(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame of the head without waiting."""
        if kind == CALL:
            _thread(self._call, number, json.loads(payload.decode("utf-8")))
        elif kind == DATA and number in self._streams:
            self._streams[number].put(payload)
        elif kind == CLOSE:
            with self._opening:
                stream = self._streams.get(number)
                if stream is None:
                    self._abandoned.add(number)
            if stream is not None:
                stream.put(None)

    def send(self, kind: int, number: int, payload: bytes) -> None:
        """Send a frame to the head; if the head is gone, this process's reading end notices too."""
        data = memoryview(frame(kind, number, payload))
        try:
            with self._sending:
                while data:
                    data = data[os.write(self._fd_out, data) :]
        except OSError:
            pass

    def _call(self, number: int, what: dict[str, Any]) -> None:
        try:
            name, parameters = what["call"], what["parameters"]
            if name == "open":
                self._open(number, parameters)
                return
            answer: dict[str, Any] = {"value": getattr(self._side, "do_" + name)(**parameters)}
        except BridgeError as trouble:
            answer = {"kind": trouble.kind, "message": trouble.message, "detail": trouble.detail}
        except BaseException as error:
            message = "{}: {}".format(type(error).__name__, str(error) or "no message")
            answer = {"kind": "crashed", "message": message, "detail": traceback.format_exc()[-4000:]}
        self._answer(number, answer)

    def _open(self, number: int, parameters: dict[str, Any]) -> None:
        stream = _StreamThreads(self, number, self._side.start(**parameters))
        with self._opening:
            self._streams[number] = stream
            wanted = number not in self._abandoned
        if not wanted:
            stream.close()
            return
        self._answer(number, {"value": True})
        stream.start()

    def _answer(self, number: int, answer: dict[str, Any]) -> None:
        self.send(ANSWER, number, json.dumps(answer).encode("utf-8"))

    def shut_down(self) -> None:
        """Close the side and end this process; if closing takes too long, the leases of created objects end them."""
        if not self._shutting_down.acquire(blocking=False):
            # The thread that is already shutting down will end the process, including this thread.
            threading.Event().wait(SHUTDOWN_S)
            return
        timer = threading.Timer(SHUTDOWN_S, os._exit, (1,))
        timer.daemon = True
        timer.start()
        # All at once, so that a hanging one does not delay the others or the side.
        closing = [_thread(stream.close) for stream in list(self._streams.values())]
        until = time.monotonic() + CLOSE_S
        for thread in closing:
            thread.join(max(0.0, until - time.monotonic()))
        try:
            self._side.close()
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(0)


class _StreamThreads:
    """A stream with the two threads that transfer its bytes."""

    def __init__(self, mux: _Mux, number: int, stream: Stream) -> None:
        self._mux = mux
        self._number = number
        self._stream = stream
        self._waiting: queue.Queue[bytes | None] = queue.Queue()
        self._bytes = 0
        self._last_message = ""

    def start(self) -> None:
        _thread(self._read)
        _thread(self._write)

    def put(self, data: bytes | None) -> None:
        """Queue `data` for writing, or (None) close the stream after all queued data."""
        if data is None:
            self._waiting.put(None)
            return
        self._bytes += len(data)
        if self._bytes > MAX_WAITING_BYTES:
            self._last_message = f"it read none of the {self._bytes} bytes that were sent to it"
            self._waiting.put(None)
            self.close()
        else:
            self._waiting.put(data)

    def close(self) -> None:
        self._waiting.put(None)
        self._stream.close()

    def _write(self) -> None:
        while True:
            data = self._waiting.get()
            if data is None:
                break
            try:
                self._stream.write(data)
            except BaseException as error:
                self._last_message = self._last_message or str(error)
                break
            self._bytes -= len(data)
        self._stream.close()

    def _read(self) -> None:
        code, words = None, ""
        try:
            while True:
                data = self._stream.read()
                if not data:
                    break
                self._mux.send(DATA, self._number, data)
            code, words = self._stream.exit_state()
        except BaseException as error:
            words = f"{type(error).__name__}: {error}"
        self._stream.close()
        self._waiting.put(None)
        words = "\n".join(filter(None, (words, self._last_message)))
        self._mux.send(END, self._number, json.dumps({"code": code, "words": words}).encode("utf-8"))


def _thread(function: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread

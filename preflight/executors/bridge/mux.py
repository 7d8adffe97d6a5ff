"""The bridge's own end: frames on two descriptors, calls answered by threads, and many byte streams at once.

A frame is a length, a kind, the number of a call or stream, and the payload. Nothing waits for anything else: each
call has a thread, each stream one that reads and one that writes.
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
from typing import Any, Callable, Dict, Iterator, Optional, Set, Tuple

#: Head to bridge: a call, bytes for a stream, the end of a stream.
CALL, DATA, CLOSE = 1, 2, 3
#: Bridge to head: the answer to a call; DATA; a stream ended, and how.
ANSWER, END = 4, 5
HEADER = struct.Struct(">IBI")
#: Bytes that wait for one stream which does not take them; a node bundle is far smaller.
MOST_WAITING_BYTES = 64 * 1024 * 1024
#: How long the bridge may take to leave when the head is gone: whatever it made has to be deleted first.
LEAVE_S = 8
#: How long of that the streams may take to close.
CLOSE_S = 1.5


class Trouble(Exception):
    """Something the head should tell the user; `kind` is one of `preflight.node.wire.UNAVAILABLE_KINDS`."""

    def __init__(self, kind: str, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.detail = detail


class Stream:
    """Bytes to and from a process on a node; what a side opens. Each method may block, and is called by one thread."""

    def read(self) -> bytes:
        """The next bytes of its standard output; empty at the end."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Write all of `data` to its standard input. Raises OSError or Trouble when it is gone."""
        raise NotImplementedError

    def ending(self) -> Tuple[Optional[int], str]:
        """After the end: the process's exit code, if known, and the end of what it or the transport said."""
        raise NotImplementedError

    def close(self) -> None:
        """End it; `read` then returns. Called by any thread, perhaps twice. Never raises."""
        raise NotImplementedError


class Side:
    """What a client library can do.

    Subclasses have a method `do_NAME(**parameters)` for each call there is, which returns JSON, and one `start` that
    starts a process on a node and returns its Stream; all raise Trouble.
    """

    start: Callable[..., Stream]

    def close(self) -> None:
        """Take back whatever was made. Called once, at the end, however that came."""


def serve(side: Side, fd_in: int, fd_out: int) -> None:
    """Answer the head until it closes its end or a signal tells to leave; then close the side. Never returns."""
    use_own_path()
    mux = _Mux(side, fd_out)

    # In a thread, because the main one may be in the middle of anything.
    signal.signal(signal.SIGTERM, lambda *_: _thread(mux.leave))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for kind, number, payload in frames(fd_in):
            mux.take(kind, number, payload)
    except (OSError, ValueError, struct.error):
        traceback.print_exc()
    mux.leave()


def use_own_path() -> None:
    """Find what the user installed for themselves, as an interpreter does that is not isolated; nothing relative."""
    import site

    for path in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if os.path.isabs(path) and path not in sys.path:
            sys.path.append(path)
    try:
        own = site.getusersitepackages()
        # An environment of its own does not see the user's.
        if sys.prefix == sys.base_prefix and os.path.isdir(own):
            site.addsitedir(own)
    except (AttributeError, OSError, KeyError, ValueError):
        pass


def frames(fd: int) -> Iterator[Tuple[int, int, bytes]]:
    """Every frame that arrives on `fd`, until its end."""
    while True:
        header = _exactly(fd, HEADER.size)
        if header is None:
            return
        length, kind, number = HEADER.unpack(header)
        payload = _exactly(fd, length)
        if payload is None:
            return
        yield kind, number, payload


def frame(kind: int, number: int, payload: bytes) -> bytes:
    """One frame as bytes."""
    return HEADER.pack(len(payload), kind, number) + payload


def _exactly(fd: int, size: int) -> Optional[bytes]:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _Mux:
    def __init__(self, side: Side, fd_out: int) -> None:
        self._side = side
        self._fd_out = fd_out
        self._sending = threading.Lock()
        self._leaving = threading.Lock()
        self._streams: Dict[int, _Pumped] = {}
        #: Streams that the head gave up before they were open.
        self._given_up: Set[int] = set()
        self._opening = threading.Lock()

    def take(self, kind: int, number: int, payload: bytes) -> None:
        """Act on a frame of the head's without waiting for anything."""
        if kind == CALL:
            _thread(self._call, number, json.loads(payload.decode("utf-8")))
        elif kind == DATA and number in self._streams:
            self._streams[number].put(payload)
        elif kind == CLOSE:
            with self._opening:
                stream = self._streams.get(number)
                if stream is None:
                    self._given_up.add(number)
            if stream is not None:
                stream.put(None)

    def send(self, kind: int, number: int, payload: bytes) -> None:
        """Send a frame to the head; when that is gone, the reading end of this process hears of it too."""
        data = memoryview(frame(kind, number, payload))
        try:
            with self._sending:
                while data:
                    data = data[os.write(self._fd_out, data) :]
        except OSError:
            pass

    def _call(self, number: int, what: Dict[str, Any]) -> None:
        try:
            name, parameters = what["call"], what["parameters"]
            if name == "open":
                self._open(number, parameters)
                return
            answer: Dict[str, Any] = {"value": getattr(self._side, "do_" + name)(**parameters)}
        except Trouble as trouble:
            answer = {"kind": trouble.kind, "message": trouble.message, "detail": trouble.detail}
        except BaseException as error:
            said = "%s: %s" % (type(error).__name__, str(error) or "no more is said")
            answer = {"kind": "crashed", "message": said, "detail": traceback.format_exc()[-4000:]}
        self._answer(number, answer)

    def _open(self, number: int, parameters: Dict[str, Any]) -> None:
        stream = _Pumped(self, number, self._side.start(**parameters))
        with self._opening:
            self._streams[number] = stream
            wanted = number not in self._given_up
        if not wanted:
            stream.close()
            return
        self._answer(number, {"value": True})
        stream.start()

    def _answer(self, number: int, answer: Dict[str, Any]) -> None:
        self.send(ANSWER, number, json.dumps(answer).encode("utf-8"))

    def leave(self) -> None:
        """Close the side and end this process; a side that cannot be closed in time is left to its own leases."""
        if not self._leaving.acquire(blocking=False):
            # The thread that leaves already will end the process, and with it this one.
            threading.Event().wait(LEAVE_S)
            return
        timer = threading.Timer(LEAVE_S, os._exit, (1,))
        timer.daemon = True
        timer.start()
        # All at once: one that hangs must keep neither the others nor the side from being closed.
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


class _Pumped:
    """A stream with the two threads that carry its bytes."""

    def __init__(self, mux: _Mux, number: int, stream: Stream) -> None:
        self._mux = mux
        self._number = number
        self._stream = stream
        self._waiting: queue.Queue[Optional[bytes]] = queue.Queue()
        self._bytes = 0
        self._said = ""

    def start(self) -> None:
        """Begin to carry."""
        _thread(self._read)
        _thread(self._write)

    def put(self, data: Optional[bytes]) -> None:
        """Have `data` written, or (None) the stream closed after what was put before."""
        if data is None:
            self._waiting.put(None)
            return
        self._bytes += len(data)
        if self._bytes > MOST_WAITING_BYTES:
            self._said = "it took none of the %d bytes that were sent to it" % self._bytes
            self._waiting.put(None)
            self.close()
        else:
            self._waiting.put(data)

    def close(self) -> None:
        """End the stream at once."""
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
                self._said = self._said or str(error)
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
            code, words = self._stream.ending()
        except BaseException as error:
            words = "%s: %s" % (type(error).__name__, error)
        self._stream.close()
        self._waiting.put(None)
        words = "\n".join(filter(None, (words, self._said)))
        self._mux.send(END, self._number, json.dumps({"code": code, "words": words}).encode("utf-8"))


def _thread(function: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread

"""The program on a node, which runs the requests of the head, each in a child process that it can kill.

The agent has one thread and one selector, and never blocks: anything that may hang (a name lookup, a device, a
directory on a dead file server) happens in a child that can be killed. A guardian runs above the agent
(`preflight.agent.guardian`).
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from contextlib import suppress
from functools import partial

from preflight.agent import bootstrap, child_handle, process
from preflight.agent.child_handle import (
    PROGRESS_TIMEOUT_S,
    BatchPool,
    BatchProcess,
    ChildProcess,
    ContextPool,
    ContextProcess,
)
from preflight.agent.wire import (
    BEAT_S,
    HEAD_SILENT,
    LEASE_S,
    PROTOCOL,
    AgentRequest,
    Beat,
    Cancel,
    Done,
    Event,
    Failed,
    FrameReader,
    Ready,
    Ship,
    Signal,
    WireError,
    encode,
    encode_answer,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence


CHUNK_BYTES = 65536


def read(fd: int) -> bytes | None:
    """Return the available data; empty at the end, None if no data has arrived yet."""
    try:
        return os.read(fd, CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def is_readable(fd: int) -> bool:
    """Return whether `read` would return something, including the end."""
    with selectors.SelectSelector() if fd < 1024 else selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(0))


#: With more unsent bytes than this, children are not read.
BACKLOG_BYTES = 8 << 20


class FrameWriter:
    """Writes frames to the head, and reports when the channel is lost (`on_lost`) or too much is unsent (`on_full`)."""

    def __init__(
        self, fd: int, selector: selectors.BaseSelector, on_lost: Callable[[str], None], on_full: Callable[[bool], None]
    ) -> None:
        self._fd = fd
        self._selector = selector
        self._on_lost = on_lost
        self._on_full = on_full
        self._outgoing = bytearray()
        #: When something was last sent.
        self.last_sent_s = time.monotonic()

    def send(self, messages: Sequence[Any]) -> None:
        """Send these frames, immediately if possible."""
        for message in messages:
            self._outgoing += _frame(message)
        self.last_sent_s = time.monotonic()
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._fd, self._outgoing[: 1 << 20])]
        except BlockingIOError:
            pass
        except OSError as error:
            self._on_lost(f"the channel cannot be written: {error}")
            return
        watch_writable(self._selector, self._fd, self._flush if self._outgoing else None)
        self._on_full(len(self._outgoing) > BACKLOG_BYTES)


def _frame(message: Any) -> bytes:
    """Return the frame of a message; for a too large answer, the frame of a failure that reports its size."""
    try:
        return encode_answer(message)
    except WireError as error:
        if isinstance(message, (Done, Failed)):
            return encode_answer(Failed(message.id, "crashed", f"the result cannot be sent: {error}"))
        return b""


def watch_writable(selector: selectors.BaseSelector, fd: int, callback: Callable[[], None] | None) -> None:
    """Call back when the descriptor accepts more; with None, stop watching."""
    watched = fd in selector.get_map()
    if callback is not None and not watched:
        selector.register(fd, selectors.EVENT_WRITE, callback)
    elif callback is None and watched:
        selector.unregister(fd)


#: How often the states of running ranks are polled; a stopped one is detected within twice this time.
WATCH_S = 0.5


#: How long a stack dump may take to arrive.
DUMP_S = 0.3


#: How long a context child may take to exit after its answer.
LEAVE_S = 2.0


_CHANNEL_ENDED = "the channel was closed"


class Agent:
    """The event loop. Frames arrive on `fd_in` and leave on `fd_out`; children's pipes are in between.

    Its guardian reads the `pulse`. An agent `inside` a job context has no guardian; it polls the states of its
    children, which are visible there.
    """

    def __init__(
        self,
        bundle: bytes,
        fd_in: int,
        fd_out: int,
        *,
        nonce: str = "",
        notes: Sequence[str] = (),
        pulse: int | None = None,
        inside: bool = False,
    ) -> None:
        self._bundle = bundle
        self._in = fd_in
        self._out = fd_out
        self._nonce = nonce
        self._notes = list(notes)
        self._pulse = pulse
        self._inside = inside
        self._reader = FrameReader()
        self._children: dict[int, ChildProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._writer = FrameWriter(fd_out, self._selector, self._on_channel_lost, self._pause)
        self._contexts = ContextPool(self._start_context, self._send, self._feed)
        self._batches = BatchPool(self._start_batch, self._start, self._writer.send)
        self._end_reason = ""
        #: A child has ended since the last poll.
        self._child_exited = True
        self._last_frame_s = self._watched_s = self._stepped_s = time.monotonic()
        self._paused = False

    def run(self) -> None:
        """Serve until the head is gone, then end every descendant."""
        self._install_signals()
        for fd in (self._in, self._out, self._pulse):
            if fd is not None:
                os.set_blocking(fd, False)
        self._selector.register(self._in, selectors.EVENT_READ, self._read_head)
        self._send(hello_values(self._notes))
        if not self._inside:
            # Children inherit it as the first one of probes that compare two snapshots (`procfs.last_snapshot`).
            process.stat_lines()
        try:
            while not self._end_reason:
                self._step()
        finally:
            process.write_last_message(self._end_reason if self._end_reason != _CHANNEL_ENDED else "")
            process.end_descendants(2.0)

    def _install_signals(self) -> None:
        # A pair of sockets would work too, but importing their module takes as long as many probes.
        read_end, write_end = os.pipe()
        for fd in (read_end, write_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._on_child_death)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._on_end_request)
        self._selector.register(read_end, selectors.EVENT_READ, lambda: read(read_end))

    def _on_channel_lost(self, reason: str) -> None:
        self._end_reason = reason

    def _on_child_death(self, number: int, frame: Any) -> None:
        self._child_exited = True

    def _on_end_request(self, number: int, frame: Any) -> None:
        self._end_reason = f"the agent was stopped by signal {number}"

    def _step(self) -> None:
        for key, _ in self._selector.select(self._wait_s()):
            # An earlier callback of this round may have closed it, and its number may have been reused.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        now = time.monotonic()
        # While this process got no CPU time, neither did the process that forwards the head's frames.
        self._last_frame_s = min(now, self._last_frame_s + max(0.0, now - self._stepped_s - 2 * WATCH_S))
        self._stepped_s = now
        if now - self._last_frame_s > LEASE_S:
            self._end_reason = f"{HEAD_SILENT} for {LEASE_S:.1f} s"
            return
        if self._child_exited:
            self._child_exited = False
            self._reap()
        for child in list(self._children.values()):
            self._enforce_deadlines(child, now)
        self._contexts.enforce_deadlines(now)
        if now - self._watched_s >= WATCH_S:
            self._watched_s = now
            if self._pulse is not None:
                with suppress(OSError):
                    os.write(self._pulse, b".")
            self._watch()
            self._contexts.send_heartbeats()
        if now - self._writer.last_sent_s >= BEAT_S:
            self._send(Beat(time.time()))

    def _wait_s(self) -> float:
        now = time.monotonic()
        times = [self._last_frame_s + LEASE_S, self._writer.last_sent_s + BEAT_S, self._watched_s + WATCH_S]
        times.extend(self._contexts.deadlines())
        for child in self._children.values():
            times.extend(child.deadlines())
        return max(0.0, min(min(times) - now, WATCH_S)) + 0.001

    # --- the channel ---

    def _read_head(self) -> None:
        data = read(self._in)
        if data is None:
            return
        if not data:
            self._end_reason = _CHANNEL_ENDED
            return
        received_s = time.time()
        try:
            for message in self._reader.feed(data):
                self._last_frame_s = time.monotonic()
                self._handle(message, received_s)
            self._batches.start()
        except WireError as error:
            self._end_reason = str(error)

    def _handle(self, message: Any, received_s: float) -> None:
        if isinstance(message, Beat):
            self._send(Beat(time.time(), message.sent_s, received_s))
        elif isinstance(message, AgentRequest):
            if message.together and message.context is None:
                self._batches.gather(message)
            else:
                self._start(message)
        elif isinstance(message, Ship):
            self._bundle = bootstrap.extend(self._bundle, message.modules, message.packages)
        elif isinstance(message, Cancel):
            self._batches.start()
            child = self._child_of(message.id)
            if child is not None:
                self._answer(child, Failed(message.id, "cancelled", "it was cancelled", child.error_text()))
                child.kill_at_s = 0.0
            elif not self._batches.cancel(message.id):
                self._contexts.cancel(message.id)
        elif isinstance(message, Signal) and message.what == "stacks":
            child = self._child_of(message.id)
            if child is not None:
                self._dump(child)
            else:
                self._contexts.dump(message.id)

    def _child_of(self, request_id: int) -> ChildProcess | None:
        for child in self._children.values():
            if child.request.id == request_id and not child.answered:
                return child
        return None

    def _send(self, message: Any) -> None:
        self._writer.send([message])

    def _pause(self, wanted: bool) -> None:
        """Stop reading from children while the head accepts no data, so that a verbose child cannot fill the memory."""
        if wanted == self._paused:
            return
        self._paused = wanted
        for child in self._children.values():
            if child.out < 0:
                continue
            if wanted:
                self._selector.unregister(child.out)
            else:
                self._selector.register(child.out, selectors.EVENT_READ, partial(self._read_frames, child))

    # --- children ---

    def _start(self, request: AgentRequest) -> None:
        now = time.monotonic()
        try:
            if request.context is not None and not request.fresh:
                self._contexts.submit(request, now)
            else:
                self._register(child_handle.fork(request, self._nonce, self._bundle, now, kind=ChildProcess))
        except OSError as error:
            self._send(Failed(request.id, "crashed", f"the node cannot start a process: {error}"))

    def _start_context(self, request: AgentRequest) -> ContextProcess:
        context = child_handle.fork(request, self._nonce, self._bundle, time.monotonic(), kind=ContextProcess)
        self._register(context)
        return context

    def _start_batch(self, requests: list[AgentRequest]) -> BatchProcess:
        now = time.monotonic()
        request = AgentRequest(0, f"{len(requests)} requests", {}, PROGRESS_TIMEOUT_S)
        together = child_handle.fork(request, self._nonce, self._bundle, now, kind=BatchProcess, requests=requests)
        self._register(together)
        return together

    def _register(self, child: ChildProcess) -> None:
        self._children[child.pid] = child
        if not self._paused:
            self._selector.register(child.out, selectors.EVENT_READ, partial(self._read_frames, child))
        self._selector.register(child.err, selectors.EVENT_READ, partial(self._read_error, child))
        if child.status >= 0:
            self._selector.register(child.status, selectors.EVENT_READ, partial(self._read_status, child))

    def _close(self, child: ChildProcess, name: str) -> None:
        fd = getattr(child, name)
        if fd >= 0:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            os.close(fd)
            setattr(child, name, -1)

    def _read_frames(self, child: ChildProcess) -> None:
        data = read(child.out)
        if data is None:
            return
        if not data:
            self._close(child, "out")
            return
        try:
            data, begins = child.skip_noise(data)
            if begins:
                if isinstance(child, ContextProcess):
                    self._contexts.on_started(child, time.monotonic())
                self._feed(child)
            for message in child.reader.feed(data):
                self._relay(child, message)
        except WireError as error:
            if isinstance(child, BatchProcess):
                self._batches.on_lost(child)
            reason = f"it wrote something that is not a frame: {error}"
            child.on_error_output(f"\n{reason}\n".encode("utf-8", "replace"))
            self._answer(child, Failed(child.request.id, "crashed", reason))
            child.kill_at_s = 0.0

    def _feed(self, child: ChildProcess) -> None:
        if child.feed < 0:
            return
        try:
            while child.unsent_input:
                del child.unsent_input[: os.write(child.feed, child.unsent_input[:CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            child.unsent_input.clear()
        watch_writable(self._selector, child.feed, partial(self._feed, child) if child.unsent_input else None)

    def _read_error(self, child: ChildProcess) -> None:
        data = read(child.err)
        if data:
            child.on_error_output(data)
        elif data is not None:
            self._close(child, "err")

    def _read_status(self, child: ChildProcess) -> None:
        data = read(child.status)
        if data:
            child.exec_problem += data.decode("utf-8", "replace")
        elif data is not None:
            self._close(child, "status")

    def _relay(self, child: ChildProcess, message: Any) -> None:
        if isinstance(child, ContextProcess):
            self._contexts.on_message(child, message)
        elif isinstance(child, BatchProcess):
            self._batches.on_message(child, message, time.monotonic())
            child.kill_at_s = time.monotonic() + LEAVE_S if child.answered else None
        elif isinstance(message, Event) and message.origin == "start":
            pid = message.data.get("pid")
            child.inner_pid = pid if type(pid) is int else child.pid
            self._send_to(child, {"state": "started", **message.data})
        elif isinstance(message, Event) and not child.answered:
            self._send(Event(child.request.id, message.at_s, "child", message.data))
        elif isinstance(message, (Done, Failed)):
            self._answer(child, message)
            child.kill_at_s = time.monotonic() + LEAVE_S

    def _send_to(self, child: ChildProcess, data: dict[str, Any]) -> None:
        self._send(Event(child.request.id, time.time(), "agent", data))

    def _answer(self, child: ChildProcess, message: Any) -> None:
        if child.answered:
            return
        child.answered = True
        if isinstance(message, Failed) and not message.detail:
            message = Failed(message.id, message.kind, message.reason, child.error_text(), message.exit_code)
        self._send(message)

    def _enforce_deadlines(self, child: ChildProcess, now: float) -> None:
        if child.dump_at_s is not None and now >= child.dump_at_s:
            child.dump_at_s = None
            if not child.timed_out:
                stat = process.stat_of(child.seen_pid())
                state = stat.state if stat is not None else ""
                self._send_to(child, {"stacks": child.error_text(child.dump_offset), "state": state})
        if not child.answered and not child.timed_out and now >= child.deadline_at_s:
            if isinstance(child, BatchProcess):
                if not child.is_starved(now):
                    self._batches.on_lost(child)
                    child.kill_at_s = now
                return
            child.timed_out = True
            self._dump(child)
            child.kill_at_s = now + (DUMP_S if child.has_started else 0.0)
        if child.kill_at_s is not None and now >= child.kill_at_s:
            if not child.answered:
                reason = f"no result within {child.request.deadline_s:.3g} s, waiting for {child.waiting_for()}"
                self._answer(child, Failed(child.request.id, "timeout", reason))
            process.kill_tree(child.pid)
            child.kill_at_s = now + 0.1

    def _dump(self, child: ChildProcess) -> None:
        """Request the stacks of a child; by signal if it is our own process, which works even if the child is stuck."""
        child.dump_offset = child.error_total
        child.dump_at_s = time.monotonic() + DUMP_S
        if child.has_started and not child.request_stacks():
            child.unsent_input += encode(Signal(child.request.id))
            self._feed(child)

    def _reap(self) -> None:
        for pid, code in process.reap().items():
            child = self._children.pop(pid, None)
            if child is None:
                continue
            # Its last output is still in the pipes. Do not wait for their end: descendants may hold them open.
            for name, take in (("status", self._read_status), ("err", self._read_error), ("out", self._read_frames)):
                while getattr(child, name) >= 0 and is_readable(getattr(child, name)):
                    take(child)
            if isinstance(child, ContextProcess):
                self._contexts.on_exit(child, code, time.monotonic())
            elif isinstance(child, BatchProcess):
                self._batches.on_lost(child)
            elif not child.answered:
                self._answer(child, child.exit_failure(code))
            for name in ("out", "err", "feed", "status"):
                self._close(child, name)
        # Orphans of running children are adopted by those, so an unknown child here was left behind by one that has
        # ended.
        for pid in process.children_of(os.getpid()):
            if pid not in self._children:
                process.kill_tree(pid)

    def _watch(self) -> None:
        for child in self._children.values():
            if (self._inside or child.request.context is not None) and not child.answered:
                for change in child.state_changes():
                    self._send_to(child, change)


def hello_values(notes: list[str]) -> Ready:
    """Return the facts that need no lookup, because the user database can hang on a dead directory server."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or f"uid {os.getuid()}"
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = file.read().strip()
    except OSError:
        boot_id = ""
    version = "%d.%d.%d" % sys.version_info[:3]
    return Ready(PROTOCOL, os.uname().nodename, os.getpid(), version, sys.executable or "", boot_id, user, notes)

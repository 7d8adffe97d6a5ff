"""The agent: one process on a node that starts what the head asks for, and ends it all when the head is gone.

One thread, one selector, nothing that blocks: whatever may hang (a name look-up, a device, a directory on a dead
file server) happens in a child that can be killed. Above the agent stands a guardian (`preflight.node.guardian`).
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from preflight.node import process, running
from preflight.node.child import STACKS_SIGNAL
from preflight.node.running import Running
from preflight.node.wire import (
    BEAT_S,
    LEASE_S,
    PROTOCOL,
    Ask,
    Beat,
    Cancel,
    Done,
    Event,
    Failed,
    FrameReader,
    Ready,
    Signal,
    WireError,
    encode,
)

#: How often the states of running ranks are looked at; a stopped one is known within twice this.
WATCH_S = 0.5
#: How long a stack dump may take to arrive.
DUMP_S = 0.3
#: How long a context child may take to leave its wrapper after its answer.
LEAVE_S = 2.0
_BACKLOG_BYTES = 8 << 20
_CHUNK = 65536
_CHANNEL_ENDED = "the channel ended"


class Agent:
    """The loop. Frames come in on `fd_in` and go out on `fd_out`; children's pipes are in between."""

    def __init__(self, bundle: bytes, fd_in: int, fd_out: int, nonce: str, notes: List[str], pulse: int) -> None:
        self._bundle = bundle
        self._in = fd_in
        self._out = fd_out
        self._nonce = nonce
        self._notes = notes
        self._pulse = pulse
        self._reader = FrameReader()
        self._outgoing = bytearray()
        self._children: Dict[int, Running] = {}
        self._selector = selectors.DefaultSelector()
        self._over = ""
        self._heard_s = self._spoke_s = self._watched_s = time.monotonic()
        self._paused = False

    def run(self) -> None:
        """Serve until the head is gone, then end every descendant."""
        self._install_signals()
        for fd in (self._in, self._out, self._pulse):
            os.set_blocking(fd, False)
        self._selector.register(self._in, selectors.EVENT_READ, self._hear)
        self._send(self._introduction())
        try:
            while not self._over:
                self._step()
        finally:
            process.say(self._over if self._over != _CHANNEL_ENDED else "")
            process.end_descendants(2.0)

    def _install_signals(self) -> None:
        here, there = socket.socketpair()
        here.setblocking(False)
        there.setblocking(False)
        self._wakeup = (here, there)
        signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._told_to_end)
        self._selector.register(here, selectors.EVENT_READ, lambda: here.recv(4096))

    def _told_to_end(self, number: int, frame: Any) -> None:
        self._over = "the agent was told to end by signal %d" % number

    def _introduction(self) -> Ready:
        # No look-up in the user database: that can hang on a dead directory server.
        user = os.environ.get("USER") or os.environ.get("LOGNAME") or "uid %d" % os.getuid()
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                boot_id = file.read().strip()
        except OSError:
            boot_id = ""
        version = "%d.%d.%d" % sys.version_info[:3]
        host = os.uname().nodename
        return Ready(PROTOCOL, host, os.getpid(), version, sys.executable or "", boot_id, user, self._notes)

    def _step(self) -> None:
        try:
            os.write(self._pulse, b".")
        except OSError:
            pass
        for key, _ in self._selector.select(self._patience()):
            # An earlier callback of this round may have closed it, and its number may be another's by now.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        now = time.monotonic()
        if now - self._heard_s > LEASE_S:
            self._over = "the head was silent for %.1f s" % LEASE_S
            return
        self._reap()
        for child in list(self._children.values()):
            self._mind(child, now)
        if now - self._watched_s >= WATCH_S:
            self._watched_s = now
            self._watch()
        if now - self._spoke_s >= BEAT_S:
            self._send(Beat(time.time()))

    def _patience(self) -> float:
        now = time.monotonic()
        times = [self._heard_s + LEASE_S, self._spoke_s + BEAT_S, self._watched_s + WATCH_S]
        for child in self._children.values():
            times.extend(t for t in (child.kill_at_s, child.dump_at_s) if t is not None)
            if not child.answered and not child.timed_out:
                times.append(child.deadline_at_s)
        return max(0.0, min(min(times) - now, WATCH_S)) + 0.001

    # --- the channel ---

    def _hear(self) -> None:
        data = _read(self._in)
        if data is None:
            return
        if not data:
            self._over = _CHANNEL_ENDED
            return
        received_s = time.time()
        try:
            for message in self._reader.feed(data):
                self._heard_s = time.monotonic()
                self._obey(message, received_s)
        except WireError as error:
            self._over = str(error)

    def _obey(self, message: Any, received_s: float) -> None:
        if isinstance(message, Beat):
            self._send(Beat(time.time(), message.sent_s, received_s))
        elif isinstance(message, Ask):
            self._start(message)
        elif isinstance(message, Cancel):
            child = self._child_of(message.id)
            if child is not None:
                self._answer(child, Failed(message.id, "cancelled", "it was cancelled", child.error_text()))
                child.kill_at_s = 0.0
        elif isinstance(message, Signal) and message.what == "stacks":
            child = self._child_of(message.id)
            if child is not None:
                self._dump(child)

    def _child_of(self, ask_id: int) -> Optional[Running]:
        for child in self._children.values():
            if child.ask.id == ask_id and not child.answered:
                return child
        return None

    def _send(self, message: Any) -> None:
        self._outgoing += encode(message)
        self._spoke_s = time.monotonic()
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._out, self._outgoing[: 1 << 20])]
        except BlockingIOError:
            pass
        except OSError as error:
            self._over = "the channel cannot be written: %s" % error
            return
        self._watch_writable(self._out, bool(self._outgoing), self._flush)
        self._pause(len(self._outgoing) > _BACKLOG_BYTES)

    def _watch_writable(self, fd: int, wanted: bool, callback: Callable[[], None]) -> None:
        watched = fd in self._selector.get_map()
        if wanted and not watched:
            self._selector.register(fd, selectors.EVENT_WRITE, callback)
        elif watched and not wanted:
            self._selector.unregister(fd)

    def _pause(self, wanted: bool) -> None:
        """Read no children while the head takes nothing, so that a talkative one cannot fill the memory."""
        if wanted == self._paused:
            return
        self._paused = wanted
        for child in self._children.values():
            if child.out < 0:
                continue
            if wanted:
                self._selector.unregister(child.out)
            else:
                self._selector.register(child.out, selectors.EVENT_READ, _bound(self._read_frames, child))

    # --- children ---

    def _start(self, ask: Ask) -> None:
        try:
            child = running.fork(ask, self._nonce, self._bundle, time.monotonic())
        except OSError as error:
            self._send(Failed(ask.id, "crashed", "the node cannot start a process: %s" % error))
            return
        self._children[child.pid] = child
        if not self._paused:
            self._selector.register(child.out, selectors.EVENT_READ, _bound(self._read_frames, child))
        self._selector.register(child.err, selectors.EVENT_READ, _bound(self._read_error, child))
        if child.status >= 0:
            self._selector.register(child.status, selectors.EVENT_READ, _bound(self._read_status, child))

    def _close(self, child: Running, name: str) -> None:
        fd = getattr(child, name)
        if fd >= 0:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            os.close(fd)
            setattr(child, name, -1)

    def _read_frames(self, child: Running) -> None:
        data = _read(child.out)
        if data is None:
            return
        if not data:
            self._close(child, "out")
            return
        try:
            data, begins = child.past_noise(data)
            if begins:
                self._feed(child)
            for message in child.reader.feed(data):
                self._relay(child, message)
        except WireError as error:
            self._answer(child, Failed(child.ask.id, "crashed", "it wrote what is no frame: %s" % error))
            child.kill_at_s = 0.0

    def _feed(self, child: Running) -> None:
        if child.feed < 0:
            return
        try:
            while child.to_feed:
                del child.to_feed[: os.write(child.feed, child.to_feed[:_CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            child.to_feed.clear()
        self._watch_writable(child.feed, bool(child.to_feed), _bound(self._feed, child))

    def _read_error(self, child: Running) -> None:
        data = _read(child.err)
        if data:
            child.heard_error(data)
        elif data is not None:
            self._close(child, "err")

    def _read_status(self, child: Running) -> None:
        data = _read(child.status)
        if data:
            child.exec_problem += data.decode("utf-8", "replace")
        elif data is not None:
            self._close(child, "status")

    def _relay(self, child: Running, message: Any) -> None:
        if isinstance(message, Event) and message.origin == "start":
            child.inner_pid = int(message.data["pid"])
            self._tell(child, {"state": "started", **message.data})
        elif isinstance(message, Event) and not child.answered:
            self._send(Event(child.ask.id, message.at_s, "child", message.data))
        elif isinstance(message, (Done, Failed)):
            self._answer(child, message)
            child.kill_at_s = time.monotonic() + LEAVE_S

    def _tell(self, child: Running, data: Dict[str, Any]) -> None:
        self._send(Event(child.ask.id, time.time(), "agent", data))

    def _answer(self, child: Running, message: Any) -> None:
        if child.answered:
            return
        child.answered = True
        if isinstance(message, Failed) and not message.detail:
            message = Failed(message.id, message.kind, message.reason, child.error_text(), message.exit_code)
        self._send(message)

    def _mind(self, child: Running, now: float) -> None:
        """Deadlines of one child."""
        if child.dump_at_s is not None and now >= child.dump_at_s:
            child.dump_at_s = None
            if not child.timed_out:
                stat = process.stat_of(child.seen_pid())
                state = stat.state if stat is not None else ""
                self._tell(child, {"stacks": child.error_text(child.dump_from), "state": state})
        if not child.answered and not child.timed_out and now >= child.deadline_at_s:
            child.timed_out = True
            self._dump(child)
            child.kill_at_s = now + (DUMP_S if child.started else 0.0)
        if child.kill_at_s is not None and now >= child.kill_at_s:
            if not child.answered:
                reason = "no answer within %.3g s, waiting for %s" % (
                    child.ask.deadline_s,
                    child.waiting_for(),
                )
                self._answer(child, Failed(child.ask.id, "timeout", reason))
            process.kill_tree(child.pid)
            child.kill_at_s = now + 0.1

    def _dump(self, child: Running) -> None:
        """Ask for stacks: by signal where the child is a process of ours, which works even while it is stuck."""
        child.dump_from = child.error_total
        child.dump_at_s = time.monotonic() + DUMP_S
        if not child.started:
            return
        if child.ask.context is None or child.inner_pid in [child.pid, *process.descendants(child.pid)]:
            try:
                os.kill(child.inner_pid, STACKS_SIGNAL)
            except OSError:
                pass
        else:
            child.to_feed += encode(Signal(child.ask.id))
            self._feed(child)

    def _reap(self) -> None:
        for pid, code in process.reap().items():
            child = self._children.pop(pid, None)
            if child is None:
                continue
            # What it said before its end still lies in the pipes. Others below may hold them open: no waiting.
            for name, read in (
                ("status", self._read_status),
                ("err", self._read_error),
                ("out", self._read_frames),
            ):
                while getattr(child, name) >= 0 and _readable(getattr(child, name)):
                    read(child)
            if not child.answered:
                self._answer(child, child.post_mortem(code))
            for name in ("out", "err", "feed", "status"):
                self._close(child, name)
        # The orphans of running children go to those, so a stranger here was left behind by one that has ended.
        strangers = [pid for pid in process.children_of(os.getpid()) if pid not in self._children]
        for pid in strangers:
            process.kill_tree(pid)

    def _watch(self) -> None:
        for child in self._children.values():
            if child.ask.context is not None and not child.answered:
                for change in child.state_changes():
                    self._tell(child, change)


def _bound(function: Callable[[Running], None], child: Running) -> Callable[[], None]:
    return lambda: function(child)


def _read(fd: int) -> Optional[bytes]:
    """What there is to read; empty at the end, None when there is nothing yet."""
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _readable(fd: int) -> bool:
    with selectors.SelectSelector() if fd < 1024 else selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(0))

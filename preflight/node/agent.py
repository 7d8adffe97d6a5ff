"""The agent: one process on a node that starts what the head asks for, and ends it all when the head is gone.

One thread, one selector, nothing that blocks: whatever may hang (a name look-up, a device, a directory on a dead
file server) happens in a child that can be killed. Above the agent stands a guardian (`preflight.node.guardian`).
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from contextlib import suppress

from preflight.node import bootstrap, proc, process, running
from preflight.node.introduction import introduction
from preflight.node.outlet import Outlet, watch_writable
from preflight.node.pipes import CHUNK_BYTES, read, readable
from preflight.node.resident import Lodgings, Resident
from preflight.node.running import Running
from preflight.node.together import PATIENCE_S, Company, Together
from preflight.node.wire import (
    BEAT_S,
    LEASE_S,
    Ask,
    Beat,
    Cancel,
    Done,
    Event,
    Failed,
    FrameReader,
    Ship,
    Signal,
    WireError,
    encode,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence

#: How often the states of running ranks are looked at; a stopped one is known within twice this.
WATCH_S = 0.5
#: How long a stack dump may take to arrive.
DUMP_S = 0.3
#: How long a context child may take to leave its wrapper after its answer.
LEAVE_S = 2.0
_CHANNEL_ENDED = "the channel ended"


class Agent:
    """The loop. Frames come in on `fd_in` and go out on `fd_out`; children's pipes are in between.

    Its guardian hears the `pulse`. One that is `inside` a job context has none, and watches the states of its children
    there, where they are seen.
    """

    def __init__(
        self,
        bundle: bytes,
        fd_in: int,
        fd_out: int,
        *,
        nonce: str = "",
        notes: Sequence[str] = (),
        pulse: Optional[int] = None,
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
        self._children: Dict[int, Running] = {}
        self._selector = selectors.DefaultSelector()
        self._say = Outlet(fd_out, self._selector, self._ended, self._pause)
        self._lodgings = Lodgings(self._enter, self._send, self._feed)
        self._company = Company(self._begin, self._start, self._say.send)
        self._over = ""
        #: A child has ended since the last look.
        self._bereaved = True
        self._heard_s = self._watched_s = self._stepped_s = time.monotonic()
        self._paused = False

    def run(self) -> None:
        """Serve until the head is gone, then end every descendant."""
        self._install_signals()
        for fd in (self._in, self._out, self._pulse):
            if fd is not None:
                os.set_blocking(fd, False)
        self._selector.register(self._in, selectors.EVENT_READ, self._hear)
        self._send(introduction(self._notes))
        if not self._inside:
            # Children inherit it: who wants to see twice what runs here has seen it once (`proc.last_look`).
            proc.stat_lines()
        try:
            while not self._over:
                self._step()
        finally:
            process.say(self._over if self._over != _CHANNEL_ENDED else "")
            process.end_descendants(2.0)

    def _install_signals(self) -> None:
        # A pair of sockets would do, but their module takes as long to import as many a probe to run.
        here, there = os.pipe()
        for fd in (here, there):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(there, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._told_of_death)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._told_to_end)
        self._selector.register(here, selectors.EVENT_READ, lambda: read(here))

    def _ended(self, why: str) -> None:
        self._over = why

    def _told_of_death(self, number: int, frame: Any) -> None:
        self._bereaved = True

    def _told_to_end(self, number: int, frame: Any) -> None:
        self._over = "the agent was told to end by signal %d" % number

    def _step(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            # An earlier callback of this round may have closed it, and its number may be another's by now.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        now = time.monotonic()
        # While this process itself got no processor, neither did whoever brings the head's words.
        self._heard_s = min(now, self._heard_s + max(0.0, now - self._stepped_s - 2 * WATCH_S))
        self._stepped_s = now
        if now - self._heard_s > LEASE_S:
            self._over = "the head was silent for %.1f s" % LEASE_S
            return
        if self._bereaved:
            self._bereaved = False
            self._reap()
        for child in list(self._children.values()):
            self._mind(child, now)
        self._lodgings.mind(now)
        if now - self._watched_s >= WATCH_S:
            self._watched_s = now
            if self._pulse is not None:
                with suppress(OSError):
                    os.write(self._pulse, b".")
            self._watch()
            self._lodgings.beat()
        if now - self._say.spoke_s >= BEAT_S:
            self._send(Beat(time.time()))

    def _patience(self) -> float:
        now = time.monotonic()
        times = [self._heard_s + LEASE_S, self._say.spoke_s + BEAT_S, self._watched_s + WATCH_S]
        times.extend(self._lodgings.moments())
        for child in self._children.values():
            times.extend(child.moments())
        return max(0.0, min(min(times) - now, WATCH_S)) + 0.001

    # --- the channel ---

    def _hear(self) -> None:
        data = read(self._in)
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
            self._company.start()
        except WireError as error:
            self._over = str(error)

    def _obey(self, message: Any, received_s: float) -> None:
        if isinstance(message, Beat):
            self._send(Beat(time.time(), message.sent_s, received_s))
        elif isinstance(message, Ask):
            if message.together and message.context is None:
                self._company.gather(message)
            else:
                self._start(message)
        elif isinstance(message, Ship):
            self._bundle = bootstrap.extend(self._bundle, message.modules, message.packages)
        elif isinstance(message, Cancel):
            self._company.start()
            child = self._child_of(message.id)
            if child is not None:
                self._answer(child, Failed(message.id, "cancelled", "it was cancelled", child.error_text()))
                child.kill_at_s = 0.0
            elif not self._company.cancel(message.id):
                self._lodgings.cancel(message.id)
        elif isinstance(message, Signal) and message.what == "stacks":
            child = self._child_of(message.id)
            if child is not None:
                self._dump(child)
            else:
                self._lodgings.dump(message.id)

    def _child_of(self, ask_id: int) -> Optional[Running]:
        for child in self._children.values():
            if child.ask.id == ask_id and not child.answered:
                return child
        return None

    def _send(self, message: Any) -> None:
        self._say.send([message])

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
        now = time.monotonic()
        try:
            if ask.context is not None and not ask.fresh:
                self._lodgings.take(ask, now)
            else:
                self._attend(running.fork(ask, self._nonce, self._bundle, now, kind=Running))
        except OSError as error:
            self._send(Failed(ask.id, "crashed", "the node cannot start a process: %s" % error))

    def _enter(self, ask: Ask) -> Resident:
        resident = running.fork(ask, self._nonce, self._bundle, time.monotonic(), kind=Resident)
        self._attend(resident)
        return resident

    def _begin(self, asks: List[Ask]) -> Together:
        now = time.monotonic()
        ask = Ask(0, "%d requests" % len(asks), {}, PATIENCE_S)
        together = running.fork(ask, self._nonce, self._bundle, now, kind=Together, asks=asks)
        self._attend(together)
        return together

    def _attend(self, child: Running) -> None:
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
        data = read(child.out)
        if data is None:
            return
        if not data:
            self._close(child, "out")
            return
        try:
            data, begins = child.past_noise(data)
            if begins:
                if isinstance(child, Resident):
                    self._lodgings.begun(child, time.monotonic())
                self._feed(child)
            for message in child.reader.feed(data):
                self._relay(child, message)
        except WireError as error:
            if isinstance(child, Together):
                self._company.lost(child)
            why = "it wrote what is no frame: %s" % error
            child.heard_error(("\n%s\n" % why).encode("utf-8", "replace"))
            self._answer(child, Failed(child.ask.id, "crashed", why))
            child.kill_at_s = 0.0

    def _feed(self, child: Running) -> None:
        if child.feed < 0:
            return
        try:
            while child.to_feed:
                del child.to_feed[: os.write(child.feed, child.to_feed[:CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            child.to_feed.clear()
        watch_writable(self._selector, child.feed, _bound(self._feed, child) if child.to_feed else None)

    def _read_error(self, child: Running) -> None:
        data = read(child.err)
        if data:
            child.heard_error(data)
        elif data is not None:
            self._close(child, "err")

    def _read_status(self, child: Running) -> None:
        data = read(child.status)
        if data:
            child.exec_problem += data.decode("utf-8", "replace")
        elif data is not None:
            self._close(child, "status")

    def _relay(self, child: Running, message: Any) -> None:
        if isinstance(child, Resident):
            self._lodgings.heard(child, message)
        elif isinstance(child, Together):
            self._company.heard(child, message, time.monotonic())
            child.kill_at_s = time.monotonic() + LEAVE_S if child.answered else None
        elif isinstance(message, Event) and message.origin == "start":
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
            if isinstance(child, Together):
                if not child.is_starved(now):
                    self._company.lost(child)
                    child.kill_at_s = now
                return
            child.timed_out = True
            self._dump(child)
            child.kill_at_s = now + (DUMP_S if child.started else 0.0)
        if child.kill_at_s is not None and now >= child.kill_at_s:
            if not child.answered:
                reason = "no answer within %.3g s, waiting for %s" % (child.ask.deadline_s, child.waiting_for())
                self._answer(child, Failed(child.ask.id, "timeout", reason))
            process.kill_tree(child.pid)
            child.kill_at_s = now + 0.1

    def _dump(self, child: Running) -> None:
        """Ask for stacks: by signal where the child is a process of ours, which works even while it is stuck."""
        child.dump_from = child.error_total
        child.dump_at_s = time.monotonic() + DUMP_S
        if child.started and not child.shows_stacks():
            child.to_feed += encode(Signal(child.ask.id))
            self._feed(child)

    def _reap(self) -> None:
        for pid, code in process.reap().items():
            child = self._children.pop(pid, None)
            if child is None:
                continue
            # What it said before its end still lies in the pipes. Others below may hold them open: no waiting.
            for name, take in (("status", self._read_status), ("err", self._read_error), ("out", self._read_frames)):
                while getattr(child, name) >= 0 and readable(getattr(child, name)):
                    take(child)
            if isinstance(child, Resident):
                self._lodgings.ended(child, code, time.monotonic())
            elif isinstance(child, Together):
                self._company.lost(child)
            elif not child.answered:
                self._answer(child, child.post_mortem(code))
            for name in ("out", "err", "feed", "status"):
                self._close(child, name)
        # The orphans of running children go to those, so a stranger here was left behind by one that has ended.
        strangers = [pid for pid in process.children_of(os.getpid()) if pid not in self._children]
        for pid in strangers:
            process.kill_tree(pid)

    def _watch(self) -> None:
        for child in self._children.values():
            if (self._inside or child.ask.context is not None) and not child.answered:
                for change in child.state_changes():
                    self._tell(child, change)


def _bound(function: Callable[[Running], None], child: Running) -> Callable[[], None]:
    return lambda: function(child)

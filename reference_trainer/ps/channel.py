"""One connection between a worker and a server: whole frames in both directions, and no call without a deadline."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
import termios
import threading
import time
from typing import Callable, List, Optional, Tuple

from reference_trainer.ps import frames
from reference_trainer.ps.frames import Header
from reference_trainer.ps.turns import NoTurn, Turn

#: Small frames are read with one call of the kernel; of larger ones at most this much is copied once more.
_READ_AHEAD = 64 * 1024
#: A payload of this size is taken by one call, so that no turn is waited for in the middle of it, and nothing is read
#: ahead: that would be copied once more.
_LARGE_BYTES = 256 * 1024
#: A call of the kernel returns after this at the latest.
_TICK_US = 200_000
#: The kernel takes 1024 parts at once (IOV_MAX).
_MOST_PARTS = 1024
#: After so long without an acknowledgement the kernel gives a connection up (tcp(7), TCP_USER_TIMEOUT).
USER_TIMEOUT_S = 10.0
#: Whoever makes a call wait longer than this is waited for; before that it is only on its way.
NOTICE_S = 0.5
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))


class PeerError(Exception):
    """The other side is gone, silent, or said why it ends. `peer` names it.

    Args:
        kind: `gone`, `silent`, `confused` (no frame of ours), `mismatch`, `ended` (it ended because of a third one).
    """

    def __init__(self, kind: str, peer: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.peer = peer
        self.text = text


def tune(connection: socket.socket) -> None:
    """No delay, keep-alive, and a limit on unacknowledged data, where the system has them."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (*_KEEPALIVE, ("TCP_USER_TIMEOUT", int(USER_TIMEOUT_S * 1000))):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def congestion_control(connection: socket.socket) -> str:
    """Which algorithm the kernel uses for this connection: it decides bandwidth, so it stands beside every number."""
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        return ""
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, option, 16).split(b"\0")[0].decode("ascii", "replace")
    except OSError:
        return ""


class Channel:
    """Frames over one connected socket.

    Args:
        peer: who is at the other end, for messages.
        limit_s: how long a call may wait for the other side; may be changed at any time.
    """

    def __init__(self, connection: socket.socket, *, peer: str, limit_s: float) -> None:
        tune(connection)
        # Calls block in the kernel, which is one call where polling would be three, but never longer than a tick; then
        # the deadline is looked at.
        connection.setblocking(True)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", 0, _TICK_US))
        self.peer = peer
        self.limit_s = limit_s
        self.bytes_in = 0
        self.bytes_out = 0
        self.congestion = congestion_control(connection)
        self.address = address_of(connection, peer=True)
        self.source = address_of(connection, peer=False)
        self._socket = connection
        self._ahead = memoryview(bytearray(_READ_AHEAD))
        self._begin = self._end = 0
        self._payload_left = 0
        #: Read what follows together with the next header; after a large frame another one is likely.
        self._reads_ahead = True
        #: Bytes that the other side had not acknowledged when it was looked last.
        self._unsent = 0
        self._queued: List[memoryview] = []
        #: A frame was begun whose end is still to be offered.
        self._cut = False
        self._sending = threading.Lock()
        #: Hears when the other side has kept a call waiting for a moment, and when that is over.
        self.noticed: Callable[[bool], None] = lambda lasts: None
        #: A call waits for the other side right now, and has for a moment.
        self.kept_waiting = False
        #: Given up around calls of the kernel by whoever holds it.
        self.turn: Turn = NoTurn()

    def send(self, header: Header, *payload: memoryview) -> None:
        """Send one whole frame; the payload's parts one behind the other."""
        self.send_all([memoryview(frames.encode(header)), *payload])

    def queue(self, parts: List[memoryview]) -> None:
        """Send these bytes before the next wait for the other side: together with what else is queued by then."""
        self._queued += parts

    def offer(self, parts: List[memoryview], *, whole: bool) -> None:
        """Queue these bytes, and send of all that is queued what the kernel takes without a wait. Raises PeerError.

        For answers to what the other side still sends: it reads nothing before it has sent everything, so who waited
        for that here would wait for ever.

        Args:
            whole: a frame ends with these bytes; else the rest of it is to be offered before anything else is sent.
        """
        with self._sending:
            self._cut = not whole
            self._queued += parts
            try:
                sent = self._socket.sendmsg(self._queued[:_MOST_PARTS], (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._gone(error) from error
            self.bytes_out += sent
            self._queued = _behind(self._queued, sent)

    def flush(self) -> None:
        """Send what is queued."""
        if self._queued:
            self.send_all([])

    def send_all(self, parts: List[memoryview]) -> None:
        """Send these bytes in order, after what is queued; one frame or several. Raises PeerError."""
        with self._sending:
            if self._queued:
                parts, self._queued = self._queued + parts, []
            began = 0.0
            left = sum(map(len, parts))
            while left:
                held = self.turn.release()
                try:
                    sent = self._socket.sendmsg(parts[:_MOST_PARTS])
                except BlockingIOError:
                    began = began or time.monotonic() - _TICK_US / 1e6
                    self._check(began, began + self.limit_s, "took nothing of what was sent to it")
                    continue
                except OSError as error:
                    raise self._gone(error) from error
                finally:
                    if held:
                        self.turn.acquire()
                # Whoever takes some of it is alive.
                began = 0.0
                self._goes_on()
                self.bytes_out += sent
                left -= sent
                parts = _behind(parts, sent)

    def receive(self, deadline: Optional[float] = None) -> Header:
        """The next header. Its payload must be taken with `take` before the next one is asked for.

        Raises PeerError: `gone` at the end of the stream, `silent` when nothing came in time, `confused` when what
        came is no frame, and what an ERROR frame says.
        """
        if self._payload_left:
            raise RuntimeError("%d bytes of a payload were not taken" % self._payload_left)
        while self._end - self._begin < frames.HEADER_BYTES:
            self._more(deadline)
        begin = self._begin
        self._begin += frames.HEADER_BYTES
        try:
            header = frames.decode(self._ahead[begin : self._begin])
        except frames.FrameError as error:
            raise PeerError("confused", self.peer, "%s sent something else: %s" % (self.peer, error)) from error
        self._payload_left = header.bytes
        self._reads_ahead = header.bytes < _LARGE_BYTES
        if header.op == frames.ERROR:
            raise self._error(header, deadline)
        return header

    def take(self, into: memoryview, ends: Optional[float] = None) -> None:
        """Read so much of the payload as `into` holds; by `ends`, else as long as bytes keep coming."""
        size = len(into)
        if size > self._payload_left:
            raise PeerError("confused", self.peer, "%s sent a payload that is too short" % self.peer)
        self._payload_left -= size
        have = min(size, self._end - self._begin)
        into[:have] = self._ahead[self._begin : self._begin + have]
        self._begin += have
        began = 0.0
        while have < size:
            held = self.turn.release()
            try:
                if self._payload_left or size >= _LARGE_BYTES:
                    got = self._socket.recv_into(into[have:], 0, socket.MSG_WAITALL)
                else:
                    # What follows the payload comes with the same call.
                    got = self._socket.recvmsg_into([into[have:], self._ahead])[0]
            except BlockingIOError:
                began = began or time.monotonic() - _TICK_US / 1e6
                ends_s = began + self.limit_s if ends is None else ends
                self._check(began, ends_s, "stopped in the middle of a frame")
                continue
            except OSError as error:
                raise self._gone(error) from error
            finally:
                if held:
                    self.turn.acquire()
            if not got:
                raise self._ended()
            began = 0.0
            self._goes_on()
            self.bytes_in += got
            self._begin, self._end = 0, max(0, got - (size - have))
            have += got

    def text(self, header: Header, ends: Optional[float] = None) -> str:
        """The payload of this header as text. Raises PeerError when it is longer than texts may be."""
        if header.bytes > frames.TEXT_BYTES:
            raise PeerError("confused", self.peer, "%s sent a text of %d bytes" % (self.peer, header.bytes))
        data = bytearray(header.bytes)
        self.take(memoryview(data), ends)
        return data.decode("utf-8", "replace")

    def say_error(self, text: str, flags: int = 0) -> None:
        """Tell the other side why this connection ends; whether it still hears that does not matter.

        In the middle of a frame it is not told: it would take the words for numbers.
        """
        if self._cut:
            return
        data = text.encode("utf-8")[: frames.TEXT_BYTES]
        limit_s, self.limit_s = self.limit_s, min(1.0, self.limit_s)
        try:
            if self._sending.acquire(timeout=1.0):
                self._sending.release()
                self.send(Header(frames.ERROR, flags, bytes=len(data)), memoryview(data))
        except PeerError:
            pass
        finally:
            self.limit_s = limit_s

    def shut(self) -> None:
        """Wake whoever waits on this connection: no more bytes go either way."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Give the connection up."""
        self._socket.close()

    @property
    def seen(self) -> bytes:
        """What came and was not taken yet, for messages about strangers."""
        return bytes(self._ahead[self._begin : self._end][:80])

    def _more(self, deadline: Optional[float]) -> None:
        self.flush()
        if self._begin == self._end:
            self._begin = self._end = 0
        elif _READ_AHEAD - self._end < frames.HEADER_BYTES:
            left = self._end - self._begin
            self._ahead[:left] = bytes(self._ahead[self._begin : self._end])
            self._begin, self._end = 0, left
        until = _READ_AHEAD if self._reads_ahead else self._begin + frames.HEADER_BYTES
        began = time.monotonic()
        while True:
            held = self.turn.release()
            try:
                got = self._socket.recv_into(self._ahead[self._end : until])
            except BlockingIOError:
                ends = began + self.limit_s if deadline is None else deadline
                self._check(began, ends, "said nothing")
                continue
            except OSError as error:
                raise self._gone(error) from error
            finally:
                if held:
                    self.turn.acquire()
            self._goes_on()
            if not got:
                raise self._ended()
            self._end += got
            self.bytes_in += got
            return

    def _check(self, began: float, deadline: float, did: str) -> None:
        """After a call of the kernel that brought nothing for a tick: tell it when it lasts, end it when it is over."""
        now = time.monotonic()
        if now >= deadline and not self._drains():
            self._goes_on()
            raise PeerError("silent", self.peer, "%s %s for %.1f s" % (self.peer, did, self.limit_s))
        if now - began >= NOTICE_S:
            self.kept_waiting = True
            self.noticed(True)

    def _goes_on(self) -> None:
        if self.kept_waiting:
            self.kept_waiting = False
            self.noticed(False)

    def _drains(self) -> bool:
        """Whether the kernel still gets rid of what was sent: then the other side lives, and the way to it is slow."""
        try:
            (left,) = struct.unpack("i", fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)))
        except OSError:
            return False
        before, self._unsent = self._unsent, left
        return bool(0 < left < before)

    def _gone(self, error: OSError) -> PeerError:
        if error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH):
            return PeerError("silent", self.peer, "%s does not answer any more: %s" % (self.peer, error.strerror))
        return PeerError("gone", self.peer, "the connection to %s broke: %s" % (self.peer, error.strerror))

    def _ended(self) -> PeerError:
        return PeerError("gone", self.peer, "%s closed the connection" % self.peer)

    def _error(self, header: Header, ends: Optional[float]) -> PeerError:
        kind = "mismatch" if header.flags & frames.MISMATCH else "ended"
        kind = "confused" if header.flags & frames.REFUSED else kind
        return PeerError(kind, self.peer, "%s says: %s" % (self.peer, self.text(header, ends)))


def _behind(parts: List[memoryview], sent: int) -> List[memoryview]:
    """What is left of these parts when so many bytes of them were sent."""
    for place, part in enumerate(parts):
        if sent < len(part):
            return [part[sent:], *parts[place + 1 :]]
        sent -= len(part)
    return []


def address_of(connection: socket.socket, *, peer: bool) -> str:
    """`host:port` of one end of a connection, an IPv4 address as such."""
    try:
        name: Tuple[object, ...] = connection.getpeername() if peer else connection.getsockname()
    except OSError:
        return ""
    if len(name) < 2:
        return str(name)
    host = str(name[0])
    host = host[7:] if host.startswith("::ffff:") else host
    return "[%s]:%s" % (host, name[1]) if ":" in host else "%s:%s" % (host, name[1])

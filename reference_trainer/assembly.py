"""How processes meet at a port before any framework is imported, where its own store cannot say who is missing.

Paddle's store and servers take no deadline for a single wait and tell nobody whom they wait for. So whoever is to
listen on a port for the framework first listens there itself: the others say there who they are, and hear who is still
missing. When all are there the port is given back. The connections may be kept, for what is to be said later.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from typing import Any, Dict, List, Optional, Sequence

from preflight.node.record import dataclass, field
from preflight.node.wire import ProbeUnavailable
from reference_trainer import endpoint, phases
from reference_trainer.progress import Progress

#: A message is one line of JSON; nobody who belongs here sends longer ones.
MOST_BYTES = 4096
#: How often the others are told who is still missing.
TELL_S = 0.5
#: Who waits at somebody's port waits longer than that one does, which knows who is missing and says so.
GRACE_S = 5.0


class Line:
    """One connection that carries lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._heard = b""

    def say(self, **message: Any) -> None:
        """Send one line. Raises OSError when the other side is gone."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, ends: float) -> Optional[Dict[str, Any]]:
        """The next line; None when the time (of `time.monotonic`) is over. Raises ConnectionError at its end."""
        while b"\n" not in self._heard:
            left = ends - time.monotonic()
            if left <= 0:
                return None
            self.connection.settimeout(left)
            try:
                self._take()
            except socket.timeout:
                return None
        return self._next()

    def ready(self) -> Optional[Dict[str, Any]]:
        """The next line if it has come, after the connection was found readable. Raises ConnectionError at its end."""
        if b"\n" not in self._heard:
            try:
                self._take()
            except BlockingIOError:
                return None
        return self._next() if b"\n" in self._heard else None

    def close(self) -> None:
        """No more lines."""
        self.connection.close()

    def _take(self) -> None:
        part = self.connection.recv(MOST_BYTES)
        if not part or len(self._heard) + len(part) > 4 * MOST_BYTES:
            raise ConnectionError("connection closed by peer")
        self._heard += part

    def _next(self) -> Dict[str, Any]:
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            said = json.loads(line.decode("utf-8"))
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}


@dataclass
class _Caller:
    line: Line
    said: Dict[str, Any] = field(default_factory=dict)


def host(
    own: Dict[str, Any],
    expected: Sequence[int],
    common: Sequence[str],
    me: Progress,
    listener: socket.socket,
    timeout_s: float,
) -> Dict[int, Line]:
    """Wait on `listener`, which is closed before this returns, until all `expected` numbers have come.

    Args:
        own: what this process says of itself: `rank`, `host`, and what is in `common`, which all must say alike.

    Returns the connection to each. Raises ProbeUnavailable: `denied` where what they say contradicts each other,
    `timeout` with the numbers of the missing ones.
    """
    ends, tell_at = time.monotonic() + timeout_s, 0.0
    callers: List[_Caller] = []
    missing = list(expected)
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        try:
            while missing:
                now = time.monotonic()
                if now >= ends:
                    text = "ranks %s did not come to the port of rank %s within %g s" % (
                        missing,
                        own["rank"],
                        timeout_s,
                    )
                    raise ProbeUnavailable("timeout", text)
                if now >= tell_at:
                    _tell(callers, missing=missing)
                    tell_at = now + TELL_S
                for key, _ in selector.select(min(TELL_S, ends - now)):
                    if key.data is None:
                        _accept(listener, selector, callers)
                    elif _introduced(key.data, selector):
                        contradiction = _contradiction(own, key.data, callers, expected, common)
                        if contradiction:
                            _tell(callers, mismatch=contradiction)
                            _mismatch(me, contradiction)
                here = {caller.said.get("rank") for caller in callers}
                missing = [rank for rank in expected if rank not in here]
                me.waits_for(missing)
        except BaseException:
            _tell(callers, go=False)
            _close(callers)
            raise
        finally:
            listener.close()
    _tell(callers, go=True)
    _close([caller for caller in callers if not caller.said])
    return {int(caller.said["rank"]): caller.line for caller in callers if caller.said}


def visit(own: Dict[str, Any], address: str, port: int, host_rank: int, me: Progress, timeout_s: float) -> Line:
    """Say at somebody's port who this is, and wait until all who are expected there have come.

    Raises ProbeUnavailable: `denied` where what is said contradicts the others, `timeout` when nobody answers, and
    `blocked` when the other side gave up.
    """
    ends = time.monotonic() + timeout_s + GRACE_S
    try:
        line = Line(socket.create_connection((address, port), timeout=endpoint.ATTEMPT_S))
    except OSError as error:
        text = "%s:%d, the port of rank %d, was open and no longer is: %s" % (address, port, host_rank, error)
        raise ProbeUnavailable("timeout", text) from None
    line.say(**own)
    while True:
        said = line.hear(ends)
        if said is None:
            text = "rank %d did not say within %g s that all are there" % (host_rank, timeout_s)
            raise ProbeUnavailable("timeout", text)
        if said.get("mismatch"):
            _mismatch(me, said["mismatch"])
        if said.get("missing"):
            me.waits_for([rank for rank in said["missing"] if rank != me.rank] or [host_rank])
        elif said.get("go"):
            return line
        elif "go" in said:
            raise ProbeUnavailable("blocked", "rank %d gave up waiting for the others" % host_rank)


def _accept(listener: socket.socket, selector: selectors.BaseSelector, callers: List[_Caller]) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    connection.setblocking(False)
    caller = _Caller(Line(connection))
    callers.append(caller)
    selector.register(connection, selectors.EVENT_READ, caller)


def _introduced(caller: _Caller, selector: selectors.BaseSelector) -> bool:
    """Whether it has just said who it is; whoever hangs up before that only tried the port."""
    try:
        said = caller.line.ready()
    except OSError:
        selector.unregister(caller.line.connection)
        caller.said = {}
        return False
    if caller.said or not said or type(said.get("rank")) is not int:
        return False
    caller.said = said
    return True


def _contradiction(
    own: Dict[str, Any], caller: _Caller, callers: List[_Caller], expected: Sequence[int], common: Sequence[str]
) -> Dict[str, Any]:
    """What this caller says that cannot be true together with who was there before it; empty when nothing."""
    said = caller.said
    where = str(said.get("host", "?"))
    for name in common:
        if said.get(name) != own.get(name):
            mine = "%s (rank %s on %s)" % (own.get(name), own["rank"], own["host"])
            return {"what": name, "theirs": "%s (rank %s on %s)" % (said.get(name), said["rank"], where), "mine": mine}
    twice = [other for other in callers if other is not caller and other.said.get("rank") == said["rank"]]
    if twice or said["rank"] == own["rank"]:
        first = str(twice[0].said.get("host", "?")) if twice else own["host"]
        return {"what": "rank", "theirs": "rank %d on %s" % (said["rank"], where), "mine": "the same on %s" % first}
    if said["rank"] not in expected:
        return {"what": "rank", "theirs": "rank %d on %s" % (said["rank"], where), "mine": "one of %s" % list(expected)}
    return {}


def _tell(callers: Sequence[_Caller], **message: Any) -> None:
    for caller in callers:
        try:
            caller.line.say(**message)
        except OSError:
            continue


def _close(callers: Sequence[_Caller]) -> None:
    for caller in callers:
        caller.line.close()


def _mismatch(me: Progress, contradiction: Dict[str, Any]) -> None:
    what, mine, theirs = (str(contradiction[name]) for name in ("what", "mine", "theirs"))
    text = "processes of one run contradict each other: %s %s against %s" % (what, theirs, mine)
    me.say(phases.PROBLEM, problem="mismatch", what=what, mine=mine, theirs=theirs, error=text, rank=me.rank)
    raise ProbeUnavailable("denied", text)

"""How a worker reaches every server: all dialled at once, each outcome told, each server made to prove itself."""

from __future__ import annotations

import errno
import socket
import threading
import time
from typing import Any, Dict, List, Optional

from preflight.node.record import dataclass, field
from preflight.node.wire import ProbeUnavailable
from reference_trainer import endpoint, phases
from reference_trainer.endpoint import Dialled
from reference_trainer.progress import Progress
from reference_trainer.ps import greeting, settings
from reference_trainer.ps.channel import Channel, PeerError
from reference_trainer.ps.settings import Settings

#: Pauses of one who cannot answer yet are not longer than this before the connection is open.
_PAUSE_S = 0.2
#: A server that cannot be opened is told again so often: that it still is so, long after it has begun to listen.
_AGAIN_S = 1.0


@dataclass
class Reached:
    """One server: the connection to it once it is open and proven, else why not."""

    index: int
    endpoint: str
    dialled: Dialled = field(default_factory=lambda: Dialled("failed", "it was not tried"))
    channel: Optional[Channel] = None
    host: str = ""
    problem: Optional[PeerError] = None


class Dialling:
    """Dials all servers while torch is imported: `result` waits for all of them."""

    def __init__(self, told: Settings, me: Progress, says: Dict[str, Any]) -> None:
        self._told = told
        self._me = me
        self._says = says
        self.reached = [Reached(index, told.endpoints[index]) for index in range(told.servers)]
        self._ends = time.monotonic() + told.timeout_s
        self._threads = [
            threading.Thread(target=self._dial, args=(one,), name="preflight-ps-dial", daemon=True)
            for one in self.reached
        ]
        for thread in self._threads:
            thread.start()

    def channels(self) -> List[Channel]:
        """A connection to each server, by index.

        Raises ProbeUnavailable: `denied` when a server was told something else or somebody else listens there,
        `timeout` when one cannot be reached.
        """
        told, me = self._told, self._me
        me.entering("connections to the servers", waiting_for=list(told.server_numbers))
        for thread in self._threads:
            thread.join(max(0.0, self._ends + 3 * endpoint.ATTEMPT_S - time.monotonic()))
            me.waits_for([told.server_numbers[one.index] for one in self.reached if one.channel is None])
        found = [one.channel for one in self.reached if one.channel is not None]
        if len(found) == len(self.reached):
            me.left()
            return found
        for channel in found:
            channel.say_error("this worker could not come to all servers")
            channel.close()
        raise self._why()

    def _why(self) -> ProbeUnavailable:
        failed = [one for one in self.reached if one.channel is None]
        # What a server itself said counts more than what was seen of another one.
        first = min(failed, key=lambda one: (_RANK.get(one.problem.kind if one.problem else "", 4), one.index))
        if first.problem is None:
            text = "cannot reach server %d at %s (%s): %s"
            why = text % (first.index, first.endpoint, first.dialled.result, first.dialled.error)
            return ProbeUnavailable("timeout", why)
        kind = "denied" if first.problem.kind in ("mismatch", "confused") else "blocked"
        return ProbeUnavailable(kind, first.problem.text)

    def _dial(self, one: Reached) -> None:
        try:
            host, port = settings.split(one.endpoint)
        except ValueError as error:
            one.dialled = Dialled("unresolved", str(error))
            self._tell(one)
            return
        before, told_at = "", 0.0
        while True:
            connection = self._connect(one, host, port)
            if one.dialled.result != before or time.monotonic() - told_at >= _AGAIN_S:
                before, told_at = one.dialled.result, time.monotonic()
                self._tell(one)
            if connection is not None:
                self._greet(one, connection)
                return
            if time.monotonic() >= self._ends:
                return
            time.sleep(_PAUSE_S)

    def _connect(self, one: Reached, host: str, port: int) -> Optional[socket.socket]:
        """One attempt; the connection is kept where it opens."""
        began = time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=endpoint.ATTEMPT_S)
        except (OSError, UnicodeError):
            # What exactly failed, and at which address, is told by the attempt whose only purpose that is.
            one.dialled = endpoint.dial(host, port)
            return None
        if connection.getsockname() == connection.getpeername():
            # A port of the ephemeral range may connect to itself while nobody listens there.
            connection.close()
            one.dialled = Dialled("refused", "%s port %d: nobody listens there" % (host, port))
            return None
        address, source = str(connection.getpeername()[0]), str(connection.getsockname()[0])
        one.dialled = Dialled("open", "", address, source, time.monotonic() - began)
        return connection

    def _greet(self, one: Reached, connection: socket.socket) -> None:
        told = self._told
        name = "server %d at %s" % (one.index, one.endpoint)
        channel = Channel(connection, peer=name, limit_s=told.least_limit_s)
        try:
            says = {**self._says, "server": one.index}
            one.host = str(greeting.introduce(channel, told.secret, says, told.least_limit_s).get("host", ""))[:255]
        except PeerError as error:
            channel.close()
            one.problem = error
            if error.kind == "mismatch":
                self._me.say(
                    phases.PROBLEM,
                    problem="mismatch",
                    what="hello",
                    error=error.text,
                    rank=self._me.rank,
                    server=one.index,
                )
            else:
                one.dialled = Dialled(
                    "stranger" if error.kind == "confused" else "silent",
                    error.text,
                    one.dialled.address,
                    one.dialled.source,
                    one.dialled.seconds,
                )
                self._tell(one)
            return
        except OSError as error:
            channel.close()
            one.problem = PeerError("gone", name, "%s: %s" % (name, error.strerror or errno.errorcode.get(0, "")))
            return
        channel.peer = "%s (%s)" % (name, one.host) if one.host else name
        one.channel = channel

    def _tell(self, one: Reached) -> None:
        dialled = one.dialled
        self._me.say(
            phases.DIAL,
            rank=self._me.rank,
            to=self._told.server_numbers[one.index],
            server=one.index,
            endpoint=one.endpoint,
            result=dialled.result,
            error=dialled.error,
            address=dialled.address,
            source=dialled.source,
            seconds=round(dialled.seconds, 4),
        )


_RANK = {"mismatch": 0, "confused": 1, "ended": 2, "silent": 3, "gone": 3}

"""Connects a worker to all servers in parallel, reports each result, and authenticates each server."""

from __future__ import annotations

import errno
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import endpoint
from reference_trainer.common.endpoint import DialResult
from reference_trainer.common.progress import Progress
from reference_trainer.ps import handshake, settings
from reference_trainer.ps.channel import Channel, PeerError
from reference_trainer.ps.settings import Settings

#: The longest pause between attempts before the connection is open.
_PAUSE_S = 0.2
#: How often the handshake with a server is retried if it closes the connection without a message.
_MAX_TRIES = 20
#: How often a failed connection is reported again: it may last long after the server has begun to listen.
_REPEAT_S = 1.0


@dataclass
class DialledServer:
    """One server: its authenticated connection, or why there is none."""

    index: int
    endpoint: str
    dialled: DialResult = field(default_factory=lambda: DialResult("failed", "it was not tried"))
    channel: Optional[Channel] = None
    host: str = ""
    problem: Optional[PeerError] = None


class ServerDialer:
    """Dials all servers while torch is imported: `result` waits for all of them."""

    def __init__(self, config: Settings, progress: Progress, own_values: Dict[str, Any]) -> None:
        self._config = config
        self._progress = progress
        self._own_values = own_values
        self.reached = [DialledServer(index, config.endpoints[index]) for index in range(config.servers)]
        self._ends = time.monotonic() + config.timeout_s
        self._threads = [
            threading.Thread(target=self._dial, args=(item,), name="preflight-ps-dial", daemon=True)
            for item in self.reached
        ]
        for thread in self._threads:
            thread.start()

    def channels(self) -> List[Channel]:
        """A connection to each server, by index.

        Raises ProbeUnavailable: `denied` when a server has another configuration or another program listens there,
        `timeout` when one cannot be reached.
        """
        config, progress = self._config, self._progress
        progress.entering("connections to the servers", waiting_for=list(config.server_numbers))
        for thread in self._threads:
            thread.join(max(0.0, self._ends + 3 * endpoint.ATTEMPT_S - time.monotonic()))
            progress.waits_for([config.server_numbers[item.index] for item in self.reached if item.channel is None])
        found = [item.channel for item in self.reached if item.channel is not None]
        if len(found) == len(self.reached):
            progress.left()
            return found
        for channel in found:
            channel.send_error("this worker could not connect to all servers")
            channel.close()
        raise self._why()

    def _why(self) -> ProbeUnavailable:
        failed = [item for item in self.reached if item.channel is None]
        # A server's own message takes precedence over a failed connection to another server.
        first = min(failed, key=lambda item: (_RANK.get(item.problem.kind if item.problem else "", 4), item.index))
        if first.problem is None:
            text = "cannot reach server %d at %s (%s): %s"
            why = text % (first.index, first.endpoint, first.dialled.result, first.dialled.error)
            return ProbeUnavailable("timeout", why)
        kind = "denied" if first.problem.kind in ("mismatch", "protocol_error") else "blocked"
        return ProbeUnavailable(kind, first.problem.text)

    def _dial(self, item: DialledServer) -> None:
        try:
            host, port = settings.split_endpoint(item.endpoint)
        except ValueError as error:
            item.dialled = DialResult("unresolved", str(error))
            self._on_dialled(item)
            return
        before, notified_at, tries = "", 0.0, 0
        while True:
            connection = self._connect(item, host, port)
            if item.dialled.result != before or time.monotonic() - notified_at >= _REPEAT_S:
                before, notified_at = item.dialled.result, time.monotonic()
                self._on_dialled(item)
            if connection is not None:
                tries += 1
                self._greet(item, connection)
                # A server with many unauthenticated connections may drop one before it is authenticated.
                if item.problem is None or item.problem.kind != "gone" or tries >= _MAX_TRIES:
                    return
                item.problem = None if time.monotonic() < self._ends else item.problem
            if time.monotonic() >= self._ends:
                return
            time.sleep(_PAUSE_S)

    def _connect(self, item: DialledServer, host: str, port: int) -> Optional[socket.socket]:
        """One attempt; the connection is kept if it opens."""
        began = time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=endpoint.ATTEMPT_S)
        except (OSError, UnicodeError):
            # The exact failure, and its address, are reported by the attempt made only for that purpose.
            item.dialled = endpoint.dial(host, port)
            return None
        if connection.getsockname() == connection.getpeername():
            # A port of the ephemeral range may connect to itself while nothing listens there.
            connection.close()
            item.dialled = DialResult("refused", "%s port %d: nothing listens there" % (host, port))
            return None
        address, source = str(connection.getpeername()[0]), str(connection.getsockname()[0])
        item.dialled = DialResult("open", "", address, source, time.monotonic() - began)
        return connection

    def _greet(self, item: DialledServer, connection: socket.socket) -> None:
        config = self._config
        name = "server %d at %s" % (item.index, item.endpoint)
        channel = Channel(connection, peer=name, limit_s=config.least_limit_s)
        try:
            own_values = {**self._own_values, "server": item.index}
            item.host = str(
                handshake.introduce(channel, config.secret, own_values, config.least_limit_s).get("host", "")
            )[:255]
        except PeerError as error:
            channel.close()
            item.problem = error
            if error.kind == "mismatch":
                self._progress.send(
                    rank_events.PROBLEM,
                    problem="mismatch",
                    what="hello",
                    error=error.text,
                    rank=self._progress.rank,
                    server=item.index,
                )
            else:
                item.dialled = DialResult(
                    "stranger" if error.kind == "protocol_error" else "silent",
                    error.text,
                    item.dialled.address,
                    item.dialled.source,
                    item.dialled.seconds,
                )
                self._on_dialled(item)
            return
        except OSError as error:
            channel.close()
            item.problem = PeerError("gone", name, "%s: %s" % (name, error.strerror or errno.errorcode.get(0, "")))
            return
        channel.peer = "%s (%s)" % (name, item.host) if item.host else name
        item.channel = channel

    def _on_dialled(self, item: DialledServer) -> None:
        dialled = item.dialled
        self._progress.send(
            rank_events.DIAL,
            rank=self._progress.rank,
            to=self._config.server_numbers[item.index],
            server=item.index,
            endpoint=item.endpoint,
            result=dialled.result,
            error=dialled.error,
            address=dialled.address,
            source=dialled.source,
            seconds=round(dialled.seconds, 4),
        )


_RANK = {"mismatch": 0, "protocol_error": 1, "ended": 2, "silent": 3, "gone": 3}

"""Accepts a server's connections: a client must authenticate itself and have the same configuration as the server.

Unauthenticated connections are limited in number, and in time by the handshake's limit. If there are too many, the
oldest is dropped for the newest: a client with the secret proves that at once, so strangers, however many or slow,
cannot keep a worker out.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Tuple

from preflight.agent import rank_events
from reference_trainer.ps import frames, handshake, partition
from reference_trainer.ps.clocks import RunEnded
from reference_trainer.ps.connection import ConnectionHandler
from reference_trainer.ps.frames import Channel, PeerError, address_of
from reference_trainer.ps.server_state import ConnectedWorker, ServerState
from reference_trainer.ps.settings import Settings

#: Time limit of the whole handshake, however its bytes arrive.
_HANDSHAKE_S = 5.0
#: Unauthenticated connections at a time, besides two for each worker.
_MAX_UNKNOWN = 64
#: A connection is dropped for a newer one only after this time to prove itself: a worker needs milliseconds.
_PROOF_S = 0.2
_ACCEPT_S = 0.5

_SETTING_NAMES = {
    "servers": "the number of servers",
    "workers": "the number of workers",
    "server_endpoints": "the list of server endpoints",
    "mode": "the update mode",
    "staleness": "the staleness bound",
    "geo_steps": "the local steps of geo mode",
    "steps": "the number of steps",
    "until": "the last phase of the run",
    "policy": "the placement policy",
    "stream_bytes": "the size of streamed shards",
}


class ConnectionAcceptor:
    """Accepts connections until it is closed; each client is served by its own thread.

    Args:
        on_disagreement: called with (message, the worker's values) if a worker has different settings from this server.
    """

    def __init__(
        self, host: ServerState, listener: socket.socket, on_disagreement: Callable[[str, Dict[str, Any]], None]
    ) -> None:
        self._host = host
        self._listener = listener
        self._on_disagreement = on_disagreement
        self._unauthenticated = _UnauthenticatedConnections(host.config)
        self._quit = threading.Event()
        listener.settimeout(_ACCEPT_S)
        self._thread = threading.Thread(target=self._run, name="preflight-ps-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections."""
        self._quit.set()
        self._thread.join(2 * _ACCEPT_S)
        self._listener.close()

    def _run(self) -> None:
        while not self._quit.is_set():
            try:
                if not self._unauthenticated.has_room(_ACCEPT_S):
                    continue
                connection, _ = self._listener.accept()
            except socket.timeout:
                continue
            except OSError:
                if self._quit.wait(_ACCEPT_S):
                    return
                continue
            for given_up in self._unauthenticated.add(connection):
                self._host.refuse(given_up, "it did not identify itself, and others tried to connect")
            try:
                threading.Thread(target=self._greet, args=(connection,), name="preflight-ps-greet", daemon=True).start()
            except RuntimeError:
                # No thread can be started at the moment; a worker tries again.
                self._unauthenticated.remove(connection)
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection, peer=address_of(connection, peer=True), limit_s=_HANDSHAKE_S)
            try:
                peer = self._admit(channel, connection)
            except PeerError as error:
                if error.kind == "protocol_error":
                    self._host.refuse(channel.address, error.text)
                    channel.send_error("this port belongs to a smoke run of preflight: %s" % error.text, frames.REFUSED)
                channel.close()
                return
            except OSError:
                connection.close()
                return
            if peer is not None:
                ConnectionHandler(self._host, peer).run()
        finally:
            self._unauthenticated.remove(connection)

    def _admit(self, channel: Channel, connection: socket.socket) -> Any:
        """The client; None if it belongs to this run but has a different configuration, which both sides then know."""
        host = self._host
        deadline = time.monotonic() + _HANDSHAKE_S
        message, challenges = handshake.challenge(channel, host.config.secret, deadline)
        # It has the secret: from here on it is never dropped for another.
        self._unauthenticated.remove(connection, known=True)
        problem = disagreement(host.config, message)
        if not problem:
            peer = ConnectedWorker(channel, message)
            channel.peer = peer.name()
            problem = self._place(peer)
        if problem:
            channel.send_error(problem, frames.MISMATCH)
            channel.close()
            self._on_disagreement(problem, message)
            host.clocks.end(RunEnded(problem, mismatch=True))
            return None
        config = host.config
        handshake.welcome(channel, config.secret, challenges, {"server": config.index, "host": socket.gethostname()})
        host.on_progress()
        return peer

    def _place(self, peer: ConnectedWorker) -> str:
        host = self._host
        with host.lock:
            if peer.spare:
                host.spares.append(peer)
                return ""
            before = host.peers.get(peer.index)
            if before is None and peer.index not in host.left:
                host.peers[peer.index] = peer
                return ""
        first = before.name() if before is not None else "one that has already disconnected"
        return "two processes claim to be worker %d: %s, and earlier %s" % (peer.index, peer.name(), first)


class _UnauthenticatedConnections:
    """Connections whose other end is not authenticated yet."""

    def __init__(self, config: Settings) -> None:
        self._most = _MAX_UNKNOWN + 2 * config.workers
        self._changed = threading.Condition()
        #: The time and origin of each connection, oldest first.
        self._since: Dict[socket.socket, Tuple[float, str]] = {}
        #: Addresses of the job's nodes, if they are given literally or a client has proved itself from there.
        self._known_hosts = {endpoint.rpartition(":")[0].strip("[]") for endpoint in config.endpoints}

    def has_room(self, wait_s: float) -> bool:
        """Wait until another connection may be accepted, because there are few or an expired one can be dropped."""
        ends = time.monotonic() + wait_s
        with self._changed:
            while len(self._since) >= self._most and self._oldest() is None:
                left = ends - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _PROOF_S / 4))
        return True

    def add(self, connection: socket.socket) -> List[str]:
        """Add a connection; returns the addresses of those that were dropped for it."""
        given_up = []
        with self._changed:
            while len(self._since) >= self._most:
                oldest = self._oldest()
                if oldest is None:
                    break
                given_up.append(address_of(oldest, peer=True))
                del self._since[oldest]
                # Its own thread closes it.
                _shut(oldest)
            self._since[connection] = (time.monotonic(), _host_of(connection))
        return given_up

    def remove(self, connection: socket.socket, *, known: bool = False) -> None:
        """Remove a connection that has ended, or is `known` now."""
        with self._changed:
            found = self._since.pop(connection, None)
            if found is not None:
                self._changed.notify_all()
                if known:
                    self._known_hosts.add(found[1])

    def _oldest(self) -> Optional[socket.socket]:
        """The connection to drop first: by preference from the address with most connections, from an address outside
        the job, and the oldest.
        """
        until = time.monotonic() - _PROOF_S
        late = [(connection_id, at_s, host) for connection_id, (at_s, host) in self._since.items() if at_s <= until]
        counts = Counter(host for _, host in self._since.values())
        ordered = sorted(late, key=lambda item: (item[2] in self._known_hosts, -counts[item[2]], item[1]))
        return ordered[0][0] if ordered else None


def _host_of(connection: socket.socket) -> str:
    return address_of(connection, peer=True).rpartition(":")[0].strip("[]")


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def disagreement(config: Settings, message: Dict[str, Any]) -> str:
    """The difference between a worker's configuration and this server's, in one sentence for both sides; empty if there
    is none.
    """
    index = message.get("index")
    who = "worker %s on %s" % (index, str(message.get("host", "?"))[:255])
    here = "server %d" % config.index
    if message.get("role") != "worker":
        return "%s reports the role %r; expected server or worker" % (who, str(message.get("role"))[:40])
    if message.get("run_id", "") != config.run_id:
        return "%s belongs to run %r, %s to run %r" % (who, str(message.get("run_id"))[:64], here, config.run_id)
    own = config.shared_values()
    for name, words in _SETTING_NAMES.items():
        if message.get(name) != own[name]:
            return "%s has %s as %s; %s has %s" % (who, _short(message.get(name)), words, here, _short(own[name]))
    if message.get("server") != config.index:
        return " ".join((who, rank_events.EXPECTS_SERVER % _short(message.get("server")), here))
    if not isinstance(index, int) or isinstance(index, bool):
        return "%s has no index" % who
    if not message.get("spare") and not 0 <= index < config.workers:
        return "%s has an invalid index; expected 0 to %d" % (who, config.workers - 1)
    if message.get("plan") != own["plan"]:
        parameters: List[Any] = config.plan.parameters()
        what = partition.difference(parameters, message.get("parameters"))
        what = what or "the same parameters, divided or assigned differently"
        return "%s has a different list of parameters from %s: %s" % (who, here, what)
    return ""


def _short(value: Any) -> str:
    return repr(value)[:200]

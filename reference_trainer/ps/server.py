"""One server of the parameter-server smoke run: accepts connections, holds parameters, applies pushes, answers pulls.

Unauthenticated connections are limited in number, and in time by the handshake's limit. If there are too many, the
oldest is dropped for the newest: a client with the secret proves that at once, so strangers, however many or slow,
cannot keep a worker out.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import Counter
from typing import Any, Callable

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import framework, oracle, rendezvous
from reference_trainer.common.progress import Emit, Progress
from reference_trainer.ps import clocks, frames, partition, run_report, settings
from reference_trainer.ps import frames as handshake
from reference_trainer.ps.clocks import RunEnded
from reference_trainer.ps.connection import ConnectionHandler
from reference_trainer.ps.frames import Channel, PeerError, address_of
from reference_trainer.ps.run_report import ServerReport
from reference_trainer.ps.server_state import ConnectedWorker, ServerState
from reference_trainer.ps.settings import ProcessFault, Settings, numbers_of

#: Time limit of the whole handshake, however its bytes arrive.
_HANDSHAKE_S = 5.0
#: Largest number of simultaneous unauthenticated connections, in addition to two per worker.
_MAX_UNKNOWN = 64
#: Shortest time to authenticate before a connection may be dropped for a newer one; a worker needs milliseconds.
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
    """Accepts connections, each served by a thread; `on_disagreement` gets a message and the worker's values."""

    def __init__(
        self, host: ServerState, listener: socket.socket, on_disagreement: Callable[[str, dict[str, Any]], None]
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
                    channel.send_error(f"this port belongs to a smoke run of preflight: {error.text}", frames.REFUSED)
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
        """Return the client; None if its configuration differs, which both sides are then informed of."""
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
        self._since: dict[socket.socket, tuple[float, str]] = {}
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

    def add(self, connection: socket.socket) -> list[str]:
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
        """Remove a connection that has ended or, if `known`, has been authenticated."""
        with self._changed:
            found = self._since.pop(connection, None)
            if found is not None:
                self._changed.notify_all()
                if known:
                    self._known_hosts.add(found[1])

    def _oldest(self) -> socket.socket | None:
        """Return the connection to drop first: the oldest of the address with most, preferably outside the job."""
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


def disagreement(config: Settings, message: dict[str, Any]) -> str:
    """Return how a worker's and this server's configurations differ, as one sentence for both; else empty."""
    index = message.get("index")
    who = "worker {} on {}".format(index, str(message.get("host", "?"))[:255])
    here = f"server {config.index}"
    if message.get("role") != "worker":
        return "{} reports the role {!r}; expected server or worker".format(who, str(message.get("role"))[:40])
    if message.get("run_id", "") != config.run_id:
        return "{} belongs to run {!r}, {} to run {!r}".format(
            who, str(message.get("run_id"))[:64], here, config.run_id
        )
    own = config.shared_values()
    for name, words in _SETTING_NAMES.items():
        if message.get(name) != own[name]:
            return f"{who} has {_short(message.get(name))} as {words}, but {here} has {_short(own[name])}"
    if message.get("server") != config.index:
        return " ".join((who, rank_events.EXPECTS_SERVER % _short(message.get("server")), here))
    if not isinstance(index, int) or isinstance(index, bool):
        return f"{who} has no index"
    if not message.get("spare") and not 0 <= index < config.workers:
        return f"{who} has an invalid index; expected 0 to {config.workers - 1}"
    if message.get("plan") != own["plan"]:
        parameters: list[Any] = config.plan.parameters()
        what = partition.difference(parameters, message.get("parameters"))
        what = what or "the same parameters, divided or assigned differently"
        return f"{who} has a different list of parameters from {here}: {what}"
    return ""


def _short(value: Any) -> str:
    return repr(value)[:200]


#: How often the main thread checks the other threads.
_POLL_S = 0.2
#: A wait that lasts longer than this is reported.
_NOTICE_S = 0.5
_GOODBYE_S = 5.0


def server(params: dict[str, Any], emit: Emit) -> ServerReport:
    """Take part in the smoke run as one server.

    Args:
        params: `rank` (a number unique among all processes), `index`, `servers`, `workers`, `server_endpoints`,
            `endpoint` (its own, which must be in the list at its index), `listen_host`, `mode` (`sync`, `async`, `ssp`
            with `staleness`, `geo` with `geo_steps`), `steps`, `policy`, `least_block`, `model`, `server_device`
            (`cpu`, `auto`, `cuda` or `cuda:N`; with `cuda` the servers of a node take its GPUs in turn, by
            `local_index`), `numbers` (`{"server": [...], "worker": [...]}`: the numbers of all processes by index),
            `timeout_s`, `run_id`, `secret` (hexadecimal, of this run only), `backup` (backup workers may replace
            others), `injected_fault`, `until` (`exact` ends the run after the known pushes).

    Raises ProbeUnavailable: kind `denied` when it cannot listen or a worker has another configuration, `timeout` when
    workers do not connect, `blocked` when one is gone.
    """
    progress = Progress(emit, rank=int(params["rank"]))
    progress.start()
    try:
        run_report.send(params, progress, "server")
        config = settings.read(params, "server")
        if framework.is_paddle(params):
            from reference_trainer.paddle.paddle_server import server as serve

            _check_own_configuration(config, progress)
            return serve(config, progress, _listen(config, progress))
        return _run(config, progress)
    except RunEnded as why:
        if why.mismatch:
            raise ProbeUnavailable("denied", why.text) from why
        who = numbers_of([why.worker] if why.worker is not None else [], config.worker_numbers)
        progress.report_loss(why.text, who)
        raise ProbeUnavailable("blocked", why.text) from why
    finally:
        progress.stop()


def _run(config: Settings, progress: Progress) -> ServerReport:
    _check_own_configuration(config, progress)
    listener = _listen(config, progress)
    host = ServerState(
        config,
        ProcessFault(config.injected_fault, role="server", index=config.index, on_fault=progress.on_fault_injected),
    )
    reception = ConnectionAcceptor(
        host, listener, lambda text, peer_values: _report_disagreement(progress, text, peer_values)
    )
    try:
        torch, _ = framework.load(progress)
        oracle.exact_settings()
        progress.entering("setup of the device", loading=True)
        device = framework.device_named(torch, config.device, config.local_index)
        host.prepare(device)
        progress.left()
        versions = framework.versions(torch, device)
        progress.reached(rank_events.IMPORTED, **versions)
        host.on_progress = progress.report_progress
        _supervise(host, progress)
        return _report(host, progress, versions)
    except BaseException as error:
        # Workers that still wait for this server are told why it ends.
        host.clocks.end(error if isinstance(error, RunEnded) else RunEnded(f"server {config.index} failed: {error}"))
        _await_goodbyes(host, 1.0)
        raise
    finally:
        reception.close()


def _check_own_configuration(config: Settings, progress: Progress) -> None:
    if config.role != "server":
        _reject_configuration(progress, "role", config.role, "server")
    if not 0 <= config.index < config.servers or len(config.endpoints) != config.servers:
        theirs = f"{config.servers} servers with {len(config.endpoints)} endpoints"
        _reject_configuration(progress, "index", config.index, theirs)
    if config.endpoints[config.index] != config.endpoint:
        _reject_configuration(
            progress, "endpoint", config.endpoint or "none", f"{config.endpoints[config.index]} in the list"
        )


def _reject_configuration(progress: Progress, what: str, mine: Any, theirs: Any) -> None:
    text = f"this server has {what} {mine}, but its configuration has {theirs}"
    progress.send(
        rank_events.PROBLEM, problem="mismatch", what=what, mine=mine, theirs=theirs, error=text, rank=progress.rank
    )
    raise ProbeUnavailable("denied", text)


def _report_disagreement(progress: Progress, text: str, peer_values: dict[str, Any]) -> None:
    index = peer_values.get("index")
    progress.send(rank_events.PROBLEM, problem="mismatch", what="hello", error=text, rank=progress.rank, worker=index)


def _listen(config: Settings, progress: Progress) -> socket.socket:
    try:
        _, port = settings.split_endpoint(config.endpoint)
    except ValueError as error:
        raise ProbeUnavailable("denied", str(error)) from error
    try:
        listener = rendezvous.listen(port, config.listen_host)
    except OSError as error:
        text = error.strerror or str(error)
        kind = "in-use" if error.errno == errno.EADDRINUSE else "denied"
        progress.send(rank_events.PROBLEM, problem="listen", result=kind, port=port, error=text, rank=progress.rank)
        raise ProbeUnavailable("denied", text) from None
    progress.send(rank_events.PHASE, phase=rank_events.LISTENING, details={"port": port})
    return listener


def _supervise(host: ServerState, progress: Progress) -> None:
    """Follow the phases of the run, and report the workers that it waits for. Raises RunEnded."""
    config, state = host.config, host.clocks
    all_workers = list(range(config.workers))
    progress.entering("workers to join", waiting_for=numbers_of(all_workers, config.worker_numbers))
    joined_by = time.monotonic() + config.timeout_s
    phase = settings.JOINING
    announced = 0
    while not host.over.is_set():
        with state.changed:
            state.changed.wait(_POLL_S)
            if state.ended is not None:
                raise state.ended
            now = state.phase
        announced = _report_replacements(host, progress, announced)
        if now != phase:
            _report_phases(host, progress, phase, now)
            phase = now
        waiting, idle = _awaited_workers(host, phase)
        progress.waits_for(numbers_of(waiting, config.worker_numbers), idle=idle)
        if phase == settings.JOINING and time.monotonic() >= joined_by:
            names = ", ".join(map(str, waiting))
            raise RunEnded(f"workers {names} did not connect to server {config.index} within {config.timeout_s:g} s")
        _manage_replacements(host, phase)
    _report_phases(host, progress, phase, state.phase)
    _report_replacements(host, progress, announced)
    progress.left()
    _await_goodbyes(host, _GOODBYE_S)


def _report_phases(host: ServerState, progress: Progress, before: int, now: int) -> None:
    for phase in range(before + 1, now + 1):
        progress.left()
        if phase == settings.EXACT:
            progress.reached(rank_events.JOINED)
        elif phase == settings.TRAINING:
            progress.reached(rank_events.EXACT, mismatches=len(host.mismatches))
        elif phase == settings.READ:
            progress.reached(rank_events.SERVERS)
        elif phase == settings.OVER:
            progress.reached(rank_events.PARITY)
        all_workers = list(range(host.config.workers))
        progress.entering("requests of workers", waiting_for=numbers_of(all_workers, host.config.worker_numbers))


def _awaited_workers(host: ServerState, phase: int) -> tuple[list[int], bool]:
    """Return the workers that the server needs before it can continue, and whether it is merely idle."""
    with host.lock:
        peers = [peer for _, peer in sorted(host.peers.items())]
    here = [peer.index for peer in peers]
    missing = [worker for worker in range(host.config.workers) if worker not in here]
    if phase == settings.JOINING and missing:
        return missing, False
    held = host.clocks.held()
    busy = [peer for peer in peers if peer.busy(_NOTICE_S) and peer.index not in held]
    if any(not peer.channel.kept_waiting for peer in busy):
        return [], False
    holding = host.clocks.delaying_workers(_NOTICE_S) or [peer.index for peer in busy]
    return holding or here, not holding


def _manage_replacements(host: ServerState, phase: int) -> None:
    """Drop workers that delay others too long if backup workers wait, and end the run if no backup is available."""
    config = host.config
    if not config.spares or phase == settings.JOINING:
        return
    if config.index == 0:
        for worker in host.clocks.delaying_workers(config.lag_s):
            with host.lock:
                peer = host.peers.get(worker)
                free = len(host.spares) > len(host.vacant)
            if peer is not None and free:
                why = f"{peer.name()} has delayed the other workers for {config.lag_s:g} s"
                host.lose(peer, why, lagged=True)
                peer.channel.send_error(why, 0)
                peer.channel.shut()
    with host.lock:
        now = time.monotonic()
        late = [w for w, at_s in host.vacant_at.items() if now - at_s > max(config.lag_s, config.least_limit_s)]
        why = host.vacant[late[0]] if late else ""
    if late:
        raise RunEnded(f"{why}; no backup worker replaced it in time", worker=late[0])


def _report_replacements(host: ServerState, progress: Progress, announced: int) -> int:
    """Report replacements since the last call; returns the total number."""
    config = host.config
    with host.lock:
        replacements = host.replaced[:]
    for worker_taken in replacements[announced:]:
        progress.send(
            rank_events.REPLACED,
            worker=config.worker_numbers[worker_taken.worker],
            spare=config.spare_numbers[worker_taken.spare] if worker_taken.spare < len(config.spare_numbers) else None,
            clock=worker_taken.clock,
            why=worker_taken.why,
            seconds=worker_taken.after_s,
        )
    return len(replacements)


def _await_goodbyes(host: ServerState, limit_s: float) -> None:
    ends = time.monotonic() + limit_s
    with host.lock:
        peers = [*host.peers.values(), *host.spares]
    for peer in peers:
        peer.gone.wait(max(0.0, ends - time.monotonic()))


def _report(host: ServerState, progress: Progress, versions: dict[str, str]) -> ServerReport:
    config, state = host.config, host.clocks
    progress.reached(rank_events.DONE)
    worker_stats = {**host.left, **{worker: peer.seen() for worker, peer in host.peers.items()}}
    trained = 0 if config.ends_after_exact else config.rounds(config.steps)
    return ServerReport(
        config.rank,
        config.index,
        config.servers,
        config.workers,
        socket.gethostname(),
        config.endpoint,
        config.mode,
        versions["device"],
        "torch {}".format(versions["torch"]),
        dict(progress.phase_at_s),
        host.store.dense_bytes,
        host.store.table_bytes,
        len(host.store.shards),
        round(config.plan.imbalance(), 4),
        [worker_stats[worker] for worker in sorted(worker_stats)],
        {str(ahead): times for ahead, times in sorted(state.staleness.items())},
        config.staleness if config.mode == clocks.SSP else 0,
        {str(between): times for between, times in sorted(state.overtaken.items())},
        config.rounds(config.exact_steps) + trained,
        list(state.violations),
        list(host.mismatches),
        list(host.strangers),
        host.stranger_count,
        list(host.replaced),
    )

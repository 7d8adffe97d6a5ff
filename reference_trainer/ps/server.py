"""One server of the parameter-server smoke run: holds parameters, applies pushes, answers pulls, counts."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any, Dict, List, Tuple

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import framework, oracle, rendezvous
from reference_trainer.common.progress import Emit, Progress
from reference_trainer.ps import clocks, run_report, settings
from reference_trainer.ps.admission import ConnectionAcceptor
from reference_trainer.ps.clocks import RunEnded
from reference_trainer.ps.run_report import ServerReport
from reference_trainer.ps.server_state import ServerState
from reference_trainer.ps.settings import ProcessFault, Settings, numbers_of

#: How often the main thread checks the other threads.
_POLL_S = 0.2
#: A wait that lasts longer than this is reported.
_NOTICE_S = 0.5
_GOODBYE_S = 5.0


def server(params: Dict[str, Any], emit: Emit) -> ServerReport:
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
        progress.send(
            rank_events.PROBLEM,
            problem="failed",
            phase=progress.phase,
            error=why.text,
            consequence=True,
            rank=progress.rank,
            because=who,
        )
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
        host.clocks.end(
            error if isinstance(error, RunEnded) else RunEnded("server %d failed: %s" % (config.index, error))
        )
        _await_goodbyes(host, 1.0)
        raise
    finally:
        reception.close()


def _check_own_configuration(config: Settings, progress: Progress) -> None:
    if config.role != "server":
        _reject_configuration(progress, "role", config.role, "server")
    if not 0 <= config.index < config.servers or len(config.endpoints) != config.servers:
        theirs = "%d servers with %d endpoints" % (config.servers, len(config.endpoints))
        _reject_configuration(progress, "index", config.index, theirs)
    if config.endpoints[config.index] != config.endpoint:
        _reject_configuration(
            progress, "endpoint", config.endpoint or "none", "%s in the list" % config.endpoints[config.index]
        )


def _reject_configuration(progress: Progress, what: str, mine: Any, theirs: Any) -> None:
    text = "this server has %s %s, but its configuration has %s" % (what, mine, theirs)
    progress.send(
        rank_events.PROBLEM, problem="mismatch", what=what, mine=mine, theirs=theirs, error=text, rank=progress.rank
    )
    raise ProbeUnavailable("denied", text)


def _report_disagreement(progress: Progress, text: str, peer_values: Dict[str, Any]) -> None:
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
    """Follow the phases of the run, and report the workers that it waits for.

    Raises RunEnded when the run ends early.
    """
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
        waiting, idle = _waiting(host, phase)
        progress.waits_for(numbers_of(waiting, config.worker_numbers), idle=idle)
        if phase == settings.JOINING and time.monotonic() >= joined_by:
            names = ", ".join(map(str, waiting))
            raise RunEnded(
                "workers %s did not connect to server %d within %g s" % (names, config.index, config.timeout_s)
            )
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


def _waiting(host: ServerState, phase: int) -> Tuple[List[int], bool]:
    """The workers that it needs to continue, and whether it is merely idle."""
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
                why = "%s has delayed the others for %g s" % (peer.name(), config.lag_s)
                host.lose(peer, why, lagged=True)
                peer.channel.send_error(why, 0)
                peer.channel.shut()
    with host.lock:
        now = time.monotonic()
        late = [w for w, at_s in host.vacant_at.items() if now - at_s > max(config.lag_s, config.least_limit_s)]
        why = host.vacant[late[0]] if late else ""
    if late:
        raise RunEnded("%s; no backup worker replaced it in time" % why, worker=late[0])


def _report_replacements(host: ServerState, progress: Progress, announced: int) -> int:
    """Report replacements since the last call; returns the total number."""
    config = host.config
    with host.lock:
        taken = host.replaced[:]
    for worker_taken in taken[announced:]:
        progress.send(
            rank_events.REPLACED,
            worker=config.worker_numbers[worker_taken.worker],
            spare=config.spare_numbers[worker_taken.spare] if worker_taken.spare < len(config.spare_numbers) else None,
            clock=worker_taken.clock,
            why=worker_taken.why,
            seconds=worker_taken.after_s,
        )
    return len(taken)


def _await_goodbyes(host: ServerState, limit_s: float) -> None:
    ends = time.monotonic() + limit_s
    with host.lock:
        peers = [*host.peers.values(), *host.spares]
    for peer in peers:
        peer.gone.wait(max(0.0, ends - time.monotonic()))


def _report(host: ServerState, progress: Progress, versions: Dict[str, str]) -> ServerReport:
    config, state = host.config, host.clocks
    progress.reached(rank_events.DONE)
    seen = {**host.left, **{worker: peer.seen() for worker, peer in host.peers.items()}}
    trained = 0 if config.only_exact else config.rounds(config.steps)
    return ServerReport(
        config.rank,
        config.index,
        config.servers,
        config.workers,
        socket.gethostname(),
        config.endpoint,
        config.mode,
        versions["device"],
        "torch %s" % versions["torch"],
        dict(progress.phase_at_s),
        host.store.dense_bytes,
        host.store.table_bytes,
        len(host.store.shards),
        round(config.plan.imbalance(), 4),
        [seen[worker] for worker in sorted(seen)],
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

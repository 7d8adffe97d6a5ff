"""One server of the parameter-server smoke run: hold a share of the parameters, apply pushes, answer pulls, count."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any, Dict, List, Tuple

from preflight.node.wire import ProbeUnavailable
from reference_trainer import endpoint, framework, oracle, phases
from reference_trainer.progress import Emit, Progress
from reference_trainer.ps import clocks, hello, settings
from reference_trainer.ps.clocks import Ended
from reference_trainer.ps.drills import Drill
from reference_trainer.ps.hosting import Hosting
from reference_trainer.ps.reception import Reception
from reference_trainer.ps.report import ServerReport
from reference_trainer.ps.settings import Settings, numbers_of

#: How often the main thread looks what its other threads do.
_LOOK_S = 0.2
#: Somebody waits for somebody when it lasts longer than this.
_NOTICE_S = 0.5
_GOODBYE_S = 5.0


def server(params: Dict[str, Any], emit: Emit) -> ServerReport:
    """Take part in the smoke run as one server.

    Args:
        params: `rank` (a number of its own among all processes), `index`, `servers`, `workers`, `server_endpoints`,
            `endpoint` (its own, which must stand in the list at its index), `listen_host`, `mode` (`sync`, `async`,
            `ssp` with `staleness`, `geo` with `geo_steps`), `steps`, `policy`, `least_block`, `model`, `server_device`,
            `numbers` (`{"server": [...], "worker": [...]}`: the numbers of all processes by index), `timeout_s`,
            `run_id`, `secret` (hexadecimal, of this run only), `backup` (spare workers may take places), `drill`,
            `until` (`exact` ends the run after the known pushes).

    Raises ProbeUnavailable: kind `denied` when it cannot listen or a worker was told something else, `timeout` when
    workers do not come, `blocked` when one is gone.
    """
    me = Progress(emit, rank=int(params["rank"]))
    me.start()
    try:
        hello.say(params, me, "server")
        told = settings.read(params, "server")
        if framework.is_paddle(params):
            from reference_trainer.paddle.server import server as serve

            _check_place(told, me)
            return serve(told, me, _listen(told, me))
        return _run(told, me)
    except Ended as why:
        if why.mismatch:
            raise ProbeUnavailable("denied", why.text) from why
        who = numbers_of([why.worker] if why.worker is not None else [], told.worker_numbers)
        me.say(
            phases.PROBLEM,
            problem="failed",
            phase=me.phase,
            error=why.text,
            consequence=True,
            rank=me.rank,
            because=who,
        )
        raise ProbeUnavailable("blocked", why.text) from why
    finally:
        me.stop()


def _run(told: Settings, me: Progress) -> ServerReport:
    _check_place(told, me)
    listener = _listen(told, me)
    host = Hosting(told, Drill(told.drill, role="server", index=told.index, tell=me.drilled))
    reception = Reception(host, listener, lambda text, said: _disagree(me, text, said))
    try:
        torch, _ = framework.load(me)
        oracle.exact_settings()
        me.entering("set-up of the device", loading=True)
        device = framework.device_named(torch, told.device)
        host.prepare(device)
        me.left()
        versions = framework.versions(torch, device)
        me.reached(phases.IMPORTED, **versions)
        host.moved = me.still
        _supervise(host, me)
        return _report(host, me, versions)
    except BaseException as error:
        # Whoever still waits for this server hears why it ends.
        host.clocks.end(error if isinstance(error, Ended) else Ended("server %d failed: %s" % (told.index, error)))
        _await_goodbyes(host, 1.0)
        raise
    finally:
        reception.close()


def _check_place(told: Settings, me: Progress) -> None:
    if told.role != "server":
        _refuse(me, "role", told.role, "server")
    if not 0 <= told.index < told.servers or len(told.endpoints) != told.servers:
        theirs = "%d servers with %d endpoints" % (told.servers, len(told.endpoints))
        _refuse(me, "index", told.index, theirs)
    if told.endpoints[told.index] != told.endpoint:
        _refuse(me, "endpoint", told.endpoint or "none", "%s in the list" % told.endpoints[told.index])


def _refuse(me: Progress, what: str, mine: Any, theirs: Any) -> None:
    text = "this server has %s %s, but was told of %s" % (what, mine, theirs)
    me.say(phases.PROBLEM, problem="mismatch", what=what, mine=mine, theirs=theirs, error=text, rank=me.rank)
    raise ProbeUnavailable("denied", text)


def _disagree(me: Progress, text: str, said: Dict[str, Any]) -> None:
    index = said.get("index")
    me.say(phases.PROBLEM, problem="mismatch", what="hello", error=text, rank=me.rank, worker=index)


def _listen(told: Settings, me: Progress) -> socket.socket:
    try:
        _, port = settings.split(told.endpoint)
    except ValueError as error:
        raise ProbeUnavailable("denied", str(error)) from error
    try:
        listener = endpoint.listen(port, told.listen_host)
    except OSError as error:
        text = error.strerror or str(error)
        kind = "in-use" if error.errno == errno.EADDRINUSE else "denied"
        me.say(phases.PROBLEM, problem="listen", result=kind, port=port, error=text, rank=me.rank)
        raise ProbeUnavailable("denied", text) from None
    me.say(phases.PHASE, phase=phases.LISTENING, details={"port": port})
    return listener


def _supervise(host: Hosting, me: Progress) -> None:
    """Follow the phases of the run, and say whom the workers wait for. Raises Ended when the run is over early."""
    told, state = host.told, host.clocks
    everybody = list(range(told.workers))
    me.entering("workers to join", waiting_for=numbers_of(everybody, told.worker_numbers))
    joined_by = time.monotonic() + told.timeout_s
    phase = settings.JOINING
    told_of = 0
    while not host.over.is_set():
        with state.changed:
            state.changed.wait(_LOOK_S)
            if state.ended is not None:
                raise state.ended
            now = state.phase
        told_of = _tell_places(host, me, told_of)
        if now != phase:
            _passed(host, me, phase, now)
            phase = now
        waiting, idle = _waiting(host, phase)
        me.waits_for(numbers_of(waiting, told.worker_numbers), idle=idle)
        if phase == settings.JOINING and time.monotonic() >= joined_by:
            names = ", ".join(map(str, waiting))
            raise Ended("workers %s did not come to server %d within %g s" % (names, told.index, told.timeout_s))
        _look_after_places(host, phase)
    _passed(host, me, phase, state.phase)
    _tell_places(host, me, told_of)
    me.left()
    _await_goodbyes(host, _GOODBYE_S)


def _passed(host: Hosting, me: Progress, before: int, now: int) -> None:
    for phase in range(before + 1, now + 1):
        me.left()
        if phase == settings.EXACT:
            me.reached(phases.JOINED)
        elif phase == settings.TRAINING:
            me.reached(phases.EXACT, mismatches=len(host.mismatches))
        elif phase == settings.READ:
            me.reached(phases.SERVERS)
        elif phase == settings.OVER:
            me.reached(phases.PARITY)
        everybody = list(range(host.told.workers))
        me.entering("requests of workers", waiting_for=numbers_of(everybody, host.told.worker_numbers))


def _waiting(host: Hosting, phase: int) -> Tuple[List[int], bool]:
    """The workers without whom it does not go on, and whether that is only because it has nothing to do."""
    with host.lock:
        guests = [guest for _, guest in sorted(host.guests.items())]
    here = [guest.index for guest in guests]
    missing = [worker for worker in range(host.told.workers) if worker not in here]
    if phase == settings.JOINING and missing:
        return missing, False
    held = host.clocks.held()
    busy = [guest for guest in guests if guest.busy(_NOTICE_S) and guest.index not in held]
    if any(not guest.channel.kept_waiting for guest in busy):
        return [], False
    holding = host.clocks.holding_up(_NOTICE_S) or [guest.index for guest in busy]
    return holding or here, not holding


def _look_after_places(host: Hosting, phase: int) -> None:
    """Give up workers that hold others up too long where spare ones wait, and the run where none comes."""
    told = host.told
    if not told.spares or phase == settings.JOINING:
        return
    if told.index == 0:
        for worker in host.clocks.holding_up(told.lag_s):
            with host.lock:
                guest = host.guests.get(worker)
                free = len(host.spares) > len(host.vacant)
            if guest is not None and free:
                why = "%s has held others up for %g s" % (guest.name(), told.lag_s)
                host.lose(guest, why)
                guest.channel.say_error(why, 0)
                guest.channel.shut()
    with host.lock:
        now = time.monotonic()
        late = [w for w, at_s in host.vacant_at.items() if now - at_s > max(told.lag_s, told.least_limit_s)]
        why = host.vacant[late[0]] if late else ""
    if late:
        raise Ended("%s; no spare worker came" % why, worker=late[0])


def _tell_places(host: Hosting, me: Progress, told_of: int) -> int:
    """Say which places spare workers have taken since this was told last; how many there are now."""
    told = host.told
    with host.lock:
        taken = host.replaced[:]
    for one in taken[told_of:]:
        me.say(
            phases.REPLACED,
            worker=told.worker_numbers[one.worker],
            spare=told.spare_numbers[one.spare] if one.spare < len(told.spare_numbers) else None,
            clock=one.clock,
            why=one.why,
            seconds=one.after_s,
        )
    return len(taken)


def _await_goodbyes(host: Hosting, limit_s: float) -> None:
    ends = time.monotonic() + limit_s
    with host.lock:
        guests = [*host.guests.values(), *host.spares]
    for guest in guests:
        guest.gone.wait(max(0.0, ends - time.monotonic()))


def _report(host: Hosting, me: Progress, versions: Dict[str, str]) -> ServerReport:
    told, state = host.told, host.clocks
    me.reached(phases.DONE)
    seen = {**host.left, **{worker: guest.seen() for worker, guest in host.guests.items()}}
    trained = 0 if told.only_exact else told.rounds(told.steps)
    return ServerReport(
        told.rank,
        told.index,
        told.servers,
        told.workers,
        socket.gethostname(),
        told.endpoint,
        told.mode,
        versions["device"],
        "torch %s" % versions["torch"],
        dict(me.phase_at_s),
        host.store.dense_bytes,
        host.store.table_bytes,
        len(host.store.shards),
        round(told.plan.imbalance(), 4),
        [seen[worker] for worker in sorted(seen)],
        {str(ahead): times for ahead, times in sorted(state.staleness.items())},
        told.staleness if told.mode == clocks.SSP else 0,
        {str(between): times for between, times in sorted(state.overtaken.items())},
        told.rounds(told.exact_steps) + trained,
        list(state.violations),
        list(host.mismatches),
        list(host.strangers),
        host.stranger_count,
        list(host.replaced),
    )

"""One server of a run over Paddle's own parameter servers, for jobs whose Python has paddle and no torch.

It speaks for Paddle's server, which runs below it: hears of workers, carries their barriers, and ends it.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import Dict, List

from preflight.node.wire import ProbeUnavailable
from reference_trainer import assembly, phases
from reference_trainer.assembly import Line
from reference_trainer.paddle.below import Below
from reference_trainer.paddle.way import COMMON, PATIENCE_S, own
from reference_trainer.progress import Progress
from reference_trainer.ps import settings
from reference_trainer.ps.drills import Drill
from reference_trainer.ps.report import ServerReport, WorkerSeen
from reference_trainer.ps.settings import Settings

#: How often it looks whether Paddle's server still runs.
_LOOK_S = 0.2


def server(told: Settings, me: Progress, listener: socket.socket) -> ServerReport:
    """Run one of Paddle's servers until every worker says goodbye. `listener` is on its own port already.

    Paddle's server runs in a process below this one, which imports paddle meanwhile: it has no way to end it.
    """
    below = Below(told, listener)
    try:
        me.entering("workers to join", waiting_for=list(told.worker_numbers))
        lines = assembly.host(own(told), told.worker_numbers, COMMON, me, listener, told.timeout_s)
        me.left()
        me.entering("import of paddle", loading=True)
        version = below.ready(told.timeout_s)
        me.left()
        me.reached(phases.IMPORTED, paddle=version)
        below.go()
        me.reached(phases.JOINED)
        seen = _serve(told, me, lines, below)
        me.reached(phases.DONE)
        return ServerReport(
            told.rank,
            told.index,
            told.servers,
            told.workers,
            socket.gethostname(),
            told.endpoint,
            told.mode,
            "cpu",
            "paddle %s" % version,
            dict(me.phase_at_s),
            seen=seen,
        )
    finally:
        below.end()


def _serve(told: Settings, me: Progress, lines: Dict[int, Line], below: Below) -> List[WorkerSeen]:
    """Answer barriers (as server 0) until every worker has said goodbye; what was seen of each."""
    names = {number: index for index, number in enumerate(told.worker_numbers)}
    left: Dict[int, WorkerSeen] = {}
    at: Dict[str, List[int]] = {}
    passed_s = time.monotonic()
    drilled = False
    me.entering("requests of workers", waiting_for=list(told.worker_numbers))
    with selectors.DefaultSelector() as selector:
        for number, line in lines.items():
            line.connection.setblocking(False)
            selector.register(line.connection, selectors.EVENT_READ, number)
        while len(left) < len(lines):
            gone = below.gone()
            if gone:
                raise RuntimeError("paddle's server %d %s" % (told.index, gone))
            if time.monotonic() - passed_s > PATIENCE_S:
                raise ProbeUnavailable("timeout", "no worker got on for %g s" % PATIENCE_S)
            for key, _ in selector.select(_LOOK_S):
                number = int(key.data)
                try:
                    said = lines[number].ready()
                except ConnectionError:
                    _lost(told, me, names[number], number)
                if not said:
                    continue
                me.still()
                passed_s = time.monotonic()
                if "bye" in said:
                    selector.unregister(lines[number].connection)
                    left[number] = WorkerSeen(names[number], str(said.get("host", "")), 0, "", pulls=0)
                elif "at" in said:
                    drilled = drilled or _drilled(told, me, str(said["at"]))
                    _arrived(str(said["at"]), number, at, lines, me)
    me.left()
    for line in lines.values():
        line.close()
    return [left[number] for number in sorted(left)]


def _drilled(told: Settings, me: Progress, what: str) -> bool:
    """Die or stop, if that is the drill, as soon as workers come to their end of training; whether that was the moment.

    This process sees no single step. It ends, and with it Paddle's server below it.
    """
    if what != "all workers to train":
        return False
    drill = Drill(told.drill, role="server", index=told.index, tell=me.drilled)
    for phase in (settings.EXACT, settings.TRAINING):
        drill.strike(phase, drill.step)
    return True


def _arrived(what: str, number: int, at: Dict[str, List[int]], lines: Dict[int, Line], me: Progress) -> None:
    here = at.setdefault(what, [])
    here.append(number)
    missing = [other for other in lines if other not in here]
    me.waits_for(missing or list(lines))
    for other in here if not missing else [number]:
        lines[other].say(**({"pass": what} if not missing else {"missing": missing}))
    if missing:
        for other in here:
            lines[other].say(missing=missing)


def _lost(told: Settings, me: Progress, worker: int, number: int) -> None:
    text = "worker %d went away before the end" % worker
    me.say(
        phases.PROBLEM,
        problem="failed",
        phase=me.phase,
        error=text,
        consequence=True,
        rank=me.rank,
        because=[number],
    )
    raise ProbeUnavailable("blocked", text)

"""One worker of a run over Paddle's own parameter servers, for jobs whose Python has paddle and no torch.

Paddle merges what workers push, so its servers are judged by what was learnt and whether all workers read the same, and
not bit by bit.
"""

from __future__ import annotations

import hashlib
import socket
import time
from typing import Any, Dict, List, Tuple

from reference_trainer import phases, training
from reference_trainer.paddle import program
from reference_trainer.paddle.way import Way
from reference_trainer.progress import Progress
from reference_trainer.ps import settings
from reference_trainer.ps.drills import Drill
from reference_trainer.ps.report import WorkerReport
from reference_trainer.ps.settings import Settings

#: Paddle's client gives a push away and goes on: it is on the server after so long at most.
_SETTLE_S = 5.0
_AGAIN_S = 0.2
#: Pushes of Paddle 2.6 arrive some ten steps late: fewer steps than this show nothing of what was learnt.
_LEAST_STEPS = 60


def worker(told: Settings, me: Progress) -> WorkerReport:
    """Train as one worker of Paddle's servers."""
    with Way(told, me) as way:
        address = way.dial()
        way.meet()
        me.entering("import of paddle", loading=True)
        program.environment(told, "worker", address)
        paddle = program.load()
        me.left()
        me.reached(phases.IMPORTED, paddle=str(paddle.__version__))
        way.await_servers()
        me.reached(phases.JOINED)
        return _train(told, me, way, paddle)


def _train(told: Settings, me: Progress, way: Way, paddle: Any) -> WorkerReport:
    me.entering("program for parameter servers", loading=True)
    cut = program.Program(paddle, told)
    task = program.Training(cut, told.index)
    me.left()
    # The first worker gives the servers their first parameters, and who comes before it reads zeros; in geo mode
    # Paddle's own barrier sees to that, and waits for all of them.
    in_turn = told.mode != "geo"
    if told.index and in_turn:
        way.barrier("first worker's parameters")
    me.entering("first contact with the servers", waiting_for=list(told.server_numbers), loading=True)
    task.start()
    me.left()
    if not told.index and in_turn:
        way.barrier("first worker's parameters")
    way.barrier("all workers to start")
    losses: List[float] = []
    took: List[float] = []
    pulled: List[float] = []
    task.pull()
    before = cut.dense()
    drill = Drill(told.drill, role="worker", index=told.index, tell=me.drilled)
    for step in range(max(told.steps, _LEAST_STEPS)):
        began = time.perf_counter()
        me.entering("step %d" % step, brief=True, waiting_for=list(told.server_numbers))
        for phase in (settings.EXACT, settings.TRAINING):
            # There is no phase with known gradients: what is asked for in either is played here.
            drill.before_step(phase, step)
        task.pull()
        pulled.append(time.perf_counter() - began)
        losses.append(task.step())
        me.left()
        took.append(time.perf_counter() - began)
    way.barrier("all workers to train")
    me.reached(phases.SERVERS, first_loss=losses[0], last_loss=losses[-1])
    after, digest = _read(cut, task, me)
    me.reached(phases.PARITY, digest=digest)
    way.barrier("all workers to read")
    me.entering("goodbye to the servers")
    task.stop()
    way.goodbye()
    me.left()
    me.reached(phases.DONE)
    return WorkerReport(
        told.rank,
        told.index,
        told.servers,
        told.workers,
        socket.gethostname(),
        told.mode,
        "cpu",
        "paddle %s" % paddle.__version__,
        dict(me.phase_at_s),
        way.seen(),
        told.plan.digest(),
        0,
        len(losses),
        losses=training.ends(losses, 200),
        first_loss=losses[0],
        last_loss=losses[-1],
        pull_s=training.ends(pulled, 200),
        compute_s=training.ends([whole - pull for whole, pull in zip(took, pulled)], 200),
        unmoved=program.unmoved(before, after),
        digest=digest if cut.sparse else "",
    )


def _read(cut: program.Program, task: program.Training, me: Progress) -> Tuple[Dict[str, Any], str]:
    """The dense parameters after the last push of all, and their SHA-256: read until they no longer change."""
    me.entering("last parameters from the servers")
    ends = time.monotonic() + _SETTLE_S
    digest = ""
    while True:
        task.pull()
        values = cut.dense()
        now = hashlib.sha256(b"".join(values[name].tobytes() for name in sorted(values))).hexdigest()
        if now == digest or time.monotonic() >= ends:
            break
        digest = now
        time.sleep(_AGAIN_S)
    me.left()
    return values, now

"""One worker of a run over Paddle's own parameter servers, for jobs whose Python has paddle and no torch.

Paddle merges the workers' pushes, so its servers are judged by the training result and by whether all workers read the
same values, not bit by bit.
"""

from __future__ import annotations

import hashlib
import socket
import time
from typing import Any, Dict, List, Tuple

from preflight.agent import rank_events
from reference_trainer.collective import steps
from reference_trainer.common.progress import Progress
from reference_trainer.paddle import static_program
from reference_trainer.paddle.static_program import ServerConnections
from reference_trainer.ps import settings
from reference_trainer.ps.run_report import WorkerReport
from reference_trainer.ps.settings import ProcessFault, Settings

#: Paddle's client sends a push asynchronously: it has reached the server after at most this time.
_SETTLE_S = 5.0
_REPEAT_S = 0.2
#: Pushes of Paddle 2.6 arrive some ten steps late: fewer steps than this show no training progress.
_MIN_STEPS = 60


def worker(config: Settings, progress: Progress) -> WorkerReport:
    """Train as one worker of Paddle's servers."""
    with ServerConnections(config, progress) as connections:
        address = connections.dial()
        connections.meet()
        progress.entering("import of paddle", loading=True)
        static_program.environment(config, "worker", address)
        paddle = static_program.load()
        progress.left()
        progress.reached(rank_events.IMPORTED, paddle=str(paddle.__version__))
        connections.await_servers()
        progress.reached(rank_events.JOINED)
        return _train(config, progress, connections, paddle)


def _train(config: Settings, progress: Progress, connections: ServerConnections, paddle: Any) -> WorkerReport:
    progress.entering("program for parameter servers", loading=True)
    cut = static_program.Program(paddle, config)
    task = static_program.Training(cut, config.index)
    progress.left()
    # The first worker initialises the servers' parameters, and an earlier reader gets zeros; in geo mode Paddle's own
    # barrier handles that, and waits for all of them.
    in_turn = config.mode != "geo"
    if config.index and in_turn:
        connections.barrier("first worker's parameters")
    progress.entering("first contact with the servers", waiting_for=list(config.server_numbers), loading=True)
    task.start()
    progress.left()
    if not config.index and in_turn:
        connections.barrier("first worker's parameters")
    connections.barrier("all workers to start")
    losses: List[float] = []
    took: List[float] = []
    pulled: List[float] = []
    task.pull()
    before = cut.dense()
    fault = ProcessFault(config.injected_fault, role="worker", index=config.index, on_fault=progress.on_fault_injected)
    for step in range(max(config.steps, _MIN_STEPS)):
        began = time.perf_counter()
        progress.entering("step %d" % step, brief=True, waiting_for=list(config.server_numbers))
        for phase in (settings.EXACT, settings.TRAINING):
            # There is no phase with known gradients: faults for either phase are injected here.
            fault.before_step(phase, step)
        task.pull()
        pulled.append(time.perf_counter() - began)
        losses.append(task.step())
        progress.left()
        took.append(time.perf_counter() - began)
    connections.barrier("all workers to train")
    progress.reached(rank_events.SERVERS, first_loss=losses[0], last_loss=losses[-1])
    after, digest = _read(cut, task, progress)
    progress.reached(rank_events.PARITY, digest=digest)
    connections.barrier("all workers to read")
    progress.entering("sign-off from the servers")
    task.stop()
    connections.send_goodbye()
    progress.left()
    progress.reached(rank_events.DONE)
    return WorkerReport(
        config.rank,
        config.index,
        config.servers,
        config.workers,
        socket.gethostname(),
        config.mode,
        "cpu",
        "paddle %s" % paddle.__version__,
        dict(progress.phase_at_s),
        connections.seen(),
        config.plan.digest(),
        0,
        len(losses),
        losses=steps.first_and_last(losses, 200),
        first_loss=losses[0],
        last_loss=losses[-1],
        pull_s=steps.first_and_last(pulled, 200),
        compute_s=steps.first_and_last([whole - pull for whole, pull in zip(took, pulled)], 200),
        unmoved=static_program.unmoved(before, after),
        digest=digest if cut.sparse else "",
    )


def _read(cut: static_program.Program, task: static_program.Training, progress: Progress) -> Tuple[Dict[str, Any], str]:
    """The dense parameters after everyone's last push, and their SHA-256; they are read until they no longer change."""
    progress.entering("last parameters from the servers")
    ends = time.monotonic() + _SETTLE_S
    digest = ""
    while True:
        task.pull()
        values = cut.dense()
        now = hashlib.sha256(b"".join(values[name].tobytes() for name in sorted(values))).hexdigest()
        if now == digest or time.monotonic() >= ends:
            break
        digest = now
        time.sleep(_REPEAT_S)
    progress.left()
    return values, now

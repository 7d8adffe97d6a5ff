"""One rank of the collective smoke run in Paddle, for jobs whose interpreter has paddle and no torch.

The same phases, the same known sums and the same judgement as with torch. The two windows of `pace` and the sweep of
bandwidths are measured only with torch.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Dict, List, Optional

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.collective import steps as training
from reference_trainer.collective.report import RankReport
from reference_trainer.common import assembly, oracle, rendezvous
from reference_trainer.common.arrays import NUMPY
from reference_trainer.common.progress import Progress
from reference_trainer.paddle import data_parallel_steps as paddle_training
from reference_trainer.paddle import process_group
from reference_trainer.paddle.delayed_abort import delay_abort

#: A rank that watches the others itself gets this long to say which one was lost before Paddle aborts it.
ABORT_DELAY_S = 5.0


def run(params: Dict[str, Any], progress: Progress) -> RankReport:
    """Take part as one rank; parameters and errors are those of `rank.rank`."""
    world_size = int(params["world_size"])
    steps = int(params.get("steps", training.MAX_COMPARED_STEPS))
    timeout_s = float(params.get("timeout_s", 60.0))
    listener = rendezvous.open_listener(params, progress)
    dialling = rendezvous.MasterDialer(params, progress, timeout_s)
    rendezvous.await_master(params, progress, dialling)
    lines = _assemble(params, progress, listener, timeout_s)
    paddle = process_group.load(progress)
    backend = _agree_on_backend(params, progress, lines, process_group.nccl_obstacle(paddle, params), timeout_s)
    progress.entering("setup of the device", loading=True)
    device = process_group.device_of(paddle, params, backend)
    progress.left()
    versions = process_group.versions(paddle, device)
    progress.reached(rank_events.IMPORTED, backend=backend, **versions)
    progress.reached(rank_events.RENDEZVOUS)
    collectives = process_group.join(paddle, params, progress, backend, device, timeout_s)
    progress.reached(rank_events.GROUP)
    first = oracle.check_collectives(collectives, progress.rank, world_size, NUMPY)
    second = oracle.check_steps(
        collectives,
        progress.rank,
        world_size,
        steps,
        NUMPY,
        build=lambda start: paddle_training.ExactModel(paddle, start),
    )
    mismatches = first.mismatches + second.mismatches
    progress.reached(rank_events.EXACT, mismatches=len(mismatches))
    report: Dict[str, Any] = {
        "framework": "paddle %s" % versions["paddle"],
        "cuda_version": versions["cuda"],
        "operations": len(first.operations) + len(second.operations),
        "mismatches": mismatches,
        "unsupported": first.unsupported,
        "exact_digest": second.digest,
    }
    if params.get("until") != rank_events.EXACT:
        report.update(_trained(paddle, collectives, progress, world_size, steps))
        report["exact_steps"] = min(steps, oracle.MAX_EXACT_STEPS)
    collectives.barrier("last barrier")
    progress.reached(rank_events.DONE)
    return RankReport(
        progress.rank,
        world_size,
        socket.gethostname(),
        backend,
        versions["device"],
        phase_at_s=dict(progress.phase_at_s),
        **report,
    )


def _assemble(
    params: Dict[str, Any], progress: Progress, listener: Optional[socket.socket], timeout_s: float
) -> Dict[int, assembly.JsonLines]:
    """Wait until every rank of the run has connected to the master's port; rank 0 then releases it.

    Returns the connections by rank: from rank 0 to all others, from each other to rank 0.
    """
    world_size = int(params["world_size"])
    own_values = {
        "rank": progress.rank,
        "world_size": world_size,
        "run_id": str(params.get("run_id", "")),
        "framework": "paddle",
        "host": socket.gethostname(),
    }
    others = [rank for rank in range(world_size) if rank != progress.rank]
    progress.entering("all ranks to connect to the master's port", waiting_for=others if listener is not None else [0])
    if listener is not None:
        common = ("world_size", "run_id", "framework")
        lines = assembly.host_assembly(own_values, others, common, progress, listener, timeout_s)
    else:
        host, port = str(params["master_addr"]), int(params["master_port"])
        lines = {0: assembly.join_assembly(own_values, host, port, 0, progress, timeout_s)}
    progress.left()
    return lines


def _agree_on_backend(
    params: Dict[str, Any], progress: Progress, lines: Dict[int, assembly.JsonLines], obstacle: str, timeout_s: float
) -> str:
    """The backend of all ranks: as requested, or for `auto` nccl if every rank can use it.

    The connections are then closed, or given to `params["on_lines"]`.

    Raises ProbeUnavailable of kind `missing` if nccl is requested and this rank cannot use it.
    """
    wanted = str(params.get("backend", "auto"))
    kept = False
    try:
        if wanted == "nccl" and obstacle:
            progress.send(
                rank_events.PROBLEM, problem=rank_events.NO_DEVICE, backend=wanted, error=obstacle, rank=progress.rank
            )
            raise ProbeUnavailable("missing", "backend nccl is requested, but %s" % obstacle)
        if wanted != "auto":
            kept = _keep(params, lines)
            return wanted
        progress.entering("agreement on the backend", waiting_for=sorted(lines))
        ends = time.monotonic() + timeout_s
        if progress.rank == 0:
            answers = {rank: _received(line, ends, rank) for rank, line in lines.items()}
            able = not obstacle and all(answer.get("nccl") for answer in answers.values())
            backend = "nccl" if able else "gloo"
            for line in lines.values():
                line.send(backend=backend)
        else:
            lines[0].send(nccl=not obstacle)
            backend = str(_received(lines[0], ends, 0).get("backend", "gloo"))
        progress.left()
        kept = _keep(params, lines)
        return backend
    finally:
        for line in lines.values() if not kept else ():
            line.close()


def _keep(params: Dict[str, Any], lines: Dict[int, assembly.JsonLines]) -> bool:
    if params.get("on_lines") is None:
        return False
    params["on_lines"](lines)
    delay_abort(ABORT_DELAY_S)
    return True


def _received(line: assembly.JsonLines, ends: float, rank: int) -> Dict[str, Any]:
    message = line.receive(ends)
    if message is None:
        raise ProbeUnavailable("timeout", "rank %d did not tell in time whether it can use nccl" % rank)
    return message


def _trained(paddle: Any, collectives: Any, progress: Progress, world_size: int, steps: int) -> Dict[str, Any]:
    """Run ordinary DataParallel steps; return their results."""
    model = paddle_training.build(paddle)
    progress.entering("DataParallel setup", collective=True)
    wrapped = paddle.DataParallel(model) if world_size > 1 else model
    progress.left(collective=True)
    trained = paddle_training.train(
        paddle,
        model,
        wrapped,
        paddle_training.shard(paddle, progress.rank),
        steps,
        before=lambda step: progress.entering("DataParallel step %d" % step, collective=True, brief=True),
        after=lambda step: progress.left(collective=True),
    )
    progress.reached(rank_events.DDP, first_loss=trained.losses[0], last_loss=trained.losses[-1])
    digests = _digests(collectives, paddle_training.digest(model), world_size)
    difference = None
    if progress.rank == 0:
        progress.entering("training the same steps in one process")
        difference = paddle_training.difference_to_one_process(
            paddle, model, world_size, steps, progress.report_progress
        )
        progress.left()
    progress.reached(rank_events.PARITY, equal=len(set(digests)) == 1)
    return {
        "steps": len(trained.losses),
        "losses": training.first_and_last(trained.losses, 200),
        "step_s": training.first_and_last(trained.step_s, 200),
        "unmoved": paddle_training.unmoved(paddle, model),
        "digests": digests,
        "difference_to_one_process": difference,
    }


def _digests(collectives: Any, own_values: str, world_size: int) -> List[str]:
    """The SHA-256 of every rank's weights, by rank; sent as 32-bit numbers, which every backend supports."""
    import numpy

    mine = numpy.frombuffer(bytes.fromhex(own_values), dtype="uint8").astype("int32")
    found = [numpy.zeros_like(mine) for _ in range(world_size)]
    collectives.all_gather(found, mine, "digests of the weights")
    return [part.astype("uint8").tobytes().hex() for part in found]

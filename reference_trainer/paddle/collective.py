"""One rank of the collective smoke run in Paddle, for jobs whose interpreter has paddle and no torch.

The same phases, the same known sums and the same judgement as with torch. What the two windows of `pace` and the sweep
of bandwidths measure is measured with torch alone.
"""

from __future__ import annotations

import socket
from typing import Any, Dict, List, Optional

from reference_trainer import assembly, oracle, phases, rendezvous, training
from reference_trainer.arrays import NUMPY
from reference_trainer.collective import RankReport
from reference_trainer.paddle import group
from reference_trainer.paddle import training as paddle_training
from reference_trainer.progress import Progress


def run(params: Dict[str, Any], me: Progress) -> RankReport:
    """Take part as one rank; parameters and errors are those of `collective.rank`."""
    world_size = int(params["world_size"])
    steps = int(params.get("steps", training.MOST_COMPARED_STEPS))
    timeout_s = float(params.get("timeout_s", 60.0))
    listener = rendezvous.open_listener(params, me)
    dialling = rendezvous.Dialling(params, me, timeout_s)
    rendezvous.reach(params, me, dialling)
    _assemble(params, me, listener, timeout_s)
    paddle = group.load(me)
    me.entering("set-up of the device", loading=True)
    backend, device = group.choose_device(paddle, params)
    me.left()
    versions = group.versions(paddle, device)
    me.reached(phases.IMPORTED, backend=backend, **versions)
    me.reached(phases.RENDEZVOUS)
    collectives = group.join(paddle, params, me, backend, device, timeout_s)
    me.reached(phases.GROUP)
    first = oracle.check_collectives(collectives, me.rank, world_size, NUMPY)
    second = oracle.check_steps(
        collectives, me.rank, world_size, steps, NUMPY, build=lambda start: paddle_training.ExactModel(paddle, start)
    )
    mismatches = first.mismatches + second.mismatches
    me.reached(phases.EXACT, mismatches=len(mismatches))
    report: Dict[str, Any] = {
        "framework": "paddle %s" % versions["paddle"],
        "cuda_version": versions["cuda"],
        "operations": len(first.operations) + len(second.operations),
        "mismatches": mismatches,
        "unsupported": first.unsupported,
        "exact_digest": second.digest,
    }
    if params.get("until") != phases.EXACT:
        report.update(_trained(paddle, collectives, me, world_size, steps))
        report["exact_steps"] = min(steps, oracle.MOST_EXACT_STEPS)
    collectives.barrier("last barrier")
    me.reached(phases.DONE)
    return RankReport(
        me.rank,
        world_size,
        socket.gethostname(),
        backend,
        versions["device"],
        phase_at_s=dict(me.phase_at_s),
        **report,
    )


def _assemble(params: Dict[str, Any], me: Progress, listener: Optional[socket.socket], timeout_s: float) -> None:
    """Wait until every rank of the run has come to the master's port; rank 0 gives it back then."""
    world_size = int(params["world_size"])
    own = {
        "rank": me.rank,
        "world_size": world_size,
        "run_id": str(params.get("run_id", "")),
        "framework": "paddle",
        "host": socket.gethostname(),
    }
    others = [rank for rank in range(world_size) if rank != me.rank]
    if listener is not None:
        me.entering("all ranks to come to the master's port", waiting_for=others)
        lines = list(
            assembly.host(own, others, ("world_size", "run_id", "framework"), me, listener, timeout_s).values()
        )
    else:
        me.entering("all ranks to come to the master's port", waiting_for=[0])
        lines = [assembly.visit(own, str(params["master_addr"]), int(params["master_port"]), 0, me, timeout_s)]
    for line in lines:
        line.close()
    me.left()


def _trained(paddle: Any, collectives: Any, me: Progress, world_size: int, steps: int) -> Dict[str, Any]:
    """Ordinary DataParallel steps, and what came of them."""
    model = paddle_training.build(paddle)
    me.entering("DataParallel set-up", collective=True)
    wrapped = paddle.DataParallel(model) if world_size > 1 else model
    me.left(collective=True)
    trained = paddle_training.train(
        paddle,
        model,
        wrapped,
        paddle_training.shard(paddle, me.rank),
        steps,
        before=lambda step: me.entering("DataParallel step %d" % step, collective=True, brief=True),
        after=lambda step: me.left(collective=True),
    )
    me.reached(phases.DDP, first_loss=trained.losses[0], last_loss=trained.losses[-1])
    digests = _digests(collectives, paddle_training.digest(model), world_size)
    difference = None
    if me.rank == 0:
        me.entering("training the same steps in one process")
        difference = paddle_training.difference_to_one_process(paddle, model, world_size, steps, me.still)
        me.left()
    me.reached(phases.PARITY, equal=len(set(digests)) == 1)
    return {
        "steps": len(trained.losses),
        "losses": training.ends(trained.losses, 200),
        "step_s": training.ends(trained.step_s, 200),
        "unmoved": paddle_training.unmoved(paddle, model),
        "digests": digests,
        "difference_to_one_process": difference,
    }


def _digests(collectives: Any, own: str, world_size: int) -> List[str]:
    """The SHA-256 of every rank's weights, by rank; as 32-bit numbers, which every backend carries."""
    import numpy

    mine = numpy.frombuffer(bytes.fromhex(own), dtype="uint8").astype("int32")
    found = [numpy.zeros_like(mine) for _ in range(world_size)]
    collectives.all_gather(found, mine, "digests of the weights")
    return [part.astype("uint8").tobytes().hex() for part in found]

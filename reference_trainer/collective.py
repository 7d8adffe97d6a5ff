"""One rank of the collective smoke run: join, sum what is known, train a few steps, compare.

It runs in the job context under an agent and says through `emit` where it is. Whatever may block is announced
before and reported after, with the ranks it needs, so that the head can name the one that everybody waits for.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from preflight.node.wire import ProbeUnavailable
from reference_trainer import framework, group, oracle, phases, rendezvous, training
from reference_trainer.oracle import Mismatch
from reference_trainer.progress import Emit, Progress


@dataclass(frozen=True)
class RankReport:
    """What one rank can say at the end of a smoke run. Times are seconds since this rank started.

    Of many DDP steps, `losses` and `step_s` hold the first and the last hundred; `steps` says how many there were.
    """

    rank: int
    world_size: int
    host: str
    backend: str
    device: str
    torch_version: str
    cuda_version: str = ""
    nccl_version: str = ""
    phase_at_s: Dict[str, float] = field(default_factory=dict)
    operations: int = 0
    mismatches: List[Mismatch] = field(default_factory=list)
    unsupported: List[str] = field(default_factory=list)
    exact_steps: int = 0
    steps: int = 0
    losses: List[float] = field(default_factory=list)
    step_s: List[float] = field(default_factory=list)
    unmoved: List[str] = field(default_factory=list)
    digests: List[str] = field(default_factory=list)
    difference_to_one_process: Optional[float] = None
    teardown: str = ""


def rank(params: Dict[str, Any], emit: Emit) -> RankReport:
    """Take part in the smoke run as one rank.

    Args:
        params: `rank`, `world_size`, `local_rank`, `local_world_size`, `master_addr`, `master_port`, `backend`
            (`auto`: nccl where there is a device for each local rank, else gloo), `interface`, `steps`,
            `timeout_s`, `run_id`. `force_interface` puts `interface` above what the environment chooses, for
            ranks on one machine that stand in for several nodes. `drill`: `{"stall_before": k}` lets this rank
            stand still before collective k, to see that it is named.

    Raises ProbeUnavailable: kind `missing` without torch, `denied` when rank 0 cannot listen, `blocked` when the
    rank ended because another one did.
    """
    me = Progress(emit, rank=int(params["rank"]))
    me.start()
    try:
        return _run(params, me)
    except ProbeUnavailable:
        raise
    except Exception as error:
        text = "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0])
        consequence = any(mark in str(error).lower() for mark in phases.CONSEQUENCES)
        me.say(
            phases.PROBLEM,
            problem="failed",
            phase=me.phase,
            error=text,
            consequence=consequence,
            rank=me.rank,
        )
        if consequence:
            raise ProbeUnavailable("blocked", "the other side went away: %s" % text) from error
        raise
    finally:
        me.stop()


def _run(params: Dict[str, Any], me: Progress) -> RankReport:
    world_size = int(params["world_size"])
    steps = int(params.get("steps", training.MOST_COMPARED_STEPS))
    timeout_s = float(params.get("timeout_s", 60.0))
    host = socket.gethostname()
    me.reached(
        phases.STARTED,
        rank=me.rank,
        world_size=world_size,
        pid=os.getpid(),
        host=host,
        python=sys.version.split()[0],
        executable=sys.executable,
        master="%s:%s" % (params["master_addr"], params["master_port"]),
    )
    listener = rendezvous.open_listener(params, me)
    dialling = rendezvous.Dialling(params, me, timeout_s)
    torch, dist = framework.load(me)
    oracle.exact_settings()
    me.entering("set-up of the device", loading=True)
    backend, device = framework.choose_device(torch, params)
    me.left()
    framework.set_interface(params, backend)
    me.reached(phases.IMPORTED, backend=backend, **framework.versions(torch, device))
    store = rendezvous.meet(dist, params, me, listener, dialling, timeout_s)
    me.reached(phases.RENDEZVOUS)
    collectives = group.join(dist, torch, params, me, store, backend, device, timeout_s)
    me.reached(phases.GROUP)
    first = oracle.check_collectives(collectives, me.rank, world_size, device)
    second = oracle.check_steps(collectives, me.rank, world_size, steps, device)
    mismatches = first.mismatches + second.mismatches
    me.reached(phases.EXACT, mismatches=len(mismatches))
    model, trained = _train_ddp(torch, me, steps, device)
    me.reached(phases.DDP, first_loss=trained.losses[0], last_loss=trained.losses[-1])
    digests = _digests(torch, collectives, trained.digest, world_size, device)
    difference = None
    if me.rank == 0:
        me.entering("training the same steps in one process")
        difference = training.difference_to_one_process(model, world_size, steps, device)
        me.left()
    me.reached(phases.PARITY, equal=len(set(digests)) == 1)
    collectives.barrier("last barrier")
    teardown = group.take_down(dist, me)
    me.reached(phases.DONE)
    versions = framework.versions(torch, device)
    return RankReport(
        me.rank,
        world_size,
        host,
        backend,
        versions["device"],
        versions["torch"],
        versions["cuda"],
        versions["nccl"],
        dict(me.phase_at_s),
        len(first.operations) + len(second.operations),
        mismatches,
        first.unsupported,
        min(steps, oracle.MOST_EXACT_STEPS),
        len(trained.losses),
        _ends(trained.losses),
        _ends(trained.step_s),
        trained.unmoved,
        digests,
        difference,
        teardown,
    )


def _train_ddp(torch: Any, me: Progress, steps: int, device: Any) -> Tuple[Any, training.Trained]:
    """Ordinary DDP steps; each counts as one collective, since each needs every rank."""
    model = training.build(device)
    me.entering("DistributedDataParallel set-up", collective=True)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    me.left(collective=True)
    data = training.shard(me.rank, device)
    trained = training.train(
        wrapped,
        data,
        steps,
        before=lambda step: me.entering("DDP step %d" % step, collective=True, brief=True),
        after=lambda step: me.left(collective=True),
    )
    return model, trained


def _digests(torch: Any, collectives: group.Collectives, own: str, world_size: int, device: Any) -> List[str]:
    """The SHA-256 of every rank's weights, by rank."""
    mine = torch.tensor(list(bytes.fromhex(own)), dtype=torch.uint8, device=device)
    found = [torch.zeros_like(mine) for _ in range(world_size)]
    collectives.all_gather(found, mine, "digests of the weights")
    return [bytes(tensor.tolist()).hex() for tensor in found]


def _ends(values: List[float]) -> List[float]:
    return values if len(values) <= 200 else values[:100] + values[-100:]

"""One rank of the collective smoke run: join, sum what is known, train a few steps, compare.

It runs in the job context under an agent and says through `emit` where it is. Whatever may block is announced
before and reported after, with the ranks it needs, so that the head can name the one that everybody waits for.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, Dict, List, Optional, Tuple

from preflight.node.record import dataclass, field
from preflight.node.wire import ProbeUnavailable
from reference_trainer import (
    bandwidth,
    framework,
    group,
    machine,
    oracle,
    pace,
    phases,
    pipeline,
    rendezvous,
    sharded,
    training,
)
from reference_trainer.oracle import Mismatch
from reference_trainer.pipeline import PipelineReport
from reference_trainer.progress import Emit, Progress
from reference_trainer.transport import Transport, Watcher


@dataclass(frozen=True)
class RankReport:
    """What one rank can say at the end of a smoke run. Times are seconds since this rank started.

    `digests` are those of all ranks on rank 0, elsewhere the rank's own: of many ranks they would be most of a
    recording. `exact_digest` is of the weights after the steps whose gradients are known, as one process and parameter
    servers come to them. `windows` tell how fast it computes by itself and exchanges with one other. Of many steps,
    `losses` and `step_s` hold the first and the last hundred; `steps` says how many there were.
    """

    rank: int
    world_size: int
    host: str
    backend: str
    device: str
    framework: str
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
    windows: List[pace.Window] = field(default_factory=list)
    sweep: bandwidth.Sweep = field(default_factory=bandwidth.Sweep)
    transport: Transport = field(default_factory=Transport)
    trainer: str = sharded.DDP
    trainer_note: str = ""
    timeline: List[training.Step] = field(default_factory=list)
    pipeline: Optional[PipelineReport] = None
    exact_digest: str = ""


def rank(params: Dict[str, Any], emit: Emit) -> RankReport:
    """Take part in the smoke run as one rank.

    Args:
        params: `rank`, `world_size`, `local_rank`, `local_world_size`, `master_addr`, `master_port`, `backend`
            (`auto`: nccl where there is a device for each local rank, else gloo), `interface`, `steps`,
            `timeout_s`, `run_id`. `force_interface` puts `interface` above what the environment chooses, for
            ranks on one machine that stand in for several nodes. `framework`: `torch` or `paddle`; without it what
            this interpreter has, torch where it has both. `sharding`: each rank holds a part of the model, by FSDP.
            `pipeline`: `{"stages": 4, "microbatches": 8, "schedule": "1f1b"}` makes stages of the ranks for a few
            steps, with torch. `until`: `exact` ends the run after the known sums.
            `drill`: a fault that this rank plays, to see that it is named (`drills.py`); `{"stall_before": k}` lets it
            stand still before collective k.

    Raises ProbeUnavailable: kind `missing` without torch, `denied` when rank 0 cannot listen, `blocked` when the
    rank ended because another one did.
    """
    me = Progress(emit, rank=int(params["rank"]))
    watcher = Watcher()
    me.start()
    try:
        _started(params, me)
        if framework.is_paddle(params):
            from reference_trainer.paddle import collective

            return collective.run(params, me)
        return _run(params, me, watcher)
    except ProbeUnavailable:
        raise
    except Exception as error:
        watcher.complain()
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


def _started(params: Dict[str, Any], me: Progress) -> None:
    """Say who this is, before anything that may fail."""
    me.reached(
        phases.STARTED,
        rank=me.rank,
        world_size=int(params["world_size"]),
        pid=os.getpid(),
        host=socket.gethostname(),
        python=sys.version.split()[0],
        executable=sys.executable,
        master="%s:%s" % (params["master_addr"], params["master_port"]),
    )


def _run(params: Dict[str, Any], me: Progress, watcher: Watcher) -> RankReport:
    world_size = int(params["world_size"])
    steps = int(params.get("steps", training.MOST_COMPARED_STEPS))
    timeout_s = float(params.get("timeout_s", 60.0))
    listener = rendezvous.open_listener(params, me)
    dialling = rendezvous.Dialling(params, me, timeout_s)
    torch, dist = framework.load(me, optimizers=True)
    oracle.exact_settings()
    me.entering("set-up of the device", loading=True)
    backend, device = framework.choose_device(torch, params)
    me.left()
    framework.set_interface(params, backend)
    watcher.listen(backend)
    me.reached(phases.IMPORTED, backend=backend, **framework.versions(torch, device))
    store = rendezvous.meet(dist, params, me, listener, dialling, timeout_s)
    me.reached(phases.RENDEZVOUS)
    collectives = group.join(dist, torch, params, me, store, backend, device, timeout_s)
    me.reached(phases.GROUP)
    first = oracle.check_collectives(collectives, me.rank, world_size, device)
    second = oracle.check_steps(collectives, me.rank, world_size, steps, device)
    mismatches = first.mismatches + second.mismatches
    me.reached(phases.EXACT, mismatches=len(mismatches))
    if params.get("until") == phases.EXACT:
        return _early(params, me, dist, torch, collectives, backend, device, first, second)
    staged = pipeline.run(torch, dist, collectives, params, me, device) if "pipeline" in params else None
    together = machine.neighbours(torch, collectives, world_size, device)
    watcher.begin(counts=me.rank == together[0])
    sweep, wrong, compared = bandwidth.sweep(torch, collectives, me, world_size, device, len(together))
    watcher.end()
    mismatches += wrong
    me.reached(phases.MEASURED, mismatches=len(wrong))
    windows = [pace.measure(torch, dist, me, world_size, device, 0)]
    me.entering("import of what shards the model", loading=True)
    way = sharded.choose(bool(params.get("sharding")), sweep.unsupported + sweep.in_lists, backend)
    me.left()
    model, trained = _train(me, way, world_size, steps, device)
    me.reached(phases.DDP, first_loss=trained.losses[0], last_loss=trained.losses[-1])
    digests = _digests(torch, collectives, training.digest(model), world_size, device)
    difference = None
    if me.rank == 0:
        me.entering("training the same steps in one process")
        difference = training.difference_to_one_process(model, world_size, steps, device, me.still)
        me.left()
    me.reached(phases.PARITY, equal=len(set(digests)) == 1)
    windows.append(pace.measure(torch, dist, me, world_size, device, 1))
    collectives.barrier("last barrier")
    teardown = group.take_down(dist, me)
    me.reached(phases.DONE)
    versions = framework.versions(torch, device)
    return RankReport(
        me.rank,
        world_size,
        socket.gethostname(),
        backend,
        versions["device"],
        "torch %s" % versions["torch"],
        versions["cuda"],
        versions["nccl"],
        dict(me.phase_at_s),
        len(first.operations) + len(second.operations) + compared,
        mismatches,
        first.unsupported + [name for name in sweep.unsupported if name not in first.unsupported],
        min(steps, oracle.MOST_EXACT_STEPS),
        len(trained.losses),
        training.ends(trained.losses, 200),
        training.ends(trained.step_s, 200),
        training.unmoved(model, device),
        digests if me.rank == 0 else digests[me.rank : me.rank + 1],
        difference,
        teardown,
        windows,
        sweep,
        watcher.found(sweep.crossing_bytes),
        way.name,
        way.note,
        trained.timeline,
        staged,
        exact_digest=second.digest,
    )


def _early(
    params: Dict[str, Any],
    me: Progress,
    dist: Any,
    torch: Any,
    collectives: group.Collectives,
    backend: str,
    device: Any,
    first: oracle.Checked,
    second: oracle.Checked,
) -> RankReport:
    """The report of a rank that was only to meet the others and to sum with them."""
    collectives.barrier("last barrier")
    teardown = group.take_down(dist, me)
    me.reached(phases.DONE)
    versions = framework.versions(torch, device)
    return RankReport(
        me.rank,
        int(params["world_size"]),
        socket.gethostname(),
        backend,
        versions["device"],
        "torch %s" % versions["torch"],
        versions["cuda"],
        versions["nccl"],
        dict(me.phase_at_s),
        len(first.operations) + len(second.operations),
        first.mismatches + second.mismatches,
        first.unsupported,
        teardown=teardown,
        exact_digest=second.digest,
    )


def _train(me: Progress, way: sharded.Way, world_size: int, steps: int, device: Any) -> Tuple[Any, training.Trained]:
    """Ordinary steps; each counts as one collective, since each needs every rank. Returns the whole model as well."""
    me.entering("%s set-up" % way.name, collective=True)
    wrapped = sharded.wrap(way, training.build(device), world_size, device)
    me.left(collective=True)
    name = "DDP" if way.name == sharded.DDP else "FSDP"
    trained = training.train(
        wrapped,
        training.shard(me.rank, device),
        steps,
        before=lambda step: me.entering("%s step %d" % (name, step), collective=True, brief=True),
        after=lambda step: me.left(collective=True),
        began_s=me.began_s,
    )
    me.entering("putting the model together", collective=True)
    model = sharded.whole(way, wrapped, device)
    me.left(collective=True)
    return model, trained


def _digests(torch: Any, collectives: group.Collectives, own: str, world_size: int, device: Any) -> List[str]:
    """The SHA-256 of every rank's weights, by rank."""
    mine = torch.tensor(list(bytes.fromhex(own)), dtype=torch.uint8, device=device)
    found = [torch.zeros_like(mine) for _ in range(world_size)]
    collectives.all_gather(found, mine, "digests of the weights")
    return [bytes(tensor.tolist()).hex() for tensor in found]

"""One rank of the collective smoke run and its report: join, sum known values, train a few steps, compare.

It runs in the job context under an agent and reports its position through `emit`. Any call that may block is announced
before and reported after, with the ranks that it needs, so that the head can name the rank for which all others wait.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, field
from typing import Any

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.collective import bandwidth, gpu_speed, group
from reference_trainer.collective import bandwidth as pace
from reference_trainer.collective import steps as sharded
from reference_trainer.collective import steps as training
from reference_trainer.common import framework, oracle, rendezvous
from reference_trainer.common.oracle import Mismatch
from reference_trainer.common.progress import Emit, Progress
from reference_trainer.common.used_transport import Transport, TransportWatcher
from reference_trainer.pipeline import stage as pipeline
from reference_trainer.pipeline.stage import PipelineReport


def rank(params: dict[str, Any], emit: Emit) -> RankReport:
    """Take part in the smoke run as one rank.

    Args:
        params: `rank`, `world_size`, `local_rank`, `local_world_size`, `master_addr`, `master_port`, `backend` (`nccl`,
            `gloo`, or `auto`: all ranks take nccl if each has a device of its own, otherwise gloo), `interface`,
            `steps`, `timeout_s`, `run_id`. `force_interface` makes `interface` override the environment, for ranks on
            one machine that represent several nodes. `framework`: `torch` or `paddle`; if missing, the one that this
            interpreter has, or torch if it has both. `sharding`: each rank holds a part of the model, by FSDP.
            `pipeline`: `{"stages": 4, "microbatches": 8, "schedule": "1f1b"}` divides the ranks into stages for a few
            steps, with torch. `until`: `exact` ends the run after the known sums. `injected_fault`: a fault that this
            rank injects, to test that it is found (`common/injected_faults.py`); `{"stall_before": k}` makes it hang
            before collective k.

    Raises ProbeUnavailable: kind `missing` without torch, or without a GPU for nccl; `denied` when rank 0 cannot
    listen; `blocked` when the rank ended because another rank did.
    """
    progress = Progress(emit, rank=int(params["rank"]))
    watcher = TransportWatcher()
    progress.start()
    try:
        _report_identity(params, progress)
        if framework.is_paddle(params):
            from reference_trainer.paddle import collective_rank

            return collective_rank.run(params, progress)
        return _run(params, progress, watcher)
    except ProbeUnavailable:
        raise
    except Exception as error:
        watcher.print_warnings()
        text = framework.describe(error)
        consequence = any(mark in str(error).lower() for mark in rank_events.CONSEQUENCES)
        progress.send(
            rank_events.PROBLEM,
            problem="failed",
            phase=progress.phase,
            error=text,
            consequence=consequence,
            rank=progress.rank,
        )
        if consequence:
            raise ProbeUnavailable("blocked", f"the connection was lost: {text}") from error
        raise
    finally:
        progress.stop()


def _report_identity(params: dict[str, Any], progress: Progress) -> None:
    """Report the identity of this rank, before anything that may fail."""
    progress.reached(
        rank_events.STARTED,
        rank=progress.rank,
        world_size=int(params["world_size"]),
        pid=os.getpid(),
        host=socket.gethostname(),
        python=sys.version.split()[0],
        executable=sys.executable,
        master="{}:{}".format(params["master_addr"], params["master_port"]),
    )


def _run(params: dict[str, Any], progress: Progress, watcher: TransportWatcher) -> RankReport:
    world_size = int(params["world_size"])
    steps = int(params.get("steps", training.MAX_COMPARED_STEPS))
    timeout_s = float(params.get("timeout_s", 60.0))
    listener = rendezvous.open_listener(params, progress)
    dialling = rendezvous.MasterDialer(params, progress, timeout_s)
    torch, dist = framework.load(progress, optimizers=True)
    oracle.exact_settings()
    progress.entering("setup of the device", loading=True)
    requested = str(params.get("backend", "auto"))
    obstacle = framework.nccl_obstacle(torch, params)
    progress.left()
    if requested == "nccl" and obstacle:
        progress.send(
            rank_events.PROBLEM,
            problem=rank_events.NO_DEVICE,
            backend=requested,
            error=obstacle,
            rank=progress.rank,
        )
    progress.reached(rank_events.IMPORTED, backend=requested, torch=str(torch.__version__))
    store = rendezvous.join_store(dist, params, progress, listener, dialling, timeout_s, obstacle)
    backend, backend_note = rendezvous.agree_on_backend(store, progress, requested, world_size, obstacle)
    progress.entering("setup of the device", loading=True)
    device = framework.choose_device(torch, params, backend)
    progress.left()
    framework.set_interface(params, backend)
    watcher.listen(backend)
    progress.reached(rank_events.RENDEZVOUS, backend=backend, **framework.versions(torch, device))
    collectives = group.join(dist, torch, params, progress, store, backend, device, timeout_s)
    progress.reached(rank_events.GROUP)
    first = oracle.check_collectives(collectives, progress.rank, world_size, device)
    second = oracle.check_steps(collectives, progress.rank, world_size, steps, device)
    mismatches = first.mismatches + second.mismatches
    progress.reached(rank_events.EXACT, mismatches=len(mismatches))

    def leave() -> dict[str, Any]:
        """Leave the group and return the part of the report that every rank has."""
        collectives.barrier("last barrier")
        teardown = group.tear_down(torch, dist, progress, device)
        progress.reached(rank_events.DONE)
        versions = framework.versions(torch, device)
        return {
            "rank": progress.rank,
            "world_size": world_size,
            "host": socket.gethostname(),
            "backend": backend,
            "device": versions["device"],
            "framework": "torch {}".format(versions["torch"]),
            "nccl_version": versions["nccl"],
            "phase_at_s": dict(progress.phase_at_s),
            "operations": len(first.operations) + len(second.operations),
            "mismatches": mismatches,
            "unsupported": first.unsupported,
            "teardown": teardown,
            "exact_digest": second.digest,
        }

    if params.get("until") == rank_events.EXACT:
        return RankReport(**leave())
    staged = pipeline.run(torch, dist, collectives, params, progress, device) if "pipeline" in params else None
    together, sharing = group.neighbours(torch, collectives, world_size, device)
    watcher.begin(counts=progress.rank == together[0])
    sweep, wrong, compared = bandwidth.sweep(
        torch, collectives, progress, world_size, device, len(together), len(sharing)
    )
    watcher.end()
    mismatches += wrong
    progress.reached(rank_events.MEASURED, mismatches=len(wrong))
    exchanged = pace.exchange_bytes(sweep, device)
    windows = [pace.measure(torch, dist, progress, world_size, device, 0, exchanged)]
    on_gpu = _gpu(torch, progress, collectives, params, device)
    progress.entering("import of the sharding wrapper", loading=True)
    sharding = sharded.choose(bool(params.get("sharding")), sweep.unsupported + sweep.in_lists, backend)
    progress.left()
    model, trained = _train(progress, sharding, world_size, steps, device)
    progress.reached(rank_events.DDP, first_loss=trained.losses[0], last_loss=trained.losses[-1])
    digests = _digests(torch, collectives, training.digest(model), world_size, device)
    drift = training.drift(model, collectives)
    difference = None
    if progress.rank == 0:
        progress.entering("training the same steps in one process")
        difference = training.difference_to_one_process(model, world_size, steps, device, progress.report_progress)
        progress.left()
    progress.reached(rank_events.PARITY, equal=len(set(digests)) == 1)
    windows.append(pace.measure(torch, dist, progress, world_size, device, 1, exchanged))
    report = leave()
    report["operations"] += compared
    report["unsupported"] += [name for name in sweep.unsupported if name not in first.unsupported]
    return RankReport(
        **report,
        exact_steps=min(steps, oracle.MAX_EXACT_STEPS),
        steps=len(trained.losses),
        losses=training.first_and_last(trained.losses, 200),
        step_s=training.first_and_last(trained.step_s, 200),
        unmoved=training.unchanged_tensors(model, device),
        digests=digests if progress.rank == 0 else digests[progress.rank : progress.rank + 1],
        difference_to_one_process=difference,
        windows=windows,
        sweep=sweep,
        transport=watcher.result(sweep.crossing_bytes),
        trainer=sharding.name,
        trainer_note=sharding.note,
        pipeline=staged,
        gpu=on_gpu,
        backend_note=backend_note,
        drift=drift,
        cpu_capability=_cpu_capability(torch),
    )


def _cpu_capability(torch: Any) -> str:
    """Return the instruction set that torch uses on the CPU: `AVX512`, `DEFAULT`; empty if unknown."""
    try:
        return str(torch.backends.cpu.get_cpu_capability())
    except (AttributeError, RuntimeError):
        return ""


def _gpu(
    torch: Any, progress: Progress, collectives: group.Collectives, params: dict[str, Any], device: Any
) -> gpu_speed.GpuReport:
    """Return the speed of this rank's GPU. All ranks must call this, because the ranks on a node take turns."""
    local_ranks = int(params.get("local_world_size", 1))
    if device.type != "cuda":
        return gpu_speed.GpuReport(skipped="the rank computes on the CPU")
    # Nodes may have different numbers of ranks, and every turn is a collective.
    most = torch.tensor([float(local_ranks)], dtype=torch.float64, device=device)
    collectives.maximum(most, "agreement on the number of turns")
    take_turn = gpu_speed.turns(int(params.get("local_rank", 0)), int(most[0]), collectives.barrier)
    return gpu_speed.measure(torch, progress, device, take_turn, local_ranks=local_ranks)


def _train(
    progress: Progress, sharding: sharded.ShardingChoice, world_size: int, steps: int, device: Any
) -> tuple[Any, training.TrainingResult]:
    """Run ordinary steps; return their results and the model. A step counts as a collective: it needs every rank."""
    progress.entering(f"{sharding.name} setup", collective=True, root=rank_events.ANY_RANK)
    wrapped = sharded.wrap(sharding, training.build(device), world_size, device)
    progress.left(collective=True)
    name = "DDP" if sharding.name == sharded.DDP else "FSDP"
    trained = training.train(
        wrapped,
        training.shard(progress.rank, device),
        steps,
        before=lambda step: progress.entering(f"{name} step {step}", collective=True, brief=True),
        after=lambda step: progress.left(collective=True),
    )
    progress.entering("assembling the model", collective=True)
    model = sharded.gather_model(sharding, wrapped, device)
    progress.left(collective=True)
    return model, trained


def _digests(torch: Any, collectives: group.Collectives, own_digest: str, world_size: int, device: Any) -> list[str]:
    """Return the SHA-256 of every rank's weights, by rank."""
    mine = torch.tensor(list(bytes.fromhex(own_digest)), dtype=torch.uint8, device=device)
    found = [torch.zeros_like(mine) for _ in range(world_size)]
    collectives.all_gather(found, mine, "digests of the weights")
    return [bytes(tensor.tolist()).hex() for tensor in found]


@dataclass(frozen=True)
class RankReport:
    """The results of one rank at the end of a smoke run. Times are seconds since this rank started.

    `digests` are those of all ranks on rank 0, and only the rank's own elsewhere: for many ranks they would otherwise
    make up most of a recording. `exact_digest` is that of the weights after the steps with known gradients, which a
    single process and parameter servers also reach. `windows` show how fast it computes by itself and exchanges data
    with another. `gpu` is the speed of its GPU; None in recordings of older versions, and with paddle. For many steps,
    `losses` and `step_s` hold the first and the last hundred; `steps` is their number.
    """

    rank: int
    world_size: int
    host: str
    backend: str
    device: str
    framework: str
    nccl_version: str = ""
    phase_at_s: dict[str, float] = field(default_factory=dict)
    operations: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    exact_steps: int = 0
    steps: int = 0
    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    unmoved: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    difference_to_one_process: float | None = None
    teardown: str = ""
    windows: list[pace.Window] = field(default_factory=list)
    sweep: bandwidth.Sweep = field(default_factory=bandwidth.Sweep)
    transport: Transport = field(default_factory=Transport)
    trainer: str = sharded.DDP
    trainer_note: str = ""
    pipeline: PipelineReport | None = None
    exact_digest: str = ""
    gpu: gpu_speed.GpuReport | None = None
    #: Why all ranks used gloo although some could have used nccl.
    backend_note: str = ""
    #: None in recordings of older versions, and with paddle.
    drift: training.Drift | None = None
    cpu_capability: str = ""

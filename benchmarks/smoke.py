"""The whole smoke run of two healthy ranks against bare torchrun of an ordinary script, from start to exit, in turns.

The script trains the same model for 100 steps over Gloo; the smoke run starts two agents and two ranks, checks known
sums, times collectives and its own steps, trains and compares. Goal: at most 1.3 times torchrun's time. Run: python -m
benchmarks smoke [rounds]
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
from pathlib import Path

from benchmarks.stopwatch import processes, table

ROOT = Path(__file__).resolve().parents[1]
STEPS = 100
GOAL = 1.3


def main() -> int:
    """Measure both, print the table and the median of the rounds' ratios."""
    if "--gang" in sys.argv:
        return gang()
    if "--plain" in sys.argv:
        return plain()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    folders = (ROOT, ROOT / "checks", ROOT / "rules")
    os.environ.update(PYTHONPATH=os.pathsep.join(map(str, folders)), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    here = [sys.executable, str(Path(__file__).resolve())]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", here[1]]
    found = processes({"torchrun": [*torchrun, "--plain"], "smoke run": [*here, "--gang"]}, rounds=rounds)
    table("two ranks over Gloo on this machine", found, against="torchrun")
    pairs = zip(found["smoke run"].wall_s, found["torchrun"].wall_s, strict=True)
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    middle = statistics.median(ratios)
    print(f"  wall time, ratio of each round: median {middle:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}); goal <= {GOAL}")
    return 0


def gang() -> int:
    """The smoke run as `preflight check` runs it: agents, ranks, supervision."""
    import anyio

    from preflight.agent.wire import Context
    from preflight.executors.pipe import LocalExecutor
    from preflight.model.recording import Node
    from preflight.model.requests import Request, probe_name
    from preflight.runner.session import open_fleet
    from preflight.runner.supervisor import run_rank_group
    from reference_trainer.collective.rank import rank as run_rank

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"world_size": 2, "local_world_size": 2, "master_addr": "127.0.0.1", "master_port": port}
    requests = [
        Request(
            probe_name(run_rank),
            f"node{rank}",
            {**common, "rank": rank, "local_rank": rank, "backend": "gloo", "interface": "lo", "steps": 10},
            context=True,
            group="smoke",
        )
        for rank in range(2)
    ]

    async def run() -> int:
        began = anyio.current_time()
        nodes = [Node(f"node{rank}", rank, "localhost") for rank in range(2)]
        async with open_fleet(LocalExecutor(), nodes) as fleet:
            records, _ = await run_rank_group(
                fleet.sessions,
                requests,
                context=Context(interpreter=sys.executable, environment={"OMP_NUM_THREADS": "1"}),
                deadline_s=120,
                now=lambda: anyio.current_time() - began,
            )
        wrong = [record.unavailable for record in records if record.unavailable is not None]
        if os.environ.get("SMOKE_PHASES"):
            for record in records:
                print({k: round(v, 2) for k, v in record.value["phase_at_s"].items()}, file=sys.stderr)
        return len(wrong)

    return anyio.run(run)


def plain() -> int:
    """The script that torchrun starts: an ordinary training loop."""
    import torch
    import torch.distributed as dist

    from reference_trainer.collective import steps

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(steps.build("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=steps.LEARNING_RATE)
    criterion = torch.nn.CrossEntropyLoss()
    samples, labels = steps.shard(dist.get_rank(), "cpu")
    for _ in range(STEPS):
        optimizer.zero_grad()
        criterion(model(samples), labels).backward()
        optimizer.step()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())

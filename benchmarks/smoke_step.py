"""The cost of reporting to the head: a DDP step of the smoke run, compared with a plain torch DDP step.

Both train the same model on the same shards in the same two processes over Gloo, step by step in turns, so that other
load affects both; the result is the ratio of the median step times (goal: at most 1.05). Run: python
benchmarks/smoke_step.py [ranks] [rounds] [gloo|nccl]

Over NCCL all ranks share the first GPU: with more than one the times are those of taking turns.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STEPS = 100
WARM_UP = 5


def main() -> None:
    """Fork the ranks, read their events, and print the ratio of each round and of all rounds."""
    sys.path[:0] = [str(ROOT)]
    import torch
    import torch.distributed as dist

    world_size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    backend = sys.argv[3] if len(sys.argv) > 3 else "gloo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    pipes: list[int] = []
    pids: list[int] = []
    results, results_in = os.pipe()
    for rank in range(world_size):
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            run_rank(rank, world_size, store.port, rounds, writing, results_in, backend)
            os._exit(0)
        os.close(writing)
        pipes.append(reading)
        pids.append(pid)
    os.close(results_in)
    for pipe in pipes:
        threading.Thread(target=_drain, args=(pipe,), daemon=True).start()
    with os.fdopen(results) as stream:
        measured = json.loads(stream.read())
    for pid in pids:
        os.waitpid(pid, 0)
    show(world_size, measured, backend)


def run_rank(
    rank: int, world_size: int, port: int, rounds: int, events: int, results: int, backend: str = "gloo"
) -> None:
    """One rank: plain and instrumented training in turns; rank 0 reports its step times."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from reference_trainer.collective import steps as training
    from reference_trainer.common import framework
    from reference_trainer.common.progress import Progress

    params = {"local_rank": rank, "local_world_size": world_size}
    device = framework.choose_device(torch, params, backend)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    me = Progress(lambda data: os.write(events, (json.dumps(data) + "\n").encode()), rank=rank)
    me.start()
    data = training.shard(rank, device)
    plain: list[float] = []
    config: list[float] = []
    for _ in range(rounds):
        ordinary, instrumented = Plain(data), wrapped(device)
        steps: dict[str, list[float]] = {"plain": [], "told": []}
        for step in range(STEPS):
            for name in ("plain", "told") if step % 2 else ("told", "plain"):
                took = ordinary.step() if name == "plain" else told_step(instrumented, data, step, me)
                steps[name].append(took)
        plain.append(statistics.median(steps["plain"][WARM_UP:]))
        config.append(statistics.median(steps["told"][WARM_UP:]))
    me.stop()
    if rank == 0:
        os.write(results, json.dumps({"plain": plain, "told": config}).encode())
    dist.barrier()


def wrapped(device: Any) -> Any:
    """The smoke run's model in DDP."""
    import torch

    from reference_trainer.collective import steps as training

    return torch.nn.parallel.DistributedDataParallel(training.build(device))


def told_step(model: Any, data: tuple[Any, Any], number: int, me: Any) -> float:
    """The time of one step of the smoke run."""
    from reference_trainer.collective import steps as training

    trained = training.train(
        model,
        data,
        1,
        before=lambda _: me.entering(f"DDP step {number}", collective=True, brief=True),
        after=lambda _: me.left(collective=True),
    )
    return trained.step_s[0]


class Plain:
    """An ordinary loop, one step at a time."""

    def __init__(self, data: tuple[Any, Any]) -> None:
        import torch

        from reference_trainer.collective import steps as training

        self._data = data
        self._model = wrapped(data[0].device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=training.LEARNING_RATE)
        self._criterion = torch.nn.CrossEntropyLoss()

    def step(self) -> float:
        """The time of one step."""
        import torch

        samples, labels = self._data
        began = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self._criterion(self._model(samples), labels)
        loss.backward()
        self._optimizer.step()
        if samples.is_cuda:
            torch.cuda.synchronize(samples.device)
        return time.perf_counter() - began


def _drain(pipe: int) -> None:
    while os.read(pipe, 65536):
        pass


def show(world_size: int, measured: dict[str, list[float]], backend: str) -> None:
    """Print the table."""
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    control = congestion.read_text().strip() if congestion.exists() else "unknown"
    load = os.getloadavg()[0]
    where = f"{world_size} ranks, {backend} on loopback"
    print(f"{where}, load {load:.1f}, {os.cpu_count()} cores, congestion control {control}")
    print("round  plain ms  smoke ms  ratio")
    ratios = []
    for number, (plain, config) in enumerate(zip(measured["plain"], measured["told"], strict=True), 1):
        ratios.append(config / plain)
        print(f"{number:5d}  {plain * 1e3:8.2f}  {config * 1e3:8.2f}  {config / plain:5.2f}")
    middle = sorted(ratios)
    print(f"median ratio {statistics.median(ratios):.3f} ({middle[0]:.2f}-{middle[-1]:.2f}); goal <= 1.05")


if __name__ == "__main__":
    main()

"""Steps a second of two workers and one server, asynchronously, against the same exchange over libraries.

Two models: a dense one (784-256-10, 814 KB up and down in each step) and a sparse one (26 rows a sample of a table of
1,000,000 x 16). pyzmq and numpy come from `$PREFLIGHT_PS_PEERS`, or are installed into a folder that is removed again;
Ray is used where it is installed. All contestants are started together and take turns. While one works the others are
stopped, because some of them are busy while they wait: threads of torch RPC look at shared memory without end. Only
processes of Ray are not stopped, because its supervisors would consider them dead.
"""

from __future__ import annotations

import functools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.ps_transfer import congestion, connected, processor_s
from preflight.agent.process import die_with_parent

ROOT = Path(__file__).parents[1]
PEERS = ("pyzmq==27.3.0", "numpy==2.4.0")
WORKERS = 2
ROUNDS = 7
MODELS = {
    "dense 784-256-10": ({"inputs": 784, "hidden": 256, "slots": 0}, 60),
    "sparse 1M x 16": ({"inputs": 13, "hidden": 64, "classes": 2, "rows": 1000000, "width": 16, "slots": 26}, 60),
}
AIMS = {"pyzmq": 1.2, "torch RPC": 2.0, "Ray": 4.0, "paddle": 5.0}


@dataclass
class Contestant:
    """Processes that train on demand. Those that are `idle` between their turns need not be stopped then."""

    name: str
    steps: Callable[[int], list[float]]
    pids: list[int]
    close: Callable[[], None]
    idle: bool = False

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        if not self.idle:
            for pid in self.pids:
                os.kill(pid, number)


def main() -> int:
    """Print a table for each model."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory(prefix="preflight-ps-") as folder:
        peers = os.environ.get("PREFLIGHT_PS_PEERS") or folder
        if not Path(peers, "zmq").is_dir():
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", peers, *PEERS], check=True)
        sys.path.insert(0, peers)
        os.environ["PYTHONPATH"] = os.pathsep.join([peers, str(ROOT)])
        import torch

        torch.set_num_threads(1)
        for title, (options, count) in MODELS.items():
            contest(title, options, count, rounds)
    return 0


def contest(title: str, options: dict[str, int], count: int, rounds: int) -> None:
    """Run all contestants in turns."""
    makers = [functools.partial(make, options) for make in (our_contestant, over_zmq, over_rpc, over_ray)]
    turns(title, makers, count, rounds)


def turns(title: str, makers: Sequence[Callable[[], Contestant]], count: int, rounds: int) -> None:
    """Run the contestants one after the other in each round; the first one is ours."""
    contestants = [make() for make in makers]
    found: dict[str, list[tuple[float, float]]] = {contestant.name: [] for contestant in contestants}
    try:
        for number in range(rounds + 1):
            for contestant in contestants:
                if number:
                    contestant.tell(signal.SIGCONT)
                spent = sum(map(of_process, contestant.pids))
                seconds = max(contestant.steps(count))
                cpu_s = sum(map(of_process, contestant.pids)) - spent
                contestant.tell(signal.SIGSTOP)
                if number:
                    found[contestant.name].append((seconds / count, cpu_s / count))
    finally:
        for contestant in contestants:
            contestant.close()
    show(title, found)


def show(title: str, found: dict[str, list[tuple[float, float]]]) -> None:
    """Print the steps per second of each contestant, and the ratio of ours to them."""
    base = next(iter(found.values()))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    how = f"medians of {len(base)}; load average {load}; {congestion()}"
    print(f"\n{title}: {WORKERS} workers, 1 server unless said, async ({how})")
    print(f"  {'':<12}{'steps/s':>9}{'cpu ms':>9}{'ours are':>10}{'(range)':>16}{'by cpu':>9}{'aim':>7}")
    for name, times in found.items():
        ratios = [theirs[0] / mine[0] for theirs, mine in zip(times, base, strict=True)]
        by_cpu = statistics.median(theirs[1] / mine[1] for theirs, mine in zip(times, base, strict=True))
        rate, cpu_ms = (statistics.median(1 / t[0] for t in times), statistics.median(t[1] for t in times) * 1e3)
        between = f"({min(ratios):.2f}-{max(ratios):.2f})"
        aim = next((f"{value:.1f}" for start, value in AIMS.items() if name.startswith(start)), "")
        print(f"  {name:<12}{rate:>9.0f}{cpu_ms:>9.2f}{statistics.median(ratios):>8.2f} x{between:>16}", end="")
        print(f"{by_cpu:>7.2f} x{aim:>7}", flush=True)


def of_process(pid: int) -> float:
    """Processor time of one process."""
    return processor_s(pid) if pid != os.getpid() else 0.0


def our_contestant(options: dict[str, int], servers: int = 1, name: str = "preflight") -> Contestant:
    """The reference trainer's own servers and workers."""
    config = settings(options, servers)
    ends = [[connected() for _ in range(servers)] for _ in range(WORKERS)]

    def server(index: int) -> int:
        return forked(lambda: our_server([mine[index][1] for mine in ends], replace(config, index=index)))

    def worker(index: int) -> Callable[[int], None]:
        return trainer([mine for mine, _ in ends[index]], config, index)

    first, *more = [server(index) for index in range(servers)]
    workers = [CommandedProcess(lambda index=index: worker(index)) for index in range(WORKERS)]
    for mine, theirs in (pair for pairs in ends for pair in pairs):
        mine.close()
        theirs.close()
    return commanded(name, first, workers, tuple(more))


def settings(options: dict[str, int], servers: int = 1, workers: int = WORKERS, mode: str = "async") -> Any:
    """The settings of all servers and workers."""
    from reference_trainer.ps import settings as config

    params = {
        "rank": 0,
        "index": 0,
        "servers": servers,
        "workers": workers,
        "server_endpoints": ["127.0.0.1:1"] * servers,
        "mode": mode,
        "steps": 1 << 30,
        "model": {"network": options},
        "secret": "00" * 32,
    }
    return config.read(params, "worker")


def our_server(ends: list[Any], config: Any) -> None:
    """Serve with a thread for each worker, as in a smoke run."""
    import threading

    import torch

    from reference_trainer.ps.connection import ConnectionHandler
    from reference_trainer.ps.frames import Channel
    from reference_trainer.ps.server_state import ConnectedWorker, ServerState
    from reference_trainer.ps.settings import TRAINING, ProcessFault

    host = ServerState(config, ProcessFault({}, role="server", index=config.index))
    host.prepare(torch.device("cpu"))
    host.clocks.phase = TRAINING
    host.fill_for_training()
    threads = []
    for index, end in enumerate(ends):
        guest = ConnectedWorker(Channel(end, peer=f"worker {index}", limit_s=600), {"index": index})
        host.peers[index] = guest
        host.reply_timeout.note(600)
        threads.append(threading.Thread(target=ConnectionHandler(host, guest).run))
        threads[-1].start()
    for thread in threads:
        thread.join()


def trainer(ends: list[Any], config: Any, index: int) -> Callable[[int], None]:
    """Run one worker of any number of servers."""
    import torch

    from reference_trainer.ps.client import Client
    from reference_trainer.ps.frames import Channel
    from reference_trainer.ps.settings import TRAINING, ProcessFault
    from reference_trainer.ps.worker_steps import WorkerSteps

    fault = ProcessFault({}, role="worker", index=index)
    channels = [Channel(end, peer=f"server {number}", limit_s=600) for number, end in enumerate(ends)]
    client = Client(channels, config, fault, index=index)
    client.phase = TRAINING
    done = 0

    def steps(count: int) -> None:
        nonlocal done
        until = replace(config, steps=done + count)
        stepping = WorkerSteps(
            *(until, client, fault, torch.device("cpu")),
            before=lambda *what: None,
            after=lambda: None,
            alive=client.keep_alive,
        )
        stepping.train(done)
        done += count

    return steps


def over_zmq(options: dict[str, int]) -> Contestant:
    """Processes that exchange over pyzmq."""
    from benchmarks import ps_peers
    from reference_trainer.ps import tasks

    task = tasks.Network(**options)
    endpoint = f"tcp://127.0.0.1:{ps_peers.free_port()}"
    server = forked(lambda: ps_peers.zmq_server(endpoint, task, rate()))

    def worker(index: int) -> Callable[[int], Any]:
        return ps_peers.Training(task, index, ps_peers.zmq_exchange(endpoint)).steps

    return commanded("pyzmq", server, [CommandedProcess(lambda index=index: worker(index)) for index in range(WORKERS)])


def over_rpc(options: dict[str, int]) -> Contestant:
    """Processes that exchange over torch.distributed.rpc."""
    from benchmarks import ps_peers
    from reference_trainer.ps import tasks

    task, port = tasks.Network(**options), ps_peers.free_port()
    server = forked(lambda: ps_peers.rpc_server(port, WORKERS + 1, task, rate()))

    def worker(index: int) -> Callable[[int], Any]:
        return ps_peers.Training(task, index, ps_peers.rpc_exchange(index, WORKERS + 1, port)).steps

    return commanded(
        "torch RPC", server, [CommandedProcess(lambda index=index: worker(index)) for index in range(WORKERS)]
    )


def over_ray(options: dict[str, int]) -> Contestant:
    """Processes that exchange over Ray actors."""
    from benchmarks import ps_peers

    run = ps_peers.RayRun(options, WORKERS, rate())
    return Contestant("Ray", run.steps, run.pids, run.close, idle=True)


def rate() -> float:
    """The learning rate of our own server."""
    from reference_trainer.ps import tasks

    return tasks.rate(tasks.LEARNING_RATE, WORKERS)


class CommandedProcess:
    """A process that builds a trainer and then trains any number of steps on request."""

    def __init__(self, make: Callable[[], Callable[[int], Any]]) -> None:
        orders, self._order = os.pipe()
        self._answers, answer = os.pipe()

        def obey() -> None:
            os.close(self._order)
            steps = make()
            while order := os.read(orders, 8):
                began = time.perf_counter()
                steps(int.from_bytes(order, "little"))
                os.write(answer, f"{time.perf_counter() - began}\n".encode())

        self.pid = forked(obey)
        os.close(orders)
        os.close(answer)

    def tell(self, count: int) -> None:
        """Start this many steps."""
        os.write(self._order, count.to_bytes(8, "little"))

    def took(self) -> float:
        """Wait for the end of the steps, and return their seconds."""
        said = os.read(self._answers, 64)
        if not said:
            raise RuntimeError("a worker ended")
        return float(said)

    def close(self) -> None:
        """End the process."""
        end(self.pid)
        os.close(self._order)
        os.close(self._answers)


class WorkerProcess(Protocol):
    """A worker's process, whichever library started it."""

    pid: int

    def tell(self, count: int) -> None:
        """Start this many steps."""

    def took(self) -> float:
        """Wait for the end of the steps, and return their seconds."""

    def close(self) -> None:
        """End the process."""


def commanded(name: str, server: int, workers: Sequence[WorkerProcess], more: tuple[int, ...] = ()) -> Contestant:
    """A contestant whose processes are started here."""

    def steps(count: int) -> list[float]:
        for worker in workers:
            worker.tell(count)
        return [worker.took() for worker in workers]

    def close() -> None:
        for worker in workers:
            worker.close()
        for pid in (server, *more):
            end(pid)

    return Contestant(name, steps, [server, *more, *(worker.pid for worker in workers)], close)


def forked(run: Callable[[], None]) -> int:
    """Run this function in a forked process."""
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent()
        run()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


def end(pid: int) -> None:
    """End a process that was started here."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main())

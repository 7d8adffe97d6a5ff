"""Steps a second of the sparse model against Paddle's own parameter servers, asynchronously, in turns.

The same table, row numbers, samples, sizes and learning rate; each side starts with its own random weights. Paddle
comes from `$PREFLIGHT_PADDLE` (an interpreter that has a release with servers: 3.0.0 or older), else from .venv/paddle.
Paddle's asynchronous client passes pushes to its own threads and merges them; ours sends each one and receives the new
weights. Both read all dense weights before each step.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from benchmarks import ps_peers
from benchmarks.ps_steps import MODELS, ROOT, WORKERS, Contestant, commanded, our_contestant, rate, turns

TITLE = "sparse 1M x 16"
ROUNDS = 5
STEPS = 60
RELEASE = "2.6.2"
START_S = 60.0
_PEER = Path(__file__).with_name("paddle_peer.py")


def main() -> int:
    """Print one table; without a Paddle print that and return 0."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    interpreter = Path(os.environ.get("PREFLIGHT_PADDLE") or ROOT / ".venv" / "paddle" / RELEASE / "bin" / "python")
    if not interpreter.exists():
        print(f"parameter_server paddle: no {interpreter}; name one that has Paddle <= 3.0.0 in $PREFLIGHT_PADDLE")
        return 0
    import torch

    torch.set_num_threads(1)
    options = MODELS[TITLE][0]
    with tempfile.TemporaryDirectory(prefix="preflight-ps-") as folder:
        turns(
            TITLE, [lambda: our_contestant(options), lambda: paddle(interpreter, options, Path(folder))], STEPS, rounds
        )
    return 0


class Trainer:
    """A process of Paddle that trains on demand."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.pid = process.pid
        self._process = process
        self._orders: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout
        self.version = str(self._read_answer()["ready"])

    def tell(self, count: int) -> None:
        """Start this many steps."""
        self._orders.write(f"{count}\n")
        self._orders.flush()

    def took(self) -> float:
        """Wait for the end of the steps, and return their seconds."""
        return float(self._read_answer()["seconds"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _read_answer(self) -> dict[str, float | str]:
        if not select.select([self._answers], [], [], START_S)[0]:
            raise RuntimeError(f"a trainer of Paddle did not answer for {START_S:g} s")
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"a trainer of Paddle ended with {self._process.wait()}")
        found: dict[str, float | str] = json.loads(line)
        return found


def paddle(interpreter: Path, options: dict[str, int], folder: Path) -> Contestant:
    """Start one server and the trainers of Paddle, with the reference trainer's samples and row numbers."""
    config: dict[str, Any] = {
        "server": f"127.0.0.1:{ps_peers.free_port()}",
        "workers": WORKERS,
        "model": options,
        "rate": rate(),
    }

    def start(role: str, index: int) -> subprocess.Popen[str]:
        own = {**config, "role": role, "index": index, "data": str(folder / f"worker{index}.npz")}
        return subprocess.Popen(
            [str(interpreter), str(_PEER), json.dumps(own)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / f"{role}{index}.log").open("w"),
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
            text=True,
        )

    for index in range(WORKERS):
        _write(interpreter, options, index, folder / f"worker{index}.npz")
    server = start("server", 0)
    trainers: list[subprocess.Popen[str]] = []
    try:
        # Trainers of 3.0.0 do not wait for the server.
        _await_port(server, config["server"])
        trainers += [start("trainer", index) for index in range(WORKERS)]
        ready = [Trainer(process) for process in trainers]
    except RuntimeError:
        for process in (server, *trainers):
            process.kill()
        print("".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.log"))), file=sys.stderr)
        raise
    return commanded(f"paddle {ready[0].version}", server.pid, ready)


def _await_port(server: subprocess.Popen[str], endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            return
        time.sleep(0.2)
    raise RuntimeError(f"Paddle's server did not listen at {endpoint} within {START_S:g} s")


def _write(interpreter: Path, options: dict[str, int], index: int, path: Path) -> None:
    """Write one worker's samples in numpy's format, with the interpreter that has numpy."""
    from reference_trainer.ps import tasks

    task = tasks.Network(**options)
    features, ids, labels = task.samples(index)
    said = {"inputs": features.tolist(), "ids": ids.reshape(-1, 1).tolist(), "labels": labels.reshape(-1, 1).tolist()}
    script = (
        "import json, sys, numpy; d = json.load(sys.stdin); numpy.savez(sys.argv[1], "
        "inputs=numpy.array(d['inputs'], 'float32'), ids=numpy.array(d['ids'], 'int64'), "
        "labels=numpy.array(d['labels'], 'int64'))"
    )
    subprocess.run([str(interpreter), "-c", script, str(path)], input=json.dumps(said), text=True, check=True)


if __name__ == "__main__":
    sys.exit(main())

"""Steps a second of parameter servers with their parameters on the host and on a GPU, and workers on either.

Two workers and one server on this machine, asynchronously unless told otherwise, in all four placements. Needs an
NVIDIA GPU. Run: python -m benchmarks gpu_servers [async|sync|ssp|geo] [steps]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
MODELS: dict[str, dict[str, Any]] = {
    "784-256-10, 0.8 MB": {"network": {"inputs": 784, "hidden": 256, "slots": 0}},
    "4096-1024-10, 17 MB": {"network": {"inputs": 4096, "hidden": 1024, "slots": 0}},
    "26 rows of 1M x 16": {
        "network": {"inputs": 13, "hidden": 64, "classes": 2, "rows": 1000000, "width": 16, "slots": 26}
    },
}
PLACES = [("cpu", "cpu"), ("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")]
LIMIT_S = 60.0


def main() -> int:
    """Print a table for each model; exit with 1 if a run fails."""
    sys.path[:0] = [str(ROOT), str(ROOT / "checks"), str(ROOT / "rules")]
    words = sys.argv[1:]
    mode = next((word for word in words if not word.isdecimal()), "async")
    steps = next((int(word) for word in words if word.isdecimal()), 60)
    import torch

    torch.set_num_threads(1)
    failed = 0
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, mode {mode}, {WORKERS} workers, 1 server, {steps} steps")
    for title, model in MODELS.items():
        print(f"{title}\n  server  worker  steps/s   wait ms  compute ms  push ms")
        for server_device, worker_device in PLACES:
            words = [f"  {server_device:6}  {worker_device:6}"]
            found = run(mode, model, steps, server_device, worker_device)
            if isinstance(found, str):
                failed = 1
                words.append(found)
            else:
                waits, computes, pushes = found
                total = sum(found)
                words.append(f"{1 / total:7.1f}  {waits * 1e3:8.2f}  {computes * 1e3:10.2f}  {pushes * 1e3:7.2f}")
            print("  ".join(words), flush=True)
    return failed


def run(mode: str, model: dict[str, Any], steps: int, server_device: str, worker_device: str) -> list[float] | str:
    """The median seconds of waiting, computing and pushing in a step of worker 0, or why there are none."""
    from tests.ports import free_port

    common = {
        "servers": 1,
        "workers": WORKERS,
        "server_endpoints": [f"127.0.0.1:{free_port()}"],
        "listen_host": "127.0.0.1",
        "mode": mode,
        "steps": steps,
        "model": model,
        "server_device": server_device,
        "worker_device": worker_device,
        "timeout_s": LIMIT_S / 2,
        "secret": "00" * 32,
        "run_id": "benchmark",
    }
    asked = [{**common, "rank": 0, "role": "server", "index": 0, "endpoint": common["server_endpoints"][0]}]
    asked += [{**common, "rank": 1 + index, "role": "worker", "index": index} for index in range(WORKERS)]
    started = [_start(params) for params in asked]
    ends, texts = time.monotonic() + LIMIT_S, [b""] * len(started)
    for number, (pid, pipe) in enumerate(started):
        os.set_blocking(pipe, False)
        while time.monotonic() < ends:
            try:
                data = os.read(pipe, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            if not data:
                break
            texts[number] += data
        else:
            os.kill(pid, 9)
        os.waitpid(pid, 0)
    answers = [json.loads(text) if text else {"error": "no answer in time"} for text in texts]
    errors = [str(answer["error"]) for answer in answers if "error" in answer]
    if errors:
        return errors[0]
    report = answers[1]
    if report["mismatches"]:
        return f"wrong: {report['mismatches'][0]}"
    return [statistics.median(report[name][5:]) for name in ("pull_s", "compute_s", "push_s")]


def _start(params: dict[str, Any]) -> tuple[int, int]:
    """Fork one process; this one has not used CUDA."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    from reference_trainer.ps.server import server
    from reference_trainer.ps.worker import worker

    try:
        answer = asdict((server if params["role"] == "server" else worker)(params, lambda event: None))
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    text = json.dumps(answer).encode()
    while text:
        text = text[os.write(writing, text) :]
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

"""NCCL ranks of the smoke run on one GPU: phases, times, oracle. Needs only an NVIDIA GPU and torch with NCCL.

Several ranks share the GPU, as `reference_trainer/common/framework.py` lets them. Then the times are not bandwidth
measurements. Run: python benchmarks/gpu_smoke.py [1,2,4] [steps]
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: Several ranks on one GPU may hang forever (NCCL's own documentation), so this is the longest wait.
LIMIT_S = 120.0


def main() -> int:
    """Run each number of ranks; exit with 1 if one of them did not get the correct result."""
    if "--rank" in sys.argv:
        return run_rank(json.loads(sys.argv[sys.argv.index("--rank") + 1]))
    sys.path[:0] = [str(ROOT), str(ROOT / "checks"), str(ROOT / "rules")]
    worlds = [int(word) for word in (sys.argv[1] if len(sys.argv) > 1 else "1,2,4").split(",")]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    show_gpus()
    nccl = versions()
    good = True
    for world_size in worlds:
        good = run_world(world_size, steps, nccl) and good
    print("all results exact" if good else "NOT all results exact")
    return 0 if good else 1


def show_gpus() -> None:
    """Print what NVML reports, using the probe of `preflight check`."""
    from preflight.agent.wire import ProbeUnavailable
    from preflight_checks.probes.gpus import gpus

    try:
        seen = gpus({})
    except ProbeUnavailable as error:
        print(f"NVML: {error.kind}: {error.reason}")
        return
    print(
        f"NVML: driver {seen.driver or '-'}, kernel module {seen.kernel_driver or '-'}, "
        f"CUDA {seen.cuda_driver or '-'} {seen.problem} {seen.detail}".rstrip()
    )
    for gpu in seen.gpus:
        memory = f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else "? GiB"
        print(f"  GPU {gpu.index}: {gpu.name}, {memory}, capability {gpu.compute_capability} {gpu.problem}".rstrip())


def versions() -> tuple[int, ...]:
    """Print torch, CUDA and NCCL; returns NCCL's version. A separate process, so that no CUDA context stays here."""
    code = "import torch; print(torch.__version__, torch.version.cuda, *torch.cuda.nccl.version())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if said.returncode:
        raise SystemExit(f"torch with NCCL is needed: {said.stderr.strip().splitlines()[-1:]}")
    torch, cuda, *nccl = said.stdout.split()
    print(f"torch {torch}, CUDA {cuda}, NCCL {'.'.join(nccl)}, Python {sys.version.split()[0]}")
    return tuple(int(part) for part in nccl)


def run_world(world_size: int, steps: int, nccl: tuple[int, ...]) -> bool:
    """Start the ranks, wait at most LIMIT_S and print a table; return whether every rank was exact."""
    from reference_trainer.common.framework import environment

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.monotonic()
    running: list[subprocess.Popen[str]] = []
    heard: list[list[dict[str, Any]]] = [[] for _ in range(world_size)]
    threads: list[threading.Thread] = []
    for rank in range(world_size):
        params = {
            "rank": rank,
            "world_size": world_size,
            "local_rank": rank,
            "local_world_size": world_size,
            "master_addr": "127.0.0.1",
            "master_port": port,
            "backend": "nccl",
            "steps": steps,
            "timeout_s": LIMIT_S,
        }
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--rank", json.dumps(params)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment(rank, world_size, nccl)},
            start_new_session=True,
        )
        running.append(child)
        threads.append(threading.Thread(target=_listen, args=(child, heard[rank]), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(max(0.0, LIMIT_S - (time.monotonic() - began)))
    for child in running:
        if child.poll() is None:
            try:
                child.wait(5.0)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    mode = ",".join(f"{k}={v}" for k, v in environment(0, world_size, nccl).items() if "RANK" in k or "HOSTID" in k)
    print(f"\n{world_size} ranks {mode}: {time.monotonic() - began:.1f} s")
    exact = [show_rank(rank, words) for rank, words in enumerate(heard)]
    return all(exact)


def _listen(child: subprocess.Popen[str], words: list[dict[str, Any]]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):
            words.append(json.loads(line))


def show_rank(rank: int, words: list[dict[str, Any]]) -> bool:
    """Print one rank's phases and results; return whether all results are correct."""
    ends = [word for word in words if "report" in word or "error" in word]
    if not ends or "error" in ends[-1]:
        steps = [word for word in words if word.get("event") in ("phase", "entering", "problem")]
        last = {k: v for k, v in steps[-1].items() if k in ("what", "phase", "error")} if steps else "nothing"
        why = ends[-1]["error"] if ends else "killed at the limit"
        print(f"  rank {rank}: did not finish; last phase {last}; {why}")
        return False
    report = ends[-1]["report"]
    phases = "  ".join(f"{name} {at:.2f}" for name, at in report["phase_at_s"].items())
    print(f"  rank {rank} {report['device']}, NCCL {report['nccl_version']}: {phases}")
    step_ms = sorted(report["step_s"])[len(report["step_s"]) // 2] * 1e3
    print(
        f"    {report['operations']} results compared, {len(report['mismatches'])} wrong, "
        f"unsupported {report['unsupported'] or 'none'}; "
        f"loss {report['losses'][0]:.3f} -> {report['losses'][-1]:.3f}, median step {step_ms:.2f} ms; "
        f"digests {len(set(report['digests']))} of {len(report['digests'])} ranks; "
        f"to one process {report['difference_to_one_process']} {report['teardown']}".rstrip()
    )
    sweep, nccl = report["sweep"], report["transport"]["nccl"]
    speeds = ", ".join(
        f"{t['operation']} {t['bytes_per_s'] / 1e9:.2f} GB/s" for t in sweep["timed"] if t["message_bytes"] > 1 << 19
    )
    via = ", ".join(f"{kind} x{number}" for kind, number in nccl["via"].items())
    print(f"    {report['trainer']}; {speeds or sweep['skipped']}")
    gpu = report["gpu"]
    alone = ", ".join(f"{item['what']} {item['best']:.4g}" for item in gpu["speeds"]) or gpu["skipped"]
    print(
        f"    the GPU by itself in {gpu['took_s']:.1f} s: {alone}; known bits {gpu['exact']['turns']}, "
        f"{len(gpu['exact']['wrong'])} wrong; {gpu['notes'] or 'no notes'}"
    )
    print(f"    NCCL's network {nccl['network'] or '-'}; {via or 'no channels'}")
    for mismatch in report["mismatches"][:4]:
        print(f"    WRONG {mismatch}")
    first_to_last = report["losses"][-1] < report["losses"][0]
    return not report["mismatches"] and len(set(report["digests"])) == 1 and first_to_last and not report["unmoved"]


def run_rank(params: dict[str, Any]) -> int:
    """Run one rank in this child process, and write its events and its report as JSON lines."""
    sys.path[:0] = [str(ROOT)]
    from dataclasses import asdict

    from reference_trainer.collective import rank as collective

    def tell(data: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(data) + "\n")
        sys.stdout.flush()

    try:
        tell({"report": asdict(collective.rank(params, tell))})
    except Exception as error:
        tell({"error": f"{type(error).__name__}: {error}"})
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

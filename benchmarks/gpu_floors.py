"""The speed of one GPU as the smoke run measures it: alone, beside a busy process, and with little memory left.

Needs only an NVIDIA GPU and torch. Writes one JSON document a measurement, which a test or `preflight` can judge.
Run: python benchmarks/gpu_floors.py [alone,busy,full,flipped] [output.jsonl]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: The neighbour multiplies matrices until it is ended, or this long.
BUSY = """
import sys, time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
ends = time.monotonic() + 60
torch.cuda.synchronize(); print("busy", flush=True)
while time.monotonic() < ends:
    for _ in range(20):
        torch.mm(a, a)
    torch.cuda.synchronize()
"""
#: The neighbour holds all but 800 MiB of the memory.
FULL = """
import time, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - (800 << 20), dtype=torch.uint8, device="cuda")
print("full", flush=True); time.sleep(60)
"""


def main() -> int:
    """Run the named measurements; exit with 1 if one of them failed."""
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else ["alone", "busy"]
    if names == ["--one"]:
        return measure(flip="--flip" in sys.argv)
    lines = []
    for name in names:
        neighbour = {"busy": BUSY, "full": FULL}.get(name)
        beside = None
        if neighbour is not None:
            beside = subprocess.Popen([sys.executable, "-c", neighbour], stdout=subprocess.PIPE, text=True)
            assert beside.stdout is not None
            beside.stdout.readline()
        try:
            flip = ["--flip"] if name == "flipped" else []
            began = time.monotonic()
            ran = subprocess.run(
                [sys.executable, __file__, "--one", *flip], stdout=subprocess.PIPE, text=True, timeout=100, check=False
            )
            document = json.loads(ran.stdout) if ran.returncode == 0 else {"error": ran.returncode}
        finally:
            if beside is not None:
                beside.kill()
                beside.wait()
        document["name"] = name
        lines.append(json.dumps(document))
        show(name, document, time.monotonic() - began)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text("\n".join(lines) + "\n", "utf-8")
    return 0 if all("report" in json.loads(line) for line in lines) else 1


def show(name: str, document: dict[str, Any], seconds: float) -> None:
    """Print one measurement."""
    if "report" not in document:
        print(f"{name}: failed, {document}")
        return
    report = document["report"]
    print(f"{name}: {report['model']}, torch {document['torch']}, {seconds:.1f} s, of it {report['took_s']} s measured")
    for item in report["speeds"]:
        print(f"  {item['what']:15} best {item['best']:9.1f}  median {item['median']:9.1f}  size {item['size']}")
    print(f"  notes {report['notes']} skipped {report['skipped']!r}")
    print(f"  exact {report['exact']['turns']}, {len(report['exact']['wrong'])} wrong {report['exact']['wrong'][:1]}")
    print(f"  state {report['state']}")
    print(f"  others before {report['before']}, after {report['after']}", flush=True)


def measure(*, flip: bool) -> int:
    """Measure in this process, and write the report as JSON.

    Args:
        flip: flip one bit of every product, to see that it is found.
    """
    sys.path[:0] = [str(ROOT)]
    import torch

    from reference_trainer.collective import gpu_speed
    from reference_trainer.common.progress import Progress

    if flip:
        real = torch.mm

        def wrong(*args: Any, **options: Any) -> Any:
            product = real(*args, **options)
            product[17, -1] += 1
            return product

        torch.mm = wrong
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    report = gpu_speed.measure(torch, Progress(lambda data: None, rank=0), device, lambda run: run())
    sys.stdout.write(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "report": asdict(report)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

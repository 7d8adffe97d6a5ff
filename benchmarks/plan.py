"""Plan of one job, compared with lint of it, and plan of a job with 10,000 ranks. Budgets: 400 ms and 1 s for the whole
command.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.stopwatch import processes, table

ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples" / "megatron-slurm" / "good"
COMMAND = str(Path(sys.executable).parent / "preflight")
#: Hosts of the large job, with eight slots each.
_HOSTS = 1250


def main() -> None:
    """Print one table."""
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder)
        (large / "hostfile").write_text("".join(f"node{number} slots=8\n" for number in range(_HOSTS)))
        (large / "run.sh").write_text("deepspeed --hostfile hostfile --master_port 29500 train.py --lr 0.1\n")
        (large / "train.py").write_text("import torch\n")
        (large / "torch.sh").write_text(
            f"torchrun --nnodes {_HOSTS} --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint node1:29400 train.py\n"
        )
        commands = {
            "python -c 'import click, pydantic, yaml'": (sys.executable, "-c", "import click, pydantic, yaml"),
            "preflight lint": (COMMAND, "lint", "--no-cache", str(JOB)),
            "preflight plan": (COMMAND, "plan", str(JOB)),
            "preflight plan -o json": (COMMAND, "plan", str(JOB), "-o", "json"),
            "plan of 10,000 ranks by options": (COMMAND, "plan", str(large / "torch.sh")),
            "plan of 10,000 ranks in a hostfile": (COMMAND, "plan", str(large / "run.sh")),
            "the same -o json": (COMMAND, "plan", str(large / "run.sh"), "-o", "json"),
        }
        table(
            "plan, as a command",
            processes(commands, rounds=9),
            against="preflight lint",
            note="budget 400 ms, and 1 s of 10,000 ranks",
        )


if __name__ == "__main__":
    main()

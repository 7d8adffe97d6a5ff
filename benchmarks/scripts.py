"""Lint of a folder of 500 launch scripts, generated after public ones, compared with only parsing them."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from benchmarks import parse_baseline
from benchmarks.stopwatch import calls, table

COUNT = 500


def main() -> None:
    """Write the scripts, print the table."""
    from preflight import lint

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, COUNT)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        lines = sum(path.read_bytes().count(b"\n") for path in files)
        found = calls(
            {"parse them alone": lambda: parse_baseline.parse(files), "lint": lambda: lint([root], root=root)}, rounds=3
        )
        table(f"lint of {len(files)} files, {lines} lines", found, against="parse them alone")


def write(root: Path, count: int) -> None:
    """Fill `root` with `count` scripts, a training script and a configuration; the same ones every time."""
    chooser = random.Random(500)
    (root / "train.py").write_text(_TRAIN)
    (root / "ds_config.json").write_text('{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4}\n')
    for number in range(count):
        folder = root / f"team{number % 20:02}"
        folder.mkdir(exist_ok=True)
        name, text = chooser.choice((_sbatch, _torchrun, _deepspeed))(chooser, number)
        (folder / name).write_text(text)


def _sbatch(chooser: random.Random, number: int) -> tuple[str, str]:
    nodes, gpus = chooser.choice((1, 2, 4, 8)), chooser.choice((4, 8))
    arguments = "\n".join(f"    --option-{index} {chooser.randint(1, 4096)}" for index in range(chooser.randint(5, 40)))
    return (
        f"job{number}.sbatch",
        f"""#!/bin/bash
#SBATCH --job-name=train{number}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --time=24:00:00
set -euo pipefail
export NCCL_DEBUG=${{NCCL_DEBUG:-WARN}}
export OMP_NUM_THREADS=8
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
ARGS=(
{arguments}
)
if [[ -n "${{RESUME:-}}" ]]; then
    ARGS+=(--resume "$RESUME")
fi
srun torchrun \\
    --nnodes=$SLURM_NNODES \\
    --nproc_per_node={gpus} \\
    --rdzv_backend=c10d \\
    --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT \\
    ../train.py "${{ARGS[@]}}"
""",
    )


def _torchrun(chooser: random.Random, number: int) -> tuple[str, str]:
    return (
        f"run{number}.sh",
        f"""#!/usr/bin/env bash
GPUS=${{GPUS:-{chooser.choice((1, 2, 4, 8))}}}
PORT=${{PORT:-{chooser.randint(20000, 30000)}}}
NNODES=${{NNODES:-1}}
for seed in 1 2 3; do
    python -m torch.distributed.launch --nnodes=$NNODES --node_rank=${{NODE_RANK:-0}} \\
        --master_addr=${{MASTER_ADDR:-127.0.0.1}} --nproc_per_node=$GPUS --master_port=$PORT \\
        $(dirname "$0")/../train.py --seed $seed ${{@:3}}
done
""",
    )


def _deepspeed(chooser: random.Random, number: int) -> tuple[str, str]:
    return (
        f"ds{number}.sh",
        f"""#!/bin/bash
MODEL=$1
case $MODEL in
    small) BATCH={chooser.choice((4, 8))} ;;
    *) BATCH={chooser.choice((16, 32))} ;;
esac
deepspeed --num_gpus={chooser.choice((2, 4, 8))} ../train.py \\
    --deepspeed --deepspeed_config ../ds_config.json --batch $BATCH 2>&1 | tee log.txt
""",
    )


_TRAIN = """import argparse
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
sampler = DistributedSampler(range(1024))
loader = DataLoader(range(1024), batch_size=4, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        model(batch)
"""


if __name__ == "__main__":
    main()

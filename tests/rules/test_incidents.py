"""Failures that people reported, each rebuilt as the smallest job of our own that holds the same fault.

Read as `preflight lint` reads a folder. The expected findings are all there may be above info: first places, and
what each rule says of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from preflight import api
from preflight.outcome import Severity

BASH = "#!/bin/bash\n"


@dataclass(frozen=True)
class Incident:
    """Where it was reported, the files, and the findings: rule, file, line, severity.

    `together`: the files are named on the command line, so that they are certainly one job.
    """

    source: str
    files: dict[str, str]
    findings: frozenset[tuple[str, str, int, str]]
    together: bool = False


def incident(
    source: str, files: dict[str, str], *findings: tuple[str, str, int, str], together: bool = False
) -> Incident:
    return Incident(source, files, frozenset(findings), together)


INCIDENTS = (
    # How ranks reach each other.
    incident(
        "NVIDIA/nccl#286",
        {
            "run.sh": BASH + "export NCCL_SOCKET_IFNAME=lo\n"
            "torchrun --nnodes=3 --node_rank=$1 --master_addr=10.4.0.11 --nproc_per_node=2 fit.py\n"
        },
        ("IFN001", "run.sh", 2, "error"),
    ),
    incident(
        "PaddlePaddle/Paddle#37116",
        {"go.sh": BASH + "python -m paddle.distributed.launch --ips=127.0.0.1,172.20.0.9 --devices=0,1 fit.py\n"},
        ("RDV001", "go.sh", 2, "error"),
    ),
    incident(
        "thu-coai/CDial-GPT#103",
        {"run.sh": BASH + "torchrun --nproc_per_node=2 --master_port 70001 chat.py\n"},
        ("PRT001", "run.sh", 2, "error"),
    ),
    incident(
        "hiyouga/LlamaFactory#7326",
        {
            f"node{rank}.sh": BASH
            + f"torchrun --nnodes=3 --node_rank={rank} --nproc_per_node=8 --master_addr=172.20.0.{rank + 1} fit.py\n"
            for rank in range(3)
        },
        ("RDV004", "node0.sh", 2, "warning"),
    ),
    incident(
        "PaddlePaddle/ERNIE#330",
        {
            "node0.sh": BASH + "torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=head01 tune.py\n",
            "node1.sh": BASH + "torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=head01 tune.py\n",
        },
        ("RDV005", "node1.sh", 2, "error"),
        together=True,
    ),
    incident(
        "stas00/ml-engineering orchestration/slurm/users.md",
        {
            "job.slurm": BASH + "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\n"
            'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
            'START="torchrun --nnodes 4 --nproc_per_node 8 --node_rank $SLURM_PROCID --master_addr $head"\n'
            'srun bash -c "$START fit.py"\n'
        },
        ("RDV003", "job.slurm", 6, "error"),
    ),
    # How many are started, and where.
    incident(
        "pytorch/pytorch#67547",
        {
            "job.sbatch": BASH + "#SBATCH -N 3\n#SBATCH --ntasks=6\n#SBATCH --gres=gpu:4\n"
            'nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))\n'
            "srun torchrun --nnodes 3 --nproc_per_node 4 --rdzv_id $SLURM_JOB_ID --rdzv_backend c10d"
            " --rdzv_endpoint ${nodes[0]}:29511 fit.py\n"
        },
        ("SLU001", "job.sbatch", 3, "error"),
    ),
    incident(
        "k2-fsa/icefall#2067",
        {
            "job.sbatch": BASH + "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=2\n"
            "PER_NODE=4\n"
            "head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)\n"
            "srun torchrun --nnodes=2 --nproc_per_node=$PER_NODE --rdzv_backend=c10d --rdzv_endpoint=$head:6001 t.py\n"
        },
        ("GPU001", "job.sbatch", 7, "error"),
    ),
    incident(
        "wenwenyu/PICK-pytorch#14",
        {"run.sh": BASH + "export CUDA_VISIBLE_DEVICES=2,3,5\ntorchrun --nproc_per_node=8 read.py\n"},
        ("GPU001", "run.sh", 3, "error"),
    ),
    incident(
        "Lightning-AI/pytorch-lightning#4389",
        {"job.sbatch": BASH + "#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\nsrun python fit.py\n"},
        ("SLU002", "job.sbatch", 4, "warning"),
    ),
    incident(
        "open-mpi/ompi#3133",
        {"hosts": "w0 slots=2\nw1 slots=2\n", "run.sh": BASH + "mpirun -np 6 --hostfile hosts python fit.py\n"},
        ("WLD002", "run.sh", 2, "error"),
    ),
    incident(
        "pytorch/pytorch#85604",
        {"run.sh": BASH + "torchrun --standalone --nproc_per_node=4 fit.py --local_rank 0\n"},
        ("LRK003", "run.sh", 2, "warning"),
    ),
    incident(
        "PaddlePaddle/Paddle#47326",
        {"worker.sh": BASH + "fleetrun --master=10.9.0.2:8090 --nnodes=2 --trainer_num =1 ctr.py\n"},
        ("ARG001", "worker.sh", 2, "error"),
    ),
    # Batch sizes and parallel sizes.
    incident(
        "CASIA-LMC-Lab/AnomalyGPT#19",
        {
            "ds.json": '{\n  "train_batch_size": 24,\n  "train_micro_batch_size_per_gpu": 2,\n'
            '  "gradient_accumulation_steps": 3\n}\n',
            "run.sh": BASH + "deepspeed --include localhost:1 tune.py --deepspeed_config ds.json\n",
        },
        ("BAT001", "ds.json", 2, "error"),
    ),
    incident(
        "deepspeedai/DeepSpeed#3982",
        {
            "ds.json": '{\n  "train_micro_batch_size_per_gpu": 2,\n  "gradient_accumulation_steps": 1\n}\n',
            "tune.py": "from transformers import TrainingArguments\n"
            "args = TrainingArguments('out', per_device_train_batch_size=2, gradient_accumulation_steps=4,\n"
            "                         deepspeed='ds.json')\n",
        },
        ("BAT003", "tune.py", 2, "warning"),
    ),
    incident(
        "huggingface/transformers#27830",
        {
            "ds.json": '{\n  "train_micro_batch_size_per_gpu": 2\n}\n',
            "run.sh": BASH + "deepspeed --num_gpus 4 classify.py --do_train --deepspeed ds.json\n",
        },
        ("BAT003", "ds.json", 2, "warning"),
    ),
    incident(
        "hiyouga/LlamaFactory#1116",
        {
            "ds.json": '{\n  "train_micro_batch_size_per_gpu": "auto",\n  "gradient_accumulation_steps": "4"\n}\n',
            "run.sh": BASH + "deepspeed --num_gpus 2 tune.py --deepspeed ds.json --gradient_accumulation_steps 4\n",
        },
        ("BAT002", "ds.json", 3, "error"),
    ),
    incident(
        "NVIDIA/Megatron-LM megatron/training/arguments.py",
        {
            "run.sh": BASH + "torchrun --nnodes=1 --nproc_per_node=8 pretrain_gpt.py \\\n"
            "    --tensor-model-parallel-size 3 --pipeline-model-parallel-size 1\n"
        },
        ("PAR001", "run.sh", 3, "error"),
    ),
    # The script and the way it is started.
    incident(
        "huggingface/pytorch-image-models#1724",
        {
            "fit.py": "import argparse\np = argparse.ArgumentParser()\n"
            "p.add_argument('--local_rank', type=int, default=0)\nargs = p.parse_args()\n",
            "run.sh": BASH + "python -m torch.distributed.launch --nproc_per_node=$1 fit.py\n",
        },
        ("LRK001", "fit.py", 3, "warning"),
    ),
    incident(
        "hkchengrex/XMem#18",
        {
            "fit.py": "import argparse\nimport os\np = argparse.ArgumentParser()\np.add_argument('--stage')\n"
            "args = p.parse_args()\nlocal_rank = int(os.environ['LOCAL_RANK'])\n",
            "run.sh": BASH + "python -m torch.distributed.launch --nproc_per_node=2 fit.py --stage 0\n",
        },
        ("LRK002", "run.sh", 2, "error"),
    ),
    incident(
        "huggingface/transformers#4398",
        {
            "fit.py": "from torch.utils.data import DataLoader, DistributedSampler\n"
            "sampler = DistributedSampler(data)\nloader = DataLoader(data, sampler=sampler)\n"
            "for epoch in range(20):\n    for batch in loader:\n        step(batch)\n"
        },
        ("DAT001", "fit.py", 2, "warning"),
    ),
    incident(
        "ultralytics/ultralytics#3343",
        {
            "fit.py": "import torch.distributed as dist\ndist.init_process_group('nccl')\n"
            "if dist.get_rank() == 0:\n    build_dataset(root)\ndist.barrier()\n"
        },
        ("TMO001", "fit.py", 4, "warning"),
    ),
    # Variables.
    incident(
        "cocktailpeanut/fluxgym#283",
        {"run.sh": BASH + "export NCCL_P2P5ISABLE=1\ntorchrun --nproc_per_node=2 fit.py\n"},
        ("ENV001", "run.sh", 2, "warning"),
    ),
    # Parameter servers.
    incident(
        "PaddlePaddle/Paddle#9426",
        {
            "server.sh": BASH + "export PADDLE_PSERVERS_IP_PORT_LIST=172.20.1.1:7000,172.20.1.2:7000\n"
            "export PADDLE_TRAINERS_NUM=2\n"
            "TRAINING_ROLE=PSERVER POD_IP=172.20.1.4 PADDLE_PORT=7000 python ctr.py\n"
        },
        ("PPS004", "server.sh", 4, "error"),
    ),
    incident(
        "PaddlePaddle/Paddle#16138",
        {
            "trainer.sh": BASH + "export PADDLE_PSERVER_ENDPOINTS=172.20.1.1:7000,172.20.1.2:7000\n"
            "PADDLE_TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0 PADDLE_CURRENT_ENDPOINT=172.20.1.2:7000 python ctr.py\n"
        },
        ("PPS004", "trainer.sh", 3, "warning"),
    ),
    incident(
        "PaddlePaddle/Paddle#3659",
        {
            "trainer.sh": BASH + "export PADDLE_PSERVERS_IP_PORT_LIST=172.20.1.1:7000\nexport PADDLE_TRAINERS_NUM=3\n"
            "TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=3 python ctr.py\n"
        },
        ("PPS002", "trainer.sh", 4, "error"),
    ),
)


@pytest.mark.parametrize("case", INCIDENTS, ids=lambda case: case.source.replace("/", "-"))
def test_incident(case: Incident, tmp_path: Path) -> None:
    for name, text in case.files.items():
        (tmp_path / name).write_text(text)
    report = api.lint([tmp_path / name for name in case.files] if case.together else [tmp_path], root=tmp_path)
    found = {
        (f.id, f.locations[0].path, f.locations[0].line, f.severity.value)
        for f in report.findings
        if f.severity is not Severity.INFO
    }
    assert found == case.findings, [f.message for f in report.findings]
    assert report.exit_code == (1 if any(f[3] == "error" for f in case.findings) else 0)

"""Standard input without a name: its kind by its content, and none where the content does not show it."""

from __future__ import annotations

import pytest

from preflight.plugins import registry
from preflight.sources.discovery.assemble import name_by_content

_DEEPSPEED = '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}'
_TORCHTITAN = '[model]\nname = "llama3"\n[training]\nlocal_batch_size = 2\n[parallelism]\ntensor_parallel_degree = 2\n'


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\n", "stdin"),
        ('{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}}', "stdin.json"),
        ("#!/bin/bash\n#SBATCH -N 2\nsrun python train.py\n", "stdin"),
        ("torchrun --nnodes=2 --nproc_per_node=8 train.py\n", "stdin.sh"),
        (_DEEPSPEED, "stdin.json"),
        (_TORCHTITAN, "stdin.toml"),
        ("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 2\n", "stdin.yaml"),
        ("import torch.distributed as dist\ndist.init_process_group('nccl')\n", "stdin.py"),
        ("# syntax=1\nFROM pytorch/pytorch:2.1\nRUN pip install deepspeed\n", "stdin.dockerfile"),
    ],
    ids=range(9),
)
def test_the_kind_is_recognised(content: str, name: str) -> None:
    assert name_by_content(content.encode(), registry.sources()) == name


@pytest.mark.parametrize(
    "content", [b"", b"hello world\n", b"\0\1", b"{" * 50_000, b"[" * 50_000, b"x = " + b"9" * 9000]
)
def test_a_content_that_shows_nothing_has_no_kind(content: bytes) -> None:
    assert name_by_content(content, registry.sources()) == "stdin"

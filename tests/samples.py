"""One good file for every built-in source, and what it names: the seeds of what is damaged, mutated and made large.

A source that has none is a failing test (`tests/test_malformed.py`), so that a new one joins all of those tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """A file that the source recognises.

    `more` can stand between start and end any number of times (`{n}` is replaced by a number), and gives a larger file
    of the same kind. `beside` are files it names.
    """

    path: str
    start: str
    more: str
    beside: dict[str, str] = field(default_factory=dict)
    end: str = ""

    @property
    def text(self) -> str:
        """The good file."""
        return self.start + self.end

    def large(self, characters: int) -> str:
        """A file of the same kind with about so many characters."""
        count = max(0, characters - len(self.text)) // len(self.more) + 1
        return self.start + "".join(self.more.replace("{n}", str(number)) for number in range(count)) + self.end


_TRAIN = """import os

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("nccl")
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    if dist.get_rank() == 0:
        torch.save(model, "last.pt")
"""

SAMPLES: dict[str, Sample] = {
    "shell": Sample(
        "run.sh",
        """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
NODES=${SLURM_NNODES:-2}
ARGS=(--deepspeed --deepspeed_config ds.json)
if [ -n "$DEBUG" ]; then export NCCL_DEBUG=INFO; fi
cat > hosts <<EOF
node1 slots=4
EOF
for rank in 0 1; do
    srun torchrun --nnodes=$NODES --nproc_per_node=4 --node_rank=$rank --master_port=$((29500 + rank)) \\
        train.py "${ARGS[@]}" | tee log.txt
done
""",
        'export VALUE_{n}="$(echo ${NODES:-{n}} | tr a b)"\n',
        {"train.py": _TRAIN, "ds.json": '{"train_batch_size": 64}'},
    ),
    "kubernetes": Sample(
        "job.yaml",
        """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  nprocPerNode: "4"
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          containers:
            - name: pytorch
              image: pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime
              command: [bash, -c, "torchrun --nnodes=2 --nproc_per_node=4 train.py"]
              resources: {limits: {nvidia.com/gpu: 4}}
""",
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c{n}}\ndata: {key: value}\n",
    ),
    "compose": Sample(
        "compose.yaml",
        """services:
  worker0:
    image: pytorch/pytorch:2.1.0
    command: torchrun --nnodes=2 --node_rank=0 --master_addr=worker0 train.py
    environment: {NCCL_DEBUG: INFO}
""",
        "  other{n}: {image: alpine, command: [sleep, '1']}\n",
    ),
    "dockerfile": Sample(
        "Dockerfile",
        """FROM pytorch/pytorch:2.1.0-cuda12.1-cudnn8-devel
ENV NCCL_DEBUG=INFO
RUN pip install torch==2.3.0
CMD ["torchrun", "--nproc_per_node=8", "train.py"]
""",
        "RUN echo {n}\n",
    ),
    "deepspeed": Sample(
        "ds_config.json",
        """{
  // comments are taken
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
  "fp16": {"enabled": "auto"}
""",
        ', "key_{n}": [{n}, {"deeper": null}]\n',
        end="}\n",
    ),
    "accelerate": Sample(
        "accelerate.yaml",
        """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}
machine_rank: 0
mixed_precision: bf16
num_machines: 2
num_processes: 16
""",
        "key_{n}: value\n",
    ),
    "requirements": Sample("requirements.txt", "torch==2.1.0\ndeepspeed>=0.14\n-r base.txt\n", "package-{n}==1.{n}\n"),
    "paddlerec": Sample(
        "config.yaml",
        """runner:
  train_data_dir: "data"
  use_gpu: True
  train_batch_size: 2
  epochs: 3
  model_save_path: "output"
  sync_mode: "async"
hyper_parameters:
  optimizer: {class: Adam, learning_rate: 0.001}
  sparse_feature_number: 1000001
""",
        "  key_{n}: {n}\n",
    ),
    "trainer": Sample(
        "train.yaml",
        """model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft
do_train: true
finetuning_type: full
deepspeed: ds.json
dataset: identity
template: llama3
output_dir: out
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-4
""",
        "key_{n}: value\n",
        {"ds.json": '{"train_batch_size": 64}'},
    ),
    "gpt-neox": Sample(
        "neox.yml",
        """{
  "pipe_parallel_size": 1,
  "model_parallel_size": 2,
  "num_layers": 12,
  "hidden_size": 768,
  "num_attention_heads": 12,
  "seq_length": 2048,
  "max_position_embeddings": 2048,
  "train_micro_batch_size_per_gpu": 4,
  "zero_optimization": {"stage": 1}
""",
        ', "key_{n}": [{n}, {"deeper": null}]\n',
        end="}\n",
    ),
    "lightning": Sample(
        "conf.yaml",
        """trainer:
  devices: 4
  num_nodes: 2
  precision: bf16-mixed
model:
  micro_batch_size: 4
  global_batch_size: 32
  tensor_model_parallel_size: 2
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "composer": Sample(
        "llm.yaml",
        """max_seq_len: 2048
global_train_batch_size: 256
device_train_microbatch_size: 4
precision: amp_bf16
model: {name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12}
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "index": Sample("train.list", "part-000\npart-001\n", "part-{n}\n"),
    "dotenv": Sample(".env", "# of all ranks\nNCCL_DEBUG=INFO\nexport MASTER_PORT='29500'\n", 'VALUE_{n}="{n}"\n'),
    "makefile": Sample(
        "Makefile",
        "NODES ?= 2\ntrain: data\n\ttorchrun --nnodes=$(NODES) --nproc_per_node=4 train.py\n",
        "target{n}: target\n\techo {n} $(NODES)\n",
    ),
    "hostfile": Sample("hostfile", "node1 slots=4\nnode2 slots=4\n", "host{n} slots=8\n"),
    "python": Sample("train.py", _TRAIN, "def function_{n}(a, b):\n    return loader.load(a, b=[{n}, None])\n\n\n"),
}

"""One good file for every built-in source, and the files it names: the seeds of damaged, mutated and large files.

`tests/test_malformed.py` fails for a source without a sample, so that new sources join all of those tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """A file that the source recognises.

    `more` can be repeated between start and end (`{n}` is replaced by a number) to give a larger file of the
    same kind. `beside` holds the files that it names.
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
        """A file of the same kind with about this many characters."""
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
    "skypilot": Sample(
        "sky.yaml",
        """num_nodes: 2
resources:
  accelerators: H100:8
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=4 --node_rank=$SKYPILOT_NODE_RANK train.py
""",
        "  echo {n} $SKYPILOT_NUM_NODES\n",
    ),
    "dstack": Sample(
        "train.dstack.yml",
        """type: task
nodes: 2
resources: {gpu: "H100:8"}
commands:
  - torchrun --nnodes=$DSTACK_NODES_NUM --nproc_per_node=4 --node_rank=$DSTACK_NODE_RANK train.py
""",
        "  - echo {n} $DSTACK_NODES_NUM\n",
    ),
    "mcli": Sample(
        "mcli.yaml",
        """compute: {gpus: 16, cluster: r1}
image: mosaicml/llm-foundry:latest
parameters:
  global_train_batch_size: 64
command: |
  composer train.py /mnt/config/parameters.yaml
""",
        "  echo {n} $WORLD_SIZE\n",
    ),
    "torchtitan": Sample(
        "llama.toml",
        """[job]
dump_folder = "./outputs"

[training]
local_batch_size = 4
seq_len = 8192

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
""",
        'key_{n} = [{n}, "text", { inner = true }]\n',
    ),
    "nanotron": Sample(
        "nano.yaml",
        """general: {project: small}
parallelism:
  dp: 4
  pp: 1
  tp: 2
tokens:
  micro_batch_size: 4
  sequence_length: 2048
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "oumi": Sample(
        "sft.yaml",
        """model:
  model_name: gpt2
training:
  trainer_type: TRL_SFT
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 4
fsdp:
  enable_fsdp: true
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "roll": Sample(
        "rlvr.yaml",
        """rollout_batch_size: 64
num_gpus_per_node: 8
actor_train:
  training_args:
    per_device_train_batch_size: 1
    gradient_accumulation_steps: 32
  device_mapping: list(range(0,8))
reference:
  device_mapping: list(range(0,8))
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "ray_up": Sample(
        "cluster.yaml",
        """cluster_name: tuner
max_workers: 2
available_node_types:
  gpu4:
    resources: {CPU: 48, GPU: 4}
    node_config: {InstanceType: g5.12xlarge}
    max_workers: 2
head_node_type: gpu4
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "paddlefleetx": Sample(
        "gpt.yaml",
        """Global:
  local_batch_size: 8
  micro_batch_size: 4
Distributed:
  mp_degree: 4
  pp_degree: 2
  sharding:
    sharding_degree: 1
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "megatron-bridge": Sample(
        "over.yaml",
        """model:
  tensor_model_parallel_size: 2
  seq_length: 4096
train:
  train_iters: 100
  global_batch_size: 32
  micro_batch_size: 4
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "automodel": Sample(
        "auto.yaml",
        """step_scheduler:
  global_batch_size: 64
  local_batch_size: 4
distributed: {tp_size: 2, cp_size: 1}
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "veomni": Sample(
        "veomni.yaml",
        """train:
  accelerator:
    ulysses_size: 2
  micro_batch_size: 1
  global_batch_size: 16
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "lingua": Sample(
        "lingua.yaml",
        """steps: 100
optim: {lr: 3e-4}
distributed:
  fsdp_type: full_shard
  tp_size: 1
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "litgpt": Sample(
        "lit.yaml",
        """out_dir: out/run
precision: bf16-mixed
num_nodes: 2
devices: 8
train:
  global_batch_size: 512
  lr_warmup_steps: 100
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "graphstorm": Sample(
        "graph.yaml",
        """gsf:
  basic: {backend: gloo}
  hyperparam:
    batch_size: 1024
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "azure-ml": Sample(
        "job.yaml",
        """code: src
command: python train.py --epochs ${{inputs.epochs}}
inputs: {epochs: 3}
environment: azureml:pytorch@latest
distribution: {type: pytorch, process_count_per_instance: 8}
resources: {instance_count: 2}
environment_variables:
  NCCL_DEBUG: INFO
""",
        "  VALUE_{n}: {n}\n",
    ),
    "hyperpod": Sample(
        "recipe.yaml",
        """run:
  model_type: llm_finetuning_aws
  results_dir: out
trainer: {devices: 8, num_nodes: 2}
training_config:
  global_batch_size: 64
""",
        "  key_{n}: {value: [{n}, null]}\n",
    ),
    "megatron": Sample(
        "model_config.yaml",
        """MODEL_ARGS:
  --micro-batch-size: 2
  --tensor-model-parallel-size: 4
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
""",
        "  VALUE_{n}: {n}\n",
    ),
    "mindformers": Sample(
        "mind.yaml",
        """run_mode: train
parallel_config:
  data_parallel: 2
  model_parallel: 4
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "paddleclas": Sample(
        "clas.yaml",
        """Global: {output_dir: ./output}
DataLoader:
  Train:
    sampler: {batch_size: 64}
    loader: {num_workers: 4}
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "paddledetection": Sample(
        "det.yml",
        """worker_num: 4
TrainReader:
  batch_size: 4
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "determined": Sample(
        "experiment.yaml",
        """name: images
resources:
  slots_per_trial: 16
searcher: {name: single, metric: loss}
entrypoint: python3 -m determined.launch.torch_distributed python3 train.py
environment:
  environment_variables:
    - NCCL_DEBUG=INFO
""",
        "    - VALUE_{n}={n}\n",
    ),
    "wenet": Sample(
        "conformer.yaml",
        """encoder: conformer
encoder_conf: {output_size: 256, attention_heads: 4, num_blocks: 12}
dataset_conf:
  batch_conf: {batch_type: static, batch_size: 16}
accum_grad: 4
max_epoch: 100
optim: adam
optim_conf: {lr: 0.001}
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "prime-rl": Sample(
        "rl.toml",
        """max_steps = 100
seq_len = 2048

[deployment]
num_train_gpus = 4
num_infer_gpus = 4

[orchestrator]
batch_size = 128
""",
        'key_{n} = [{n}, "text", { inner = true }]\n',
    ),
    "paddleseg": Sample(
        "seg.yml",
        """batch_size: 4
iters: 80000
train_dataset: {type: Cityscapes, dataset_root: data/cityscapes}
model: {type: PPLiteSeg}
lr_scheduler: {type: PolynomialDecay, learning_rate: 0.01}
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "settings": Sample(
        "settings.yaml",
        """training:
  distributed: {num_nodes: 2, num_gpus_per_node: 8}
  data: {train_batch_size: 4, num_workers: 3}
  optimizer: {lr: 0.0001}
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "hugectr": Sample(
        "dcn.json",
        """{
  "solver": {"batchsize": 16384, "gpu": [0, 1], "max_iter": 1000},
  "optimizer": {"type": "Adam"},
  "layers": []
""",
        ', "key_{n}": [{n}, {"deeper": null}]\n',
        end="}\n",
    ),
    "lock": Sample(
        "uv.lock",
        'version = 1\n\n[[package]]\nname = "torch"\nversion = "2.7.1"\n',
        '\n[[package]]\nname = "package-{n}"\nversion = "1.{n}"\n',
    ),
    "model": Sample(
        "config.json",
        """{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 4096,
  "intermediate_size": 11008,
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "vocab_size": 32000
""",
        ', "key_{n}": [{n}, {"deeper": null}]\n',
        end="}\n",
    ),
    "framework": Sample(
        "grpo.yaml",
        """policy:
  train_global_batch_size: 512
  train_micro_batch_size: 4
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2}
cluster: {gpus_per_node: 8, num_nodes: 2}
""",
        "key_{n}: {value: [{n}, null]}\n",
    ),
    "recipes": Sample(
        "justfile",
        "train:\n    torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
        "\ntarget{n}:\n    echo {n}\n",
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

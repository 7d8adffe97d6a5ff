"""DeepSpeed's configuration, given to `deepspeed.initialize` by a launch over eight GPUs of one node."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import json_text
from tools.oracle.frameworks.base import Framework, Seed

_GPUS = 8
_VERSION = "0.19.8"
_REQUIREMENTS = f"torch==2.13.0\ndeepspeed=={_VERSION}\n"
_PROGRAM = """\
import argparse

import deepspeed
import torch
from torchvision.models import resnet50

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
model = resnet50()
engine, optimizer, _, scheduler = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
"""
_LAUNCH = f"""\
#!/bin/bash
pip install -r requirements.txt
deepspeed --num_nodes 1 --num_gpus {_GPUS} train.py --deepspeed --deepspeed_config ds_config.json
"""


def _render(form: str, settings: dict[str, Any]) -> Case:
    text, lines = json_text(settings)
    files = {"ds_config.json": text, "run.sh": _LAUNCH, "train.py": _PROGRAM, "requirements.txt": _REQUIREMENTS}
    return Case("deepspeed", form, files, lines={"ds_config.json": lines})


_ZERO2: dict[str, Any] = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "steps_per_print": 100,
    "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
    "zero_optimization": {
        "stage": 2,
        "allgather_partitions": True,
        "allgather_bucket_size": 200000000,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 200000000,
        "contiguous_gradients": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 0.0001, "betas": [0.9, 0.999], "weight_decay": 0.01}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.0001, "warmup_num_steps": 100}},
}
_ZERO3: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 8,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "contiguous_gradients": True,
        "stage3_prefetch_bucket_size": 10000000,
        "stage3_param_persistence_threshold": 100000,
        "stage3_max_live_parameters": 1000000000,
        "stage3_max_reuse_distance": 1000000000,
        "stage3_gather_16bit_weights_on_model_save": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True, "buffer_count": 5, "buffer_size": 100000000},
    },
    "activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": False},
    "wall_clock_breakdown": False,
}
_PLAIN: dict[str, Any] = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 8,
    "steps_per_print": 10,
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": True},
    "flops_profiler": {"enabled": False, "profile_step": 1, "module_depth": -1, "top_modules": 1, "detailed": True},
    "comms_logger": {"enabled": False, "verbose": False},
    "tensorboard": {"enabled": False, "output_path": "tb", "job_name": "run"},
    "checkpoint": {"tag_validation": "WARN"},
    "aio": {"block_size": 1048576, "queue_depth": 8, "single_submit": False},
    "data_types": {"grad_accum_dtype": "fp32"},
    "compile": {"deepcompile": False},
}
_FLAG = (True, False)
_SPACE: dict[str, tuple[Any, ...]] = {
    "train_batch_size": (16, 32, 63, 64, 128, 256, 2048),
    "train_micro_batch_size_per_gpu": (1, 2, 3, 4, 16, 64),
    "gradient_accumulation_steps": (1, 2, 3, 4, 16),
    "gradient_clipping": (0.0, 1.0, "auto"),
    "fp16": ({"enabled": True}, {"enabled": False}, {"enabled": True, "loss_scale": -1}),
    "fp16.enabled": (*_FLAG, "auto"),
    "fp16.loss_scale": (0, 128, -1, "dynamic"),
    "fp16.loss_scale_window": (1000, 0, -5, 2.5),
    "fp16.initial_scale_power": (16, 32, 0, -1),
    "fp16.min_loss_scale": (1, 0, 0.5),
    "fp16.hysteresis": (2, 0),
    "fp16.fp16_master_weights_and_grads": _FLAG,
    "bf16": ({"enabled": True}, {"enabled": False}),
    "bf16.enabled": (*_FLAG, "auto"),
    "bf16.bf16_master_weights_and_grads": _FLAG,
    "bf16.bf16_optimizer_states": _FLAG,
    "bf16.loss_scale": (0,),
    "amp": ({"enabled": True, "opt_level": "O1"},),
    "zero_optimization.stage": (0, 1, 2, 3, 4, -1, "2", "auto"),
    "zero_optimization.offload_optimizer": ({"device": "cpu"}, {"device": "nvme"}, {"device": "none"}),
    "zero_optimization.offload_optimizer.device": ("cpu", "nvme", "gpu", "none", "CPU"),
    "zero_optimization.offload_optimizer.ratio": (0.3, 1.0, 1.5, -0.5),
    "zero_optimization.offload_optimizer.buffer_count": (4, 0, -1),
    "zero_optimization.offload_param": ({"device": "cpu"}, {"device": "nvme", "nvme_path": "/local_nvme"}),
    "zero_optimization.offload_param.device": ("cpu", "nvme", "gpu", "cuda"),
    "zero_optimization.offload_param.buffer_count": (5, -2),
    "zero_optimization.cpu_offload": _FLAG,
    "zero_optimization.cpu_offload_param": _FLAG,
    "zero_optimization.reduce_bucket_size": (500000000, 0, -1, "5e8", "auto"),
    "zero_optimization.allgather_bucket_size": (500000000, 0, -1),
    "zero_optimization.stage3_prefetch_bucket_size": (0, -1, "auto"),
    "zero_optimization.stage3_param_persistence_threshold": (0, -1, "auto"),
    "zero_optimization.stage3_max_live_parameters": (1000000000, -1),
    "zero_optimization.prefetch_bucket_size": (1000,),
    "zero_optimization.sub_group_size": (1000000000, -1),
    "zero_optimization.zero_hpz_partition_size": (1, 8, -1),
    "zero_optimization.overlap_comm": (*_FLAG, "yes"),
    "zero_optimization.round_robin_gradients": _FLAG,
    "zero_optimization.load_from_fp32_weights": _FLAG,
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": _FLAG,
    "zero_optimization.legacy_stage1": _FLAG,
    "zero_optimization.zero_quantized_weights": _FLAG,
    "zero_optimization.mics_shard_size": (-1, 8),
    "zero_optimization.memory_efficient_linear": _FLAG,
    "zero_optimization.stage_3": (True,),
    "optimizer.type": ("Adam", "Lamb", "OneBitAdam", "Muon", "Foo"),
    "optimizer.legacy_fusion": _FLAG,
    "optimizer.params.max_grad_norm": (1.0,),
    "scheduler.type": ("WarmupDecayLR", "OneCycle", "Foo"),
    "scheduler.params.warmup_type": ("log", "linear", "cosine"),
    "communication_data_type": ("fp16", "bf16", "fp32", "float16", "int8"),
    "seq_parallel_communication_data_type": ("fp32", "half"),
    "prescale_gradients": _FLAG,
    "gradient_allreduce_op": ("sum", "mean", "avg"),
    "sparse_gradients": _FLAG,
    "checkpoint.tag_validation": ("Ignore", "Warn", "Fail", "Never"),
    "checkpoint.load_universal": _FLAG,
    "checkpoint.parallel_write": ({"pipeline_stage": True}, {"pipeline_stage": "yes"}),
    "data_types.grad_accum_dtype": ("fp16", "fp32", "bf16", "fp8"),
    "data_types.keep_in_fp32_modules": (["norm"], "auto", "norm"),
    "activation_checkpointing.number_checkpoints": (4,),
    "activation_checkpointing.profile": _FLAG,
    "activation_checkpointing.cpu_checkpoint": _FLAG,
    "flops_profiler.enabled": (*_FLAG, "yes"),
    "flops_profiler.recompute_fwd_factor": (0.0, -1.0, 1.5),
    "flops_profiler.depth": (1,),
    "comms_logger.prof_ops": (["all_reduce"], "all_reduce"),
    "tensorboard.enabled": (True,),
    "wandb": ({"enabled": False, "project": "x"}, {"enabled": False, "entity": "y"}, {"enabled": False, "name": "y"}),
    "csv_monitor": ({"enabled": False, "output_path": "out"},),
    "elasticity": (
        {"enabled": True, "max_train_batch_size": 2000, "micro_batch_sizes": [2, 4], "min_gpus": 1, "max_gpus": 100},
        {"enabled": False},
    ),
    "autotuning": ({"enabled": False}, {"enabled": True, "fast": False}),
    "data_efficiency": ({"enabled": True}, {"enabled": False}),
    "tensor_parallel": ({"tp_size": 2},),
    "sequence_parallel_size": (1, 2, 3),
    "pipeline": ({"stages": "auto"}, {"activation_checkpoint_interval": 1}, {"partition_methods": "uniform"}),
    "hybrid_engine": ({"enabled": False}, {"enabled": True, "max_out_tokens": 512}, {"enable": True}),
    "compile.enabled": _FLAG,
    "compile.backend": ("inductor",),
    "torch_autocast": ({"enabled": True, "dtype": "bfloat16"}, {"enabled": True, "dtype": "bf16"}, {"enable": True}),
    "dataloader_drop_last": _FLAG,
    "use_node_local_storage": (True,),
    "zero_allow_untested_optimizer": _FLAG,
    "zero_force_ds_cpu_optimizer": (True, False),
    "log_level": ("info", "verbose"),
    "steps_per_print": (0, -1, None),
    "timers": ({"throughput": {"enabled": True}}, {"throughput": {"enable": True}}),
    "aio.thread_count": (1, 0),
    "weight_quantization": ({"quantized_initialization": {"num_bits": 8}},),
    "nebula": ({"enabled": True},),
    "curriculum_learning": ({"enabled": True},),
    "compression_training": ({"weight_quantization": {"shared_parameters": {"enabled": False}}},),
    "sparse_attention": ({"mode": "fixed"},),
}
FRAMEWORK = Framework(
    name="deepspeed",
    distribution="deepspeed",
    version=_VERSION,
    requirements=(
        "pydantic",
        "hjson",
        "py-cpuinfo",
        "einops",
        "msgpack",
        "ninja",
        "psutil",
        "numpy",
        "tqdm",
        "packaging",
    ),
    alone=(f"deepspeed=={_VERSION}",),
    validator="deepspeed_validator.py",
    seeds=(Seed("file", _ZERO2), Seed("file", _ZERO3), Seed("file", _PLAIN)),
    space={"file": _SPACE},
    render=_render,
)

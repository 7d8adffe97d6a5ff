"""torchtitan's TOML on two nodes of four GPUs: Llama 3, DeepSeek-V3 and float8, with every kind of parallelism."""

from __future__ import annotations

import json
from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import Lines
from tools.oracle.frameworks.base import Framework, Seed

_VERSION = "0.2.2"
_PINS = f"torchtitan=={_VERSION}\ntorch==2.13.0\n"
_RUN = (
    "#!/bin/bash\npip install -r requirements.txt\n"
    "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id=1 --rdzv_backend=c10d --rdzv_endpoint=node-1:29500"
    " -m torchtitan.train --job.config_file train.toml\n"
)


def _toml(settings: dict[str, Any]) -> tuple[str, Lines]:
    """TOML with one key a line; what is None is left out, for TOML has no word for it."""
    rows, lines = list[str](), Lines()
    _section(settings, "", rows, lines)
    return "\n".join([*rows, ""]), lines


def _section(section: dict[str, Any], above: str, rows: list[str], lines: Lines) -> None:
    plain = {key: value for key, value in section.items() if not isinstance(value, dict) and value is not None}
    for key, value in plain.items():
        lines[f"{above}.{key}" if above else key] = len(rows) + 1
        rows.append(f"{key} = {json.dumps(value)}")
    for key, value in section.items():
        if isinstance(value, dict):
            path = f"{above}.{key}" if above else key
            lines[path] = len(rows) + 1
            rows.append(f"[{path}]")
            _section(value, path, rows, lines)


def _render(form: str, settings: dict[str, Any]) -> Case:
    text, lines = _toml(settings)
    files = {"train.toml": text, "requirements.txt": _PINS, "run.sh": _RUN}
    return Case("torchtitan", form, files, ("--job.config_file", "train.toml"), lines={"train.toml": lines})


_LLAMA: dict[str, Any] = {
    "job": {"dump_folder": "./outputs", "description": "Llama 3 8B"},
    "profiling": {"enable_profiling": True, "profile_freq": 100},
    "metrics": {"log_freq": 10, "enable_tensorboard": True},
    "model": {"name": "llama3", "flavor": "8B", "hf_assets_path": "./assets/hf/Llama-3.1-8B"},
    "optimizer": {"name": "AdamW", "lr": 3e-4, "eps": 1e-8},
    "lr_scheduler": {"warmup_steps": 200},
    "training": {"local_batch_size": 1, "seq_len": 8192, "max_norm": 1.0, "steps": 1000, "dataset": "c4"},
    "parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 2, "pipeline_parallel_degree": 1},
    "checkpoint": {"enable": False, "folder": "checkpoint", "interval": 500, "async_mode": "disabled"},
    "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
    "compile": {"enable": True, "components": ["model", "loss"]},
}
_MOE = {
    "job": {"dump_folder": "./outputs"},
    "model": {"name": "deepseek_v3", "flavor": "16B"},
    "optimizer": {"name": "AdamW", "lr": 2.2e-4, "implementation": "fused"},
    "lr_scheduler": {"warmup_steps": 200, "decay_ratio": 0.8, "decay_type": "cosine", "min_lr_factor": 0.1},
    "training": {
        "local_batch_size": 4,
        "global_batch_size": 64,
        "seq_len": 4096,
        "steps": 10000,
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
        "dataloader": {"num_workers": 2, "pin_memory": True},
    },
    "parallelism": {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 8,
        "fsdp_reshard_after_forward": "default",
        "expert_parallel_degree": 4,
        "expert_tensor_parallel_degree": 1,
    },
    "checkpoint": {
        "enable": True,
        "interval": 250,
        "keep_latest_k": 3,
        "async_mode": "async",
        "export_dtype": "bfloat16",
    },
    "activation_checkpoint": {"mode": "full"},
    "debug": {"seed": 42, "deterministic": False},
    "validation": {"enable": True, "freq": 100, "steps": 10},
}
_PIPELINE = {
    "job": {"dump_folder": "/ckpt/run1"},
    "model": {"name": "llama3", "flavor": "70B", "converters": ["quantize.linear.float8"]},
    "optimizer": {"lr": 1.5e-4, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95},
    "training": {"local_batch_size": 8, "seq_len": 8192, "steps": 3000, "enable_cpu_offload": False},
    "parallelism": {
        "data_parallel_shard_degree": 2,
        "context_parallel_degree": 2,
        "context_parallel_rotate_method": "allgather",
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_microbatch_size": 1,
    },
    "comm": {"init_timeout_seconds": 600, "train_timeout_seconds": 300},
    "quantize": {"linear": {"float8": {"enable_fsdp_float8_all_gather": True, "filter_fqns": ["output"]}}},
    "fault_tolerance": {"enable": False, "min_replica_size": 1},
}
_DEGREES = (1, 2, 4, 8, 3, 0, -1, -2, 16)
_SPACE: dict[str, tuple[Any, ...]] = {
    "parallelism.data_parallel_shard_degree": _DEGREES,
    "parallelism.data_parallel_replicate_degree": _DEGREES,
    "parallelism.tensor_parallel_degree": _DEGREES,
    "parallelism.pipeline_parallel_degree": _DEGREES,
    "parallelism.context_parallel_degree": _DEGREES,
    "parallelism.expert_parallel_degree": (1, 2, 4, 8, 3, 0, 16),
    "parallelism.expert_tensor_parallel_degree": (1, 2, 4, 3, 0),
    "parallelism.fsdp_reshard_after_forward": ("always", "never", "sometimes", True),
    "parallelism.context_parallel_load_balancer": ("headtail", "ptrr", "", "none"),
    "parallelism.context_parallel_rotate_method": ("alltoall", "ring"),
    "parallelism.expert_parallel_comm_backend": ("standard", "deepep", "nccl"),
    "parallelism.enable_async_tensor_parallel": (True, "true"),
    "parallelism.pipeline_parallel_schedule": ("1F1B", "GPipe", "ZBVZeroBubble", "zb"),
    "parallelism.module_fqns_per_model_part": ([["tok_embeddings"], ["output"]], ["a"]),
    "parallelism.data_parallel_degree": (8,),
    "parallelism.enable_compiled_autograd": (True,),
    "training.data_parallel_shard_degree": (8,),
    "training.tensor_parallel_degree": (2,),
    "training.batch_size": (8,),
    "training.local_batch_size": (1, 2, 16, 0, "auto", 2.5),
    "training.global_batch_size": (-1, 32, 100, "64"),
    "training.seq_len": (2048, 8192.0, "8k"),
    "training.max_norm": (1, 0.5, "1.0"),
    "training.steps": (10, 1e4, "1000"),
    "training.dtype": ("float32", "bfloat16", "float16", "bf16"),
    "training.mixed_precision_param": ("bfloat16", "float32", "float16", "fp8"),
    "training.mixed_precision_reduce": ("float32", "bfloat16"),
    "training.compile": (True,),
    "training.warmup_steps": (200,),
    "training.deterministic": (True,),
    "training.seed": (42,),
    "training.gc_freq": (50, "often"),
    "training.dataset_path": ("/data", 3),
    "training.dataloader": ({"num_workers": 4}, {"workers": 4}, 4),
    "training.dataloader.prefetch_factor": (2, "two"),
    "optimizer.name": ("AdamW", "Adam", 3),
    "optimizer.lr": (1e-4, 1, "3e-4"),
    "optimizer.fused": (True,),
    "optimizer.implementation": ("fused", "foreach", "for-loop", "apex"),
    "optimizer.early_step_in_backward": (True, 1),
    "lr_scheduler.decay_type": ("linear", "sqrt", "cosine", "wsd"),
    "lr_scheduler.decay_ratio": (0.5, 1, "half"),
    "lr_scheduler.lr_min": (0.1,),
    "checkpoint.enable_checkpoint": (True,),
    "checkpoint.async_mode": ("async", "async_with_pinned_mem", "sync"),
    "checkpoint.export_dtype": ("float16", "fp32"),
    "checkpoint.model_weights_only": (True,),
    "checkpoint.keep_latest_k": (0, 1, "3"),
    "checkpoint.exclude_from_loading": (["dataloader"], "dataloader"),
    "activation_checkpoint.mode": ("none", "full", "selective", "memory_budget", "op"),
    "activation_checkpoint.selective_ac_option": ("2", "op", 2),
    "activation_checkpoint.memory_budget": (0.3, "half"),
    "compile.enable": (True, "yes"),
    "compile.components": (["model"], "model"),
    "float8.enable_fsdp_float8_all_gather": (True,),
    "quantize.linear.float8.recipe_name": ("rowwise", "tensorwise", "blockwise"),
    "quantize.linear.mx.recipe_name": ("mxfp8_cublas",),
    "quantize.dense.float8": ({"emulate": True},),
    "comm.mode": ("default", "fake_backend", "nccl"),
    "comm.init_timeout_seconds": (60, "10m"),
    "model.flavor": ("405B", 8),
    "model.tokenizer_path": ("./tok", None),
    "model.converters": (["float8"], "float8"),
    "model.norm_type": ("rmsnorm",),
    "experimental.pipeline_parallel_degree": (2,),
    "experimental.context_parallel_degree": (2,),
    "experimental.custom_args_module": ("",),
    "metrics.enable_wandb": (True, "on"),
    "metrics.rank_0_only": (True,),
    "job.use_for_integration_test": (True,),
    "job.print_args": (True,),
    "debug.seed": (1, "x"),
    "fault_tolerance.semi_sync_method": ("diloco", 1),
    "wandb": ({"project": "x"},),
    "data": ({"path": "x"},),
}
FRAMEWORK = Framework(
    name="torchtitan",
    distribution="torchtitan",
    version=_VERSION,
    requirements=("tyro==1.0.13", "packaging", "numpy"),
    alone=(f"torchtitan=={_VERSION}",),
    validator="torchtitan_validator.py",
    seeds=tuple(Seed("toml", settings) for settings in (_LLAMA, _MOE, _PIPELINE)),
    space={"toml": _SPACE},
    render=_render,
)

"""`accelerate launch`: its configuration file, its options, and the plugins that `Accelerator()` makes of them."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import flags_text, yaml_text
from tools.oracle.frameworks.base import Framework, Seed

_VERSION = "1.15.0"
_REQUIREMENTS = f"torch==2.13.0\naccelerate=={_VERSION}\ndeepspeed==0.19.8\n"
_PROGRAM = """\
import torch
from accelerate import Accelerator
from torchvision.models import resnet50

accelerator = Accelerator()
model = resnet50()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
"""


def _render(form: str, settings: dict[str, Any]) -> Case:
    files = {"train.py": _PROGRAM, "requirements.txt": _REQUIREMENTS}
    if form == "file":
        files["accelerate.yaml"], lines = yaml_text(settings)
        files["run.sh"] = (
            "#!/bin/bash\npip install -r requirements.txt\naccelerate launch --config_file accelerate.yaml train.py\n"
        )
        return Case("accelerate", form, files, lines={"accelerate.yaml": lines})
    files["accelerate.yaml"] = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 1\n"
    text, found = flags_text("accelerate launch --config_file accelerate.yaml", settings, "train.py")
    files["run.sh"] = f"#!/bin/bash\npip install -r requirements.txt\n{text}"
    return Case("accelerate", form, files, lines={"run.sh": {key: line + 2 for key, line in found.items()}})


_MULTI: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "distributed_type": "MULTI_GPU",
    "downcast_bf16": "no",
    "gpu_ids": "all",
    "machine_rank": 0,
    "main_process_ip": "10.0.0.1",
    "main_process_port": 29400,
    "main_training_function": "main",
    "mixed_precision": "bf16",
    "num_machines": 2,
    "num_processes": 16,
    "rdzv_backend": "static",
    "same_network": True,
    "use_cpu": False,
}
_ONE: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "gpu_ids": "0,1,2,3",
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "fp16",
    "num_machines": 1,
    "num_processes": 4,
    "use_cpu": False,
}
_FSDP1: dict[str, Any] = {
    **{key: value for key, value in _ONE.items() if key != "gpu_ids"},
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "fsdp_config": {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_forward_prefetch": False,
        "fsdp_offload_params": False,
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_sync_module_states": True,
        "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "fsdp_use_orig_params": True,
    },
}
_FSDP2: dict[str, Any] = {
    **{key: value for key, value in _ONE.items() if key != "gpu_ids"},
    "num_processes": 8,
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": False,
        "fsdp_reshard_after_forward": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_activation_checkpointing": False,
    },
    "parallelism_config": {
        "parallelism_config_dp_replicate_size": 1,
        "parallelism_config_dp_shard_size": 4,
        "parallelism_config_tp_size": 2,
        "parallelism_config_cp_size": 1,
    },
}
_DEEPSPEED: dict[str, Any] = {
    **{key: value for key, value in _ONE.items() if key != "gpu_ids"},
    "distributed_type": "DEEPSPEED",
    "mixed_precision": "bf16",
    "deepspeed_config": {
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": True,
        "zero3_save_16bit_model": True,
        "zero_stage": 3,
    },
}
_FLAGS: dict[str, Any] = {
    "multi_gpu": True,
    "num_machines": 1,
    "num_processes": 4,
    "mixed_precision": "bf16",
    "dynamo_backend": "no",
}
_FLAGS_FSDP: dict[str, Any] = {
    "use_fsdp": True,
    "num_machines": 2,
    "num_processes": 16,
    "machine_rank": 0,
    "main_process_ip": "10.0.0.1",
    "main_process_port": 29400,
    "mixed_precision": "bf16",
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
}
_FLAGS_DEEPSPEED: dict[str, Any] = {
    "use_deepspeed": True,
    "num_machines": 1,
    "num_processes": 8,
    "mixed_precision": "bf16",
    "zero_stage": 3,
    "offload_optimizer_device": "cpu",
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "zero3_save_16bit_model": "true",
}
_FLAG = (True, False)
_PRECISIONS = ("no", "fp16", "bf16", "fp32", "float16", "BF16", "fp8x")
_SHARDING: dict[str, tuple[Any, ...]] = {
    "fsdp_version": (1, 2, 3),
    "fsdp_sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "FULLSHARD", 1, 9, "full_shard"),
    "fsdp_auto_wrap_policy": ("SIZE_BASED_WRAP", "NO_WRAP", "TRANSFORMER_BASED", "transformer_based_wrap"),
    "fsdp_backward_prefetch": ("BACKWARD_POST", "NO_PREFETCH", "BACKWARD_PRE_FETCH"),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED", "SHARD_STATE_DICT"),
    "fsdp_cpu_ram_efficient_loading": ("true", "false"),
    "fsdp_sync_module_states": ("true", "false"),
    "fsdp_forward_prefetch": ("true", "maybe"),
    "fsdp_use_orig_params": ("true", "false"),
    "fsdp_offload_params": ("true", "false", "cpu"),
    "fsdp_reshard_after_forward": ("true", "FULL_SHARD", "SHARD_GRAD_OP"),
    "fsdp_activation_checkpointing": ("true", "false"),
    "fsdp_activation_checkpointing_offload": ("true",),
    "fsdp_min_num_params": (100000, "1e8"),
    "fsdp_transformer_layer_cls_to_wrap": ("LlamaDecoderLayer",),
}
_ZERO: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 1, 2, 3, 4),
    "offload_optimizer_device": ("none", "cpu", "nvme", "gpu"),
    "offload_param_device": ("none", "cpu", "nvme", "disk"),
    "offload_optimizer_nvme_path": ("/local",),
    "gradient_accumulation_steps": (1, 4, "auto", "two"),
    "gradient_clipping": (1.0, "auto", "none"),
    "zero3_init_flag": ("true", "false", "yes please"),
    "zero3_save_16bit_model": ("true", "false"),
    "deepspeed_multinode_launcher": ("pdsh", "standard", "openmpi", "slurm", "ssh"),
}
_LAUNCH: dict[str, tuple[Any, ...]] = {
    "mixed_precision": _PRECISIONS,
    "num_processes": (1, 2, 3, 8, 0, -1),
    "num_machines": (1, 2, 4, 0),
    "machine_rank": (0, 1, 4),
    "main_process_ip": ("10.0.0.2",),
    "main_process_port": (29501, 0, 70000),
    "gpu_ids": ("all", "0", "0,1"),
    "rdzv_backend": ("c10d", "static", "nccl", "etcd"),
    "dynamo_backend": ("inductor", "INDUCTOR", "induct", "no"),
    "enable_cpu_affinity": _FLAG,
}
_FILE: dict[str, tuple[Any, ...]] = {
    **_LAUNCH,
    "distributed_type": ("MULTI_GPU", "FSDP", "DEEPSPEED", "NO", "MULTI_CPU", "DDP", "fsdp", "MEGATRON_LM"),
    "compute_environment": ("LOCAL_MACHINE", "LOCAL", "AWS"),
    "debug": _FLAG,
    "use_cpu": _FLAG,
    "fp16": _FLAG,
    "dynamo_config": (
        {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default"},
        {"dynamo_backend": "INDUCTR"},
        {"dynamo_mode": "fast"},
    ),
    "deepspeed_hostfile": ("hostfile",),
    "fsdp_sharding_strategy": ("FULL_SHARD",),
    "zero_stage": (2,),
    "same_network": _FLAG,
    "gradient_accumulation_steps": (4,),
    "rdzv_conf": ("timeout=900",),
    "max_restarts": (1,),
    "tpu_env": ([],),
    "tpu_use_cluster": (False,),
    "fp8_config": ({"backend": "TE"},),
    "ipex_config": ({"ipex": False},),
    "megatron_lm_config": ({"megatron_lm_tp_degree": 2},),
    **{f"fsdp_config.{key}": values for key, values in _SHARDING.items()},
    **{f"deepspeed_config.{key}": values for key, values in _ZERO.items()},
    "parallelism_config.parallelism_config_dp_replicate_size": (1, 2, 4, 0),
    "parallelism_config.parallelism_config_dp_shard_size": (1, 2, 8, 0),
    "parallelism_config.parallelism_config_tp_size": (1, 4, 8, 0),
    "parallelism_config.parallelism_config_cp_size": (1, 2, 0),
    "parallelism_config.parallelism_config_cp_comm_strategy": ("allgather", "alltoall", "ring"),
    "parallelism_config.parallelism_config_cp_backend": ("torch", "ring"),
    "parallelism_config.parallelism_config_sp_size": (1, 2),
}
_OPTIONS: dict[str, tuple[Any, ...]] = {
    **_LAUNCH,
    **_SHARDING,
    **_ZERO,
    "multi_gpu": _FLAG,
    "use_fsdp": _FLAG,
    "use_deepspeed": _FLAG,
    "cpu": (True,),
    "tpu": (True,),
    "use_megatron_lm": (True,),
    "use_parallelism_config": (True,),
    "parallelism_config_tp_size": (2, 8),
    "same_network": (True,),
    "module": (True,),
    "no_python": (True,),
    "max_restarts": (0, 3, "x"),
    "monitor_interval": (0.1, "x"),
    "num_cpu_threads_per_process": (8, "many"),
    "fp16": (True,),
    "num_gpus": (4,),
    "nproc_per_node": (4,),
    "nnodes": (2,),
    "role": ("trainer",),
    "quiet": (True,),
}
FRAMEWORK = Framework(
    name="accelerate",
    distribution="accelerate",
    version=_VERSION,
    requirements=(
        "numpy",
        "transformers==5.24.0",
        "psutil",
        "packaging",
        "pyyaml",
        "huggingface_hub",
        "safetensors",
        "pydantic",
        "hjson",
        "py-cpuinfo",
        "einops",
        "msgpack",
        "ninja",
        "tqdm",
    ),
    alone=(f"accelerate=={_VERSION}", "deepspeed==0.19.8"),
    validator="accelerate_validator.py",
    seeds=(
        Seed("file", _MULTI),
        Seed("file", _ONE),
        Seed("file", _FSDP1),
        Seed("file", _FSDP2),
        Seed("file", _DEEPSPEED),
        Seed("flags", _FLAGS),
        Seed("flags", _FLAGS_FSDP),
        Seed("flags", _FLAGS_DEEPSPEED),
    ),
    space={"file": _FILE, "flags": _OPTIONS},
    render=_render,
    sections=frozenset({"fsdp_config", "deepspeed_config", "parallelism_config"}),
)

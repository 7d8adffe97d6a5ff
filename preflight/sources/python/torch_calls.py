"""The calls of torch, DeepSpeed, Horovod, Colossal-AI and FairScale whose arguments are settings.

Sources: torch 2.13 (distributed/distributed_c10d.py, device_mesh.py, nn/parallel/distributed.py, distributed/fsdp,
distributed/checkpoint, distributed/pipelining, distributed/rpc, utils/data, utils/checkpoint.py); deepspeed 0.19
(__init__.py, runtime/pipe/module.py, moe/layer.py, runtime/sequence_parallel/ulysses_sp.py); horovod 0.28
(torch/optimizer.py, torch/functions.py, common/process_sets.py); colossalai 0.5 (booster/plugin); fairscale 0.4.
"""

from __future__ import annotations

from typing import NamedTuple


class Called(NamedTuple):
    """A call whose arguments are settings.

    Args:
        framework: how its settings are named.
        names: the last part of the name of what is called.
        positions: the names of its arguments, in order.
        within: texts of which the full name has one; empty for any.
        sets: whether attributes of what it makes are settings, too.
        after: calls of which one has to come before it: `early` is true where it comes after.
        before: calls that have to come after it: `late` is true where one comes before.
        uses: whether the methods that are called on what it makes, and on its arguments, are stated.
        lacks: calls of which the script has none, for `lacks` to be true.
        family: the file of the rules' tables that its settings are in, unless its framework says it.
    """

    framework: str
    names: tuple[str, ...]
    positions: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    sets: bool = False
    after: tuple[str, ...] = ()
    uses: bool = False
    lacks: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    family: str = ""


_FSDP = (
    *("module", "process_group", "sharding_strategy", "cpu_offload", "auto_wrap_policy", "backward_prefetch"),
    *("mixed_precision", "ignored_modules", "param_init_fn", "device_id", "sync_module_states"),
)
_DDP = (
    *("module", "device_ids", "output_device", "dim", "broadcast_buffers", "init_sync", "process_group"),
    *("bucket_cap_mb", "find_unused_parameters", "check_reduction", "gradient_as_bucket_view", "static_graph"),
)
_LOADER = (
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory"),
    *("drop_last", "timeout", "worker_init_fn", "multiprocessing_context"),
)
_OPTIMIZER = ("optimizer", "named_parameters", "compression", "backward_passes_per_step", "op")
_INITIALIZE = (
    *("args", "model", "optimizer", "model_parameters", "training_data", "lr_scheduler", "distributed_port", "mpu"),
)
_PIPELINE = (
    *("layers", "num_stages", "topology", "loss_fn", "seed_layers", "seed_fn", "base_seed", "partition_method"),
)
_SHARDED = (
    *("module", "sharded_optimizer", "process_group", "broadcast_buffers", "sync_models_at_startup"),
    *("reduce_buffer_size", "auto_refresh_trainable", "reduce_fp16"),
)
_TORCH = ("torch.",)
#: The call that makes the group of all ranks.
_GROUP = ("init_process_group",)
#: Calls that send to another rank, and those that receive; a list of P2POp may do both.
_SENDS = ("send", "isend", "send_object_list", "batch_isend_irecv", "P2POp")
_RECEIVES = ("recv", "irecv", "recv_object_list", "batch_isend_irecv", "P2POp")
#: Calls after which tensors are made on a GPU without saying so.
_DEFAULT_DEVICE = ("set_default_device", "set_default_tensor_type")

CALLS = (
    Called(
        "torch_group",
        ("init_process_group",),
        ("backend", "init_method", "timeout", "world_size", "rank", "store"),
        _TORCH,
        before=("init_process_group",),
        lacks=("destroy_process_group",),
    ),
    Called(
        "torch_broadcast",
        ("broadcast",),
        ("tensor", "src", "group"),
        _TORCH,
        lacks=_DEFAULT_DEVICE,
        uses=True,
        after=_GROUP,
    ),
    Called(
        "torch_reduce",
        ("reduce",),
        ("tensor", "dst", "op", "group"),
        _TORCH,
        lacks=_DEFAULT_DEVICE,
        uses=True,
        after=_GROUP,
    ),
    Called(
        "torch_all_reduce",
        ("all_reduce",),
        ("tensor", "op", "group"),
        _TORCH,
        lacks=_DEFAULT_DEVICE,
        uses=True,
        after=_GROUP,
    ),
    Called(
        "torch_gather", ("gather", "gather_object"), ("tensor", "gather_list", "dst", "group"), _TORCH, after=_GROUP
    ),
    Called("torch_scatter", ("scatter",), ("tensor", "scatter_list", "src", "group"), _TORCH, after=_GROUP),
    Called("torch_gather_all", ("all_gather",), ("tensor_list", "tensor", "group"), _TORCH, after=_GROUP),
    Called(
        "torch_exchange",
        ("all_gather_into_tensor", "all_to_all", "reduce_scatter", "reduce_scatter_tensor"),
        (),
        _TORCH,
        after=_GROUP,
    ),
    Called(
        "torch_scatter_objects",
        ("scatter_object_list",),
        ("scatter_object_output_list", "scatter_object_input_list", "src", "group"),
        _TORCH,
    ),
    Called("torch_new_group", ("new_group",), ("ranks",), _TORCH, after=_GROUP),
    Called("torch_send", ("send", "isend"), ("tensor", "dst", "group"), _TORCH, lacks=_RECEIVES),
    Called("torch_receive", ("recv", "irecv"), ("tensor", "src", "group"), _TORCH, lacks=_SENDS),
    Called("torch_barrier", ("barrier",), ("group", "async_op", "device_ids"), _TORCH, after=("set_device",)),
    Called("torch_monitored", ("monitored_barrier",), ("group",), _TORCH),
    Called(
        "torch_objects",
        ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
        (),
        _TORCH,
        lacks=("set_device", "device"),
    ),
    Called("torch_load", ("load",), ("f", "map_location"), ("torch.load",)),
    Called(
        "torch_fused",
        ("apply_optimizer_in_backward", "_apply_optimizer_in_backward"),
        ("optimizer_class", "params"),
        before=("DistributedModelParallel",),
    ),
    Called("torch_restored", ("load_state_dict",), ("state_dict",), before=("DistributedDataParallel",)),
    Called("torch_seed", ("manual_seed",), ("seed",), ("torch.manual_seed", "torch.random.manual_seed")),
    Called("torch_split", ("random_split",), ("dataset", "lengths", "generator"), _TORCH),
    Called("torch_gradients", ("grad",), ("outputs", "inputs"), ("torch.autograd.",)),
    Called("torch_subgroups", ("new_subgroups",), ("group_size",), _TORCH),
    Called("torch_mesh", ("init_device_mesh",), ("device_type", "mesh_shape"), _TORCH),
    Called("torch_ddp", ("DistributedDataParallel",), _DDP, _TORCH, uses=True),
    Called("torch_loader", ("DataLoader",), _LOADER, _TORCH),
    Called(
        "torch_sampler",
        ("DistributedSampler",),
        ("dataset", "num_replicas", "rank", "shuffle"),
        _TORCH,
        lacks=("init_process_group", "init_distributed", "init_device_mesh"),
        after=_GROUP,
    ),
    Called("torch_checkpoint", ("checkpoint",), ("function",), ("torch.utils.checkpoint",)),
    Called("torch_state", ("StateDictOptions",), ("full_state_dict", "cpu_offload"), _TORCH),
    Called(
        "torch_dcp",
        ("save", "load", "async_save"),
        ("state_dict",),
        ("torch.distributed.checkpoint",),
        after=_GROUP,
    ),
    Called("torch_fsdp", ("FullyShardedDataParallel",), _FSDP, _TORCH, uses=True),
    Called(
        "torch_summon",
        ("summon_full_params",),
        ("module", "recurse", "writeback", "rank0_only", "offload_to_cpu"),
        _TORCH,
    ),
    Called("torch_shard", ("fully_shard",), ("module",), _TORCH, uses=True),
    Called("torch_plan", ("parallelize_module",), ("module", "device_mesh", "parallelize_plan"), _TORCH),
    Called("torch_stage", ("PipelineStage",), ("submodule", "stage_index", "num_stages", "device"), _TORCH),
    Called(
        "torch_schedule",
        ("ScheduleZBVZeroBubble", "ScheduleDualPipeV"),
        ("stages", "n_microbatches"),
        _TORCH,
    ),
    Called("torch_1f1b", ("Schedule1F1B",), ("stage", "n_microbatches"), _TORCH),
    Called("torch_schedule_name", ("get_schedule_class",), ("schedule_name",), _TORCH),
    Called("torch_context", ("context_parallel",), ("mesh",), _TORCH),
    Called("torch_rpc", ("init_rpc",), ("name", "backend", "rank", "world_size"), _TORCH),
    Called("torch_device_map", ("set_device_map",), ("to", "device_map")),
    Called("torch_scaler", ("GradScaler",), within=("torch.amp", "torch.cuda.amp")),
    Called("torch_clip", ("clip_grad_norm_",), ("parameters", "max_norm"), ("torch.nn.utils",)),
    Called("deepspeed_initialize", ("initialize",), _INITIALIZE, ("deepspeed",), uses=True),
    Called(
        "deepspeed_distributed",
        ("init_distributed",),
        ("dist_backend", "auto_mpi_discovery", "distributed_port", "verbose", "timeout"),
        ("deepspeed",),
    ),
    Called("deepspeed_pipeline", ("PipelineModule",), _PIPELINE, ("deepspeed",)),
    Called("deepspeed_moe", ("MoE",), ("hidden_size", "expert", "num_experts", "ep_size"), ("deepspeed",)),
    Called("deepspeed_ulysses", ("register_with_transformers",), ("model_name_or_path",), ("deepspeed",)),
    Called("deepspeed_zero_init", ("Init",), within=("deepspeed.zero", "deepspeed.runtime.zero")),
    Called("horovod_optimizer", ("DistributedOptimizer",), _OPTIMIZER, ("horovod",)),
    Called(
        "horovod_broadcast",
        ("broadcast_parameters",),
        ("params", "root_rank"),
        ("horovod",),
        after=("load_state_dict",),
    ),
    Called("horovod_device", ("cuda",), ("device",), after=("init",)),
    Called("horovod_elastic", ("TorchState", "TensorFlowState", "TensorFlowKerasState"), (), ("horovod.",)),
    Called(
        "horovod_tape",
        ("gradient",),
        (),
        ("tape.",),
        lacks=("DistributedGradientTape", "DistributedOptimizer", "allreduce", "grouped_allreduce"),
    ),
    Called("horovod_fit", ("fit",), ("x", "y")),
    Called("horovod_sets", ("add_process_set",), ("process_set",), ("horovod",)),
    Called("horovod_init", ("init",), ("comm", "process_sets"), ("horovod",)),
    Called("horovod_state", ("broadcast_optimizer_state",), ("optimizer", "root_rank"), ("horovod",)),
    Called(
        "colossalai_hybrid", ("HybridParallelPlugin",), ("tp_size", "pp_size", "sp_size", "precision", "zero_stage")
    ),
    Called("colossalai_zero", ("LowLevelZeroPlugin",), ("stage", "precision")),
    Called("colossalai_gemini", ("GeminiPlugin",)),
    Called("colossalai_booster", ("Booster",), ("device", "mixed_precision", "plugin"), ("colossalai",), uses=True),
    Called("fairscale_ddp", ("ShardedDataParallel",), _SHARDED, ("fairscale",)),
    Called("fairscale_fsdp", ("FullyShardedDataParallel",), ("module",), ("fairscale",), uses=True),
    Called("fairscale_optimizer", ("OSS",), ("params", "optim"), ("fairscale",), uses=True),
    Called("fairscale_pipe", ("Pipe",), ("module", "balance"), ("fairscale",)),
)

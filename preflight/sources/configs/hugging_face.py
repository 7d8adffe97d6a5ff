"""The arguments of Hugging Face's trainer, of PaddleNLP's and of FSDP, and their claims, whichever file or line they
come from.

Source: accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin), utils/constants.py and commands/launch.py,
accelerate 1.15; transformers/training_args.py (fsdp, fsdp_config), transformers 5.23.

Source: transformers/training_args.py (transformers 4.36 to 5.23; a deprecated spelling has the same meaning as the new
one) and trl/trainer/model_config.py for `model_name_or_path`.

Source: paddlenlp/trainer/training_args.py (3.0.0b4) and paddleformers/trainer/training_args.py (1.2.0). They are stated
as `setting.paddlenlp.NAME`, and rules read them only where such a trainer is started.
"""

from __future__ import annotations

from collections.abc import Callable

from preflight.model.job import Known, Plain, Value, as_int, is_whole_number, lift
from preflight.model.job.value import Symbol

#: Settings without their `fsdp_` prefix, and their quantities.
QUANTITY_OF: dict[str, str] = {
    "version": "fsdp_version",
    "auto_wrap_policy": "fsdp_wrap_policy",
    "transformer_layer_cls_to_wrap": "fsdp_layer_classes",
    "sharding_strategy": "fsdp_sharding_strategy",
    "state_dict_type": "fsdp_state_dict_type",
    "backward_prefetch": "fsdp_backward_prefetch",
    "backward_prefetch_policy": "fsdp_backward_prefetch",
    "forward_prefetch": "fsdp_forward_prefetch",
    "offload_params": "fsdp_offload_params",
    "use_orig_params": "fsdp_use_orig_params",
    "cpu_ram_efficient_loading": "fsdp_cpu_ram_efficient_loading",
    "sync_module_states": "fsdp_sync_module_states",
    "reshard_after_forward": "fsdp_reshard_after_forward",
    "activation_checkpointing": "fsdp_activation_checkpointing",
}
#: Numbers in these lists count from 1.
_WORDS: dict[str, tuple[str, ...]] = {
    "fsdp_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "fsdp_sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
}
_TRUE = ("true", "1", "yes", "on", "y", "t")
_FALSE = ("false", "0", "no", "off", "n", "f", "")
_FSDP_SWITCHES = frozenset(
    [
        "fsdp_forward_prefetch",
        "fsdp_offload_params",
        "fsdp_use_orig_params",
        "fsdp_cpu_ram_efficient_loading",
        "fsdp_sync_module_states",
        "fsdp_activation_checkpointing",
    ]
)


def quantity_of(key: str) -> str | None:
    """The quantity of a setting, with or without the `fsdp_` prefix."""
    return QUANTITY_OF.get(key.removeprefix("fsdp_"))


def reading_of(quantity: str) -> Callable[[Value], Value]:
    """The function that reads the value of a setting."""
    if quantity in _FSDP_SWITCHES:
        return as_bool
    if quantity == "fsdp_version":
        return as_int
    if quantity == "fsdp_layer_classes":
        return as_names
    return lambda value: lift(lambda item: _word(quantity, item), value)


def as_bool(value: Value) -> Value:
    """`true`, `"True"`, 1 as booleans; anything else is unresolved."""
    return lift(_switch, value)


def as_names(value: Value) -> Value:
    """`A,B` and a list of names as a tuple of names."""
    return lift(_names, value)


def _switch(item: Plain) -> bool:
    text = str(item).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{item!r} is neither true nor false")


def _names(item: Plain) -> tuple[str, ...]:
    parts = item if isinstance(item, tuple) else str(item).split(",")
    return tuple(name for part in parts if (name := str(part).strip()))


def _word(quantity: str, item: Plain) -> str:
    text = str(item).strip()
    words = _WORDS.get(quantity, ())
    if is_whole_number(text) and 0 < int(text) <= len(words):
        return words[int(text) - 1]
    return text.upper() if words else text.lower()


Reader = Callable[[Value], Value]


def as_number(value: Value) -> Value:
    """Convert to a number, including strings that YAML does not read as one (`2e-5`)."""
    return lift(_number, value)


def as_text(value: Value) -> Value:
    """Convert to a string; YAML's bare `no` is false."""
    return lift(lambda item: "no" if item is False else str(item), value)


def _number(item: Plain) -> float:
    if isinstance(item, bool) or item is None or isinstance(item, tuple):
        raise ValueError(f"not a number: {item!r}")
    return float(item)


def as_degree(value: Value) -> Value:
    """A parallel size; -1 and 0 turn that kind of parallelism off or leave it to the library."""
    return lift(_degree, value)


def _degree(item: Plain) -> int:
    number = int(str(item))
    if number < 1:
        raise ValueError(f"{item}: {Symbol.LIBRARY_DEFAULT.value}")
    return number


#: Argument -> quantity and the function that reads its value.
SETTINGS: dict[str, tuple[str, Reader]] = {
    "per_device_train_batch_size": ("micro_batch_size_per_gpu", as_int),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", as_int),
    "learning_rate": ("learning_rate", as_number),
    "weight_decay": ("weight_decay", as_number),
    "warmup_steps": ("warmup_steps", as_number),
    "max_grad_norm": ("gradient_clipping", as_number),
    "ddp_timeout": ("process_group_timeout_s", as_int),
    "ddp_backend": ("backend", as_text),
    "dataloader_num_workers": ("dataloader_workers", as_int),
    "gradient_checkpointing": ("gradient_checkpointing", as_bool),
    "save_strategy": ("save_strategy", as_text),
    "save_steps": ("save_steps", as_number),
    "eval_strategy": ("eval_strategy", as_text),
    "evaluation_strategy": ("eval_strategy", as_text),
    "eval_steps": ("eval_steps", as_number),
    "load_best_model_at_end": ("load_best_model", as_bool),
    "fsdp_transformer_layer_cls_to_wrap": ("fsdp_layer_classes", as_names),
    "model_name_or_path": ("model_name", as_text),
    "output_dir": ("checkpoint_path", as_text),
    "save_total_limit": ("checkpoints_kept", as_int),
    # PaddleNLP's trainer, which has most of these arguments (paddlenlp/trainer/training_args.py, 2.8), and that of
    # PaddleFormers, which renamed them (paddleformers/trainer/training_args.py, 1.2).
    "tensor_parallel_degree": ("tensor_parallel_size", as_degree),
    "pipeline_parallel_degree": ("pipeline_parallel_size", as_degree),
    "sep_parallel_degree": ("context_parallel_size", as_degree),
    "sharding_parallel_degree": ("sharding_degree", as_degree),
    "sharding_degree": ("sharding_degree", as_degree),
    "sharding_parallel_size": ("sharding_degree", as_degree),
    "data_parallel_degree": ("data_parallel_size", as_degree),
    "data_parallel_size": ("data_parallel_size", as_degree),
    "tensor_model_parallel_size": ("tensor_parallel_size", as_degree),
    "pipeline_model_parallel_size": ("pipeline_parallel_size", as_degree),
    "context_parallel_degree": ("context_parallel_size", as_degree),
    "context_parallel_size": ("context_parallel_size", as_degree),
    "sep_parallel_size": ("context_parallel_size", as_degree),
    "expert_parallel_degree": ("expert_parallel_size", as_degree),
    "expert_model_parallel_size": ("expert_parallel_size", as_degree),
    "sharding": ("sharding_option", as_text),
    "amp_master_grad": ("amp_master_grad", as_bool),
}
#: Switches that select a precision when they are on.
PRECISIONS = ("fp16", "bf16")


def precision_of(name: str, value: Value) -> Value | None:
    """The precision that `fp16` or `bf16` selects; None when it is off or left to the library (`auto`)."""
    on = as_bool(value)
    return Known(name) if on == Known(True) else None


#: How the settings are named.
FRAMEWORK = "paddlenlp"
_WHOLE = (
    "tensor_parallel_degree pipeline_parallel_degree sharding_parallel_degree sharding_degree sep_parallel_degree"
    " context_parallel_degree expert_parallel_degree expert_tensor_parallel_degree data_parallel_degree"
    " tensor_model_parallel_size pipeline_model_parallel_size sharding_parallel_size expert_model_parallel_size"
    " sep_parallel_size context_parallel_size data_parallel_size per_device_train_batch_size"
    " per_device_eval_batch_size global_batch_size gradient_accumulation_steps logging_steps save_steps eval_steps"
    " warmup_steps fa_version virtual_pp_degree flash_device_save_steps zcc_ema_interval"
)
_PADDLE_SWITCHES = (
    "bf16 fp16 do_eval do_train amp_master_grad load_best_model_at_end unified_checkpoint enable_auto_parallel"
    " sequence_parallel use_expert_parallel split_param sharding_comm_group_call_opt sd_shardingv1_comm_overlap"
    " sd_sharding_comm_overlap sharding_comm_overlap recompute to_static distributed_dataloader"
    " tensorwise_offload_optimizer enable_zero_cost_checkpoint fuse_optimizer_states stage1_broadcast_overlap"
    " stage1_allgather_overlap"
)
_TEXTS = (
    "sharding pipeline_parallel_config tensor_parallel_config sharding_parallel_config unified_checkpoint_config"
    " hybrid_parallel_topo_order optim evaluation_strategy save_strategy refined_recompute save_checkpoint_format"
    " load_checkpoint_format fp16_opt_level device recompute_granularity stage data_parallel_config"
    " sequence_parallel_config lr_scheduler_type"
)
#: Each argument that a rule asks for, and what the parser makes of its text.
FIELDS: dict[str, str] = {
    **dict.fromkeys(_WHOLE.split(), "int"),
    **dict.fromkeys(_PADDLE_SWITCHES.split(), "bool"),
    **dict.fromkeys(_TEXTS.split(), "str"),
    "warmup_ratio": "float",
}
_PADDLE_TRUE = ("true", "t", "yes", "y", "1")
_PADDLE_FALSE = ("false", "f", "no", "n", "0")


def converted(name: str, item: Plain) -> Plain:
    """What the parser makes of the text of an argument; unchanged where it stops, since a rule quotes it."""
    kind, text = FIELDS[name], str(item)
    if kind == "bool":
        return True if text.lower() in _PADDLE_TRUE else False if text.lower() in _PADDLE_FALSE else item
    try:
        return int(text) if kind == "int" else float(text) if kind == "float" else item
    except ValueError:
        return item

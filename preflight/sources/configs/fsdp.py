"""FSDP settings of Accelerate and Hugging Face's trainer: their names, and the numbers that represent words.

Source: accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin), utils/constants.py and commands/launch.py,
accelerate 1.15; transformers/training_args.py (fsdp, fsdp_config), transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable

from preflight.model.job import Plain, Value, as_int, is_whole_number, lift

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
_SWITCHES = frozenset(
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
    if quantity in _SWITCHES:
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

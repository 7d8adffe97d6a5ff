"""The arguments of Hugging Face's trainer, of PaddleNLP's and of FSDP, and their claims, whichever file or line they
come from.

Source: accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin), utils/constants.py and commands/launch.py,
accelerate 1.15; transformers/training_args.py (fsdp, fsdp_config), transformers 5.23.

The table is `hugging_face.toml`. The arguments of Paddle's trainers are stated as `setting.paddlenlp.NAME`, and rules
read them only where such a trainer is started.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from preflight._util import toml
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


_READERS = {
    "int": as_int,
    "number": as_number,
    "text": as_text,
    "switch": as_bool,
    "names": as_names,
    "degree": as_degree,
}
_TABLE = toml.load(Path(__file__).with_name("hugging_face.toml"))
#: Argument -> quantity and the function that reads its value.
SETTINGS: dict[str, tuple[str, Reader]] = {
    name: (row["quantity"], _READERS[row["read"]]) for name, row in _TABLE["settings"].items()
}
#: Switches that select a precision when they are on.
PRECISIONS = ("fp16", "bf16")


def precision_of(name: str, value: Value) -> Value | None:
    """The precision that `fp16` or `bf16` selects; None when it is off or left to the library (`auto`)."""
    on = as_bool(value)
    return Known(name) if on == Known(True) else None


#: How the settings are named.
FRAMEWORK = "paddlenlp"
#: Each argument that a rule asks for, and what the parser makes of its text.
FIELDS: dict[str, str] = {name: kind for kind, names in _TABLE["paddle"].items() for name in names.split()}
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

"""The arguments of Hugging Face's trainer and their claims, whether they come from a command line, YAML or Python.

Source: transformers/training_args.py (transformers 4.36 to 5.23; a deprecated spelling has the same meaning as the new
one) and trl/trainer/model_config.py for `model_name_or_path`.
"""

from __future__ import annotations

from collections.abc import Callable

from preflight.model.job import Known, Plain, Value, as_int, lift
from preflight.model.job.symbols import Symbol
from preflight.sources.configs import fsdp

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
    "gradient_checkpointing": ("gradient_checkpointing", fsdp.as_bool),
    "save_strategy": ("save_strategy", as_text),
    "save_steps": ("save_steps", as_number),
    "eval_strategy": ("eval_strategy", as_text),
    "evaluation_strategy": ("eval_strategy", as_text),
    "eval_steps": ("eval_steps", as_number),
    "load_best_model_at_end": ("load_best_model", fsdp.as_bool),
    "fsdp_transformer_layer_cls_to_wrap": ("fsdp_layer_classes", fsdp.as_names),
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
    "amp_master_grad": ("amp_master_grad", fsdp.as_bool),
}
#: Switches that select a precision when they are on.
PRECISIONS = ("fp16", "bf16")


def precision_of(name: str, value: Value) -> Value | None:
    """The precision that `fp16` or `bf16` selects; None when it is off or left to the library (`auto`)."""
    on = fsdp.as_bool(value)
    return Known(name) if on == Known(True) else None

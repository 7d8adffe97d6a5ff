"""The arguments of PaddleNLP's trainer and that of PaddleFormers, beside those that transformers has as well.

Source: paddlenlp/trainer/training_args.py (3.0.0b4) and paddleformers/trainer/training_args.py (1.2.0). They are stated
as `setting.paddlenlp.NAME`, and rules read them only where such a trainer is started.
"""

from __future__ import annotations

from preflight.model.job import Plain

#: How the settings are named.
FRAMEWORK = "paddlenlp"
_WHOLE = (
    "tensor_parallel_degree pipeline_parallel_degree sharding_parallel_degree sharding_degree sep_parallel_degree"
    " context_parallel_degree expert_parallel_degree expert_tensor_parallel_degree data_parallel_degree"
    " tensor_model_parallel_size pipeline_model_parallel_size sharding_parallel_size expert_model_parallel_size"
    " sep_parallel_size context_parallel_size data_parallel_size per_device_train_batch_size"
    " per_device_eval_batch_size global_batch_size gradient_accumulation_steps logging_steps save_steps eval_steps"
    " warmup_steps fa_version virtual_pp_degree"
)
_SWITCHES = (
    "bf16 fp16 do_eval do_train amp_master_grad load_best_model_at_end unified_checkpoint enable_auto_parallel"
    " sequence_parallel use_expert_parallel split_param sharding_comm_group_call_opt sd_shardingv1_comm_overlap"
    " sd_sharding_comm_overlap sharding_comm_overlap recompute"
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
    **dict.fromkeys(_SWITCHES.split(), "bool"),
    **dict.fromkeys(_TEXTS.split(), "str"),
    "warmup_ratio": "float",
}
_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")


def converted(name: str, item: Plain) -> Plain:
    """What the parser makes of the text of an argument; unchanged where it stops, since a rule quotes it."""
    kind, text = FIELDS[name], str(item)
    if kind == "bool":
        return True if text.lower() in _TRUE else False if text.lower() in _FALSE else item
    try:
        return int(text) if kind == "int" else float(text) if kind == "float" else item
    except ValueError:
        return item

"""verl's configuration of `main_ppo`, given as overrides on the line: FSDP and Megatron, with and without a critic."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.frameworks.base import Framework, Seed

_VERSION = "0.9.1"
_REQUIREMENTS = f"verl=={_VERSION}\ntorch==2.13.0\n"


def _render(form: str, settings: dict[str, Any]) -> Case:
    rows, lines = ["python3 -m verl.trainer.main_ppo"], dict[str, int]()
    for key, value in _flat(settings):
        rows.append(f"  {key}={_word(value)}")
        lines[key] = len(rows) + 2
    text = "#!/bin/bash\npip install -r requirements.txt\n" + " \\\n".join(rows) + "\n"
    return Case("verl", form, {"run.sh": text, "requirements.txt": _REQUIREMENTS}, lines={"run.sh": lines})


def _flat(settings: dict[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found = []
    for key, value in settings.items():
        path = f"{above}.{key}" if above else key
        found += _flat(value, path) if isinstance(value, dict) else [(path, value)]
    return found


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"'[{','.join(map(str, value))}]'"
    text = str(value)
    return f"'{text}'" if any(sign in text for sign in " $~*") else text


_DATA = {
    "train_files": "/data/gsm8k/train.parquet",
    "val_files": "/data/gsm8k/test.parquet",
    "train_batch_size": 256,
    "max_prompt_length": 512,
    "max_response_length": 1024,
    "filter_overlong_prompts": True,
    "truncation": "error",
}
_TRAINER = {
    "critic_warmup": 0,
    "logger": ["console", "wandb"],
    "project_name": "gsm8k",
    "experiment_name": "qwen3",
    "n_gpus_per_node": 8,
    "nnodes": 1,
    "save_freq": 20,
    "test_freq": 5,
    "total_epochs": 15,
}
_ROLLOUT = {
    "log_prob_micro_batch_size_per_gpu": 32,
    "tensor_model_parallel_size": 2,
    "name": "vllm",
    "gpu_memory_utilization": 0.6,
    "n": 8,
}
_MODEL = {"path": "Qwen/Qwen3-8B", "use_remove_padding": True, "enable_gradient_checkpointing": True}
_ACTOR: dict[str, Any] = {
    "optim": {"lr": 1e-6},
    "ppo_mini_batch_size": 64,
    "ppo_micro_batch_size_per_gpu": 8,
    "use_kl_loss": True,
    "kl_loss_coef": 0.001,
    "kl_loss_type": "low_var_kl",
    "entropy_coeff": 0,
}
_FSDP = {"fsdp_config": {"param_offload": False, "optimizer_offload": False}}
_GRPO: dict[str, Any] = {
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": _DATA,
    "actor_rollout_ref": {
        "model": _MODEL,
        "actor": {**_ACTOR, **_FSDP},
        "rollout": _ROLLOUT,
        "ref": {"log_prob_micro_batch_size_per_gpu": 32, "fsdp_config": {"param_offload": True}},
    },
    "trainer": _TRAINER,
}
_CRITIC: dict[str, Any] = {
    "optim": {"lr": 1e-5},
    "ppo_mini_batch_size": 64,
    "ppo_micro_batch_size_per_gpu": 8,
    "model": {"path": "Qwen/Qwen3-8B", "use_remove_padding": True},
}
_PPO: dict[str, Any] = {
    **_GRPO,
    "algorithm": {"adv_estimator": "gae", "use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.001}},
    "actor_rollout_ref": {
        **_GRPO["actor_rollout_ref"],
        "actor": {**_ACTOR, **_FSDP, "use_kl_loss": False, "strategy": "fsdp2"},
        "rollout": {**_ROLLOUT, "n": 1},
    },
    "critic": {**_CRITIC, "strategy": "fsdp2"},
}
_DYNAMIC: dict[str, Any] = {
    **_GRPO,
    "actor_rollout_ref": {
        "model": _MODEL,
        "actor": {
            "optim": {"lr": 1e-6, "lr_scheduler_type": "cosine", "lr_warmup_steps": 10},
            "ppo_mini_batch_size": 32,
            "use_dynamic_bsz": True,
            "ppo_max_token_len_per_gpu": 16384,
            "ulysses_sequence_parallel_size": 2,
            "loss_agg_mode": "token-mean",
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.28,
        },
        "rollout": {"name": "sglang", "tensor_model_parallel_size": 4, "n": 16, "temperature": 1.0},
    },
    "trainer": {**_TRAINER, "nnodes": 4},
}
_A, _R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_SHARED: dict[str, tuple[Any, ...]] = {
    "data.train_batch_size": (8, 32, 64, 100, 128, 250, 512, 1024, 1),
    f"{_R}.n": (1, 2, 3, 4, 5, 8, 16),
    f"{_A}.ppo_mini_batch_size": (16, 64, 256, 512, 1024, 48),
    f"{_A}.ppo_micro_batch_size": (8, 16, 32, 64, 4, 7),
    f"{_A}.ppo_micro_batch_size_per_gpu": (1, 2, 4, 8, 16, None),
    f"{_A}.use_dynamic_bsz": (True, False),
    f"{_A}.loss_agg_mode": ("token-mean", "seq-mean-token-sum", "token_mean", "mean", "seq-mean-token-sum-norm"),
    f"{_A}.strategy": ("fsdp", "fsdp2", "megatron", "deepspeed", "fsdp3"),
    f"{_A}.use_kl_loss": (True, False),
    f"{_A}.optim.lr": (1e-6, 5e-7),
    f"{_A}.policy_loss.loss_mode": ("vanilla", "gspo"),
    f"{_A}.router_replay.mode": ("R2", "R3", "record"),
    f"{_A}.clip_ratio_hi": (0.28,),
    f"{_A}.batch_size": (64,),
    f"{_A}.micro_batch_size_per_gpu": (8,),
    f"{_A}.ppo_epochs": (1, 2),
    f"{_A}.use_torch_compile": (True, False),
    f"{_R}.log_prob_micro_batch_size": (None, 32, 64),
    f"{_R}.log_prob_micro_batch_size_per_gpu": (None, 8, 16, 32),
    f"{_R}.mode": ("sync", "async"),
    f"{_R}.name": ("vllm", "sglang", "hf", "trtllm"),
    f"{_R}.expert_parallel_size": (1, 2, 4, 8),
    f"{_R}.data_parallel_size": (1, 2, 4),
    f"{_R}.moe_tensor_parallel_size": (1, 2, 4),
    f"{_R}.pipeline_model_parallel_size": (1, 2),
    f"{_R}.tensor_model_parallel_size": (1, 2, 4, 8),
    f"{_R}.temperature": (0, 0.0, 1.0, 0.6, -1),
    f"{_R}.val_kwargs.do_sample": (True, False),
    f"{_R}.tensor_parallel_size": (2,),
    f"{_R}.max_num_batched_tokens": (8192, 16384),
    f"{_R}.enforce_eager": (True, False),
    f"{_R}.free_cache_engine": (True, False),
    f"{_R}.disaggregation.enabled": (True,),
    f"{_R}.multi_turn.enable": (True,),
    f"{_R}.agent.num_workers": (8,),
    "actor_rollout_ref.ref.log_prob_micro_batch_size": (16, 32, None),
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": (16, None),
    "actor_rollout_ref.model.lora_rank": (0, 8, 32, 64, 513, 1024),
    "actor_rollout_ref.model.lora_alpha": (32,),
    "actor_rollout_ref.model.use_remove_padding": (True, False),
    "actor_rollout_ref.model.trust_remote_code": (True,),
    "actor_rollout_ref.model.target_modules": ("all-linear",),
    "algorithm.adv_estimator": ("grpo", "gae", "rloo", "reinforce_plus_plus", "remax"),
    "algorithm.use_kl_in_reward": (True, False),
    "algorithm.kl_penalty": ("kl", "low_var_kl"),
    "algorithm.norm_adv_by_std_in_grpo": (True, False),
    "trainer.n_gpus_per_node": (1, 2, 4, 6, 8, 16),
    "trainer.nnodes": (1, 2, 3, 4),
    "trainer.val_before_train": (True, False),
    "trainer.resume_mode": ("auto", "disable"),
    "trainer.num_nodes": (2,),
    "trainer.gpus_per_node": (8,),
    "trainer.total_training_steps": (100,),
    "data.val_batch_size": (None, 128),
    "data.shuffle": (True, False),
    "data.max_length": (2048,),
    "critic.enable": (True, False),
    "critic.ppo_mini_batch_size": (32, 512),
    "critic.ppo_micro_batch_size": (8, 4, 7),
    "critic.ppo_micro_batch_size_per_gpu": (4, None),
}
_DENSE = {
    **_SHARED,
    f"{_A}.ulysses_sequence_parallel_size": (1, 2, 4, 8),
    f"{_A}.optim.lr_scheduler_type": ("constant", "cosine", "linear"),
    f"{_A}.optim.warmup_style": ("constant", "cosine", "linear", None),
    f"{_A}.fsdp_config.model_dtype": ("bf16", "fp32"),
    f"{_A}.fsdp_config.fsdp_size": (-1, 8),
    f"{_A}.fsdp_config.strategy": ("fsdp", "fsdp2", "ddp"),
    f"{_A}.fsdp_config.forward_prefetch": (True,),
    f"{_A}.megatron.tensor_model_parallel_size": (2,),
    "critic.ulysses_sequence_parallel_size": (1, 2),
    "critic.strategy": ("fsdp", "fsdp2"),
}
_CORE = {
    **_SHARED,
    f"{_A}.megatron.tensor_model_parallel_size": (1, 2, 3, 4, 8),
    f"{_A}.megatron.pipeline_model_parallel_size": (1, 2, 4, 3),
    f"{_A}.megatron.context_parallel_size": (1, 2, 3),
    f"{_A}.megatron.expert_model_parallel_size": (1, 2),
    f"{_A}.megatron.dtype": ("bfloat16", "float16", "bf16", "float32"),
    f"{_A}.megatron.sequence_parallel": (True, False),
    f"{_A}.megatron.dynamic_context_parallel": (True,),
    f"{_A}.megatron.max_seqlen_per_dp_cp_rank": (None, 4096, 0),
    f"{_A}.megatron.use_dist_checkpointing": (True,),
    f"{_A}.megatron.tensor_parallel_size": (2,),
    f"{_A}.optim.lr_decay_style": ("cosine", "constant"),
    f"{_A}.fsdp_config.param_offload": (True,),
}
FRAMEWORK = Framework(
    name="verl",
    distribution="verl",
    version=_VERSION,
    requirements=("hydra-core==1.3.8", "numpy", "packaging", "cloudpickle", "psutil"),
    alone=(f"verl=={_VERSION}",),
    validator="verl_validator.py",
    seeds=(
        Seed("fsdp", _GRPO),
        Seed("fsdp", _PPO),
        Seed("fsdp", _DYNAMIC),
    ),
    space={"fsdp": _DENSE, "megatron": _CORE},
    render=_render,
    keep=frozenset(
        (
            "model_engine",
            *("data", "algorithm", "algorithm.kl_ctrl", "actor_rollout_ref", "trainer", "critic", "critic.model"),
            *("critic.optim", "critic.megatron", "actor_rollout_ref.actor", "actor_rollout_ref.actor.optim"),
            *("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.actor.megatron", "actor_rollout_ref.rollout"),
            *("actor_rollout_ref.model", "actor_rollout_ref.ref", "actor_rollout_ref.ref.fsdp_config"),
            "actor_rollout_ref.ref.megatron",
        )
    ),
)

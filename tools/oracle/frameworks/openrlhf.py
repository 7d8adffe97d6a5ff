"""The arguments of OpenRLHF's `train_ppo_ray`: PPO, REINFORCE++ and GRPO over Ray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.oracle.cases import Case, Change
from tools.oracle.documents import Words, flags_text
from tools.oracle.frameworks.base import Framework, Seed
from tools.oracle.mutation import apply

_VERSION = "0.11.2"
_REQUIREMENTS = f"openrlhf=={_VERSION}\ntorch==2.13.0\n"
_LINES = {
    "plain": "python3 -m openrlhf.cli.train_ppo_ray",
    "job": "ray job submit --address=http://127.0.0.1:8265 -- python3 -m openrlhf.cli.train_ppo_ray",
}


def _render(form: str, settings: dict[str, Any]) -> Case:
    # Two numbers are two words.
    flat = {key: Words(value) if isinstance(value, list) else value for key, value in _flat(settings)}
    text, lines = flags_text(_LINES[form], flat)
    shifted = {"run.sh": {key: line + 2 for key, line in lines.items()}}
    files = {"run.sh": f"#!/bin/bash\npip install -r requirements.txt\n{text}", "requirements.txt": _REQUIREMENTS}
    return Case("openrlhf", form, files, lines=shifted)


def _flat(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        path = f"{above}.{key}" if above else key
        if isinstance(value, dict):
            yield from _flat(value, path)
        else:
            yield path, value


def _nested(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings in sections, as their names have dots."""
    made: dict[str, Any] = {}
    for key, value in settings.items():
        apply(made, Change(key, "value", value))
    return made


_SHARED: dict[str, Any] = {
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 8,
    "ref.num_nodes": 1,
    "ref.num_gpus_per_node": 8,
    "actor.model_name_or_path": "OpenRLHF/Llama-3-8b-sft-mixture",
    "ckpt.output_dir": "/data/checkpoint",
    "ckpt.save_hf": True,
    "train.micro_batch_size": 8,
    "train.batch_size": 128,
    "rollout.micro_batch_size": 16,
    "rollout.batch_size": 1024,
    "data.max_samples": 100000,
    "train.max_epochs": 1,
    "data.max_len": 4096,
    "ds.zero_stage": 3,
    "ds.param_dtype": "bf16",
    "actor.adam.lr": 5e-7,
    "algo.kl.init_coef": 0.01,
    "data.prompt_dataset": "OpenRLHF/prompt-collection-v0.1",
    "data.input_key": "context_messages",
    "data.apply_chat_template": True,
    "actor.gradient_checkpointing_enable": True,
}
_PPO: dict[str, Any] = {
    **_SHARED,
    "reward.num_nodes": 1,
    "reward.num_gpus_per_node": 2,
    "critic.num_nodes": 1,
    "critic.num_gpus_per_node": 2,
    "vllm.num_engines": 4,
    "vllm.tensor_parallel_size": 2,
    "reward.model_name_or_path": "OpenRLHF/Llama-3-8b-rm-mixture",
    "critic.adam.lr": 9e-6,
    "train.colocate_critic_reward": True,
    "train.colocate_actor_ref": True,
    "reward.normalize_enable": True,
    "ds.packing_samples": True,
}
_COLOCATED: dict[str, Any] = {
    **_SHARED,
    "vllm.num_engines": 4,
    "vllm.tensor_parallel_size": 2,
    "train.colocate_all": True,
    "vllm.enable_sleep": True,
    "ds.enable_sleep": True,
    "vllm.gpu_memory_utilization": 0.6,
    "algo.advantage.estimator": "reinforce_baseline",
    "rollout.n_samples_per_prompt": 8,
    "reward.remote_url": "http://127.0.0.1:5000/get_reward",
    "actor.eps_clip_low_high": [0.2, 0.3],
    "ds.ring_attn_size": 2,
    "ds.packing_samples": True,
}
_ASYNC: dict[str, Any] = {
    **_SHARED,
    "vllm.num_engines": 4,
    "vllm.tensor_parallel_size": 1,
    "train.async_enable": True,
    "train.partial_rollout_enable": True,
    "train.agent_func_path": "agent.py",
    "algo.advantage.estimator": "group_norm",
    "rollout.n_samples_per_prompt": 4,
    "rollout.vllm_generate_batch_size": 2048,
    "algo.dynamic_filtering_enable": True,
    "algo.dynamic_filtering_range": [0.0, 1.0],
    "algo.kl.use_loss": True,
    "algo.kl.estimator": "k3",
    "eval.dataset": "/data/eval.jsonl",
}
_SPACE: dict[str, tuple[Any, ...]] = {
    "actor.num_nodes": (1, 2, 4),
    "actor.num_gpus_per_node": (1, 2, 4, 8),
    "ref.num_nodes": (1, 2),
    "ref.num_gpus_per_node": (2, 4, 8),
    "reward.num_gpus_per_node": (2, 4),
    "critic.num_gpus_per_node": (2, 4),
    "critic.num_nodes": (1, 2),
    "vllm.num_engines": (0, 1, 2, 4, 8),
    "vllm.tensor_parallel_size": (1, 2, 4),
    "vllm.sync_backend": ("nccl", "gloo"),
    "vllm.enable_sleep": (True, False),
    "vllm.enforce_eager": (True,),
    "vllm.num_engine": (4,),
    "train.colocate_all": (True, False),
    "train.colocate_actor_ref": (True, False),
    "train.colocate_critic_reward": (True, False),
    "train.async_enable": (True, False),
    "train.partial_rollout_enable": (True, False),
    "train.agent_func_path": ("agent.py", False),
    "train.batch_size": (128, 256),
    "train.dynamic_batch_enable": (True,),
    "rollout.batch_size": (8, 64, 1024),
    "rollout.micro_batch_size": (1, 4, 16, 4096),
    "rollout.n_samples_per_prompt": (1, 2, 8),
    "rollout.n_samples": (8,),
    "rollout.vllm_generate_batch_size": (512, 4096),
    "rollout.temperature": (0.6, 1.0),
    "rollout.top_p": (0.9,),
    "algo.advantage.estimator": ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "grpo"),
    "algo.advantage.is_correction_level": ("off", "token", "seq", "sequence"),
    "algo.advantage.is_correction_mode": ("mask", "clip"),
    "algo.advantage.is_correction_threshold": ([0.5, 2.0], [5.0], [0.1, 0.5, 5.0]),
    "algo.kl.estimator": ("k1", "k2", "k3", "kl"),
    "algo.kl.init_coef": (0, 0.01, 0.0),
    "algo.kl.use_loss": (True, False),
    "algo.dynamic_filtering_enable": (True, False),
    "algo.dynamic_filtering_range": ([0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [0.5]),
    "actor.eps_clip_low_high": ([0.2, 0.3], [0.2]),
    "actor.policy_loss_type": ("ppo", "gspo", "grpo"),
    "actor.loss_agg_mode": ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"),
    "actor.optim": ("adam", "muon", "adamw"),
    "actor.learning_rate": (1e-6,),
    "actor_num_nodes": (1,),
    "actor_num_gpus_per_node": (8,),
    "colocate_all_models": (True,),
    "vllm_num_engines": (4,),
    "train_batch_size": (128,),
    "n_samples_per_prompt": (8,),
    "advantage_estimator": ("rloo",),
    "packing_samples": (True,),
    "zero_stage": (3,),
    "bf16": (True,),
    "ds.param_dtype": ("bf16", "fp16", "float16", "fp32"),
    "ds.zero_stage": (2, 3),
    "ds.packing_samples": (True, False),
    "ds.ring_attn_size": (1, 2, 4),
    "ds.tensor_parallel_size": (1, 2),
    "ds.attn_implementation": ("flash_attention_2", "eager"),
    "ds.experts_implementation": ("eager", "grouped_mm", "triton"),
    "ds.lora.rank": (0, 16),
    "data.max_images_per_prompt": (0, 1),
    "data.image_key": ("images",),
    "eval.dataset": ("/data/eval.jsonl", False),
    "eval.steps": (10,),
    "reward.remote_url": ("http://127.0.0.1:5000/get_reward", False),
    "reward.model_name_or_path": ("OpenRLHF/Llama-3-8b-rm-mixture", False),
    "reward.clip_range": ([-10, 10], [10]),
    "critic.model_name_or_path": ("OpenRLHF/critic",),
    "logger.wandb.key": ("offline",),
}
FRAMEWORK = Framework(
    name="openrlhf",
    distribution="openrlhf",
    version=_VERSION,
    requirements=(),
    alone=(f"openrlhf=={_VERSION}",),
    needs_torch=False,
    validator="openrlhf_validator.py",
    seeds=(Seed("plain", _nested(_PPO)), Seed("job", _nested(_COLOCATED)), Seed("plain", _nested(_ASYNC))),
    space={"plain": _SPACE, "job": _SPACE},
    render=_render,
    keep=frozenset(
        (
            *("actor", "actor.adam", "algo", "algo.advantage", "algo.kl", "ckpt", "critic", "critic.adam", "data"),
            *("ds", "eval", "ref", "reward", "rollout", "train", "vllm"),
        )
    ),
)

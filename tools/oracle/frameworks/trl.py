"""The configurations of TRL's trainers, made in a script: SFT, DPO, GRPO, RLOO, KTO and reward models."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.frameworks.base import Framework, Seed

_VERSION = "1.16.0"
_PINS = f"trl=={_VERSION}\ntransformers==5.24.0\naccelerate==1.15.0\ntorch==2.13.0\n"
_RUN = "#!/bin/bash\npip install -r requirements.txt\ntorchrun --standalone --nproc_per_node 8 train.py\n"
_CLASSES = {"sft": "SFT", "dpo": "DPO", "grpo": "GRPO", "rloo": "RLOO", "kto": "KTO", "reward": "Reward"}


def _render(form: str, settings: dict[str, Any]) -> Case:
    name = _CLASSES[form]
    given = {key: value for key, value in settings.items() if key.isidentifier()}
    rows = [
        "from datasets import load_dataset",
        f"from trl import {name}Config, {name}Trainer",
        "",
        f"training_args = {name}Config(",
    ]
    lines = {key: len(rows) + number for number, key in enumerate(given, start=1)}
    rows += [f"    {key}={value!r}," for key, value in given.items()]
    rows += [
        ")",
        'data = load_dataset("json", data_files="train.jsonl")["train"]',
        f'trainer = {name}Trainer(model="Qwen/Qwen2.5-0.5B", args=training_args, train_dataset=data)',
        "trainer.train()",
        "",
    ]
    files = {"train.py": "\n".join(rows), "requirements.txt": _PINS, "run.sh": _RUN}
    return Case("trl", form, files, lines={"train.py": lines})


_BASE: dict[str, Any] = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "learning_rate": 2e-5,
    "num_train_epochs": 1,
    "bf16": True,
    "logging_steps": 10,
    "save_steps": 200,
}
_SFT = {**_BASE, "max_length": 2048, "packing": True, "packing_strategy": "bfd", "assistant_only_loss": False}
_DPO = {**_BASE, "beta": 0.1, "loss_type": ["sigmoid"], "max_length": 1024, "precompute_ref_log_probs": False}
_GRPO = {
    **_BASE,
    "num_generations": 8,
    "max_completion_length": 256,
    "beta": 0.0,
    "temperature": 1.0,
    "use_vllm": True,
    "vllm_mode": "colocate",
    "scale_rewards": "group",
    "log_completions": True,
}
_GRPO_EVALUATED = {
    **_GRPO,
    "per_device_eval_batch_size": 8,
    "eval_strategy": "steps",
    "eval_steps": 100,
    "steps_per_generation": 8,
}
_RLOO = {**_BASE, "num_generations": 4, "max_completion_length": 128, "beta": 0.05, "num_iterations": 1}
_KTO = {**_BASE, "beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.33, "max_length": 1024}
_REWARD = {**_BASE, "max_length": 1024, "center_rewards_coefficient": 0.01, "eval_strategy": "no"}
_SHARED: dict[str, tuple[Any, ...]] = {
    "fp16": (True, False),
    "bf16": (True, False, None),
    "eval_strategy": ("no", "steps", "epoch", "step"),
    "evaluation_strategy": ("steps",),
    "save_strategy": ("no", "steps", "epoch", "never"),
    "lr_scheduler_type": ("cosine", "linear", "cosine_decay"),
    "optim": ("adamw_torch", "adamw_8bit", "adam"),
    "warmup_ratio": (0.1,),
    "warmup_steps": (10, -1, 0.1),
    "dataloader_prefetch_factor": (2,),
    "dataloader_num_workers": (0, 4),
    "load_best_model_at_end": (True,),
    "pad_to_multiple_of": (8, "auto", "none", "eight"),
    "max_seq_length": (1024,),
    "max_prompt_length": (512,),
    "dataset_text_field": ("text",),
    "tokenizer": ("gpt2",),
    "batch_size": (8,),
    "num_epochs": (3,),
    "gradient_checkpointing": (True, False),
    "torch_empty_cache_steps": (10, 0),
    "report_to": ("none",),
}
_ONLINE: dict[str, tuple[Any, ...]] = {
    **_SHARED,
    "num_generations": (1, 2, 3, 4, 7, 8, 16, 64),
    "num_generations_eval": (2, 3, 5),
    "generation_batch_size": (32, 64, 128, 100, 16),
    "steps_per_generation": (1, 2, 4, 8),
    "per_device_train_batch_size": (1, 2, 3, 8),
    "per_device_eval_batch_size": (1, 3, 8),
    "gradient_accumulation_steps": (1, 2, 3, 8),
    "auto_find_batch_size": (True, False),
    "do_eval": (True,),
    "eval_steps": (50, 100),
    "log_completions": (True, False),
    "log_completions_hub_repo": ("me/completions",),
    "max_completion_length": (128, 512),
    "use_vllm": (True, False),
    "vllm_mode": ("server", "colocate"),
    "vllm_tensor_parallel_size": (1, 2),
    "vllm_gpu_memory_utilization": (0.3, 0.9),
    "num_generation": (8,),
    "reward_weights": ([1.0],),
}
FRAMEWORK = Framework(
    name="trl",
    distribution="trl",
    version=_VERSION,
    requirements=("transformers==5.24.0", "datasets==4.8.4", "psutil"),
    alone=(f"trl=={_VERSION}", "accelerate==1.15.0"),
    validator="trl_validator.py",
    seeds=(
        Seed("sft", _SFT),
        Seed("dpo", _DPO),
        Seed("grpo", _GRPO),
        Seed("grpo", _GRPO_EVALUATED),
        Seed("rloo", _RLOO),
        Seed("kto", _KTO),
        Seed("reward", _REWARD),
    ),
    space={
        "sft": {**_SHARED, "packing": (True, False), "loss_type": ("nll", "dft"), "eval_packing": (True,)},
        "dpo": {
            **_SHARED,
            "loss_type": (["sigmoid", "sft"], "ipo", ["sigmoid"]),
            "loss_weights": ([1.0], [0.8, 0.2], [1.0, 0.5, 0.2]),
            "rpo_alpha": (1.0,),
        },
        "grpo": {
            **_ONLINE,
            "vllm_importance_sampling_clip_min": (0.5, 2.0, 4.0),
            "vllm_importance_sampling_clip_max": (2.0, 0.5, None),
            "vllm_importance_sampling_mode": ("token_truncate", "sequence_mask"),
            "loss_type": ("grpo", "dapo", "bnpo"),
            "scale_rewards": (True, False, "batch"),
        },
        "rloo": _ONLINE,
        "kto": {**_SHARED, "loss_type": ("kto", "apo_zero_unpaired")},
        "reward": _SHARED,
    },
    render=_render,
)

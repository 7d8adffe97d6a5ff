"""LLaMA-Factory's training arguments in a YAML file, also with DeepSpeed."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import json_text, yaml_text
from tools.oracle.frameworks.base import Framework, Seed

_VERSION = "0.9.5"
_PINS = {"transformers": "5.6.0", "accelerate": "1.11.0", "trl": "0.24.0", "peft": "0.18.1", "deepspeed": "0.19.8"}
_REQUIREMENTS = f"llamafactory=={_VERSION}\ntorch==2.13.0\n" + "".join(f"{k}=={v}\n" for k, v in _PINS.items())
_RUN = """\
#!/bin/bash
pip install -r requirements.txt
FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train train.yaml
"""


def _render(form: str, settings: dict[str, Any]) -> Case:
    own = {key: value for key, value in settings.items() if key != "ds"}
    files, lines = {"requirements.txt": _REQUIREMENTS, "run.sh": _RUN}, {}
    if "ds" in settings:
        files["ds.json"], found = json_text(settings["ds"] if isinstance(settings["ds"], dict) else {})
        lines["ds.json"] = {f"ds.{key}": line for key, line in found.items()}
    files["train.yaml"], lines["train.yaml"] = yaml_text(own)
    return Case("llamafactory", form, files, ("train.yaml",), lines=lines)


_BASE: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen3-4B-Instruct-2507",
    "trust_remote_code": True,
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "lora_rank": 8,
    "lora_target": "all",
    "dataset": "identity,alpaca_en_demo",
    "template": "qwen3_nothink",
    "cutoff_len": 2048,
    "max_samples": 1000,
    "preprocessing_num_workers": 16,
    "dataloader_num_workers": 4,
    "output_dir": "saves/qwen3-4b/lora/sft",
    "logging_steps": 10,
    "save_steps": 500,
    "plot_loss": True,
    "report_to": "none",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "learning_rate": 1e-4,
    "num_train_epochs": 3.0,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.1,
    "bf16": True,
    "ddp_timeout": 180000000,
}
_WITHOUT_LORA = {key: value for key, value in _BASE.items() if not key.startswith("lora")}
_EVALUATED = {
    **_BASE,
    "val_size": 0.1,
    "per_device_eval_batch_size": 1,
    "eval_strategy": "steps",
    "eval_steps": 500,
    "load_best_model_at_end": True,
}
_STAGE3: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "overlap_comm": False, "contiguous_gradients": True},
}
_FULL_DS3 = {**_WITHOUT_LORA, "finetuning_type": "full", "deepspeed": "ds.json", "ds": _STAGE3}
_LORA_DS2 = {
    **_EVALUATED,
    "deepspeed": "ds.json",
    "ds": {**_STAGE3, "zero_optimization": {"stage": 2, "allgather_partitions": True, "reduce_bucket_size": 500000000}},
}
_DPO = {**_BASE, "stage": "dpo", "dataset": "dpo_en_demo", "pref_beta": 0.1, "pref_loss": "sigmoid"}
_KTO = {**_BASE, "stage": "kto", "dataset": "kto_en_demo", "pref_beta": 0.1, "kto_chosen_weight": 1.0}
_REWARD = {**_EVALUATED, "stage": "rm", "load_best_model_at_end": False}
_PPO = {**_BASE, "stage": "ppo", "reward_model": "saves/qwen3-4b/lora/reward", "ppo_epochs": 4, "top_p": 0.9}
_PRETRAIN = {**_BASE, "stage": "pt", "dataset": "c4_demo", "streaming": True, "max_steps": 10000, "buffer_size": 8192}
del _PRETRAIN["max_samples"]
_GALORE = {
    **_WITHOUT_LORA,
    "finetuning_type": "full",
    "use_galore": True,
    "galore_target": "mlp,self_attn",
    "galore_rank": 128,
    "pure_bf16": True,
}
del _GALORE["bf16"]
_QUANTIZED = {
    **_BASE,
    "quantization_bit": 4,
    "quantization_method": "bnb",
    "double_quantization": True,
    "use_dora": True,
}
_FREEZE = {**_WITHOUT_LORA, "finetuning_type": "freeze", "freeze_trainable_layers": 8, "use_llama_pro": True}
_PREDICT = {
    **_BASE,
    "do_train": False,
    "do_predict": True,
    "predict_with_generate": True,
    "eval_dataset": "identity",
    "max_new_tokens": 256,
}
_BADAM = {**_WITHOUT_LORA, "finetuning_type": "full", "use_badam": True, "badam_mode": "layer", "deepspeed": "ds.json"}
_BADAM["ds"] = _STAGE3

_SPACE: dict[str, tuple[Any, ...]] = {
    "stage": ("pt", "sft", "rm", "ppo", "dpo", "kto", "orpo", "grpo"),
    "finetuning_type": ("lora", "oft", "freeze", "full", "qlora", "dora"),
    "do_train": (True, False),
    "do_eval": (True, False),
    "do_predict": (True,),
    "predict_with_generate": (True, False),
    "dataset": ("identity", "identity,alpaca_en_demo", None, ["identity"]),
    "eval_dataset": ("identity", None),
    "val_size": (0, 0.1, 100, 0.0, 500.0),
    "streaming": (True, False),
    "max_steps": (-1, 100, 1000),
    "max_samples": (100, None),
    "mix_strategy": ("concat", "interleave_under", "interleave_over"),
    "interleave_probs": ("0.5,0.5", "0.2,0.3,0.5", "1.0", "half,half"),
    "packing": (True, False),
    "neat_packing": (True, False),
    "train_on_prompt": (True,),
    "mask_history": (True,),
    "cutoff_len": (512, 4096, 131072),
    "quantization_bit": (4, 8, 3),
    "quantization_method": ("bnb", "hqq", "awq"),
    "quantization_device_map": ("auto",),
    "adapter_name_or_path": ("saves/a", "saves/a,saves/b", ["saves/a"]),
    "create_new_adapter": (True, False),
    "resize_vocab": (True,),
    "add_tokens": ("<a>,<b>", ["<a>"]),
    "flash_attn": ("auto", "fa2", "sdpa", "flash"),
    "shift_attn": (True,),
    "rope_scaling": ("linear", "dynamic", "yarn"),
    "infer_backend": ("huggingface", "vllm", "sglang", "hf"),
    "use_unsloth": (True, False),
    "enable_liger_kernel": (True,),
    "use_unsloth_gc": (True,),
    "image_max_pixels": (262144, 100),
    "image_min_pixels": (1024, 10000000),
    "video_max_pixels": (16384, 64),
    "lora_alpha": (16, 32),
    "lora_rank": (8, 64),
    "lora_dropout": (0.1,),
    "use_rslora": (True, False),
    "use_dora": (True, False),
    "pissa_init": (True, False),
    "pissa_iter": (16,),
    "loraplus_lr_ratio": (16.0,),
    "use_galore": (True, False),
    "galore_layerwise": (True, False),
    "use_apollo": (True, False),
    "apollo_layerwise": (True, False),
    "use_badam": (True, False),
    "badam_mode": ("layer", "ratio"),
    "use_llama_pro": (True, False),
    "use_muon": (True,),
    "use_adam_mini": (True,),
    "pure_bf16": (True, False),
    "bf16": (True, False),
    "fp16": (True, False),
    "fp8": (True,),
    "reward_model": ("saves/reward", None),
    "reward_model_type": ("lora", "full", "api"),
    "reward_model_quantization_bit": (4, 6),
    "ref_model_quantization_bit": (8, 2),
    "pref_loss": ("sigmoid", "hinge", "orpo", "simpo"),
    "dpo_label_smoothing": (0.0, 0.1),
    "compute_accuracy": (True,),
    "load_best_model_at_end": (True, False),
    "eval_strategy": ("no", "steps", "epoch", "step"),
    "eval_steps": (100, 500, 300, 0.1),
    "save_strategy": ("steps", "epoch", "no", "epochs"),
    "save_steps": (500, 250, 300),
    "lr_scheduler_type": ("cosine", "linear", "cosine_decay", "constant_with_warmup"),
    "optim": ("adamw_torch", "adamw_8bit", "adam", "paged_adamw_8bit"),
    "report_to": ("none", "wandb", "swanlab", "tensorboard", "mlflow"),
    "overwrite_output_dir": (True,),
    "evaluation_strategy": ("steps",),
    "dataloader_prefetch_factor": (2,),
    "warmup_steps": (20, -1),
    "lora_modules": ("q_proj,v_proj",),
    "lora_target_modules": ("all",),
    "max_length": (2048,),
    "max_seq_length": (2048,),
    "per_device_batch_size": (4,),
    "train_batch_size": (8,),
    "batch_size": (8,),
    "num_epochs": (3,),
    "epochs": (3,),
    "lora_r": (8,),
    "micro_batch_size": (1,),
    "ray_num_workers": (4,),
    "use_ray": (True,),
    "num_processes": (8,),
    "tensor_parallel_size": (2,),
    "ds.zero_optimization.stage": (0, 1, 2, 3, 4),
    "ds.train_micro_batch_size_per_gpu": ("auto", 1, 2, 4),
    "ds.gradient_accumulation_steps": ("auto", 8, 2),
    "ds.train_batch_size": ("auto", 64, 32),
    "ds.bf16": ({"enabled": True}, {"enabled": False}, {"enabled": "auto"}),
    "ds.fp16": ({"enabled": True}, {"enabled": "auto"}),
}
FRAMEWORK = Framework(
    name="llamafactory",
    distribution="llamafactory",
    version=_VERSION,
    requirements=(
        f"transformers=={_PINS['transformers']}",
        "datasets==4.0.0",
        *("omegaconf", "psutil", "einops", "pydantic", "hjson", "py-cpuinfo", "msgpack", "ninja"),
    ),
    alone=(
        f"llamafactory=={_VERSION}",
        *(f"{name}=={_PINS[name]}" for name in ("accelerate", "trl", "peft", "deepspeed")),
    ),
    validator="llamafactory_validator.py",
    seeds=tuple(
        Seed("yaml", settings)
        for settings in (
            *(_BASE, _EVALUATED, _FULL_DS3, _LORA_DS2, _DPO, _KTO, _REWARD, _PPO, _PRETRAIN, _GALORE, _QUANTIZED),
            *(_FREEZE, _PREDICT, _BADAM),
        )
    ),
    space={"yaml": _SPACE},
    render=_render,
    keep=frozenset({"ds", "report_to"}),
    sections=frozenset({"ds"}),
)

"""Hugging Face's TrainingArguments: written in a script, in YAML, or on the command line, also with DeepSpeed."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import flags_text, json_text, yaml_text
from tools.oracle.frameworks.base import Framework, Seed

_GPUS = 4
_VERSION = "5.24.0"
_REQUIREMENTS = f"torch==2.13.0\ntransformers=={_VERSION}\naccelerate==1.15.0\ndeepspeed==0.19.8\n"
_MODEL = """\
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
data = load_dataset("json", data_files="train.jsonl")["train"].train_test_split(0.1)
trainer = Trainer(model=model, args=training_args, train_dataset=data["train"], eval_dataset=data["test"])
trainer.train()
"""
_IMPORTS = """\
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
"""
_PARSED = {
    "yaml": f"""\
import sys

{_IMPORTS}from transformers import HfArgumentParser, TrainingArguments

(training_args,) = HfArgumentParser((TrainingArguments,)).parse_yaml_file(sys.argv[1])
{_MODEL}""",
    "flags": f"""\
{_IMPORTS}from transformers import HfArgumentParser, TrainingArguments

(training_args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
{_MODEL}""",
}
_LAUNCH = f"torchrun --standalone --nproc_per_node {_GPUS} train.py"


def _render(form: str, settings: dict[str, Any]) -> Case:
    own = {key: value for key, value in settings.items() if key != "ds"}
    files, lines = {"requirements.txt": _REQUIREMENTS}, {}
    if "ds" in settings:
        section = settings["ds"] if isinstance(settings["ds"], dict) else {}
        files["ds.json"], lines["ds.json"] = json_text(section)
        lines["ds.json"] = {f"ds.{key}": line for key, line in lines["ds.json"].items()}
    command: tuple[str, ...] = ()
    if form == "script":
        before = f"{_IMPORTS}from transformers import TrainingArguments\n\ntraining_args = TrainingArguments(\n"
        rows = [f"    {key}={value!r},\n" for key, value in own.items() if key.isidentifier()]
        files["train.py"] = f"{before}{''.join(rows)})\n{_MODEL}"
        first = before.count("\n") + 1
        names = [key for key in own if key.isidentifier()]
        lines["train.py"] = {key: first + number for number, key in enumerate(names)}
        files["run.sh"] = f"#!/bin/bash\npip install -r requirements.txt\n{_LAUNCH}\n"
    else:
        files["train.py"] = _PARSED[form]
        if form == "yaml":
            files["args.yaml"], lines["args.yaml"] = yaml_text(own)
            files["run.sh"] = f"#!/bin/bash\npip install -r requirements.txt\n{_LAUNCH} args.yaml\n"
            command = ("args.yaml",)
        else:
            text, found = flags_text(_LAUNCH, own)
            files["run.sh"] = f"#!/bin/bash\npip install -r requirements.txt\n{text}"
            lines["run.sh"] = {key: line + 2 for key, line in found.items()}
    return Case("transformers", form, files, command, lines=lines)


_BASE: dict[str, Any] = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 2e-5,
    "num_train_epochs": 3,
    "bf16": True,
    "logging_steps": 10,
    "save_strategy": "steps",
    "save_steps": 200,
    "report_to": "none",
}
_BEST: dict[str, Any] = {
    **_BASE,
    "eval_strategy": "steps",
    "eval_steps": 100,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "warmup_steps": 50,
    "lr_scheduler_type": "cosine",
    "dataloader_num_workers": 4,
    "dataloader_prefetch_factor": 2,
}
_FSDP: dict[str, Any] = {
    **_BASE,
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": {
        "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
        "state_dict_type": "FULL_STATE_DICT",
        "cpu_ram_efficient_loading": True,
    },
}
_DS: dict[str, Any] = {
    **_BASE,
    "deepspeed": "ds.json",
    "ds": {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 1.0,
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 500000000},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
    },
}
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "eval_strategy": ("no", "steps", "epoch", "step", "epochs", "never"),
    "evaluation_strategy": ("steps", "epoch"),
    "save_strategy": ("no", "steps", "epoch", "best", "epochs", "never"),
    "logging_strategy": ("no", "steps", "epoch", "step"),
    "eval_steps": (0, 50, 100, 150, 300, 0.5, 2.5),
    "save_steps": (0, 50, 100, 150, 250, 300, 0.5, 2.5),
    "logging_steps": (0, 1, 5, 0.1, 2.5),
    "load_best_model_at_end": (True, False),
    "fp16": (True, False),
    "bf16": (True, False),
    "fp16_full_eval": (True,),
    "bf16_full_eval": (True,),
    "lr_scheduler_type": ("linear", "cosine", "reduce_lr_on_plateau", "greedy", "cosine_decay", "constant"),
    "optim": ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw", "adam", "lion_8bit", "adafactor"),
    "warmup_steps": (0, 10, -1, 0.1),
    "warmup_ratio": (0.1, 1.5, -0.1, 1),
    "dataloader_num_workers": (0, 4),
    "dataloader_prefetch_factor": (2, 4),
    "torch_empty_cache_steps": (0, 10, -1),
    "hub_strategy": ("end", "every_save", "always"),
    "debug": ("underflow_overflow", "nan"),
    "tf32": (True, False),
    "no_cuda": (True,),
    "use_cpu": (False,),
    "overwrite_output_dir": (True,),
    "per_gpu_train_batch_size": (4,),
    "group_by_length": (True,),
    "gradient_checkpointing": (True, False),
    "gradient_checkpointing_kwargs": ({"use_reentrant": False},),
    "accelerator_config": ({"split_batches": True}, {"split_batch": True}, {"dispatch_batches": False}),
    "fsdp": ("full_shard", "full_shard auto_wrap", "shard_grad_op", "fullshard", "full_shard shard_grad_op", "offload"),
    "fsdp_config": ({"version": 2}, {"auto_wrap_policy": "size_based"}, {"backward_prefetch": "backward_pre"}),
    "fsdp_min_num_params": (100000,),
    "fsdp_transformer_layer_cls_to_wrap": ("Qwen2DecoderLayer",),
    "neftune_noise_alpha": (5,),
    "max_steps": (-1, 100, 0),
    "max_grad_norm": (1.0, 0.5),
    "ddp_timeout": (1800,),
    "save_total_limit": (1, 0),
    "seed": (42,),
    "half_precision_backend": ("auto", "amp"),
    "torch_compile_mode": ("default",),
    "jit_mode_eval": (True,),
    "save_safetensors": (True, False),
    "log_level": ("info", "warn", "verbose"),
    "parallelism_config": ({"tp_size": 2},),
}
_DEEPSPEED: dict[str, tuple[Any, ...]] = {
    **{key: _ARGUMENTS[key] for key in ("fp16", "bf16", "fsdp", "warmup_steps", "eval_strategy", "optim")},
    "per_device_train_batch_size": (2, 8),
    "gradient_accumulation_steps": (1, 4),
    "learning_rate": (1e-4, 5e-5),
    "weight_decay": (0.0, 0.01),
    "max_grad_norm": (0.5, 1.0),
    "ds.train_micro_batch_size_per_gpu": ("auto", 4, 8, 16),
    "ds.gradient_accumulation_steps": ("auto", 1, 2, 8),
    "ds.train_batch_size": ("auto", 16, 32, 64),
    "ds.gradient_clipping": ("auto", 0.5, 1.0),
    "ds.bf16": ({"enabled": True}, {"enabled": False}, {"enabled": "auto"}),
    "ds.fp16": ({"enabled": True}, {"enabled": "auto"}, {"enabled": False}),
    "ds.optimizer.params.lr": (1e-4, 2e-5, "auto"),
    "ds.optimizer.params.weight_decay": (0.0, 0.1),
    "ds.optimizer.params.betas": ([0.9, 0.999], [0.9, 0.95], "auto"),
    "ds.optimizer.params.eps": (1e-8, 1e-6),
    "ds.scheduler.params.warmup_num_steps": (100, "auto"),
    "ds.scheduler.params.warmup_max_lr": (1e-4, 2e-5),
    "ds.scheduler.params.total_num_steps": ("auto",),
    "ds.zero_optimization.stage": (0, 1, 2, 3, 4),
    "ds.zero_optimization.stage3_param_persistence_threshold": ("auto", 100000),
    "ds.zero_optimization.reduce_bucket_size": ("auto", "5e8", 0),
    "ds.zero_optimization.offload_optimizer": ({"device": "cpu"}, {"device": "gpu"}),
    "ds.zero_optimization.overlap_com": (True,),
}
_BOTH = {**_ARGUMENTS, **_DEEPSPEED}
FRAMEWORK = Framework(
    name="transformers",
    distribution="transformers",
    version=_VERSION,
    requirements=(
        f"transformers=={_VERSION}",
        "pydantic",
        "hjson",
        "py-cpuinfo",
        "einops",
        "msgpack",
        "ninja",
        "psutil",
    ),
    alone=("accelerate==1.15.0", "deepspeed==0.19.8"),
    validator="transformers_validator.py",
    seeds=(
        Seed("script", _BASE),
        Seed("script", _BEST),
        Seed("script", _FSDP),
        Seed("script", _DS),
        Seed("yaml", _BEST),
        Seed("yaml", _DS),
        Seed("yaml", _FSDP),
        Seed("flags", _BEST),
        Seed("flags", _DS),
    ),
    space={"script": _BOTH, "yaml": _BOTH, "flags": _BOTH},
    render=_render,
    keep=frozenset({"ds", "report_to"}),
    sections=frozenset({"ds"}),
)

"""Every table that is generated, each with its source."""

from __future__ import annotations

from tools.tables.target import Declaration, Part, Target

_LOOKED_AT = "2026-11-21"
_DEEPSPEED = ("deepspeed", ("0.9.5", "0.12.6", "0.16.9", "0.19.8"), _LOOKED_AT)
#: Some of TRL's configurations are younger than others, or were part of its experiments for a while.
_TRL_RELEASES = {
    "GRPO": ("0.15.2", "0.19.1", "0.24.0", "0.29.1", "1.5.1", "1.16.0"),
    "KTO": ("0.12.2", "0.15.2", "0.19.1", "0.24.0", "1.16.0"),
}
_RAY = ("ray", ("2.9.3", "2.20.0", "2.35.0", "2.44.1", "2.52.1", "2.60.0"), _LOOKED_AT)

#: Families of models whose layers are known; those that are made of other models (a language model with eyes) are not.
_FAMILIES = (
    "albert",
    "bart",
    "bert",
    "bigbird_pegasus",
    "big_bird",
    "bloom",
    "camembert",
    "clip",
    "codegen",
    "cohere",
    "cohere2",
    "dbrx",
    "deberta",
    "deberta_v2",
    "deepseek_v2",
    "deepseek_v3",
    "distilbert",
    "electra",
    "ernie",
    "esm",
    "falcon",
    "gemma",
    "gemma2",
    "glm",
    "glm4",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "helium",
    "jamba",
    "llama",
    "longformer",
    "longt5",
    "mamba",
    "mamba2",
    "mistral",
    "mixtral",
    "modernbert",
    "mpnet",
    "mpt",
    "mt5",
    "nemotron",
    "nomic_bert",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "roberta",
    "roformer",
    "smollm3",
    "stablelm",
    "starcoder2",
    "t5",
    "vit",
    "wav2vec2",
    "whisper",
    "xglm",
    "xlm_roberta",
    "xlm_roberta_xl",
)

TARGETS: tuple[Target, ...] = (
    Target(
        "lightning_trainer",
        "Lightning's Trainer",
        "pytorch-lightning",
        ("1.5.10", "1.6.5", "1.7.7", "1.9.5", "2.0.9", "2.4.0", "2.6.6"),
        "2026-11-26",
        (Part("pytorch_lightning/trainer/trainer.py", Declaration.ARGUMENTS, ("Trainer",)),),
    ),
    Target(
        "lightning_fabric",
        "Lightning's Fabric",
        "lightning-fabric",
        ("1.9.5", "2.0.9", "2.2.5", "2.4.0", "2.6.6"),
        "2026-11-26",
        (Part("lightning_fabric/fabric.py", Declaration.ARGUMENTS, ("Fabric",)),),
    ),
    Target(
        "torchrun",
        "torchrun",
        "torch",
        ("2.13.0",),
        _LOOKED_AT,
        (Part("torch/distributed/run.py", Declaration.ARGPARSE, ("get_args_parser",), flags=("check_env",)),),
        installed=True,
    ),
    Target(
        "torch_launch",
        "torch.distributed.launch, beyond the options of torchrun",
        "torch",
        ("2.13.0",),
        _LOOKED_AT,
        (Part("torch/distributed/launch.py", Declaration.ARGPARSE),),
        installed=True,
    ),
    Target(
        "deepspeed_runner",
        "the deepspeed launcher",
        "deepspeed",
        ("0.9.5", "0.12.6", "0.16.9", "0.19.8"),
        _LOOKED_AT,
        (Part("deepspeed/launcher/runner.py", Declaration.ARGPARSE, ("parse_args",)),),
    ),
    Target(
        "accelerate_launch",
        "accelerate launch",
        "accelerate",
        ("0.20.3", "0.30.1", "1.15.0"),
        _LOOKED_AT,
        (
            Part(
                "accelerate/commands/launch.py",
                Declaration.ARGPARSE,
                ("launch_command_parser",),
                both_dashes=True,
            ),
        ),
    ),
    Target(
        "accelerate_config",
        "the configuration file of accelerate launch",
        "accelerate",
        ("0.15.0", "0.19.0", "0.24.1", "0.30.1", "0.34.2", "1.6.0", "1.10.1", "1.15.0"),
        _LOOKED_AT,
        (
            Part(
                "accelerate/commands/config/config_args.py",
                Declaration.FIELDS,
                ("ClusterConfig", "SageMakerConfig"),
            ),
        ),
    ),
    Target(
        "paddle_launch",
        "paddle.distributed.launch",
        "paddlepaddle",
        ("2.6.2", "3.3.1"),
        _LOOKED_AT,
        (Part("paddle/distributed/launch/context/args_envs.py", Declaration.ARGPARSE),),
    ),
    Target(
        "paddle_fleet_launch",
        "paddle.distributed.launch in its legacy mode",
        "paddlepaddle",
        ("2.6.2", "3.3.1"),
        _LOOKED_AT,
        (Part("paddle/distributed/fleet/launch.py", Declaration.ARGPARSE),),
    ),
    Target(
        "horovodrun",
        "horovodrun",
        "horovod",
        ("0.28.1",),
        _LOOKED_AT,
        (
            Part(
                "horovod/runner/launch.py",
                Declaration.ARGPARSE,
                ("parse_args",),
                flags=(
                    "make_override_true_action",
                    "make_override_false_action",
                    "make_override_bool_action",
                    "make_check_build_action",
                    "make_deprecated_bool_action",
                ),
            ),
        ),
    ),
    Target("ray_start", "ray start", *_RAY, (Part("ray/scripts/scripts.py", Declaration.CLICK, ("start",)),)),
    Target(
        "ray_job_submit",
        "ray job submit",
        *_RAY,
        (Part("ray/dashboard/modules/job/cli.py", Declaration.CLICK, ("submit",)),),
    ),
    Target(
        "composer",
        "composer",
        "mosaicml",
        ("0.32.1",),
        _LOOKED_AT,
        (Part("composer/cli/launcher.py", Declaration.ARGPARSE),),
    ),
    Target(
        "fabric_run",
        "fabric run (lightning run model)",
        "lightning",
        ("2.6.6",),
        _LOOKED_AT,
        (Part("lightning/fabric/cli.py", Declaration.CLICK, ("_run",)),),
    ),
    Target(
        "colossalai_run",
        "colossalai run",
        "colossalai",
        ("0.5.0",),
        _LOOKED_AT,
        (Part("colossalai/cli/launcher/__init__.py", Declaration.CLICK, ("run",)),),
    ),
    Target(
        "training_arguments",
        "Hugging Face TrainingArguments",
        "transformers",
        ("4.36.2", "4.57.1", "5.24.0"),
        _LOOKED_AT,
        (
            Part(
                "transformers/training_args.py",
                Declaration.FIELDS,
                ("TrainingArguments",),
                both_dashes=True,
                option="--{}",
            ),
        ),
    ),
    Target(
        "seq2seq_training_arguments",
        "Hugging Face Seq2SeqTrainingArguments, beyond TrainingArguments",
        "transformers",
        ("4.36.2", "4.57.1", "5.24.0"),
        _LOOKED_AT,
        (Part("transformers/training_args_seq2seq.py", Declaration.FIELDS, ("Seq2SeqTrainingArguments",)),),
    ),
    Target(
        "llamafactory_arguments",
        "LLaMA-Factory's arguments, beyond those of the trainer",
        "llamafactory",
        ("0.7.1", "0.8.3", "0.9.0", "0.9.2", "0.9.3", "0.9.4", "0.9.5"),
        "2026-11-24",
        tuple(
            Part(f"llamafactory/hparams/{name}_args.py", Declaration.FIELDS)
            for name in ("model", "data", "training", "finetuning", "generating")
        ),
    ),
    *(
        Target(
            f"trl_{name.lower()}_config",
            f"TRL's {name}Config, beyond TrainingArguments",
            "trl",
            _TRL_RELEASES.get(name, ("0.12.2", "0.15.2", "0.19.1", "0.24.0", "0.29.1", "1.5.1", "1.16.0")),
            "2026-11-24",
            (Part(f"trl/trainer/{name.lower()}_config.py", Declaration.FIELDS, (f"{name}Config",)),),
        )
        for name in ("SFT", "DPO", "GRPO", "RLOO", "KTO", "Reward")
    ),
    Target(
        "transformer_layers",
        "layer classes of Hugging Face models that are kept whole",
        "transformers",
        ("4.36.2", "4.57.1", "5.23.0"),
        _LOOKED_AT,
        tuple(
            Part(
                f"transformers/models/{family}/modeling_{family}.py",
                Declaration.LISTS,
                ("_no_split_modules",),
                kind=family,
            )
            for family in _FAMILIES
        ),
    ),
    Target(
        "deepspeed_keys",
        "DeepSpeed's configuration, keys of every level",
        *_DEEPSPEED,
        (
            Part("deepspeed/runtime/precision_config.py", Declaration.FIELDS),
            Part("deepspeed/comm/config.py", Declaration.FIELDS),
            Part("deepspeed/monitor/config.py", Declaration.FIELDS),
            Part("deepspeed/runtime/tensor_parallel/config.py", Declaration.FIELDS),
            *(
                Part(f"deepspeed/{path}", Declaration.CONSTANTS)
                for path in (
                    "runtime/constants.py",
                    "elasticity/constants.py",
                    "runtime/activation_checkpointing/config.py",
                    "runtime/swap_tensor/constants.py",
                    "runtime/data_pipeline/constants.py",
                    "runtime/fp16/loss_scaler.py",
                    "profiling/constants.py",
                    "compression/constants.py",
                    "autotuning/constants.py",
                    "nebula/constants.py",
                    "comm/constants.py",
                )
            ),
        ),
    ),
    Target(
        "deepspeed_zero",
        "zero_optimization in DeepSpeed's configuration",
        *_DEEPSPEED,
        (Part("deepspeed/runtime/zero/config.py", Declaration.FIELDS, ("DeepSpeedZeroConfig",)),),
    ),
    Target(
        "deepspeed_offload_optimizer",
        "zero_optimization.offload_optimizer in DeepSpeed's configuration",
        *_DEEPSPEED,
        (
            Part(
                "deepspeed/runtime/zero/offload_config.py", Declaration.FIELDS, ("DeepSpeedZeroOffloadOptimizerConfig",)
            ),
        ),
    ),
    Target(
        "deepspeed_offload_param",
        "zero_optimization.offload_param in DeepSpeed's configuration",
        *_DEEPSPEED,
        (Part("deepspeed/runtime/zero/offload_config.py", Declaration.FIELDS, ("DeepSpeedZeroOffloadParamConfig",)),),
    ),
)

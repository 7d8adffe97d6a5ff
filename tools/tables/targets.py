"""Every table that is generated, each with its source."""

from __future__ import annotations

from tools.tables.target import How, Part, Target

_LOOKED_AT = "2026-11-21"
_RAY = ("ray", ("2.60.0",), _LOOKED_AT)

TARGETS: tuple[Target, ...] = (
    Target(
        "torchrun",
        "torchrun",
        "torch",
        ("2.13.0",),
        _LOOKED_AT,
        (Part("torch/distributed/run.py", How.ARGPARSE, ("get_args_parser",), flags=("check_env",)),),
        installed=True,
    ),
    Target(
        "torch_launch",
        "torch.distributed.launch, beyond the options of torchrun",
        "torch",
        ("2.13.0",),
        _LOOKED_AT,
        (Part("torch/distributed/launch.py", How.ARGPARSE),),
        installed=True,
    ),
    Target(
        "deepspeed_runner",
        "the deepspeed launcher",
        "deepspeed",
        ("0.9.5", "0.12.6", "0.16.9", "0.19.8"),
        _LOOKED_AT,
        (Part("deepspeed/launcher/runner.py", How.ARGPARSE, ("parse_args",)),),
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
                How.ARGPARSE,
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
                How.FIELDS,
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
        (Part("paddle/distributed/launch/context/args_envs.py", How.ARGPARSE),),
    ),
    Target(
        "paddle_fleet_launch",
        "paddle.distributed.launch in its legacy mode",
        "paddlepaddle",
        ("2.6.2", "3.3.1"),
        _LOOKED_AT,
        (Part("paddle/distributed/fleet/launch.py", How.ARGPARSE),),
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
                How.ARGPARSE,
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
    Target("ray_start", "ray start", *_RAY, (Part("ray/scripts/scripts.py", How.CLICK, ("start",)),)),
    Target(
        "ray_job_submit",
        "ray job submit",
        *_RAY,
        (Part("ray/dashboard/modules/job/cli.py", How.CLICK, ("submit",)),),
    ),
    Target(
        "composer",
        "composer",
        "mosaicml",
        ("0.32.1",),
        _LOOKED_AT,
        (Part("composer/cli/launcher.py", How.ARGPARSE),),
    ),
    Target(
        "training_arguments",
        "Hugging Face TrainingArguments",
        "transformers",
        ("4.36.2", "4.57.1", "5.23.0"),
        _LOOKED_AT,
        (
            Part(
                "transformers/training_args.py",
                How.FIELDS,
                ("TrainingArguments",),
                both_dashes=True,
                option="--{}",
            ),
        ),
    ),
)

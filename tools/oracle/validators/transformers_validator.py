"""Creates TrainingArguments as the script of a case does, and completes DeepSpeed's configuration as Trainer does."""

import argparse
import ast
import contextlib
import shlex
import unittest.mock

import deepspeed.runtime.config as deepspeed_config
import torch
import transformers.training_args as training_args
from transformers import HfArgumentParser, TrainingArguments
from verdict_lines import Refusal, main

GPUS = 4


class _Model(torch.nn.Linear):
    config = argparse.Namespace(hidden_size=896)


def validate(case):
    """Raise what TrainingArguments, or the finished configuration of DeepSpeed, raises."""
    arguments = _arguments(case)
    if getattr(arguments, "hf_deepspeed_config", None) is not None:
        arguments.hf_deepspeed_config.trainer_config_finalize(arguments, _Model(2, 2), 1000)
        deepspeed_config.DeepSpeedConfig(arguments.hf_deepspeed_config.config)


def _arguments(case):
    if case["form"] == "script":
        tree = ast.parse(case["files"]["train.py"])
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        call = next(node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "TrainingArguments")
        return eval(compile(ast.Expression(call), "train.py", "eval"), {"TrainingArguments": TrainingArguments})
    parser = HfArgumentParser((TrainingArguments,))
    parser.error = _refuse
    if case["form"] == "yaml":
        return parser.parse_yaml_file("args.yaml")[0]
    words = shlex.split(case["files"]["run.sh"].split("\n", 2)[2].replace("\\\n", " "))
    return parser.parse_args_into_dataclasses(words[words.index("train.py") + 1 :])[0]


def _refuse(message):
    raise Refusal(message)


@contextlib.contextmanager
def on_gpu_node():
    """Simulate a node with four recent GPUs."""
    with contextlib.ExitStack() as stack:
        for name in ("is_torch_bf16_gpu_available", "is_torch_tf32_available"):
            stack.enter_context(unittest.mock.patch.object(training_args, name, lambda: True))
        stack.enter_context(unittest.mock.patch.object(training_args, "enable_tf32", lambda enable: None))
        stack.enter_context(unittest.mock.patch.object(TrainingArguments, "world_size", property(lambda self: GPUS)))
        stack.enter_context(unittest.mock.patch.object(deepspeed_config.dist, "get_rank", lambda *_: 0))
        stack.enter_context(unittest.mock.patch.object(deepspeed_config.dist, "get_world_size", lambda *_: GPUS))
        yield


if __name__ == "__main__":
    main(validate, on_gpu_node)

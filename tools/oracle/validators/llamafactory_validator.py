"""Parses LLaMA-Factory's training arguments from the file of a case, as each rank of `llamafactory-cli train` does."""

import argparse
import contextlib
import unittest.mock

import deepspeed.runtime.config as deepspeed_config
import llamafactory.hparams.parser as parser
import torch
import transformers.training_args as training_args
from llamafactory.hparams.training_args import TrainingArguments
from transformers.training_args import ParallelMode
from verdict_lines import main

GPUS = 8


class _Model(torch.nn.Linear):
    config = argparse.Namespace(hidden_size=896)


def validate(case):
    """Raise what the parser, or the finished configuration of DeepSpeed, raises."""
    parser.sys.argv = ["train.py", "train.yaml"]
    with _ranks():
        arguments = parser.get_train_args()[2]
        if getattr(arguments, "hf_deepspeed_config", None) is not None:
            arguments.hf_deepspeed_config.trainer_config_finalize(arguments, _Model(2, 2), 1000)
            deepspeed_config.DeepSpeedConfig(arguments.hf_deepspeed_config.config)


@contextlib.contextmanager
def _ranks():
    """Simulate one of eight ranks, because the parser refuses a single process."""
    with contextlib.ExitStack() as stack:
        for name, value in (
            ("world_size", GPUS),
            ("parallel_mode", ParallelMode.DISTRIBUTED),
            ("device", torch.device("cpu")),
            ("process_index", 0),
            ("local_process_index", 0),
        ):
            stack.enter_context(unittest.mock.patch.object(TrainingArguments, name, property(lambda _, v=value: v)))
        stack.enter_context(unittest.mock.patch.object(deepspeed_config.dist, "get_rank", lambda *_: 0))
        stack.enter_context(unittest.mock.patch.object(deepspeed_config.dist, "get_world_size", lambda *_: GPUS))
        yield


@contextlib.contextmanager
def on_gpu_node():
    """Simulate a node with recent GPUs and the optional packages."""
    with contextlib.ExitStack() as stack:
        for module, name in (
            (training_args, "is_torch_bf16_gpu_available"),
            (training_args, "is_torch_tf32_available"),
            (parser, "is_torch_bf16_gpu_available"),
        ):
            stack.enter_context(unittest.mock.patch.object(module, name, lambda: True))
        stack.enter_context(unittest.mock.patch.object(training_args, "enable_tf32", lambda enable: None))
        stack.enter_context(unittest.mock.patch.object(parser, "check_version", lambda *_, **__: None))
        yield


if __name__ == "__main__":
    main(validate, on_gpu_node)

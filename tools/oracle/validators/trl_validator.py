"""Creates the configuration of TRL's trainers as the script of a case does, in one of eight ranks."""

import ast
import contextlib
import unittest.mock

import transformers.training_args as training_args
import trl
from transformers import TrainingArguments
from verdict_lines import main

GPUS = 8


def validate(case):
    """Raise what the constructor of the configuration raises."""
    tree = ast.parse(case["files"]["train.py"])
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    call = next(node for node in calls if node.func.id.endswith("Config"))
    eval(compile(ast.Expression(call), "train.py", "eval"), {call.func.id: getattr(trl, call.func.id)})


@contextlib.contextmanager
def on_gpu_node():
    """Simulate a node with eight recent GPUs."""
    with contextlib.ExitStack() as stack:
        for name in ("is_torch_bf16_gpu_available", "is_torch_tf32_available"):
            stack.enter_context(unittest.mock.patch.object(training_args, name, lambda: True))
        stack.enter_context(unittest.mock.patch.object(training_args, "enable_tf32", lambda enable: None))
        stack.enter_context(unittest.mock.patch.object(TrainingArguments, "world_size", property(lambda self: GPUS)))
        yield


if __name__ == "__main__":
    main(validate, on_gpu_node)

"""Creates the `Trainer` or `Fabric` of a case's script, or parses the YAML of LightningCLI and creates its trainer."""

import ast
import contextlib
import sys
import unittest.mock
import warnings

import lightning as L
import lightning.fabric.accelerators.cuda as cuda
import torch
from lightning.fabric.strategies import deepspeed as fabric_deepspeed
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from lightning.pytorch.strategies import deepspeed as trainer_deepspeed
from verdict_lines import Refusal, main

GPUS = 8
#: True while Lightning is asked as on a node with GPUs.
ON_NODE = []


def validate(case):
    """Raise what the constructor raises, and what the parser of LightningCLI says before it ends the process.

    Another node may have the devices that are missing here.
    """
    try:
        _ask(case)
    except Exception as error:
        if not (ON_NODE and "But your machine only has" in str(error)):
            raise


def _ask(case):
    torch.use_deterministic_algorithms(False)
    warnings.simplefilter("ignore")
    if case["form"] == "cli":
        _parse(case["command"])
        return
    tree = ast.parse(case["files"]["train.py"])
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    call = next(node for node in calls if ast.unparse(node.func) in ("L.Trainer", "L.Fabric"))
    eval(compile(ast.Expression(call), "train.py", "eval"), {"L": L})


class _Parsed(LightningCLI):
    """Ends where training would begin."""

    def _run_subcommand(self, subcommand):
        return None


def _parse(words):
    messages = []

    def note(parser, message, error=None):
        messages.append(message)
        raise SystemExit(2)

    import jsonargparse

    with unittest.mock.patch.object(jsonargparse.ArgumentParser, "error", note):
        try:
            sys.argv = ["train.py", *words]
            _Parsed(BoringModel, BoringDataModule, save_config_callback=None)
        except SystemExit:
            raise Refusal("\n".join(messages)) from None


@contextlib.contextmanager
def on_gpu_node():
    """Simulate the first rank of a node with eight GPUs and DeepSpeed."""
    with contextlib.ExitStack() as stack:
        ON_NODE.append(True)
        stack.callback(ON_NODE.clear)
        stack.enter_context(unittest.mock.patch.object(cuda, "num_cuda_devices", lambda: GPUS))
        stack.enter_context(unittest.mock.patch.object(torch.cuda, "device_count", lambda: GPUS))
        stack.enter_context(unittest.mock.patch.object(torch.cuda, "is_available", lambda: True))
        for module in (fabric_deepspeed, trainer_deepspeed):
            for name in ("_DEEPSPEED_AVAILABLE", "_DEEPSPEED_GREATER_EQUAL_0_16"):
                stack.enter_context(unittest.mock.patch.object(module, name, True))
        stack.enter_context(unittest.mock.patch.dict(sys.modules, {"deepspeed": unittest.mock.MagicMock()}))
        yield


if __name__ == "__main__":
    main(validate, on_gpu_node)

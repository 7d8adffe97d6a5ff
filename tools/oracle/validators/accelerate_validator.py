"""Runs `accelerate launch` of a case up to the start of the ranks, then makes what `Accelerator()` makes in a rank."""

import contextlib
import os
import shlex
import sys
import unittest.mock

import accelerate.utils.dataclasses as plugins
import torch
import torch.distributed.run as distrib_run
from accelerate.commands import launch
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import launch as launch_utils
from verdict_lines import Refusal, main


def validate(case):
    """Raise what the launcher raises, or Accelerator in a rank that it starts."""
    words = shlex.split(case["files"]["run.sh"].split("\n", 2)[2].replace("\\\n", " "))
    # As `accelerate launch` does: the parser looks at the words of the process itself.
    sys.argv = words[1:]
    parser = launch.launch_command_parser()
    parser.error = _refuse
    launch.launch_command(parser.parse_args(words[2:]))


def _refuse(message):
    raise Refusal(message)


def _started(args):
    """Replaces `torchrun`: checks its options, then runs a rank."""
    config, _, _ = distrib_run.config_from_args(args)
    _rank(config.max_nodes * config.nproc_per_node)


def _rank(world_size):
    env = os.environ
    sharding = None
    plugins.PrecisionType(env.get("ACCELERATE_MIXED_PRECISION", "no"))
    plugins.TorchDynamoPlugin()
    if env.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        plugin = plugins.DeepSpeedPlugin()
        plugin.set_mixed_precision(env.get("ACCELERATE_MIXED_PRECISION", "no"))
    if env.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        sharding = plugins.FullyShardedDataParallelPlugin()
        if env.get("ACCELERATE_MIXED_PRECISION", "no") != "no":
            sharding.set_mixed_precision(env["ACCELERATE_MIXED_PRECISION"])
    if env.get("ACCELERATE_USE_MEGATRON_LM", "false").lower() == "true":
        plugins.MegatronLMPlugin()
    if env.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() == "true":
        config = ParallelismConfig()
        state = unittest.mock.Mock(num_processes=world_size)
        state.is_fsdp2 = sharding is not None and sharding.fsdp_version == 2
        state.multi_device = world_size > 1 and sharding is None
        config._validate_accelerator(state)


class _Process:
    """Replaces a process that the launcher starts: a single rank, or DeepSpeed's launcher."""

    def __init__(self, command, env=None, **_):
        self.returncode = 0
        if command[0] != "deepspeed":
            with unittest.mock.patch.dict(os.environ, env or {}, clear=True):
                _rank(1)

    def wait(self):
        return 0


@contextlib.contextmanager
def on_gpu_node():
    """Simulate the first node; the ranks are not started but created here."""
    with contextlib.ExitStack() as stack:
        patch = unittest.mock.patch.object
        stack.enter_context(patch(distrib_run, "run", _started))
        stack.enter_context(patch(launch.subprocess, "Popen", _Process))
        stack.enter_context(patch(launch, "is_bf16_available", lambda *_: True))
        stack.enter_context(patch(launch_utils, "is_port_in_use", lambda *_: False))
        stack.enter_context(patch(launch, "check_cuda_p2p_ib_support", lambda: True))
        stack.enter_context(patch(plugins, "is_cuda_available", lambda: True))
        stack.enter_context(patch(torch.cuda, "current_device", lambda: 0))
        yield


if __name__ == "__main__":
    main(validate, on_gpu_node, same_here=True)

"""Parses a case's launch line as torchrun does, and creates the agent's configuration from it."""

import contextlib
import shlex
import unittest.mock

import torch
import torch.distributed.run as distrib_run
from verdict_lines import Refusal, main


def validate(case):
    """Raise what torchrun raises before it starts an agent."""
    words = shlex.split(case["files"]["run.sh"].split("\n", 2)[2].replace("\\\n", " "))
    parser = distrib_run.get_args_parser()
    parser.error = _refuse
    args = parser.parse_args(words[1:])
    if args.standalone:
        # As `run` sets them before it makes the configuration.
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", "1"
    distrib_run.config_from_args(args)


def _refuse(message):
    raise Refusal(message)


@contextlib.contextmanager
def on_gpu_node():
    """Simulate a node with eight GPUs."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(unittest.mock.patch.object(torch.cuda, "is_available", lambda: True))
        stack.enter_context(unittest.mock.patch.object(torch.cuda, "device_count", lambda: 8))
        stack.enter_context(unittest.mock.patch.object(torch.accelerator, "is_available", lambda: True))
        stack.enter_context(unittest.mock.patch.object(torch.accelerator, "device_count", lambda: 8))
        device = torch.device("cuda")
        stack.enter_context(unittest.mock.patch.object(torch.accelerator, "current_accelerator", lambda: device))
        yield


if __name__ == "__main__":
    main(validate, on_gpu_node)

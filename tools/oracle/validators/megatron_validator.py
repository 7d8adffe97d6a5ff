"""Parses and validates Megatron-LM's arguments as one rank of the launch, up to the model's configuration.

`ORACLE_MEGATRON` names a checkout of NVIDIA/Megatron-LM at the pinned tag.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import unittest.mock

import torch

sys.path.insert(0, os.environ["ORACLE_MEGATRON"])
# Kernels of triton, which a CPU build of torch lacks.
sys.modules["megatron.core.transformer.custom_layers.batch_invariant_kernels"] = unittest.mock.MagicMock()
from megatron.core import num_microbatches_calculator as batches  # noqa: E402
from megatron.core.transformer import transformer_config  # noqa: E402
from megatron.training import arguments  # noqa: E402
from verdict_lines import Refusal, main  # noqa: E402

#: Its parser has some seven hundred options and is built once.
PARSER = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
arguments.add_megatron_arguments = lambda parser: PARSER


def validate(case):
    """Raise what Megatron-LM raises before it builds a model."""
    words = shlex.split(next(row for row in _rows(case["files"]["run.sh"]) if row.startswith("torchrun")))
    program = words.index("pretrain_gpt.py")
    os.environ.update(RANK="0", WORLD_SIZE=words[words.index("--nproc_per_node") + 1])
    sys.argv = words[program:]
    output = io.StringIO()
    with contextlib.redirect_stderr(output):
        try:
            args = arguments.parse_args()
            arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
        except SystemExit:
            rows = output.getvalue().strip().splitlines()
            raise Refusal(next((row for row in reversed(rows) if "error:" in row), "exit")) from None
    batches.destroy_num_microbatches_calculator()
    batches.init_num_microbatches_calculator(
        args.rank,
        args.rampup_batch_size,
        args.global_batch_size,
        args.micro_batch_size,
        args.data_parallel_size,
        args.decrease_batch_size_if_needed,
    )
    try:
        arguments.core_transformer_config_from_args(args)
    except ImportError:
        # Kernels of Transformer Engine, which the node that is meant has.
        return
    except ValueError as error:
        if "Please install TE" not in str(error):
            raise


def _rows(script):
    return re.sub(r"\\\n\s*", " ", script).splitlines()


@contextlib.contextmanager
def on_gpu_node():
    """Simulate a node with Blackwell GPUs and a recent Transformer Engine."""
    with contextlib.ExitStack() as stack:
        for name, value in (("get_device_capability", (10, 0)), ("is_available", True), ("device_count", 8)):
            stack.enter_context(unittest.mock.patch.object(torch.cuda, name, lambda *_, value=value: value))
        properties = unittest.mock.MagicMock(major=10, minor=0)
        stack.enter_context(unittest.mock.patch.object(torch.cuda, "get_device_properties", lambda *_: properties))
        for module in (arguments, transformer_config):
            recent = unittest.mock.patch.object(module, "is_te_min_version", lambda *_, **__: True, create=True)
            stack.enter_context(recent)
        yield


if __name__ == "__main__":
    # Without CUDA it refuses every configuration, which says nothing of the node that is meant.
    main(validate, on_gpu_node, same_here=True)

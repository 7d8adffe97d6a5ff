"""Reads the TOML of a case as `torchtitan.train` does, and computes the parallel sizes for its eight ranks."""

import contextlib
import importlib.util
import io
import os
import pathlib
import sys
import types

from verdict_lines import Refusal, main

# The packages themselves import the models' kernels, for which no library is here.
_ROOT = pathlib.Path(importlib.util.find_spec("torchtitan").origin).parent
for name, folder in (("torchtitan", _ROOT), ("torchtitan.distributed", _ROOT / "distributed")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(folder)]

WORLD_SIZE = 8


def validate(case):
    from torchtitan.config import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims

    os.environ["WORLD_SIZE"] = str(WORLD_SIZE)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            config = ConfigManager().parse_args(case["command"]).parallelism
    except SystemExit:
        lines = (line.strip("│╭╰╮╯─ \t") for line in said.getvalue().splitlines())
        raise Refusal("\n".join(line for line in lines if line)) from None
    ParallelDims(
        dp_shard=config.data_parallel_shard_degree,
        dp_replicate=config.data_parallel_replicate_degree,
        cp=config.context_parallel_degree,
        tp=config.tensor_parallel_degree,
        pp=config.pipeline_parallel_degree,
        ep=config.expert_parallel_degree,
        etp=config.expert_tensor_parallel_degree,
        world_size=WORLD_SIZE,
    )


if __name__ == "__main__":
    main(validate, contextlib.nullcontext, same_here=True)

"""Creates DeepSpeed's configuration object from the file of a case, as each of eight ranks does."""

import contextlib
import unittest.mock

import deepspeed.runtime.config as deepspeed_config
from verdict_lines import main

GPUS = 8


def validate(case):
    """Raise what DeepSpeedConfig raises."""
    deepspeed_config.DeepSpeedConfig("ds_config.json")


@contextlib.contextmanager
def on_gpu_node():
    with contextlib.ExitStack() as stack:
        stack.enter_context(unittest.mock.patch.object(deepspeed_config.dist, "get_rank", lambda *_: 0))
        stack.enter_context(unittest.mock.patch.object(deepspeed_config.dist, "get_world_size", lambda *_: GPUS))
        yield


if __name__ == "__main__":
    main(validate, on_gpu_node, same_here=True)

"""Creates the `ScalingConfig` of each case with Ray's own class."""

from ray.train import ScalingConfig
from verdict_lines import main

NAMES = {"ScalingConfig": ScalingConfig}


def validate(case):
    """Create the object; Ray raises if it is invalid."""
    exec(case["command"][0], NAMES)


if __name__ == "__main__":
    import contextlib

    main(validate, contextlib.nullcontext, same_here=True)

"""Parses and checks the arguments of `openrlhf.cli.train_ppo_ray` as that program does, up to where it starts actors.

Packages for computation are replaced by stand-ins: the program's own checks use none of them.
"""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import shlex
import sys

from stand_ins import stand_in

stand_in(
    *("ray", "torch", "transformers", "deepspeed", "datasets", "peft", "vllm", "flash_attn", "optree", "packaging"),
    *("tqdm", "numpy", "einops", "sympy", "pylatexenc", "accelerate", "aiohttp", "torchdata", "wandb", "requests"),
    "openrlhf.trainer",
)
import deepspeed  # noqa: E402
from verdict_lines import Refusal, main  # noqa: E402

#: Compared with the release that tensor parallelism needs.
deepspeed.version = "0.19.8"

FILE = pathlib.Path(importlib.util.find_spec("openrlhf").origin).parent / "cli" / "train_ppo_ray.py"
PROGRAM = compile(FILE.read_text(encoding="utf-8"), str(FILE), "exec")


def validate(case):
    """Raise what the program raises."""
    text = re.sub(r"\\\n\s*", " ", case["files"]["run.sh"])
    sys.argv = ["train_ppo_ray.py", *shlex.split(text.split("openrlhf.cli.train_ppo_ray", 1)[1])]
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            exec(PROGRAM, {"__name__": "__main__"})
        except SystemExit:
            rows = said.getvalue().strip().splitlines()
            raise Refusal(next((row for row in reversed(rows) if "error:" in row), "exit")) from None


if __name__ == "__main__":
    os.environ.pop("RAY_ADDRESS", None)
    main(validate, contextlib.nullcontext, same_here=True)

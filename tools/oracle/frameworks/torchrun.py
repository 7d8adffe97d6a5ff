"""torchrun: its options, up to the configuration of the agent that it makes of them."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import flags_text
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "2.13.0"
_PROGRAM = """\
import torch.distributed as dist

dist.init_process_group("nccl")
dist.destroy_process_group()
"""


def _render(form: str, settings: dict[str, Any]) -> Case:
    text, found = flags_text("torchrun", settings, "train.py")
    files = {
        "train.py": _PROGRAM,
        "requirements.txt": f"torch=={_VERSION}\n",
        "run.sh": f"#!/bin/bash\npip install -r requirements.txt\n{text}",
    }
    return Case("torchrun", form, files, lines={"run.sh": {key: line + 2 for key, line in found.items()}})


FRAMEWORK = Framework(
    name="torchrun",
    distribution="torch",
    version=_VERSION,
    requirements=("numpy",),
    validator="torchrun_validator.py",
    seeds=seeds("torchrun"),
    space=space("torchrun"),
    render=_render,
)

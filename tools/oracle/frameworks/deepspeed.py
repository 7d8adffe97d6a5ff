"""DeepSpeed's configuration, given to `deepspeed.initialize` by a launch over eight GPUs of one node."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import json_text
from tools.oracle.frameworks.base import Framework, seeds, space

_GPUS = 8
_VERSION = "0.19.8"
_REQUIREMENTS = f"torch==2.13.0\ndeepspeed=={_VERSION}\n"
_PROGRAM = """\
import argparse

import deepspeed
import torch
from torchvision.models import resnet50

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
model = resnet50()
engine, optimizer, _, scheduler = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
"""
_LAUNCH = f"""\
#!/bin/bash
pip install -r requirements.txt
deepspeed --num_nodes 1 --num_gpus {_GPUS} train.py --deepspeed --deepspeed_config ds_config.json
"""


def _render(form: str, settings: dict[str, Any]) -> Case:
    text, lines = json_text(settings)
    files = {"ds_config.json": text, "run.sh": _LAUNCH, "train.py": _PROGRAM, "requirements.txt": _REQUIREMENTS}
    return Case("deepspeed", form, files, lines={"ds_config.json": lines})


FRAMEWORK = Framework(
    name="deepspeed",
    distribution="deepspeed",
    version=_VERSION,
    requirements=(
        "pydantic",
        "hjson",
        "py-cpuinfo",
        "einops",
        "msgpack",
        "ninja",
        "psutil",
        "numpy",
        "tqdm",
        "packaging",
    ),
    alone=(f"deepspeed=={_VERSION}",),
    validator="deepspeed_validator.py",
    seeds=seeds("deepspeed"),
    space=space("deepspeed"),
    render=_render,
)

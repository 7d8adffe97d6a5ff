"""Megatron-LM's arguments, as `pretrain_gpt.py` parses and validates them in a rank."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import flags_text
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "0.16.1"


def _render(form: str, settings: dict[str, Any]) -> Case:
    own = {key.replace("_", "-"): value for key, value in settings.items() if key != "ranks"}
    text, found = flags_text(f"torchrun --standalone --nproc_per_node {settings.get('ranks')} pretrain_gpt.py", own)
    run = f"#!/bin/bash\npip install megatron-core=={_VERSION}\n{text}"
    lines = {key.replace("-", "_"): line + 2 for key, line in found.items()}
    return Case("megatron", form, {"run.sh": run}, lines={"run.sh": {"ranks": 3, **lines}})


FRAMEWORK = Framework(
    name="megatron",
    distribution="megatron-core",
    version=_VERSION,
    requirements=("numpy", "einops", "packaging", "six", "regex"),
    validator="megatron_validator.py",
    seeds=seeds("megatron"),
    space=space("megatron"),
    render=_render,
    keep=frozenset(("ranks",)),
    numbers=(0, -1, 1, 3, 7, 1000),
)

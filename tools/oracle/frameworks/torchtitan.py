"""torchtitan's TOML on two nodes of four GPUs: Llama 3, DeepSeek-V3 and float8, with every kind of parallelism."""

from __future__ import annotations

import json
from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import Lines
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "0.2.2"
_PINS = f"torchtitan=={_VERSION}\ntorch==2.13.0\n"
_RUN = (
    "#!/bin/bash\npip install -r requirements.txt\n"
    "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id=1 --rdzv_backend=c10d --rdzv_endpoint=node-1:29500"
    " -m torchtitan.train --job.config_file train.toml\n"
)


def _toml(settings: dict[str, Any]) -> tuple[str, Lines]:
    """TOML with one key a line; what is None is left out, for TOML has no word for it."""
    rows, lines = list[str](), Lines()
    _section(settings, "", rows, lines)
    return "\n".join([*rows, ""]), lines


def _section(section: dict[str, Any], above: str, rows: list[str], lines: Lines) -> None:
    plain = {key: value for key, value in section.items() if not isinstance(value, dict) and value is not None}
    for key, value in plain.items():
        lines[f"{above}.{key}" if above else key] = len(rows) + 1
        rows.append(f"{key} = {json.dumps(value)}")
    for key, value in section.items():
        if isinstance(value, dict):
            path = f"{above}.{key}" if above else key
            lines[path] = len(rows) + 1
            rows.append(f"[{path}]")
            _section(value, path, rows, lines)


def _render(form: str, settings: dict[str, Any]) -> Case:
    text, lines = _toml(settings)
    files = {"train.toml": text, "requirements.txt": _PINS, "run.sh": _RUN}
    return Case("torchtitan", form, files, ("--job.config_file", "train.toml"), lines={"train.toml": lines})


FRAMEWORK = Framework(
    name="torchtitan",
    distribution="torchtitan",
    version=_VERSION,
    requirements=("tyro==1.0.13", "packaging", "numpy"),
    alone=(f"torchtitan=={_VERSION}",),
    validator="torchtitan_validator.py",
    seeds=seeds("torchtitan"),
    space=space("torchtitan"),
    render=_render,
)

"""LLaMA-Factory's training arguments in a YAML file, also with DeepSpeed."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import json_text, yaml_text
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "0.9.5"
_PINS = {"transformers": "5.6.0", "accelerate": "1.11.0", "trl": "0.24.0", "peft": "0.18.1", "deepspeed": "0.19.8"}
_REQUIREMENTS = f"llamafactory=={_VERSION}\ntorch==2.13.0\n" + "".join(f"{k}=={v}\n" for k, v in _PINS.items())
_RUN = """\
#!/bin/bash
pip install -r requirements.txt
FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train train.yaml
"""


def _render(form: str, settings: dict[str, Any]) -> Case:
    own = {key: value for key, value in settings.items() if key != "ds"}
    files, lines = {"requirements.txt": _REQUIREMENTS, "run.sh": _RUN}, {}
    if "ds" in settings:
        files["ds.json"], found = json_text(settings["ds"] if isinstance(settings["ds"], dict) else {})
        lines["ds.json"] = {f"ds.{key}": line for key, line in found.items()}
    files["train.yaml"], lines["train.yaml"] = yaml_text(own)
    return Case("llamafactory", form, files, ("train.yaml",), lines=lines)


FRAMEWORK = Framework(
    name="llamafactory",
    distribution="llamafactory",
    version=_VERSION,
    requirements=(
        f"transformers=={_PINS['transformers']}",
        "datasets==4.0.0",
        *("omegaconf", "psutil", "einops", "pydantic", "hjson", "py-cpuinfo", "msgpack", "ninja"),
    ),
    alone=(
        f"llamafactory=={_VERSION}",
        *(f"{name}=={_PINS[name]}" for name in ("accelerate", "trl", "peft", "deepspeed")),
    ),
    validator="llamafactory_validator.py",
    seeds=seeds("llamafactory"),
    space=space("llamafactory"),
    render=_render,
    keep=frozenset({"ds", "report_to"}),
    sections=frozenset({"ds"}),
)

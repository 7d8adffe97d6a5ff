"""axolotl's configuration: LoRA, QLoRA and full training, preferences and GRPO, with FSDP and DeepSpeed."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import json_text, yaml_text
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "0.19.0"
_PINS = {"transformers": "5.16.1", "accelerate": "1.13.0", "trl": "1.9.0", "peft": "0.20.0"}
_REQUIREMENTS = f"axolotl=={_VERSION}\ntorch==2.13.0\n" + "".join(f"{k}=={v}\n" for k, v in _PINS.items())
_RUN = "#!/bin/bash\npip install -r requirements.txt\naxolotl train config.yml\n"
_STAGE2 = {
    "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True},
    "bf16": {"enabled": True},
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}


def _render(form: str, settings: dict[str, Any]) -> Case:
    files, lines = {"requirements.txt": _REQUIREMENTS, "run.sh": _RUN}, {}
    if settings.get("deepspeed") == "ds.json":
        files["ds.json"] = json_text(_STAGE2)[0]
    files["config.yml"], lines["config.yml"] = yaml_text(settings)
    return Case("axolotl", form, files, ("config.yml",), lines=lines)


FRAMEWORK = Framework(
    name="axolotl",
    distribution="axolotl",
    version=_VERSION,
    requirements=(
        f"transformers=={_PINS['transformers']}",
        *("pydantic==2.12.5", "datasets==4.8.4", "mistral-common==1.11.5", "nvidia-ml-py"),
        *("addict", "pillow", "colorama", "requests", "posthog", "packaging", "psutil", "scipy", "fire", "einops"),
        *("python-dotenv", "numba"),
    ),
    alone=(f"axolotl=={_VERSION}", *(f"{name}=={_PINS[name]}" for name in ("accelerate", "trl", "peft"))),
    validator="axolotl_validator.py",
    seeds=seeds("axolotl"),
    space=space("axolotl"),
    render=_render,
    sections=frozenset({"fsdp_config", "trl", "vllm"}),
)

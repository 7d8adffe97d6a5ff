"""`accelerate launch`: its configuration file, its options, and the plugins that `Accelerator()` makes of them."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import flags_text, yaml_text
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "1.15.0"
_REQUIREMENTS = f"torch==2.13.0\naccelerate=={_VERSION}\ndeepspeed==0.19.8\n"
_PROGRAM = """\
import torch
from accelerate import Accelerator
from torchvision.models import resnet50

accelerator = Accelerator()
model = resnet50()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
"""


def _render(form: str, settings: dict[str, Any]) -> Case:
    files = {"train.py": _PROGRAM, "requirements.txt": _REQUIREMENTS}
    if form == "file":
        files["accelerate.yaml"], lines = yaml_text(settings)
        files["run.sh"] = (
            "#!/bin/bash\npip install -r requirements.txt\naccelerate launch --config_file accelerate.yaml train.py\n"
        )
        return Case("accelerate", form, files, lines={"accelerate.yaml": lines})
    files["accelerate.yaml"] = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 1\n"
    text, found = flags_text("accelerate launch --config_file accelerate.yaml", settings, "train.py")
    files["run.sh"] = f"#!/bin/bash\npip install -r requirements.txt\n{text}"
    return Case("accelerate", form, files, lines={"run.sh": {key: line + 2 for key, line in found.items()}})


FRAMEWORK = Framework(
    name="accelerate",
    distribution="accelerate",
    version=_VERSION,
    requirements=(
        "numpy",
        "transformers==5.24.0",
        "psutil",
        "packaging",
        "pyyaml",
        "huggingface_hub",
        "safetensors",
        "pydantic",
        "hjson",
        "py-cpuinfo",
        "einops",
        "msgpack",
        "ninja",
        "tqdm",
    ),
    alone=(f"accelerate=={_VERSION}", "deepspeed==0.19.8"),
    validator="accelerate_validator.py",
    seeds=seeds("accelerate"),
    space=space("accelerate"),
    render=_render,
    sections=frozenset({"fsdp_config", "deepspeed_config", "parallelism_config"}),
)

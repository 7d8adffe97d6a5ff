"""Ray Train's `ScalingConfig`, made as a training script makes it."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.frameworks.base import Framework, seeds, space

_HEAD = """\
import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train_loop():
    import train_model

    train_model.run()


"""
_PINS = "ray==2.60.0\ntorch==2.9.1\n"
_SUBMIT = "#!/bin/bash\npip install -r requirements.txt\nray job submit --working-dir . -- python train.py\n"
_TAIL = "trainer = TorchTrainer(train_loop, scaling_config=scaling)\ntrainer.fit()\n"


def _render(form: str, settings: dict[str, Any]) -> Case:
    rows = _HEAD.splitlines()
    lines: dict[str, int] = {}
    rows.append("scaling = ScalingConfig(")
    for key, value in settings.items():
        lines[key] = len(rows) + 1
        rows.append(f"    {key}={value!r},")
        if isinstance(value, dict):
            lines.update({f"{key}.{inner}": lines[key] for inner in value})
    rows.append(")")
    call = "\n".join(rows[len(_HEAD.splitlines()) :])
    text = "\n".join(rows) + "\n" + _TAIL
    files = {"train.py": text, "requirements.txt": _PINS, "run.sh": _SUBMIT}
    return Case("ray", form, files, command=(call,), lines={"train.py": lines})


FRAMEWORK = Framework(
    name="ray",
    distribution="ray",
    version="2.60.0",
    requirements=("ray[train]==2.60.0",),
    validator="ray_validator.py",
    seeds=seeds("ray"),
    space=space("ray"),
    render=_render,
    needs_torch=False,
)

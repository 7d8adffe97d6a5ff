"""Ray Train's `ScalingConfig`, made as a training script makes it."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.frameworks.base import Framework, Seed

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


_SPACE: dict[str, tuple[Any, ...]] = {
    "num_workers": (1, 2, 8, 0, -1, -4, (2, 8), (8, 2), (0, 4), (-1, 4), (1, 2, 3), "4", 2.0, None, [2, 4], ("2", 4)),
    "use_gpu": (True, False),
    "use_tpu": (True, False),
    "resources_per_worker": (
        *({"GPU": 1}, {"GPU": 0}, {"GPU": 2, "CPU": 8}, {"CPU": 4}, {"CPU": 4, "GPU": 0}, {"GPU": 0.5}),
        *({}, None, {"TPU": 4}, {"memory": 1e9}, {"GPU": 1, "TPU": 1}),
    ),
    "resources_per_worker.GPU": (0, 1, 2, 0.5),
    "resources_per_worker.CPU": (0, 1, 8),
    "resources_per_worker.TPU": (0, 4),
    "trainer_resources": ({"CPU": 1}, {"CPU": 0}, {}, None),
    "placement_strategy": ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
    "accelerator_type": ("H100", "A100", None),
    "label_selector": (
        *(
            {"zone": "a"},
            None,
            [{"zone": "a"}],
            [{"zone": "a"}, {"zone": "b"}],
            [{"zone": "a"}] * 8,
            [{"zone": "a"}] * 4,
        ),
    ),
    "elastic_resize_monitor_interval_s": (60.0, 0, -1, -0.5, 10),
    "topology": ("4x4", None),
    "num_worker": (4,),
    "gpus_per_worker": (1,),
    "num_gpus": (8,),
    "num_gpus_per_worker": (1,),
    "use_gpus": (True,),
    "workers": (4,),
    "num_nodes": (2,),
    "max_workers": (4,),
    "min_workers": (2,),
    "num_cpus_per_worker": (8,),
    "resources": ({"GPU": 1},),
}

FRAMEWORK = Framework(
    name="ray",
    distribution="ray",
    version="2.60.0",
    requirements=("ray[train]==2.60.0",),
    validator="ray_validator.py",
    seeds=(
        Seed("call", {"num_workers": 8, "use_gpu": True, "resources_per_worker": {"CPU": 8, "GPU": 1}}),
        Seed("call", {"num_workers": 4, "use_gpu": True, "placement_strategy": "SPREAD", "accelerator_type": "H100"}),
        Seed("call", {"num_workers": 2, "use_gpu": False, "resources_per_worker": {"CPU": 16}}),
        Seed("call", {"num_workers": (2, 8), "use_gpu": True, "elastic_resize_monitor_interval_s": 30.0}),
    ),
    space={"call": _SPACE},
    render=_render,
    needs_torch=False,
)

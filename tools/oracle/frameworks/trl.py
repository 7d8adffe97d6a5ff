"""The configurations of TRL's trainers, made in a script: SFT, DPO, GRPO, RLOO, KTO and reward models."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "1.16.0"
_PINS = f"trl=={_VERSION}\ntransformers==5.24.0\naccelerate==1.15.0\ntorch==2.13.0\n"
_RUN = "#!/bin/bash\npip install -r requirements.txt\ntorchrun --standalone --nproc_per_node 8 train.py\n"
_CLASSES = {"sft": "SFT", "dpo": "DPO", "grpo": "GRPO", "rloo": "RLOO", "kto": "KTO", "reward": "Reward"}


def _render(form: str, settings: dict[str, Any]) -> Case:
    name = _CLASSES[form]
    given = {key: value for key, value in settings.items() if key.isidentifier()}
    rows = [
        "from datasets import load_dataset",
        f"from trl import {name}Config, {name}Trainer",
        "",
        f"training_args = {name}Config(",
    ]
    lines = {key: len(rows) + number for number, key in enumerate(given, start=1)}
    rows += [f"    {key}={value!r}," for key, value in given.items()]
    rows += [
        ")",
        'data = load_dataset("json", data_files="train.jsonl")["train"]',
        f'trainer = {name}Trainer(model="Qwen/Qwen2.5-0.5B", args=training_args, train_dataset=data)',
        "trainer.train()",
        "",
    ]
    files = {"train.py": "\n".join(rows), "requirements.txt": _PINS, "run.sh": _RUN}
    return Case("trl", form, files, lines={"train.py": lines})


FRAMEWORK = Framework(
    name="trl",
    distribution="trl",
    version=_VERSION,
    requirements=("transformers==5.24.0", "datasets==4.8.4", "psutil"),
    alone=(f"trl=={_VERSION}", "accelerate==1.15.0"),
    validator="trl_validator.py",
    seeds=seeds("trl"),
    space=space("trl"),
    render=_render,
)

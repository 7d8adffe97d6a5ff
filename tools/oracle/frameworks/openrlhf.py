"""The arguments of OpenRLHF's `train_ppo_ray`: PPO, REINFORCE++ and GRPO over Ray."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import Words, flags_text, flat
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "0.11.2"
_REQUIREMENTS = f"openrlhf=={_VERSION}\ntorch==2.13.0\n"
_LINES = {
    "plain": "python3 -m openrlhf.cli.train_ppo_ray",
    "job": "ray job submit --address=http://127.0.0.1:8265 -- python3 -m openrlhf.cli.train_ppo_ray",
}


def _render(form: str, settings: dict[str, Any]) -> Case:
    # Two numbers are two words.
    options = {key: Words(value) if isinstance(value, list) else value for key, value in flat(settings)}
    text, lines = flags_text(_LINES[form], options)
    shifted = {"run.sh": {key: line + 2 for key, line in lines.items()}}
    files = {"run.sh": f"#!/bin/bash\npip install -r requirements.txt\n{text}", "requirements.txt": _REQUIREMENTS}
    return Case("openrlhf", form, files, lines=shifted)


FRAMEWORK = Framework(
    name="openrlhf",
    distribution="openrlhf",
    version=_VERSION,
    requirements=(),
    alone=(f"openrlhf=={_VERSION}",),
    needs_torch=False,
    validator="openrlhf_validator.py",
    seeds=seeds("openrlhf"),
    space=space("openrlhf"),
    render=_render,
    keep=frozenset(
        (
            *("actor", "actor.adam", "algo", "algo.advantage", "algo.kl", "ckpt", "critic", "critic.adam", "data"),
            *("ds", "eval", "ref", "reward", "rollout", "train", "vllm"),
        )
    ),
)

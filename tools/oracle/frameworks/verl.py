"""verl's configuration of `main_ppo`, given as overrides on the line: FSDP and Megatron, with and without a critic."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import flat
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "0.9.1"
_REQUIREMENTS = f"verl=={_VERSION}\ntorch==2.13.0\n"


def _render(form: str, settings: dict[str, Any]) -> Case:
    rows, lines = ["python3 -m verl.trainer.main_ppo"], dict[str, int]()
    for key, value in flat(settings):
        rows.append(f"  {key}={_word(value)}")
        lines[key] = len(rows) + 2
    text = "#!/bin/bash\npip install -r requirements.txt\n" + " \\\n".join(rows) + "\n"
    return Case("verl", form, {"run.sh": text, "requirements.txt": _REQUIREMENTS}, lines={"run.sh": lines})


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"'[{','.join(map(str, value))}]'"
    text = str(value)
    return f"'{text}'" if any(sign in text for sign in " $~*") else text


FRAMEWORK = Framework(
    name="verl",
    distribution="verl",
    version=_VERSION,
    requirements=("hydra-core==1.3.8", "numpy", "packaging", "cloudpickle", "psutil"),
    alone=(f"verl=={_VERSION}",),
    validator="verl_validator.py",
    seeds=seeds("verl"),
    space=space("verl"),
    render=_render,
    keep=frozenset(
        (
            "model_engine",
            *("data", "algorithm", "algorithm.kl_ctrl", "actor_rollout_ref", "trainer", "critic", "critic.model"),
            *("critic.optim", "critic.megatron", "actor_rollout_ref.actor", "actor_rollout_ref.actor.optim"),
            *("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.actor.megatron", "actor_rollout_ref.rollout"),
            *("actor_rollout_ref.model", "actor_rollout_ref.ref", "actor_rollout_ref.ref.fsdp_config"),
            "actor_rollout_ref.ref.megatron",
        )
    ),
)

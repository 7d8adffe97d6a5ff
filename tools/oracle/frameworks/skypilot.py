"""SkyPilot's task YAML: nodes, resources with choices, mounts, variables."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import yaml_text
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "0.14.1"

_SUBMIT = "#!/bin/bash\npip install -r requirements.txt\nsky launch -c train train.yaml\n"


def _render(form: str, settings: dict[str, Any]) -> Case:
    text, lines = yaml_text(settings)
    files = {"train.yaml": text, "requirements.txt": f"skypilot=={_VERSION}\n", "submit.sh": _SUBMIT}
    return Case("skypilot", form, files, ("train.yaml",), lines={"train.yaml": lines})


FRAMEWORK = Framework(
    name="skypilot",
    distribution="skypilot",
    version=_VERSION,
    requirements=(f"skypilot=={_VERSION}",),
    needs_torch=False,
    validator="skypilot_validator.py",
    seeds=seeds("skypilot"),
    space=space("skypilot"),
    render=_render,
    keep=frozenset({"file_mounts./data"}),
)

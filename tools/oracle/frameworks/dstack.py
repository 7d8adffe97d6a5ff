"""dstack's YAML of a task: one node and several, with resources in short and in long form."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import yaml_text
from tools.oracle.frameworks.base import Framework, seeds, space

_VERSION = "0.22.5"

_SUBMIT = "#!/bin/bash\npip install -r requirements.txt\ndstack apply -f train.dstack.yml\n"


def _render(form: str, settings: dict[str, Any]) -> Case:
    text, lines = yaml_text(settings)
    files = {"train.dstack.yml": text, "requirements.txt": f"dstack=={_VERSION}\n", "submit.sh": _SUBMIT}
    return Case("dstack", form, files, ("train.dstack.yml",), lines={"train.dstack.yml": lines})


FRAMEWORK = Framework(
    name="dstack",
    distribution="dstack",
    version=_VERSION,
    requirements=(f"dstack=={_VERSION}",),
    needs_torch=False,
    validator="dstack_validator.py",
    seeds=seeds("dstack"),
    space=space("dstack"),
    render=_render,
)

"""horovodrun's command line: its own parser, and the hosts with their slots."""

from __future__ import annotations

import shlex
from typing import Any

from tools.oracle.cases import Case
from tools.oracle.frameworks.base import Framework, seeds, space


def _render(form: str, settings: dict[str, Any]) -> Case:
    rows = ["#!/bin/bash", "pip install horovod==0.28.1", "horovodrun \\"]
    lines, words = dict[str, int](), ["horovodrun"]
    for key, value in settings.items():
        if value is None or value is False:
            continue
        option = [f"--{key}"] if value is True else [f"--{key}", str(value)]
        rows.append(f"  {shlex.join(option)} \\")
        lines[key] = len(rows)
        words.extend(option)
    rows.append("  python train.py")
    files = {"run.sh": "\n".join(rows) + "\n", "train.py": "import horovod.torch as hvd\n\nhvd.init()\n"}
    return Case("horovod", form, files, command=(*words, "python", "train.py"), lines={"run.sh": lines})


FRAMEWORK = Framework(
    name="horovod",
    distribution="horovod",
    version="0.28.1",
    requirements=("setuptools<70", "wheel", "cloudpickle", "packaging", "psutil", "pyyaml"),
    validator="horovod_validator.py",
    seeds=seeds("horovod"),
    space=space("horovod"),
    render=_render,
    needs_torch=False,
    keep=frozenset(("num-proc",)),
)

"""Short forms of jobs with transformers, accelerate, TRL, Lightning and Composer.

After the first part of a text, a line `@ NAME` begins another file of the job.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

Files = dict[str, str]

_SHEBANG = "#!/bin/bash\n"
_TORCHRUN = "torchrun --nproc-per-node 8 train.py"
_ARGUMENTS = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n\n"
_TRAIN = "trainer = Trainer(model=model, args=args, train_dataset=data, eval_dataset=data)\ntrainer.train()\n"
_ACCELERATOR = (
    "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
    "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
)
_LIGHTNING = "import lightning as L\nfrom lightning.pytorch import Trainer\n"


def parts(text: str) -> tuple[str, Files]:
    """The first part, and the files that follow it."""
    first, *others = re.split(r"^@ (\S+)\n", text if text.endswith("\n") else f"{text}\n", flags=re.MULTILINE)
    return first.rstrip("\n"), dict(zip(others[::2], others[1::2], strict=True))


def files(text: str, _run: str) -> Files:
    """A launch script, and files; without a `train.py`, one that makes an Accelerator."""
    first, others = parts(text)
    return {"run.sh": f"{_SHEBANG}{first}\n", "train.py": _ACCELERATOR, **others}


def program(text: str, run: str) -> Files:
    """A program of eight ranks."""
    first, others = parts(text)
    return {"run.sh": f"{_SHEBANG}{run or _TORCHRUN}\n", "train.py": f"{first}\n", **others}


def hf(text: str, run: str) -> Files:
    """Options of a program that parses TrainingArguments."""
    first, others = parts(text)
    words = (word.partition("=") for word in shlex.split(first))
    given = "".join(f" --{name}" + (f" {_quoted(value)}" if sign else "") for name, sign, value in words)
    parser = "(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()\n"
    return {
        "run.sh": f"{_SHEBANG}{run or _TORCHRUN} --output_dir out{given}\n",
        "train.py": f"{_ARGUMENTS}{parser}{_TRAIN}",
        **others,
    }


def hf_call(text: str, run: str) -> Files:
    """Arguments of a call of TrainingArguments."""
    first, others = parts(text)
    call = f'args = TrainingArguments(output_dir="out", {first})\n'
    return {"run.sh": f"{_SHEBANG}{run or _TORCHRUN}\n", "train.py": f"{_ARGUMENTS}{call}{_TRAIN}", **others}


def accelerate(text: str, _run: str) -> Files:
    """Options of accelerate launch."""
    first, others = parts(text)
    return {"run.sh": f"{_SHEBANG}accelerate launch {first} train.py\n", "train.py": _ACCELERATOR, **others}


def accelerate_file(text: str, run: str) -> Files:
    """Keys of a configuration of accelerate."""
    first, others = parts(text)
    words = shlex.split(first)
    known = {word.partition("=")[0] for word in words}
    base = ["compute_environment=LOCAL_MACHINE", "num_machines=1", "num_processes=8", "machine_rank=0"]
    words = [*(word for word in base if word.partition("=")[0] not in known), *words]
    return {
        "run.sh": f"{_SHEBANG}{run or 'accelerate launch --config_file c.yaml train.py'}\n",
        "c.yaml": sections([word for word in words if not word.endswith("=-")]),
        "train.py": _ACCELERATOR,
        **others,
    }


def trl(text: str, run: str) -> Files:
    """A class of TRL, and the arguments of its call."""
    first, others = parts(text)
    name, _, given = first.partition(" ")
    trainer = name.replace("Config", "Trainer")
    body = (
        f"from trl import {name}, {trainer}\n\n"
        f'args = {name}(output_dir="out", {given})\n'
        f"trainer = {trainer}(model=model, args=args, train_dataset=data)\ntrainer.train()\n"
    )
    return {
        "run.sh": f"{_SHEBANG}{run or 'accelerate launch --multi_gpu --num_processes 2 train.py'}\n",
        "train.py": body,
        **others,
    }


def trl_file(text: str, run: str) -> Files:
    """A command of trl, and the keys of its file."""
    first, others = parts(text)
    command, *words = shlex.split(first)
    words = ["model_name_or_path=m", "dataset_name=d", "output_dir=out", *words]
    started = run or f"trl {command} --config c.yaml --num_processes 2"
    return {"run.sh": f"{_SHEBANG}{started}\n", "c.yaml": sections(words), **others}


def lightning(text: str, run: str) -> Files:
    """Arguments of Lightning's Trainer."""
    first, others = parts(text)
    imports = "".join(line + "\n" for line in first.split("\n")[:-1])
    last = first.split("\n")[-1]
    last += "" if "max_" in last else ", max_epochs=1"
    body = f"{_LIGHTNING}{imports}\ntrainer = Trainer({last})\ntrainer.fit(model, loader)\n"
    return {"run.sh": f"{_SHEBANG}{run or 'python train.py'}\n", "train.py": body, **others}


def fabric(text: str, run: str) -> Files:
    """Arguments of Lightning's Fabric, and calls of what it makes, each on a line."""
    first, others = parts(text)
    given, _, calls = first.partition("\n")
    body = "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n\n"
    body += f"fabric = Fabric({given})\n{calls}\n"
    return {"run.sh": f"{_SHEBANG}{run or 'python train.py'}\n", "train.py": body, **others}


def composer(text: str, run: str) -> Files:
    """Arguments of Composer's Trainer."""
    first, others = parts(text)
    body = (
        "from composer import Trainer\n\n"
        f"trainer = Trainer(model=model, train_dataloader=loader, {first})\ntrainer.fit()\n"
    )
    return {"run.sh": f"{_SHEBANG}{run or 'composer -n 8 train.py'}\n", "train.py": body, **others}


def sections(words: list[str]) -> str:
    """`a.b=1` and so on as YAML."""
    tree: dict[str, Any] = {}
    for word in words:
        path, _, value = word.partition("=")
        *above, last = path.split(".")
        place = tree
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
    return "".join(_yaml(tree, ""))


def _yaml(tree: dict[str, Any], indent: str) -> list[str]:
    found: list[str] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += [f"{indent}{key}:\n", *_yaml(value, f"{indent}  ")]
        else:
            found.append(f"{indent}{key}: {value}\n")
    return found


def _quoted(text: str) -> str:
    if text.startswith("$"):
        return f'"{text}"'
    return shlex.quote(text)


FORMS: dict[str, Callable[[str, str], Files]] = {
    form.__name__: form
    for form in (
        *(files, hf, hf_call, accelerate, accelerate_file, trl, trl_file),
        *(lightning, fabric, composer),
    )
}
FORMS["script"] = program

"""Hugging Face's TrainingArguments: written in a script, in YAML, or on the command line, also with DeepSpeed."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import flags_text, json_text, yaml_text
from tools.oracle.frameworks.base import Framework, seeds, space

_GPUS = 4
_VERSION = "5.24.0"
_REQUIREMENTS = f"torch==2.13.0\ntransformers=={_VERSION}\naccelerate==1.15.0\ndeepspeed==0.19.8\n"
_MODEL = """\
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
data = load_dataset("json", data_files="train.jsonl")["train"].train_test_split(0.1)
trainer = Trainer(model=model, args=training_args, train_dataset=data["train"], eval_dataset=data["test"])
trainer.train()
"""
_IMPORTS = """\
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
"""
_PARSED = {
    "yaml": f"""\
import sys

{_IMPORTS}from transformers import HfArgumentParser, TrainingArguments

(training_args,) = HfArgumentParser((TrainingArguments,)).parse_yaml_file(sys.argv[1])
{_MODEL}""",
    "flags": f"""\
{_IMPORTS}from transformers import HfArgumentParser, TrainingArguments

(training_args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
{_MODEL}""",
}
_LAUNCH = f"torchrun --standalone --nproc_per_node {_GPUS} train.py"


def _render(form: str, settings: dict[str, Any]) -> Case:
    own = {key: value for key, value in settings.items() if key != "ds"}
    files, lines = {"requirements.txt": _REQUIREMENTS}, {}
    if "ds" in settings:
        section = settings["ds"] if isinstance(settings["ds"], dict) else {}
        files["ds.json"], lines["ds.json"] = json_text(section)
        lines["ds.json"] = {f"ds.{key}": line for key, line in lines["ds.json"].items()}
    command: tuple[str, ...] = ()
    if form == "script":
        before = f"{_IMPORTS}from transformers import TrainingArguments\n\ntraining_args = TrainingArguments(\n"
        rows = [f"    {key}={value!r},\n" for key, value in own.items() if key.isidentifier()]
        files["train.py"] = f"{before}{''.join(rows)})\n{_MODEL}"
        first = before.count("\n") + 1
        names = [key for key in own if key.isidentifier()]
        lines["train.py"] = {key: first + number for number, key in enumerate(names)}
        files["run.sh"] = f"#!/bin/bash\npip install -r requirements.txt\n{_LAUNCH}\n"
    else:
        files["train.py"] = _PARSED[form]
        if form == "yaml":
            files["args.yaml"], lines["args.yaml"] = yaml_text(own)
            files["run.sh"] = f"#!/bin/bash\npip install -r requirements.txt\n{_LAUNCH} args.yaml\n"
            command = ("args.yaml",)
        else:
            text, found = flags_text(_LAUNCH, own)
            files["run.sh"] = f"#!/bin/bash\npip install -r requirements.txt\n{text}"
            lines["run.sh"] = {key: line + 2 for key, line in found.items()}
    return Case("transformers", form, files, command, lines=lines)


FRAMEWORK = Framework(
    name="transformers",
    distribution="transformers",
    version=_VERSION,
    requirements=(
        f"transformers=={_VERSION}",
        "pydantic",
        "hjson",
        "py-cpuinfo",
        "einops",
        "msgpack",
        "ninja",
        "psutil",
    ),
    alone=("accelerate==1.15.0", "deepspeed==0.19.8"),
    validator="transformers_validator.py",
    seeds=seeds("transformers"),
    space=space("transformers"),
    render=_render,
    keep=frozenset({"ds", "report_to"}),
    sections=frozenset({"ds"}),
)

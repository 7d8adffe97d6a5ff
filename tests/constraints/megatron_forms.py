"""Short forms of jobs with Megatron-LM, Megatron-DeepSpeed, megatron-core, Megatron-Bridge and NeMo 2.

After the first part of a text, a line `@ NAME` begins another file of the job.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from tests.constraints.huggingface_forms import Files, parts, sections

_SHEBANG = "#!/bin/bash\n"
_TORCHRUN = "torchrun --nproc-per-node 8"
#: A model that every release takes.
_MODEL = {
    "--num-layers": "8",
    "--hidden-size": "512",
    "--num-attention-heads": "8",
    "--seq-length": "1024",
    "--max-position-embeddings": "1024",
    "--micro-batch-size": "1",
    "--global-batch-size": "64",
    "--train-iters": "1000",
    "--lr": "1e-4",
    "--mock-data": "",
    "--bf16": "",
    "--tokenizer-type": "NullTokenizer",
    "--vocab-size": "1000",
}
_PRETRAIN = "from megatron.training import pretrain\n\npretrain()\n"
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")


def lm(text: str, run: str) -> Files:
    """Variables, and options of pretrain_gpt.py that take the place of the usual ones; `!--bf16` leaves one out."""
    return _program(text, run or f"{_TORCHRUN} pretrain_gpt.py", _MODEL, "--tensor-model-parallel-size 1")


def deepspeed(text: str, run: str) -> Files:
    """The same for Megatron-DeepSpeed."""
    started = run or "deepspeed --num_gpus 8 pretrain_gpt.py"
    first, _, others = text.partition("\n@ ")
    given = _program(first + (f"\n@ {others}" if others else ""), started, _MODEL, "--deepspeed_config ds.json")
    return {"ds.json": '{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 64}\n', **given}


def _program(text: str, started: str, usual: dict[str, str], last: str) -> Files:
    first, others = parts(text)
    words = re.findall(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", first)
    variables = [word for word in words if _VARIABLE.match(word)]
    options = [word for word in words if not _VARIABLE.match(word)]
    left_out = {word.removeprefix("!") for word in options if word.startswith("!")}
    options = [word for word in options if not word.startswith("!")]
    named = {word.partition("=")[0] for word in options} | left_out
    if not named.isdisjoint(("--data-path", "--train-data-path", "--mock-data")):
        named.add("--mock-data")
    if "--fp16" in named:
        named.add("--bf16")
    if "--train-samples" in named:
        named.add("--train-iters")
    kept = [f"{name} {value}".strip() for name, value in usual.items() if name not in named]
    exports = "".join(f"export {word}\n" for word in variables)
    end = "" if last.split()[0] in named else last
    line = " ".join(word for word in (started, *kept, end, *options) if word)
    return {"run.sh": f"{_SHEBANG}{exports}{line}\n", "pretrain_gpt.py": _PRETRAIN, **others}


def core(text: str, run: str) -> Files:
    """Arguments of megatron-core's TransformerConfig."""
    first, others = parts(text)
    body = (
        "import torch\nfrom megatron.core.transformer.transformer_config import TransformerConfig\n\n"
        "torch.distributed.init_process_group()\n"
        f"config = TransformerConfig(num_layers=8, hidden_size=512, num_attention_heads=8, {first})\n"
    )
    return {"run.sh": f"{_SHEBANG}{run or f'{_TORCHRUN} train.py'}\n", "train.py": body, **others}


def bridge(text: str, run: str) -> Files:
    """Keys of a file of Megatron-Bridge."""
    first, others = parts(text)
    given = shlex.split(first)
    keys = {"model.num_layers": "8", "train.train_iters": "1000"}
    keys |= {word.partition("=")[0]: word.partition("=")[2] for word in given if not _VARIABLE.match(word)}
    exports = "".join(f"export {word}\n" for word in given if _VARIABLE.match(word))
    started = run or f"{_TORCHRUN} scripts/training/run_recipe.py --recipe r --config-file c.yaml"
    return {
        "run.sh": f"{_SHEBANG}{exports}{started}\n",
        "c.yaml": sections([f"{key}={value}" for key, value in keys.items()]),
        **others,
    }


def bridge_line(text: str, run: str) -> Files:
    """Keys that a line sets for a recipe of Megatron-Bridge."""
    started = run or f"{_TORCHRUN} scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config"
    return {"run.sh": f"{_SHEBANG}{started} {text}\n"}


def bridge_script(text: str, run: str) -> Files:
    """Statements about the configuration `cfg` of a script of Megatron-Bridge."""
    first, others = parts(text)
    body = (
        "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n"
        "from megatron.bridge.training.gpt_step import forward_step\n"
        "from megatron.bridge.training.pretrain import pretrain\n\n"
        "cfg = llama3_8b_pretrain_config()\ncfg.model.num_layers = 8\ncfg.train.train_iters = 1000\n"
        f"{first}\npretrain(config=cfg, forward_step_func=forward_step)\n"
    )
    return {"run.sh": f"{_SHEBANG}{run or f'{_TORCHRUN} train.py'}\n", "train.py": body, **others}


def nemo(text: str, run: str) -> Files:
    """Statements of a program with NeMo 2."""
    first, others = parts(text)
    head = "import nemo_run as run\nfrom nemo import lightning as nl\nfrom nemo.collections import llm\n\n"
    return {"run.sh": f"{_SHEBANG}{run or f'{_TORCHRUN} train.py'}\n", "train.py": f"{head}{first}\n", **others}


FORMS: dict[str, Callable[[str, str], Files]] = {
    "lm": lm,
    "megatron_deepspeed": deepspeed,
    **{form.__name__: form for form in (core, bridge, bridge_line, bridge_script, nemo)},
}

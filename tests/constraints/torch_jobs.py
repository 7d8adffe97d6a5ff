"""The jobs of torch.toml: each form makes the files of a job from a few lines."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

Files = dict[str, str]

#: The import of each name that a text uses.
_IMPORTS = {
    "DDP": "from torch.nn.parallel import DistributedDataParallel as DDP",
    "SyncBatchNorm": "from torch.nn import SyncBatchNorm",
    "FSDP": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
    "ShardingStrategy": "from torch.distributed.fsdp import ShardingStrategy",
    "CPUOffload": "from torch.distributed.fsdp import CPUOffload",
    "MixedPrecision": "from torch.distributed.fsdp import MixedPrecision",
    "fully_shard": "from torch.distributed.fsdp import fully_shard",
    "ShardedGradScaler": "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler",
    "init_device_mesh": "from torch.distributed.device_mesh import init_device_mesh",
    "DataLoader": "from torch.utils.data import DataLoader",
    "IterableDataset": "from torch.utils.data import IterableDataset",
    "DistributedSampler": "from torch.utils.data.distributed import DistributedSampler",
    "checkpoint": "from torch.utils.checkpoint import checkpoint",
    "StateDictOptions": "from torch.distributed.checkpoint.state_dict import StateDictOptions",
    "dcp": "import torch.distributed.checkpoint as dcp",
    "parallelize_module": "from torch.distributed.tensor.parallel import parallelize_module",
    "ColwiseParallel": "from torch.distributed.tensor.parallel import ColwiseParallel",
    "PipelineStage": "from torch.distributed.pipelining import PipelineStage",
    "ScheduleZBVZeroBubble": "from torch.distributed.pipelining import ScheduleZBVZeroBubble",
    "ScheduleDualPipeV": "from torch.distributed.pipelining import ScheduleDualPipeV",
    "get_schedule_class": "from torch.distributed.pipelining.schedules import get_schedule_class",
    "rpc": "import torch.distributed.rpc as rpc",
    "timedelta": "from datetime import timedelta",
    "deepspeed": "import deepspeed",
    "PipelineModule": "from deepspeed.pipe import PipelineModule",
    "MoE": "from deepspeed.moe.layer import MoE",
    "UlyssesSPAttentionHF": "from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF",
    "hvd": "import horovod.torch as hvd",
    "HybridParallelPlugin": "from colossalai.booster.plugin import HybridParallelPlugin",
    "LowLevelZeroPlugin": "from colossalai.booster.plugin import LowLevelZeroPlugin",
    "GeminiPlugin": "from colossalai.booster.plugin import GeminiPlugin",
    "Booster": "from colossalai.booster import Booster",
    "colossalai": "import colossalai",
    "FairFSDP": "from fairscale.nn import FullyShardedDataParallel as FairFSDP",
    "ShardedDDP": "from fairscale.nn.data_parallel import ShardedDataParallel as ShardedDDP",
    "OSS": "from fairscale.optim.oss import OSS",
    "Pipe": "from fairscale.nn import Pipe",
    "argparse": "import argparse",
}
_GROUP = (
    'local_rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local_rank)\ndist.init_process_group("nccl")\n'
)
_MODEL = "model = torch.nn.Linear(8, 8).cuda()\n"
_EIGHT = "torchrun --nproc-per-node=8 train.py"


def build(row: dict[str, Any], which: str) -> Files:
    r"""The files of the job `wrong`, `right` or `open` of a row, in whose texts `\n` begins a new line."""

    def given(name: str) -> Any:
        return row.get(f"{name}_{which}", row.get(name, ""))

    words = (row[which], given("run"), given("code"))
    files = _FORMS[row["form"]](*(word.replace("\\n", "\n") for word in words))
    files |= {name: f"{text}\n" for name, text in (given("beside") or {}).items()}
    if given("pin"):
        files["requirements.txt"] = "\n".join(given("pin").split(";")) + "\n"
    return files


def line(text: str, _run: str, code: str) -> Files:
    """A launch script; the program `train.py` lies beside it."""
    name = "job.sbatch" if "#SBATCH" in text else "run.sh"
    program = code or ("hvd.init()\ntorch.cuda.set_device(hvd.local_rank())" if "horovodrun" in text else "")
    return {name: f"#!/bin/bash\n{text}\n", "train.py": _program(program, group="hvd." not in program)}


def py(text: str, run: str, _code: str) -> Files:
    """Statements after the process group is made; eight ranks run them."""
    return {"run.sh": _script(run), "train.py": _program(text, group=True)}


def whole(text: str, run: str, _code: str) -> Files:
    """A program that makes its own process group."""
    return {"run.sh": _script(run), "train.py": _program(text, group=False)}


def ds(text: str, run: str, code: str) -> Files:
    """A configuration of DeepSpeed; `_bare` in it keeps a batch size away."""
    duplicate = '"_dup"' in text
    given: dict[str, Any] = {} if duplicate else json.loads(text)
    if not given.pop("_bare", False):
        given.setdefault("train_micro_batch_size_per_gpu", 2)
        given.setdefault("optimizer", {"type": "AdamW", "params": {"lr": 0.0001}})
    if not given.get("optimizer", True):
        del given["optimizer"]
    written = text.replace('"_dup":0,', "") if duplicate else json.dumps(given, indent=1)
    made = code or 'engine, *_ = deepspeed.initialize(model=model, config="ds.json")'
    program = f"{_MODEL}deepspeed.init_distributed()\n{made}\n"
    return {"run.sh": _script(run), "ds.json": f"{written}\n", "train.py": _program(program, group=False)}


def titan(text: str, run: str, _code: str) -> Files:
    """A configuration of torchtitan for eight ranks."""
    tree: dict[str, list[str]] = {"model": ['name = "llama3"', 'flavor = "8B"'], "training": ["seq_len = 2048"]}
    for word in shlex.split(text, posix=False):
        path, _, value = word.partition("=")
        section, _, key = path.rpartition(".")
        tree.setdefault(section, []).append(f"{key} = {value}")
    written = "".join(f"[{name}]\n" + "".join(f"{item}\n" for item in items) for name, items in tree.items())
    started = run or "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file c.toml"
    return {"run.sh": _script(started), "c.toml": written}


def tune(text: str, run: str, _code: str) -> Files:
    """A configuration of torchtune for eight ranks."""
    written = "output_dir: out\nmodel:\n  _component_: torchtune.models.llama3.llama3_8b\n"
    words = [*shlex.split(text)]
    if not any(word.startswith("device=") for word in words):
        words.append("device=cuda")
    started = run or "tune run --nproc_per_node 8 full_finetune_distributed --config c.yaml"
    return {"run.sh": _script(started), "c.yaml": written + "".join("{}: {}\n".format(*w.split("=", 1)) for w in words)}


def _script(run: str) -> str:
    return f"#!/bin/bash\n{run or _EIGHT}\n"


def _program(text: str, *, group: bool) -> str:
    body = (_GROUP + _MODEL if group else "") + (f"{text}\n" if text else "")
    used = [line for name, line in _IMPORTS.items() if re.search(rf"\b{name}\b", body) and line not in body]
    return "\n".join(("import os\n", "import torch", "import torch.distributed as dist", *used)) + f"\n\n{body}"


_FORMS: dict[str, Callable[[str, str, str], Files]] = {
    form.__name__: form for form in (line, py, whole, ds, titan, tune)
}

"""Parts of a script that need a process group or the variables of a launcher, and calls that make a group.

Sources: torch/distributed/distributed_c10d.py (2.9: _get_default_group raises without a group); torch/nn/modules/
batchnorm.py (2.9: SyncBatchNorm acts as BatchNorm without a group; 1.12 and older ask for its size).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from preflight.model.job import Claim
from preflight.sources.python.imports import libraries
from preflight.sources.python.module import Module
from preflight.sources.python.outline import Function, dotted
from preflight.sources.python.required import always_reached, given_variables

#: Anything that may make a group, in any file of the job.
_MAKING = re.compile(
    r"Trainer\(|init_process_group|init_distributed|init_dist|initialize_dist|init_parallel_env|Accelerator\(|deepspeed|horovod|hvd"
    r"|[lL]ightning|[fF]abric|PartialState|TrainingArguments|setup_dist|dist_setup|setup_ddp|ddp_setup|megatron|bmtrain"
    r"|init_rpc|init_device_mesh|launch\(|fleet\.init|Runner|idist|colossalai|fairscale|composer|distributed_init"
    r"|init_distributed_mode|dist_init|comm\.init|setup_distributed|init_ddp|initialize_model_parallel|ray\.train|getattr\("
    r"|DeviceMesh\(|fully_shard\(|distribute_(?:module|tensor)\(|import_module|runpy|exec\(|ProcessGroup"
)
#: A module that runs other files, which may make a group.
_IMPORTED_MAKER = re.compile(r"\brunpy\b|\bimport_module\b")
#: Questions about the group, and blocks that may swallow its absence.
_ASKS = re.compile(r"\bis_initialized\b|\bsuppress\(")
#: An import alone makes nothing.
_IMPORTS = re.compile(r"^[ \t]*(?:from|import)[ \t].*$", re.MULTILINE)
_NEEDING = frozenset(
    ("get_rank", "get_world_size", "barrier", "all_reduce", "all_gather", "broadcast", "reduce", "new_group")
)
#: Libraries that make no group when they are imported or called.
_LIBRARIES = frozenset(
    (
        "PIL", "albumentations", "cv2", "einops", "h5py", "hydra", "matplotlib", "numpy", "omegaconf", "pandas", "peft",
        "scipy", "sklearn", "tensorboard", "tensorboardX", "timm", "tokenizers", "torch", "torchaudio", "torchvision",
        "tqdm", "wandb", "yaml",
    )
)  # fmt: skip
#: Libraries that may make a group.
_MAKERS = frozenset(
    (
        "transformers", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "fastai", "megatron", "composer",
        "detectron2", "mmcv", "mmengine", "mmdet", "fairseq", "horovod", "ray", "colossalai", "verl", "vllm", "trl",
        "torchtitan", "ignite", "apex", "fairscale", "diffusers", "ultralytics",
    )
)  # fmt: skip
_RANKS = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"))
#: Calls of functions of other files that are joined.
_MAX_CALLS = 24


def claims(module: Module) -> Iterator[Claim]:
    """All claims about groups that are needed or made."""
    text = module.file.text
    made = _MAKING.search(_IMPORTS.sub("", text)) or _IMPORTED_MAKER.search(text)
    if made is not None:
        yield module.claim("script_feature", "group_made", module.tree.body[0], spelling=made.group(0), condition="")
    elif "torch" in text:
        yield from _needed(module)
    if "environ" in text:
        yield from _rank_readers(module)
    yield from _calls_of_files(module)


def _needed(module: Module) -> Iterator[Claim]:
    """The first call that certainly runs and needs a group that the script does not make."""
    strange = sorted(set(libraries(module)) - _LIBRARIES)
    if _MAKERS & set(strange):
        return
    relative = any(node.level > 0 for node in module.nodes(ast.ImportFrom))
    maker = next(iter(strange), "a module of the package" if relative else "")
    asked = _ASKS.search(module.file.text)
    condition = f"{maker} may make the group" if maker else f"the script asks by {asked.group(0)}" if asked else ""
    found: list[tuple[ast.Call, str]] = []
    for call in module.named(*sorted(_NEEDING)):
        if module.called(call).startswith("torch.distributed."):
            found.append((call, "group_needed"))
    for call in module.named("DistributedDataParallel"):
        if module.called(call).startswith("torch.nn.parallel"):
            found.append((call, "group_needed"))
    for call in module.named("convert_sync_batchnorm"):
        if module.called(call).startswith("torch.nn."):
            found.append((call, "group_for_sync_batchnorm"))
    for call, name in sorted(found, key=lambda item: item[0].lineno):
        sure = always_reached(module, call)
        if sure or name == "group_for_sync_batchnorm":
            yield module.claim("script_feature", name, call, condition=condition or module.condition(call))
            return


def _rank_readers(module: Module) -> Iterator[Claim]:
    """Functions and constructors that read a variable of a launcher without a default."""
    stem = PurePosixPath(module.file.path).stem
    seen: set[str] = set()
    for node in module.nodes(ast.Subscript):
        if module.name(node.value) != "os.environ" or not isinstance(node.slice, ast.Constant):
            continue
        function = module.outline.function_of(node)
        if node.slice.value not in _RANKS or not isinstance(node.ctx, ast.Load) or function is None:
            continue
        if any(isinstance(outer, (ast.Try, ast.IfExp, ast.BoolOp)) for outer in module.outline.above(node)):
            continue
        name = _name_of(module, function)
        condition = module.condition(node)
        if "in os.environ" in module.source(function):
            continue
        if name and name not in seen and "environ" not in condition and "launcher" not in condition:
            seen.add(name)
            yield module.claim("script_feature", f"reads_rank_in:{stem}.{name}", node, condition=condition)


def _name_of(module: Module, function: Function) -> str:
    """The name by which a caller names a function: that of the class for a constructor."""
    outer = module.parent(function)
    if isinstance(outer, ast.ClassDef):
        return outer.name if function.name == "__init__" else ""
    return function.name if isinstance(outer, ast.Module) else ""


def _calls_of_files(module: Module) -> Iterator[Claim]:
    """Calls, on every path through the script, of functions that it imports from other files."""
    seen: set[str] = set()
    if _RANKS & given_variables(module):
        return
    for call in module.calls:
        name = module.called(call)
        if name.count(".") < 1 or name in seen or len(seen) >= _MAX_CALLS or name.startswith(_FOREIGN):
            continue
        if not module.is_imported(dotted(call.func)) or not always_reached(module, call):
            continue
        seen.add(name)
        where = ".".join(name.split(".")[-2:])
        yield module.claim("script_feature", f"calls:{where}", call, condition="")


#: Prefixes of calls that lead to no file of the job.
_FOREIGN = (
    *("torch.", "torchvision.", "transformers.", "accelerate.", "deepspeed.", "horovod.", "lightning.", "paddle."),
    *("pytorch_lightning.", "os.", "sys.", "numpy.", "argparse.", "json.", "time.", "logging.", "re.", "math."),
)

"""The content of a checkpoint: the format of its pieces, the number of ranks that wrote them, and missing pieces.

Only names and sizes are read. Nothing is unpickled: a checkpoint may hold code, and loading it takes minutes.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from typing import Any

#: The number of names in one folder that are examined; a checkpoint has a few for each rank.
MAX_NAMES = 20000
#: DeepSpeed (deepspeed/runtime/engine.py, _get_zero_ckpt_name and _get_ckpt_name): one file of optimizer states for
#: each data-parallel rank, one of the model for each model-parallel rank.
_ZERO = re.compile(r"^(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")
_MODEL = re.compile(r"^mp_rank_(\d+)_model_states\.pt$")
#: Megatron-LM (megatron/training/checkpointing.py, get_checkpoint_name): a folder for each tensor-parallel rank, with
#: the pipeline stage appended if there are several.
_MEGATRON = re.compile(r"^mp_rank_(\d{2,})(?:_(\d{3,}))?$")
#: torch.distributed.checkpoint (filesystem.py): files by the rank that wrote them, and one index.
_DCP = re.compile(r"^__(\d+)_\d+\.distcp$")
_RANDOM = re.compile(r"^rng_state_(\d+)\.pth$")


@dataclass(frozen=True)
class CheckpointState:
    """One checkpoint. `problem` is empty, `missing`, `denied`, `empty` (no checkpoint in the folder), `tag` (the one
    named as the newest does not exist) or `other`.

    `tag` is the folder of the newest one below the path. The lists hold the ranks whose pieces exist: of ZeRO's
    optimizer states, of model-parallel parts, of Megatron's tensor-parallel parts (`stages`: of its pipeline), of
    torch.distributed.checkpoint, of Hugging Face's random states. `universal`: DeepSpeed's format for any number of
    ranks; `index`: torch's .metadata exists; `hollow`: empty pieces.
    """

    path: str
    resolved: str = ""
    problem: str = ""
    detail: str = ""
    tag: str = ""
    zero: list[int] = field(default_factory=list)
    model: list[int] = field(default_factory=list)
    tensor: list[int] = field(default_factory=list)
    stages: list[int] = field(default_factory=list)
    distributed: list[int] = field(default_factory=list)
    random: list[int] = field(default_factory=list)
    universal: bool = False
    index: bool = False
    hollow: list[str] = field(default_factory=list)
    size_bytes: int = 0


def checkpoint_state(params: dict[str, Any]) -> CheckpointState:
    """Examine the checkpoint `params["path"]`: a file, a folder with one, or one that names its newest."""
    given = str(params["path"])
    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(given)))
    try:
        if not os.path.isdir(resolved):
            size = os.stat(resolved).st_size
            return CheckpointState(given, resolved, size_bytes=size, hollow=[os.path.basename(resolved)][: size == 0])
        tag = _newest(resolved)
        folder = os.path.join(resolved, tag)
        if not os.path.isdir(folder):
            return CheckpointState(
                given, resolved, "tag", f"{tag} is recorded as the newest checkpoint, but does not exist", tag
            )
        pieces = _pieces(folder)
    except OSError as error:
        problem = {errno.ENOENT: "missing", errno.ENOTDIR: "missing", errno.EACCES: "denied"}
        return CheckpointState(given, resolved, problem.get(error.errno or 0, "other"), error.strerror or str(error))
    if not pieces:
        return CheckpointState(given, resolved, "empty", "it contains no files", tag)
    return _read(CheckpointState(given, resolved, tag=tag), pieces)


def _newest(folder: str) -> str:
    """The folder of the newest checkpoint below `folder`, empty if `folder` is one itself. Raises OSError."""
    text = _first_word(os.path.join(folder, "latest_checkpointed_iteration.txt"))
    if text:
        return text if text == "release" else f"iter_{int(text):07}" if text.isdecimal() else text
    text = _first_word(os.path.join(folder, "latest")) or _first_word(os.path.join(folder, "latest_universal"))
    # The name of a subfolder, which cannot lead elsewhere.
    return text if text and "/" not in text and text not in (".", "..") else ""


def _first_word(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return (file.read(256).split() or [""])[0]
    except OSError:
        return ""


def _pieces(folder: str) -> list[tuple[str, int, bool]]:
    """Name, size and whether it is a folder. Raises OSError."""
    found: list[tuple[str, int, bool]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(found) >= MAX_NAMES:
                break
            is_folder = entry.is_dir()
            size = 0 if is_folder else entry.stat().st_size
            found.append((entry.name, size, is_folder))
    return sorted(found)


def _read(state: CheckpointState, pieces: list[tuple[str, int, bool]]) -> CheckpointState:
    kinds = ("zero", "model", "tensor", "stages", "distributed", "random")
    ranks: dict[str, set[int]] = {kind: set() for kind in kinds}
    universal = index = False
    for name, _size, is_folder in pieces:
        universal = universal or (is_folder and name == "zero")
        index = index or name == ".metadata"
        for kind, pattern in (("zero", _ZERO), ("model", _MODEL), ("distributed", _DCP), ("random", _RANDOM)):
            match = pattern.match(name)
            if match and not is_folder:
                ranks[kind].add(int(match.group(1)))
        match = _MEGATRON.match(name)
        if match and is_folder:
            ranks["tensor"].add(int(match.group(1)))
            ranks["stages"].add(int(match.group(2) or 0))
    hollow = [
        name for name, size, is_folder in pieces if not size and not is_folder and name.endswith((".pt", ".distcp"))
    ]
    return CheckpointState(
        state.path,
        state.resolved,
        tag=state.tag,
        universal=universal,
        index=index,
        hollow=hollow[:100],
        size_bytes=sum(size for _name, size, _folder in pieces),
        zero=sorted(ranks["zero"]),
        model=sorted(ranks["model"]),
        tensor=sorted(ranks["tensor"]),
        stages=sorted(ranks["stages"]),
        distributed=sorted(ranks["distributed"]),
        random=sorted(ranks["random"]),
    )

"""What is installed where the ranks will run, read without importing any of it.

Importing torch takes seconds and may start a GPU; the metadata of the distribution and one small file say
the same.
"""

from __future__ import annotations

import ast
import glob
import importlib.util
import os
import platform
import sys
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

#: Distributions whose version must agree between ranks, by the name they are reported under.
DISTRIBUTIONS = {
    "torch": ("torch",),
    "paddlepaddle": ("paddlepaddle-gpu", "paddlepaddle"),
    "deepspeed": ("deepspeed",),
    "accelerate": ("accelerate",),
    "horovod": ("horovod",),
    "ray": ("ray",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
}


@dataclass(frozen=True)
class Framework:
    """What a framework says of its own build; `cuda` is empty for a build without CUDA."""

    version: str = ""
    cuda: str = ""
    commit: str = ""


@dataclass(frozen=True)
class Packages:
    """The interpreter of the ranks and the distributions it finds.

    `forward_compatibility` lists folders with a newer user-space driver (NVIDIA's cuda-compat) that the dynamic
    loader would search.
    """

    python: str
    executable: str
    versions: Dict[str, str] = field(default_factory=dict)
    torch: Optional[Framework] = None
    paddle: Optional[Framework] = None
    forward_compatibility: List[str] = field(default_factory=list)


def packages(params: Dict[str, Any]) -> Packages:
    """Versions of the frameworks in this interpreter. Run it in the job context."""
    from importlib import metadata

    versions = {}  # type: Dict[str, str]
    for name, candidates in DISTRIBUTIONS.items():
        for candidate in candidates:
            try:
                versions[name] = metadata.version(candidate)
                break
            except metadata.PackageNotFoundError:
                continue
            except Exception as error:  # broken metadata of a stranger
                versions[name] = "unreadable (%s)" % type(error).__name__
                break
    return Packages(
        platform.python_version(),
        sys.executable or "",
        versions,
        _framework("torch", "version.py"),
        _framework("paddle", os.path.join("version", "__init__.py")),
        _compat_folders(os.environ.get("LD_LIBRARY_PATH", "")),
    )


def _framework(package: str, file: str) -> Optional[Framework]:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        try:
            with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as source:
                return parse_version_file(source.read(65536))
        except OSError:
            continue
    return None


def parse_version_file(text: str) -> Optional[Framework]:
    """The build facts in torch/version.py or paddle/version/__init__.py; None when it is no Python.

    Builds without CUDA write None (torch) or "False" (paddle).
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    values = {}  # type: Dict[str, str]
    for node in tree.body:
        targets, value = [], None  # type: List[ast.expr], Optional[ast.expr]
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        try:
            plain = ast.literal_eval(value) if value is not None else None
        except (ValueError, TypeError):
            continue
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(plain, str):
                values[target.id] = plain
    cuda = values.get("cuda") or values.get("cuda_version") or ""
    version = values.get("__version__") or values.get("full_version") or ""
    commit = values.get("git_version") or values.get("commit") or ""
    return Framework(version, "" if cuda.lower() in ("false", "none") else cuda, commit)


def _compat_folders(library_path: str) -> List[str]:
    searched = [folder for folder in library_path.split(":") if folder]
    searched += ["/usr/local/cuda/compat", "/usr/local/cuda/compat/lib"]
    found = []  # type: List[str]
    for folder in searched:
        if "compat" in folder and glob.glob(os.path.join(folder, "libcuda.so*")) and folder not in found:
            found.append(folder)
    return found

"""The frameworks' records of their builds, and the distributions that an interpreter finds, without importing them.

The standard library's own function needs parsers for mail and archives, which take longer to import than all of the
reading.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import time
from typing import Any, BinaryIO, Sequence

_FOLDER = re.compile(r"^(?P<name>[^-]+(?:-(?=\D)[^-]+)*?)-(?P<version>\d[^-]*)(?:-.*)?\.(?:dist|egg)-info$")


def parse_metadata_dir_name(entry: str) -> tuple[str, str] | None:
    """Return the normalized name and version of a metadata folder; None for any other folder."""
    match = _FOLDER.match(entry)
    if match is None:
        return None
    return re.sub(r"[-_.]+", "-", match.group("name")).lower(), match.group("version")


def version_of(*names: str) -> str:
    """Return the version of the first of these distributions that is installed; empty if none is installed."""
    return first_of(names, versions())


def first_of(names: Sequence[str], versions: dict[str, str]) -> str:
    """Return the version of the first of these names that `versions()` contains; empty if it contains none."""
    return next((versions[name] for name in names if name in versions), "")


def versions() -> dict[str, str]:
    """Return every distribution with its version. As in the import system, the first folder of sys.path counts."""
    version_by_name: dict[str, str] = {}
    for folder in dict.fromkeys(os.path.abspath(place or ".") for place in sys.path):
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in entries:
            named = parse_metadata_dir_name(entry) if entry.endswith("-info") else None
            if named is not None:
                version_by_name.setdefault(*named)
    return version_by_name


#: Distributions by framework; the first that is installed counts.
NAMES = {
    "torch": ("torch",),
    "paddle": ("paddlepaddle-gpu", "paddlepaddle"),
    "tensorflow": ("tensorflow", "tensorflow-gpu"),
}
_FILES = {"torch": "version.py", "paddle": "version/__init__.py", "tensorflow": "python/platform/build_info.py"}
#: The list of architectures is a constant of this library (torch/csrc/cuda/Module.cpp: CUDA_ARCH_FLAGS).
_TORCH_LIBRARY = "lib/libtorch_python.so"
_ARCHITECTURE = rb"(?:(?:sm|compute)_\d+[a-z]?|gfx[0-9a-f]+(?::[a-z+:-]+)?)"
_ARCHITECTURES = re.compile(rb"\0 ?(%s(?:[ ;]%s)*) ?(?=\0)" % (_ARCHITECTURE, _ARCHITECTURE))
SEARCH_S = 3.0
_PIECE_BYTES, _OVERLAP_BYTES = 4 << 20, 4096
_PIN = re.compile(r"nvidia-(cudnn|nccl)-cu\d+ *\(?==? *([0-9][^;, )]*)")


def package(name: str) -> str:
    """Return the folder of an importable package; empty if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ""
    folders = list(spec.submodule_search_locations or []) if spec else []
    return folders[0] if folders else ""


def constants(path: str) -> dict[str, Any]:
    """Return the top-level assignments of a Python file whose values are literals; empty if it cannot be read."""
    import ast

    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            tree = ast.parse(file.read(262144))
    except (OSError, SyntaxError, ValueError):
        return {}
    values: dict[str, Any] = {}
    for node in tree.body:
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        if isinstance(value, ast.Call) and len(value.args) == 1:
            value = value.args[0]  # collections.OrderedDict([...])
        try:
            plain = ast.literal_eval(value) if value is not None else None
        except (ValueError, TypeError):
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                values[target.id] = plain
    return values


def version_info(framework: str, folder: str) -> dict[str, Any]:
    """Return versions of the framework, CUDA, ROCm's HIP, cuDNN and NCCL from its version file, under common names."""
    values = constants(os.path.join(folder, _FILES[framework]))
    if framework == "tensorflow":
        info = values.get("build_info")
        info = dict(info) if isinstance(info, (dict, list)) else {}
        reported = {"cuda": info.get("cuda_version"), "cudnn": info.get("cudnn_version")}
        reported["architectures"] = info.get("cuda_compute_capabilities")
        reported["version"] = version_of(*NAMES[framework])
    else:
        reported = {
            "version": values.get("__version__") or values.get("full_version"),
            "cuda": values.get("cuda") or values.get("cuda_version"),
            "hip": values.get("hip"),
            "cudnn": values.get("cudnn_version"),
            "nccl": _nccl(values.get("nccl_version")),
            "commit": values.get("git_version") or values.get("commit"),
        }
    return {
        name: value for name, value in reported.items() if value and str(value).lower() not in ("false", "none", "0")
    }


def _nccl(number: Any) -> str:
    """Return NCCL's version; Paddle writes it as one number, 21905 for 2.19.5."""
    text = str(number or "")
    if not text.isdecimal() or int(text) < 2000:
        return "" if text.isdecimal() else text
    return nccl_text(int(text))


def nccl_text(number: int) -> str:
    """Format NCCL's version number: major * 1000 + minor * 100 + patch before 2.9, major * 10000 since then."""
    unit = 10000 if number >= 10000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def pinned_versions(framework: str) -> dict[str, str]:
    """Return the versions of cuDNN and NCCL that the framework's distribution pins."""
    from importlib import metadata  # Takes longer to import than most probes run.

    for name in NAMES[framework]:
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        except Exception:  # broken metadata of another package
            return {}
        found: dict[str, str] = {}
        for line in lines:
            match = _PIN.match(line)
            if match:
                found.setdefault(match.group(1), match.group(2))
        return found
    return {}


def distributions() -> dict[str, str]:
    """Return versions of NVIDIA's own distributions, by their folder in `nvidia/`."""
    found: dict[str, str] = {}
    for folder in ("cudnn", "nccl"):
        version = version_of(*(f"nvidia-{folder}{suffix}" for suffix in ("-cu13", "-cu12", "-cu11", "")))
        if version:
            found[folder] = version
    return found


def architectures(framework: str, folder: str, info: dict[str, Any]) -> list[str] | None:
    """Return the architectures for which the framework contains code, such as `sm_80`; None if not recorded."""
    listed = info.get("architectures")
    if isinstance(listed, (list, tuple)):
        return [str(item) for item in listed]
    if framework != "torch":
        return None
    try:
        with open(os.path.join(folder, _TORCH_LIBRARY), "rb") as file:
            return _architectures_in(file)
    except OSError:
        return None


def _architectures_in(file: BinaryIO) -> list[str] | None:
    """Return the first list of several architectures in a binary, or else its only one; None after `SEARCH_S`.

    The binary has 30 MB and may be on a shared file system, but often has the list near the beginning.
    """
    until = time.monotonic() + SEARCH_S
    single: set[str] = set()
    rest = b""
    while time.monotonic() < until:
        piece = file.read(_PIECE_BYTES)
        if not piece:
            # A single name may be any constant; if there is only one, it is the list.
            return [single.pop()] if len(single) == 1 else None
        data = rest + piece
        for match in _ARCHITECTURES.finditer(data):
            names = re.split("[ ;]", match.group(1).decode())
            if len(names) > 1:
                return names
            single.update(names)
        rest = data[-_OVERLAP_BYTES:]
    return None

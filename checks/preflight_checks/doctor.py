"""The items of `preflight doctor` that belong to checks: frameworks, GPUs and tools of this machine.

Each query runs in its own process with a deadline: an import may hang on a dead file system, a driver on a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from preflight.executors.base import ExecutorError, run_tool
from preflight.model.doctor_items import Capability, DoctorItem, Surroundings

#: A script that imports one framework and reports what it supports. It drops the untrusted working directory from
#: sys.path.
_FRAMEWORK = """
import sys
sys.path[:] = [path for path in sys.path if path]
import json
said = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    if sys.argv[1] == "torch":
        import torch
        import torch.distributed as dist
        said["version"] = torch.__version__
        said["cuda"] = torch.version.cuda or getattr(torch.version, "hip", None) or ""
        said["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = ("nccl", "gloo", "mpi") if dist.is_available() else ()
        said["backends"] = [name for name in names if getattr(dist, "is_%s_available" % name)()]
    else:
        import paddle
        said["version"] = paddle.__version__
        with_cuda = paddle.device.is_compiled_with_cuda()
        said["cuda"] = str(paddle.version.cuda()) if with_cuda else ""
        said["gpus"] = paddle.device.cuda.device_count() if with_cuda else 0
        said["backends"] = ["nccl"] if with_cuda else ["gloo"]
except ImportError as error:
    said["absent" if getattr(error, "name", "") == sys.argv[1] else "problem"] = str(error)[:300] or "import error"
except Exception as error:
    said["problem"] = ("%s: %s" % (type(error).__name__, error))[:300]
print("\\n" + json.dumps(said))
"""
#: A script that runs a probe locally, as an agent runs it on a node.
_PROBE = """
import sys
sys.path[:] = [path for path in sys.path if path]
import dataclasses, importlib, json
from preflight.agent.wire import ProbeUnavailable
module, _, name = sys.argv[1].partition(":")
try:
    said = {"value": dataclasses.asdict(getattr(importlib.import_module(module), name)({}))}
except ProbeUnavailable as error:
    said = {"kind": error.kind, "reason": error.reason}
print("\\n" + json.dumps(said))
"""
_FRAMEWORKS = ("torch", "paddle")
#: Importing a framework occupies a core for seconds; running more at once only delays all of them.
_MAX_PARALLEL = 3
#: Tools that probes run on a node, and what is lost without them. Most machines need only some of them.
TOOLS = {
    "nvidia-smi": ("", "how long the driver takes to respond (GPU023)"),
    "chronyc": ("chrony", "whether the clock is synchronized (CLK002), if chrony is used"),
    "scontrol": ("", "the Slurm allocation and its limits (ALC), if Slurm is used"),
    "systemctl": ("", "whether the fabric manager runs, on NVSwitch machines"),
    "ldconfig": ("libc-bin", "which libraries the loader finds (VER)"),
    "quota": ("quota", "quotas of checkpoint folders (CKP)"),
    "lfs": ("", "targets and quotas of Lustre (CKP), if Lustre is used"),
}


@dataclass(frozen=True, slots=True)
class Framework:
    """One interpreter's report about one framework. If `version` is empty, the import failed (see `problem`)."""

    name: str
    version: str = ""
    cuda: str = ""
    gpus: int = 0
    backends: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One Python and its frameworks."""

    path: str
    python: str = ""
    frameworks: tuple[Framework, ...] = field(default=())


async def frameworks(surroundings: Surroundings) -> Iterable[DoctorItem]:
    """Return the frameworks of each Python that ranks might use."""
    limiter = anyio.CapacityLimiter(_MAX_PARALLEL)
    framework_reports: dict[tuple[str, str], Mapping[str, Any]] = {}

    async def read_version(path: str, name: str) -> None:
        async with limiter:
            framework_reports[path, name] = await _run_probe([path, "-c", _FRAMEWORK, name], surroundings)

    async with anyio.create_task_group() as group:
        for path in surroundings.interpreters:
            for name in _FRAMEWORKS:
                group.start_soon(read_version, path, name)
    return [
        training_item(interpreter(path, {name: framework_reports[path, name] for name in _FRAMEWORKS}))
        for path in surroundings.interpreters
    ]


async def gpus(surroundings: Surroundings) -> Iterable[DoctorItem]:
    """Return the GPUs that NVML reports."""
    observed = await _run_probe([sys.executable, "-c", _PROBE, "preflight_checks.probes.gpus:gpus"], surroundings)
    return [gpu_item(observed)]


async def tools(surroundings: Surroundings) -> Iterable[DoctorItem]:
    """Return the tools of the probes that are installed, searched for on the probes' own paths."""
    path = os.pathsep.join((surroundings.environment.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
    return [tools_item({name: shutil.which(name, path=path) or "" for name in TOOLS})]


async def _run_probe(command: list[str], surroundings: Surroundings) -> Mapping[str, Any]:
    """Return the JSON that a process printed last, or the failure as `problem`."""
    try:
        ran = await run_tool(command, deadline_s=surroundings.deadline_s, environment=surroundings.environment)
    except ExecutorError as error:
        late = error.kind == "timeout"
        return {"problem": f"no answer within {surroundings.deadline_s:g} s" if late else error.message, "late": late}
    try:
        observed = json.loads(ran.output.rstrip().rpartition("\n")[2])
    except ValueError:
        return {"problem": f"it ended with code {ran.code}" + (f": {ran.last_error}" if ran.last_error else "")}
    return observed if isinstance(observed, dict) else {"problem": "its output is not the expected JSON"}


def interpreter(path: str, observed: Mapping[str, Mapping[str, Any]]) -> Interpreter:
    """Parse one Python's report about its frameworks."""
    found = []
    for name, item in observed.items():
        problem = "" if "absent" in item else str(item.get("problem", ""))
        version, cuda, count = str(item.get("version", "")), str(item.get("cuda", "")), int(item.get("gpus", 0))
        found.append(Framework(name, "" if problem else version, cuda, count, tuple(item.get("backends", ())), problem))
    python = next((str(item["python"]) for item in observed.values() if "python" in item), "")
    return Interpreter(path, python, tuple(found))


def training_item(interpreter: Interpreter) -> DoctorItem:
    """Return the item that shows whether the smoke run could train with this interpreter."""
    installed = [item for item in interpreter.frameworks if item.version]
    observed = "; ".join(
        (f"Python {interpreter.python or 'of unknown version'}", *map(_describe, interpreter.frameworks))
    )
    id, about = f"training.{interpreter.path}", interpreter.path
    if not installed:
        late = any("no answer" in item.problem for item in interpreter.frameworks)
        lost = "the smoke run cannot use it on this machine; the nodes may have other software"
        remedy = f"{interpreter.path} -m pip install 'torch>=2.1', or pass another Python with --python"
        return DoctorItem(id, about, Capability.UNKNOWN if late else Capability.NO, observed, lost, remedy)
    if any(item.gpus for item in installed):
        return DoctorItem(id, about, Capability.YES, observed)
    lost = "the smoke run uses CPUs here: GPUs and NCCL are not tested on this machine"
    reason = "a build with CUDA" if not any(item.cuda for item in installed) else "a visible GPU"
    return DoctorItem(
        id,
        about,
        Capability.PARTLY,
        observed,
        lost,
        f"needs {reason}; if this machine has no GPU, check nodes that have GPUs",
    )


def _describe(item: Framework) -> str:
    if item.problem:
        return f"{item.name} cannot be imported: {item.problem}"
    if not item.version:
        return f"no {item.name}"
    cuda = f"CUDA {item.cuda}, {item.gpus} GPUs found" if item.cuda else "no CUDA"
    return f"{item.name} {item.version} ({cuda}; {', '.join(item.backends) or 'no backend'})"


def gpu_item(observed: Mapping[str, Any]) -> DoctorItem:
    """Return the item for the result of the GPU probe."""
    lost = "the GPUs of this machine were not examined"
    if "value" not in observed:
        late = bool(observed.get("late"))
        reason = str(observed.get("reason") or observed.get("problem") or "it produced no output")
        return DoctorItem(
            "gpus",
            "GPUs",
            Capability.UNKNOWN if late else Capability.NO,
            reason,
            lost,
            "run `nvidia-smi -L` to see whether the driver works",
        )
    value = observed["value"]
    gpu_entries = value["gpus"]
    sick = [gpu["index"] for gpu in gpu_entries if gpu["problem"]]
    if sick:
        numbers = ", ".join(map(str, sick))
        return DoctorItem(
            "gpus",
            "GPUs",
            Capability.PARTLY,
            f"{len(gpu_entries)} GPUs; silent: {numbers}",
            f"GPU {numbers}",
            "nvidia-smi -L",
        )
    if gpu_entries:
        names = ", ".join(sorted({gpu["name"] or "with an unknown name" for gpu in gpu_entries}))
        return DoctorItem(
            "gpus", "GPUs", Capability.YES, f"{len(gpu_entries)} x {names}, driver {value['driver'] or 'not known'}"
        )
    reason = value["detail"] or value["problem"] or "none"
    if not value["device_files"]:
        return DoctorItem(
            "gpus",
            "GPUs",
            Capability.NO,
            f"none here ({reason})",
            lost,
            "checking nodes with GPUs does not require a GPU on this machine",
        )
    return DoctorItem(
        "gpus", "GPUs", Capability.NO, f"{value['device_files']} device files, but {reason}", lost, "nvidia-smi -L"
    )


def tools_item(paths: Mapping[str, str]) -> DoctorItem:
    """Return the item for the installed tools, which shows the probes that would fail on this machine."""
    missing = [name for name, path in paths.items() if not path]
    installed = [name for name, path in paths.items() if path]
    observed = f"{', '.join(installed) or 'none'}; missing: {', '.join(missing) or 'none'}"
    if not missing:
        return DoctorItem("tools", "tools", Capability.YES, observed)
    packages = [TOOLS[name][0] for name in missing if TOOLS[name][0]]
    remedy = (
        f"apt-get install {' '.join(packages)}"
        if packages
        else "each comes with the software of its scheduler or vendor"
    )
    return DoctorItem(
        "tools",
        "tools",
        Capability.PARTLY,
        observed,
        "of this machine: " + "; ".join(TOOLS[name][1] for name in missing),
        remedy,
    )

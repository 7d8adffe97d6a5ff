"""What `preflight doctor` asks of this machine beside what the house does: frameworks to train with, GPUs, tools.

Each question is a process of its own with a deadline: an import may hang on a dead file system, a driver on a card.
What was seen is told by pure functions.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import anyio

from preflight.examination import Can, Look, Surroundings
from preflight.executors.base import ExecutorError
from preflight.executors.tool import run_tool
from preflight.lazy.dataclasses import dataclass

#: Imports one framework, and says what it can do. The working directory, which may be anybody's, is left out.
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
#: Runs a probe here as an agent would run it there.
_PROBE = """
import sys
sys.path[:] = [path for path in sys.path if path]
import dataclasses, importlib, json
from preflight.node.wire import ProbeUnavailable
module, _, name = sys.argv[1].partition(":")
try:
    said = {"value": dataclasses.asdict(getattr(importlib.import_module(module), name)({}))}
except ProbeUnavailable as error:
    said = {"kind": error.kind, "reason": error.reason}
print("\\n" + json.dumps(said))
"""
_FRAMEWORKS = ("torch", "paddle")
#: Importing a framework takes a core for seconds; more at once would only be late together.
_AT_ONCE = 3
#: Tools that probes ask on a node, and what is lost there without them; most machines lack most of them rightly.
TOOLS = {
    "nvidia-smi": ("", "how long the driver takes to answer (GPU023)"),
    "chronyc": ("chrony", "whether the clock is kept (CLK002), where chrony keeps it"),
    "scontrol": ("", "what Slurm granted and allows (ALC), where there is Slurm"),
    "systemctl": ("", "whether the fabric manager of NVSwitch machines runs"),
    "ldconfig": ("libc-bin", "which libraries the loader takes (VER)"),
    "quota": ("quota", "quotas of checkpoints' folders (CKP)"),
    "lfs": ("", "targets and quotas of Lustre (CKP), where there is Lustre"),
}


@dataclass(frozen=True, slots=True)
class Framework:
    """What one interpreter said of one framework; without `version` it cannot be imported, `problem` may say why."""

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


async def frameworks(surroundings: Surroundings) -> Iterable[Look]:
    """What each Python that ranks might run with could train."""
    limiter = anyio.CapacityLimiter(_AT_ONCE)
    found: dict[tuple[str, str], Mapping[str, Any]] = {}

    async def ask(path: str, name: str) -> None:
        async with limiter:
            found[path, name] = await _asked([path, "-c", _FRAMEWORK, name], surroundings)

    async with anyio.create_task_group() as group:
        for path in surroundings.interpreters:
            for name in _FRAMEWORKS:
                group.start_soon(ask, path, name)
    return [
        told(interpreter(path, {name: found[path, name] for name in _FRAMEWORKS})) for path in surroundings.interpreters
    ]


async def gpus(surroundings: Surroundings) -> Iterable[Look]:
    """GPUs as NVML tells of them."""
    said = await _asked([sys.executable, "-c", _PROBE, "preflight_checks.probes.gpus:gpus"], surroundings)
    return [of_gpus(said)]


async def tools(surroundings: Surroundings) -> Iterable[Look]:
    """Which of the tools that probes ask are there; sought where probes seek them."""
    path = os.pathsep.join((surroundings.environment.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
    return [of_tools({name: shutil.which(name, path=path) or "" for name in TOOLS})]


async def _asked(command: list[str], surroundings: Surroundings) -> Mapping[str, Any]:
    """The JSON that a process printed last, or why there is none, as `problem`."""
    try:
        ran = await run_tool(command, deadline_s=surroundings.deadline_s, environment=surroundings.environment)
    except ExecutorError as error:
        late = error.kind == "timeout"
        return {"problem": f"no answer within {surroundings.deadline_s:g} s" if late else error.message, "late": late}
    try:
        said = json.loads(ran.output.rstrip().rpartition("\n")[2])
    except ValueError:
        return {"problem": f"it ended with code {ran.code}" + (f": {ran.last_error}" if ran.last_error else "")}
    return said if isinstance(said, dict) else {"problem": "it said something else than was asked"}


def interpreter(path: str, said: Mapping[str, Mapping[str, Any]]) -> Interpreter:
    """What one Python said of its frameworks, taken apart."""
    found = []
    for name, one in said.items():
        problem = "" if "absent" in one else str(one.get("problem", ""))
        version, cuda, count = str(one.get("version", "")), str(one.get("cuda", "")), int(one.get("gpus", 0))
        found.append(Framework(name, "" if problem else version, cuda, count, tuple(one.get("backends", ())), problem))
    python = next((str(one["python"]) for one in said.values() if "python" in one), "")
    return Interpreter(path, python, tuple(found))


def told(interpreter: Interpreter) -> Look:
    """Whether the smoke run could train with this interpreter, if it were the ranks' own."""
    there = [one for one in interpreter.frameworks if one.version]
    said = "; ".join((f"Python {interpreter.python or 'that says nothing'}", *map(_spoken, interpreter.frameworks)))
    id, about = f"training.{interpreter.path}", interpreter.path
    if not there:
        late = any("no answer" in one.problem for one in interpreter.frameworks)
        lost = "the smoke run trains nothing on this machine with it; what nodes have is theirs"
        remedy = f"{interpreter.path} -m pip install 'torch>=2.1', or name another Python with --python"
        return Look(id, about, Can.UNKNOWN if late else Can.NO, said, lost, remedy)
    if any(one.gpus for one in there):
        return Look(id, about, Can.YES, said)
    lost = "the smoke run trains on processors here: nothing of GPUs and NCCL is tried on this machine"
    why = "a build with CUDA" if not any(one.cuda for one in there) else "a GPU that it sees"
    return Look(id, about, Can.PARTLY, said, lost, f"needs {why}; without a GPU here, check the nodes that have some")


def _spoken(one: Framework) -> str:
    if one.problem:
        return f"{one.name} cannot be imported: {one.problem}"
    if not one.version:
        return f"no {one.name}"
    cuda = f"CUDA {one.cuda}, {one.gpus} GPUs seen" if one.cuda else "no CUDA"
    return f"{one.name} {one.version} ({cuda}; {', '.join(one.backends) or 'no back end'})"


def of_gpus(said: Mapping[str, Any]) -> Look:
    """What the probe of GPUs said."""
    lost = "GPUs of this machine are not looked at"
    if "value" not in said:
        late = bool(said.get("late"))
        why = str(said.get("reason") or said.get("problem") or "it said nothing")
        return Look(
            "gpus", "GPUs", Can.UNKNOWN if late else Can.NO, why, lost, "nvidia-smi -L tells whether the driver works"
        )
    value = said["value"]
    found = value["gpus"]
    sick = [gpu["index"] for gpu in found if gpu["problem"]]
    if sick:
        numbers = ", ".join(map(str, sick))
        return Look(
            "gpus", "GPUs", Can.PARTLY, f"{len(found)} GPUs; silent: {numbers}", f"GPU {numbers}", "nvidia-smi -L"
        )
    if found:
        names = ", ".join(sorted({gpu["name"] or "of unknown name" for gpu in found}))
        return Look("gpus", "GPUs", Can.YES, f"{len(found)} x {names}, driver {value['driver'] or 'not known'}")
    why = value["detail"] or value["problem"] or "none"
    if not value["device_files"]:
        return Look("gpus", "GPUs", Can.NO, f"none here ({why})", lost, "none is needed to check nodes that have some")
    return Look("gpus", "GPUs", Can.NO, f"{value['device_files']} device files, and {why}", lost, "nvidia-smi -L")


def of_tools(found: Mapping[str, str]) -> Look:
    """Which tools are there. They count on nodes; here they tell what a check of this very machine would miss."""
    missing = [name for name, path in found.items() if not path]
    there = [name for name, path in found.items() if path]
    said = f"{', '.join(there) or 'none'}; not here: {', '.join(missing) or 'none'}"
    if not missing:
        return Look("tools", "tools", Can.YES, said)
    packages = [TOOLS[name][0] for name in missing if TOOLS[name][0]]
    remedy = f"apt-get install {' '.join(packages)}" if packages else "they come with the systems that they are of"
    return Look(
        "tools", "tools", Can.PARTLY, said, "of this machine: " + "; ".join(TOOLS[name][1] for name in missing), remedy
    )

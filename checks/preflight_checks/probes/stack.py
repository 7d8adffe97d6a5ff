"""The software between the job's script and its GPUs, as the ranks' interpreter would load it, without importing it."""

from __future__ import annotations

import glob
import mmap
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from typing import Any

from preflight.agent import command
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import built, libraries
from preflight_checks.probes import libraries as elf
from preflight_checks.probes.built import version_of
from preflight_checks.probes.libraries import DriverLibrary, LibraryLookup

#: Libraries that list a framework's CUDA dependencies, in search order.
_USERS = {
    "torch": ("lib/libtorch_cuda.so", "lib/libtorch_hip.so"),
    "paddle": ("base/libpaddle.so", "fluid/libpaddle.so"),
}
#: Folders of a wheel's own libraries.
_BUNDLED = {"torch": "lib", "paddle": "libs"}
_LIBRARIES = {"cudnn": libraries.cudnn_version, "nccl": libraries.nccl_version}
_NVCC_S = 3.0


@dataclass(frozen=True)
class Build:
    """A framework's record of its build. Empty means "not recorded"; `architectures` is None if it cannot be read."""

    framework: str
    version: str = ""
    cuda: str = ""
    hip: str = ""
    cudnn: str = ""
    nccl: str = ""
    architectures: list[str] | None = None
    libraries: list[LibraryLookup] = field(default_factory=list)


@dataclass(frozen=True)
class Toolkit:
    """The CUDA compiler with which torch's extensions would be built. `version` is nvcc's."""

    home: str
    version: str = ""
    problem: str = ""


@dataclass(frozen=True)
class DeepSpeedOps:
    """DeepSpeed's record of its installation: operators that were built with it, and for which torch and CUDA."""

    version: str = ""
    installed: list[str] = field(default_factory=list)
    torch: str = ""
    cuda: str = ""


@dataclass(frozen=True)
class HorovodBuild:
    """The backends compiled into Horovod's extensions, by framework: `nccl`, `mpi`, `gloo`, `ccl`."""

    version: str = ""
    extensions: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stack:
    """The software of one interpreter."""

    executable: str
    builds: list[Build] = field(default_factory=list)
    driver: DriverLibrary = field(default_factory=DriverLibrary)
    toolkit: Toolkit | None = None
    deepspeed: DeepSpeedOps | None = None
    horovod: HorovodBuild | None = None


def stack(params: dict[str, Any]) -> Stack:
    """Examine the frameworks that this interpreter would import, and the libraries that they would load."""
    shared = built.distributions()
    builds = []
    for framework in ("torch", "paddle", "tensorflow"):
        folder = built.package(framework)
        if folder:
            builds.append(_build(framework, folder, shared))
    return Stack(sys.executable or "", builds, libraries.driver_library(), _toolkit(), _deepspeed(), _horovod())


def _build(framework: str, folder: str, shared: dict[str, str]) -> Build:
    info = built.version_info(framework, folder)
    wanted = built.pinned_versions(framework)
    parts = []
    for short, read_version in _LIBRARIES.items():
        library = _loaded_library(framework, folder, short, shared)
        if library is None:
            continue
        parts.append(libraries.with_version(library, shared, read_version))
        if short == "cudnn":
            parts.extend(_cudnn_part(library, shared))
    return Build(
        framework,
        info.get("version", ""),
        info.get("cuda", ""),
        info.get("hip", ""),
        wanted.get("cudnn", "") or info.get("cudnn", ""),
        wanted.get("nccl", "") or info.get("nccl", ""),
        built.architectures(framework, folder, info),
        parts,
    )


def _loaded_library(framework: str, folder: str, short: str, shared: dict[str, str]) -> LibraryLookup | None:
    """Return the file that the framework uses for cuDNN or NCCL; None if it loads none, or if this is unknown."""
    for place in _USERS.get(framework, ()):
        path = os.path.join(folder, place)
        if not os.path.isfile(path):
            continue
        dynamic = elf.read_dynamic_section(path)
        name = (
            next((library for library in dynamic.needed if library.startswith(f"lib{short}.so")), "") if dynamic else ""
        )
        if name:
            return libraries.locate(name, dynamic)
    bundled = sorted(glob.glob(os.path.join(folder, _BUNDLED.get(framework, "lib"), f"lib{short}.so*")))
    if framework == "paddle" and not bundled and short not in shared:
        # Paddle opens it by name when it needs it, from NVIDIA's own distribution first (phi/backends/dynload).
        found = libraries.locate(f"lib{short}.so", None)
        return found if found.path else None
    return None


def _cudnn_part(cudnn: LibraryLookup, shared: dict[str, str]) -> list[LibraryLookup]:
    """Return the first library that cuDNN opens by name, if it is in a different folder than cuDNN itself."""
    match = re.match(r"libcudnn\.so\.(\d+)$", cudnn.name)
    if not match or not cudnn.path:
        return []
    name = "libcudnn_ops{}.so.{}".format("_infer" if match.group(1) == "8" else "", match.group(1))
    part = libraries.locate(name, elf.read_dynamic_section(cudnn.path))
    folder = os.path.dirname(part.path)
    if not part.path or os.path.realpath(folder) == os.path.realpath(os.path.dirname(cudnn.path)):
        return []
    whole = os.path.join(folder, cudnn.name)
    if not os.path.isfile(whole):
        return [libraries.with_version(part, shared, lambda library: "")]
    version = libraries.with_version(LibraryLookup(cudnn.name, whole), shared, libraries.cudnn_version).version
    return [LibraryLookup(part.name, part.path, part.via, version)]


def _toolkit() -> Toolkit | None:
    """Return the CUDA compiler, searched for as torch does: CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or ""
    if not home:
        nvcc = shutil.which("nvcc")
        home = os.path.dirname(os.path.dirname(nvcc)) if nvcc else "/usr/local/cuda"
        if not nvcc and not os.path.isdir(home):
            return None
    try:
        ran = command.run([os.path.join(home, "bin", "nvcc"), "--version"], deadline_s=_NVCC_S)
    except ProbeUnavailable as error:
        return Toolkit(home, "", error.reason)
    match = re.search(r"release (\d+\.\d+)", ran.output)
    return Toolkit(home, match.group(1), "") if match else Toolkit(home, "", "nvcc does not print its version")


def _deepspeed() -> DeepSpeedOps | None:
    folder = built.package("deepspeed")
    if not folder:
        return None
    values = built.constants(os.path.join(folder, "git_version_info_installed.py"))
    info = values.get("torch_info")
    ops = values.get("installed_ops")
    info = info if isinstance(info, dict) else {}
    installed = sorted(str(name) for name, is_installed in ops.items() if is_installed) if isinstance(ops, dict) else []
    return DeepSpeedOps(
        str(values.get("version", "")), installed, str(info.get("version", "")), str(info.get("cuda_version", ""))
    )


#: Class names that stay readable in a binary, by what they implement.
_HOROVOD_MARKS = {
    b"13NCCLAllreduceE": "nccl",
    b"12MPIAllreduceE": "mpi",
    b"13GlooAllreduceE": "gloo",
    b"12CCLAllreduceE": "ccl",
}


def _horovod() -> HorovodBuild | None:
    folder = built.package("horovod")
    if not folder:
        return None
    extensions = {
        framework: marks(path, _HOROVOD_MARKS)
        for framework in ("torch", "tensorflow", "mxnet")
        for path in sorted(glob.glob(os.path.join(folder, framework, "mpi_lib*.so")))
    }
    return HorovodBuild(version_of("horovod"), extensions)


def marks(path: str, wanted: dict[bytes, str]) -> list[str]:
    """Return the names of the `wanted` byte strings that a file contains."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return sorted(name for mark, name in wanted.items() if data.find(mark) >= 0)
    except (OSError, ValueError):
        return []

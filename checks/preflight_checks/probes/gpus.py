"""The NVIDIA GPUs and driver of this node, asked of NVML."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from preflight.node.wire import ProbeUnavailable


@dataclass(frozen=True)
class Gpu:
    """One GPU. `problem` says why the rest is empty (a GPU that fell off the bus still has its index)."""

    index: int
    name: str = ""
    uuid: str = ""
    memory_bytes: Optional[int] = None
    compute_capability: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Gpus:
    """What NVML says.

    `problem` is empty, `no-library` (no NVML on this node), `no-driver` (the kernel module is not loaded),
    `mismatch` (library and loaded kernel module are of different versions) or `other`.
    `driver` is the version of the user-space driver, `kernel_driver` that of the loaded module,
    `cuda_driver` the newest CUDA version the driver supports; empty where unknown.
    """

    driver: str = ""
    kernel_driver: str = ""
    cuda_driver: str = ""
    gpus: List[Gpu] = field(default_factory=list)
    problem: str = ""
    detail: str = ""
    device_files: int = 0


def gpus(params: Dict[str, Any]) -> Gpus:
    """Every GPU NVML lists. A driver that does not work is an observation; only a missing pynvml is none.

    Raises ProbeUnavailable when pynvml did not come along, when this user may not ask, or when the node has
    GPUs of another maker and no NVML.
    """
    try:
        import pynvml
    except ImportError as error:
        raise ProbeUnavailable("missing", "the Python binding of NVML is not there: %s" % error) from None
    kernel = kernel_driver(_read("/proc/driver/nvidia/version"))
    files = len([path for path in glob.glob("/dev/nvidia[0-9]*") if path[len("/dev/nvidia") :].isdigit()])
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        problem = _problem(pynvml, error)
        if problem == "denied":
            raise ProbeUnavailable("denied", "NVML may not be used by this user: %s" % error) from None
        if problem == "no-library" and os.path.exists("/dev/kfd"):
            raise ProbeUnavailable("missing", "this node has AMD GPUs, which are not looked at") from None
        return Gpus("", kernel, "", [], problem, str(error), files)
    try:
        count = pynvml.nvmlDeviceGetCount()
        found = [_gpu(pynvml, index) for index in range(count)]
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return Gpus(driver, kernel, _cuda(pynvml), found, "", "", files)
    except pynvml.NVMLError as error:
        return Gpus("", kernel, "", [], _problem(pynvml, error), str(error), files)
    finally:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            pass


def _problem(pynvml: Any, error: Any) -> str:
    by_code = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no-library",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "no-driver",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "mismatch",
        pynvml.NVML_ERROR_NO_PERMISSION: "denied",
    }
    return by_code.get(getattr(error, "value", None), "other")


def _gpu(pynvml: Any, index: int) -> Gpu:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = _text(pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError as error:
        return Gpu(index, problem=str(error))
    uuid, memory, capability = "", None, ""
    try:
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        capability = "%d.%d" % tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    except pynvml.NVMLError:
        pass
    return Gpu(index, name, uuid, memory, capability)


def _cuda(pynvml: Any) -> str:
    try:
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return ""
    return "%d.%d" % (version // 1000, version % 1000 // 10)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def kernel_driver(text: str) -> str:
    """The version in the text of /proc/driver/nvidia/version; empty when there is none."""
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else ""


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(4096)
    except OSError:
        return ""

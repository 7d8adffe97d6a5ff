"""Imports torch late, and chooses the backend and device of one rank.

torch holds the lock while it initialises CUDA, which takes seconds if many processes of a node do so at once. Meanwhile
no other thread runs: heartbeats stop, and a server does not answer workers that introduce themselves. Functions called
through ctypes release the lock. After them torch finds the driver and the device's context open, and is quick.

NCCL up to 2.29 rejects two ranks of one node on one device ("Duplicate GPU detected"). It identifies a node by a hash
of host name and boot id, unless NCCL_HOSTID is set (src/misc/utils.cc): with a different value on each rank, every rank
counts as a separate node, and all traffic goes over sockets. From 2.30 on NCCL_MULTI_RANK_GPU_ENABLE=1 allows it
(NCCL's documentation of environment variables, experimental). The ranks' kernels must be on the GPU at the same time,
so each gets few blocks and no NVLink SHARP, which fails there. Either way, the times say nothing about a network.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from typing import Any, Sequence

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common.progress import Progress


def is_paddle(params: dict[str, Any]) -> bool:
    """Whether this rank trains with paddle: by `framework`, or because the interpreter has paddle and no torch."""
    import importlib.util

    name = str(params.get("framework", ""))
    if name:
        return name == "paddle"
    return importlib.util.find_spec("torch") is None and importlib.util.find_spec("paddle") is not None


def load(progress: Progress, *, optimizers: bool = False) -> tuple[Any, Any]:
    """`torch` and `torch.distributed`, imported under an announcement because it takes seconds.

    Args:
        optimizers: whether this process creates one.

    Raises ProbeUnavailable of kind `missing`, with the reason, if they cannot be imported.
    """
    progress.entering("import of torch", loading=True)
    # No imported object is garbage: collecting takes a tenth of the import, and half a second later.
    gc.disable()
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        progress.send(rank_events.PROBLEM, problem="import", error=str(error), rank=progress.rank)
        reason = f"torch cannot be imported by {sys.executable}: {error}"
        if getattr(error, "name", None) == "torch":
            reason += f"; install it there: {sys.executable} -m pip install torch"
        raise ProbeUnavailable("missing", reason) from error
    finally:
        gc.enable()
    if not dist.is_available():
        raise ProbeUnavailable("missing", f"this torch {torch.__version__} was built without torch.distributed")
    if optimizers:
        # The first one imports compiler modules for a second and a half: here, not in the middle of a step.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    gc.freeze()
    progress.left()
    return torch, dist


def nccl_obstacle(torch: Any, params: dict[str, Any]) -> str:
    """Why this rank cannot use NCCL; empty if it can, or if its backend is gloo.

    With `auto` each local rank needs a GPU of its own; with `nccl` the node only needs one.
    """
    wanted = str(params.get("backend", "auto"))
    if wanted == "gloo":
        return ""
    devices = _count_devices(torch)
    if not devices:
        return f"torch {torch.__version__} finds no GPU{_visible()}"
    if not torch.distributed.is_nccl_available():
        return f"torch {torch.__version__} was built without NCCL"
    local_size = int(params.get("local_world_size", 1)) if wanted == "auto" else 1
    if devices < local_size:
        found = "1 GPU" if devices == 1 else f"{devices} GPUs"
        return f"torch {torch.__version__} finds {found} for {local_size} ranks of this node"
    return ""


def choose_device(torch: Any, params: dict[str, Any], backend: str) -> Any:
    """The device of this rank for `nccl` or `gloo`.

    With fewer GPUs than local ranks, these share them, as `common/shared_gpu.py` lets them. Raises ProbeUnavailable of
    kind `denied` if the GPU cannot be used.
    """
    if backend != "nccl":
        return torch.device("cpu")
    local_rank, local_size = int(params.get("local_rank", 0)), int(params.get("local_world_size", 1))
    devices = _count_devices(torch)
    device = _open(torch, local_rank % devices)
    os.environ.update(environment(local_rank, -(-local_size // devices), torch.cuda.nccl.version()))
    return device


def device_named(torch: Any, name: str, local_index: int = 0) -> Any:
    """The device for `cpu`, `auto` (a GPU if there is one), `cuda` or `cuda:N`.

    With `cuda` the processes of a node take the devices that each of them sees in turn, by `local_index`: a launcher
    may show every process only its own device, as number 0.

    Raises ProbeUnavailable: kind `missing` if the requested GPU does not exist, `denied` if it cannot be used.
    """
    if name == "cpu":
        return torch.device("cpu")
    devices = _count_devices(torch)
    if name == "auto":
        name = "cuda" if devices else "cpu"
    if name == "cuda" and devices:
        name = f"cuda:{local_index % devices}"
    if name == "cpu":  # chosen by `auto`
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise ProbeUnavailable("denied", f"unknown device {name!r}; expected cpu, auto or cuda:N")
    if int(number or 0) >= devices:
        text = "device %s is requested, but torch finds %d GPUs%s" % (name, devices, _visible())
        raise ProbeUnavailable("missing", text)
    return _open(torch, int(number or 0))


def _count_devices(torch: Any) -> int:
    initialise()
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _visible() -> str:
    """The setting that hides GPUs, for a message that there are none."""
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    given = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return " ({})".format(", ".join(given)) if given else ""


def _open(torch: Any, index: int) -> Any:
    """Make a GPU the current device, and open its context. Raises ProbeUnavailable of kind `denied` if that fails."""
    device = torch.device("cuda", index)
    open_context(index)
    try:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    except RuntimeError as error:
        text = str(error).strip().split("\n")[0]
        raise ProbeUnavailable("denied", f"{device} cannot be used: {text}") from error
    return device


def set_interface(params: dict[str, Any], backend: str) -> None:
    """Set the interface of Gloo or NCCL, if the environment does not name one or the caller insists.

    NCCL chooses by itself if the job has no filter, and that choice is part of the test: only an interface that the
    job's own filter selects, or that the caller insists on, is given to it.
    """
    name = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
    if backend == "nccl" and not (params.get("filtered") or params.get("force_interface")):
        return
    if params.get("interface") and (params.get("force_interface") or not os.environ.get(name)):
        os.environ[name] = str(params["interface"])


def describe(error: BaseException) -> str:
    """The type and the first line of an error, and NCCL's own reason, which torch prints on a later line."""
    lines = [line.strip() for line in str(error).strip().split("\n") if line.strip()]
    first = "{}: {}".format(type(error).__name__, lines[0] if lines else "")
    reasons = [line for place, line in enumerate(lines[:-1]) if line == "Last error:" for line in [lines[place + 1]]]
    return f"{first}: {reasons[0]}" if reasons else first


def versions(torch: Any, device: Any) -> dict[str, str]:
    """Versions for the report: torch, CUDA, NCCL and the device; empty if there is none."""
    on_gpu = device.type == "cuda"
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if on_gpu else ""
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    return {
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or ""),
        "nccl": nccl,
        "device": f"{device} {name}" if on_gpu else "cpu",
    }


_LIBRARY = "libcuda.so.1"


def initialise() -> Any | None:
    """Initialise the driver; returns its library, None if there is none. torch reports the errors, in its own call."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
        driver.cuInit(0)
    except (OSError, AttributeError):
        return None
    return driver


def open_context(index: int) -> bool:
    """Open the context that all libraries of this process share on device `index`; whether it is open."""
    driver = initialise()
    if driver is None:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(device), index):
        return False
    return not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


#: From this version on NCCL accepts several ranks on one GPU if configured.
SUPPORTS_SHARING = (2, 30)
#: Blocks of each rank's kernels: all of them must fit at the same time.
MAX_BLOCKS = 2


def environment(rank: int, ranks_on_gpu: int, nccl: Sequence[int]) -> dict[str, str]:
    """The variables for one rank; none if the rank has the GPU to itself.

    Args:
        nccl: NCCL's version as `torch.cuda.nccl.version()` gives it, such as (2, 27, 5).
    """
    if ranks_on_gpu < 2:
        return {}
    common = {
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MAX_CTAS": str(MAX_BLOCKS),
    }
    if tuple(nccl[:2]) >= SUPPORTS_SHARING:
        return {**common, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    return {**common, "NCCL_HOSTID": f"preflight-{rank}"}

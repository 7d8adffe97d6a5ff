"""torch and the device as one rank has them: imported late, chosen once, named in the report."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, Dict, Tuple

from preflight.node.wire import ProbeUnavailable
from reference_trainer import phases
from reference_trainer.progress import Progress


def is_paddle(params: Dict[str, Any]) -> bool:
    """Whether this rank trains with paddle: `framework` says so, or the interpreter has it and no torch."""
    import importlib.util

    said = str(params.get("framework", ""))
    if said:
        return said == "paddle"
    return importlib.util.find_spec("torch") is None and importlib.util.find_spec("paddle") is not None


def load(me: Progress, *, optimizers: bool = False) -> Tuple[Any, Any]:
    """`torch` and `torch.distributed`, imported under an announcement because it takes seconds.

    Args:
        optimizers: this process makes one.

    Raises ProbeUnavailable of kind `missing`, with the reason, where they are not to be had.
    """
    me.entering("import of torch", loading=True)
    # Nothing of what is imported is ever garbage: looking for it takes a tenth of the import, and half a second later.
    gc.disable()
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        me.say(phases.PROBLEM, problem="import", error=str(error), rank=me.rank)
        raise ProbeUnavailable("missing", "torch cannot be imported by %s: %s" % (sys.executable, error)) from error
    finally:
        gc.enable()
    if not dist.is_available():
        raise ProbeUnavailable("missing", "this torch %s was built without torch.distributed" % torch.__version__)
    if optimizers:
        # The first one imports a second and a half of compiler modules: here, not in the midst of a step.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    gc.freeze()
    me.left()
    return torch, dist


def choose_device(torch: Any, params: Dict[str, Any]) -> Tuple[str, Any]:
    """The backend and device of this rank. `auto` takes NCCL only where each local rank has a device of its own.

    Raises ProbeUnavailable of kind `missing` where NCCL is asked for and there is no GPU.
    """
    wanted = str(params.get("backend", "auto"))
    local_rank, local_size = int(params.get("local_rank", 0)), int(params.get("local_world_size", 1))
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        wanted = "nccl" if devices >= local_size and torch.distributed.is_nccl_available() else "gloo"
    if wanted == "nccl":
        if not devices:
            raise ProbeUnavailable("missing", "backend nccl is asked for, but torch sees no GPU")
        device = torch.device("cuda", local_rank % devices)
        torch.cuda.set_device(device)
        return wanted, device
    return wanted, torch.device("cpu")


def device_named(torch: Any, name: str) -> Any:
    """The device for `cpu`, `auto` (a GPU where there is one) or `cuda:N`.

    Raises ProbeUnavailable of kind `missing` where a GPU is asked for that is not there.
    """
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda:0" if devices else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number or "0").isdigit():
        raise ProbeUnavailable("denied", "there is no device %r; there are cpu, auto and cuda:N" % name)
    if int(number or 0) >= devices:
        raise ProbeUnavailable("missing", "device %s is asked for, but torch sees %d GPUs" % (name, devices))
    device = torch.device("cuda", int(number or 0))
    torch.cuda.set_device(device)
    return device


def set_interface(params: Dict[str, Any], backend: str) -> None:
    """Tell Gloo or NCCL its interface, where the environment does not name one or the caller insists."""
    name = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
    if params.get("interface") and (params.get("force_interface") or not os.environ.get(name)):
        os.environ[name] = str(params["interface"])


def versions(torch: Any, device: Any) -> Dict[str, str]:
    """What the report names: torch, CUDA and NCCL versions and the device; empty where there is no such thing."""
    on_gpu = device.type == "cuda"
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if on_gpu else ""
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    return {
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or ""),
        "nccl": nccl,
        "device": "%s %s" % (device, name) if on_gpu else "cpu",
    }

"""Paddle and its process group in one rank: imported late, joined after all ranks have connected, and counted.

When a rank is lost, Paddle's Gloo throws in a place where C++ calls `std::terminate`, and the process aborts at once.
Whether its watch still names the lost rank would be chance.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any, Callable

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import rendezvous
from reference_trainer.common.injected_faults import RankFault
from reference_trainer.common.progress import Progress

#: Paddle's own limit for waits of its store, in seconds (FLAGS_stop_check_timeout), and for an operation of NCCL.
_LIMITS = ("FLAGS_stop_check_timeout", "PADDLE_PG_TIMEOUT")


def load(progress: Progress) -> Any:
    """`paddle`, imported under an announcement because it takes seconds.

    Raises ProbeUnavailable of kind `missing`, with the reason, if it cannot be imported.
    """
    progress.entering("import of paddle", loading=True)
    try:
        import paddle
        import paddle.distributed
    except ImportError as error:
        progress.send(rank_events.PROBLEM, problem="import", error=str(error), rank=progress.rank)
        raise ProbeUnavailable("missing", f"paddle cannot be imported by {sys.executable}: {error}") from error
    progress.left()
    return paddle


def nccl_obstacle(paddle: Any, params: dict[str, Any]) -> str:
    """Why this rank cannot use NCCL on a GPU of its own; empty if it can, or if its backend is gloo."""
    wanted = str(params.get("backend", "auto"))
    if wanted == "gloo":
        return ""
    if not paddle.is_compiled_with_cuda():
        return f"paddle {paddle.__version__} was built without CUDA"
    devices = paddle.device.cuda.device_count()
    if not devices:
        return f"paddle {paddle.__version__} finds no GPU"
    local_size = int(params.get("local_world_size", 1)) if wanted == "auto" else 1
    if devices < local_size:
        return "paddle %s finds %d GPUs for %d ranks of this node" % (paddle.__version__, devices, local_size)
    return ""


def device_of(paddle: Any, params: dict[str, Any], backend: str) -> str:
    """Paddle's name of the device of this rank for `nccl` or `gloo`."""
    if backend != "nccl":
        return "cpu"
    return "gpu:%d" % (int(params.get("local_rank", 0)) % paddle.device.cuda.device_count())


def versions(paddle: Any, device: str) -> dict[str, str]:
    """Versions for the report; empty if there is none."""
    on_gpu = device != "cpu"
    name = paddle.device.cuda.get_device_name(int(device.split(":")[1])) if on_gpu else ""
    return {
        "paddle": str(paddle.__version__),
        "cuda": str(paddle.version.cuda()) if on_gpu else "",
        "device": (f"{device} {name}").strip(),
    }


def join(
    paddle: Any, params: dict[str, Any], progress: Progress, backend: str, device: str, timeout_s: float
) -> Collectives:
    """Join the process group once all ranks are known to have connected, and run a first sum through it.

    Rank 0 opens Paddle's store; the others wait for its port, because Paddle's client sleeps three seconds after an
    early attempt. A single rank has no group, because Paddle creates none.
    """
    world_size = int(params["world_size"])
    _environment(params, backend, device, timeout_s)
    paddle.set_device(device)
    if world_size > 1:
        host, port = str(params["master_addr"]), int(params["master_port"])
        if progress.rank != 0:
            progress.entering(f"paddle's store at {host}:{port}", waiting_for=[0])
            opened = rendezvous.dial_until(host, port, timeout_s=timeout_s, on_dialled=lambda dialled: None)
            progress.left()
            if opened.result != "open":
                raise ProbeUnavailable("timeout", f"paddle's store on rank 0: {opened.result} {opened.error}")
        progress.entering(f"setup of the {backend} process group", collective=True, root=rank_events.ANY_RANK)
        paddle.distributed.init_parallel_env()
        progress.left(collective=True)
    given = params.get("injected_fault") or {}
    fault = RankFault(given, progress.on_fault_injected)
    progress.before_collective = fault.before
    collectives = Collectives(paddle, progress, world_size, fault, stall_before=int(given.get("stall_before", 0)))
    collectives.barrier("first collective")
    return collectives


def _environment(params: dict[str, Any], backend: str, device: str, timeout_s: float) -> None:
    """The variables that `paddle.distributed.launch` would set; they replace those in the job's environment."""
    rank, world_size = int(params["rank"]), int(params["world_size"])
    master = "{}:{}".format(params["master_addr"], params["master_port"])
    # Only their number and order matter for the group; nothing listens there.
    endpoints = [f"rank{other}:{1 + other}" for other in range(world_size)]
    for name in ("MASTER_ADDR", "MASTER_PORT", "TRAINING_ROLE", "PADDLE_ROLE"):
        os.environ.pop(name, None)
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(world_size),
        PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
        PADDLE_CURRENT_ENDPOINT=endpoints[rank],
        PADDLE_MASTER=master,
        PADDLE_DISTRI_BACKEND=backend,
    )
    if backend == "nccl":
        os.environ["FLAGS_selected_gpus"] = device.split(":")[1]
    for name in _LIMITS:
        os.environ.setdefault(name, str(max(1, int(timeout_s))))


class Collectives:
    """Paddle's collectives over numpy arrays, counted and announced one by one; each waits for its completion."""

    def __init__(
        self, paddle: Any, progress: Progress, world_size: int, fault: RankFault, *, stall_before: int = 0
    ) -> None:
        self._fault = fault
        self._paddle = paddle
        self._dist = paddle.distributed
        self._progress = progress
        self._alone = world_size == 1
        self._stall_before = stall_before

    def all_reduce(self, array: Any, label: str) -> None:
        """Sum over all ranks, in place."""
        self._fault.corrupt(array, self._progress.collective + 1)
        self._in_place(array, label, self._dist.all_reduce)

    def broadcast(self, array: Any, root: int, label: str) -> None:
        """Copy the root's array to all ranks, in place."""
        self._in_place(array, label, lambda tensor: self._dist.broadcast(tensor, src=root), root)

    def all_gather(self, outputs: list[Any], array: Any, label: str) -> None:
        """Collect the arrays of all ranks in `outputs`, by rank."""
        tensor = self._paddle.to_tensor(array)
        found: list[Any] = [tensor] if self._alone else []
        self._counted(label, lambda: self._alone or self._dist.all_gather(found, tensor))
        for output, part in zip(outputs, found):
            output[...] = part.numpy()

    def reduce_scatter(self, output: Any, inputs: list[Any], label: str) -> bool:
        """Sum all ranks' `inputs[own rank]` into `output`; False if the backend does not support it."""
        parts = [self._paddle.to_tensor(part) for part in inputs]
        result = parts[0] if self._alone else self._paddle.zeros_like(parts[0])
        try:
            self._counted(label, lambda: self._alone or self._dist.reduce_scatter(result, parts))
        except NotImplementedError:
            self._progress.left(collective=True)
            return False
        output[...] = result.numpy()
        return True

    def barrier(self, label: str) -> None:
        """Wait for all ranks, by a sum of one element."""
        tensor = self._paddle.ones([1])
        self._counted(label, lambda: self._alone or self._dist.all_reduce(tensor))

    def _in_place(self, array: Any, label: str, run: Callable[[Any], Any], root: int | None = None) -> None:
        tensor = self._paddle.to_tensor(array)
        self._counted(label, lambda: self._alone or run(tensor), root)
        array[...] = tensor.numpy()

    def _counted(self, label: str, run: Callable[[], Any], root: int | None = None) -> None:
        if self._progress.collective + 1 == self._stall_before:
            time.sleep(3600.0)
        self._progress.entering(label, collective=True, root=root)
        run()
        if self._paddle.is_compiled_with_cuda():
            self._paddle.device.synchronize()
        self._progress.left(collective=True)


_LIBRARY = "libstdc++.so.6"
#: `std::set_terminate(void (*)())` as compilers spell it.
_SET_TERMINATE = "_ZSt13set_terminatePFvvE"
_HANDLER = ctypes.CFUNCTYPE(None)
#: The handler in use, which must live as long as the process.
_kept: list[Any] = []


def delay_abort(seconds: float) -> bool:
    """Before `std::terminate` aborts this process, let its other threads run for `seconds`; they may end it.

    Returns False where the C++ library is not the shared one of GCC; the process then aborts as before.
    """
    try:
        set_terminate = getattr(ctypes.CDLL(_LIBRARY), _SET_TERMINATE)
    except (OSError, AttributeError):
        return False
    set_terminate.restype, set_terminate.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def wait() -> None:
        time.sleep(seconds)
        if former:
            _HANDLER(former)()  # prints the exception, and aborts

    handler = _HANDLER(wait)
    _kept.append(handler)
    former = set_terminate(ctypes.cast(handler, ctypes.c_void_p))
    return True

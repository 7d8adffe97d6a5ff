"""Paddle and its process group as one rank has them: imported late, joined after all ranks have met, and counted."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

from preflight.node.wire import ProbeUnavailable
from reference_trainer import endpoint, phases
from reference_trainer.drills import RankDrill
from reference_trainer.progress import Progress

#: Paddle's own limit for what its store waits for, in seconds (FLAGS_stop_check_timeout), and for an operation of NCCL.
_LIMITS = ("FLAGS_stop_check_timeout", "PADDLE_PG_TIMEOUT")


def load(me: Progress) -> Any:
    """`paddle`, imported under an announcement because it takes seconds.

    Raises ProbeUnavailable of kind `missing`, with the reason, where it is not to be had.
    """
    me.entering("import of paddle", loading=True)
    try:
        import paddle
        import paddle.distributed
    except ImportError as error:
        me.say(phases.PROBLEM, problem="import", error=str(error), rank=me.rank)
        raise ProbeUnavailable("missing", "paddle cannot be imported by %s: %s" % (sys.executable, error)) from error
    me.left()
    return paddle


def choose_device(paddle: Any, params: Dict[str, Any]) -> Tuple[str, str]:
    """The backend and Paddle's name of the device: NCCL only where each local rank has a device of its own.

    Raises ProbeUnavailable of kind `missing` where NCCL is asked for and there is no GPU.
    """
    wanted = str(params.get("backend", "auto"))
    local_rank, local_size = int(params.get("local_rank", 0)), int(params.get("local_world_size", 1))
    devices = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    if wanted == "auto":
        wanted = "nccl" if devices >= local_size else "gloo"
    if wanted == "nccl" and not devices:
        raise ProbeUnavailable("missing", "backend nccl is asked for, but paddle sees no GPU")
    return wanted, "gpu:%d" % (local_rank % devices) if wanted == "nccl" else "cpu"


def versions(paddle: Any, device: str) -> Dict[str, str]:
    """What the report names; empty where there is no such thing."""
    on_gpu = device != "cpu"
    name = paddle.device.cuda.get_device_name(int(device.split(":")[1])) if on_gpu else ""
    return {
        "paddle": str(paddle.__version__),
        "cuda": str(paddle.version.cuda()) if on_gpu else "",
        "device": ("%s %s" % (device, name)).strip(),
    }


def join(paddle: Any, params: Dict[str, Any], me: Progress, backend: str, device: str, timeout_s: float) -> Collectives:
    """The process group, entered when all ranks are known to be there, and a first sum through it.

    Rank 0 opens Paddle's store; the others wait for its port, because Paddle's client sleeps three seconds after an
    attempt that comes too early. A single rank has no group: Paddle makes none.
    """
    world_size = int(params["world_size"])
    _environment(params, backend, device, timeout_s)
    paddle.set_device(device)
    if world_size > 1:
        host, port = str(params["master_addr"]), int(params["master_port"])
        if me.rank != 0:
            me.entering("paddle's store at %s:%d" % (host, port), waiting_for=[0])
            opened = endpoint.dial_until(host, port, timeout_s=timeout_s, tell=lambda dialled: None)
            me.left()
            if opened.result != "open":
                raise ProbeUnavailable("timeout", "paddle's store on rank 0: %s %s" % (opened.result, opened.error))
        me.entering("set-up of the %s process group" % backend, collective=True)
        paddle.distributed.init_parallel_env()
        me.left(collective=True)
    given = params.get("drill") or {}
    drill = RankDrill(given, me.drilled)
    me.before_collective = drill.before
    collectives = Collectives(paddle, me, world_size, drill, stall_before=int(given.get("stall_before", 0)))
    collectives.barrier("first collective")
    return collectives


def _environment(params: Dict[str, Any], backend: str, device: str, timeout_s: float) -> None:
    """The variables that `paddle.distributed.launch` would set, in the place of what the job's environment may hold."""
    rank, world_size = int(params["rank"]), int(params["world_size"])
    master = "%s:%s" % (params["master_addr"], params["master_port"])
    # Only their number and order count for the group; nothing listens there.
    endpoints = ["rank%d:%d" % (other, 1 + other) for other in range(world_size)]
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
    """Paddle's collectives over arrays of numpy, counted and announced one by one; all of them wait for their end."""

    def __init__(self, paddle: Any, me: Progress, world_size: int, drill: RankDrill, *, stall_before: int = 0) -> None:
        self._drill = drill
        self._paddle = paddle
        self._dist = paddle.distributed
        self._me = me
        self._alone = world_size == 1
        self._stall_before = stall_before

    def all_reduce(self, array: Any, what: str) -> None:
        """Sum over all ranks, in place."""
        self._drill.spoil(array, self._me.collective + 1)
        self._in_place(array, what, self._dist.all_reduce)

    def broadcast(self, array: Any, root: int, what: str) -> None:
        """The root's array everywhere, in place."""
        self._in_place(array, what, lambda tensor: self._dist.broadcast(tensor, src=root))

    def all_gather(self, outputs: List[Any], array: Any, what: str) -> None:
        """Everybody's array into `outputs`, by rank."""
        tensor = self._paddle.to_tensor(array)
        found: List[Any] = [tensor] if self._alone else []
        self._counted(what, lambda: self._alone or self._dist.all_gather(found, tensor))
        for output, part in zip(outputs, found):
            output[...] = part.numpy()

    def reduce_scatter(self, output: Any, inputs: List[Any], what: str) -> bool:
        """The sum of everybody's `inputs[own rank]` into `output`; False when the backend has no such thing."""
        parts = [self._paddle.to_tensor(part) for part in inputs]
        result = parts[0] if self._alone else self._paddle.zeros_like(parts[0])
        try:
            self._counted(what, lambda: self._alone or self._dist.reduce_scatter(result, parts))
        except NotImplementedError:
            self._me.left(collective=True)
            return False
        output[...] = result.numpy()
        return True

    def barrier(self, what: str) -> None:
        """Everybody comes here before anybody goes on: a sum of one element."""
        tensor = self._paddle.ones([1])
        self._counted(what, lambda: self._alone or self._dist.all_reduce(tensor))

    def _in_place(self, array: Any, what: str, run: Callable[[Any], Any]) -> None:
        tensor = self._paddle.to_tensor(array)
        self._counted(what, lambda: self._alone or run(tensor))
        array[...] = tensor.numpy()

    def _counted(self, what: str, run: Callable[[], Any]) -> None:
        if self._me.collective + 1 == self._stall_before:
            time.sleep(3600.0)
        self._me.entering(what, collective=True)
        run()
        if self._paddle.is_compiled_with_cuda():
            self._paddle.device.synchronize()
        self._me.left(collective=True)

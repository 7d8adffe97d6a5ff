"""The process group of one rank: set up, its collectives counted and announced, and taken down within a limit."""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List

from reference_trainer.progress import Progress

#: Taking the group down must not outlast this: everything that matters was said before.
_TEARDOWN_S = 5.0


def join(
    dist: Any,
    torch: Any,
    params: Dict[str, Any],
    me: Progress,
    store: Any,
    backend: str,
    device: Any,
    timeout_s: float,
) -> Collectives:
    """The process group, and a first sum through it, because NCCL connects only then."""
    world_size = int(params["world_size"])
    interface = os.environ.get("GLOO_SOCKET_IFNAME" if backend == "gloo" else "NCCL_SOCKET_IFNAME", "")
    me.entering(
        "set-up of the %s process group" % backend,
        collective=True,
        details={"hostname_resolves_to": _resolve_self(), "interface": interface},
    )
    dist.init_process_group(
        backend, store=store, rank=me.rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
    )
    me.left(collective=True)
    collectives = Collectives(dist, torch, me, stall_before=int(params.get("drill", {}).get("stall_before", 0)))
    collectives.barrier("first collective", device)
    return collectives


def _resolve_self() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        return "unresolved: %s" % error


class Collectives:
    """torch's collectives, counted and announced one by one; all of them wait for their end."""

    def __init__(self, dist: Any, torch: Any, me: Progress, *, stall_before: int = 0) -> None:
        self._stall_before = stall_before
        self._dist = dist
        self._torch = torch
        self._me = me
        self._device: Any = None

    def all_reduce(self, tensor: Any, what: str) -> None:
        """Sum over all ranks, in place."""
        self._counted(what, tensor, lambda: self._dist.all_reduce(tensor))

    def broadcast(self, tensor: Any, root: int, what: str) -> None:
        """The root's tensor everywhere, in place."""
        self._counted(what, tensor, lambda: self._dist.broadcast(tensor, src=root))

    def all_gather(self, outputs: List[Any], tensor: Any, what: str) -> None:
        """Everybody's tensor into `outputs`, by rank."""
        self._counted(what, tensor, lambda: self._dist.all_gather(outputs, tensor))

    def reduce_scatter(self, output: Any, inputs: List[Any], what: str) -> bool:
        """The sum of everybody's `inputs[own rank]` into `output`; False when the backend has no such thing."""
        try:
            self._counted(what, output, lambda: self._dist.reduce_scatter(output, inputs))
        except (RuntimeError, NotImplementedError) as error:
            text = str(error).lower()
            if "not support" in text or "not implemented" in text or isinstance(error, NotImplementedError):
                self._me.left(collective=True)
                return False
            raise
        return True

    def barrier(self, what: str, device: Any = None) -> None:
        """Everybody comes here before anybody goes on: a sum of one element."""
        self._device = device if device is not None else self._device
        tensor = self._torch.ones(1, device=self._device)
        self.all_reduce(tensor, what)

    def _counted(self, what: str, tensor: Any, run: Callable[[], Any]) -> None:
        if self._me.collective + 1 == self._stall_before:
            time.sleep(3600.0)
        self._me.entering(what, collective=True)
        run()
        if tensor.is_cuda:
            self._torch.cuda.synchronize(tensor.device)
        self._me.left(collective=True)


def take_down(dist: Any, me: Progress) -> str:
    """Destroy the process group within a limit; returns what was odd about it, empty when nothing."""
    problems: List[str] = []

    def destroy() -> None:
        try:
            dist.destroy_process_group()
        except Exception as error:
            problems.append("%s: %s" % (type(error).__name__, str(error).split("\n")[0]))

    me.entering("destruction of the process group")
    thread = threading.Thread(target=destroy, name="preflight-teardown", daemon=True)
    thread.start()
    thread.join(_TEARDOWN_S)
    me.left()
    if thread.is_alive():
        return "destroy_process_group did not return within %g s" % _TEARDOWN_S
    return problems[0] if problems else ""

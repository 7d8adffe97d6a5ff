"""The process group of one rank: set up, its collectives counted and announced, and taken down within a limit."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Set

from reference_trainer import messages
from reference_trainer.drills import RankDrill
from reference_trainer.progress import Progress

#: What torch says of a collective that a back end does not have.
_LACKING = ("not support", "no support", "not implemented")
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
    given = params.get("drill") or {}
    drill = RankDrill(given, me.drilled)
    me.before_collective = drill.before
    collectives = Collectives(dist, torch, me, stall_before=int(given.get("stall_before", 0)), spoil=drill.spoil)
    collectives.barrier("first collective", device)
    return collectives


def _resolve_self() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        return "unresolved: %s" % error


class Collectives:
    """torch's collectives, counted and announced one by one; all of them wait for their end."""

    def __init__(
        self,
        dist: Any,
        torch: Any,
        me: Progress,
        *,
        stall_before: int = 0,
        spoil: Optional[Callable[[Any, int], None]] = None,
    ) -> None:
        self._stall_before = stall_before
        self._spoil = spoil
        self._dist = dist
        self._torch = torch
        self._me = me
        self._device: Any = None
        #: Collectives that this back end carries out over lists of parts only.
        self.in_lists: Set[str] = set()

    def all_reduce(self, tensor: Any, what: str) -> None:
        """Sum over all ranks, in place."""
        if self._spoil is not None:
            self._spoil(tensor, self._me.collective + 1)
        self._counted(what, tensor, lambda: self._dist.all_reduce(tensor))

    def broadcast(self, tensor: Any, root: int, what: str) -> None:
        """The root's tensor everywhere, in place."""
        self._counted(what, tensor, lambda: self._dist.broadcast(tensor, src=root))

    def all_gather(self, outputs: List[Any], tensor: Any, what: str) -> None:
        """Everybody's tensor into `outputs`, by rank."""
        self._counted(what, tensor, lambda: self._dist.all_gather(outputs, tensor))

    def reduce_scatter(self, output: Any, inputs: List[Any], what: str) -> bool:
        """The sum of everybody's `inputs[own rank]` into `output`; False when the backend has no such thing."""
        return self._if_supported(
            lambda: self._counted(what, output, lambda: self._dist.reduce_scatter(output, inputs))
        )

    def largest(self, tensor: Any, what: str) -> None:
        """The largest of all ranks' values, in place."""
        self._counted(what, tensor, lambda: self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX))

    def timed(self, operation: str, tensor: Any, room: Any, what: str) -> Optional[float]:
        """Seconds that one call took on this rank; None when the backend has no such thing.

        Args:
            operation: one of `messages.OPERATIONS`; all-reduce and broadcast (from rank 0) work in place, the others
                put what comes into `room`.
        """
        took: List[float] = []

        def measured(run: Callable[[], Any]) -> None:
            began = time.perf_counter()
            run()
            if tensor.is_cuda:
                self._torch.cuda.synchronize(tensor.device)
            took.append(time.perf_counter() - began)

        if tensor.is_cuda:
            self._torch.cuda.synchronize(tensor.device)
        for run in self._ways(operation, tensor, room):
            call = functools.partial(measured, run)
            if self._if_supported(functools.partial(self._counted, what, tensor, call, brief=True)):
                return took[0]
            self.in_lists.add(operation)
        return None

    def _ways(self, operation: str, tensor: Any, room: Any) -> List[Callable[[], Any]]:
        """Over whole tensors, and where that is not supported (older versions of Gloo) over lists of parts."""
        flat = self._flat(operation, tensor, room)
        dist = self._dist
        if operation == messages.ALL_GATHER:
            lists = functools.partial(dist.all_gather, list(room.chunk(dist.get_world_size())), tensor)
        elif operation == messages.REDUCE_SCATTER:
            lists = functools.partial(dist.reduce_scatter, room, list(tensor.chunk(dist.get_world_size())))
        else:
            return [flat]
        return [lists] if operation in self.in_lists else [flat, lists]

    def _flat(self, operation: str, tensor: Any, room: Any) -> Callable[[], Any]:
        """The call over whole tensors, under the name that this torch has for it."""
        dist = self._dist
        if operation == messages.ALL_REDUCE:
            return lambda: dist.all_reduce(tensor)
        if operation == messages.BROADCAST:
            return lambda: dist.broadcast(tensor, src=0)
        if operation == messages.ALL_TO_ALL:
            return lambda: dist.all_to_all_single(room, tensor)
        if operation == messages.ALL_GATHER:
            call = _named(dist, "all_gather_single", "all_gather_into_tensor", "_all_gather_base")
        else:
            call = _named(dist, "reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base")
        return lambda: call(room, tensor)

    def _if_supported(self, run: Callable[[], Any]) -> bool:
        try:
            run()
        except (RuntimeError, NotImplementedError) as error:
            text = str(error).lower()
            if isinstance(error, NotImplementedError) or any(mark in text for mark in _LACKING):
                self._me.left(collective=True)
                return False
            raise
        return True

    def barrier(self, what: str, device: Any = None) -> None:
        """Everybody comes here before anybody goes on: a sum of one element."""
        self._device = device if device is not None else self._device
        tensor = self._torch.ones(1, device=self._device)
        self._counted(what, tensor, lambda: self._dist.all_reduce(tensor))

    def _counted(self, what: str, tensor: Any, run: Callable[[], Any], *, brief: bool = False) -> None:
        if self._me.collective + 1 == self._stall_before:
            time.sleep(3600.0)
        self._me.entering(what, collective=True, brief=brief)
        run()
        if tensor.is_cuda:
            self._torch.cuda.synchronize(tensor.device)
        self._me.left(collective=True)


def _named(dist: Any, *names: str) -> Any:
    """The first of these functions that this torch has: they were renamed, and the old names warn."""
    return next(found for found in (getattr(dist, name, None) for name in names) if found is not None)


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

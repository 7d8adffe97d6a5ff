"""The process group of one rank: setup, announced collectives, ranks on one machine, and a bounded shutdown."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Callable

from preflight.agent import rank_events
from reference_trainer.common import messages
from reference_trainer.common.messages import RankFault
from reference_trainer.common.progress import Progress

#: torch's messages for a collective that a backend does not have.
_UNSUPPORTED_MESSAGES = ("not support", "no support", "not implemented")
#: Time limit for destroying the group: all results were reported before.
_TEARDOWN_S = 5.0
#: How much longer than the run NCCL's watchdog waits: the watchdog ends the process, so the survivors of a fault would
#: end while the head still decides which rank caused it.
_NCCL_MARGIN_S = 120.0
#: With the value 0 the watchdog reports failed communicators, and does not end the process. torch 2.2 renamed the
#: variable and warns about the old name.
_ASYNC_ERRORS, _OLD_ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"


def join(
    dist: Any,
    torch: Any,
    params: dict[str, Any],
    progress: Progress,
    store: Any,
    backend: str,
    device: Any,
    timeout_s: float,
) -> Collectives:
    """Set up the process group, and run a first sum through it, because some versions of NCCL connect only then.

    NCCL gets the rank's device, so that nothing has to be guessed from the rank. Its own watchdog must not end a rank
    before the head has decided: every wait is announced and bounded there.
    """
    world_size = int(params["world_size"])
    interface = os.environ.get("GLOO_SOCKET_IFNAME" if backend == "gloo" else "NCCL_SOCKET_IFNAME", "")
    progress.entering(
        f"setup of the {backend} process group",
        collective=True,
        root=rank_events.ANY_RANK,
        details={"hostname_resolves_to": _resolve_self(), "interface": interface},
    )
    more: dict[str, Any] = {}
    if backend == "nccl":
        timeout_s += _NCCL_MARGIN_S
        os.environ[_ASYNC_ERRORS] = "0"
        if "device_id" in inspect.signature(dist.init_process_group).parameters:
            more["device_id"] = device
        else:
            os.environ[_OLD_ASYNC_ERRORS] = "0"
    dist.init_process_group(
        backend, store=store, rank=progress.rank, world_size=world_size, timeout=timedelta(seconds=timeout_s), **more
    )
    progress.left(collective=True)
    given = params.get("injected_fault") or {}
    fault = RankFault(given, progress.on_fault_injected)
    progress.before_collective = fault.before
    collectives = Collectives(
        dist, torch, progress, stall_before=int(given.get("stall_before", 0)), corrupt=fault.corrupt
    )
    collectives.barrier("first collective", device)
    return collectives


def _resolve_self() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        return f"unresolved: {error}"


class Collectives:
    """torch's collectives, counted and announced one by one; each waits for its completion."""

    def __init__(
        self,
        dist: Any,
        torch: Any,
        progress: Progress,
        *,
        stall_before: int = 0,
        corrupt: Callable[[Any, int], None] | None = None,
    ) -> None:
        self._stall_before = stall_before
        self._corrupt = corrupt
        self._dist = dist
        self._torch = torch
        self._progress = progress
        self._device: Any = None
        #: Collectives that this backend only supports over lists of parts.
        self.in_lists: set[str] = set()

    def all_reduce(self, tensor: Any, label: str) -> None:
        """Sum over all ranks, in place."""
        if self._corrupt is not None:
            self._corrupt(tensor, self._progress.collective + 1)
        self._counted(label, tensor, lambda: self._dist.all_reduce(tensor))

    def broadcast(self, tensor: Any, root: int, label: str) -> None:
        """Copy the root's tensor to all ranks, in place."""
        self._counted(label, tensor, lambda: self._dist.broadcast(tensor, src=root), root=root)

    def all_gather(self, outputs: list[Any], tensor: Any, label: str) -> None:
        """Collect the tensors of all ranks in `outputs`, by rank."""
        self._counted(label, tensor, lambda: self._dist.all_gather(outputs, tensor))

    def reduce_scatter(self, output: Any, inputs: list[Any], label: str) -> bool:
        """Sum all ranks' `inputs[own rank]` into `output`; False if the backend does not support it."""
        return self._if_supported(
            lambda: self._counted(label, output, lambda: self._dist.reduce_scatter(output, inputs))
        )

    def maximum(self, tensor: Any, label: str) -> None:
        """Take the maximum over all ranks, in place."""
        self._counted(label, tensor, lambda: self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX))

    def timed(self, operation: str, tensor: Any, room: Any, label: str) -> float | None:
        """Return the duration of one call in seconds; None if unsupported. Results are in place, or else in `room`."""
        took: list[float] = []

        def measured(run: Callable[[], Any]) -> None:
            started_at = time.perf_counter()
            run()
            if tensor.is_cuda:
                self._torch.cuda.synchronize(tensor.device)
            took.append(time.perf_counter() - started_at)

        if tensor.is_cuda:
            self._torch.cuda.synchronize(tensor.device)
        for run in self._variants(operation, tensor, room):
            call = functools.partial(measured, run)
            root = 0 if operation == messages.BROADCAST else None
            if self._if_supported(functools.partial(self._counted, label, tensor, call, brief=True, root=root)):
                return took[0]
            self.in_lists.add(operation)
        return None

    def _variants(self, operation: str, tensor: Any, room: Any) -> list[Callable[[], Any]]:
        """Return the variants of a call: on whole tensors, and on lists of parts (for older versions of Gloo)."""
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
        """Return the call on whole tensors, under the name that it has in this torch."""
        dist = self._dist
        if operation == messages.ALL_REDUCE:
            return lambda: dist.all_reduce(tensor)
        if operation == messages.BROADCAST:
            return lambda: dist.broadcast(tensor, src=0)
        if operation == messages.ALL_TO_ALL:
            return lambda: dist.all_to_all_single(room, tensor)
        if operation == messages.ALL_GATHER:
            call = _first_available(dist, "all_gather_single", "all_gather_into_tensor", "_all_gather_base")
        else:
            call = _first_available(dist, "reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base")
        return lambda: call(room, tensor)

    def _if_supported(self, run: Callable[[], Any]) -> bool:
        try:
            run()
        except (RuntimeError, NotImplementedError) as error:
            text = str(error).lower()
            if isinstance(error, NotImplementedError) or any(mark in text for mark in _UNSUPPORTED_MESSAGES):
                self._progress.left(collective=True)
                return False
            raise
        return True

    def barrier(self, label: str, device: Any = None) -> None:
        """Wait for all ranks, by a sum of one element."""
        self._device = device if device is not None else self._device
        tensor = self._torch.ones(1, device=self._device)
        self._counted(label, tensor, lambda: self._dist.all_reduce(tensor))

    def _counted(
        self, label: str, tensor: Any, run: Callable[[], Any], *, brief: bool = False, root: int | None = None
    ) -> None:
        if self._progress.collective + 1 == self._stall_before:
            time.sleep(3600.0)
        self._progress.entering(label, collective=True, brief=brief, root=root)
        run()
        if tensor.is_cuda:
            self._torch.cuda.synchronize(tensor.device)
        self._progress.left(collective=True)


def _first_available(dist: Any, *names: str) -> Any:
    """Return the first of these functions that this torch has; they were renamed, and the old names cause warnings."""
    return next(found for found in (getattr(dist, name, None) for name in names) if found is not None)


def tear_down(torch: Any, dist: Any, progress: Progress, device: Any) -> str:
    """Destroy the process group within a limit; return a description of any problem, or an empty string."""
    problems: list[str] = []

    def destroy() -> None:
        try:
            if device.type == "cuda":
                # Each thread has its own current device, which is 0 at first.
                torch.cuda.set_device(device)
            dist.destroy_process_group()
        except Exception as error:
            problems.append("{}: {}".format(type(error).__name__, str(error).split("\n")[0]))

    progress.entering("destruction of the process group")
    thread = threading.Thread(target=destroy, name="preflight-teardown", daemon=True)
    thread.start()
    thread.join(_TEARDOWN_S)
    progress.left()
    if thread.is_alive():
        return f"destroy_process_group did not return within {_TEARDOWN_S:g} s"
    return problems[0] if problems else ""


_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NETWORK = "/proc/self/ns/net"


def identity() -> int:
    """Return a number below 2^56 that is the same in all processes of one machine and network namespace."""
    parts = [socket.gethostname()]
    try:
        with open(_BOOT_ID) as file:
            parts.append(file.read().strip())
        parts.append(str(os.stat(_NETWORK).st_ino))
    except OSError:
        pass
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:7], "big")


def device_identity(torch: Any, device: Any) -> int:
    """Return a number below 2^56 that is equal for processes of one machine on the same GPU; 0 on the host."""
    if device.type != "cuda":
        return 0
    properties = torch.cuda.get_device_properties(device)
    # Without an identifier (before torch 2.4) the device number is used, which depends on the visible devices.
    name = str(
        getattr(properties, "uuid", "") or "{}/{}".format(os.environ.get("CUDA_VISIBLE_DEVICES", ""), device.index)
    )
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


def neighbours(torch: Any, collectives: Collectives, world_size: int, device: Any) -> tuple[list[int], list[int]]:
    """Return the ranks on this machine and on this device, in order, with this rank. Every rank must call this."""
    mine = torch.tensor([identity(), device_identity(torch, device)], dtype=torch.int64, device=device)
    gathered = [torch.zeros_like(mine) for _ in range(world_size)]
    collectives.all_gather(gathered, mine, "which ranks share a machine")
    own, found = mine.tolist(), [tensor.tolist() for tensor in gathered]
    together = [rank for rank, other in enumerate(found) if other[0] == own[0]]
    return together, [rank for rank in together if found[rank][1] == own[1]]

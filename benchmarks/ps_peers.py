"""The same exchange over other transports: gradients go up, and weights and rows come down, in one call a step.

Each peer follows its own documentation: pyzmq's ROUTER with parts that are not copied, torch's RPC with tensors as
arguments, a Ray actor. All of them share the model, the arithmetic and the updates. Like our own servers, they send
weights of one moment, never with half of another worker's push applied.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

#: Dense gradient, rows, their gradients, rows wanted next -> dense weights, wanted rows.
Exchange = Callable[[Any, Any, Any, Any], tuple[Any, Any]]


class Weights:
    """The weights of a peer's server.

    Args:
        copied: the transport copies an answer before the next call begins, so that nothing needs to be done for it.
    """

    def __init__(self, task: Any, rate: float, *, copied: bool = False) -> None:
        import torch

        self.dense = torch.cat([task.initial(p.name) for p in task.dense])
        self.table = torch.zeros(0, 1)
        if task.tables:
            self.table = task.initial_rows(0, torch.arange(task.tables[0].rows))
        self._rate = rate
        self._copied = copied

    def exchange(self, gradient: Any, rows: Any, row_gradients: Any, wanted: Any) -> tuple[Any, Any]:
        """Apply the gradients and return the wanted weights."""
        from reference_trainer.ps import exact

        if gradient.numel():
            self.dense.add_(gradient, alpha=-self._rate)
        if rows.numel():
            exact.add_rows(self.table, rows, row_gradients.view(rows.numel(), -1), -self._rate)
        # Other transports send the answer while the next call is served, so it is copied.
        dense = self.dense if self._copied else self.dense.clone()
        return dense, self.table[wanted] if wanted.numel() else self.table[:0]


class Training:
    """One worker of a peer: the model of the reference trainer over an exchange."""

    def __init__(self, task: Any, worker: int, exchange: Exchange) -> None:
        self._task = task
        self._worker = worker
        self._exchange = exchange

    def steps(self, count: int) -> float:
        """Train `count` steps and return the last loss."""
        import torch

        from reference_trainer.ps.exact import deduplicate
        from reference_trainer.ps.worker_steps import gradients_of

        task, shapes = self._task, [p.shape for p in self._task.dense]
        sizes = [p.elements for p in task.dense]
        nothing = torch.zeros(0)
        no_rows = torch.zeros(0, dtype=torch.int64)
        gradient, rows, row_gradients, inverse = nothing, no_rows, nothing, no_rows
        loss = 0.0
        for step in range(count + 1):
            wanted = no_rows
            if task.tables and step < count:
                wanted, inverse, _ = deduplicate(task.ids(0, self._worker, step))
            dense, values = self._exchange(gradient, rows, row_gradients, wanted)
            if step == count:
                break
            weights = [part.view(shape) for part, shape in zip(dense.split(sizes), shapes, strict=True)]
            held = [values.view(wanted.numel(), -1)] if task.tables else []
            leaves = [tensor.detach().requires_grad_() for tensor in (*weights, *held)]
            loss, found = gradients_of(task, self._worker, step, leaves, [(wanted, inverse)] * len(held), len(weights))
            gradient = torch.cat([part.reshape(-1) for part in found[: len(weights)]])
            rows, row_gradients = wanted, (found[-1].reshape(-1) if held else nothing)
        return loss


def zmq_server(endpoint: str, task: Any, rate: float) -> None:
    """Serve with a ROUTER in one thread, until killed."""
    import torch
    import zmq

    held = Weights(task, rate)
    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(endpoint)
    while True:
        name, *parts = router.recv_multipart(copy=False)
        kinds = (torch.float32, torch.int64, torch.float32, torch.int64)
        tensors = [tensor_of(part.buffer, kind) for part, kind in zip(parts, kinds, strict=True)]
        dense, rows = held.exchange(*tensors)
        router.send_multipart([name.bytes, bytes_of(dense), bytes_of(rows)], copy=False)


def zmq_exchange(endpoint: str) -> Exchange:
    """Return an exchange over a DEALER."""
    import torch
    import zmq

    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.connect(endpoint)

    def exchange(*tensors: Any) -> tuple[Any, Any]:
        dealer.send_multipart([bytes_of(tensor) for tensor in tensors], copy=False)
        dense, rows = dealer.recv_multipart(copy=False)
        return tensor_of(dense.buffer, torch.float32), tensor_of(rows.buffer, torch.float32)

    return exchange


_WEIGHTS: list[Weights] = []


def _on_server(*tensors: Any) -> tuple[Any, Any]:
    return _WEIGHTS[0].exchange(*tensors)


def rpc_join(name: str, rank: int, world_size: int, port: int) -> Any:
    """Join torch.distributed.rpc with its defaults."""
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=120)
    rpc.init_rpc(name, rank=rank, world_size=world_size, rpc_backend_options=options)
    return rpc


def rpc_server(port: int, world_size: int, task: Any, rate: float) -> None:
    """Serve until all workers leave."""
    _WEIGHTS.append(Weights(task, rate))
    rpc_join("server", 0, world_size, port).shutdown()


def rpc_exchange(worker: int, world_size: int, port: int) -> Exchange:
    """Return an exchange that makes one call per step."""
    rpc = rpc_join(f"worker{worker}", worker + 1, world_size, port)
    return lambda *tensors: rpc.rpc_sync("server", _on_server, args=tensors)


class RayRun:
    """A Ray cluster on this machine: one actor that serves, and one for each worker."""

    def __init__(self, options: dict[str, int], workers: int, rate: float) -> None:
        import ray

        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        ray.init(num_cpus=workers + 1, include_dashboard=False, logging_level="error", configure_logging=False)
        server = ray.remote(_RayServer).remote(options, rate)
        self._ray = ray
        self._workers = [ray.remote(_RayWorker).remote(options, index, server) for index in range(workers)]
        self.pids = ray.get([actor.pid.remote() for actor in (server, *self._workers)])

    def steps(self, count: int) -> list[float]:
        """Train with all workers at the same time, and return the seconds of each."""
        return list(self._ray.get([worker.steps.remote(count) for worker in self._workers]))

    def close(self) -> None:
        """End the cluster."""
        self._ray.shutdown()


class _RayServer:
    def __init__(self, options: dict[str, int], rate: float) -> None:
        import torch

        from reference_trainer.ps.tasks import Network

        torch.set_num_threads(1)
        self._weights = Weights(Network(**options), rate, copied=True)

    def pid(self) -> int:
        return os.getpid()

    def exchange(self, *tensors: Any) -> tuple[Any, Any]:
        import torch

        found = self._weights.exchange(*(torch.from_numpy(array) for array in tensors))
        return tuple(tensor.numpy() for tensor in found)  # type: ignore[return-value]


class _RayWorker:
    def __init__(self, options: dict[str, int], worker: int, server: Any) -> None:
        import ray
        import torch

        from reference_trainer.ps.tasks import Network

        torch.set_num_threads(1)

        def exchange(*tensors: Any) -> tuple[Any, Any]:
            # Arrays are not pickled element by element; received ones are read-only, and so are copied here.
            dense, rows = ray.get(server.exchange.remote(*(tensor.numpy() for tensor in tensors)))
            return torch.from_numpy(dense.copy()), torch.from_numpy(rows.copy())

        self._training = Training(Network(**options), worker, exchange)

    def pid(self) -> int:
        return os.getpid()

    def steps(self, count: int) -> float:
        import time

        began = time.perf_counter()
        self._training.steps(count)
        return time.perf_counter() - began


def bytes_of(tensor: Any) -> memoryview | bytes:
    """A tensor's bytes, not copied."""
    from reference_trainer.ps import exact as memory

    views = memory.bytes_of(tensor.contiguous())
    return views[0] if views else b""


def tensor_of(buffer: Any, kind: Any) -> Any:
    """A tensor over received bytes."""
    import torch

    return torch.frombuffer(buffer, dtype=kind) if len(buffer) else torch.zeros(0, dtype=kind)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

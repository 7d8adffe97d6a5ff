"""One rank of the collective smoke run in Paddle, for jobs whose interpreter has paddle and no torch.

Phases, known sums and judgement are the same as with torch. The two windows of `pace` and the sweep of bandwidths are
measured only with torch.

When a rank is lost, Paddle's Gloo throws in a place where C++ calls `std::terminate`, and the process aborts at once.
Its watch might not name the lost rank in time.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import sys
import time
from typing import Any, Callable

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.collective import steps as training
from reference_trainer.collective.rank import RankReport
from reference_trainer.collective.steps import (
    BATCH,
    CLASSES,
    HIDDEN,
    INPUTS,
    LEARNING_RATE,
    MAX_COMPARED_RANKS,
    MAX_COMPARED_STEPS,
    TrainingResult,
)
from reference_trainer.common import arrays, oracle, rendezvous
from reference_trainer.common.arrays import NUMPY
from reference_trainer.common.messages import RankFault
from reference_trainer.common.progress import Progress

#: Time that a rank with its own watch gets to report the lost rank before Paddle aborts it.
ABORT_DELAY_S = 5.0


def run(params: dict[str, Any], progress: Progress) -> RankReport:
    """Take part as one rank; parameters and errors are those of `rank.rank`."""
    world_size = int(params["world_size"])
    steps = int(params.get("steps", training.MAX_COMPARED_STEPS))
    timeout_s = float(params.get("timeout_s", 60.0))
    listener = rendezvous.open_listener(params, progress)
    dialling = rendezvous.MasterDialer(params, progress, timeout_s)
    rendezvous.await_master(params, progress, dialling)
    lines = _assemble(params, progress, listener, timeout_s)
    paddle = load_paddle(progress)
    backend = _agree_on_backend(params, progress, lines, nccl_obstacle(paddle, params), timeout_s)
    progress.entering("setup of the device", loading=True)
    device = device_of(paddle, params, backend)
    progress.left()
    version_by_name = versions(paddle, device)
    progress.reached(rank_events.IMPORTED, backend=backend, **version_by_name)
    progress.reached(rank_events.RENDEZVOUS)
    collectives = join_group(paddle, params, progress, backend, device, timeout_s)
    progress.reached(rank_events.GROUP)
    first = oracle.check_collectives(collectives, progress.rank, world_size, NUMPY)
    second = oracle.check_steps(
        collectives, progress.rank, world_size, steps, NUMPY, build=lambda start: ExactModel(paddle, start)
    )
    mismatches = first.mismatches + second.mismatches
    progress.reached(rank_events.EXACT, mismatches=len(mismatches))
    report: dict[str, Any] = {
        "framework": f"paddle {version_by_name['paddle']}",
        "operations": len(first.operations) + len(second.operations),
        "mismatches": mismatches,
        "unsupported": first.unsupported,
        "exact_digest": second.digest,
    }
    if params.get("until") != rank_events.EXACT:
        report.update(_train_and_compare(paddle, collectives, progress, world_size, steps))
        report["exact_steps"] = min(steps, oracle.MAX_EXACT_STEPS)
    collectives.barrier("last barrier")
    progress.reached(rank_events.DONE)
    return RankReport(
        progress.rank,
        world_size,
        socket.gethostname(),
        backend,
        version_by_name["device"],
        phase_at_s=dict(progress.phase_at_s),
        **report,
    )


def _assemble(
    params: dict[str, Any], progress: Progress, listener: socket.socket | None, timeout_s: float
) -> dict[int, arrays.JsonLines]:
    """Wait until every rank has connected to the master's port; return the connections of, or to, rank 0."""
    world_size = int(params["world_size"])
    own_values = {
        "rank": progress.rank,
        "world_size": world_size,
        "run_id": str(params.get("run_id", "")),
        "framework": "paddle",
        "host": socket.gethostname(),
    }
    others = [rank for rank in range(world_size) if rank != progress.rank]
    progress.entering("all ranks to connect to the master's port", waiting_for=others if listener is not None else [0])
    if listener is not None:
        common = ("world_size", "run_id", "framework")
        lines = arrays.host_assembly(own_values, others, common, progress, listener, timeout_s)
    else:
        host, port = str(params["master_addr"]), int(params["master_port"])
        lines = {0: arrays.join_assembly(own_values, host, port, 0, progress, timeout_s)}
    progress.left()
    return lines


def _agree_on_backend(
    params: dict[str, Any], progress: Progress, lines: dict[int, arrays.JsonLines], obstacle: str, timeout_s: float
) -> str:
    """Return the backend of all ranks; for `auto` nccl if all can use it. Raises ProbeUnavailable without nccl."""
    requested = str(params.get("backend", "auto"))
    is_kept = False
    try:
        if requested == "nccl" and obstacle:
            progress.send(
                rank_events.PROBLEM,
                problem=rank_events.NO_DEVICE,
                backend=requested,
                error=obstacle,
                rank=progress.rank,
            )
            raise ProbeUnavailable("missing", f"backend nccl is requested, but {obstacle}")
        if requested != "auto":
            is_kept = _keep(params, lines)
            return requested
        progress.entering("agreement on the backend", waiting_for=sorted(lines))
        ends = time.monotonic() + timeout_s
        if progress.rank == 0:
            answers = {rank: _receive(line, ends, rank) for rank, line in lines.items()}
            able = not obstacle and all(answer.get("nccl") for answer in answers.values())
            backend = "nccl" if able else "gloo"
            for line in lines.values():
                line.send(backend=backend)
        else:
            lines[0].send(nccl=not obstacle)
            backend = str(_receive(lines[0], ends, 0).get("backend", "gloo"))
        progress.left()
        is_kept = _keep(params, lines)
        return backend
    finally:
        for line in lines.values() if not is_kept else ():
            line.close()


def _keep(params: dict[str, Any], lines: dict[int, arrays.JsonLines]) -> bool:
    if params.get("on_lines") is None:
        return False
    params["on_lines"](lines)
    delay_abort(ABORT_DELAY_S)
    return True


def _receive(line: arrays.JsonLines, ends: float, rank: int) -> dict[str, Any]:
    message = line.receive(ends)
    if message is None:
        raise ProbeUnavailable("timeout", f"rank {rank} did not report in time whether it can use nccl")
    return message


def _train_and_compare(
    paddle: Any, collectives: Any, progress: Progress, world_size: int, steps: int
) -> dict[str, Any]:
    """Run ordinary DataParallel steps; return their results."""
    model = build(paddle)
    progress.entering("DataParallel setup", collective=True, root=rank_events.ANY_RANK)
    wrapped = paddle.DataParallel(model) if world_size > 1 else model
    progress.left(collective=True)
    trained = train(
        paddle,
        model,
        wrapped,
        shard(paddle, progress.rank),
        steps,
        before=lambda step: progress.entering(f"DataParallel step {step}", collective=True, brief=True),
        after=lambda step: progress.left(collective=True),
    )
    progress.reached(rank_events.DDP, first_loss=trained.losses[0], last_loss=trained.losses[-1])
    digests = _digests(collectives, digest(model), world_size)
    drift = _drift(model, collectives)
    difference = None
    if progress.rank == 0:
        progress.entering("training the same steps in one process")
        difference = difference_to_one_process(paddle, model, world_size, steps, progress.report_progress)
        progress.left()
    progress.reached(rank_events.PARITY, equal=len(set(digests)) == 1)
    return {
        "steps": len(trained.losses),
        "losses": training.first_and_last(trained.losses, 200),
        "step_s": training.first_and_last(trained.step_s, 200),
        "unmoved": unchanged_tensors(paddle, model),
        "digests": digests,
        "difference_to_one_process": difference,
        "drift": drift,
    }


def _digests(collectives: Any, own_values: str, world_size: int) -> list[str]:
    """Return the SHA-256 of every rank's weights, by rank, sent as 32-bit numbers, which all backends support."""
    import numpy

    mine = numpy.frombuffer(bytes.fromhex(own_values), dtype="uint8").astype("int32")
    found = [numpy.zeros_like(mine) for _ in range(world_size)]
    collectives.all_gather(found, mine, "digests of the weights")
    return [part.astype("uint8").tobytes().hex() for part in found]


def _drift(model: Any, collectives: Any) -> training.Drift:
    """Compare the weights of this rank with those of rank 0. All ranks call this, because rank 0 sends its own."""
    import numpy

    own = numpy.concatenate([parameter.numpy().reshape(-1) for parameter in model.parameters()])
    first = own.copy()
    collectives.broadcast(first, 0, "weights of rank 0")
    return training.Drift(float(numpy.abs(own - first).max()), int((own != first).sum()), int(own.size))


def shard(paddle: Any, rank: int) -> tuple[Any, Any]:
    import numpy

    centres = numpy.random.RandomState(20177).standard_normal((CLASSES, INPUTS))
    own_values = numpy.random.RandomState(1000 + rank)
    labels = own_values.randint(0, CLASSES, BATCH)
    samples = centres[labels] + 0.5 * own_values.standard_normal((BATCH, INPUTS))
    return paddle.to_tensor(samples.astype("float32")), paddle.to_tensor(labels.astype("int64"))


def build(paddle: Any) -> Any:
    """Return the model, the same on every rank."""
    paddle.seed(7)
    return paddle.nn.Sequential(paddle.nn.Linear(INPUTS, HIDDEN), paddle.nn.ReLU(), paddle.nn.Linear(HIDDEN, CLASSES))


def train(
    paddle: Any,
    model: Any,
    wrapped: Any,
    data: tuple[Any, Any],
    steps: int,
    *,
    before: Callable[[int], Any],
    after: Callable[[int], Any],
) -> TrainingResult:
    """Run `steps` steps of SGD on `wrapped` (`model` in DataParallel), with `before` and `after` around each."""
    samples, labels = data
    optimizer = paddle.optimizer.SGD(LEARNING_RATE, parameters=model.parameters())
    criterion = paddle.nn.CrossEntropyLoss()
    losses: list[float] = []
    took: list[float] = []
    for step in range(steps):
        started_at = time.perf_counter()
        before(step)
        loss = criterion(wrapped(samples), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss.item()))
        after(step)
        took.append(time.perf_counter() - started_at)
    return TrainingResult(losses, took)


def unchanged_tensors(paddle: Any, model: Any) -> list[str]:
    import numpy

    start = dict(build(paddle).named_parameters())
    return [name for name, now in model.named_parameters() if numpy.array_equal(start[name].numpy(), now.numpy())]


def digest(model: Any) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.numpy().tobytes())
    return found.hexdigest()


def difference_to_one_process(
    paddle: Any, model: Any, world_size: int, steps: int, after: Callable[[], Any]
) -> float | None:
    """Return the largest difference from one process that trained on all shards; None if not compared."""
    import numpy

    if steps > MAX_COMPARED_STEPS or world_size > MAX_COMPARED_RANKS:
        return None
    alone = build(paddle)
    criterion = paddle.nn.CrossEntropyLoss()
    optimizer = paddle.optimizer.SGD(LEARNING_RATE, parameters=alone.parameters())
    shards = [shard(paddle, rank) for rank in range(world_size)]
    for _ in range(steps):
        for samples, labels in shards:
            (criterion(alone(samples), labels) / world_size).backward()
            after()
        optimizer.step()
        optimizer.clear_grad()
    pairs = zip(model.parameters(), alone.parameters())
    return float(numpy.max([numpy.abs(a.numpy() - b.numpy()).max() for a, b in pairs]))


class ExactModel:
    """A linear layer whose gradient does not depend on its weights, for the exact steps of the oracle."""

    def __init__(self, paddle: Any, start: Any) -> None:
        self._paddle = paddle
        self._layer = paddle.nn.Linear(len(start), 1, bias_attr=False)
        self._layer.weight.set_value(paddle.to_tensor(start.reshape(-1, 1)))
        self._optimizer = paddle.optimizer.SGD(oracle.LEARNING_RATE, parameters=self._layer.parameters())

    def gradient(self, inputs: Any) -> Any:
        """Return the gradient of the summed outputs, float32[features] of numpy, as autograd computes it."""
        self._optimizer.clear_grad()
        self._layer(self._paddle.to_tensor(inputs)).sum().backward()
        return self._layer.weight.grad.numpy().reshape(-1).copy()

    def step(self, gradient: Any) -> None:
        weight = self._layer.weight
        weight.grad.set_value(self._paddle.to_tensor(gradient.reshape(-1, 1)))
        self._optimizer.step()

    def weights(self) -> Any:
        """Return float32[features] of numpy."""
        return self._layer.weight.numpy().reshape(-1)


#: Paddle's own limit for waits of its store, in seconds (FLAGS_stop_check_timeout), and for an operation of NCCL.
_LIMITS = ("FLAGS_stop_check_timeout", "PADDLE_PG_TIMEOUT")


def load_paddle(progress: Progress) -> Any:
    """Return `paddle`, imported under an announcement (it takes seconds). Raises ProbeUnavailable if missing."""
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
    """Return why this rank cannot use NCCL on a GPU of its own; empty if it can, or if its backend is gloo."""
    requested = str(params.get("backend", "auto"))
    if requested == "gloo":
        return ""
    if not paddle.is_compiled_with_cuda():
        return f"paddle {paddle.__version__} was built without CUDA"
    devices = paddle.device.cuda.device_count()
    if not devices:
        return f"paddle {paddle.__version__} finds no GPU"
    local_size = int(params.get("local_world_size", 1)) if requested == "auto" else 1
    if devices < local_size:
        return "paddle %s finds %d GPUs for %d ranks on this node" % (paddle.__version__, devices, local_size)
    return ""


def device_of(paddle: Any, params: dict[str, Any], backend: str) -> str:
    """Return Paddle's name for the device of this rank, for `nccl` or `gloo`."""
    if backend != "nccl":
        return "cpu"
    return "gpu:%d" % (int(params.get("local_rank", 0)) % paddle.device.cuda.device_count())


def versions(paddle: Any, device: str) -> dict[str, str]:
    """Return the versions for the report; those without a value are empty."""
    on_gpu = device != "cpu"
    name = paddle.device.cuda.get_device_name(int(device.split(":")[1])) if on_gpu else ""
    return {
        "paddle": str(paddle.__version__),
        "cuda": str(paddle.version.cuda()) if on_gpu else "",
        "device": (f"{device} {name}").strip(),
    }


def join_group(
    paddle: Any, params: dict[str, Any], progress: Progress, backend: str, device: str, timeout_s: float
) -> Collectives:
    """Join the process group once all ranks are known to have connected, and run a first sum through the group.

    Rank 0 opens Paddle's store; the others wait for its port, because Paddle's client sleeps three seconds after an
    early attempt. A single rank has no group, because Paddle creates none.
    """
    world_size = int(params["world_size"])
    _set_environment(params, backend, device, timeout_s)
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


def _set_environment(params: dict[str, Any], backend: str, device: str, timeout_s: float) -> None:
    """Set the variables that `paddle.distributed.launch` would set, in place of those in the job's environment."""
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
        self._fault.corrupt(array, self._progress.collective + 1)
        self._in_place(array, label, self._dist.all_reduce)

    def broadcast(self, array: Any, root: int, label: str) -> None:
        self._in_place(array, label, lambda tensor: self._dist.broadcast(tensor, src=root), root)

    def all_gather(self, outputs: list[Any], array: Any, label: str) -> None:
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
    """Before `std::terminate` aborts this process, let its other threads run for `seconds`; they may end the process.

    Returns False if the C++ library is not the shared one of GCC; the process then aborts as before.
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

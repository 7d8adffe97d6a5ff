"""A few ordinary training steps on a learnable task, the model distributed as in the job, and checks of the result.

Exiting with 0 proves nothing: a run can end normally with weights that never changed. So the loss must fall, every
tensor must change, every rank must hold the same bits, and a single process on the same shards must arrive at the same
weights within a tolerance.

The parts are reassembled for the oracle, which compares whole tensors. `fully_shard` is used if this torch has it (2.6
on), otherwise FullyShardedDataParallel; both need an all-gather and a reduce-scatter, which old versions of Gloo lack:
then DDP is used, and reported.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from reference_trainer.common import messages

INPUTS, HIDDEN, CLASSES, BATCH = 784, 256, 10, 64
#: Ten steps at this rate bring the loss of the built-in task below half of its start and keep the weights of one
#: process within `TOLERANCE` of those of eight ranks (measured; the difference grows with the steps).
LEARNING_RATE = 0.05
MAX_COMPARED_STEPS = 10
TOLERANCE = 1e-6
#: Largest number of ranks whose training is repeated in one process; with more, that would take longer than the run.
MAX_COMPARED_RANKS = 64
#: The last losses must be below this part of the first ones.
MAX_LOSS_RATIO = 0.9


@dataclass(frozen=True)
class TrainingResult:
    """The result of the steps on this rank. `step_s` holds the wall time of each step; the first builds buckets."""

    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)


def shard(rank: int, device: Any) -> tuple[Any, Any]:
    """Return a rank's samples: float32[BATCH, INPUTS] around one centre per class, and classes int64[BATCH]."""
    import torch

    fixed = torch.Generator().manual_seed(20177)
    centres = torch.randn(CLASSES, INPUTS, generator=fixed)
    own = torch.Generator().manual_seed(1000 + rank)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=own)
    samples = centres[labels] + 0.5 * torch.randn(BATCH, INPUTS, generator=own)
    return samples.to(device), labels.to(device)


def build(device: Any) -> Any:
    """Return the model, the same on every rank."""
    import torch

    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES))
    return model.to(device)


def train(
    model: Any, data: tuple[Any, Any], steps: int, *, before: Callable[[int], Any], after: Callable[[int], Any]
) -> TrainingResult:
    """Run `steps` steps of SGD, with `before` and `after` around each. `model` is wrapped for several ranks."""
    import torch

    samples, labels = data
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    criterion = torch.nn.CrossEntropyLoss()
    losses: list[Any] = []
    step_s: list[float] = []
    for step in range(steps):
        started_at = time.monotonic()
        before(step)
        optimizer.zero_grad()
        loss = criterion(model(samples), labels)
        loss.backward()
        optimizer.step()
        if samples.is_cuda:
            torch.cuda.synchronize(samples.device)
        losses.append(loss.detach())
        after(step)
        step_s.append(time.monotonic() - started_at)
    return TrainingResult([float(loss) for loss in losses], step_s)


def first_and_last(values: list[Any], count: int) -> list[Any]:
    """Return the first and the last half of `count` items."""
    return values if len(values) <= count else values[: count // 2] + values[-(count // 2) :]


def unchanged_tensors(model: Any, device: Any) -> list[str]:
    """Return the names of the tensors of `model` that have not changed since the start."""
    import torch

    start = dict(build(device).named_parameters())
    return [name for name, tensor in model.named_parameters() if torch.equal(tensor, start[name])]


def digest(model: Any) -> str:
    """Return the SHA-256 over the bytes of every parameter, in order."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        tensor = parameter.detach().cpu().contiguous()
        found.update(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    return found.hexdigest()


@dataclass(frozen=True)
class Drift:
    """The difference between this rank's weights and rank 0's; rounding changes many elements by very little."""

    largest: float
    elements: int
    of: int


def drift(model: Any, collectives: Any) -> Drift:
    """Compare the weights of this rank with those of rank 0. All ranks call this, because rank 0 sends its own."""
    import torch

    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    first = own.clone()
    collectives.broadcast(first, 0, "weights of rank 0")
    # torch's maximum propagates NaN.
    return Drift(float((own - first).abs().max()), int((own != first).sum()), own.numel())


def difference_to_one_process(
    model: Any, world_size: int, steps: int, device: Any, after: Callable[[], Any] = lambda: None
) -> float | None:
    """Return the largest difference from one process with all shards; None if not compared."""
    import torch

    if steps > MAX_COMPARED_STEPS or world_size > MAX_COMPARED_RANKS:
        return None
    alone = build(device)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(alone.parameters(), lr=LEARNING_RATE)
    shards = [shard(rank, device) for rank in range(world_size)]
    for _ in range(steps):
        optimizer.zero_grad()
        for samples, labels in shards:
            (criterion(alone(samples), labels) / world_size).backward()
            after()
        optimizer.step()
    pairs = zip(model.parameters(), alone.parameters())
    # torch's maximum propagates NaN, Python's may lose it.
    return float(torch.stack([(a.detach() - b.detach()).abs().max() for a, b in pairs]).max())


DDP, FSDP1, FSDP2 = "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"
#: Prefix that FullyShardedDataParallel adds to the names of wrapped modules.
_FSDP_PREFIX = "_fsdp_wrapped_module."


@dataclass(frozen=True)
class ShardingChoice:
    """How the model is distributed over ranks; if that differs from the job's distribution, `note` gives the reason."""

    name: str
    note: str = ""


def choose(wanted: bool, unsupported: Sequence[str], backend: str) -> ShardingChoice:
    """Choose the wrapper of the model; `unsupported` are collectives that the backend lacks on whole tensors."""
    if not wanted:
        return ShardingChoice(DDP)
    lacking = [name for name in (messages.ALL_GATHER, messages.REDUCE_SCATTER) if name in unsupported]
    if lacking:
        return ShardingChoice(
            DDP, "{} of this torch has no {}, which sharding requires".format(backend, " and no ".join(lacking))
        )
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401

        return ShardingChoice(FSDP2)
    except ImportError:
        pass
    try:
        from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: F401

        return ShardingChoice(FSDP1)
    except ImportError as error:
        return ShardingChoice(DDP, f"this torch has no FSDP: {error}")


def wrap(choice: ShardingChoice, model: Any, world_size: int, device: Any) -> Any:
    """Wrap the model for training; every rank takes part."""
    import torch

    if choice.name == FSDP2:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (world_size,))
        for layer in model:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh) or model
    if choice.name == FSDP1:
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=device, use_orig_params=True)
    return torch.nn.parallel.DistributedDataParallel(model)


def gather_model(choice: ShardingChoice, wrapped: Any, device: Any) -> Any:
    """Return the model with all its parameters, as a plain copy; every rank takes part."""
    import torch

    if choice.name == DDP:
        return wrapped.module
    plain = build(device)
    targets = dict(plain.named_parameters())
    with torch.no_grad():
        if choice.name == FSDP2:
            for name, parameter in wrapped.named_parameters():
                targets[name].copy_(parameter.full_tensor())
            return plain
        from torch.distributed.fsdp import FullyShardedDataParallel

        with FullyShardedDataParallel.summon_full_params(wrapped, writeback=False):
            for name, parameter in wrapped.named_parameters():
                targets[name.replace(_FSDP_PREFIX, "")].copy_(parameter)
    return plain

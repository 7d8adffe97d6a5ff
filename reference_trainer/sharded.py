"""How the ranks share the model they train: each with all of it (DDP), or each with a part (FSDP), as the job does.

The parts are put together again for the oracle, which looks at whole tensors. `fully_shard` is taken where this torch
has it (2.6 on), else FullyShardedDataParallel; both need an all-gather and a reduce-scatter, which Gloo lacks in old
versions: then it is DDP, and that is said.
"""

from __future__ import annotations

from typing import Any, Sequence

from preflight.node.record import dataclass
from reference_trainer import messages, training

DDP, FSDP1, FSDP2 = "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"
#: How FullyShardedDataParallel marks the names of what it wraps.
_MARK = "_fsdp_wrapped_module."


@dataclass(frozen=True)
class Way:
    """How the model is shared, and why not as the job does it, where that is so."""

    name: str
    note: str = ""


def choose(wanted: bool, unsupported: Sequence[str], backend: str) -> Way:
    """What to wrap the model in; importing it takes a second where it is FSDP.

    Args:
        wanted: whether the job keeps a part of the model on each rank.
        unsupported: collectives that the back end does not have, or not over whole tensors.
    """
    if not wanted:
        return Way(DDP)
    lacking = [name for name in (messages.ALL_GATHER, messages.REDUCE_SCATTER) if name in unsupported]
    if lacking:
        return Way(DDP, "%s of this torch has no %s, so that it cannot shard" % (backend, " and no ".join(lacking)))
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401

        return Way(FSDP2)
    except ImportError:
        pass
    try:
        from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: F401

        return Way(FSDP1)
    except ImportError as error:
        return Way(DDP, "this torch has no FSDP: %s" % error)


def wrap(way: Way, model: Any, world_size: int, device: Any) -> Any:
    """The model as it is trained; every rank takes part."""
    import torch

    if way.name == FSDP2:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (world_size,))
        for layer in model:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh) or model
    if way.name == FSDP1:
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=device, use_orig_params=True)
    return torch.nn.parallel.DistributedDataParallel(model)


def whole(way: Way, wrapped: Any, device: Any) -> Any:
    """The model with all its parameters, as a plain one of its own; every rank takes part."""
    import torch

    if way.name == DDP:
        return wrapped.module
    plain = training.build(device)
    targets = dict(plain.named_parameters())
    with torch.no_grad():
        if way.name == FSDP2:
            for name, parameter in wrapped.named_parameters():
                targets[name].copy_(parameter.full_tensor())
            return plain
        from torch.distributed.fsdp import FullyShardedDataParallel

        with FullyShardedDataParallel.summon_full_params(wrapped, writeback=False):
            for name, parameter in wrapped.named_parameters():
                targets[name.replace(_MARK, "")].copy_(parameter)
    return plain

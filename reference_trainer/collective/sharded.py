"""The distribution of the model as in the job: each rank holds all of it (DDP) or a part (FSDP).

The parts are reassembled for the oracle, which compares whole tensors. `fully_shard` is used if this torch has it (2.6
on), otherwise FullyShardedDataParallel; both need an all-gather and a reduce-scatter, which old versions of Gloo lack:
then DDP is used, and reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from reference_trainer.collective import steps
from reference_trainer.common import messages

DDP, FSDP1, FSDP2 = "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"
#: Prefix that FullyShardedDataParallel adds to the names of what it wraps.
_FSDP_PREFIX = "_fsdp_wrapped_module."


@dataclass(frozen=True)
class ShardingChoice:
    """How the model is distributed, and why that differs from the job, if it does."""

    name: str
    note: str = ""


def choose(wanted: bool, unsupported: Sequence[str], backend: str) -> ShardingChoice:
    """Choose the wrapper of the model; importing it takes a second for FSDP.

    Args:
        wanted: whether the job keeps a part of the model on each rank.
        unsupported: collectives that the backend does not support, or not on whole tensors.
    """
    if not wanted:
        return ShardingChoice(DDP)
    lacking = [name for name in (messages.ALL_GATHER, messages.REDUCE_SCATTER) if name in unsupported]
    if lacking:
        return ShardingChoice(
            DDP, "%s of this torch has no %s, which sharding requires" % (backend, " and no ".join(lacking))
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
        return ShardingChoice(DDP, "this torch has no FSDP: %s" % error)


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
    plain = steps.build(device)
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

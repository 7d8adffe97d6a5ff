"""Where a worker finds each parameter in what it pulls from servers, and where it puts the parameter's gradient."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Sequence, Tuple

from reference_trainer.ps.client import Server
from reference_trainer.ps.memory import bytes_of
from reference_trainer.ps.plan import Plan


class Layout:
    """The pieces of every dense parameter, in the order of the plan."""

    def __init__(self, plan: Plan) -> None:
        pieces: Dict[str, List[Tuple[int, int, int, int]]] = {p.name: [] for p in plan.dense}
        for server, shards in enumerate(plan.shards):
            for shard in shards:
                for piece in shard.pieces:
                    block = piece.block
                    pieces[block.parameter].append((block.begin, block.elements, server, piece.offset))
        self._pieces = [(p.shape, sorted(pieces[p.name])) for p in plan.dense]

    def gather(self, servers: Sequence[Server]) -> List[Any]:
        """Every parameter as it was pulled last. One that lies on one server in one piece is not copied."""
        import torch

        found: List[Any] = []
        for shape, pieces in self._pieces:
            parts = [servers[server].pulled.tensor[offset : offset + size] for _, size, server, offset in pieces]
            found.append((parts[0] if len(parts) == 1 else torch.cat(parts)).view(shape))
        return found

    def scatter(self, values: Sequence[Any], servers: Sequence[Server]) -> None:
        """Put a value for every parameter (a gradient, a difference) where it is pushed from."""
        for value, (_, pieces) in zip(values, self._pieces):
            flat = value.detach().reshape(-1)
            for begin, size, server, offset in pieces:
                servers[server].pushed.tensor[offset : offset + size].copy_(flat[begin : begin + size])


def digest(tensors: Sequence[Any]) -> str:
    """SHA-256 over the bytes of these tensors, one after the other."""
    found = hashlib.sha256()
    for tensor in tensors:
        for view in bytes_of(tensor.detach().cpu().contiguous()):
            found.update(view)
    return found.hexdigest()

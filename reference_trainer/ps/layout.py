"""Where a worker finds each parameter in what it pulls from servers, and where it puts the parameter's gradient."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Sequence, Tuple

from reference_trainer.ps.client import Server
from reference_trainer.ps.memory import bytes_of
from reference_trainer.ps.plan import Plan

#: Pieces of fewer numbers are copied together: a part of a message costs as much as copying 16 KiB.
_LEAST_LENT = 4096


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
        places = {p.name: place for place, p in enumerate(plan.dense)}
        #: For each shard of each server what it is made of, in order: (place of the parameter, begin, size, offset).
        self._made_of = [
            [
                [(places[s.block.parameter], s.block.begin, s.block.elements, s.offset) for s in shard.pieces]
                for shard in shards
            ]
            for shards in plan.shards
        ]

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
        for each in servers:
            each.sends_what_is_pushed()
        for value, (_, pieces) in zip(values, self._pieces):
            flat = value.detach().reshape(-1)
            for begin, size, server, offset in pieces:
                servers[server].pushed.tensor[offset : offset + size].copy_(flat[begin : begin + size])

    def lend(self, values: Sequence[Any], servers: Sequence[Server]) -> List[Any]:
        """The same, but large values are sent from where they lie. Keep what is returned until they were sent."""
        flat = [value.detach().reshape(-1).cpu() for value in values]
        views = [bytes_of(tensor) for tensor in flat]
        for server, shards in zip(servers, self._made_of):
            for number, pieces in enumerate(shards):
                parts: List[memoryview] = []
                copied, begins = 0, 0
                for place, begin, size, offset in pieces:
                    if size >= _LEAST_LENT:
                        if copied:
                            parts.append(server.pushed.bytes_of(begins, copied))
                            copied = 0
                        parts.append(views[place][0][4 * begin : 4 * (begin + size)])
                        continue
                    begins = begins if copied else offset
                    copied += size
                    server.pushed.tensor[offset : offset + size].copy_(flat[place][begin : begin + size])
                if copied:
                    parts.append(server.pushed.bytes_of(begins, copied))
                server.outgoing[number] = parts
        return flat


def digest(tensors: Sequence[Any]) -> str:
    """SHA-256 over the bytes of these tensors, one after the other."""
    found = hashlib.sha256()
    for tensor in tensors:
        for view in bytes_of(tensor.detach().cpu().contiguous()):
            found.update(view)
    return found.hexdigest()

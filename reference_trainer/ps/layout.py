"""Where a worker finds each parameter in what it pulls from servers, and where it puts the parameter's gradient."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Optional, Sequence, Tuple

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
        made_of = [
            [
                [(places[s.block.parameter], s.block.begin, s.block.elements, s.offset) for s in shard.pieces]
                for shard in shards
            ]
            for shards in plan.shards
        ]
        self._sizes = [p.elements for p in plan.dense]
        self._sent = [[self._runs(pieces) for pieces in shards] for shards in made_of]
        #: The servers whose memory `gather` looked at last, and where in it everything lies.
        self._seen: Optional[Sequence[Server]] = None
        self._pulled: List[List[Any]] = []
        self._whole: List[Any] = []

    def gather(self, servers: Sequence[Server]) -> List[Any]:
        """Every parameter as it was pulled last. One that lies on one server in one piece is not copied."""
        import torch

        if self._seen is not servers:
            # Slicing costs more than it looks: what lies where is sliced once.
            self._seen = servers
            self._pulled = [[servers[s].pulled.tensor[o : o + n] for _, n, s, o in found] for _, found in self._pieces]
            self._whole = [
                parts[0].view(shape) if len(parts) == 1 else None
                for (shape, _), parts in zip(self._pieces, self._pulled)
            ]
        return [
            torch.cat(parts).view(shape) if whole is None else whole
            for whole, parts, (shape, _) in zip(self._whole, self._pulled, self._pieces)
        ]

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
        import torch

        flat = [value.detach().reshape(-1).cpu() for value in values]
        for server, shards in zip(servers, self._sent):
            for number, runs in enumerate(shards):
                parts: List[memoryview] = []
                for offset, size, pieces in runs:
                    if len(pieces) == 1:
                        parts += bytes_of(self._piece(flat, pieces[0]))
                        continue
                    torch.cat(
                        [self._piece(flat, piece) for piece in pieces], out=server.pushed.tensor[offset : offset + size]
                    )
                    parts.append(server.pushed.bytes_of(offset, size))
                server.outgoing[number] = parts
        return flat

    def _piece(self, flat: Sequence[Any], piece: Tuple[int, int, int]) -> Any:
        place, begin, size = piece
        return flat[place] if size == self._sizes[place] else flat[place][begin : begin + size]

    @staticmethod
    def _runs(pieces: Sequence[Tuple[int, int, int, int]]) -> List[Tuple[int, int, List[Tuple[int, int, int]]]]:
        """What is sent together: one large piece from where it lies, or small ones that are copied: offset and size."""
        runs: List[Tuple[int, int, List[Tuple[int, int, int]]]] = []
        small = False
        for place, begin, size, offset in pieces:
            if small and size < _LEAST_LENT:
                begins, length, run = runs[-1]
                runs[-1] = (begins, length + size, [*run, (place, begin, size)])
            else:
                runs.append((offset, size, [(place, begin, size)]))
            small = size < _LEAST_LENT
        return runs


def digest(tensors: Sequence[Any]) -> str:
    """SHA-256 over the bytes of these tensors, one after the other."""
    found = hashlib.sha256()
    for tensor in tensors:
        for view in bytes_of(tensor.detach().cpu().contiguous()):
            found.update(view)
    return found.hexdigest()

"""The location of each parameter in the data pulled from servers, and of its gradient in the pushed data."""

from __future__ import annotations

from typing import Any, Sequence

from reference_trainer.ps.client import Server
from reference_trainer.ps.exact import bytes_of
from reference_trainer.ps.partition import Plan

#: Smaller pieces are copied together: a part of a message costs as much as copying 16 KiB.
_MIN_LENT = 4096


class ParameterLayout:
    """The pieces of every dense parameter, in the order of the plan."""

    def __init__(self, plan: Plan) -> None:
        pieces: dict[str, list[tuple[int, int, int, int]]] = {p.name: [] for p in plan.dense}
        for server, shards in enumerate(plan.shards):
            for shard in shards:
                for piece in shard.pieces:
                    block = piece.block
                    pieces[block.parameter].append((block.begin, block.elements, server, piece.offset))
        self._pieces = [(p.shape, sorted(pieces[p.name])) for p in plan.dense]
        places = {p.name: place for place, p in enumerate(plan.dense)}
        #: The content of each shard of each server, in order: (index of the parameter, begin, size, offset).
        made_of = [
            [
                [(places[s.block.parameter], s.block.begin, s.block.elements, s.offset) for s in shard.pieces]
                for shard in shards
            ]
            for shards in plan.shards
        ]
        self._sizes = [p.elements for p in plan.dense]
        self._sent = [[self._runs(pieces) for pieces in shards] for shards in made_of]
        #: The servers whose memory `gather` used last, and the location of everything in it.
        self._seen: Sequence[Server] | None = None
        self._pulled: list[list[Any]] = []
        self._whole: list[Any] = []

    def gather(self, servers: Sequence[Server], device: Any = None) -> list[Any]:
        """Return every parameter as last pulled, perhaps on `device`; on the host, single pieces are not copied."""
        import torch

        if self._seen is not servers:
            # Slicing is slower than it looks: the slices are created once.
            self._seen = servers
            self._pulled = [[servers[s].pulled.tensor[o : o + n] for _, n, s, o in found] for _, found in self._pieces]
            self._whole = [
                parts[0].view(shape) if len(parts) == 1 else None
                for (shape, _), parts in zip(self._pieces, self._pulled)
            ]
        if device is not None and device.type != "cpu":
            # The pieces are joined there: each is copied once.
            moved = [[part.to(device, non_blocking=True) for part in parts] for parts in self._pulled]
            return [
                (parts[0] if len(parts) == 1 else torch.cat(parts)).view(shape)
                for parts, (shape, _) in zip(moved, self._pieces)
            ]
        return [
            torch.cat(parts).view(shape) if whole is None else whole
            for whole, parts, (shape, _) in zip(self._whole, self._pulled, self._pieces)
        ]

    def scatter(self, values: Sequence[Any], servers: Sequence[Server]) -> None:
        """Copy a value for every parameter (a gradient, a difference) to the buffer from which it is pushed."""
        for each in servers:
            each.send_pushed_buffer()
        on_gpu = [value.device for value in values if value.is_cuda]
        for value, (_, pieces) in zip(values, self._pieces):
            flat = value.detach().reshape(-1)
            for begin, size, server, offset in pieces:
                # From a GPU all copies are queued and awaited together.
                servers[server].pushed.tensor[offset : offset + size].copy_(
                    flat[begin : begin + size], non_blocking=bool(on_gpu)
                )
        if on_gpu:
            import torch

            torch.cuda.synchronize(on_gpu[0])

    def lend(self, values: Sequence[Any], servers: Sequence[Server]) -> list[Any]:
        """Copy values as `scatter` does, but send large ones on the host in place: keep the result until sent."""
        import torch

        if any(value.is_cuda for value in values):
            self.scatter(values, servers)
            return []
        flat = [value.detach().reshape(-1) for value in values]
        for server, shards in zip(servers, self._sent):
            for number, runs in enumerate(shards):
                parts: list[memoryview] = []
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

    def _piece(self, flat: Sequence[Any], piece: tuple[int, int, int]) -> Any:
        place, begin, size = piece
        return flat[place] if size == self._sizes[place] else flat[place][begin : begin + size]

    @staticmethod
    def _runs(pieces: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
        """Return the units of sending as offset and size: one large piece in place, or small ones to be copied."""
        runs: list[tuple[int, int, list[tuple[int, int, int]]]] = []
        small = False
        for place, begin, size, offset in pieces:
            if small and size < _MIN_LENT:
                begins, length, run = runs[-1]
                runs[-1] = (begins, length + size, [*run, (place, begin, size)])
            else:
                runs.append((offset, size, [(place, begin, size)]))
            small = size < _MIN_LENT
        return runs

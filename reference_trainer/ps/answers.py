"""What a worker that pulls is sent: all dense parameters of one server, a frame for each shard, in their order."""

from __future__ import annotations

from typing import List

from reference_trainer.ps import clocks, frames, settings
from reference_trainer.ps.frames import Header
from reference_trainer.ps.hosting import Guest, Hosting
from reference_trainer.ps.plan import Shard
from reference_trainer.ps.turns import Apart


class Answer:
    """Answers the pulls of one guest.

    The answer to a large push may go out while the push still comes in: a connection carries both directions at once,
    and a worker that only sends leaves one of them idle. `begin`, then `add` for each piece of the last shard do that;
    `complete` sends everything where that was not done.

    Args:
        apart: for copies that are large enough to be made beside the others.
    """

    def __init__(self, host: Hosting, guest: Guest, apart: Apart) -> None:
        self._host = host
        self._guest = guest
        self._apart = apart
        self._shards = host.told.plan.shards[host.told.index]
        #: It goes out already.
        self.begun = False
        #: What goes out together with the next piece.
        self._before: List[memoryview] = []

    def may_begin(self, shard: Shard) -> bool:
        """Whether the answer to a push that ends with this shard may go out while the shard comes.

        Not where a worker waits for others before it reads. Where shards must be copied first, all are copied to the
        same memory: the next one has to wait until the one before is on its way, and that may be as late as when the
        worker has sent everything.
        """
        free = self._host.told.mode in (clocks.ASYNC, clocks.GEO)
        return free and shard is self._shards[-1] and (self._quiet() or len(self._shards) == 1)

    def begin(self, clock: int) -> None:
        """Have everything ready that goes before the numbers of the last shard."""
        self.begun = True
        self._host.clocks.reads(self._guest.index, clock)
        for shard in self._shards[:-1]:
            self._before += [self._announced(shard, clock), self._host.store.view(shard)]
        self._before.append(self._announced(self._shards[-1], clock))

    def add(self, number: int) -> None:
        """This piece of the last shard is as the worker shall have it."""
        store, shard = self._host.store, self._shards[-1]
        last = number + 1 == store.pieces(shard)
        if self._quiet():
            piece = store.view_of_piece(shard, number)
        else:
            piece = self._host.slots[self._guest.index].copy_piece(store, shard, number)
        self._guest.channel.offer([*self._before, piece], whole=last)
        self._before = []

    def complete(self, clock: int) -> None:
        """Send all dense parameters as of now, unless they are on their way already."""
        if self.begun:
            self.begun = False
            return
        host, channel = self._host, self._guest.channel
        quiet = self._quiet()
        slot = host.slots[self._guest.index]
        parts: List[memoryview] = []
        for shard in self._shards:
            parts.append(self._announced(shard, clock))
            if quiet and host.store.on_host:
                parts.append(host.store.view(shard))
                continue
            self._apart.work(shard.bytes, host.store.read, shard, slot.outgoing.tensor[: shard.elements])
            parts.append(slot.outgoing.bytes_of(0, shard.elements))
            if shard.number + 1 < len(self._shards):
                # The next shard is copied to the same place.
                channel.send_all(parts)
                parts = []
        if not self._shards:
            phase = host.clocks.phase
            parts.append(memoryview(frames.encode(Header(frames.DATA, 0, self._guest.index, clock, phase=phase))))
        channel.queue(parts)

    def _announced(self, shard: Shard, clock: int) -> memoryview:
        phase, worker = self._host.clocks.phase, self._guest.index
        header = Header(frames.DATA, 0, worker, clock, shard.number, shard.elements, shard.bytes, phase)
        return memoryview(frames.encode(header))

    def _quiet(self) -> bool:
        """Nobody writes while workers of a synchronous round read, nor between the phases, nor beside a single one."""
        told = self._host.told
        between = self._host.clocks.phase in (settings.EXACT_READ, settings.READ)
        return told.mode == clocks.SYNC or told.workers == 1 or between

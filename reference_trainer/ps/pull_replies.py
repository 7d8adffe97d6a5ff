"""The reply to a worker's pull: all dense parameters of one server, one frame per shard, in order.

After the numbers of a shard follow its versions: how many pushes of each worker they contain, for each part of it.
"""

from __future__ import annotations

from typing import List

from reference_trainer.ps import clocks, frames, settings
from reference_trainer.ps.fair_lock import Released
from reference_trainer.ps.frames import Header
from reference_trainer.ps.partition import Shard
from reference_trainer.ps.server_state import ConnectedWorker, ServerState
from reference_trainer.ps.settings import Settings
from reference_trainer.ps.store import Source, parts_of


def versions_bytes(config: Settings, shard: Shard) -> int:
    """The size of the versions that follow the numbers of a shard: uint32[parts, workers]."""
    return 4 * config.workers * parts_of(shard.elements, config.stream_bytes)


class PullReply:
    """Answers the pulls of one client.

    The answer to a large push may be sent while the push is still arriving: a connection transfers in both directions
    at once, and a worker that only sends leaves one of them idle. `begin`, then `add` for each piece of the last shard,
    do that; otherwise `complete` sends everything.

    Args:
        released: for copies that are large enough to be made beside the others.
    """

    def __init__(self, host: ServerState, peer: ConnectedWorker, released: Released) -> None:
        self._host = host
        self._peer = peer
        self._released = released
        self._shards = host.config.plan.shards[host.config.index]
        #: It is already being sent.
        self.begun = False
        #: Bytes to send together with the next piece.
        self._before: List[memoryview] = []
        #: The versions of the pieces that were sent, which follow after the last one.
        self._versions = b""
        self._clock = 0

    def may_begin(self, shard: Shard) -> bool:
        """Whether the answer to a push that ends with this shard may be sent while the shard arrives.

        That is not allowed if a worker waits for others before it reads, or if shards must be copied first: all are
        copied to the same memory, so the next one has to wait until the previous one was sent, which may only happen
        after the worker has sent everything.
        """
        free = self._host.config.mode in (clocks.ASYNC, clocks.GEO)
        return free and shard is self._shards[-1] and (self._sends_in_place() or len(self._shards) == 1)

    def begin(self, clock: int) -> None:
        """Prepare everything that precedes the numbers of the last shard."""
        self.begun = True
        self._clock, self._versions = clock, b""
        store = self._host.store
        self._host.clocks.reads(self._peer.index, clock)
        for shard in self._shards[:-1]:
            versions = store.versions(shard, self._reader(clock))
            self._before += [self._announced(shard, clock), store.view(shard), memoryview(versions)]
        self._before.append(self._announced(self._shards[-1], clock))

    def add(self, number: int) -> None:
        """Record that this piece of the last shard has its final value."""
        store, shard = self._host.store, self._shards[-1]
        last = number + 1 == store.pieces(shard)
        if self._sends_in_place():
            piece = store.view_of_piece(shard, number)
            versions = store.versions(shard, self._reader(self._clock), number)
        else:
            slot = self._host.slots[self._peer.index]
            piece, versions = slot.copy_piece(store, shard, number, self._reader(self._clock))
        self._versions += versions
        after = [memoryview(self._versions)] if last else []
        self._peer.channel.offer([*self._before, piece, *after], whole=last)
        self._before = []

    def complete(self, clock: int) -> None:
        """Send all current dense parameters, unless they are already being sent."""
        if self.begun:
            self.begun = False
            return
        host, channel = self._host, self._peer.channel
        in_place = self._sends_in_place()
        slot = host.slots[self._peer.index]
        parts: List[memoryview] = []
        for shard in self._shards:
            parts.append(self._announced(shard, clock))
            if in_place:
                parts += [host.store.view(shard), memoryview(host.store.versions(shard, self._reader(clock)))]
                continue
            versions: List[bytes] = []

            def read(shard: Shard = shard, versions: List[bytes] = versions) -> None:
                into = slot.outgoing.tensor[: shard.elements]
                versions.append(host.store.read(shard, into, self._reader(clock)))

            self._released.work(shard.bytes, read)
            parts += [slot.outgoing.bytes_of(0, shard.elements), memoryview(versions[0])]
            if shard.number + 1 < len(self._shards):
                # The next shard is copied to the same memory.
                channel.send_all(parts)
                parts = []
        if not self._shards:
            phase = host.clocks.phase
            parts.append(memoryview(frames.encode(Header(frames.DATA, 0, self._peer.index, clock, phase=phase))))
        channel.queue(parts)

    def _announced(self, shard: Shard, clock: int) -> memoryview:
        phase, worker = self._host.clocks.phase, self._peer.index
        size = shard.bytes + versions_bytes(self._host.config, shard)
        header = Header(frames.DATA, 0, worker, clock, shard.number, shard.elements, size, phase)
        return memoryview(frames.encode(header))

    def _reader(self, clock: int) -> Source:
        return Source(self._peer.index, clock, self._peer.generation)

    def _sends_in_place(self) -> bool:
        """Whether weights may be sent from where they are: on the host, while nothing writes to them."""
        return self._host.store.on_host and self._has_no_writers()

    def _has_no_writers(self) -> bool:
        """Whether nothing is writing: while the workers of a synchronous round read, between phases, or with a single
        worker.
        """
        config = self._host.config
        between = self._host.clocks.phase in (settings.EXACT_READ, settings.READ)
        return config.mode == clocks.SYNC or config.workers == 1 or between

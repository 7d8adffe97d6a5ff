"""Tracks the parts of one worker's pushes at one server, also where a backup worker continues them."""

from __future__ import annotations

import json
import time
from typing import Optional, Sequence, Tuple

from reference_trainer.ps import clocks, frames, settings
from reference_trainer.ps.clocks import RunEnded
from reference_trainer.ps.fair_lock import Released
from reference_trainer.ps.frames import Channel, Header
from reference_trainer.ps.run_report import Replacement
from reference_trainer.ps.server_state import ConnectedWorker, ServerState
from reference_trainer.ps.store import Source


class PushParts:
    """Follows the pushes of one client, part by part: the rows of each table, then each shard.

    Args:
        released: for waits.
    """

    def __init__(self, host: ServerState, peer: ConnectedWorker, released: Released) -> None:
        self._host = host
        self._peer = peer
        self._released = released
        self._sync = host.config.mode == clocks.SYNC
        self._tables = len(host.config.plan.tables)
        self._shards = host.config.plan.shards[host.config.index]
        self._count = max(1, self._tables + len(self._shards))
        #: Parts before these were applied for the worker that this one replaced: (clock, parts).
        self.done_before = (-1, 0)

    def is_due(self, clock: int, part: int) -> bool:
        """Whether this part of push number `clock` is used; missing and duplicate parts are recorded.

        Raises RunEnded, and PeerError for a clock beyond the run's.
        """
        state, worker = self._host.clocks, self._peer.index
        if clock < state.clock[worker]:
            if part == 0 or part == self._count - 1:
                self._note(clock, "arrived twice; the second was not applied", part)
            return False
        if clock > state.clock[worker]:
            self.skip_to(clock)
        if self._sync:
            self._await_room(clock)
        if part < state.parts[worker]:
            if self.done_before[0] != clock or part >= self.done_before[1]:
                self._note(clock, "arrived twice; the second was not applied", part)
            return False
        if part > state.parts[worker]:
            self._record_missing(clock, part)
        return True

    def done(self, clock: int, part: int, *, last: bool) -> None:
        """Record that this part was received; the last one completes the push."""
        state, worker = self._host.clocks, self._peer.index
        state.parts[worker] = part + 1
        if last:
            self._peer.pushes += 1
            state.pushed(worker, clock)

    def arrived_at(self, clock: int) -> None:
        """Record that a worker that requests weights at `clock` has sent all pushes before it. Raises like `is_due`."""
        state = self._host.clocks
        if state.phase in (settings.EXACT, settings.TRAINING) and clock > state.clock[self._peer.index]:
            self.skip_to(clock)

    def skip_to(self, clock: int) -> None:
        """Record earlier pushes that are missing although the worker is at `clock`, so that nothing waits for them."""
        host, worker = self._host, self._peer.index
        if clock > host.config.rounds(host.steps):
            raise self._peer.protocol_error(
                "is at clock %d; there are %d pushes" % (clock, host.config.rounds(host.steps))
            )
        while host.clocks.clock[worker] < clock:
            now = host.clocks.clock[worker]
            self._await_room(now)
            if host.clocks.parts[worker] == 0:
                self._note(now, "never came")
                for part in range(self._count):
                    self._clear(now, part)
            else:
                self._record_missing(now, self._count)
            host.clocks.pushed(worker, now)

    def _await_room(self, clock: int) -> None:
        peer = self._peer

        def send_wait_notice(workers: Sequence[int]) -> None:
            send_notice_of_wait(peer.channel, workers)

        with self._released:
            peer.waited_s += self._host.clocks.await_room(peer.index, clock, send_wait_notice)

    def _record_missing(self, clock: int, part: int) -> None:
        """Record the parts before `part` as missing, and count them as zero."""
        state, worker = self._host.clocks, self._peer.index
        for missing in range(state.parts[worker], part):
            self._note(clock, "never came", missing)
            self._clear(clock, missing)
        state.parts[worker] = max(state.parts[worker], part)

    def _clear(self, clock: int, part: int) -> None:
        if self._sync and part < self._tables:
            self._host.slots[self._peer.index].held[part] = 0
            return
        # It counts as added, so that only this push is missing for those who compare.
        source = Source(self._peer.index, clock, self._peer.generation)
        self._host.store.count(part, source, tables=self._tables)

    def _note(self, clock: int, what: str, part: Optional[int] = None) -> None:
        host = self._host
        phase = "exact" if host.clocks.phase <= settings.EXACT_READ else "training"
        of = ""
        if part is not None and part < self._tables:
            of = ", rows of table %s," % host.config.plan.tables[part].name
        elif part is not None and self._shards:
            of = ", shard %d," % (part - self._tables)
        text = "push %d of worker %d to server %d (%s phase)%s %s"
        host.clocks.note(text % (clock, self._peer.index, host.config.index, phase, of, what))


_POLL_S = 0.5


def send_notice_of_wait(channel: Channel, workers: Sequence[int]) -> None:
    """Report that the reply is delayed because of these workers."""
    data = json.dumps(list(workers)).encode("ascii")
    channel.send(Header(frames.WAITING, bytes=len(data)), memoryview(data))


def await_vacancy(host: ServerState, peer: ConnectedWorker) -> None:
    """Wait as a backup worker until server 0 chooses the worker that it replaces; the backup worker tells the other
    servers.
    """
    peer.channel.limit_s = host.config.timeout_s
    while host.config.index == 0:
        with host.clocks.changed:
            if not host.over.is_set() and _vacant_index(host, peer) is None:
                host.clocks.changed.wait(_POLL_S)
        if host.clocks.ended is not None:
            raise host.clocks.ended
        if host.over.is_set():
            peer.channel.send(Header(frames.BYE))
            return
        chosen = _vacant_index(host, peer)
        if chosen is not None:
            peer.channel.send(Header(frames.TAKEOVER, 0, chosen))
            return
        send_notice_of_wait(peer.channel, [])


def _vacant_index(host: ServerState, peer: ConnectedWorker) -> Optional[int]:
    """The first vacant index, if this is the first waiting backup worker."""
    with host.lock:
        if host.vacant and host.spares and host.spares[0] is peer:
            return min(host.vacant)
    return None


def drop_worker(host: ServerState, worker: int) -> None:
    """End this worker's previous connection. Raises RunEnded if that is impossible."""
    with host.lock:
        before = host.peers.get(worker)
    if before is None:
        return
    before.channel.send_error("a backup worker replaced worker %d" % worker, frames.BECAUSE_OF_ANOTHER)
    before.channel.shut()
    if not before.gone.wait(settings.LAG_S):
        raise RunEnded("the connection of worker %d could not be closed" % worker)


def replace_worker(host: ServerState, peer: ConnectedWorker, worker: int) -> Tuple[int, int, int]:
    """Let a backup worker replace this worker: it takes over its clock, the parts of its next push that have arrived,
    and the phase.
    """
    with host.lock:
        why = host.vacant.pop(worker, "another server closed its connection")
        at_s = host.vacant_at.pop(worker, time.monotonic())
        lagged = worker in host.lagged
        host.lagged.discard(worker)
        host.peers.pop(worker, None)
        peer.index = worker
        host.peers[worker] = peer
        host.spares.remove(peer)
        state = host.clocks
        clock, parts, phase = state.clock[worker], state.parts[worker], state.phase
        left = host.left.get(worker)
        # The counts belong to the worker's index.
        peer.pushes += left.pushes if left is not None else 0
        peer.pulls += left.pulls if left is not None else 0
        peer.lookups += left.lookups if left is not None else 0
        took_s = round(time.monotonic() - at_s, 3)
        host.replaced.append(Replacement(worker, peer.host, phase, clock, why, took_s, peer.spare_index, lagged))
        host.slots[worker].last_lookup_count = [-1] * len(host.config.plan.tables)
    return clock, parts, phase

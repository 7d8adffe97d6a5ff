"""Backup workers at one server: one of them replaces a lost worker and continues its pushes."""

from __future__ import annotations

import json
import time
from typing import Optional, Sequence, Tuple

from reference_trainer.ps import frames, settings
from reference_trainer.ps.channel import Channel
from reference_trainer.ps.clocks import RunEnded
from reference_trainer.ps.frames import Header
from reference_trainer.ps.run_report import Replacement
from reference_trainer.ps.server_state import ConnectedWorker, ServerState

_POLL_S = 0.5


def send_wait_notice(channel: Channel, workers: Sequence[int]) -> None:
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
        send_wait_notice(peer.channel, [])


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
        was = left.host if left is not None else ""
        # The counts belong to the worker's index.
        peer.pushes += left.pushes if left is not None else 0
        peer.pulls += left.pulls if left is not None else 0
        peer.lookups += left.lookups if left is not None else 0
        took_s = round(time.monotonic() - at_s, 3)
        host.replaced.append(Replacement(worker, was, peer.host, phase, clock, why, took_s, peer.spare_index, lagged))
        host.slots[worker].last_lookup_count = [-1] * len(host.config.plan.tables)
    return clock, parts, phase

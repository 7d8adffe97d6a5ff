"""Spare workers at one server: they wait, one is chosen, and it goes on from where the lost worker stopped."""

from __future__ import annotations

import json
import time
from typing import Optional, Sequence, Tuple

from reference_trainer.ps import frames, settings
from reference_trainer.ps.channel import Channel
from reference_trainer.ps.clocks import Ended
from reference_trainer.ps.frames import Header
from reference_trainer.ps.hosting import Guest, Hosting
from reference_trainer.ps.report import Replacement

_LOOK_S = 0.5


def tell(channel: Channel, workers: Sequence[int]) -> None:
    """The reply takes its time, because of these workers."""
    data = json.dumps(list(workers)).encode("ascii")
    channel.send(Header(frames.WAITING, bytes=len(data)), memoryview(data))


def wait(host: Hosting, guest: Guest) -> None:
    """A spare worker waits; server 0 chooses whose place it takes, and the worker tells the other servers."""
    guest.channel.limit_s = host.told.timeout_s
    while host.told.index == 0:
        with host.clocks.changed:
            if not host.over.is_set() and _chosen(host, guest) is None:
                host.clocks.changed.wait(_LOOK_S)
        if host.clocks.ended is not None:
            raise host.clocks.ended
        if host.over.is_set():
            guest.channel.send(Header(frames.BYE))
            return
        chosen = _chosen(host, guest)
        if chosen is not None:
            guest.channel.send(Header(frames.TAKEOVER, 0, chosen))
            return
        tell(guest.channel, [])


def _chosen(host: Hosting, guest: Guest) -> Optional[int]:
    """The first vacant place, when this is the first spare worker that waits."""
    with host.lock:
        if host.vacant and host.spares and host.spares[0] is guest:
            return min(host.vacant)
    return None


def cut_off(host: Hosting, worker: int) -> None:
    """Whoever was this worker before is no more. Raises Ended where that cannot be had."""
    with host.lock:
        before = host.guests.get(worker)
    if before is None:
        return
    before.channel.say_error("a spare worker took the place of worker %d" % worker, frames.BECAUSE_OF_ANOTHER)
    before.channel.shut()
    if not before.gone.wait(settings.LAG_S):
        raise Ended("worker %d could not be cut off" % worker)


def take(host: Hosting, guest: Guest, worker: int) -> Tuple[int, int, int]:
    """A spare worker is this worker from now on: its clock, the parts of its next push that came already, the phase."""
    with host.lock:
        why = host.vacant.pop(worker, "another server gave it up")
        at_s = host.vacant_at.pop(worker, time.monotonic())
        host.guests.pop(worker, None)
        guest.index = worker
        host.guests[worker] = guest
        host.spares.remove(guest)
        state = host.clocks
        clock, parts, phase = state.clock[worker], state.parts[worker], state.phase
        left = host.left.get(worker)
        was = left.host if left is not None else ""
        # The counts are the worker's, whoever it is.
        guest.pushes += left.pushes if left is not None else 0
        guest.pulls += left.pulls if left is not None else 0
        guest.lookups += left.lookups if left is not None else 0
        took_s = round(time.monotonic() - at_s, 3)
        host.replaced.append(Replacement(worker, was, guest.host, phase, clock, why, took_s, guest.spare_index))
        host.slots[worker].asked = [-1] * len(host.told.plan.tables)
    return clock, parts, phase

"""The parts of one worker's pushes at one server: which is due, and what becomes of those that come twice or never."""

from __future__ import annotations

from typing import Optional, Sequence

from reference_trainer.ps import clocks, places, settings
from reference_trainer.ps.hosting import Guest, Hosting
from reference_trainer.ps.turns import Apart


class Parts:
    """Follows the pushes of one guest, part by part: the rows of each table, then each shard.

    Args:
        apart: for waits.
    """

    def __init__(self, host: Hosting, guest: Guest, apart: Apart) -> None:
        self._host = host
        self._guest = guest
        self._apart = apart
        self._sync = host.told.mode == clocks.SYNC
        self._tables = len(host.told.plan.tables)
        self._shards = host.told.plan.shards[host.told.index]
        self._count = max(1, self._tables + len(self._shards))
        #: Parts before these were applied for the worker whose place this one took: (clock, parts).
        self.done_before = (-1, 0)

    def is_due(self, clock: int, part: int) -> bool:
        """Whether this part of the push `clock` is to be taken; what is missing before it or comes twice is noted.

        Raises Ended, and PeerError for a clock that is beyond the run's.
        """
        state, worker = self._host.clocks, self._guest.index
        if clock < state.clock[worker]:
            if part == 0 or part == self._count - 1:
                self._note(clock, "came twice; the second was not applied", part)
            return False
        if clock > state.clock[worker]:
            self.skip_to(clock)
        if self._sync:
            self._await_room(clock)
        if part < state.parts[worker]:
            if self.done_before[0] != clock or part >= self.done_before[1]:
                self._note(clock, "came twice; the second was not applied", part)
            return False
        if part > state.parts[worker]:
            self._lacking(clock, part)
        return True

    def done(self, clock: int, part: int, *, last: bool) -> None:
        """This part was taken; with the last one the push is complete."""
        state, worker = self._host.clocks, self._guest.index
        state.parts[worker] = part + 1
        if last:
            self._guest.pushes += 1
            state.pushed(worker, clock)

    def arrived_at(self, clock: int) -> None:
        """A worker that asks for weights at `clock` has sent all pushes before it. Raises as `is_due` does."""
        state = self._host.clocks
        if state.phase in (settings.EXACT, settings.TRAINING) and clock > state.clock[self._guest.index]:
            self.skip_to(clock)

    def skip_to(self, clock: int) -> None:
        """The worker is at `clock` although not all of its pushes before came: note them, so that nobody waits."""
        host, worker = self._host, self._guest.index
        if clock > host.told.rounds(host.steps):
            raise self._guest.confused("is at clock %d; there are %d pushes" % (clock, host.told.rounds(host.steps)))
        while host.clocks.clock[worker] < clock:
            now = host.clocks.clock[worker]
            self._await_room(now)
            if host.clocks.parts[worker] == 0:
                self._note(now, "never came")
                for part in range(self._count):
                    self._clear(part)
            else:
                self._lacking(now, self._count)
            host.clocks.pushed(worker, now)

    def _await_room(self, clock: int) -> None:
        guest = self._guest

        def tell(workers: Sequence[int]) -> None:
            places.tell(guest.channel, workers)

        with self._apart:
            guest.waited_s += self._host.clocks.await_room(guest.index, clock, tell)

    def _lacking(self, clock: int, part: int) -> None:
        """Parts before `part` never came: note them, and let them count for nothing."""
        state, worker = self._host.clocks, self._guest.index
        for missing in range(state.parts[worker], part):
            self._note(clock, "never came", missing)
            self._clear(missing)
        state.parts[worker] = max(state.parts[worker], part)

    def _clear(self, part: int) -> None:
        slot = self._host.slots[self._guest.index]
        if part < self._tables:
            slot.held[part] = 0
        elif part - self._tables < len(self._shards):
            slot.part(self._shards[part - self._tables]).zero_()

    def _note(self, clock: int, what: str, part: Optional[int] = None) -> None:
        host = self._host
        phase = "exact" if host.clocks.phase <= settings.EXACT_READ else "training"
        of = ""
        if part is not None and part < self._tables:
            of = ", rows of table %s," % host.told.plan.tables[part].name
        elif part is not None and self._shards:
            of = ", shard %d," % (part - self._tables)
        told = "push %d of worker %d to server %d (%s phase)%s %s"
        host.clocks.note(told % (clock, self._guest.index, host.told.index, phase, of, what))

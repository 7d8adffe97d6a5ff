"""One worker's requests at one server, answered by a thread of its own until the worker says goodbye."""

from __future__ import annotations

import time
from typing import Sequence

from reference_trainer.ps import clocks, frames, places, settings
from reference_trainer.ps.answers import Answer
from reference_trainer.ps.channel import PeerError
from reference_trainer.ps.clocks import Ended
from reference_trainer.ps.frames import Header
from reference_trainer.ps.hosting import Guest, Hosting
from reference_trainer.ps.memory import Numbers
from reference_trainer.ps.parts import Parts
from reference_trainer.ps.plan import Shard
from reference_trainer.ps.turns import LARGE_BYTES, Apart

_SCRAP_BYTES = 1 << 20
_IDLE_S = 1.0
_MOMENT_S = 0.3


class Service:
    """Serves one guest.

    A push travels as parts in a fixed order: the rows of each table, then each shard; the last one carries the flag
    LAST. The server counts them, so that parts that never came or came twice are known, and a spare worker that begins
    the same push again does not add anything twice.
    """

    def __init__(self, host: Hosting, guest: Guest) -> None:
        self._host = host
        self._guest = guest
        self._channel = guest.channel
        self._tables = len(host.told.plan.tables)
        self._shards = host.told.plan.shards[host.told.index]
        told = host.told
        self._widths = [table.width for table in told.plan.tables]
        self._capacities = [told.capacity(told.index, table) for table in range(self._tables)]
        #: Nobody ever waits for others before reading.
        self._free = told.mode in (clocks.ASYNC, clocks.GEO)
        self._sync = told.mode == clocks.SYNC
        #: What holds for a whole phase, and for which: pushes of each worker, and what they are multiplied with.
        self._phase, self._rounds, self._factor = -1, 0, 0.0
        self._channel.turn = host.turn
        #: Around waits, and around what is large: the others go on meanwhile.
        self._apart = Apart(host.turn)
        self._parts = Parts(host, guest, self._apart)
        self._answer = Answer(host, guest, self._apart)
        self._scrap = memoryview(bytearray(_SCRAP_BYTES))

    def run(self) -> None:
        """Answer until the end. What goes wrong is told to the worker and kept for everybody."""
        host, guest = self._host, self._guest
        try:
            while not host.ready.wait(_IDLE_S):
                if host.clocks.ended is not None:
                    raise host.clocks.ended
            if not host.store.on_host:
                self._apart.least_bytes = 0
            if guest.spare:
                places.wait(host, guest)
            host.turn.acquire()
            try:
                while not guest.left:
                    self._next()
            finally:
                host.turn.release()
        except Ended as why:
            self._channel.say_error(why.text, frames.MISMATCH if why.mismatch else frames.BECAUSE_OF_ANOTHER)
        except PeerError as error:
            self._lost(error)
        except Exception as error:
            # A fault of ours must not leave the others waiting: they are told, and it is raised in the main thread.
            text = "server %d failed: %s: %s" % (host.told.index, type(error).__name__, error)
            host.clocks.end(Ended(text))
            self._channel.say_error(text, frames.BECAUSE_OF_ANOTHER)
        finally:
            guest.gone.set()
            self._channel.close()

    def _lost(self, error: PeerError) -> None:
        host, guest = self._host, self._guest
        if host.over.is_set() or guest.left:
            return
        if error.kind == "ended":
            # Another server may have told it of a loss that this one hears of in a moment: that is the reason then.
            host.clocks.await_end(_MOMENT_S)
            text = error.text
        elif error.kind == "silent":
            text = "%s has said nothing for %.1f s: it is stopped or stuck" % (guest.name(), self._channel.limit_s)
        else:
            text = "%s is gone: %s" % (guest.name(), error.text)
        if error.kind in ("confused", "silent"):
            self._channel.say_error(text)
        host.lose(guest, text)

    def _next(self) -> None:
        channel, host = self._channel, self._host
        began = time.monotonic()
        busy = settings.EXACT <= host.clocks.phase < settings.OVER and (self._guest.pulls or self._guest.pushes)
        channel.limit_s = host.patience.limit_s if busy else max(host.told.timeout_s, host.patience.limit_s)
        header = channel.receive()
        self._guest.busy_since = time.monotonic()
        if header.op == frames.PUSHPULL or header.op == frames.PUSH:
            self._push(header)
            if header.op == frames.PUSHPULL:
                self._pull(header.clock + 1)
            host.patience.note(time.monotonic() - began)
        elif header.op == frames.PULL:
            self._refuse_payload(header)
            self._pull(header.clock)
        elif header.op == frames.LOOKUP:
            self._lookup(header)
        elif header.op == frames.UPDATE:
            self._update(header)
        elif header.op == frames.BARRIER:
            self._refuse_payload(header)
            self._barrier(header)
        elif header.op == frames.WAITING:
            channel.text(header)
        elif header.op == frames.TAKEOVER:
            self._refuse_payload(header)
            self._take_place(header.worker)
        elif header.op == frames.BYE:
            self._refuse_payload(header)
            self._guest.left = True
        else:
            raise self._guest.confused("sent %s" % header.name)
        self._guest.busy_since = 0.0
        host.moved()

    def _look(self) -> None:
        """Have what holds for the present phase at hand: every part of every push asks for it."""
        host = self._host
        if host.clocks.phase != self._phase:
            self._phase, self._rounds, self._factor = host.clocks.phase, host.told.rounds(host.steps), host.factor

    def _push(self, header: Header) -> None:
        host = self._host
        if header.shard >= max(1, len(self._shards)):
            raise self._guest.confused("pushed shard %d of %d" % (header.shard, len(self._shards)))
        expected = self._shards[header.shard].bytes if self._shards else 0
        if header.bytes != expected:
            raise self._guest.confused("pushed %d bytes for a shard of %d" % (header.bytes, expected))
        part = self._tables + header.shard
        if self._begins(header, part):
            slot = host.slots[self._worker()]
            if self._shards:
                shard = self._shards[header.shard]
                if shard.bytes >= LARGE_BYTES and self._may_stream():
                    self._stream(header, shard)
                else:
                    self._channel.take(slot.view(shard))
                    host.check_push(self._guest.index, header.clock, shard)
                    if not self._sync:
                        self._apart.work(
                            shard.bytes, host.store.apply, shard, slot.part(shard), self._factor_of(header)
                        )
            self._finished(header, part)

    def _may_stream(self) -> bool:
        """Whether a push may be added while it comes, so that the adding takes no time of its own.

        Not where pushes of a round wait for each other, where they are compared first, and where a spare worker may
        send a push again that broke off in the middle.
        """
        host = self._host
        training = host.clocks.phase == settings.TRAINING
        return training and not self._sync and not host.told.spares and host.store.on_host

    def _stream(self, header: Header, shard: Shard) -> None:
        """Take a shard and add it, piece by piece: whoever reads meanwhile sees some pieces of it and not others."""
        host, factor = self._host, self._factor_of(header)
        answers = header.op == frames.PUSHPULL and self._answer.may_begin(shard)
        with self._apart:
            if answers:
                self._answer.begin(header.clock + 1)
            for number, (piece, view) in enumerate(host.slots[self._worker()].pieces(shard)):
                self._channel.take(view)
                host.store.apply_piece(shard, number, piece, factor)
                if answers:
                    self._answer.add(number)

    def _update(self, header: Header) -> None:
        host = self._host
        table = header.shard
        self._check_table(table, header)
        width = self._widths[table]
        same = header.flags & frames.SAME_ROWS
        if header.bytes != header.count * (4 * width + (0 if same else 8)):
            raise self._guest.confused(
                "updated %d rows of %d numbers with %d bytes" % (header.count, width, header.bytes)
            )
        if self._begins(header, table):
            slot = host.slots[self._worker()]
            slot.held[table] = 0
            if not same:
                self._channel.take(slot.rows[table].bytes_of(0, header.count))
            elif header.count == slot.asked[table]:
                slot.hold_looked_up(table)
            else:
                raise self._guest.confused("updated %d rows that it had not looked up" % header.count)
            self._channel.take(slot.row_numbers[table].bytes_of(0, header.count * width))
            slot.held[table] = header.count
            if not same:
                self._check_rows(slot.rows[table], header.count, table)
            if not self._sync:
                held, numbers = slot.rows_held(table), slot.row_part(table)
                self._apart.work(header.bytes, host.store.apply_rows, table, held, numbers, self._factor_of(header))
            self._finished(header, table)

    def _begins(self, header: Header, part: int) -> bool:
        """Whether this part of a push is to be taken; otherwise its payload is read and dropped."""
        self._worker()
        self._look()
        if header.clock >= self._rounds:
            raise self._guest.confused("sent push %d; there are %d" % (header.clock, self._rounds))
        return self._parts.is_due(header.clock, part) or self._drop(header)

    def _finished(self, header: Header, part: int) -> None:
        last = bool(header.flags & frames.LAST)
        self._parts.done(header.clock, part, last=last)
        if last and self._host.drill.kind:
            self._after_push(header.clock)

    def _after_push(self, clock: int) -> None:
        host = self._host
        if host.drill.due("flip", host.clocks.phase, clock) and self._shards:
            shard = self._shards[host.drill.shard % len(self._shards)]
            host.drill.kind = ""
            host.drill.flip(host.store.part(shard))
        host.drill.before_step(host.clocks.phase, clock)

    def _factor_of(self, header: Header) -> float:
        """What a part is multiplied with; it is applied once, but for the drill."""
        host = self._host
        twice = host.drill.kind and host.drill.due("double", host.clocks.phase, header.clock)
        return 2.0 * self._factor if twice else self._factor

    def _pull(self, clock: int) -> None:
        self._worker()
        self._parts.arrived_at(clock)
        self._guest.pulls += 1
        if not self._answer.begun and self._host.clocks.phase in (settings.EXACT, settings.TRAINING):
            self._await_read(clock)
        self._answer.complete(clock)

    def _lookup(self, header: Header) -> None:
        host, worker = self._host, self._worker()
        table = header.shard
        self._check_table(table, header)
        if header.bytes != header.count * 8:
            raise self._guest.confused("looked up %d rows with %d bytes" % (header.count, header.bytes))
        slot = host.slots[worker]
        slot.asked[table] = -1
        rows = slot.looked_up[table]
        self._channel.take(rows.bytes_of(0, header.count))
        wanted = rows.tensor[: header.count]
        self._check_rows(rows, header.count, table)
        slot.asked[table] = header.count
        self._parts.arrived_at(header.clock)
        self._guest.lookups += 1
        phase = host.clocks.phase
        if phase in (settings.EXACT, settings.TRAINING):
            self._await_read(header.clock)
        width = self._widths[table]
        out = slot.outgoing_rows[table]
        size = header.count * width * 4
        into = out.tensor[: header.count * width].view(header.count, width)
        self._apart.work(size, host.store.read_rows, table, wanted, into)
        reply = Header(frames.DATA, 0, worker, header.clock, table, header.count, size, phase)
        self._channel.queue([memoryview(frames.encode(reply)), out.bytes_of(0, header.count * width)])

    def _await_read(self, clock: int) -> None:
        state, worker = self._host.clocks, self._worker()
        if self._free:
            state.await_read(worker, clock, self._tell)
            return
        with self._apart:
            self._guest.waited_s += state.await_read(worker, clock, self._tell)

    def _barrier(self, header: Header) -> None:
        host, worker = self._host, self._worker()
        state = host.clocks
        if header.phase > state.phase:
            raise self._guest.confused("is at barrier %d, the server at %d" % (header.phase, state.phase))
        if header.phase == state.phase and state.phase in (settings.EXACT, settings.TRAINING):
            self._parts.skip_to(host.told.rounds(host.steps))
        with self._apart:
            self._guest.waited_s += state.barrier(worker, header.phase, self._tell, host.advance)
        self._channel.send(Header(frames.DATA, 0, worker, 0, phase=header.phase + 1))

    def _take_place(self, worker: int) -> None:
        """This spare worker is worker `worker` from now on."""
        host, guest = self._host, self._guest
        if not guest.spare or guest.index >= 0 or worker >= host.told.workers:
            raise self._guest.confused("wants the place of worker %d" % worker)
        with self._apart:
            places.cut_off(host, worker)
        clock, parts, phase = places.take(host, guest, worker)
        self._parts.done_before = (clock, parts)
        self._channel.send(Header(frames.TAKEOVER, 0, worker, clock, 0, parts, phase=phase))

    def _tell(self, workers: Sequence[int]) -> None:
        """The reply takes its time, because of these workers."""
        places.tell(self._channel, workers)

    def _worker(self) -> int:
        if self._guest.index < 0:
            raise self._guest.confused("has no place and asks all the same")
        return self._guest.index

    def _check_table(self, table: int, header: Header) -> None:
        if table >= self._tables:
            raise self._guest.confused("speaks of table %d of %d" % (table, self._tables))
        most = self._capacities[table]
        if header.count > most:
            raise self._guest.confused("speaks of %d rows of a table; at most %d are taken" % (header.count, most))

    def _check_rows(self, rows: Numbers, count: int, table: int) -> None:
        if not self._host.store.place_is_here(rows, count, table):
            raise self._guest.confused("speaks of rows that are not sorted, not distinct or not here")

    def _refuse_payload(self, header: Header) -> None:
        if header.bytes:
            raise self._guest.confused("sent a payload with %s" % header.name)

    def _drop(self, header: Header) -> bool:
        left = header.bytes
        while left:
            size = min(left, _SCRAP_BYTES)
            self._channel.take(self._scrap[:size])
            left -= size
        return False

"""Answers the requests of one worker at one server, in its own thread: parts of its pushes, and replies to its pulls.

The numbers of a shard are followed by its versions: how many pushes of each worker they contain, for each part of it.
"""

from __future__ import annotations

import json
import time
from typing import Any, Sequence

from reference_trainer.ps import clocks, frames, settings
from reference_trainer.ps.clocks import RunEnded
from reference_trainer.ps.exact import HostTensor, Source, parts_of
from reference_trainer.ps.frames import Channel, Header, PeerError, Released
from reference_trainer.ps.partition import Shard
from reference_trainer.ps.run_report import Replacement
from reference_trainer.ps.server_state import ConnectedWorker, ServerState
from reference_trainer.ps.settings import Settings


def versions_bytes(config: Settings, shard: Shard) -> int:
    """Return the size of the versions that follow the numbers of a shard: uint32[parts, workers]."""
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
        self._before: list[memoryview] = []
        #: The versions of the pieces that were sent, which follow after the last one.
        self._versions = b""
        self._clock = 0

    def may_begin(self, shard: Shard) -> bool:
        """Return whether the answer to a push that ends with this shard may be sent while the shard arrives.

        That is not allowed if a worker waits for others before it reads, or if shards must be copied first. All shards
        are copied to the same memory, so that each copy waits until the previous one was sent, and that may only happen
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
            self._before += [self._announce(shard, clock), store.view(shard), memoryview(versions)]
        self._before.append(self._announce(self._shards[-1], clock))

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
        parts: list[memoryview] = []
        for shard in self._shards:
            parts.append(self._announce(shard, clock))
            if in_place:
                parts += [host.store.view(shard), memoryview(host.store.versions(shard, self._reader(clock)))]
                continue
            versions: list[bytes] = []

            def read(shard: Shard = shard, versions: list[bytes] = versions) -> None:
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

    def _announce(self, shard: Shard, clock: int) -> memoryview:
        phase, worker = self._host.clocks.phase, self._peer.index
        size = shard.bytes + versions_bytes(self._host.config, shard)
        header = Header(frames.DATA, 0, worker, clock, shard.number, shard.elements, size, phase)
        return memoryview(frames.encode(header))

    def _reader(self, clock: int) -> Source:
        return Source(self._peer.index, clock, self._peer.generation)

    def _sends_in_place(self) -> bool:
        """Return whether weights may be sent directly from the store, which must be on the host and without writers."""
        return self._host.store.on_host and self._has_no_writers()

    def _has_no_writers(self) -> bool:
        """Return whether nothing writes: during a synchronous round's reads, between phases, with one worker."""
        config = self._host.config
        between = self._host.clocks.phase in (settings.EXACT_READ, settings.READ)
        return config.mode == clocks.SYNC or config.workers == 1 or between


class PushParts:
    """Follows the pushes of one client, part by part: the rows of each table, then each shard."""

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
        """Return whether part `part` of push `clock` is used, recording missing ones. Raises RunEnded or PeerError."""
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
        """Record earlier pushes as missing if the worker is already at `clock`, so that nothing waits for them."""
        host, worker = self._host, self._peer.index
        if clock > host.config.rounds(host.steps):
            raise self._peer.protocol_error(
                f"is at clock {clock}, but there are only {host.config.rounds(host.steps)} pushes"
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

    def _note(self, clock: int, what: str, part: int | None = None) -> None:
        host = self._host
        phase = "exact" if host.clocks.phase <= settings.EXACT_READ else "training"
        of = ""
        if part is not None and part < self._tables:
            of = f", rows of table {host.config.plan.tables[part].name},"
        elif part is not None and self._shards:
            of = f", shard {part - self._tables},"
        text = "push %d of worker %d to server %d (%s phase)%s %s"
        host.clocks.note(text % (clock, self._peer.index, host.config.index, phase, of, what))


_POLL_S = 0.5


def send_notice_of_wait(channel: Channel, workers: Sequence[int]) -> None:
    """Report that the reply is delayed because of these workers."""
    data = json.dumps(list(workers)).encode("ascii")
    channel.send(Header(frames.WAITING, bytes=len(data)), memoryview(data))


def await_vacancy(host: ServerState, peer: ConnectedWorker) -> None:
    """Wait as a backup worker until server 0 chooses the worker to replace; it then tells the other servers."""
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


def _vacant_index(host: ServerState, peer: ConnectedWorker) -> int | None:
    """Return the first vacant index if this is the first waiting backup worker; otherwise None."""
    with host.lock:
        if host.vacant and host.spares and host.spares[0] is peer:
            return min(host.vacant)
    return None


def drop_worker(host: ServerState, worker: int) -> None:
    """End the previous connection of this worker. Raises RunEnded if that is impossible."""
    with host.lock:
        before = host.peers.get(worker)
    if before is None:
        return
    before.channel.send_error(f"a backup worker replaced worker {worker}", frames.BECAUSE_OF_ANOTHER)
    before.channel.shut()
    if not before.gone.wait(settings.LAG_S):
        raise RunEnded(f"the connection of worker {worker} could not be closed")


def replace_worker(host: ServerState, peer: ConnectedWorker, worker: int) -> tuple[int, int, int]:
    """Let a backup worker take over this worker's clock, phase, and the received parts of its next push."""
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


_SCRAP_BYTES = 1 << 20
_IDLE_S = 1.0
_MOMENT_S = 0.3


class ConnectionHandler:
    """Serves one client.

    A push consists of parts in a fixed order: the rows of each table, then each shard; the last one carries the flag
    LAST. The server counts them, so that missing and duplicate parts are known, and a backup worker that repeats a push
    does not add anything twice.
    """

    def __init__(self, host: ServerState, peer: ConnectedWorker) -> None:
        self._host = host
        self._peer = peer
        self._channel = peer.channel
        self._tables = len(host.config.plan.tables)
        self._shards = host.config.plan.shards[host.config.index]
        config = host.config
        self._widths = [table.width for table in config.plan.tables]
        self._capacities = [config.capacity(config.index, table) for table in range(self._tables)]
        #: Whether no read ever waits for others.
        self._never_waits = config.mode in (clocks.ASYNC, clocks.GEO)
        self._sync = config.mode == clocks.SYNC
        #: Values that are constant in a phase, and the phase: pushes of each worker, and their factor.
        self._phase, self._rounds, self._factor = -1, 0, 0.0
        self._channel.turn = host.turn
        #: Released around waits and large operations: the others continue meanwhile.
        self._released = Released(host.turn)
        self._parts = PushParts(host, peer, self._released)
        self._answer = PullReply(host, peer, self._released)
        self._scrap = memoryview(bytearray(_SCRAP_BYTES))

    def run(self) -> None:
        """Answer requests until the worker leaves. An error is sent to the worker and recorded for all."""
        host, peer = self._host, self._peer
        try:
            while not host.ready.wait(_IDLE_S):
                if host.clocks.ended is not None:
                    raise host.clocks.ended
            if not host.store.on_host:
                self._released.least_bytes = 0
            if peer.spare:
                await_vacancy(host, peer)
            host.turn.acquire()
            try:
                while not peer.left:
                    self._handle_next()
            finally:
                host.turn.release()
        except RunEnded as why:
            self._channel.send_error(why.text, frames.MISMATCH if why.mismatch else frames.BECAUSE_OF_ANOTHER)
        except PeerError as error:
            self._lost(error)
        except Exception as error:
            # After a bug here, the others are notified so that they do not wait; the main thread raises the error.
            text = f"server {host.config.index} failed: {type(error).__name__}: {error}"
            host.clocks.end(RunEnded(text))
            self._channel.send_error(text, frames.BECAUSE_OF_ANOTHER)
        finally:
            peer.gone.set()
            self._channel.close()

    def _lost(self, error: PeerError) -> None:
        host, peer = self._host, self._peer
        if host.over.is_set() or peer.left:
            return
        if error.kind == "ended":
            # Another server may have reported a loss to the worker that this server learns of a moment later: then that
            # loss is the reason.
            host.clocks.await_end(_MOMENT_S)
            text = error.text
        elif error.kind == "silent":
            text = f"{peer.name()} has sent nothing for {self._channel.limit_s:.1f} s: it is stopped or stuck"
        else:
            text = f"{peer.name()} is gone: {error.text}"
        if error.kind in ("protocol_error", "silent"):
            self._channel.send_error(text)
        host.lose(peer, text)

    def _handle_next(self) -> None:
        channel, host = self._channel, self._host
        started_at = time.monotonic()
        busy = settings.EXACT <= host.clocks.phase < settings.OVER and (self._peer.pulls or self._peer.pushes)
        channel.limit_s = host.reply_timeout.limit_s if busy else max(host.config.timeout_s, host.reply_timeout.limit_s)
        header = channel.receive()
        self._peer.busy_since = time.monotonic()
        if header.op == frames.PUSHPULL or header.op == frames.PUSH:
            self._push(header)
            if header.op == frames.PUSHPULL:
                self._pull(header.clock + 1)
            host.reply_timeout.note(time.monotonic() - started_at)
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
        elif header.op == frames.HISTORY:
            self._refuse_payload(header)
            self._history()
        elif header.op == frames.WAITING:
            channel.text(header)
        elif header.op == frames.TAKEOVER:
            self._refuse_payload(header)
            self._replace_worker(header.worker)
        elif header.op == frames.BYE:
            self._refuse_payload(header)
            self._peer.left = True
        else:
            raise self._peer.protocol_error(f"sent {header.name}")
        self._peer.busy_since = 0.0
        host.on_progress()

    def _cache_phase(self) -> None:
        """Cache the constants of the current phase: every part of every push needs them."""
        host = self._host
        if host.clocks.phase != self._phase:
            self._phase, self._rounds, self._factor = host.clocks.phase, host.config.rounds(host.steps), host.factor

    def _push(self, header: Header) -> None:
        host = self._host
        if header.shard >= max(1, len(self._shards)):
            raise self._peer.protocol_error(f"pushed shard {header.shard} of {len(self._shards)}")
        expected = self._shards[header.shard].bytes if self._shards else 0
        if header.bytes != expected:
            raise self._peer.protocol_error(f"pushed {header.bytes} bytes for a shard of {expected}")
        part = self._tables + header.shard
        if self._accepts_part(header, part):
            slot = host.slots[self._worker()]
            if self._shards:
                shard = self._shards[header.shard]
                if shard.bytes >= host.config.stream_bytes and self._may_stream():
                    self._stream(header, shard)
                else:
                    self._channel.read_payload(slot.view(shard))
                    host.check_push(self._peer.index, header.clock, shard)
                    self._released.work(
                        shard.bytes,
                        host.store.apply,
                        shard,
                        slot.part(shard),
                        self._factor_of(header),
                        self._source(header.clock),
                    )
            self._finished(header, part)

    def _may_stream(self) -> bool:
        """Return whether a push may be added while it arrives: not if a backup worker may repeat it."""
        return not self._host.config.spares

    def _source(self, clock: int) -> Source:
        return Source(self._peer.index, clock, self._peer.generation)

    def _stream(self, header: Header, shard: Shard) -> None:
        """Read a shard and add it piece by piece; a concurrent reader may see some pieces but not others."""
        host, factor = self._host, self._factor_of(header)
        answers = header.op == frames.PUSHPULL and self._answer.may_begin(shard)
        checked: list[Any] | None = [] if host.checked and host.clocks.phase == settings.EXACT else None
        with self._released:
            if answers:
                self._answer.begin(header.clock + 1)
            slot = host.slots[self._worker()]
            for number, (piece, view) in enumerate(slot.pieces(shard)):
                slot.free_piece(number)
                self._channel.read_payload(view)
                if checked is not None:
                    checked.append(piece.clone())
                host.store.apply_piece(shard, number, piece, factor, self._source(header.clock))
                slot.piece_queued(host.store, number)
                if answers:
                    self._answer.add(number)
            for number in range(len(slot.pieces(shard))):
                slot.free_piece(number)
            if checked is not None:
                host.check_received(self._peer.index, header.clock, shard, _join_views(checked))

    def _update(self, header: Header) -> None:
        host = self._host
        table = header.shard
        self._check_table(table, header)
        width = self._widths[table]
        same = header.flags & frames.SAME_ROWS
        if header.bytes != header.count * (4 * width + (0 if same else 8)):
            raise self._peer.protocol_error(f"updated {header.count} rows of {width} numbers with {header.bytes} bytes")
        if self._accepts_part(header, table):
            slot = host.slots[self._worker()]
            slot.held[table] = 0
            if not same:
                self._channel.read_payload(slot.rows[table].bytes_of(0, header.count))
            elif header.count == slot.last_lookup_count[table]:
                slot.use_looked_up_rows(table)
            else:
                raise self._peer.protocol_error(f"updated {header.count} rows without having looked them up")
            self._channel.read_payload(slot.row_numbers[table].bytes_of(0, header.count * width))
            slot.held[table] = header.count
            if not same:
                self._check_rows(slot.rows[table], header.count, table)
            if not self._sync:
                held, numbers = slot.rows_held(table), slot.row_part(table)
                self._released.work(
                    header.bytes,
                    host.store.apply_rows,
                    table,
                    held,
                    numbers,
                    self._factor_of(header),
                    self._source(header.clock),
                )
            self._finished(header, table)

    def _accepts_part(self, header: Header, part: int) -> bool:
        """Return whether the part of a push is used. If it is not, its payload is read and dropped."""
        self._worker()
        self._cache_phase()
        if header.clock >= self._rounds:
            raise self._peer.protocol_error(f"sent push {header.clock}, but there are only {self._rounds}")
        return self._parts.is_due(header.clock, part) or self._drop(header)

    def _finished(self, header: Header, part: int) -> None:
        last = bool(header.flags & frames.LAST)
        self._parts.done(header.clock, part, last=last)
        if last and self._host.fault.kind:
            self._after_push(header.clock)

    def _after_push(self, clock: int) -> None:
        host = self._host
        if host.fault.due("flip", host.clocks.phase, clock) and self._shards:
            shard = self._shards[host.fault.shard % len(self._shards)]
            host.fault.kind = ""
            host.fault.flip(host.store.part(shard))
        host.fault.before_step(host.clocks.phase, clock)

    def _factor_of(self, header: Header) -> float:
        """Return the factor of a part; it is applied once, except for an injected fault."""
        host = self._host
        twice = host.fault.kind and host.fault.due("double", host.clocks.phase, header.clock)
        return 2.0 * self._factor if twice else self._factor

    def _pull(self, clock: int) -> None:
        self._worker()
        self._parts.arrived_at(clock)
        self._peer.pulls += 1
        if not self._answer.begun and self._host.clocks.phase in (settings.EXACT, settings.TRAINING):
            self._await_read(clock)
        self._answer.complete(clock)

    def _lookup(self, header: Header) -> None:
        host, worker = self._host, self._worker()
        table = header.shard
        self._check_table(table, header)
        if header.bytes != header.count * 8:
            raise self._peer.protocol_error(f"looked up {header.count} rows with {header.bytes} bytes")
        slot = host.slots[worker]
        slot.last_lookup_count[table] = -1
        rows = slot.looked_up[table]
        self._channel.read_payload(rows.bytes_of(0, header.count))
        wanted = rows.tensor[: header.count]
        self._check_rows(rows, header.count, table)
        slot.last_lookup_count[table] = header.count
        self._parts.arrived_at(header.clock)
        self._peer.lookups += 1
        phase = host.clocks.phase
        if phase in (settings.EXACT, settings.TRAINING):
            self._await_read(header.clock)
        width = self._widths[table]
        out = slot.outgoing_rows[table]
        size = header.count * width * 4
        into = out.tensor[: header.count * width].view(header.count, width)
        versions: list[bytes] = []

        def read() -> None:
            versions.append(host.store.read_rows(table, wanted, into, self._source(header.clock)))

        self._released.work(size, read)
        reply = Header(frames.DATA, 0, worker, header.clock, table, header.count, size + len(versions[0]), phase)
        parts = [memoryview(frames.encode(reply)), out.bytes_of(0, header.count * width), memoryview(versions[0])]
        self._channel.queue(parts)

    def _history(self) -> None:
        """Send the order of all pushes and reads of the training."""
        data = self._host.history
        self._channel.send(
            Header(frames.DATA, 0, self._worker(), bytes=len(data)), *([memoryview(data)] if data else [])
        )

    def _await_read(self, clock: int) -> None:
        state, worker = self._host.clocks, self._worker()
        if self._never_waits:
            state.await_read(worker, clock, self._on_wait)
            return
        with self._released:
            self._peer.waited_s += state.await_read(worker, clock, self._on_wait)

    def _barrier(self, header: Header) -> None:
        host, worker = self._host, self._worker()
        state = host.clocks
        if header.phase > state.phase:
            raise self._peer.protocol_error(f"is at barrier {header.phase}, but the server is at {state.phase}")
        if header.phase == state.phase and state.phase in (settings.EXACT, settings.TRAINING):
            self._parts.skip_to(host.config.rounds(host.steps))
        with self._released:
            self._peer.waited_s += state.barrier(worker, header.phase, self._on_wait, host.advance)
        self._channel.send(Header(frames.DATA, 0, worker, 0, phase=header.phase + 1))

    def _replace_worker(self, worker: int) -> None:
        """Make this backup worker replace worker `worker`."""
        host, peer = self._host, self._peer
        if not peer.spare or peer.index >= 0 or worker >= host.config.workers:
            raise self._peer.protocol_error(f"requested to replace worker {worker}")
        with self._released:
            drop_worker(host, worker)
        clock, parts, phase = replace_worker(host, peer, worker)
        self._parts.done_before = (clock, parts)
        self._channel.send(Header(frames.TAKEOVER, 0, worker, clock, 0, parts, phase=phase))

    def _on_wait(self, workers: Sequence[int]) -> None:
        """Report that the reply is delayed because of these workers."""
        send_notice_of_wait(self._channel, workers)

    def _worker(self) -> int:
        if self._peer.index < 0:
            raise self._peer.protocol_error("sent a request before replacing a worker")
        return self._peer.index

    def _check_table(self, table: int, header: Header) -> None:
        if table >= self._tables:
            raise self._peer.protocol_error(f"named table {table} of {self._tables}")
        most = self._capacities[table]
        if header.count > most:
            raise self._peer.protocol_error(f"named {header.count} rows of a table; at most {most} are accepted")

    def _check_rows(self, rows: HostTensor, count: int, table: int) -> None:
        if not self._host.store.holds_rows(rows, count, table):
            raise self._peer.protocol_error("named rows that are not sorted, not distinct or not on this server")

    def _refuse_payload(self, header: Header) -> None:
        if header.bytes:
            raise self._peer.protocol_error(f"sent a payload with {header.name}")

    def _drop(self, header: Header) -> bool:
        left = header.bytes
        while left:
            size = min(left, _SCRAP_BYTES)
            self._channel.read_payload(self._scrap[:size])
            left -= size
        return False


def _join_views(pieces: list[Any]) -> Any:
    import torch

    return torch.cat(pieces)

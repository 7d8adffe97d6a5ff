"""A worker's side of all servers at once: pull, look up, push, meet at barriers; counts waits and round trips."""

from __future__ import annotations

import functools
import json
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from reference_trainer.ps import frames, settings
from reference_trainer.ps.channel import Channel, PeerError
from reference_trainer.ps.drills import Drill
from reference_trainer.ps.frames import Header
from reference_trainer.ps.memory import Numbers, bytes_of, empty
from reference_trainer.ps.settings import Settings

_ALIVE_S = 1.0


class Server:
    """One server: the connection, and memory for what comes from it and goes to it."""

    def __init__(self, channel: Channel, told: Settings, index: int) -> None:
        self.channel = channel
        self.index = index
        self.shards = told.plan.shards[index]
        elements = told.plan.elements_of(index)
        self.pulled = Numbers(elements)
        self.pushed = Numbers(elements)
        #: What is pushed for each shard, in parts: of `pushed`, or of a gradient where it lies.
        self.outgoing: List[List[memoryview]] = [[] for _ in self.shards]
        self.sends_what_is_pushed()
        #: The rows of each table that this server was asked for last.
        self.looked_up: Dict[int, Any] = {}
        self.round_trips = 0
        self.waited_s = 0.0
        #: Pushes of this phase that the server has already, from the worker whose place this one took.
        self.has_phase = settings.JOINING
        self.has_clock = 0

    def sends_what_is_pushed(self) -> None:
        """The next pushes are what stands in `pushed`."""
        self.outgoing[:] = [[self.pushed.bytes_of(shard.begin, shard.elements)] for shard in self.shards]


class Rows:
    """The rows of one table in one exchange: for each server its distinct row numbers and their places in the whole."""

    def __init__(self, rows: Any, servers: int) -> None:
        self.rows = rows
        self.mine: List[Tuple[Any, Any]] = []
        for server in range(servers):
            if servers == 1:
                self.mine.append((rows, None))
                continue
            places = (rows.remainder(servers) == server).nonzero().flatten()
            self.mine.append((rows[places].contiguous(), places))


class Client:
    """All servers of a run, as one worker speaks to them.

    Args:
        index: whose worker this is; a spare one sets it when it takes a place.
        wait: hears which servers make this worker wait longer than a moment; of none when it goes on.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        told: Settings,
        drill: Drill,
        *,
        index: int,
        wait: Callable[[Sequence[int]], None] = lambda servers: None,
    ) -> None:
        self.told = told
        self.index = index
        self.phase = settings.JOINING
        self.servers = [Server(channel, told, number) for number, channel in enumerate(channels)]
        self.patience = settings.Patience(told.least_limit_s)
        self._drill = drill
        self._wait = wait
        self._tables = told.plan.tables
        #: Rows of each table that each server takes at once.
        self._capacities = [[told.capacity(s, t) for t in range(len(self._tables))] for s in range(len(channels))]
        self._alive_s = 0.0
        #: No server has anything of this worker yet.
        self._all_begin = True
        #: What queued frames point to.
        self._kept: List[Any] = []
        for server in self.servers:
            server.channel.noticed = functools.partial(self._noticed, server.index)

    def _noticed(self, server: int, lasts: bool) -> None:
        """One server keeps this worker waiting, or does so no more."""
        self._wait([server] if lasts else [])
        if lasts:
            self._keep_alive(self.servers[server])

    def pull(self, clock: int) -> None:
        """All dense parameters as of now, into each server's `pulled`."""
        self.ask_dense(clock)
        self.receive_dense()

    def ask_dense(self, clock: int) -> None:
        """Send for all dense parameters; `receive_dense` takes the replies."""
        for server in self._concerned():
            server.channel.send(Header(frames.PULL, 0, self.index, clock, phase=self.phase))

    def flush(self) -> None:
        """Send to all servers what is queued, before the first reply is waited for."""
        for server in self._concerned():
            server.channel.flush()

    def receive_dense(self) -> None:
        """The replies to a pull that was sent for already."""
        self.flush()
        for server in self._concerned():
            if not server.shards:
                self._reply(server, 0, 0)
            for shard in server.shards:
                self._reply(server, shard.number, shard.bytes)
                server.channel.take(server.pulled.bytes_of(shard.begin, shard.elements))

    def lookup(self, table: int, rows: Rows, clock: int) -> Any:
        """The values of distinct rows: float32[n, width], in the order of `rows.rows`."""
        self.ask_rows(table, rows, clock)
        return self.receive_rows(table, rows)

    def receive_rows(self, table: int, rows: Rows) -> Any:
        """The reply to rows that were asked for already."""
        self.flush()
        width = self._tables[table].width
        whole, views = empty(int(rows.rows.numel()), width)
        for server in self._concerned():
            mine, places = rows.mine[server.index]
            self._reply(server, table, int(mine.numel()) * width * 4)
            part = whole
            if places is not None:
                part, views = empty(int(mine.numel()), width)
            for view in views:
                server.channel.take(view)
            if places is not None:
                whole[places] = part
        return whole

    def ask_rows(self, table: int, rows: Rows, clock: int) -> None:
        """Send for rows; `receive_rows` takes the reply."""
        for server in self._concerned():
            mine = rows.mine[server.index][0]
            count = int(mine.numel())
            if count > self._capacities[server.index][table]:
                raise ValueError("%d rows of table %s at once are too many" % (count, self._tables[table].name))
            header = Header(frames.LOOKUP, 0, self.index, clock, table, count, count * 8, self.phase)
            server.channel.queue([memoryview(frames.encode(header)), *bytes_of(mine)])
            server.looked_up[table] = mine

    def push(
        self, clock: int, rows: Sequence[Rows], row_numbers: Sequence[Any], *, flags: int = 0, pull: bool = False
    ) -> None:
        """Everybody's `pushed` and these rows; with `pull` the reply is left to `receive_dense`."""
        self._kept = []
        for server in self._concerned():
            if (self.phase, clock) < (server.has_phase, server.has_clock):
                if pull:
                    server.channel.send(Header(frames.PULL, 0, self.index, clock + 1, phase=self.phase))
                continue
            self._push_one(server, clock, rows, row_numbers, flags, pull)

    def _push_one(
        self,
        server: Server,
        clock: int,
        rows: Sequence[Rows],
        row_numbers: Sequence[Any],
        flags: int,
        pull: bool,
    ) -> None:
        frames_: List[List[memoryview]] = []
        keep: List[Any] = []
        shards = server.shards
        for table, (part, numbers) in enumerate(zip(rows, row_numbers)):
            mine, places = part.mine[server.index]
            chosen = (numbers if places is None else numbers[places]).contiguous()
            count = int(mine.numel())
            last = frames.LAST if not shards and table == len(rows) - 1 else 0
            # The server still has the row numbers that it was asked for last.
            same = frames.SAME_ROWS if server.looked_up.get(table) is mine else 0
            size = count * 4 * self._tables[table].width + (0 if same else count * 8)
            header = Header(frames.UPDATE, flags | last | same, self.index, clock, table, count, size, self.phase)
            numbered = () if same else bytes_of(mine)
            frames_.append([memoryview(frames.encode(header)), *numbered, *bytes_of(chosen)])
            keep.append(chosen)
        for shard in shards:
            last = shard.number == len(shards) - 1
            op = frames.PUSHPULL if pull and last else frames.PUSH
            flag = flags | (frames.LAST if last else 0)
            header = Header(op, flag, self.index, clock, shard.number, shard.elements, shard.bytes, self.phase)
            frames_.append([memoryview(frames.encode(header)), *server.outgoing[shard.number]])
        if not frames_:
            header = Header(frames.PUSH, flags | frames.LAST, self.index, clock, phase=self.phase)
            frames_.append([memoryview(frames.encode(header))])
        if self._drill.kind:
            frames_ = self._drilled(server, clock, frames_)
        parts = [view for frame in frames_ for view in frame]
        if pull and not (shards and frames_):
            parts.append(memoryview(frames.encode(Header(frames.PULL, 0, self.index, clock + 1, phase=self.phase))))
        server.channel.queue(parts)
        # Everything pushed lies in memory that is written again for the next push; only a pull makes sure of an answer
        # before that.
        if not pull:
            server.channel.flush()
        self._kept.append(keep)

    def _drilled(self, server: Server, clock: int, parts: List[List[memoryview]]) -> List[List[memoryview]]:
        """The same frames with the fault that is asked for."""
        drill = self._drill
        if drill.server != server.index:
            return parts
        if drill.due("loss", self.phase, clock):
            return []
        if drill.due("double", self.phase, clock):
            return parts + [list(frame) for frame in parts]
        if drill.due("flip", self.phase, clock) and server.shards:
            shard = server.shards[drill.shard % len(server.shards)]
            drill.flip(server.pushed.tensor[shard.begin : shard.begin + shard.elements])
        if drill.mid_push:
            views = [view for frame in parts for view in frame]
            whole = b"".join(bytes(view) for view in views)
            server.channel.send_all([memoryview(whole[: len(whole) // 2])])
            drill.strike(self.phase, clock)
            return [[memoryview(whole[len(whole) // 2 :])]]
        return parts

    def barrier(self, phase: int) -> None:
        """Wait until all workers are here, at every server; the next phase begins."""
        for server in self._concerned():
            server.channel.send(Header(frames.BARRIER, 0, self.index, 0, phase=phase))
        for server in self._concerned():
            self._reply(server, 0, 0)
        self.phase = phase + 1

    def goodbye(self) -> None:
        """Leave. Servers that do not hear it any more do not matter."""
        for server in self.servers:
            try:
                server.channel.send(Header(frames.BYE, 0, max(0, self.index)))
            except PeerError:
                pass

    def give_up(self, text: str) -> None:
        """Tell all servers why this worker ends."""
        for server in self.servers:
            server.channel.say_error(text)

    def close(self) -> None:
        """Give all connections up."""
        for server in self.servers:
            server.channel.close()

    def await_place(self) -> Optional[int]:
        """A spare worker's wait: the worker whose place it is to take, or None when the run ended without."""
        first = self.servers[0]
        while True:
            self._wait([0])
            header = first.channel.receive(time.monotonic() + self.told.timeout_s)
            if header.op == frames.WAITING:
                first.channel.text(header)
                self._keep_alive(first)
                continue
            if header.op == frames.BYE:
                return None
            if header.op != frames.TAKEOVER:
                raise self._unexpected(first, header)
            return header.worker

    def take_place(self, worker: int) -> Tuple[int, int]:
        """Become `worker` at every server; returns the phase and clock from which on something is missing."""
        self._all_begin = False
        for server in self.servers:
            server.channel.send(Header(frames.TAKEOVER, 0, worker))
        for server in self.servers:
            while True:
                header = server.channel.receive()
                if header.op != frames.WAITING:
                    break
                server.channel.text(header)
            if header.op != frames.TAKEOVER or header.worker != worker:
                raise self._unexpected(server, header)
            server.has_phase, server.has_clock = header.phase, header.clock
        self.index = worker
        return min((server.has_phase, server.has_clock) for server in self.servers)

    def _concerned(self) -> List[Server]:
        """The servers that have not left this phase behind already (some may have, when a spare worker comes in)."""
        if self._all_begin:
            return self.servers
        return [server for server in self.servers if server.has_phase <= self.phase]

    def _reply(self, server: Server, shard: int, size: int) -> None:
        """The header of the next reply, which must be this one."""
        channel = server.channel
        channel.limit_s = self.patience.limit_s if self.phase > settings.JOINING else self.told.timeout_s
        began = time.monotonic()
        while True:
            header = channel.receive()
            if header.op != frames.WAITING:
                break
            channel.text(header)
            self._keep_alive(server)
        server.waited_s += time.monotonic() - began
        server.round_trips += 1
        if header.op != frames.DATA or header.shard != shard or header.bytes != size:
            raise self._unexpected(server, header)

    def keep_alive(self) -> None:
        """Something else takes long: no server must take this worker for dead."""
        self._keep_alive(None)

    def _keep_alive(self, but: Optional[Server]) -> None:
        """While one server makes this worker wait, the others must not take it for dead."""
        now = time.monotonic()
        if now - self._alive_s < _ALIVE_S / 2:
            return
        self._alive_s = now
        data = json.dumps([]).encode("ascii")
        for server in self.servers:
            if server is not but:
                server.channel.send(Header(frames.WAITING, bytes=len(data)), memoryview(data))

    @staticmethod
    def _unexpected(server: Server, header: Header) -> PeerError:
        text = "%s answered with %s of shard %d, %d bytes" % (
            server.channel.peer,
            header.name,
            header.shard,
            header.bytes,
        )
        return PeerError("confused", server.channel.peer, text)

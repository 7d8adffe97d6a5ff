"""A worker's connections to all servers: pulls, row lookups, pushes, barriers, and counts of waits and round trips."""

from __future__ import annotations

import array
import functools
import json
import time
from typing import Any, Callable, Sequence

from reference_trainer.ps import frames, settings
from reference_trainer.ps.connection import versions_bytes
from reference_trainer.ps.exact import HostTensor, bytes_of, empty
from reference_trainer.ps.frames import Channel, Header, PeerError
from reference_trainer.ps.settings import ProcessFault, Settings

_ALIVE_S = 1.0


class Server:
    """One server: the connection, and buffers in both directions, `pinned` for a worker on a GPU."""

    def __init__(self, channel: Channel, config: Settings, index: int, *, pinned: bool = False) -> None:
        self.channel = channel
        self.index = index
        self.shards = config.plan.shards[index]
        elements = config.plan.elements_of(index)
        self.pulled = HostTensor(elements, pinned=pinned)
        self.pushed = HostTensor(elements, pinned=pinned)
        #: The versions of each shard in `pulled` (uint32[parts, workers]), and of each table in the last lookup.
        self.versions: list[list[list[int]]] = [[] for _ in self.shards]
        self.row_versions: dict[int, list[int]] = {}
        #: The data to push for each shard, in parts: of `pushed`, or of a gradient in place.
        self.outgoing: list[list[memoryview]] = [[] for _ in self.shards]
        self.send_pushed_buffer()
        #: The rows of each table in the last request to this server.
        self.looked_up: dict[int, Any] = {}
        self.round_trips = 0
        self.waited_s = 0.0
        #: Pushes of this phase that the server already has, from the worker that this one replaced.
        self.has_phase = settings.JOINING
        self.has_clock = 0

    def send_pushed_buffer(self) -> None:
        """Use the content of `pushed` for the next pushes."""
        self.outgoing[:] = [[self.pushed.bytes_of(shard.begin, shard.elements)] for shard in self.shards]


class Rows:
    """The rows of one table in one exchange: for each server its distinct row numbers and positions."""

    def __init__(self, rows: Any, servers: int) -> None:
        self.rows = rows
        self.mine: list[tuple[Any, Any]] = []
        for server in range(servers):
            if servers == 1:
                self.mine.append((rows, None))
                continue
            places = (rows.remainder(servers) == server).nonzero().flatten()
            self.mine.append((rows[places].contiguous(), places))


class Client:
    """All servers of a run, as seen by one worker. `wait` is called with the servers that delay it, or none."""

    def __init__(
        self,
        channels: Sequence[Channel],
        config: Settings,
        fault: ProcessFault,
        *,
        index: int,
        pinned: bool = False,
        wait: Callable[[Sequence[int]], None] = lambda servers: None,
    ) -> None:
        self.config = config
        self.index = index
        self.phase = settings.JOINING
        self.servers = [Server(channel, config, number, pinned=pinned) for number, channel in enumerate(channels)]
        self.reply_timeout = settings.AdaptiveTimeout(config.least_limit_s)
        self._fault = fault
        self._wait = wait
        self._tables = config.plan.tables
        #: Maximum rows of each table in one request to a server.
        self._capacities = [[config.capacity(s, t) for t in range(len(self._tables))] for s in range(len(channels))]
        self._alive_s = 0.0
        #: Whether no server has any data of this worker yet.
        self._all_begin = True
        #: The memory that queued frames refer to.
        self._kept: list[Any] = []
        for server in self.servers:
            server.channel.on_wait_change = functools.partial(self._record_delay, server.index)

    def _record_delay(self, server: int, lasts: bool) -> None:
        """Record that a server delays this worker, or that it no longer does."""
        self._wait([server] if lasts else [])
        if lasts:
            self._keep_alive(self.servers[server])

    def pull(self, clock: int) -> None:
        """Read all current dense parameters into each server's `pulled`."""
        self.request_dense(clock)
        self.receive_dense()

    def request_dense(self, clock: int) -> None:
        """Request all dense parameters; `receive_dense` reads the replies."""
        for server in self._pending_servers():
            server.channel.send(Header(frames.PULL, 0, self.index, clock, phase=self.phase))

    def flush(self) -> None:
        """Flush the queue of every server, before waiting for the first reply."""
        for server in self._pending_servers():
            server.channel.flush()

    def receive_dense(self) -> None:
        """Read the replies to an earlier pull request."""
        self.flush()
        for server in self._pending_servers():
            if not server.shards:
                self._read_reply_header(server, 0, 0)
            for shard in server.shards:
                more = versions_bytes(self.config, shard)
                self._read_reply_header(server, shard.number, shard.bytes + more)
                server.channel.read_payload(server.pulled.bytes_of(shard.begin, shard.elements))
                flat = self._read_versions(server, more)
                count = self.config.workers
                server.versions[shard.number] = [flat[at : at + count] for at in range(0, len(flat), count)]

    def lookup(self, table: int, rows: Rows, clock: int) -> Any:
        """Return the values of distinct rows: float32[n, width], in the order of `rows.rows`."""
        self.request_rows(table, rows, clock)
        return self.receive_rows(table, rows)

    def receive_rows(self, table: int, rows: Rows) -> Any:
        """Read the reply to an earlier request for rows."""
        self.flush()
        width = self._tables[table].width
        whole, views = empty(int(rows.rows.numel()), width)
        for server in self._pending_servers():
            mine, places = rows.mine[server.index]
            more = 4 * self.config.workers
            self._read_reply_header(server, table, int(mine.numel()) * width * 4 + more)
            part = whole
            if places is not None:
                part, views = empty(int(mine.numel()), width)
            for view in views:
                server.channel.read_payload(view)
            server.row_versions[table] = self._read_versions(server, more)
            if places is not None:
                whole[places] = part
        return whole

    @staticmethod
    def _read_versions(server: Server, size: int) -> list[int]:
        data = bytearray(size)
        server.channel.read_payload(memoryview(data))
        return array.array("I", bytes(data)).tolist()

    def history(self, server: Server, most_bytes: int) -> bytes:
        """Return the order of all pushes and reads of the training at one server, as the server sends it."""
        server.channel.send(Header(frames.HISTORY, 0, self.index, phase=self.phase))
        while True:
            header = server.channel.receive()
            if header.op != frames.WAITING:
                break
            server.channel.text(header)
        if header.op != frames.DATA or header.bytes > most_bytes:
            raise self._unexpected(server, header)
        data = bytearray(header.bytes)
        if data:
            server.channel.read_payload(memoryview(data))
        return bytes(data)

    def request_rows(self, table: int, rows: Rows, clock: int) -> None:
        """Request rows; `receive_rows` reads the reply."""
        for server in self._pending_servers():
            mine = rows.mine[server.index][0]
            count = int(mine.numel())
            if count > self._capacities[server.index][table]:
                raise ValueError(f"{count} rows of table {self._tables[table].name} are too many for one request")
            header = Header(frames.LOOKUP, 0, self.index, clock, table, count, count * 8, self.phase)
            server.channel.queue([memoryview(frames.encode(header)), *bytes_of(mine)])
            server.looked_up[table] = mine

    def push(
        self, clock: int, rows: Sequence[Rows], row_numbers: Sequence[Any], *, flags: int = 0, pull: bool = False
    ) -> None:
        """Push `pushed` of all servers and these rows; with `pull` the reply is left to `receive_dense`."""
        self._kept = []
        for server in self._pending_servers():
            if (self.phase, clock) < (server.has_phase, server.has_clock):
                if pull:
                    server.channel.send(Header(frames.PULL, 0, self.index, clock + 1, phase=self.phase))
                continue
            self._push_to(server, clock, rows, row_numbers, flags, pull)

    def _push_to(
        self, server: Server, clock: int, rows: Sequence[Rows], row_numbers: Sequence[Any], flags: int, pull: bool
    ) -> None:
        frames_: list[list[memoryview]] = []
        keep: list[Any] = []
        shards = server.shards
        for table, (part, numbers) in enumerate(zip(rows, row_numbers)):
            mine, places = part.mine[server.index]
            chosen = (numbers if places is None else numbers[places]).contiguous()
            count = int(mine.numel())
            last = frames.LAST if not shards and table == len(rows) - 1 else 0
            # The server still has the row numbers of the last request.
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
        if self._fault.kind:
            frames_ = self._apply_fault(server, clock, frames_)
        parts = [view for frame in frames_ for view in frame]
        if pull and not (shards and frames_):
            parts.append(memoryview(frames.encode(Header(frames.PULL, 0, self.index, clock + 1, phase=self.phase))))
        server.channel.queue(parts)
        # The next push overwrites this memory. Without a pull, no answer is awaited, so everything is sent now.
        if not pull:
            server.channel.flush()
        self._kept.append(keep)

    def _apply_fault(self, server: Server, clock: int, parts: list[list[memoryview]]) -> list[list[memoryview]]:
        """Return the frames with the injected fault."""
        fault = self._fault
        if fault.server != server.index:
            return parts
        if fault.due("loss", self.phase, clock):
            return []
        if fault.due("double", self.phase, clock):
            return parts + [list(frame) for frame in parts]
        if fault.due("flip", self.phase, clock) and server.shards:
            shard = server.shards[fault.shard % len(server.shards)]
            fault.flip(server.pushed.tensor[shard.begin : shard.begin + shard.elements])
        if fault.mid_push:
            views = [view for frame in parts for view in frame]
            whole = b"".join(bytes(view) for view in views)
            server.channel.send_all([memoryview(whole[: len(whole) // 2])])
            fault.trigger(self.phase, clock)
            return [[memoryview(whole[len(whole) // 2 :])]]
        return parts

    def barrier(self, phase: int) -> None:
        """Wait at every server until all workers have arrived; the next phase then begins."""
        for server in self._pending_servers():
            server.channel.send(Header(frames.BARRIER, 0, self.index, 0, phase=phase))
        for server in self._pending_servers():
            self._read_reply_header(server, 0, 0)
        self.phase = phase + 1

    def send_goodbye(self) -> None:
        """Say goodbye to all servers, some of which may no longer receive it."""
        for server in self.servers:
            try:
                server.channel.send(Header(frames.BYE, 0, max(0, self.index)))
            except PeerError:
                pass

    def give_up(self, text: str) -> None:
        """Send all servers the reason why this worker ends."""
        for server in self.servers:
            server.channel.send_error(text)

    def close(self) -> None:
        for server in self.servers:
            server.channel.close()

    def await_vacancy(self) -> int | None:
        """Wait as a backup worker: returns the worker to replace, or None if the run ended without one."""
        first = self.servers[0]
        while True:
            self._wait([0])
            header = first.channel.receive(time.monotonic() + self.config.timeout_s)
            if header.op == frames.WAITING:
                first.channel.text(header)
                self._keep_alive(first)
                continue
            if header.op == frames.BYE:
                return None
            if header.op != frames.TAKEOVER:
                raise self._unexpected(first, header)
            return header.worker

    def become_worker(self, worker: int) -> tuple[int, int]:
        """Become `worker` at every server; returns the phase and clock of the first missing push."""
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

    def _pending_servers(self) -> list[Server]:
        """Return the servers that have not finished this phase yet (some may have, when a backup worker takes over)."""
        if self._all_begin:
            return self.servers
        return [server for server in self.servers if server.has_phase <= self.phase]

    def _read_reply_header(self, server: Server, shard: int, size: int) -> None:
        """Read the header of the next reply, and raise PeerError if it is not the expected one."""
        channel = server.channel
        channel.limit_s = self.reply_timeout.limit_s if self.phase > settings.JOINING else self.config.timeout_s
        started_at = time.monotonic()
        while True:
            header = channel.receive()
            if header.op != frames.WAITING:
                break
            channel.text(header)
            self._keep_alive(server)
        server.waited_s += time.monotonic() - started_at
        server.round_trips += 1
        if header.op != frames.DATA or header.shard != shard or header.bytes != size:
            raise self._unexpected(server, header)

    def keep_alive(self) -> None:
        """Tell all servers that this worker is alive during a long operation."""
        self._keep_alive(None)

    def _keep_alive(self, but: Server | None) -> None:
        """Tell the other servers that this worker is alive while one server delays it."""
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
        text = f"{server.channel.peer} answered with {header.name} of shard {header.shard}, {header.bytes} bytes"
        return PeerError("protocol_error", server.channel.peer, text)

"""Compares every reply of the exact phase: its versions must be possible in the mode, and its numbers be theirs."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Set, Tuple

from reference_trainer.common.oracle import Mismatch
from reference_trainer.ps import clocks, settings
from reference_trainer.ps.client import Client, Rows, Server
from reference_trainer.ps.exact import ExactValues, ExpectedRows, ExpectedShard
from reference_trainer.ps.settings import Settings


class ExpectedReplies:
    """The expected content of all servers, as one worker sees them.

    Args:
        keep: gets each comparison's mismatch, or None.
        alive: called after each shard: those of a large model take long together.
    """

    def __init__(
        self,
        config: Settings,
        client: Client,
        values: ExactValues,
        keep: Callable[[Optional[Mismatch]], None],
        alive: Callable[[], None],
    ) -> None:
        self._config = config
        self._client = client
        self._values = values
        self._keep = keep
        self._alive = alive
        self._shards: Dict[Tuple[int, int], ExpectedShard] = {
            (server.index, shard.number): ExpectedShard(values, shard, config.workers)
            for server in client.servers
            for shard in server.shards
        }
        #: For each table the rows that any worker touches.
        self.touched = [values.touched(table, config.exact_steps) for table in range(len(config.plan.tables))]
        self._rows = {
            (server.index, table): ExpectedRows(values, table, _on(rows, server.index, config.servers), config.workers)
            for server in client.servers
            for table, rows in enumerate(self.touched)
        }
        #: Shards and tables that were wrong already: they stay wrong.
        self._wrong: Set[Tuple[str, int, int]] = set()

    def compare_dense(self, clock: int, what: str) -> None:
        """Compare the last pull before push `clock`."""
        for server in self._client.servers:
            if server.has_phase <= self._client.phase:
                for shard in server.shards:
                    problems = [self._impossible(server, each, clock) for each in server.versions[shard.number]]
                    self._compare_shard(server, shard, what, next(filter(None, problems), ""))
                    self._alive()

    def compare_final(self, what: str) -> None:
        """Compare the last pull of the phase: every push must be contained."""
        for server in self._client.servers:
            if server.has_phase <= self._client.phase:
                for shard in server.shards:
                    self._wrong.discard(("shard", server.index, shard.number))
                    complete = [[self._values.pushes] * self._config.workers] * len(server.versions[shard.number])
                    got = server.pulled.tensor[shard.begin : shard.begin + shard.elements]
                    where = "%s, shard %d of server %d" % (what, shard.number, server.index)
                    expected = self._shards[server.index, shard.number]
                    problem = expected.advance(complete)
                    found = self._values.compare(where, self._config.rank, shard, got, expected.values)
                    if found is None and (problem or server.versions[shard.number] != complete):
                        found = self._mismatch(where, problem or "its versions lack pushes", server)
                    self._keep(found)
                    self._alive()

    def _compare_shard(self, server: Server, shard: Any, what: str, problem: str) -> None:
        key = ("shard", server.index, shard.number)
        if key in self._wrong:
            return
        where = "%s, shard %d of server %d" % (what, shard.number, server.index)
        expected = self._shards[server.index, shard.number]
        problem = problem or expected.advance(server.versions[shard.number])
        if problem:
            found: Optional[Mismatch] = self._mismatch(where, problem, server)
        else:
            got = server.pulled.tensor[shard.begin : shard.begin + shard.elements]
            found = self._values.compare(where, self._config.rank, shard, got, expected.values)
        if found is not None:
            self._wrong.add(key)
        self._keep(found)

    def compare_rows(self, table: int, rows: Rows, got: Any, clock: int, what: str) -> None:
        """Compare a look-up before push `clock`."""
        for server in self._client.servers:
            key = ("table", server.index, table)
            if server.has_phase > self._client.phase or key in self._wrong:
                continue
            name = self._config.plan.tables[table].name
            where = "%s of table %s on server %d" % (what, name, server.index)
            versions, expected = server.row_versions[table], self._rows[server.index, table]
            problem = self._impossible(server, versions, clock) or expected.advance(versions)
            mine, places = rows.mine[server.index]
            if problem:
                found: Optional[Mismatch] = self._mismatch(where, problem, server)
            elif not mine.numel():
                continue
            else:
                part = got if places is None else got[places]
                found = self._values.compare_rows(
                    where, self._config.rank, table, mine, part.contiguous(), expected.of(mine)
                )
            if found is not None:
                self._wrong.add(key)
            self._keep(found)

    def compare_final_rows(self, table: int, rows: Any, got: Any, what: str) -> None:
        """Compare all rows at the end of the phase."""
        for server in self._client.servers:
            if server.has_phase > self._client.phase:
                continue
            expected = self._rows[server.index, table]
            complete = [self._values.pushes] * self._config.workers
            problem = expected.advance(complete)
            where = "%s on server %d" % (what, server.index)
            part = got[rows.remainder(self._config.servers) == server.index].contiguous()
            if not part.numel():
                continue
            found = self._values.compare_rows(
                where, self._config.rank, table, expected.rows, part, expected.values.contiguous()
            )
            if found is None and (problem or server.row_versions[table] != complete):
                found = self._mismatch(where, problem or "its versions lack pushes", server)
            self._keep(found)

    def _impossible(self, server: Server, versions: Sequence[int], clock: int) -> str:
        """What is impossible about these versions before push `clock` in this mode, or nothing."""
        own, config = self._client.index, self._config
        least, most = clock, clock
        if server.has_phase == self._client.phase == settings.EXACT and clock <= server.has_clock:
            # A worker that this one replaced has pushed this already, or a part of the next.
            least, most = server.has_clock, server.has_clock + 1
        if not least <= versions[own] <= most:
            return "holds %d pushes of this worker, which has sent %d" % (versions[own], clock)
        if config.mode not in (clocks.SYNC, clocks.SSP):
            return ""
        bound = 0 if config.mode == clocks.SYNC else config.staleness
        for worker, count in enumerate(versions):
            if count < clock - bound:
                return "holds %d pushes of worker %d at clock %d; it should have waited" % (count, worker, clock)
            if count > clock and config.mode == clocks.SYNC:
                return "holds %d pushes of worker %d at clock %d already" % (count, worker, clock)
        return ""

    def _mismatch(self, where: str, problem: str, server: Server) -> Mismatch:
        text = "server %d %s" % (server.index, problem)
        return Mismatch(where, self._config.rank, 0, 0, 0, "possible versions", "others", "", {}, text)


def _on(rows: Any, server: int, servers: int) -> Any:
    return rows[rows.remainder(servers) == server]

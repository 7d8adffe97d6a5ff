"""The steps of a worker in each phase: push known values, compare every reply, train, and pull the final weights."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from reference_trainer.common.oracle import LEARNING_RATE, Mismatch
from reference_trainer.ps import clocks, exact, frames, settings
from reference_trainer.ps.client import Client, Rows, Server
from reference_trainer.ps.exact import ExactValues, ExpectedRows, ExpectedShard, deduplicate, digest
from reference_trainer.ps.layout import ParameterLayout
from reference_trainer.ps.settings import ProcessFault, Settings


class ExpectedReplies:
    """The expected content of all servers, as one worker sees them; `keep` receives each mismatch or None."""

    def __init__(
        self,
        config: Settings,
        client: Client,
        values: ExactValues,
        keep: Callable[[Mismatch | None], None],
        alive: Callable[[], None],
    ) -> None:
        self._config = config
        self._client = client
        self._values = values
        self._keep = keep
        self._alive = alive
        self._shards: dict[tuple[int, int], ExpectedShard] = {
            (server.index, shard.number): ExpectedShard(values, shard, config.workers)
            for server in client.servers
            for shard in server.shards
        }
        #: For each table the rows that any worker touches.
        self.touched = [values.touched(table, config.exact_steps) for table in range(len(config.plan.tables))]
        self._rows = {
            (server.index, table): ExpectedRows(
                values, table, rows[rows.remainder(config.servers) == server.index], config.workers
            )
            for server in client.servers
            for table, rows in enumerate(self.touched)
        }
        #: Shards and tables that were wrong already: they stay wrong.
        self._wrong: set[tuple[str, int, int]] = set()

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
            found: Mismatch | None = self._mismatch(where, problem, server)
        else:
            got = server.pulled.tensor[shard.begin : shard.begin + shard.elements]
            found = self._values.compare(where, self._config.rank, shard, got, expected.values)
        if found is not None:
            self._wrong.add(key)
        self._keep(found)

    def compare_rows(self, table: int, rows: Rows, got: Any, clock: int, what: str) -> None:
        """Compare a lookup before push `clock`."""
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
                mismatch: Mismatch | None = self._mismatch(where, problem, server)
            elif not mine.numel():
                continue
            else:
                part = got if places is None else got[places]
                mismatch = self._values.compare_rows(
                    where, self._config.rank, table, mine, part.contiguous(), expected.of(mine)
                )
            if mismatch is not None:
                self._wrong.add(key)
            self._keep(mismatch)

    def compare_final_rows(self, table: int, rows: Any, got: Any, what: str) -> None:
        """Compare all rows at the end of the phase."""
        for server in self._client.servers:
            if server.has_phase > self._client.phase:
                continue
            expected = self._rows[server.index, table]
            complete = [self._values.pushes] * self._config.workers
            problem = expected.advance(complete)
            where = f"{what} on server {server.index}"
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
        """Return why these versions are impossible before push `clock` in this mode; empty if they are possible."""
        own, config = self._client.index, self._config
        least, most = clock, clock
        if server.has_phase == self._client.phase == settings.EXACT and clock <= server.has_clock:
            # A worker that this one replaced has pushed this already, or a part of the next.
            least, most = server.has_clock, server.has_clock + 1
        if not least <= versions[own] <= most:
            return f"has {versions[own]} pushes of this worker, which has sent {clock}"
        if config.mode not in (clocks.SYNC, clocks.SSP):
            return ""
        bound = 0 if config.mode == clocks.SYNC else config.staleness
        for worker, count in enumerate(versions):
            if count < clock - bound:
                return f"has only {count} pushes of worker {worker} at clock {clock}; it should have waited"
            if count > clock and config.mode == clocks.SYNC:
                return f"already has {count} pushes of worker {worker} at clock {clock}"
        return ""

    def _mismatch(self, where: str, problem: str, server: Server) -> Mismatch:
        text = f"server {server.index} {problem}"
        return Mismatch(where, self._config.rank, 0, 0, 0, "possible versions", "others", "", {}, text)


_MAX_MISMATCHES = 20
#: The push before which worker 0 pauses when others must wait for it, and the length of the pause.
_LATE_PUSH, _LATE_S = 1, 0.1
#: Number of rows per request at the end.
_ROWS_AT_ONCE = 32768
#: A request of this many rows, 64 KiB, fits into a socket's buffers. A larger one after a pull could be stuck there
#: while the server is stuck with its reply.
_MAX_EARLY_ROWS = 8192

Before = Callable[[str, int], Any]
After = Callable[[], Any]


@dataclass
class WorkerTraining:
    """The results of the steps. Each step has three times: waiting for weights, computing, and sending the push."""

    losses: list[float] = field(default_factory=list)
    pull_s: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    push_s: list[float] = field(default_factory=list)


class WorkerSteps:
    """The steps of one worker; `before` and `after` are called with the kind and the number of each."""

    def __init__(
        self,
        config: Settings,
        client: Client,
        fault: ProcessFault,
        device: Any,
        *,
        before: Before,
        after: After,
        alive: Callable[[], None],
    ) -> None:
        self._config = config
        self._client = client
        self._fault = fault
        self._device = device
        self._before = before
        self._after = after
        self._alive = alive
        self._layout = ParameterLayout(config.plan)
        self.mismatches: list[Mismatch] = []
        self._expected: ExpectedReplies | None = None

    def exact_steps(self, first: int) -> None:
        """Push known values, starting with push `first`. Every pull and lookup is also compared."""
        import torch

        config, client = self._config, self._client
        values = config.exact_values(torch.device("cpu"))
        self._expected = ExpectedReplies(config, client, values, self._keep, self._alive)
        geo = config.mode == clocks.GEO
        flags = frames.DELTA if geo else 0
        for clock in range(first, config.rounds(config.exact_steps)):
            self._before("exact push %d", clock)
            started_at = time.monotonic()
            self._fault.before_step(settings.EXACT, clock)
            if client.index == 0 and clock == _LATE_PUSH and config.mode in (clocks.SYNC, clocks.SSP):
                # The others must wait for this worker now. If a server lets them read, their weights lack its pushes.
                self._fall_behind()
            steps = config.steps_of(clock, config.exact_steps)
            client.pull(clock)
            self._expected.compare_dense(clock, f"weights before push {clock}")
            rows, numbers = [], []
            for table in range(len(config.plan.tables)):
                part, given = self._exact_rows(values, table, steps)
                got = client.lookup(table, part, clock)
                self._expected.compare_rows(table, part, got, clock, f"rows before push {clock}")
                rows.append(part)
                numbers.append(given * -LEARNING_RATE if geo else given)
            factor = -LEARNING_RATE if geo else 1.0
            for server in client.servers:
                for shard in server.shards:
                    part_ = server.pushed.tensor[shard.begin : shard.begin + shard.elements]
                    torch.mul(values.push(shard, client.index, clock), factor, out=part_)
                    self._alive()
            client.push(clock, rows, numbers, flags=flags)
            client.reply_timeout.note(time.monotonic() - started_at)
            self._after()

    def _fall_behind(self) -> None:
        """Pause until the others have reached the bound, but not for longer than necessary."""
        self._client.flush()
        time.sleep(_LATE_S)

    def _exact_rows(self, values: ExactValues, table: int, steps: Sequence[int]) -> Any:
        """Return the rows touched in these steps and their gradients, de-duplicated per step, and summed."""
        import torch

        config = self._config
        kind = config.plan.tables[table]
        everything, total = None, None
        for step in steps:
            rows, inverse, counts = deduplicate(exact.ids(kind, self._client.index, step))
            each = exact.occurrences(values.row_gradients(table, rows, self._client.index, step), inverse, counts)
            summed = torch.zeros(rows.numel(), kind.width).index_add_(0, inverse, each)
            if everything is None or total is None:
                everything, total = rows, summed
            else:
                everything, total = exact.summed_rows((everything, total), (rows, summed))
        return Rows(everything, config.servers), total

    def check_exact_weights(self) -> str:
        """Pull all weights and compare them with all pushes. Returns the digest."""
        import torch

        config, client = self._config, self._client
        if self._expected is None:
            values = config.exact_values(torch.device("cpu"))
            self._expected = ExpectedReplies(config, client, values, self._keep, self._alive)
        self._before("last exact weights", -1)
        client.pull(0)
        self._expected.compare_final(f"weights after {config.exact_steps} exact steps")
        found = self._layout.gather(client.servers)
        for table, kind in enumerate(config.plan.tables):
            rows = self._expected.touched[table]
            got = self._read_rows(table, rows)
            what = f"rows of {kind.name} after {config.exact_steps} exact steps"
            self._expected.compare_final_rows(table, rows, got, what)
            found.append(got)
        self._after()
        return digest(found)

    def _keep(self, mismatch: Mismatch | None) -> None:
        if mismatch is not None and len(self.mismatches) < _MAX_MISMATCHES:
            self.mismatches.append(mismatch)

    def _read_rows(self, table: int, rows: Any) -> Any:
        import torch

        parts = [
            self._client.lookup(table, Rows(rows[begin : begin + _ROWS_AT_ONCE].contiguous(), self._config.servers), 0)
            for begin in range(0, rows.numel(), _ROWS_AT_ONCE)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, self._config.plan.tables[table].width)

    def train(self, first: int) -> WorkerTraining:
        if self._config.mode == clocks.GEO:
            return self._train_locally(first)
        return self._train_together(first)

    def _train_together(self, first: int) -> WorkerTraining:
        """Train in sync, async or bounded staleness: read weights before every step, push gradients after it."""
        config, client = self._config, self._client
        done = WorkerTraining()
        if first >= config.steps:
            return done
        requested = self._distinct(first)
        client.request_dense(first)
        in_passing = _may_request_early(requested)
        if in_passing:
            self._request(requested, first)
        client.flush()
        following = self._distinct(first + 1)
        client.receive_dense()
        if not in_passing:
            self._request(requested, first)
        values = self._answers(requested)
        waited_s = prepared_s = 0.0
        lent: list[Any] = []
        for step in range(first, config.steps):
            self._before("step %d", step)
            started_at = time.monotonic()
            self._fault.before_step(settings.TRAINING, step)
            loss, gradients, row_gradients = self._gradients(step, requested, values)
            if self._fault.kind:
                self._layout.scatter(gradients, client.servers)
            else:
                lent = self._layout.lend(gradients, client.servers)
            computed = time.monotonic()
            last = step + 1 == config.steps
            rows = [part for part, _ in requested]
            # The next rows are requested in the same message: one message up and one down for each step.
            client.push(step, rows, row_gradients, pull=not last)
            in_passing = _may_request_early(following)
            if in_passing:
                self._request(following, step + 1)
            client.flush()
            del lent[:]
            pushed = time.monotonic()
            done.losses.append(loss)
            done.pull_s.append(waited_s)
            done.compute_s.append(computed - started_at + prepared_s)
            done.push_s.append(pushed - computed)
            # While the servers work.
            later = self._distinct(step + 2)
            prepared = time.monotonic()
            prepared_s = prepared - pushed
            if not last:
                requested, following = following, later
                client.receive_dense()
                if not in_passing:
                    self._request(requested, step + 1)
                values = self._answers(requested)
            waited_s = time.monotonic() - prepared
            client.reply_timeout.note(time.monotonic() - started_at)
            self._after()
        return done

    def _distinct(self, step: int) -> list[Any]:
        """Return each table's distinct rows of a step and the occurrences' positions; nothing after the last step."""
        requested: list[Any] = []
        if step >= self._config.steps:
            return requested
        for table in range(len(self._config.plan.tables)):
            rows, inverse, _ = deduplicate(self._config.task.ids(table, self._client.index, step))
            requested.append((Rows(rows, self._config.servers), inverse))
        return requested

    def _request(self, requested: list[Any], step: int) -> None:
        for table, (rows, _) in enumerate(requested):
            self._client.request_rows(table, rows, step)

    def _answers(self, requested: list[Any]) -> list[Any]:
        return [self._client.receive_rows(table, rows) for table, (rows, _) in enumerate(requested)]

    def _gradients(self, step: int, requested: list[Any], values: list[Any]) -> Any:
        """Return the loss, the gradients of dense parameters, and the gradients of distinct rows."""
        # Pinned memory is copied while the next operations are queued; it is not written before the loss is known.
        dense = self._layout.gather(self._client.servers, self._device)
        leaves = [tensor.to(self._device).detach().requires_grad_() for tensor in (*dense, *values)]
        loss, found = gradients_of(self._config.task, self._client.index, step, leaves, requested, len(dense))
        return loss, found[: len(dense)], [gradient.cpu() for gradient in found[len(dense) :]]

    def _train_locally(self, first: int) -> WorkerTraining:
        """Train in geo mode: run some steps on a copy of the weights, then push the difference."""
        config, client = self._config, self._client
        done = WorkerTraining()
        for clock in range(first, config.rounds(config.steps)):
            self._before("round %d", clock)
            started_at = time.monotonic()
            self._fault.before_step(settings.TRAINING, clock)
            client.pull(clock)
            union = self._union(clock)
            bases = [client.lookup(table, rows, clock) for table, rows in enumerate(union)]
            base = self._layout.gather(client.servers)
            local = [tensor.clone().to(self._device) for tensor in (*base, *bases)]
            pulled = time.monotonic()
            losses = train_locally(config, client.index, clock, local, union, len(base))
            done.losses += losses
            moved = [new.cpu() - old for new, old in zip(local, (*base, *bases))]
            self._layout.scatter(moved[: len(base)], client.servers)
            computed = time.monotonic()
            client.push(clock, union, moved[len(base) :], flags=frames.DELTA)
            done.pull_s.append(pulled - started_at)
            done.compute_s.append(computed - pulled)
            done.push_s.append(time.monotonic() - computed)
            client.reply_timeout.note(time.monotonic() - started_at)
            self._after()
        return done

    def _union(self, clock: int) -> list[Rows]:
        """Return all rows that the local steps of one push touch."""
        rows = [rows_of_round(self._config, self._client.index, clock, t) for t in range(len(self._config.plan.tables))]
        return [Rows(each, self._config.servers) for each in rows]

    def last_weights(self) -> Any:
        """Return the digest of everything at the end, and the names of parameters that did not change."""
        import torch

        config, client = self._config, self._client
        self._before("last weights", -1)
        client.pull(0)
        weights = list(self._layout.gather(client.servers))
        unmoved = [
            p.name
            for p, tensor in zip(config.plan.dense, weights)
            if torch.equal(tensor.flatten(), config.task.initial(p.name).flatten())
        ]
        for table, kind in enumerate(config.plan.tables):
            rows = self.rows_of_training(table, range(config.workers))
            got = self._read_rows(table, rows)
            weights.append(got)
            if rows.numel() and torch.equal(got, config.task.initial_rows(table, rows)):
                unmoved.append(kind.name)
        self._after()
        return weights, unmoved

    def first_and_last_loss(self) -> tuple[float, float]:
        """Return the loss with the first and the last pulled weights; single steps of async workers mean little."""
        import torch

        config, client = self._config, self._client
        requested, before, after = [], [], []
        for table in range(len(config.plan.tables)):
            rows, inverse, _ = deduplicate(config.task.ids(table, client.index, 0))
            requested.append((rows, inverse))
            before.append(config.task.initial_rows(table, rows))
            after.append(client.lookup(table, Rows(rows, config.servers), 0))
        dense = [config.task.initial(p.name).view(p.shape) for p in config.plan.dense]
        losses = []
        for weights, rows in ((dense, before), (self._layout.gather(client.servers), after)):
            leaves = [tensor.to(self._device) for tensor in (*weights, *rows)]
            picked = [
                leaf.index_select(0, where.to(leaf.device))
                for leaf, (_, where) in zip(leaves[len(weights) :], requested)
            ]
            with torch.no_grad():
                losses.append(float(config.task.step(client.index, 0, leaves[: len(weights)], picked)))
        return losses[0], losses[1]

    def rows_of_training(self, table: int, workers: Sequence[int]) -> Any:
        """Return the rows that these workers touch in training, sorted; of very many workers only the first's."""
        import torch

        config = self._config
        some = list(workers)[:64]
        found = [config.task.ids(table, worker, step) for worker in some for step in range(min(config.steps, 64))]
        return torch.unique(torch.cat(found)) if found else torch.zeros(0, dtype=torch.int64)


def rows_of_round(config: Settings, worker: int, clock: int, table: int) -> Any:
    """Return all rows of a table that the local steps of one push touch, sorted: int64[n]."""
    import torch

    steps = config.steps_of(clock, config.steps)
    return torch.unique(torch.cat([config.task.ids(table, worker, step) for step in steps]))


def train_locally(
    config: Settings, worker: int, clock: int, local: list[Any], union: list[Rows], dense: int
) -> list[float]:
    """Return the local steps of one push, on a copy of the weights; returns their losses."""
    import torch

    losses: list[float] = []
    for step in config.steps_of(clock, config.steps):
        requested = []
        for table, rows in enumerate(union):
            requested.append((rows, torch.searchsorted(rows.rows, config.task.ids(table, worker, step))))
        leaves = [tensor.detach().requires_grad_() for tensor in local]
        loss, gradients = gradients_of(config.task, worker, step, leaves, requested, dense)
        for tensor, gradient in zip(local, gradients):
            tensor.add_(gradient, alpha=-config.task.base_rate)
        losses.append(loss)
    return losses


def _may_request_early(requested: list[Any]) -> bool:
    """Return whether the rows may be requested before the reply to a pull has been read."""
    return all(part.rows.numel() <= _MAX_EARLY_ROWS for part, _ in requested)


def gradients_of(task: Any, worker: int, step: int, leaves: list[Any], requested: list[Any], dense: int) -> Any:
    """Return the loss and the gradients of `leaves`: dense parameters, then the distinct rows of each table."""
    import torch

    rows = [leaf.index_select(0, inverse.to(leaf.device)) for leaf, (_, inverse) in zip(leaves[dense:], requested)]
    loss = task.step(worker, step, leaves[:dense], rows)
    found = torch.autograd.grad(loss, leaves)
    return float(loss.detach()), list(found)

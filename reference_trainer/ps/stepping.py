"""What a worker does in each phase: push what is known and compare, train, and pull the last weights."""

from __future__ import annotations

import time
from typing import Any, Callable, List, Optional, Sequence, Tuple

from preflight.node.record import dataclass, field
from reference_trainer.oracle import LEARNING_RATE, Mismatch
from reference_trainer.ps import clocks, exact, frames, settings
from reference_trainer.ps.client import Client, Rows
from reference_trainer.ps.drills import Drill
from reference_trainer.ps.exact import Exact, deduplicated
from reference_trainer.ps.layout import Layout, digest
from reference_trainer.ps.settings import Settings

_MOST_MISMATCHES = 20
#: Rows asked for at once at the end.
_ROWS_AT_ONCE = 32768
#: A request of so many rows, 64 KiB, finds room in a socket's buffers whoever else waits. A larger one behind a pull
#: could be stuck there while the server is stuck with its reply.
_ROWS_IN_PASSING = 8192

Before = Callable[[str, int], Any]
After = Callable[[], Any]


@dataclass
class Trained:
    """What the steps did. The three times of each step: waiting for weights, computing, handing the push over."""

    losses: List[float] = field(default_factory=list)
    pull_s: List[float] = field(default_factory=list)
    compute_s: List[float] = field(default_factory=list)
    push_s: List[float] = field(default_factory=list)


class Stepping:
    """One worker's steps.

    Args:
        before, after: called around each step: what it is, and its number.
    """

    def __init__(
        self, told: Settings, client: Client, drill: Drill, device: Any, *, before: Before, after: After
    ) -> None:
        self._told = told
        self._client = client
        self._drill = drill
        self._device = device
        self._before = before
        self._after = after
        self._layout = Layout(told.plan)
        self.mismatches: List[Mismatch] = []

    def exact_steps(self, first: int) -> None:
        """Push what is known, from push `first` on. In sync mode every pull is compared, too."""
        import torch

        told, client = self._told, self._client
        values = Exact(told.plan, told.workers, torch.device("cpu"), steps_a_push=told.steps_a_push)
        mine = [[values.gradient(shard, client.index) for shard in server.shards] for server in client.servers]
        geo = told.mode == clocks.GEO
        flags = frames.DELTA if geo else 0
        for clock in range(first, told.rounds(told.exact_steps)):
            self._before("exact push %d", clock)
            began = time.monotonic()
            self._drill.before_step(settings.EXACT, clock)
            steps = self._steps_of(clock, told.exact_steps)
            client.pull(clock)
            if told.mode == clocks.SYNC and not self.mismatches:
                self._compare_dense(values, clock, "weights before push %d" % clock)
            rows, numbers = [], []
            for table in range(len(told.plan.tables)):
                part, given = self._exact_rows(values, table, steps)
                client.lookup(table, part, clock)
                rows.append(part)
                numbers.append(given * -LEARNING_RATE if geo else given)
            factor = -LEARNING_RATE * len(steps) if geo else 1.0
            for server, gradients in zip(client.servers, mine):
                for shard, gradient in zip(server.shards, gradients):
                    part_ = server.pushed.tensor[shard.begin : shard.begin + shard.elements]
                    torch.mul(gradient, factor, out=part_)
            client.push(clock, rows, numbers, flags=flags)
            client.patience.note(time.monotonic() - began)
            self._after()

    def _steps_of(self, clock: int, steps: int) -> Sequence[int]:
        """The local steps that one push stands for."""
        if self._told.mode != clocks.GEO:
            return range(clock, clock + 1)
        return range(clock * self._told.geo_steps, min(steps, (clock + 1) * self._told.geo_steps))

    def _exact_rows(self, values: Exact, table: int, steps: Sequence[int]) -> Any:
        """The rows touched in these steps and their gradients, each step de-duplicated as in training and summed."""
        import torch

        told = self._told
        kind = told.plan.tables[table]
        everything, total = None, None
        for step in steps:
            rows, inverse, counts = deduplicated(exact.ids(kind, self._client.index, step))
            each = exact.occurrences(values.row_gradients(table, rows, self._client.index), inverse, counts)
            summed = torch.zeros(rows.numel(), kind.width).index_add_(0, inverse, each)
            if everything is None or total is None:
                everything, total = rows, summed
                continue
            both, places = torch.unique(torch.cat([everything, rows]), return_inverse=True)
            total = torch.zeros(both.numel(), kind.width).index_add_(0, places, torch.cat([total, summed]))
            everything = both
        return Rows(everything, told.servers), total

    def exact_read(self) -> str:
        """Pull everything that was pushed to and compare; the digest of what came."""
        import torch

        told, client = self._told, self._client
        values = Exact(told.plan, told.workers, torch.device("cpu"), steps_a_push=told.steps_a_push)
        self._before("last exact weights", -1)
        client.pull(0)
        self._compare_dense(values, told.exact_steps, "weights after %d exact steps" % told.exact_steps)
        found = self._layout.gather(client.servers)
        for table, kind in enumerate(told.plan.tables):
            rows = values.touched(table, told.exact_steps)
            got = self._read_rows(table, rows)
            expected = values.final_rows(table, rows, told.exact_steps)
            what = "rows of %s after %d exact steps" % (kind.name, told.exact_steps)
            if len(client.servers) == sum(server.has_phase <= client.phase for server in client.servers):
                self._keep(values.compare_rows(what, told.rank, table, rows, got, expected))
            found.append(got)
        self._after()
        return digest(found)

    def _compare_dense(self, values: Exact, steps: int, what: str) -> None:
        for server in self._client.servers:
            if server.has_phase > self._client.phase:
                continue
            for shard in server.shards:
                got = server.pulled.tensor[shard.begin : shard.begin + shard.elements]
                where = "%s, shard %d of server %d" % (what, shard.number, server.index)
                self._keep(values.compare(where, self._told.rank, shard, got, values.final(shard, steps)))

    def _keep(self, found: Optional[Mismatch]) -> None:
        if found is not None and len(self.mismatches) < _MOST_MISMATCHES:
            self.mismatches.append(found)

    def _read_rows(self, table: int, rows: Any) -> Any:
        import torch

        parts = [
            self._client.lookup(table, Rows(rows[begin : begin + _ROWS_AT_ONCE].contiguous(), self._told.servers), 0)
            for begin in range(0, rows.numel(), _ROWS_AT_ONCE)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, self._told.plan.tables[table].width)

    def train(self, first: int) -> Trained:
        """All steps of the training from push `first` on."""
        if self._told.mode == clocks.GEO:
            return self._train_locally(first)
        return self._train_together(first)

    def _train_together(self, first: int) -> Trained:
        """Sync, async and bounded staleness: weights before every step, gradients after it."""
        told, client = self._told, self._client
        done = Trained()
        if first >= told.steps:
            return done
        asked = self._distinct(first)
        client.ask_dense(first)
        in_passing = _in_passing(asked)
        if in_passing:
            self._ask(asked, first)
        client.flush()
        following = self._distinct(first + 1)
        client.receive_dense()
        if not in_passing:
            self._ask(asked, first)
        values = self._answers(asked)
        waited = prepared_s = 0.0
        lent: List[Any] = []
        for step in range(first, told.steps):
            self._before("step %d", step)
            began = time.monotonic()
            self._drill.before_step(settings.TRAINING, step)
            loss, gradients, row_gradients = self._gradients(step, asked, values)
            if self._drill.kind:
                self._layout.scatter(gradients, client.servers)
            else:
                lent = self._layout.lend(gradients, client.servers)
            computed = time.monotonic()
            last = step + 1 == told.steps
            rows = [part for part, _ in asked]
            # The next rows are asked for in the same breath: one message up and one down for each step.
            client.push(step, rows, row_gradients, pull=not last)
            in_passing = _in_passing(following)
            if in_passing:
                self._ask(following, step + 1)
            client.flush()
            del lent[:]
            pushed = time.monotonic()
            done.losses.append(loss)
            done.pull_s.append(waited)
            done.compute_s.append(computed - began + prepared_s)
            done.push_s.append(pushed - computed)
            # While the servers work.
            later = self._distinct(step + 2)
            prepared = time.monotonic()
            prepared_s = prepared - pushed
            if not last:
                asked, following = following, later
                client.receive_dense()
                if not in_passing:
                    self._ask(asked, step + 1)
                values = self._answers(asked)
            waited = time.monotonic() - prepared
            client.patience.note(time.monotonic() - began)
            self._after()
        return done

    def _distinct(self, step: int) -> List[Any]:
        """De-duplicate the rows of a step; for each table the distinct ones and where each occurrence finds its own.

        Behind the last step there are none.
        """
        asked: List[Any] = []
        if step >= self._told.steps:
            return asked
        for table in range(len(self._told.plan.tables)):
            rows, inverse, _ = deduplicated(self._told.task.ids(table, self._client.index, step))
            asked.append((Rows(rows, self._told.servers), inverse))
        return asked

    def _ask(self, asked: List[Any], step: int) -> None:
        for table, (rows, _) in enumerate(asked):
            self._client.ask_rows(table, rows, step)

    def _answers(self, asked: List[Any]) -> List[Any]:
        return [self._client.receive_rows(table, rows) for table, (rows, _) in enumerate(asked)]

    def _gradients(self, step: int, asked: List[Any], values: List[Any]) -> Any:
        """Loss, gradients of dense parameters, and of distinct rows."""
        dense = self._layout.gather(self._client.servers)
        leaves = [tensor.to(self._device).detach().requires_grad_() for tensor in (*dense, *values)]
        loss, found = gradients_of(self._told.task, self._client.index, step, leaves, asked, len(dense))
        return loss, found[: len(dense)], [gradient.cpu() for gradient in found[len(dense) :]]

    def _train_locally(self, first: int) -> Trained:
        """Geo: some steps on a copy, then what it moved by is pushed."""
        told, client = self._told, self._client
        done = Trained()
        for clock in range(first, told.rounds(told.steps)):
            self._before("round %d", clock)
            began = time.monotonic()
            self._drill.before_step(settings.TRAINING, clock)
            client.pull(clock)
            union = self._union(clock)
            bases = [client.lookup(table, rows, clock) for table, rows in enumerate(union)]
            base = self._layout.gather(client.servers)
            local = [tensor.clone().to(self._device) for tensor in (*base, *bases)]
            pulled = time.monotonic()
            for step in self._steps_of(clock, told.steps):
                done.losses.append(self._local_step(step, local, union, len(base)))
            moved = [new.cpu() - old for new, old in zip(local, (*base, *bases))]
            self._layout.scatter(moved[: len(base)], client.servers)
            computed = time.monotonic()
            client.push(clock, union, moved[len(base) :], flags=frames.DELTA)
            done.pull_s.append(pulled - began)
            done.compute_s.append(computed - pulled)
            done.push_s.append(time.monotonic() - computed)
            client.patience.note(time.monotonic() - began)
            self._after()
        return done

    def _union(self, clock: int) -> List[Rows]:
        """All rows that the local steps of one push touch."""
        import torch

        told = self._told
        steps = self._steps_of(clock, told.steps)
        return [
            Rows(torch.unique(torch.cat([told.task.ids(table, self._client.index, s) for s in steps])), told.servers)
            for table in range(len(told.plan.tables))
        ]

    def _local_step(self, step: int, local: List[Any], union: List[Rows], dense: int) -> float:
        import torch

        told = self._told
        asked = []
        for table, rows in enumerate(union):
            wanted = told.task.ids(table, self._client.index, step)
            asked.append((rows, torch.searchsorted(rows.rows, wanted)))
        leaves = [tensor.detach().requires_grad_() for tensor in local]
        loss: float
        loss, gradients = gradients_of(told.task, self._client.index, step, leaves, asked, dense)
        for tensor, gradient in zip(local, gradients):
            tensor.add_(gradient, alpha=-told.task.base_rate)
        return loss

    def last_weights(self) -> Any:
        """The digest of everything at the end, and the names of parameters that did not move."""
        import torch

        told, client = self._told, self._client
        self._before("last weights", -1)
        client.pull(0)
        found = list(self._layout.gather(client.servers))
        unmoved = [
            p.name
            for p, tensor in zip(told.plan.dense, found)
            if torch.equal(tensor.flatten(), told.task.initial(p.name).flatten())
        ]
        for table, kind in enumerate(told.plan.tables):
            rows = self.rows_of_training(table, range(told.workers))
            got = self._read_rows(table, rows)
            found.append(got)
            if rows.numel() and torch.equal(got, told.task.initial_rows(table, rows)):
                unmoved.append(kind.name)
        self._after()
        return found, unmoved

    def first_and_last_loss(self) -> Tuple[float, float]:
        """The loss on this worker's samples with the first weights, and with those that were pulled last.

        Losses of single steps tell less: without a barrier a worker may be through before another one has begun.
        """
        import torch

        told, client = self._told, self._client
        asked, before, after = [], [], []
        for table in range(len(told.plan.tables)):
            rows, inverse, _ = deduplicated(told.task.ids(table, client.index, 0))
            asked.append((rows, inverse))
            before.append(told.task.initial_rows(table, rows))
            after.append(client.lookup(table, Rows(rows, told.servers), 0))
        dense = [told.task.initial(p.name).view(p.shape) for p in told.plan.dense]
        found = []
        for weights, rows in ((dense, before), (self._layout.gather(client.servers), after)):
            leaves = [tensor.to(self._device) for tensor in (*weights, *rows)]
            picked = [
                leaf.index_select(0, where.to(leaf.device)) for leaf, (_, where) in zip(leaves[len(weights) :], asked)
            ]
            with torch.no_grad():
                found.append(float(told.task.step(client.index, 0, leaves[: len(weights)], picked)))
        return found[0], found[1]

    def rows_of_training(self, table: int, workers: Sequence[int]) -> Any:
        """The rows that these workers touch in the training, sorted; of very many workers the first ones' only."""
        import torch

        told = self._told
        some = list(workers)[:64]
        found = [told.task.ids(table, worker, step) for worker in some for step in range(min(told.steps, 64))]
        return torch.unique(torch.cat(found)) if found else torch.zeros(0, dtype=torch.int64)


def _in_passing(asked: List[Any]) -> bool:
    """Whether these rows may be asked for before the reply to a pull was taken."""
    return all(part.rows.numel() <= _ROWS_IN_PASSING for part, _ in asked)


def gradients_of(task: Any, worker: int, step: int, leaves: List[Any], asked: List[Any], dense: int) -> Any:
    """Loss and gradients of `leaves`: dense parameters, then the distinct rows of each table."""
    import torch

    rows = [leaf.index_select(0, inverse.to(leaf.device)) for leaf, (_, inverse) in zip(leaves[dense:], asked)]
    loss = task.step(worker, step, leaves[:dense], rows)
    found = torch.autograd.grad(loss, leaves)
    return float(loss.detach()), list(found)

"""Exact values for parameter servers: every push and every final weight, in any mode.

Gradients do not depend on weights and every number is an integer times a power of two, so order and staleness change no
bit: sync, async, bounded staleness and geo must all reach the same weights (see `oracle`). Every reply carries its
versions, the number of pushes of each worker that it contains, so that each one is compared in any mode. Gradients
differ by worker, step and element, so that a wrong weight shows which push is missing or was added twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Sequence

from reference_trainer.common import oracle
from reference_trainer.common.oracle import LEARNING_RATE, START_QUANTA, STEPS_SALT, Mismatch
from reference_trainer.ps.partition import Plan, Shard, Table
from reference_trainer.ps.store import piece_of

_TABLE_SALT = 9000
#: Distinct rows a worker touches in one step, of which half are the same for all workers; some occur several times.
_ROWS_PER_STEP = 24
#: A wrong shard is explained by so many of its elements first, for up to so many workers.
_DECODED, _MAX_DECODED_WORKERS = 256, 64
#: Workers whose shares are kept.
_KEPT_SHARES = 16


def ids(table: Table, worker: int, step: int) -> Any:
    """The row numbers that a worker looks up in one step, with repetitions: int64[n]."""
    import torch

    index = torch.arange(_ROWS_PER_STEP, dtype=torch.int64)
    common = index < _ROWS_PER_STEP // 2
    found = torch.where(common, step * 13 + index * 101, step * 29 + (worker + 1) * 977 + index * 211) % table.rows
    return torch.cat([found, found[::3], found[::6]])


def occurrences(gradients: Any, inverse: Any, counts: Any) -> Any:
    """Gradients for each repetition of a row whose sum is the row's own gradient: float32[n, width].

    All repetitions but the last carry the whole gradient; the last one subtracts the excess.
    """
    import torch

    last = torch.zeros(counts.numel(), dtype=torch.int64)
    last[inverse] = torch.arange(inverse.numel())
    factor = torch.ones(inverse.numel())
    factor[last] = 2.0 - counts.to(torch.float32)
    return gradients[inverse] * factor.unsqueeze(1)


class ExactValues:
    """All exact values of one plan and number of workers.

    Args:
        steps_of: the steps that one push represents (several in geo mode), by its clock.
        pushes: the pushes of each worker.
    """

    def __init__(
        self,
        plan: Plan,
        workers: int,
        device: Any,
        *,
        steps_of: Callable[[int], Sequence[int]] = lambda clock: (clock,),
        pushes: int = oracle.MAX_EXACT_STEPS,
    ) -> None:
        self._plan = plan
        self.steps_of = steps_of
        self.pushes = pushes
        self._workers = workers
        self._device = device
        self._salts = {p.name: STEPS_SALT + number for number, p in enumerate(plan.dense)}
        self._sizes = {p.name: p.elements for p in plan.dense}
        self._known: dict[tuple[int, int, int], _ShardValues] = {}

    def start(self, shard: Shard) -> Any:
        """The weights of a shard before the first push: float32[elements]."""
        return self._values(shard).units * START_QUANTA

    def push(self, shard: Shard, worker: int, clock: int) -> Any:
        """The gradient of one push of a worker for this shard."""
        values = self._values(shard)
        return values.share(worker) * sum(values.pattern(step) for step in self.steps_of(clock))

    def final(self, shard: Shard) -> Any:
        """The weights of a shard after every worker's every push."""
        expected = ExpectedShard(self, shard, self._workers)
        expected.advance([[self.pushes] * self._workers])
        return expected.values

    def start_rows(self, table: int, rows: Any) -> Any:
        """Rows of a table before the first push: float32[n, width]."""
        return self._units(table, rows) * START_QUANTA

    def row_gradients(self, table: int, rows: Any, worker: int, step: int) -> Any:
        """A worker's gradient of one step for these distinct rows, if it touches them."""
        index, kind = self._index(table, rows), self._plan.tables[table]
        size, salt = kind.rows * kind.width, _TABLE_SALT + table
        pattern = oracle.pattern_at(index + oracle.shift_of(step, self._workers), self._workers, size, salt)
        return oracle.units_at(index, salt) * pattern * oracle.share_at(index, worker, self._workers, size)

    def push_of_rows(self, table: int, worker: int, clock: int) -> tuple[Any, Any]:
        """The rows that one push of a worker touches, and their gradients summed over its steps."""
        import torch

        found: tuple[Any, Any] = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, self._plan.tables[table].width))
        for step in self.steps_of(clock):
            rows = torch.unique(ids(self._plan.tables[table], worker, step))
            gradients = self.row_gradients(table, rows.to(self._device), worker, step)
            found = (rows, gradients) if not found[0].numel() else summed_rows(found, (rows, gradients))
        return found

    def touched(self, table: int, steps: int) -> Any:
        """Every row that any worker touches in any step, and the row after each of these, sorted."""
        import torch

        kind = self._plan.tables[table]
        found = [ids(kind, worker, step) for worker in range(self._workers) for step in range(steps)]
        rows = torch.cat([*found, *((part + 1) % kind.rows for part in found)]) if found else torch.zeros(0).long()
        return torch.unique(rows)

    def compare(self, label: str, rank: int, shard: Shard, got: Any, expected: Any) -> Mismatch | None:
        """None if a shard holds the right bits, else whose pushes explain its wrong elements."""
        found = oracle.compare(label, rank, got, expected)
        if found is None:
            return None
        parameter, index = shard.place_of(found.index)
        where = f"element {index} of {parameter}"
        difference = (expected - got) / LEARNING_RATE
        return self._explained(found, where, difference, lambda worker, clock: self.push(shard, worker, clock))

    def compare_rows(self, label: str, rank: int, table: int, rows: Any, got: Any, expected: Any) -> Mismatch | None:
        """The same for rows of a table."""
        import torch

        found = oracle.compare(label, rank, got.flatten(), expected.flatten())
        if found is None:
            return None
        kind = self._plan.tables[table]
        row, column = int(rows[found.index // kind.width]), found.index % kind.width
        where = "row %d, column %d of table %s" % (row, column, kind.name)

        def pushed(worker: int, clock: int) -> Any:
            touched, gradients = self.push_of_rows(table, worker, clock)
            whole = torch.zeros(rows.numel(), kind.width)
            here = torch.isin(touched, rows)
            whole[torch.searchsorted(rows, touched[here])] = gradients[here]
            return whole.flatten()

        return self._explained(found, where, ((expected - got) / LEARNING_RATE).flatten(), pushed)

    def _explained(self, found: Mismatch, where: str, difference: Any, pushed: Callable[[int, int], Any]) -> Mismatch:
        """The mismatch with the pushes that are missing or were added too often, if these explain every element."""
        times, clock = self._decode(difference, pushed) if found.wrong > 1 or found.elements == 1 else ({}, 0)
        texts = [_count_text(worker, clock, count) for worker, count in sorted(times.items())]
        why = " and ".join(texts) if texts else found.explanation
        counts = {str(worker): 1 + count for worker, count in times.items()}
        return replace(found, contributions=counts, explanation=f"{where}: {why}")

    def _decode(self, difference: Any, pushed: Callable[[int, int], Any]) -> tuple[dict[int, int], int]:
        """How often too many the push of one clock was added, by worker, and the clock; nothing if that is not it."""
        import torch

        places = difference.nonzero().flatten()[:_DECODED].tolist()
        if not bool(torch.isfinite(difference).all()) or self._workers > _MAX_DECODED_WORKERS:
            return {}, 0
        for clock in range(min(self.pushes, oracle.MAX_EXACT_STEPS)):
            parts = [pushed(worker, clock) for worker in range(self._workers)]
            counts = self._counts(torch.stack(parts)[:, places].t().tolist(), difference[places].tolist())
            # The few elements that were decoded must explain all.
            total = sum(part * float(counts.get(worker, 0)) for worker, part in enumerate(parts))
            if counts and torch.equal(total, difference):
                return counts, clock
        return {}, 0

    @staticmethod
    def _counts(rows: list[list[float]], differences: list[float]) -> dict[int, int]:
        """The counts of each worker by the first elements with the digits of each window of workers.

        `rows` are what each worker pushes to each element.
        """
        found: dict[int, int] = {}
        windows: set[int] = set()
        for pushes, wanted in zip(rows, differences):
            known = [worker for worker, push in enumerate(pushes) if push]
            if not known or known[0] // oracle.WINDOW in windows:
                continue
            quantum = pushes[known[0]] / oracle.digit(known[0])
            if any(pushes[worker] != quantum * oracle.digit(worker) for worker in known):
                continue
            windows.add(known[0] // oracle.WINDOW)
            left = wanted / quantum
            if left != int(left) or abs(left) >= 1 << 24:
                return {}
            number, first = int(left), known[0] - known[0] % oracle.WINDOW
            for worker in range(first, first + oracle.WINDOW):
                times = (number + 1) % oracle.BASE - 1
                number = (number - times) // oracle.BASE
                if times:
                    found[worker] = times
            if number:
                return {}
        return found

    def _values(self, shard: Shard) -> _ShardValues:
        key = (shard.number, shard.begin, id(shard))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _ShardValues(shard, self._workers, self._device, self._salts, self._sizes)
        return found

    def _index(self, table: int, rows: Any) -> Any:
        import torch

        width = self._plan.tables[table].width
        return rows.unsqueeze(1) * width + torch.arange(width, device=self._device)

    def _units(self, table: int, rows: Any) -> Any:
        return oracle.units_at(self._index(table, rows), _TABLE_SALT + table)


class _ShardValues:
    """What the values of one shard consist of: units, the share of each worker, and the pattern of each step."""

    def __init__(self, shard: Shard, workers: int, device: Any, salts: dict[str, int], sizes: dict[str, int]) -> None:
        import torch

        self._workers = workers
        self._pieces: list[tuple[Any, int]] = []
        #: By parameter size: each piece's element numbers.
        self._indices: list[tuple[Any, int]] = []
        units: list[Any] = []
        beyond = oracle.shift_of(oracle.MAX_EXACT_STEPS, workers)
        for piece in shard.pieces:
            begin, count, name = piece.block.begin, piece.block.elements, piece.block.parameter
            long = torch.arange(begin, begin + count + beyond, dtype=torch.int64, device=device)
            # The pattern of a step is a slice: computing it costs more than sending it.
            self._pieces.append((oracle.pattern_at(long, workers, sizes[name], salts[name]), count))
            self._indices.append((long[:count], sizes[name]))
            units.append(oracle.units_at(long[:count], salts[name]))
        self.units = torch.cat(units)
        self._shares: dict[int, Any] = {}

    def share(self, worker: int) -> Any:
        """Units times the part of a worker: float32[elements]."""
        import torch

        found = self._shares.get(worker)
        if found is None:
            parts = [oracle.share_at(index, worker, self._workers, size) for index, size in self._indices]
            found = self.units * torch.cat(parts)
            if len(self._shares) < _KEPT_SHARES:
                self._shares[worker] = found
        return found

    def pattern(self, step: int) -> Any:
        """The pattern of a step: float32[elements]."""
        import torch

        at = oracle.shift_of(step, self._workers)
        parts = [whole[at : at + count] for whole, count in self._pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class ExpectedShard:
    """The content of a shard after the pushes that its versions name: those that are contained, by part and worker."""

    def __init__(self, exact: ExactValues, shard: Shard, workers: int) -> None:
        self.values = exact.start(shard)
        self._exact = exact
        self._shard = shard
        self._workers = workers
        self._has: list[list[int]] = []
        self._latest: dict[tuple[int, int], Any] = {}

    def advance(self, versions: Sequence[Sequence[int]]) -> str:
        """Add pushes until `values` have these versions; returns what is impossible about them, or nothing."""
        if not self._has:
            self._has = [[0] * self._workers for _ in versions]
        size = self._shard.elements if len(self._has) == 1 else piece_of(self._shard.elements)
        added: dict[tuple[int, int], Any] = {}
        for part, (has, wanted) in enumerate(zip(self._has, versions)):
            for worker in range(self._workers):
                if wanted[worker] < has[worker]:
                    return f"holds {wanted[worker]} pushes of worker {worker}, and held {has[worker]} before"
                if wanted[worker] > self._exact.pushes:
                    return f"claims to hold {wanted[worker]} pushes of worker {worker}"
                for clock in range(has[worker], wanted[worker]):
                    push = added.get((worker, clock))
                    if push is None:
                        push = added[worker, clock] = self._exact.push(self._shard, worker, clock)
                    mine = slice(part * size, (part + 1) * size)
                    self.values[mine].sub_(push[mine], alpha=LEARNING_RATE)
                has[worker] = wanted[worker]
        return ""


class ExpectedRows:
    """The rows of a table on one server that any worker touches, after the pushes that its versions name."""

    def __init__(self, exact: ExactValues, table: int, rows: Any, workers: int) -> None:
        self.rows = rows
        self.values = exact.start_rows(table, rows)
        self._exact = exact
        self._table = table
        self._has = [0] * workers

    def advance(self, versions: Sequence[int]) -> str:
        """The same as for shards."""
        import torch

        for worker, wanted in enumerate(versions):
            has = self._has[worker]
            if wanted < has:
                return f"holds {wanted} pushes of worker {worker}, and held {has} before"
            if wanted > self._exact.pushes:
                return f"claims to hold {wanted} pushes of worker {worker}"
            for clock in range(has, wanted):
                touched, gradients = self._exact.push_of_rows(self._table, worker, clock)
                here = torch.isin(touched, self.rows)
                places = torch.searchsorted(self.rows, touched[here])
                self.values.index_add_(0, places, gradients[here], alpha=-LEARNING_RATE)
            self._has[worker] = wanted
        return ""

    def of(self, rows: Any) -> Any:
        """The expected values of some of the rows."""
        import torch

        return self.values[torch.searchsorted(self.rows, rows)]


def summed_rows(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
    """Rows and numbers of both, each row once with the sum of its numbers."""
    import torch

    both, places = torch.unique(torch.cat([first[0], second[0]]), return_inverse=True)
    numbers = torch.cat([first[1], second[1]])
    return both, torch.zeros(both.numel(), numbers.shape[1]).index_add_(0, places, numbers)


def _count_text(worker: int, clock: int, count: int) -> str:
    if count == -1:
        return f"push {clock} of worker {worker} is missing"
    if count == 1:
        return f"push {clock} of worker {worker} was applied twice"
    return f"push {clock} of worker {worker} was applied {count:+} times too often"


def deduplicated(found: Any) -> tuple[Any, Any, Any]:
    """The sorted distinct row numbers; for each given number its position among them; the count of each."""
    import torch

    rows, inverse, counts = torch.unique(found, return_inverse=True, return_counts=True)
    return rows, inverse, counts

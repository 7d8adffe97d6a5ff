"""Exact values for parameter servers: what every push must be, and what every weight must be at the end, in any mode.

Gradients do not depend on weights and every number is an integer times a power of two, so order and staleness change
no bit: sync, async, bounded staleness and geo must all come to the same weights (see `oracle`). A weight that differs
says whose pushes are missing or were counted twice, because each worker has a digit of its own.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from reference_trainer import oracle
from reference_trainer.oracle import LEARNING_RATE, START_QUANTA, STEPS_SALT, Mismatch
from reference_trainer.ps.plan import Plan, Shard, Table

_TABLE_SALT = 9000
#: Distinct rows a worker touches in one step, of which half are the same for all workers; some come several times.
_ROWS_A_STEP = 24


def ids(table: Table, worker: int, step: int) -> Any:
    """The row numbers that a worker looks up in one step, with repetitions: int64[n]."""
    import torch

    index = torch.arange(_ROWS_A_STEP, dtype=torch.int64)
    common = index < _ROWS_A_STEP // 2
    found = torch.where(common, step * 13 + index * 101, step * 29 + (worker + 1) * 977 + index * 211) % table.rows
    return torch.cat([found, found[::3], found[::6]])


def occurrences(gradients: Any, inverse: Any, counts: Any) -> Any:
    """Gradients for each repetition of a row whose sum is the row's own gradient: float32[n, width].

    All repetitions but the last carry the whole of it, the last takes back what is too much.
    """
    import torch

    last = torch.zeros(counts.numel(), dtype=torch.int64)
    last[inverse] = torch.arange(inverse.numel())
    factor = torch.ones(inverse.numel())
    factor[last] = 2.0 - counts.to(torch.float32)
    return gradients[inverse] * factor.unsqueeze(1)


class Exact:
    """All exact values of one plan and number of workers.

    Args:
        steps_a_push: how many steps one push may stand for, to tell from a wrong weight how many pushes are missing.
    """

    def __init__(self, plan: Plan, workers: int, device: Any, *, steps_a_push: Sequence[int] = (1,)) -> None:
        self._plan = plan
        self._steps_a_push = steps_a_push
        self._workers = workers
        self._device = device
        self._salts = {p.name: STEPS_SALT + number for number, p in enumerate(plan.dense)}
        self._sizes = {p.name: p.elements for p in plan.dense}

    def start(self, shard: Shard) -> Any:
        """The weights of a shard before the first step: float32[elements]."""
        return self._each(shard, lambda index, salt, size: oracle.units_at(index, salt) * START_QUANTA)

    def gradient(self, shard: Shard, worker: int) -> Any:
        """What a worker pushes for this shard, in every step."""

        def share(index: Any, salt: int, size: int) -> Any:
            return oracle.units_at(index, salt) * oracle.share_at(index, worker, self._workers, size)

        return self._each(shard, share)

    def final(self, shard: Shard, steps: int) -> Any:
        """The weights of a shard after every worker's every step."""
        total = self.start(shard)
        for worker in range(self._workers):
            total -= self.gradient(shard, worker) * (LEARNING_RATE * steps)
        return total

    def start_rows(self, table: int, rows: Any) -> Any:
        """Rows of a table before the first step: float32[n, width]."""
        return self._units(table, rows) * START_QUANTA

    def row_gradients(self, table: int, rows: Any, worker: int) -> Any:
        """What a worker pushes for these distinct rows, if it touches them."""
        index = self._index(table, rows)
        kind = self._plan.tables[table]
        share = oracle.share_at(index, worker, self._workers, kind.rows * kind.width)
        return self._units(table, rows) * share

    def final_rows(self, table: int, rows: Any, steps: int) -> Any:
        """These rows after all steps."""
        import torch

        found = self.start_rows(table, rows)
        for worker in range(self._workers):
            times = torch.zeros(rows.numel(), device=self._device)
            for step in range(steps):
                touched = torch.unique(ids(self._plan.tables[table], worker, step)).to(self._device)
                times += torch.isin(rows, touched).to(torch.float32)
            found -= self.row_gradients(table, rows, worker) * (LEARNING_RATE * times).unsqueeze(1)
        return found

    def touched(self, table: int, steps: int) -> Any:
        """Every row that any worker touches in any step, and the row behind each of them, sorted."""
        import torch

        kind = self._plan.tables[table]
        found = [ids(kind, worker, step) for worker in range(self._workers) for step in range(steps)]
        rows = torch.cat([*found, *((part + 1) % kind.rows for part in found)]) if found else torch.zeros(0).long()
        return torch.unique(rows)

    def compare(self, what: str, rank: int, shard: Shard, got: Any, expected: Any) -> Optional[Mismatch]:
        """None when a shard holds the right bits, else whose pushes explain the first wrong element of it."""
        found = oracle.compare(what, rank, got, expected)
        if found is None:
            return None
        parameter, index = shard.place_of(found.index)
        unit = self._unit(index, self._salts[parameter])
        where = "element %d of %s" % (index, parameter)
        return self._explained(found, where, unit, index, self._sizes[parameter])

    def compare_rows(self, what: str, rank: int, table: int, rows: Any, got: Any, expected: Any) -> Optional[Mismatch]:
        """The same for rows of a table."""
        found = oracle.compare(what, rank, got.flatten(), expected.flatten())
        if found is None:
            return None
        kind = self._plan.tables[table]
        row, column = int(rows[found.index // kind.width]), found.index % kind.width
        index = row * kind.width + column
        where = "row %d, column %d of table %s" % (row, column, kind.name)
        return self._explained(found, where, self._unit(index, _TABLE_SALT + table), index, kind.rows * kind.width)

    def _unit(self, index: int, salt: int) -> float:
        import torch

        return float(oracle.units_at(torch.tensor([index]), salt)[0])

    def _explained(self, found: Mismatch, where: str, unit: float, index: int, elements: int) -> Mismatch:
        off = float(found.expected) - float(found.got)
        times: Dict[str, int] = {}
        if found.wrong > 1 or elements == 1:
            quanta = off / (unit * LEARNING_RATE)
            for steps in self._steps_a_push:
                times = times or oracle.off_by(quanta / steps, index, elements, self._workers)
        told = [_told(worker, count) for worker, count in sorted(times.items(), key=lambda item: int(item[0]))]
        why = " and ".join(told) if told else found.explanation
        counts = {worker: 1 + count for worker, count in times.items()}
        return Mismatch(
            found.operation,
            found.rank,
            found.elements,
            found.wrong,
            found.index,
            found.expected,
            found.got,
            found.flipped_bits,
            counts,
            "%s: %s" % (where, why),
        )

    def _each(self, shard: Shard, values: Any) -> Any:
        import torch

        parts: List[Any] = []
        for piece in shard.pieces:
            begin = piece.block.begin
            index = torch.arange(begin, begin + piece.block.elements, dtype=torch.int64, device=self._device)
            name = piece.block.parameter
            parts.append(values(index, self._salts[name], self._sizes[name]))
        return torch.cat(parts)

    def _index(self, table: int, rows: Any) -> Any:
        import torch

        width = self._plan.tables[table].width
        return rows.unsqueeze(1) * width + torch.arange(width, device=self._device)

    def _units(self, table: int, rows: Any) -> Any:
        return oracle.units_at(self._index(table, rows), _TABLE_SALT + table)


def _told(worker: str, count: int) -> str:
    if count == -1:
        return "a push of worker %s is missing" % worker
    if count == 1:
        return "a push of worker %s was applied twice" % worker
    return "worker %s's pushes were applied %+d times too often" % (worker, count)


def deduplicated(found: Any) -> Tuple[Any, Any, Any]:
    """Distinct row numbers, sorted; for each given one its place among them; how often each came."""
    import torch

    rows, inverse, counts = torch.unique(found, return_inverse=True, return_counts=True)
    return rows, inverse, counts

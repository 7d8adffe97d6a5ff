"""What one server holds: its shards of dense parameters and its rows of tables, on its device, with a lock for each."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Tuple

from reference_trainer.ps.memory import Numbers
from reference_trainer.ps.plan import Plan, Shard

#: A large shard that is added while it comes is added by so many numbers at most: 256 KiB stay in a processor's cache.
PIECE = 1 << 16
#: And in so many pieces at least, because only the last one is added when all of it is there.
_LEAST_PIECES = 8


class Store:
    """The numbers of one server.

    Args:
        device: a torch device; what comes and goes over sockets lies on the host in any case.
    """

    def __init__(self, plan: Plan, server: int, device: Any) -> None:
        import torch

        self.shards = plan.shards[server]
        self.tables = plan.tables
        self.device = device
        self.on_host = device.type == "cpu"
        self._servers = plan.servers
        self._server = server
        elements = plan.elements_of(server)
        # Memory that sockets can read without a copy, where the device is the host.
        self._host = Numbers(elements if self.on_host else 0)
        self.dense = self._host.tensor if self.on_host else torch.zeros(elements, device=device)
        self.rows = [torch.zeros(plan.rows_of(server, table), table.width, device=device) for table in plan.tables]
        # Slicing costs as much as adding a small shard: everything is sliced once.
        self._parts = [self.dense[shard.begin : shard.begin + shard.elements] for shard in self.shards]
        self._views = [self._host.bytes_of(shard.begin, shard.elements) for shard in self.shards if self.on_host]
        self._pieces = [part.split(piece_of(part.numel())) for part in self._parts]
        self._piece_views = [
            [view[at : at + 4 * size] for at in range(0, len(view), 4 * size)]
            for view, size in ((view, piece_of(len(view) // 4)) for view in self._views)
        ]
        self._locks = [threading.Lock() for _ in self.shards]
        self._row_locks = [threading.Lock() for _ in plan.tables]

    @property
    def dense_bytes(self) -> int:
        """Bytes of dense parameters."""
        return int(self.dense.numel()) * 4

    @property
    def table_bytes(self) -> int:
        """Bytes of table rows."""
        return sum(int(rows.numel()) * 4 for rows in self.rows)

    def row_numbers(self, table: int) -> Any:
        """The numbers, in the whole table, of the rows that lie here: int64[rows]."""
        import torch

        count = self.rows[table].shape[0]
        return torch.arange(count, dtype=torch.int64, device=self.device) * self._servers + self._server

    def fill(self, dense: Callable[[Shard], Any], rows: Callable[[int, Any], Any]) -> None:
        """New values everywhere: `dense` gives those of a shard, `rows` those of rows of a table."""
        for shard in self.shards:
            self.part(shard).copy_(dense(shard))
        for table, held in enumerate(self.rows):
            numbers = self.row_numbers(table)
            step = max(1, (1 << 20) // max(1, held.shape[1]))
            for begin in range(0, held.shape[0], step):
                held[begin : begin + step].copy_(rows(table, numbers[begin : begin + step]))

    def part(self, shard: Shard) -> Any:
        """A shard's own numbers."""
        return self._parts[shard.number]

    def apply(self, shard: Shard, numbers: Any, factor: float) -> None:
        """Add `factor` times `numbers` (on the host) to a shard."""
        with self._locks[shard.number]:
            self._parts[shard.number].add_(numbers if self.on_host else numbers.to(self.device), alpha=factor)

    def apply_piece(self, shard: Shard, piece: int, numbers: Any, factor: float) -> None:
        """The same for one piece of a shard, on the host alone."""
        with self._locks[shard.number]:
            self._pieces[shard.number][piece].add_(numbers, alpha=factor)

    def pieces(self, shard: Shard) -> int:
        """How many pieces a shard has."""
        return len(self._pieces[shard.number])

    def read_piece(self, shard: Shard, piece: int, into: Any) -> None:
        """Copy one piece of a shard, whole as of one moment."""
        with self._locks[shard.number]:
            into.copy_(self._pieces[shard.number][piece])

    def view_of_piece(self, shard: Shard, piece: int) -> memoryview:
        """The bytes of a piece where they lie, as `view` gives those of the shard."""
        return self._piece_views[shard.number][piece]

    def apply_rows(self, table: int, rows: Any, numbers: Any, factor: float) -> None:
        """Add to some rows, given by distinct numbers in the whole table."""
        if not rows.numel():
            return
        if not self.on_host:
            rows, numbers = rows.to(self.device), numbers.to(self.device)
        local = rows.div(self._servers, rounding_mode="floor") if self._servers > 1 else rows
        with self._row_locks[table]:
            add_rows(self.rows[table], local, numbers, factor)

    def read(self, shard: Shard, into: Any) -> None:
        """Copy a shard to the host, whole as of one moment."""
        with self._locks[shard.number]:
            into.copy_(self.part(shard))

    def view(self, shard: Shard) -> memoryview:
        """A shard's bytes where they lie, without a copy; only on the host, and only while nobody changes them."""
        return self._views[shard.number]

    def read_rows(self, table: int, rows: Any, into: Any) -> None:
        """Copy some rows to the host: float32[n, width]."""
        import torch

        local = rows.div(self._servers, rounding_mode="floor") if self._servers > 1 else rows
        with self._row_locks[table]:
            if self.on_host:
                torch.index_select(self.rows[table], 0, local, out=into)
            else:
                into.copy_(self.rows[table][local.to(self.device)])

    def place_is_here(self, given: Numbers, count: int, table: int) -> bool:
        """Whether the first `count` of these are distinct, sorted numbers of rows that lie on this server."""
        if not count:
            return True
        # Asking a tensor for one number takes as long as all of this.
        if given.integers[0] < 0 or given.integers[count - 1] >= self.tables[table].rows:
            return False
        rows = given.tensor[:count]
        if count > 1 and not bool((rows[1:] > rows[:-1]).all()):
            return False
        return self._servers == 1 or bool((rows.remainder(self._servers) == self._server).all())


class Slot:
    """What one worker has pushed and nobody has applied yet, and what it is sent: allocated once.

    With `keeps` it has room for all shards of a push; otherwise for one at a time.
    `rows[t]` of table t is int64[capacity], `held[t]` of them in use; `row_numbers[t]` is float32[capacity, width].
    """

    def __init__(self, store: Store, plan: Plan, *, capacity: Callable[[int], int], keeps: bool) -> None:
        import torch

        pinned = not store.on_host
        largest = max([shard.elements for shard in store.shards] + [0])
        # What is applied at once may overwrite what was applied before: memory that stays in the processor's cache.
        self.dense = Numbers(sum(shard.elements for shard in store.shards) if keeps else largest, pinned=pinned)
        begins = [shard.begin if keeps else 0 for shard in store.shards]
        ends = [begin + shard.elements for begin, shard in zip(begins, store.shards)]
        self._parts = [self.dense.tensor[begin:end] for begin, end in zip(begins, ends)]
        self._views = [self.dense.bytes_of(begin, end - begin) for begin, end in zip(begins, ends)]
        self.rows = [Numbers(capacity(t), dtype=torch.int64) for t in range(len(plan.tables))]
        self.row_numbers = [Numbers(capacity(t) * table.width, pinned=pinned) for t, table in enumerate(plan.tables)]
        #: The rows of a look-up, apart from those of an update that is not applied yet.
        self.looked_up = [Numbers(capacity(t), dtype=torch.int64) for t in range(len(plan.tables))]
        self.held = [0] * len(plan.tables)
        #: How many rows the last look-up had, until an update was about the same ones.
        self.asked = [-1] * len(plan.tables)
        self.outgoing = Numbers(largest, pinned=pinned)
        self.outgoing_rows = [Numbers(capacity(t) * table.width) for t, table in enumerate(plan.tables)]
        self.widths = [table.width for table in plan.tables]
        self._pieces: Dict[int, List[Tuple[Any, memoryview]]] = {}

    def part(self, shard: Shard) -> Any:
        """What was pushed for a shard: float32[elements]."""
        return self._parts[shard.number]

    def view(self, shard: Shard) -> memoryview:
        """The bytes of that part."""
        return self._views[shard.number]

    def pieces(self, shard: Shard) -> List[Tuple[Any, memoryview]]:
        """For each piece of a large shard the same memory, to take it to, one after the other: tensor and bytes."""
        found = self._pieces.get(shard.elements)
        if found is None:
            size = piece_of(shard.elements)
            whole, rest = divmod(shard.elements, size)
            sizes = [size] * whole + ([rest] if rest else [])
            found = [(self.dense.tensor[:size], self.dense.bytes_of(0, size)) for size in sizes]
            self._pieces[shard.elements] = found
        return found

    def copy_piece(self, store: Store, shard: Shard, piece: int) -> memoryview:
        """A copy of a piece of a shard, at its place in `outgoing`: its bytes."""
        begin = piece * piece_of(shard.elements)
        size = min(piece_of(shard.elements), shard.elements - begin)
        store.read_piece(shard, piece, self.outgoing.tensor[begin : begin + size])
        return self.outgoing.bytes_of(begin, size)

    def row_part(self, table: int) -> Any:
        """What was pushed for `rows_held(table)`: float32[n, width]."""
        width, count = self.widths[table], self.held[table]
        return self.row_numbers[table].tensor[: count * width].view(count, width)

    def hold_looked_up(self, table: int) -> None:
        """The update is about the rows that were looked up last."""
        self.rows[table], self.looked_up[table] = self.looked_up[table], self.rows[table]
        self.asked[table] = -1

    def rows_held(self, table: int) -> Any:
        """The rows that a push speaks of: int64[n]."""
        return self.rows[table].tensor[: self.held[table]]


def piece_of(elements: int) -> int:
    """How many numbers of a shard of so many are added at once, where it is added while it comes."""
    return max(1, min(PIECE, -(-elements // _LEAST_PIECES)))


def add_rows(table: Any, rows: Any, numbers: Any, factor: float) -> None:
    """Add `factor` times `numbers` to distinct rows. `index_add_` would do the same, row by row and more slowly."""
    table.index_copy_(0, rows, table.index_select(0, rows).add_(numbers, alpha=factor))


def sum_slots(store: Store, slots: List[Slot], factor: float) -> None:
    """Apply what all workers pushed: summed in the order of their indices, whatever order they came in."""
    for shard in store.shards:
        total = slots[0].part(shard)
        if len(slots) > 1:
            total = total + slots[1].part(shard)
            for slot in slots[2:]:
                total += slot.part(shard)
        store.apply(shard, total, factor)
    for table in range(len(store.rows)):
        for slot in slots:
            store.apply_rows(table, slot.rows_held(table), slot.row_part(table), factor)

"""Exact values for parameter servers: every push and every final weight, in any mode.

Gradients do not depend on weights and every number is an integer times a power of two, so order and staleness change no
bit: sync, async, bounded staleness and geo must all reach the same weights (see `oracle`). Every reply carries its
versions, the number of pushes of each worker that it contains, so that each one is compared in any mode. Gradients
differ by worker, step and element, so that a wrong weight shows which push is missing or was added twice."""

from __future__ import annotations

import array
import ctypes
import hashlib
import threading
from dataclasses import dataclass, replace
from typing import Any, Callable, Sequence

from reference_trainer.common import oracle
from reference_trainer.common.oracle import LEARNING_RATE, START_QUANTA, STEPS_SALT, Mismatch
from reference_trainer.ps.partition import Plan, Shard, Table

# The parameters of one server, in memory that both torch and a socket can use.


#: A view of bytes at an address. An array of `ctypes` would also work, but each size is a separate class, which must be
#: created and collected.
_view: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
#: PyBUF_WRITE
_WRITABLE = 0x200


class HostTensor:
    """A flat tensor on the host (`pinned`, if possible, for direct copies to a GPU), and its bytes for sockets."""

    def __init__(self, elements: int, *, dtype: Any = None, pinned: bool = False) -> None:
        import torch

        kind = dtype or torch.float32
        try:
            self.tensor = torch.zeros(elements, dtype=kind, pin_memory=pinned and elements > 0)
        except RuntimeError:
            if not pinned:
                raise
            self.tensor = torch.zeros(elements, dtype=kind)
        size = elements * self.tensor.element_size()
        self._item = self.tensor.element_size()
        self._integers: memoryview | None = None
        # The view does not own the memory; the tensor beside it does.
        self.view = _view(self.tensor.data_ptr(), size, _WRITABLE) if size else memoryview(bytearray())

    @property
    def integers(self) -> memoryview:
        """Return the elements as Python integers; the tensor must be of int64."""
        if self._integers is None:
            self._integers = self.view.cast("q")
        return self._integers

    def bytes_of(self, begin: int, elements: int) -> memoryview:
        """Return the bytes of some of the numbers."""
        return self.view[begin * self._item : (begin + elements) * self._item]


def bytes_of(tensor: Any) -> tuple[memoryview, ...]:
    """Return the bytes of a contiguous host tensor, to be kept until sent; empty for an empty tensor."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return ()
    return (_view(tensor.data_ptr(), size, _WRITABLE),)


def empty(rows: int, width: int) -> tuple[Any, tuple[memoryview, ...]]:
    """Return a new float32[rows, width] on the host, to be filled through its bytes."""
    import torch

    tensor = torch.empty(rows, width)
    return tensor, bytes_of(tensor)


def digest(tensors: Sequence[Any]) -> str:
    """Return the SHA-256 over the bytes of these tensors in sequence."""
    found = hashlib.sha256()
    for tensor in tensors:
        # Of a tensor on a GPU this is a copy, which must live as long as the view of its bytes.
        held = tensor.detach().cpu().contiguous()
        for view in bytes_of(held):
            found.update(view)
    return found.hexdigest()


#: A large shard that is added while it arrives is added in chunks of at most this many numbers: 256 KiB stay in a
#: processor's cache.
PIECE = 1 << 16
#: Shards of this size are added while they arrive, unless a run sets another one.
LARGE_BYTES = 1 << 20
#: Smallest number of pieces of such a shard, because only the last one is added after all of it has arrived.
_MIN_PIECES = 8
#: Receive buffers for the pieces of a push to a GPU; they lie in a buffer of a whole shard, which has more pieces.
_GPU_BUFFERS = 3


@dataclass(frozen=True)
class Source:
    """The origin of a push or a read: a worker at a clock. `generation` is 1 for its backup worker, else 0."""

    worker: int
    clock: int
    generation: int = 0


#: Events of a part of the store in their order: a push was added (in synchronous mode to the sum of its round), the sum
#: was added, it was read.
PUSHED, ROUND, READ = range(3)
EVENT_NUMBERS = 4


class History:
    """The order in which pushes were added to each part of a store, and in which it was read."""

    def __init__(self, parts: int) -> None:
        self.parts = [array.array("i") for _ in range(parts)]

    def note(self, part: int, kind: int, source: Source) -> None:
        self.parts[part].extend((kind, source.worker, source.clock, source.generation))

    def data(self) -> bytes:
        """Return the number of events of each part, then all of them."""
        sizes = array.array("i", [len(part) // EVENT_NUMBERS for part in self.parts])
        return sizes.tobytes() + b"".join(part.tobytes() for part in self.parts)


def history_of(data: bytes, parts: int) -> list[list[tuple[int, int, int, int]]]:
    """Return the events of each part, as (kind, worker, clock, generation). Raises ValueError for malformed data."""
    numbers = array.array("i")
    numbers.frombytes(data)
    sizes, at = numbers[:parts].tolist(), parts
    if len(sizes) != parts or min([0, *sizes]) < 0 or at + EVENT_NUMBERS * sum(sizes) != len(numbers):
        raise ValueError(f"a history of {len(numbers)} numbers for {parts} parts")
    found: list[list[tuple[int, int, int, int]]] = []
    for size in sizes:
        flat = numbers[at : at + EVENT_NUMBERS * size].tolist()
        events = iter(flat)
        found.append(list(zip(events, events, events, events)))
        at += EVENT_NUMBERS * size
    return found


def parts_of(elements: int, stream_bytes: int) -> int:
    """Return the number of parts of a shard with versions of their own: its pieces, if it is added while it arrives."""
    return -(-elements // piece_size(elements)) if elements * 4 >= stream_bytes else 1


class Store:
    """The numbers of one server, and for each part of them its versions: how many pushes of each worker it contains.

    On a GPU all threads use its default stream, which runs their copies and sums in the order in which they were
    queued: whoever holds the lock of a shard queues after its previous holder, and need not wait for the end.

    Args:
        device: a torch device; data of sockets are on the host in any case.
        stream_bytes: shards of this size are added while they arrive.
        in_rounds: pushes to shards are summed as they arrive, and `add_round` adds the sum. It takes as much memory as
            the shards, however many workers there are.
    """

    def __init__(
        self,
        plan: Plan,
        server: int,
        device: Any,
        *,
        workers: int = 1,
        stream_bytes: int = LARGE_BYTES,
        in_rounds: bool = False,
    ) -> None:
        import torch

        counts = [parts_of(shard.elements, stream_bytes) for shard in plan.shards[server]]
        self._workers = workers
        self._versions = [[array.array("I", [0] * workers) for _ in range(count)] for count in counts]
        self._row_versions = [array.array("I", [0] * workers) for _ in plan.tables]
        #: The first part of each shard in the history; the tables follow after the shards.
        self._first_parts = [sum(counts[:number]) for number in range(len(counts) + 1)]
        self.history: History | None = None

        self.shards = plan.shards[server]
        self.tables = plan.tables
        self.device = device
        self.on_host = device.type == "cpu"
        self._servers = plan.servers
        self._server = server
        elements = plan.elements_of(server)
        # Memory that sockets can read without a copy, if the device is the host.
        self._host = HostTensor(elements if self.on_host else 0)
        self.dense = self._host.tensor if self.on_host else torch.zeros(elements, device=device)
        self.rows = [torch.zeros(plan.rows_of(server, table), table.width, device=device) for table in plan.tables]
        # Slicing costs as much as adding a small shard: all slices are created once.
        self._parts = [self.dense[shard.begin : shard.begin + shard.elements] for shard in self.shards]
        self._views = [self._host.bytes_of(shard.begin, shard.elements) for shard in self.shards if self.on_host]
        self._pieces = [part.split(piece_size(part.numel())) for part in self._parts]
        self._in_rounds = in_rounds
        #: The targets of pushes, by shard and by part with its own versions: sums, or the numbers themselves.
        added_to = torch.zeros(elements, device=device) if in_rounds else self.dense
        slices = [added_to[shard.begin : shard.begin + shard.elements] for shard in self.shards]
        self._totals = [
            whole.split(piece_size(whole.numel())) if count > 1 else (whole,) for whole, count in zip(slices, counts)
        ]
        #: Whether the sum of each of these parts has a push of this round.
        self._begun = [[False] * count for count in counts]
        self._piece_views = [
            [view[at : at + 4 * size] for at in range(0, len(view), 4 * size)]
            for view, size in ((view, piece_size(len(view) // 4)) for view in self._views)
        ]
        self._locks = [threading.Lock() for _ in self.shards]
        self._row_locks = [threading.Lock() for _ in plan.tables]

    @property
    def dense_bytes(self) -> int:
        return int(self.dense.numel()) * 4

    @property
    def table_bytes(self) -> int:
        return sum(int(rows.numel()) * 4 for rows in self.rows)

    def row_numbers(self, table: int) -> Any:
        """Return the numbers, in the whole table, of the rows on this server: int64[rows]."""
        import torch

        count = self.rows[table].shape[0]
        return torch.arange(count, dtype=torch.int64, device=self.device) * self._servers + self._server

    def begin_history(self) -> None:
        """Record the order of events from here on."""
        self.history = History(self._first_parts[-1] + len(self.tables))

    def _note(self, part: int, kind: int, source: Source) -> None:
        if self.history is not None:
            self.history.note(part, kind, source)

    def _record_push(self, shard: Shard, part: int, source: Source) -> None:
        if not self._in_rounds:
            self._versions[shard.number][part][source.worker] += 1
        self._note(self._first_parts[shard.number] + part, PUSHED, source)

    def _add(self, shard: Shard, part: int, numbers: Any, factor: float) -> None:
        """Add to a part, or begin the sum of its round."""
        begun, total = self._begun[shard.number], self._totals[shard.number][part]
        if self._in_rounds and not begun[part]:
            begun[part] = True
            total.copy_(numbers).mul_(factor)
        else:
            total.add_(numbers, alpha=factor)

    def count(self, part: int, source: Source, *, tables: int) -> None:
        """Count a missing part of a push as added: the rows of a table, or a shard."""
        if part < tables:
            with self._row_locks[part]:
                self._record_row_push(part, source)
        elif part - tables < len(self.shards):
            shard = self.shards[part - tables]
            with self._locks[shard.number]:
                for piece in range(len(self._versions[shard.number])):
                    self._record_push(shard, piece, source)

    def versions(self, shard: Shard, reader: Source | None = None, part: int = -1) -> bytes:
        """Return the versions of one part of a shard or all: uint32[parts, workers]; `reader` records the read."""
        found = b""
        for number, versions in enumerate(self._versions[shard.number]):
            if part in (-1, number):
                found += versions.tobytes()
                if reader is not None:
                    self._note(self._first_parts[shard.number] + number, READ, reader)
        return found

    def fill(self, dense: Callable[[Shard], Any], rows: Callable[[int, Any], Any]) -> None:
        """Set all values: `dense` returns the values of a shard, `rows` those of the given rows of a table."""
        for versions in (*(part for parts in self._versions for part in parts), *self._row_versions):
            versions[:] = array.array("I", [0] * self._workers)
        for shard in self.shards:
            self.part(shard).copy_(dense(shard))
        for table, held in enumerate(self.rows):
            numbers = self.row_numbers(table)
            step = max(1, (1 << 20) // max(1, held.shape[1]))
            for begin in range(0, held.shape[0], step):
                held[begin : begin + step].copy_(rows(table, numbers[begin : begin + step]))

    def part(self, shard: Shard) -> Any:
        return self._parts[shard.number]

    def apply(self, shard: Shard, numbers: Any, factor: float, source: Source) -> None:
        """Add `factor` times `numbers`, the push of one worker, to a shard or to the sum of its round."""
        with self._locks[shard.number]:
            numbers, totals = self.on_device(numbers), self._totals[shard.number]
            for part, mine in enumerate(numbers.split(totals[0].numel()) if len(totals) > 1 else (numbers,)):
                self._record_push(shard, part, source)
                self._add(shard, part, mine, factor)

    def add_round(self, clock: int) -> None:
        """Add the sums of a round, which contains push number `clock` of every worker."""
        for shard in self.shards:
            number = shard.number
            with self._locks[number]:
                numbers = self._pieces[number] if len(self._totals[number]) > 1 else (self._parts[number],)
                for part, total in enumerate(self._totals[number]):
                    # If no push arrived, which was reported, the sum still holds the previous round.
                    if self._begun[number][part]:
                        numbers[part].add_(total)
                    versions = self._versions[number][part]
                    versions[:] = array.array("I", [version + 1 for version in versions])
                    self._note(self._first_parts[number] + part, ROUND, Source(0, clock))
                self._begun[number] = [False] * len(self._begun[number])

    def event(self) -> Any:
        """Return an event at the end of everything that was queued for a GPU so far; None on the host."""
        if self.on_host:
            return None
        import torch

        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def on_device(self, numbers: Any) -> Any:
        """Return `numbers` on the device of the store, after they have been copied."""
        return numbers if self.on_host else numbers.to(self.device)

    def apply_piece(self, shard: Shard, piece: int, numbers: Any, factor: float, source: Source) -> None:
        """Apply one piece of a shard. A GPU may still read `numbers` afterwards; see `Slot.free_piece`."""
        with self._locks[shard.number]:
            self._record_push(shard, piece, source)
            if not self.on_host:
                numbers = numbers.to(self.device, non_blocking=True)
            self._add(shard, piece, numbers, factor)

    def pieces(self, shard: Shard) -> int:
        return len(self._pieces[shard.number])

    def read_piece(self, shard: Shard, piece: int, into: Any, reader: Source | None = None) -> bytes:
        """Copy one piece of a shard consistently, and return its versions."""
        with self._locks[shard.number]:
            into.copy_(self._pieces[shard.number][piece])
            return self.versions(shard, reader, piece)

    def view_of_piece(self, shard: Shard, piece: int) -> memoryview:
        """Return the bytes of a piece in place, like those of `view` for the shard."""
        return self._piece_views[shard.number][piece]

    def apply_rows(self, table: int, rows: Any, numbers: Any, factor: float, source: Source) -> None:
        """Add to some rows, given by distinct numbers in the whole table."""
        if not rows.numel():
            with self._row_locks[table]:
                self._record_row_push(table, source)
            return
        rows, numbers = self.on_device(rows), self.on_device(numbers)
        local = rows.div(self._servers, rounding_mode="floor") if self._servers > 1 else rows
        with self._row_locks[table]:
            add_rows(self.rows[table], local, numbers, factor)
            self._record_row_push(table, source)

    def _record_row_push(self, table: int, source: Source) -> None:
        self._row_versions[table][source.worker] += 1
        self._note(self._first_parts[-1] + table, PUSHED, source)

    def read(self, shard: Shard, into: Any, reader: Source | None = None) -> bytes:
        """Copy a shard to the host consistently, and return its versions."""
        with self._locks[shard.number]:
            into.copy_(self.part(shard))
            return self.versions(shard, reader)

    def view(self, shard: Shard) -> memoryview:
        """Return a shard's bytes in place, without a copy; only on the host, and only while nothing changes them."""
        return self._views[shard.number]

    def read_rows(self, table: int, rows: Any, into: Any, reader: Source | None = None) -> bytes:
        """Copy some rows to the host, float32[n, width], and return the versions of the table: uint32[workers]."""
        import torch

        local = rows.div(self._servers, rounding_mode="floor") if self._servers > 1 else rows
        with self._row_locks[table]:
            if self.on_host:
                torch.index_select(self.rows[table], 0, local, out=into)
            else:
                into.copy_(self.rows[table][local.to(self.device)])
            if reader is not None:
                self._note(self._first_parts[-1] + table, READ, reader)
            return self._row_versions[table].tobytes()

    def holds_rows(self, row_numbers: HostTensor, count: int, table: int) -> bool:
        """Return whether the first `count` of these are distinct, sorted numbers of rows on this server."""
        if not count:
            return True
        # Reading one number of a tensor takes as long as all of this.
        if row_numbers.integers[0] < 0 or row_numbers.integers[count - 1] >= self.tables[table].rows:
            return False
        rows = row_numbers.tensor[:count]
        if count > 1 and not bool((rows[1:] > rows[:-1]).all()):
            return False
        return self._servers == 1 or bool((rows.remainder(self._servers) == self._server).all())


class Slot:
    """The buffers of one worker for what it pushes and what is sent to it, allocated once.

    It has room for one shard at a time: a push is added as soon as it has arrived, and the next shard may overwrite it.
    `rows[t]` of table t is int64[capacity], `held[t]` of them in use; `row_numbers[t]` is float32[capacity, width].
    """

    def __init__(self, store: Store, plan: Plan, *, capacity: Callable[[int], int]) -> None:
        import torch

        pinned = not store.on_host
        largest = max([shard.elements for shard in store.shards] + [0])
        # Memory that is used again and again stays in the processor's cache.
        self.dense = HostTensor(largest, pinned=pinned)
        self._parts = [self.dense.tensor[: shard.elements] for shard in store.shards]
        self._views = [self.dense.bytes_of(0, shard.elements) for shard in store.shards]
        self.rows = [HostTensor(capacity(t), dtype=torch.int64, pinned=pinned) for t in range(len(plan.tables))]
        self.row_numbers = [HostTensor(capacity(t) * table.width, pinned=pinned) for t, table in enumerate(plan.tables)]
        #: The rows of a lookup, separate from those of an unapplied update.
        self.looked_up = [HostTensor(capacity(t), dtype=torch.int64, pinned=pinned) for t in range(len(plan.tables))]
        self.held = [0] * len(plan.tables)
        #: The number of rows in the last lookup, until an update referred to them.
        self.last_lookup_count = [-1] * len(plan.tables)
        self.outgoing = HostTensor(largest, pinned=pinned)
        self.outgoing_rows = [
            HostTensor(capacity(t) * table.width, pinned=pinned) for t, table in enumerate(plan.tables)
        ]
        self.widths = [table.width for table in plan.tables]
        self._pieces: dict[int, list[tuple[Any, memoryview]]] = {}
        #: Receive buffers of pieces: a GPU still copies from one while the next piece arrives in another.
        self._buffers = 1 if store.on_host else _GPU_BUFFERS
        self._in_use: list[Any] = [None] * self._buffers

    def part(self, shard: Shard) -> Any:
        """Return the push for a shard: float32[elements]."""
        return self._parts[shard.number]

    def view(self, shard: Shard) -> memoryview:
        """Return the bytes of the push for a shard."""
        return self._views[shard.number]

    def pieces(self, shard: Shard) -> list[tuple[Any, memoryview]]:
        """Return each piece of a large shard: tensor and bytes of its receive buffer, which pieces use in turn."""
        found = self._pieces.get(shard.elements)
        if found is None:
            size = piece_size(shard.elements)
            whole, rest = divmod(shard.elements, size)
            begins = [number % self._buffers * size for number in range(whole + bool(rest))]
            sizes = [size] * whole + ([rest] if rest else [])
            found = [(self.dense.tensor[b : b + n], self.dense.bytes_of(b, n)) for b, n in zip(begins, sizes)]
            self._pieces[shard.elements] = found
        return found

    def free_piece(self, number: int) -> None:
        """Wait until a GPU has copied the earlier piece from this one's buffer; returns at once on the host."""
        event = self._in_use[number % self._buffers]
        if event is not None:
            event.synchronize()
            self._in_use[number % self._buffers] = None

    def piece_queued(self, store: Store, number: int) -> None:
        """Record that a GPU will copy this piece from its buffer."""
        self._in_use[number % self._buffers] = store.event()

    def copy_piece(self, store: Store, shard: Shard, piece: int, reader: Source) -> tuple[memoryview, bytes]:
        """Copy a piece of a shard to its position in `outgoing`; return its bytes and its versions."""
        begin = piece * piece_size(shard.elements)
        size = min(piece_size(shard.elements), shard.elements - begin)
        versions = store.read_piece(shard, piece, self.outgoing.tensor[begin : begin + size], reader)
        return self.outgoing.bytes_of(begin, size), versions

    def row_part(self, table: int) -> Any:
        """Return the push for `rows_held(table)`: float32[n, width]."""
        width, count = self.widths[table], self.held[table]
        return self.row_numbers[table].tensor[: count * width].view(count, width)

    def use_looked_up_rows(self, table: int) -> None:
        """Use the rows of the last lookup for the update."""
        self.rows[table], self.looked_up[table] = self.looked_up[table], self.rows[table]
        self.last_lookup_count[table] = -1

    def rows_held(self, table: int) -> Any:
        """Return the row numbers of a push: int64[n]."""
        return self.rows[table].tensor[: self.held[table]]


def piece_size(elements: int) -> int:
    """Return how many elements of a shard of this size are added at a time while it arrives."""
    return max(1, min(PIECE, -(-elements // _MIN_PIECES)))


def add_rows(table: Any, rows: Any, numbers: Any, factor: float) -> None:
    """Add `factor` times `numbers` to distinct rows. `index_add_` would do the same more slowly, row by row."""
    table.index_copy_(0, rows, table.index_select(0, rows).add_(numbers, alpha=factor))


def add_rows_of_round(store: Store, slots: Sequence[Slot], factor: float, clock: int) -> None:
    """Add all workers' rows of one round, in the order of their indices, whatever the order of arrival."""
    for table in range(len(store.rows)):
        for worker, slot in enumerate(slots):
            store.apply_rows(table, slot.rows_held(table), slot.row_part(table), factor, Source(worker, clock))
            slot.held[table] = 0


_TABLE_SALT = 9000
#: Distinct rows a worker touches in one step, of which half are the same for all workers; some occur several times.
_ROWS_PER_STEP = 24
#: Number of elements that first explain a wrong shard, and the largest number of workers.
_DECODED, _MAX_DECODED_WORKERS = 256, 64
#: Largest number of workers whose shares are kept.
_KEPT_SHARES = 16


def ids(table: Table, worker: int, step: int) -> Any:
    """Return the row numbers that a worker looks up in one step, with repetitions: int64[n]."""
    import torch

    index = torch.arange(_ROWS_PER_STEP, dtype=torch.int64)
    common = index < _ROWS_PER_STEP // 2
    found = torch.where(common, step * 13 + index * 101, step * 29 + (worker + 1) * 977 + index * 211) % table.rows
    return torch.cat([found, found[::3], found[::6]])


def occurrences(gradients: Any, inverse: Any, counts: Any) -> Any:
    """Return gradients for each repetition of a row, whose last one corrects the sum: float32[n, width]."""
    import torch

    last = torch.zeros(counts.numel(), dtype=torch.int64)
    last[inverse] = torch.arange(inverse.numel())
    factor = torch.ones(inverse.numel())
    factor[last] = 2.0 - counts.to(torch.float32)
    return gradients[inverse] * factor.unsqueeze(1)


class ExactValues:
    """All exact values of one plan; `steps_of` gives the steps of a push by its clock, `pushes` their number."""

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
        """Return the weights of a shard before the first push: float32[elements]."""
        return self._values(shard).units * START_QUANTA

    def push(self, shard: Shard, worker: int, clock: int) -> Any:
        """Return the gradient of one push of a worker for this shard."""
        values = self._values(shard)
        return values.share(worker) * sum(values.pattern(step) for step in self.steps_of(clock))

    def final(self, shard: Shard) -> Any:
        """Return the weights of a shard after every worker's every push."""
        expected = ExpectedShard(self, shard, self._workers)
        expected.advance([[self.pushes] * self._workers])
        return expected.values

    def start_rows(self, table: int, rows: Any) -> Any:
        """Return rows of a table before the first push: float32[n, width]."""
        return self._units(table, rows) * START_QUANTA

    def row_gradients(self, table: int, rows: Any, worker: int, step: int) -> Any:
        """Return a worker's gradient of one step for these distinct rows, if it touches them."""
        index, kind = self._index(table, rows), self._plan.tables[table]
        size, salt = kind.rows * kind.width, _TABLE_SALT + table
        pattern = oracle.pattern_at(index + oracle.shift_of(step, self._workers), self._workers, size, salt)
        return oracle.units_at(index, salt) * pattern * oracle.share_at(index, worker, self._workers, size)

    def push_of_rows(self, table: int, worker: int, clock: int) -> tuple[Any, Any]:
        """Return the rows that one push of a worker touches, and their gradients summed over its steps."""
        import torch

        found: tuple[Any, Any] = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, self._plan.tables[table].width))
        for step in self.steps_of(clock):
            rows = torch.unique(ids(self._plan.tables[table], worker, step))
            gradients = self.row_gradients(table, rows.to(self._device), worker, step)
            found = (rows, gradients) if not found[0].numel() else summed_rows(found, (rows, gradients))
        return found

    def touched(self, table: int, steps: int) -> Any:
        """Return every row that any worker touches in any step, and the row after each of these, sorted."""
        import torch

        kind = self._plan.tables[table]
        found = [ids(kind, worker, step) for worker in range(self._workers) for step in range(steps)]
        rows = torch.cat([*found, *((part + 1) % kind.rows for part in found)]) if found else torch.zeros(0).long()
        return torch.unique(rows)

    def compare(self, label: str, rank: int, shard: Shard, got: Any, expected: Any) -> Mismatch | None:
        """Return None if all bits of a shard are right, else the mismatch with the pushes that explain it."""
        found = oracle.compare(label, rank, got, expected)
        if found is None:
            return None
        parameter, index = shard.place_of(found.index)
        where = f"element {index} of {parameter}"
        difference = (expected - got) / LEARNING_RATE
        return self._explain_mismatch(found, where, difference, lambda worker, clock: self.push(shard, worker, clock))

    def compare_rows(self, label: str, rank: int, table: int, rows: Any, got: Any, expected: Any) -> Mismatch | None:
        """Compare rows of a table, as `compare` does for a shard."""
        import torch

        mismatch = oracle.compare(label, rank, got.flatten(), expected.flatten())
        if mismatch is None:
            return None
        kind = self._plan.tables[table]
        row, column = int(rows[mismatch.index // kind.width]), mismatch.index % kind.width
        where = "row %d, column %d of table %s" % (row, column, kind.name)

        def pushed(worker: int, clock: int) -> Any:
            touched, gradients = self.push_of_rows(table, worker, clock)
            whole = torch.zeros(rows.numel(), kind.width)
            here = torch.isin(touched, rows)
            whole[torch.searchsorted(rows, touched[here])] = gradients[here]
            return whole.flatten()

        return self._explain_mismatch(mismatch, where, ((expected - got) / LEARNING_RATE).flatten(), pushed)

    def _explain_mismatch(
        self, mismatch: Mismatch, where: str, difference: Any, pushed: Callable[[int, int], Any]
    ) -> Mismatch:
        """Return the mismatch with the missing or repeated pushes, if these explain every element."""
        times, clock = self._decode(difference, pushed) if mismatch.wrong > 1 or mismatch.elements == 1 else ({}, 0)
        texts = [_count_text(worker, clock, count) for worker, count in sorted(times.items())]
        why = " and ".join(texts) if texts else mismatch.explanation
        counts = {str(worker): 1 + count for worker, count in times.items()}
        return replace(mismatch, contributions=counts, explanation=f"{where}: {why}")

    def _decode(self, difference: Any, pushed: Callable[[int, int], Any]) -> tuple[dict[int, int], int]:
        """Return how often each worker's push of one clock was added in excess, and the clock; empty if unexplained."""
        import torch

        places = difference.nonzero().flatten()[:_DECODED].tolist()
        if not bool(torch.isfinite(difference).all()) or self._workers > _MAX_DECODED_WORKERS:
            return {}, 0
        for clock in range(min(self.pushes, oracle.MAX_EXACT_STEPS)):
            parts = [pushed(worker, clock) for worker in range(self._workers)]
            counts = self._counts(torch.stack(parts)[:, places].t().tolist(), difference[places].tolist())
            # The few decoded elements must explain all of them.
            total = sum(part * float(counts.get(worker, 0)) for worker, part in enumerate(parts))
            if counts and torch.equal(total, difference):
                return counts, clock
        return {}, 0

    @staticmethod
    def _counts(rows: list[list[float]], differences: list[float]) -> dict[int, int]:
        """Return each worker's counts by the first elements of its window; `rows` holds what it pushes to each."""
        counts: dict[int, int] = {}
        windows: set[int] = set()
        for pushes, difference in zip(rows, differences):
            known = [worker for worker, push in enumerate(pushes) if push]
            if not known or known[0] // oracle.WINDOW in windows:
                continue
            quantum = pushes[known[0]] / oracle.digit(known[0])
            if any(pushes[worker] != quantum * oracle.digit(worker) for worker in known):
                continue
            windows.add(known[0] // oracle.WINDOW)
            left = difference / quantum
            if left != int(left) or abs(left) >= 1 << 24:
                return {}
            number, first = int(left), known[0] - known[0] % oracle.WINDOW
            for worker in range(first, first + oracle.WINDOW):
                times = (number + 1) % oracle.BASE - 1
                number = (number - times) // oracle.BASE
                if times:
                    counts[worker] = times
            if number:
                return {}
        return counts

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
    """The components of one shard's values: units, the share of each worker, and the pattern of each step."""

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
        """Return units times the part of a worker: float32[elements]."""
        import torch

        found = self._shares.get(worker)
        if found is None:
            parts = [oracle.share_at(index, worker, self._workers, size) for index, size in self._indices]
            found = self.units * torch.cat(parts)
            if len(self._shares) < _KEPT_SHARES:
                self._shares[worker] = found
        return found

    def pattern(self, step: int) -> Any:
        """Return the pattern of a step: float32[elements]."""
        import torch

        at = oracle.shift_of(step, self._workers)
        parts = [whole[at : at + count] for whole, count in self._pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class ExpectedShard:
    """The expected content of a shard that contains exactly the pushes counted by its versions, by part and worker."""

    def __init__(self, exact: ExactValues, shard: Shard, workers: int) -> None:
        self.values = exact.start(shard)
        self._exact = exact
        self._shard = shard
        self._workers = workers
        self._has: list[list[int]] = []
        self._latest: dict[tuple[int, int], Any] = {}

    def advance(self, versions: Sequence[Sequence[int]]) -> str:
        """Add pushes until `values` have these versions; return a message if these are impossible, else empty."""
        if not self._has:
            self._has = [[0] * self._workers for _ in versions]
        size = self._shard.elements if len(self._has) == 1 else piece_size(self._shard.elements)
        added: dict[tuple[int, int], Any] = {}
        for part, (has, wanted) in enumerate(zip(self._has, versions)):
            for worker in range(self._workers):
                if wanted[worker] < has[worker]:
                    return f"has {wanted[worker]} pushes of worker {worker}, but had {has[worker]} before"
                if wanted[worker] > self._exact.pushes:
                    return f"claims to have {wanted[worker]} pushes of worker {worker}"
                for clock in range(has[worker], wanted[worker]):
                    push = added.get((worker, clock))
                    if push is None:
                        push = added[worker, clock] = self._exact.push(self._shard, worker, clock)
                    mine = slice(part * size, (part + 1) * size)
                    self.values[mine].sub_(push[mine], alpha=LEARNING_RATE)
                has[worker] = wanted[worker]
        return ""


class ExpectedRows:
    """The expected rows of a table on one server that any worker touches, with their pushes by version."""

    def __init__(self, exact: ExactValues, table: int, rows: Any, workers: int) -> None:
        self.rows = rows
        self.values = exact.start_rows(table, rows)
        self._exact = exact
        self._table = table
        self._has = [0] * workers

    def advance(self, versions: Sequence[int]) -> str:
        """Add pushes until the rows have these versions, as `ExpectedShard.advance` does."""
        import torch

        for worker, wanted in enumerate(versions):
            has = self._has[worker]
            if wanted < has:
                return f"has {wanted} pushes of worker {worker}, but had {has} before"
            if wanted > self._exact.pushes:
                return f"claims to have {wanted} pushes of worker {worker}"
            for clock in range(has, wanted):
                touched, gradients = self._exact.push_of_rows(self._table, worker, clock)
                here = torch.isin(touched, self.rows)
                places = torch.searchsorted(self.rows, touched[here])
                self.values.index_add_(0, places, gradients[here], alpha=-LEARNING_RATE)
            self._has[worker] = wanted
        return ""

    def of(self, rows: Any) -> Any:
        """Return the expected values of some of the rows."""
        import torch

        return self.values[torch.searchsorted(self.rows, rows)]


def summed_rows(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the rows and numbers of both, each row once and with the sum of its numbers."""
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


def deduplicate(found: Any) -> tuple[Any, Any, Any]:
    """Return the sorted distinct row numbers, the position of each given number, and the count of each."""
    import torch

    rows, inverse, counts = torch.unique(found, return_inverse=True, return_counts=True)
    return rows, inverse, counts

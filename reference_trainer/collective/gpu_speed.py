"""The GPU of one rank: its speed by precision, memory and copies, and whether its products have the right bits.

The operands are integers of at most 63 in magnitude, and a product sums 4096 of their products: below 2^24, so every
partial sum is exact in float32 in any order. Tensor cores keep at least as many bits (Fasi et al., Numerical behavior
of NVIDIA tensor cores, doi 10.7717/peerj-cs.330). TF32, bfloat16 and float16 hold such integers exactly; the last
rounding to a 16-bit result is that of IEEE 754 and is the same everywhere.

Rows and columns repeat with a period of 61, a prime: 61 x 61 sums, computed on the host in whole numbers, are the
expected values of all elements, and yet neighbouring threads and blocks work on different values.

All measurements are short (about two seconds) and bounded in memory. They are not compared with anything here: the
checks hold the expected figures by model. Every figure is a best and a median of several runs. The best shows the
card's capability, and a distant median shows that other work ran in between.

Copies to the host are made in turns by the ranks on a node, since GPUs share switches and the host's memory; matrix
products and the memory of each GPU are independent of others.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Callable

from reference_trainer.common.framework import GpuState, GpuWatcher, OtherUse, pci_address
from reference_trainer.common.progress import Progress

#: The prime period, the length of each sum, and the largest magnitude of an operand.
PERIOD, DEPTH, LARGEST = 61, 4096, 63
#: float16 ends at 65504, so one operand is scaled by this power of two.
HALF_SCALE = 2.0**-10
#: Rows and columns of the product on a GPU, and on a CPU (for tests).
GPU_SIZE, CPU_SIZE = 4096, 122
#: Time for the repetitions of one precision, and their number.
BUDGET_S, MIN_TURNS, MAX_PRODUCT_TURNS = 0.25, 3, 40
FP32, TF32, BF16, FP16 = "fp32", "tf32", "bf16", "fp16"
PRECISIONS = (FP32, TF32, BF16, FP16)


@dataclass(frozen=True)
class WrongProduct:
    """One repetition with wrong elements: their number, and the first of them with its bits and the expected bits."""

    precision: str
    turn: int
    row: int
    column: int
    got: str
    expected: str
    flipped_bits: str
    wrong: int
    elements: int


@dataclass(frozen=True)
class ExactCompute:
    """The repeated products of one GPU: the number of compared elements, the repetitions, and the wrong results.

    `turns` has the repetitions by precision, `notes` the reason for each precision that was left out.
    """

    turns: dict[str, int] = field(default_factory=dict)
    elements: int = 0
    wrong: list[WrongProduct] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


def operands() -> tuple[list[list[int]], list[list[int]]]:
    """Return the repeating rows of the left and columns of the right operand: `PERIOD` lists of `DEPTH` integers."""
    return _integers(1), _integers(2)


def _integers(seed: int) -> list[list[int]]:
    """Return numbers from -63 to 63 of a linear congruential generator (constants of Numerical Recipes)."""
    state, rows = seed, []
    for _ in range(PERIOD):
        row = []
        for _ in range(DEPTH):
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            row.append((state >> 16) % (2 * LARGEST + 1) - LARGEST)
        rows.append(row)
    return rows


def check(torch: Any, device: Any, on_progress: Callable[[], None], budget_s: float = BUDGET_S) -> ExactCompute:
    """Compute and compare products in each precision that device and torch support, for `budget_s` each."""
    size = CPU_SIZE if device.type == "cpu" else GPU_SIZE
    left, right = operands()
    rows = torch.tensor(left, dtype=torch.float64)
    columns = torch.tensor(right, dtype=torch.float64)
    # Whole numbers below 2^53: exact, whatever the order.
    sums = rows @ columns.t()
    which = (torch.arange(size) % PERIOD).to(device)
    turns: dict[str, int] = {}
    notes: dict[str, str] = {}
    wrong: list[WrongProduct] = []
    elements = 0
    saved = _exact_sums(torch)
    try:
        for precision in PRECISIONS:
            # Such a card has neither TF32 nor bfloat16; AMD's cards report other numbers and have both from 9.0 on.
            if (
                precision in (TF32, BF16)
                and device.type == "cuda"
                and bool(torch.cuda.get_device_capability(device)[0] < 8)
            ):
                continue
            on_progress()
            try:
                done, found = _repeat(torch, device, precision, (rows, columns, sums, which), on_progress, budget_s)
            except RuntimeError as error:
                notes[precision] = str(error).strip().split("\n")[0][:200]
                continue
            turns[precision] = done
            elements += done * size * size
            wrong += found[:2]
    finally:
        _restore(torch, saved)
    return ExactCompute(turns, elements, wrong, notes)


def _repeat(
    torch: Any,
    device: Any,
    precision: str,
    known: tuple[Any, Any, Any, Any],
    on_progress: Callable[[], None],
    budget_s: float,
) -> tuple[int, list[WrongProduct]]:
    """Repeat one product; returns the number of repetitions and the wrong ones."""
    rows, columns, sums, which = known
    kind = {FP32: torch.float32, TF32: torch.float32, BF16: torch.bfloat16, FP16: torch.float16}[precision]
    scale = HALF_SCALE if precision == FP16 else 1.0
    torch.backends.cuda.matmul.allow_tf32 = precision == TF32
    # float64 to a 16-bit type directly: exact for operands, and for the sums the only rounding.
    a = rows.to(kind).to(device)[which]
    b = (columns * scale).to(kind).to(device)[which].t().contiguous()
    expected = (sums * scale).to(torch.float32).to(kind).to(device)[which][:, which]
    wrong: list[WrongProduct] = []
    began, turn = time.monotonic(), 0
    while turn < MIN_TURNS or (turn < MAX_PRODUCT_TURNS and time.monotonic() - began < budget_s):
        product = torch.mm(a, b)
        turn += 1
        if not bool(torch.equal(product, expected)):
            wrong.append(_describe(torch, product, expected, precision, turn))
        on_progress()
    return turn, wrong


def _describe(torch: Any, product: Any, expected: Any, precision: str, turn: int) -> WrongProduct:
    # Not-a-number differs from everything, as it should here.
    odd = (product != expected).flatten()
    place = int(odd.to(torch.int8).argmax())
    row, column = divmod(place, product.shape[1])
    got, right = product[row, column].cpu(), expected[row, column].cpu()
    whole = torch.int32 if got.element_size() == 4 else torch.int16
    bits = (int(got.view(whole)) ^ int(right.view(whole))) & (2 ** (8 * got.element_size()) - 1)
    return WrongProduct(
        precision,
        turn,
        row,
        column,
        repr(float(got)),
        repr(float(right)),
        f"0x{bits:x}",
        int(odd.sum()),
        product.numel(),
    )


_SUMS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_tf32")


def _exact_sums(torch: Any) -> dict[str, Any]:
    """Forbid rounding of partial sums to 16 bits; return the former settings, some of which old torch lacks."""
    settings = torch.backends.cuda.matmul
    saved: dict[str, Any] = {}
    for name in _SUMS:
        try:
            saved[name] = getattr(settings, name)
            setattr(settings, name, False)
        except (AttributeError, AssertionError):
            saved.pop(name, None)
    return saved


def _restore(torch: Any, saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        setattr(torch.backends.cuda.matmul, name, value)


FP8 = "fp8"
#: The measurements, in this order.
PRODUCTS = (FP32, TF32, BF16, FP16, FP8)
MEMORY, TO_DEVICE, TO_HOST, TO_PEER = "memory", "host_to_device", "device_to_host", "peer"
#: Sizes of square matrices: the largest that fits into memory and time is used.
SIZES = (8192, 4096, 2048)
#: One product may take this long, and all of one precision together.
PRODUCT_S, PRECISION_S = 0.06, 0.25
#: Timed runs; the first ones raise the clocks.
WARM_UP, MIN_RUNS, MAX_RUNS = 3, 5, 30
#: Bytes of one copy on the card (far more than its cache), and to and from the host or a peer.
COPY_BYTES, HOST_BYTES = 1 << 29, 1 << 27
#: The largest part of the free memory that is used.
PART_OF_MEMORY = 0.25
#: After this time no further part begins.
DEADLINE_S = 8.0
#: Largest number of ranks on a node that take turns.
MAX_TURNS = 16
#: Compute capability of the first cards with fp8 products, and with tf32 and bf16.
_FP8_FROM, _TF32_FROM = (8, 9), (8, 0)


@dataclass(frozen=True)
class Speed:
    """One measured speed of a GPU.

    Args:
        what: a precision (`bf16`: matrix multiplication), `memory`, `host_to_device`, `device_to_host` or `peer`.
        best, median: of the `runs`, in TFLOP/s for matrix multiplication, otherwise GB/s (10^9 bytes); `memory` counts
            bytes read and written.
        size: rows of the matrices, or bytes of one copy.
    """

    what: str
    best: float
    median: float
    size: int
    runs: int


@dataclass(frozen=True)
class GpuReport:
    """The GPU of one rank.

    Args:
        pci: its PCI address; empty if unknown.
        notes: why figures are missing, by `what`.
        skipped: why nothing was measured.
        state: clocks, heat, power and link during the measurement.
        before, after: use of the GPU by others before and after it.
        peer_links, switch_links: NVLinks to the peer GPU and to an NVSwitch; None if unknown.
        shared_by: number of ranks on this node per device that this rank sees.
    """

    model: str = ""
    pci: str = ""
    speeds: list[Speed] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    skipped: str = ""
    state: GpuState = field(default_factory=GpuState)
    before: OtherUse = field(default_factory=OtherUse)
    after: OtherUse = field(default_factory=OtherUse)
    exact: ExactCompute = field(default_factory=ExactCompute)
    peer: str = ""
    peer_links: int | None = None
    switch_links: int | None = None
    shared_by: int = 1
    took_s: float = 0.0

    @property
    def in_use(self) -> bool:
        """Return whether other processes used the GPU, so that the figures show only the remaining capacity."""
        return self.before.busy or self.after.busy


def measure(
    torch: Any,
    progress: Progress,
    device: Any,
    take_turn: Callable[[Callable[[], None]], None],
    *,
    local_ranks: int = 1,
) -> GpuReport:
    """Measure the GPU of this rank.

    Args:
        take_turn: runs a function while no other rank of the node runs its own; every rank must call it once.
    """
    return _Measurement(torch, progress, device, local_ranks).run(take_turn)


class _Measurement:
    """All measurements of one GPU."""

    def __init__(self, torch: Any, progress: Progress, device: Any, local_ranks: int) -> None:
        self._torch = torch
        self._progress = progress
        self._device = device
        self._devices = torch.cuda.device_count()
        self._shared_by = -(-local_ranks // max(1, self._devices))
        self._began = time.monotonic()
        self._speeds: list[Speed] = []
        self._notes: dict[str, str] = {}
        self._peer_address = ""
        self._peer_links: int | None = None

    def run(self, take_turn: Callable[[Callable[[], None]], None]) -> GpuReport:
        progress, torch = self._progress, self._torch
        index = self._device.index or 0
        progress.entering("timing of the GPU", loading=True)
        torch.cuda.synchronize(self._device)
        self._watcher = watcher = GpuWatcher(index)
        before = watcher.other_use(progress.report_progress)
        progress.left()
        exact = ExactCompute()
        progress.entering("products with known bits")
        short = self._short_of_memory()
        if not short:
            exact = check(torch, self._device, progress.report_progress)
            progress.left()
            progress.entering("timing of products and memory")
            watcher.begin()
            self._measure_products()
            self._guard(MEMORY, self._measure_memory)
            watcher.end()
        progress.left()
        # Every rank takes its turn, measured or not.
        take_turn(self._copies if not short else _do_nothing)
        progress.entering("a check for other use of the GPU")
        torch.cuda.empty_cache()
        after = watcher.other_use(progress.report_progress)
        progress.left()
        return GpuReport(
            torch.cuda.get_device_name(self._device),
            _address(index),
            self._speeds,
            self._notes,
            short,
            watcher.state(),
            before,
            after,
            exact,
            self._peer_address,
            self._peer_links,
            watcher.nvlinks_to(""),
            self._shared_by,
            round(time.monotonic() - self._began, 3),
        )

    def _free_bytes(self) -> int:
        free = int(self._torch.cuda.mem_get_info(self._device)[0])
        return int(free * PART_OF_MEMORY / self._shared_by)

    def _short_of_memory(self) -> str:
        least = _matrix_bytes(SIZES[1])
        free = self._free_bytes()
        if free >= least:
            return ""
        return f"only {free >> 20} MiB of memory are free, and {least >> 20} are needed"

    def _guard(self, what: str, run: Callable[[], None]) -> None:
        """Run one part; a missing feature or a lack of memory becomes a note."""
        if time.monotonic() - self._began > DEADLINE_S:
            self._notes[what] = "there was no time left"
            return
        try:
            run()
        except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
            self._notes[what] = "{}: {}".format(type(error).__name__, str(error).strip().split("\n")[0][:160])

    def _measure_products(self) -> None:
        # AMD's architecture numbers have another meaning; all of its cards here have these formats.
        nvidia = getattr(self._torch.version, "hip", None) is None
        able = tuple(self._torch.cuda.get_device_capability(self._device))
        for precision in PRODUCTS:
            if nvidia and able < {TF32: _TF32_FROM, BF16: _TF32_FROM, FP8: _FP8_FROM}.get(precision, (0, 0)):
                continue
            self._guard(precision, lambda precision=precision: self._product(precision))  # type: ignore[misc]
        self._torch.backends.cuda.matmul.allow_tf32 = False

    def _product(self, precision: str) -> None:
        torch = self._torch
        torch.backends.cuda.matmul.allow_tf32 = precision == TF32
        multiply = self._multiplication(precision, SIZES[-1])
        trial_s = min(self._time_runs(multiply, 2, 0.05))
        for size in SIZES:
            fits = _matrix_bytes(size) <= self._free_bytes()
            if fits and trial_s * (size / SIZES[-1]) ** 3 <= PRODUCT_S or size == SIZES[-1]:
                break
        if size != SIZES[-1]:
            multiply = self._multiplication(precision, size)
        times = self._time_runs(multiply, MAX_RUNS, PRECISION_S)
        self._note(precision, 2.0 * size**3 / 1e12, times, size)

    def _multiplication(self, precision: str, size: int) -> Callable[[], Any]:
        torch, device = self._torch, self._device
        a = torch.randn(size, size, device=device)
        b = torch.randn(size, size, device=device)
        if precision == FP8:
            eight = torch.float8_e4m3fn if getattr(torch.version, "hip", None) is None else torch.float8_e4m3fnuz
            a, b = a.to(eight), b.to(eight).t()
            one = torch.ones((), device=device)
            return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        kind = {BF16: torch.bfloat16, FP16: torch.float16}.get(precision, torch.float32)
        a, b = a.to(kind), b.to(kind)
        out = torch.empty(size, size, device=device, dtype=kind)
        return lambda: torch.mm(a, b, out=out)

    def _measure_memory(self) -> None:
        size = min(COPY_BYTES, self._free_bytes() // 2)
        source = self._torch.ones(size, dtype=self._torch.uint8, device=self._device)
        target = self._torch.empty_like(source)
        times = self._time_runs(lambda: target.copy_(source), MAX_RUNS, PRECISION_S)
        self._note(MEMORY, 2.0 * size / 1e9, times, size)

    def _copies(self) -> None:
        """Measure copies from and to page-locked memory of the host, then to the next GPU."""
        self._progress.entering("timing of copies")
        self._guard(TO_DEVICE, self._host_copies)
        self._guard(TO_PEER, self._peer_copy)
        self._progress.left()

    def _host_copies(self) -> None:
        torch = self._torch
        size = min(HOST_BYTES, self._free_bytes())
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        card = torch.empty(size, dtype=torch.uint8, device=self._device)
        for what, target, source in ((TO_DEVICE, card, host), (TO_HOST, host, card)):
            copy = lambda target=target, source=source: target.copy_(source, non_blocking=True)  # noqa: E731
            times = self._time_runs(copy, 12, 0.2, during=self._watcher.read_link)
            self._note(what, size / 1e9, times, size)

    def _peer_copy(self) -> None:
        torch, mine = self._torch, self._device.index or 0
        if self._devices < 2:
            return
        other = (mine + 1) % self._devices
        if not torch.cuda.can_device_access_peer(mine, other):
            self._notes[TO_PEER] = "GPU %d may not access GPU %d" % (mine, other)
            return
        free = int(torch.cuda.mem_get_info(other)[0] * PART_OF_MEMORY)
        size = min(HOST_BYTES, self._free_bytes(), free)
        target = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", other))
        source = torch.empty(size, dtype=torch.uint8, device=self._device)
        times = self._time_runs(lambda: target.copy_(source, non_blocking=True), 12, 0.2)
        self._note(TO_PEER, size / 1e9, times, size)
        self._peer_address = _address(other)
        self._peer_links = self._watcher.nvlinks_to(self._peer_address) if self._peer_address else None

    def _time_runs(
        self, run: Callable[[], Any], most: int, budget_s: float, *, during: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Return the seconds of each run by the GPU's clock; runs are queued by fives, so that no pause counts."""
        cuda, stream = self._torch.cuda, self._torch.cuda.current_stream(self._device)
        for _ in range(WARM_UP):
            run()
        cuda.synchronize(self._device)
        times: list[float] = []
        began = time.monotonic()
        while len(times) < min(MIN_RUNS, most) or (len(times) < most and time.monotonic() - began < budget_s):
            marks = [cuda.Event(enable_timing=True) for _ in range(min(MIN_RUNS, most) + 1)]
            marks[0].record(stream)
            for mark in marks[1:]:
                run()
                mark.record(stream)
            during()
            marks[-1].synchronize()
            times += [first.elapsed_time(second) / 1e3 for first, second in zip(marks, marks[1:])]
            self._progress.report_progress()
        return times

    def _note(self, what: str, work: float, times: list[float], size: int) -> None:
        best, median = (work / value if value > 0 else 0.0 for value in (min(times), statistics.median(times)))
        self._speeds.append(Speed(what, float(f"{best:.6g}"), float(f"{median:.6g}"), size, len(times)))


def _matrix_bytes(size: int) -> int:
    """Return the memory of two operands in float32, their converted forms, and a result."""
    return 5 * 4 * size * size


def _do_nothing() -> None:
    """Take a turn in which nothing is measured."""


def _address(index: int) -> str:
    try:
        return pci_address(index)
    except (OSError, LookupError):
        return ""


def turns(local_rank: int, local_ranks: int, barrier: Callable[[str], None]) -> Callable[[Callable[[], None]], None]:
    """Return a `take_turn` for `measure`: a node's ranks run in turn, all nodes at once, with `barrier` between."""

    def take(run: Callable[[], None]) -> None:
        if local_ranks > MAX_TURNS:
            run()
            return
        for turn in range(local_ranks):
            if turn == local_rank:
                run()
            barrier(f"turn {turn} of copies to the host")

    return take

"""Exact arithmetic: sums whose every bit is known before any communication.

Every value is a small integer times a power of two, so each partial sum is exact in 32-bit floats (integers below 2^24,
IEEE 754 binary32): any order, any algorithm and any number of ranks must give the same bits. Nothing is averaged,
because with three ranks the result of dividing before summing depends on the order.

In three of four elements each rank's contribution is a digit of its own in base 4, so a sum shows whose contribution is
missing or was added twice. The fourth element has whole numbers of many bits, so that rounding to half precision shows.
The element's own unit (a sign and a power of two that differ from element to element) makes a misplaced chunk visible,
and a pattern of signs and numbers that differs from step to step the value of another step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from reference_trainer.common import arrays

#: Ranks that share the digits of one element: 4^8 quanta leave 8 of 24 bits for steps and batches.
WINDOW = 8
BASE = 4
#: Steps whose exact gradients still sum to less than 2^24 quanta: 21845 x 64 x 8 (for 1/8 quanta) < 2^24.
MAX_EXACT_STEPS = 64
#: Elements of the tensors that are summed: one, an odd number of small ones, 16 KiB (more than a jumbo frame), 1 MiB.
SIZES = (1, 1000, 4096, 262144)
#: The learning rate: a power of two, so that the step is exact too.
LEARNING_RATE = 0.125
FEATURES = 4096
#: One in this many elements has many bits.
MANTISSA_EVERY = 4
#: The most bits of such an element: more than half-precision formats keep (11 at most), few enough for sums.
_MANTISSA_BITS = 20
#: Number of groups of elements by which the pattern shifts from one step to the next.
_SHIFT = 5
#: The salt of the weights that exact steps train, and their start value in units.
STEPS_SALT = 5000
START_QUANTA = 5.0
_BATCH = (3, -2)
#: Number of gathers, each with different values, so that an old result is noticed.
_TURNS = 2
_UNITS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class Mismatch:
    """One wrong tensor, as one rank sees it.

    Args:
        operation: a description of the operation.
        index: first wrong element (row-major); `wrong` of `elements` are wrong.
        expected, got: the `repr`s of that element, which are exact.
        flipped_bits: the bits in which the first wrong element differs.
        contributions: `rank -> times`, for each rank whose contribution is not included exactly once.
        explanation: an explanation in one sentence.
        sender: the process that sent the tensor (`server 1`); empty if several contributed.
    """

    operation: str
    rank: int
    elements: int
    wrong: int
    index: int
    expected: str
    got: str
    flipped_bits: str
    contributions: dict[str, int] = field(default_factory=dict)
    explanation: str = ""
    sender: str = ""


def windows(world_size: int) -> int:
    """Return the number of groups of `WINDOW` ranks."""
    return (world_size + WINDOW - 1) // WINDOW


def digit(rank: int) -> int:
    """Return the quanta that `rank` contributes to the elements of its window."""
    return int(BASE ** (rank % WINDOW))


def total(window: int, world_size: int) -> int:
    """Return the quanta of all ranks of one window together."""
    return sum(digit(rank) for rank in range(window * WINDOW, min((window + 1) * WINDOW, world_size)))


def units(elements: int, salt: int, device: Any) -> Any:
    """Return the unit of each element: float32[elements], a sign times one of eight powers of two."""
    return units_at(arrays.numbers(elements, device), salt)


def units_at(index: Any, salt: int) -> Any:
    """Return the units of these elements: `index` is int64 of any shape, the result float32 of the same."""
    mixed = (index + salt * 7919 + 1) * 40503 & 0xFFFFFFFF
    mixed = mixed ^ (mixed >> 9) ^ (mixed >> 17)
    return arrays.table(_UNITS, (mixed >> 1) & 7) * arrays.floats(1 - 2 * (mixed & 1))


def weight(rank: int) -> int:
    """Return the factor of `rank` in elements of many bits."""
    return 1 + rank % 3


def total_weight(world_size: int) -> int:
    """Return the factors of all ranks together."""
    return sum(weight(rank) for rank in range(world_size))


def mantissa_limit(world_size: int, steps: int = MAX_EXACT_STEPS) -> int:
    """Return the largest number of an element with many bits: all ranks' sum over `steps` stays below 2^24 quanta."""
    return max(1, min(1 << _MANTISSA_BITS, ((1 << 24) - 64) // (steps * total_weight(world_size))))


def mantissas_at(index: Any, salt: int, limit: int) -> Any:
    """Return odd whole numbers up to `limit`, of either sign: float32 of the shape of `index`."""
    mixed = _mix_bits(index, salt)
    return arrays.floats(((mixed >> 1) % limit) | 1) * arrays.floats(1 - 2 * (mixed & 1))


def _mix_bits(index: Any, salt: int) -> Any:
    mixed = (index + salt * 7919 + 77) & 0xFFFFFFFF
    mixed = (mixed * 48271 + 11) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 40503) & 0xFFFFFFFF
    return mixed ^ (mixed >> 13)


def has_many_bits(index: Any, world_size: int) -> Any:
    """Return booleans that tell which elements have many bits."""
    return index // windows(world_size) % MANTISSA_EVERY == MANTISSA_EVERY - 1


def is_tiny(elements: int, world_size: int) -> bool:
    """Return whether a tensor is too small for the digits of all ranks; it then holds multiples of rank + 1."""
    return elements < MANTISSA_EVERY * windows(world_size)


def shift_of(step: int, world_size: int) -> int:
    """Return by how many elements the pattern of a step is shifted against the pattern of step 0."""
    return step * _SHIFT * MANTISSA_EVERY * windows(world_size)


def pattern_at(index: Any, world_size: int, elements: int, salt: int) -> Any:
    """Return the factor of elements for all ranks: a sign or a number. Add `shift_of` to `index` for a step."""
    if is_tiny(elements, world_size):
        return arrays.floats(1 - 2 * (_mix_bits(index, salt) & 1))
    numbers = mantissas_at(index, salt, mantissa_limit(world_size))
    signs = arrays.floats(1 - 2 * (_mix_bits(index, salt) & 1))
    many = arrays.floats(has_many_bits(index, world_size))
    return numbers * many + signs * (1.0 - many)


def contribution(rank: int, world_size: int, elements: int, salt: int, device: Any, step: int = 0) -> Any:
    """Return the input of `rank` to a sum: float32[elements]."""
    index = arrays.numbers(elements, device)
    pattern = pattern_at(index + shift_of(step, world_size), world_size, elements, salt)
    return units_at(index, salt) * pattern * share_at(index, rank, world_size, elements)


def share_at(index: Any, rank: int, world_size: int, elements: int) -> Any:
    """Return the part of `rank` in these elements of a tensor of `elements`: float32 of the shape of `index`."""
    count = windows(world_size)
    if is_tiny(elements, world_size):
        return arrays.full(float(rank + 1), index)
    many = arrays.floats(has_many_bits(index, world_size))
    return many * weight(rank) + (1.0 - many) * arrays.floats(index % count == rank // WINDOW) * digit(rank)


def expected_sum(world_size: int, elements: int, salt: int, device: Any, step: int = 0) -> Any:
    """Return the sum over all ranks in closed form: float32[elements]."""
    index = arrays.numbers(elements, device)
    coded = units_at(index, salt) * pattern_at(index + shift_of(step, world_size), world_size, elements, salt)
    if is_tiny(elements, world_size):
        return coded * (world_size * (world_size + 1) // 2)
    count = windows(world_size)
    totals = [float(total(w, world_size)) for w in range(count)]
    many = arrays.floats(has_many_bits(index, world_size))
    return coded * (many * total_weight(world_size) + (1.0 - many) * arrays.table(totals, index % count))


def coded_units(world_size: int, elements: int, salt: int, device: Any, step: int = 0) -> Any:
    """Return one quantum of each element that holds digits, else 0, to decode a wrong sum: float32[elements]."""
    index = arrays.numbers(elements, device)
    coded = units_at(index, salt) * pattern_at(index + shift_of(step, world_size), world_size, elements, salt)
    if is_tiny(elements, world_size):
        return coded
    return coded * (1.0 - arrays.floats(has_many_bits(index, world_size)))


def compare(
    operation: str, rank: int, got: Any, expected: Any, *, unit: Any = None, world_size: int = 0, quantum: float = 1.0
) -> Mismatch | None:
    """Return None if both tensors have the same bits; otherwise the mismatch, and the contribution that explains it.

    `unit`, `world_size` and `quantum` describe how the sum was coded; without a unit nothing is decoded.
    """
    wrong, index = arrays.count_wrong(got, expected)
    if not wrong:
        return None
    elements = arrays.size(got)
    seen, right = float(got.reshape(-1)[index]), float(expected.reshape(-1)[index])
    flipped = arrays.bits(got, index) ^ arrays.bits(expected, index)
    counts: dict[str, int] = {}
    if unit is not None:
        at = arrays.first_wrong(got, expected, unit)
        if at >= 0:
            there = float(got.reshape(-1)[at]), float(expected.reshape(-1)[at])
            counts = _decode(*there, float(unit[at]) * quantum, at, elements, world_size)
    return Mismatch(
        operation,
        rank,
        elements,
        wrong,
        index,
        repr(right),
        repr(seen),
        f"0x{flipped:08x}",
        counts,
        _explain(counts, flipped, wrong, elements),
    )


def _decode(got: float, expected: float, quantum: float, index: int, elements: int, world_size: int) -> dict[str, int]:
    """Return the ranks whose contributions are not included exactly once; empty if no such sum explains it."""
    if got != got or abs(got) == float("inf"):
        return {}
    quanta = (got - expected) / quantum
    if quanta != int(quanta):
        return {}
    count = windows(world_size)
    if is_tiny(elements, world_size):
        off = int(quanta)
        return {str(abs(off) - 1): 2 if off > 0 else 0} if 1 <= abs(off) <= world_size else {}
    window = index % count
    left = total(window, world_size) + int(quanta)
    if left < 0:
        return {}
    found: dict[str, int] = {}
    for rank in range(window * WINDOW, min((window + 1) * WINDOW, world_size)):
        times = left % BASE
        left //= BASE
        if times != 1:
            found[str(rank)] = times
    return {} if left else found


def _explain(counts: dict[str, int], flipped: int, wrong_count: int, elements: int) -> str:
    if wrong_count == 1 and elements > 1 and bin(flipped).count("1") == 1:
        return f"one bit of one element differs (bit {flipped.bit_length() - 1}): memory or link corruption"
    parts = []
    for rank, times in sorted(counts.items(), key=lambda item: int(item[0])):
        if times == 0:
            parts.append(f"the contribution of rank {rank} is missing")
        else:
            parts.append(f"the contribution of rank {rank} was added {times} times")
    if parts:
        return " and ".join(parts)
    if bin(flipped).count("1") == 1:
        return f"one bit differs (bit {flipped.bit_length() - 1})"
    return "no combination of whole contributions explains this"


Run = Callable[..., Any]


@dataclass(frozen=True)
class ExactResult:
    """The results of a round of exact collectives or steps; `digest` is the SHA-256 of the weights after steps."""

    mismatches: list[Mismatch] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    digest: str = ""


def check_collectives(collectives: Any, rank: int, world_size: int, device: Any) -> ExactResult:
    """Run every collective on known values and compare the results bit by bit.

    Args:
        collectives: does the work: `all_reduce(tensor, what)`, `broadcast(tensor, root, what)`, `all_gather(outputs,
            tensor, what)`, `reduce_scatter(output, inputs, what)`.
        device: of torch, or `arrays.NUMPY` where the collectives use numpy arrays.
    """
    mismatches: list[Mismatch] = []
    done: list[str] = []
    unsupported: list[str] = []

    def judge(what: str, got: Any, expected: Any, unit: Any = None) -> None:
        mismatch = compare(what, rank, got, expected, unit=unit, world_size=world_size)
        done.append(what)
        if mismatch is not None:
            mismatches.append(mismatch)

    for salt, elements in enumerate(SIZES):
        what = f"all_reduce of {elements} elements"
        tensor = contribution(rank, world_size, elements, salt, device)
        collectives.all_reduce(tensor, what)
        judge(
            what,
            tensor,
            expected_sum(world_size, elements, salt, device),
            coded_units(world_size, elements, salt, device),
        )
    for root in _roots(world_size):
        what = f"broadcast of 4096 elements from rank {root}"
        tensor = _sender_values(root, 4096, device) if rank == root else arrays.zeros(4096, device)
        collectives.broadcast(tensor, root, what)
        judge(what, tensor, _sender_values(root, 4096, device))
    for turn in range(_TURNS):
        what = "all_gather of 1000 elements" + (" again" if turn else "")
        outputs = [arrays.zeros(1000, device) for _ in range(world_size)]
        collectives.all_gather(outputs, _sender_values(rank, 1000, device, turn), what)
        for owner, output in enumerate(outputs):
            judge(f"{what}, part of rank {owner}", output, _sender_values(owner, 1000, device, turn))
    for turn in range(_TURNS):
        what = "reduce_scatter of 1000 elements per rank" + (" again" if turn else "")
        salt = 100 + turn * world_size
        parts = [contribution(rank, world_size, 1000, salt + part, device) for part in range(world_size)]
        output = arrays.zeros(1000, device)
        if not collectives.reduce_scatter(output, parts, what):
            unsupported.append("reduce_scatter")
            break
        own = (world_size, 1000, salt + rank, device)
        judge(what, output, expected_sum(*own), coded_units(*own))
    return ExactResult(mismatches, done, unsupported)


def _roots(world_size: int) -> Sequence[int]:
    return range(world_size) if world_size <= WINDOW else (0, world_size // 2, world_size - 1)


def _sender_values(rank: int, elements: int, device: Any, turn: int = 0) -> Any:
    """Return values that only `rank` sends: numbers of many bits in units of its own salt."""
    index = arrays.numbers(elements, device)
    salt = 1000 + rank + turn * 100000
    return units_at(index, salt) * mantissas_at(index, salt, 1 << _MANTISSA_BITS)


class ExactModel:
    """A linear layer of torch whose gradient does not depend on its weights, for the exact steps."""

    def __init__(self, start: Any) -> None:
        import torch

        self._model = torch.nn.Linear(len(start), 1, bias=False).to(start.device)
        with torch.no_grad():
            self._model.weight.copy_(start.view(1, -1))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)

    def gradient(self, inputs: Any) -> Any:
        """Return the gradient of the summed outputs, float32[features], as autograd computes it."""
        self._optimizer.zero_grad()
        self._model(inputs).sum().backward()
        return self._model.weight.grad.flatten()

    def step(self, gradient: Any) -> None:
        """Take one step of SGD along the gradient summed over all ranks."""
        self._model.weight.grad = gradient.view(1, -1)
        self._optimizer.step()

    def weights(self) -> Any:
        """Return float32[features]."""
        return self._model.weight.detach().flatten()


def check_steps(
    collectives: Any, rank: int, world_size: int, steps: int, device: Any, *, build: Callable[[Any], Any] = ExactModel
) -> ExactResult:
    """Train a linear model by SGD with summed gradients; gradients and final weights are known in advance.

    The loss is linear in the weights, so the gradient is the sum of the inputs whatever the weights are. Inputs differ
    from step to step. Each step's gradient is compared as well, so that a fault can be assigned to a step and a rank.

    Args:
        build: creates the model from its initial weights; it may be another framework's, with the methods of
        `ExactModel`.
    """
    steps = min(steps, MAX_EXACT_STEPS)
    start = units(FEATURES, STEPS_SALT, device) * START_QUANTA
    model = build(start)
    right = start
    mismatches: list[Mismatch] = []
    done: list[str] = []
    for step in range(steps):
        mine = contribution(rank, world_size, FEATURES, STEPS_SALT, device, step)
        expected = expected_sum(world_size, FEATURES, STEPS_SALT, device, step)
        gradient = model.gradient(arrays.stack([mine * factor for factor in _BATCH]))
        what = f"gradients of exact step {step}"
        collectives.all_reduce(gradient, what)
        unit = coded_units(world_size, FEATURES, STEPS_SALT, device, step)
        mismatch = compare(what, rank, gradient, expected, unit=unit, world_size=world_size)
        done.append(what)
        if mismatch is not None:
            mismatches.append(mismatch)
        model.step(gradient)
        right = right - expected * LEARNING_RATE
    what = f"weights after {steps} exact steps"
    weights = model.weights()
    last = compare(what, rank, weights, right)
    done.append(what)
    if last is not None:
        mismatches.append(last)
    return ExactResult(mismatches, done, [], arrays.digest(weights))


def exact_settings() -> tuple[str, ...]:
    """Switch off hidden rounding (TF32, sums of reduced precision), and return the changed settings."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return ("cuda.matmul.allow_tf32=False", "cudnn.allow_tf32=False")

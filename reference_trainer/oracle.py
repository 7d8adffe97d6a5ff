"""Exact arithmetic: sums whose every bit is known before any rank speaks to another.

Every value is a small integer times a power of two, so each partial sum is exact in 32-bit floats (integers below
2^24, IEEE 754 binary32): any order, any algorithm and any number of ranks must give the same bits. Nothing is
averaged, because dividing before summing depends on the order for three ranks.

Each rank's contribution is a digit of its own in base 4, so a sum tells whose contribution is missing or was added
twice. The element's own unit (a sign and a power of two that differ from element to element) makes a chunk that
lands in the wrong place visible.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from preflight.node.record import dataclass, field
from reference_trainer import arrays

#: Ranks that share the digits of one element: 4^8 quanta leave 8 of 24 bits for steps and batches.
WINDOW = 8
BASE = 4
#: Steps whose exact gradients still sum to less than 2^24 quanta: 21845 x 64 x 8 (for 1/8 quanta) < 2^24.
MOST_EXACT_STEPS = 64
#: Elements of the tensors that are summed: one, an odd number of small ones, 16 KiB (more than a jumbo frame), 1 MiB.
SIZES = (1, 1000, 4096, 262144)
#: The learning rate: a power of two, so that the step is exact too.
LEARNING_RATE = 0.125
FEATURES = 4096
#: The salt of the weights that exact steps train, and what they begin with in their units.
STEPS_SALT = 5000
START_QUANTA = 5.0
_BATCH = (3, -2)
_UNITS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class Mismatch:
    """One tensor that is not what it must be, as one rank sees it.

    Args:
        operation: what was done, in words.
        index: first wrong element (row-major); `wrong` of `elements` are wrong.
        expected, got: that element as C hexadecimal floats would be exact, so they are `repr`s.
        flipped_bits: of the first wrong element, expected xor got.
        contributions: `rank -> times`, for each rank whose contribution is there another number of times than once.
        explanation: one sentence.
    """

    operation: str
    rank: int
    elements: int
    wrong: int
    index: int
    expected: str
    got: str
    flipped_bits: str
    contributions: Dict[str, int] = field(default_factory=dict)
    explanation: str = ""


def windows(world_size: int) -> int:
    """How many groups of `WINDOW` ranks there are."""
    return (world_size + WINDOW - 1) // WINDOW


def digit(rank: int) -> int:
    """The quanta that `rank` contributes to the elements of its window."""
    return int(BASE ** (rank % WINDOW))


def total(window: int, world_size: int) -> int:
    """The quanta of all ranks of one window together."""
    return sum(digit(rank) for rank in range(window * WINDOW, min((window + 1) * WINDOW, world_size)))


def units(elements: int, salt: int, device: Any) -> Any:
    """The unit of each element: float32[elements], a sign times one of eight powers of two, fixed by index and salt."""
    return units_at(arrays.numbers(elements, device), salt)


def units_at(index: Any, salt: int) -> Any:
    """The units of these elements: `index` is int64 of any shape, the result float32 of the same."""
    mixed = (index + salt * 7919 + 1) * 40503 & 0xFFFFFFFF
    mixed = mixed ^ (mixed >> 9) ^ (mixed >> 17)
    return arrays.table(_UNITS, (mixed >> 1) & 7) * arrays.floats(1 - 2 * (mixed & 1))


def contribution(rank: int, world_size: int, elements: int, salt: int, device: Any) -> Any:
    """What `rank` puts into a sum: float32[elements]."""
    index = arrays.numbers(elements, device)
    return units_at(index, salt) * share_at(index, rank, world_size, elements)


def share_at(index: Any, rank: int, world_size: int, elements: int) -> Any:
    """How many quanta `rank` puts into these elements of a tensor of `elements`: float32 of the shape of `index`."""
    count = windows(world_size)
    if elements < count:
        return arrays.full(float(rank + 1), index)
    return arrays.floats(index % count == rank // WINDOW) * digit(rank)


def expected_sum(world_size: int, elements: int, salt: int, device: Any) -> Any:
    """What the sum over all ranks must be, in closed form: float32[elements]."""
    unit = units(elements, salt, device)
    count = windows(world_size)
    if elements < count:
        return unit * (world_size * (world_size + 1) // 2)
    totals = [float(total(w, world_size)) for w in range(count)]
    return unit * arrays.table(totals, arrays.numbers(elements, device) % count)


def compare(
    operation: str,
    rank: int,
    got: Any,
    expected: Any,
    *,
    unit: Any = None,
    world_size: int = 0,
    quantum: float = 1.0,
) -> Optional[Mismatch]:
    """None when both tensors are the same bits; else what is wrong, and whose contribution explains it.

    Args:
        unit, world_size, quantum: how the sum was coded (`units`, and the size of one quantum in them); without
            a unit nothing is decoded.
    """
    wrong, index = arrays.wrong(got, expected)
    if not wrong:
        return None
    elements = arrays.size(got)
    seen, right = float(got.reshape(-1)[index]), float(expected.reshape(-1)[index])
    flipped = arrays.bits(got, index) ^ arrays.bits(expected, index)
    counts: Dict[str, int] = {}
    if unit is not None:
        counts = _decode(seen, right, float(unit[index]) * quantum, index, elements, world_size)
    return Mismatch(
        operation,
        rank,
        elements,
        wrong,
        index,
        repr(right),
        repr(seen),
        "0x%08x" % flipped,
        counts,
        _explain(counts, flipped, wrong, elements),
    )


def _decode(seen: float, right: float, quantum: float, index: int, elements: int, world_size: int) -> Dict[str, int]:
    """Which ranks' contributions are there another number of times than once; empty when no such sum explains it."""
    if seen != seen or abs(seen) == float("inf"):
        return {}
    quanta = (seen - right) / quantum
    if quanta != int(quanta):
        return {}
    count = windows(world_size)
    if elements < count:
        off = int(quanta)
        return {str(abs(off) - 1): 2 if off > 0 else 0} if 1 <= abs(off) <= world_size else {}
    window = index % count
    left = total(window, world_size) + int(quanta)
    if left < 0:
        return {}
    found: Dict[str, int] = {}
    for rank in range(window * WINDOW, min((window + 1) * WINDOW, world_size)):
        times = left % BASE
        left //= BASE
        if times != 1:
            found[str(rank)] = times
    return {} if left else found


def _explain(counts: Dict[str, int], flipped: int, wrong: int, elements: int) -> str:
    if wrong == 1 and elements > 1 and bin(flipped).count("1") == 1:
        return "one bit of one element differs (bit %d): memory or link corruption" % (flipped.bit_length() - 1)
    parts = []
    for rank, times in sorted(counts.items(), key=lambda item: int(item[0])):
        if times == 0:
            parts.append("the contribution of rank %s is missing" % rank)
        else:
            parts.append("the contribution of rank %s was added %d times" % (rank, times))
    if parts:
        return " and ".join(parts)
    if bin(flipped).count("1") == 1:
        return "one bit differs (bit %d)" % (flipped.bit_length() - 1)
    return "no combination of whole contributions gives this"


def off_by(quanta: float, index: int, elements: int, world_size: int) -> Dict[str, int]:
    """Whose contributions to one element are too many or too few, by how many; empty when nothing simple explains it.

    Args:
        quanta: by how much the element is off. From one contribution too few to two too many of each rank can be told.
    """
    if quanta != quanta or abs(quanta) >= 1 << 24 or quanta != int(quanta):
        return {}
    left = int(quanta)
    count = windows(world_size)
    if elements < count:
        return {str(abs(left) - 1): 1 if left > 0 else -1} if 1 <= abs(left) <= world_size else {}
    window = index % count
    found: Dict[str, int] = {}
    for rank in range(window * WINDOW, min((window + 1) * WINDOW, world_size)):
        times = (left + 1) % BASE - 1
        left = (left - times) // BASE
        if times:
            found[str(rank)] = times
    return {} if left else found


Run = Callable[..., Any]


@dataclass(frozen=True)
class Checked:
    """What a round of exact collectives or exact steps showed on this rank.

    `digest` is the SHA-256 of the weights after exact steps.
    """

    mismatches: List[Mismatch] = field(default_factory=list)
    operations: List[str] = field(default_factory=list)
    unsupported: List[str] = field(default_factory=list)
    digest: str = ""


def check_collectives(collectives: Any, rank: int, world_size: int, device: Any) -> Checked:
    """Run every collective on known values and compare the results bit by bit.

    Args:
        collectives: does the work: `all_reduce(tensor, what)`, `broadcast(tensor, root, what)`,
            `all_gather(outputs, tensor, what)`, `reduce_scatter(output, inputs, what)`.
        device: of torch, or `arrays.NUMPY` where the collectives carry arrays of numpy.
    """
    found: List[Mismatch] = []
    done: List[str] = []
    unsupported: List[str] = []

    def judge(what: str, got: Any, expected: Any, unit: Any = None) -> None:
        mismatch = compare(what, rank, got, expected, unit=unit, world_size=world_size)
        done.append(what)
        if mismatch is not None:
            found.append(mismatch)

    for salt, elements in enumerate(SIZES):
        what = "all_reduce of %d elements" % elements
        tensor = contribution(rank, world_size, elements, salt, device)
        collectives.all_reduce(tensor, what)
        judge(what, tensor, expected_sum(world_size, elements, salt, device), units(elements, salt, device))
    for root in _roots(world_size):
        what = "broadcast of 4096 elements from rank %d" % root
        tensor = _owned(root, 4096, device) if rank == root else arrays.zeros(4096, device)
        collectives.broadcast(tensor, root, what)
        judge(what, tensor, _owned(root, 4096, device))
    what = "all_gather of 1000 elements"
    outputs = [arrays.zeros(1000, device) for _ in range(world_size)]
    collectives.all_gather(outputs, _owned(rank, 1000, device), what)
    for owner, output in enumerate(outputs):
        judge("%s, part of rank %d" % (what, owner), output, _owned(owner, 1000, device))
    what = "reduce_scatter of 1000 elements a rank"
    parts = [contribution(rank, world_size, 1000, 100 + part, device) for part in range(world_size)]
    output = arrays.zeros(1000, device)
    if collectives.reduce_scatter(output, parts, what):
        judge(what, output, expected_sum(world_size, 1000, 100 + rank, device), units(1000, 100 + rank, device))
    else:
        unsupported.append("reduce_scatter")
    return Checked(found, done, unsupported)


def _roots(world_size: int) -> Sequence[int]:
    return range(world_size) if world_size <= WINDOW else (0, world_size // 2, world_size - 1)


def _owned(rank: int, elements: int, device: Any) -> Any:
    """Values that only `rank` sends: its number times the units of its own salt."""
    return units(elements, 1000 + rank, device) * (rank + 1)


class ExactModel:
    """A linear layer of torch whose gradient does not depend on its weights, for the exact steps."""

    def __init__(self, start: Any) -> None:
        import torch

        self._model = torch.nn.Linear(len(start), 1, bias=False).to(start.device)
        with torch.no_grad():
            self._model.weight.copy_(start.view(1, -1))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)

    def gradient(self, inputs: Any) -> Any:
        """The gradient of the summed outputs, float32[features], as autograd has it."""
        self._optimizer.zero_grad()
        self._model(inputs).sum().backward()
        return self._model.weight.grad.flatten()

    def step(self, gradient: Any) -> None:
        """One step of SGD along the gradient summed over all ranks."""
        self._model.weight.grad = gradient.view(1, -1)
        self._optimizer.step()

    def weights(self) -> Any:
        """float32[features]."""
        return self._model.weight.detach().flatten()


def check_steps(
    collectives: Any,
    rank: int,
    world_size: int,
    steps: int,
    device: Any,
    *,
    build: Callable[[Any], Any] = ExactModel,
) -> Checked:
    """Train a linear model by SGD with summed gradients; gradients and final weights are known in advance.

    The loss is linear in the weights, so the gradient is the sum of the inputs whatever the weights are. Each
    step's gradient is compared as well, so that a fault is tied to a step and to a rank.

    Args:
        build: makes the model from its first weights: another framework's own, with the methods of `ExactModel`.
    """
    steps = min(steps, MOST_EXACT_STEPS)
    unit = units(FEATURES, STEPS_SALT, device)
    mine = contribution(rank, world_size, FEATURES, STEPS_SALT, device)
    expected = expected_sum(world_size, FEATURES, STEPS_SALT, device)
    start = unit * START_QUANTA
    model = build(start)
    inputs = arrays.stack([mine * factor for factor in _BATCH])
    found: List[Mismatch] = []
    done: List[str] = []
    for step in range(steps):
        gradient = model.gradient(inputs)
        what = "gradients of exact step %d" % step
        collectives.all_reduce(gradient, what)
        mismatch = compare(what, rank, gradient, expected, unit=unit, world_size=world_size)
        done.append(what)
        if mismatch is not None:
            found.append(mismatch)
        model.step(gradient)
    what = "weights after %d exact steps" % steps
    weights = model.weights()
    last = compare(what, rank, weights, start - expected * (LEARNING_RATE * steps))
    done.append(what)
    if last is not None:
        found.append(last)
    return Checked(found, done, [], arrays.digest(weights))


def exact_settings() -> Tuple[str, ...]:
    """Switch off what rounds behind the user's back (TF32, reduced precision sums); returns what was set."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return ("cuda.matmul.allow_tf32=False", "cudnn.allow_tf32=False")

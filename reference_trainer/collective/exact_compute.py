"""Matrix products with known bits, repeated, to find a GPU that computes wrongly without an error.

The operands are integers of at most 63 in magnitude, and a product sums 4096 of their products: below 2^24, so every
partial sum is exact in float32 in any order. Tensor cores keep at least as many bits (Fasi et al., Numerical behavior
of NVIDIA tensor cores, doi 10.7717/peerj-cs.330). TF32, bfloat16 and float16 hold such integers exactly; the last
rounding to a 16-bit result is that of IEEE 754 and is the same everywhere.

Rows and columns repeat with a period of 61, a prime: 61 x 61 sums, computed on the host in whole numbers, are the
expected values of all elements, and yet neighbouring threads and blocks work on different values.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Tuple

#: The prime period, the length of each sum, and the largest magnitude of an operand.
PERIOD, DEPTH, LARGEST = 61, 4096, 63
#: float16 ends at 65504, so one operand is scaled by this power of two.
HALF_SCALE = 2.0**-10
#: Rows and columns of the product on a GPU, and on a processor (for tests).
GPU_SIZE, CPU_SIZE = 4096, 122
#: Time for the repetitions of one precision, and their number.
BUDGET_S, MIN_TURNS, MAX_TURNS = 0.25, 3, 40
FP32, TF32, BF16, FP16 = "fp32", "tf32", "bf16", "fp16"
PRECISIONS = (FP32, TF32, BF16, FP16)


@dataclass(frozen=True)
class WrongProduct:
    """One repetition with wrong elements: the first one, its bits beside the right ones, and how many there are."""

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
    """The repeated products of one GPU: how many elements were compared, how often, and what was wrong.

    `turns` has the repetitions by precision, `notes` the reason for each precision that was left out.
    """

    turns: Dict[str, int] = field(default_factory=dict)
    elements: int = 0
    wrong: List[WrongProduct] = field(default_factory=list)
    notes: Dict[str, str] = field(default_factory=dict)


def operands() -> Tuple[List[List[int]], List[List[int]]]:
    """The repeating rows of the left operand and columns of the right one, each `PERIOD` lists of `DEPTH` integers."""
    return _integers(1), _integers(2)


def _integers(seed: int) -> List[List[int]]:
    """Numbers from -63 to 63 of a linear congruential generator (the constants are those of Numerical Recipes)."""
    state, rows = seed, []
    for _ in range(PERIOD):
        row = []
        for _ in range(DEPTH):
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            row.append((state >> 16) % (2 * LARGEST + 1) - LARGEST)
        rows.append(row)
    return rows


def check(torch: Any, device: Any, moved: Callable[[], None], budget_s: float = BUDGET_S) -> ExactCompute:
    """Compute and compare the products in each precision that this device and torch support.

    Args:
        moved: called after each repetition.
        budget_s: time of the repetitions of one precision.
    """
    size = CPU_SIZE if device.type == "cpu" else GPU_SIZE
    left, right = operands()
    rows = torch.tensor(left, dtype=torch.float64)
    columns = torch.tensor(right, dtype=torch.float64)
    # Whole numbers below 2^53: exact, whatever the order.
    sums = rows @ columns.t()
    which = (torch.arange(size) % PERIOD).to(device)
    turns: Dict[str, int] = {}
    notes: Dict[str, str] = {}
    wrong: List[WrongProduct] = []
    elements = 0
    saved = _exact_sums(torch)
    try:
        for precision in PRECISIONS:
            if precision in (TF32, BF16) and device.type == "cuda" and _before_ampere(torch, device):
                continue
            moved()
            try:
                done, found = _repeat(torch, device, precision, (rows, columns, sums, which), moved, budget_s)
            except RuntimeError as error:
                notes[precision] = str(error).strip().split("\n")[0][:200]
                continue
            turns[precision] = done
            elements += done * size * size
            wrong += found[:2]
    finally:
        _restore(torch, saved)
    return ExactCompute(turns, elements, wrong, notes)


def _before_ampere(torch: Any, device: Any) -> bool:
    """Whether the card has neither TF32 nor bfloat16; AMD's cards state other numbers and have both from 9.0 on."""
    return bool(torch.cuda.get_device_capability(device)[0] < 8)


def _repeat(
    torch: Any,
    device: Any,
    precision: str,
    known: Tuple[Any, Any, Any, Any],
    moved: Callable[[], None],
    budget_s: float,
) -> Tuple[int, List[WrongProduct]]:
    """Repeat one product; returns the number of repetitions and the wrong ones."""
    rows, columns, sums, which = known
    kind = {FP32: torch.float32, TF32: torch.float32, BF16: torch.bfloat16, FP16: torch.float16}[precision]
    scale = HALF_SCALE if precision == FP16 else 1.0
    torch.backends.cuda.matmul.allow_tf32 = precision == TF32
    # float64 to a 16-bit type directly: exact for operands, and for the sums the only rounding.
    a = rows.to(kind).to(device)[which]
    b = (columns * scale).to(kind).to(device)[which].t().contiguous()
    expected = (sums * scale).to(torch.float32).to(kind).to(device)[which][:, which]
    wrong: List[WrongProduct] = []
    began, turn = time.monotonic(), 0
    while turn < MIN_TURNS or (turn < MAX_TURNS and time.monotonic() - began < budget_s):
        product = torch.mm(a, b)
        turn += 1
        if not bool(torch.equal(product, expected)):
            wrong.append(_describe(torch, product, expected, precision, turn))
        moved()
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
        "0x%x" % bits,
        int(odd.sum()),
        product.numel(),
    )


_SUMS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_tf32")


def _exact_sums(torch: Any) -> Dict[str, Any]:
    """Let no partial sum be rounded to 16 bits; returns the former settings. Old versions of torch lack some."""
    settings = torch.backends.cuda.matmul
    saved: Dict[str, Any] = {}
    for name in _SUMS:
        try:
            saved[name] = getattr(settings, name)
            setattr(settings, name, False)
        except (AttributeError, AssertionError):
            saved.pop(name, None)
    return saved


def _restore(torch: Any, saved: Dict[str, Any]) -> None:
    for name, value in saved.items():
        setattr(torch.backends.cuda.matmul, name, value)

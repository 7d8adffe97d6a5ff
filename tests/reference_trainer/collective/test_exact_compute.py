"""Products with known bits: right ones match in every precision, and each kind of wrong one is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from reference_trainer.collective import gpu_speed  # noqa: E402
from reference_trainer.collective.gpu_speed import DEPTH, LARGEST, PERIOD, check, operands  # noqa: E402

CPU = torch.device("cpu")


def run(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any, int], Any] | None = None) -> gpu_speed.ExactCompute:
    """The check on a processor, with each product altered by `spoil`."""
    real, calls = torch.mm, [0]

    def product(a: Any, b: Any) -> Any:
        calls[0] += 1
        found = real(a, b)
        if spoil is not None:
            spoil(found, calls[0])
        return found

    monkeypatch.setattr(torch, "mm", product)
    return check(torch, CPU, lambda: None, 0.0)


def test_every_partial_sum_is_exact_in_any_order() -> None:
    left, right = operands()
    assert len(left) == len(right) == PERIOD and {len(row) for row in left + right} == {DEPTH}
    assert max(abs(value) for row in left + right for value in row) <= LARGEST
    assert LARGEST * LARGEST * DEPTH < 2**24
    # Different rows, so that neighbouring elements differ.
    assert len({tuple(row) for row in left}) == PERIOD and left != right


def test_right_products_match(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch)
    assert found.turns == {"fp32": 3, "tf32": 3, "bf16": 3, "fp16": 3} and not found.wrong and not found.notes
    assert found.elements == 12 * gpu_speed.CPU_SIZE**2


def test_a_single_flipped_bit_in_one_repetition_is_found_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def flip(product: Any, call: int) -> None:
        if call == 2:
            product.view(torch.int32)[5, 60] ^= 1

    (wrong,) = run(monkeypatch, flip).wrong
    assert (wrong.precision, wrong.turn, wrong.row, wrong.column) == ("fp32", 2, 5, 60)
    assert wrong.flipped_bits == "0x1" and wrong.wrong == 1 and wrong.got != wrong.expected


def test_a_flipped_bit_in_half_precision_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def flip(product: Any, call: int) -> None:
        if product.dtype == torch.bfloat16:
            product.view(torch.int16)[0, 1] ^= 1

    found = run(monkeypatch, flip)
    assert {wrong.precision for wrong in found.wrong} == {"bf16"} and found.wrong[0].flipped_bits == "0x1"


def test_not_a_number_and_a_lost_block_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(product: Any, call: int) -> None:
        if call == 1:
            product[3, 3] = float("nan")
        if call == 2:
            product[64:, 64:] = 0

    first, second = run(monkeypatch, spoil).wrong
    assert first.got == "nan" and first.wrong == 1 and first.row == first.column == 3
    assert second.wrong > 1000 and second.row == 64


def test_a_precision_that_is_not_supported_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(product: Any, call: int) -> None:
        if product.dtype == torch.float16:
            raise RuntimeError("not implemented for 'Half'\nmore")

    found = run(monkeypatch, refuse)
    assert found.notes == {"fp16": "not implemented for 'Half'"} and "fp16" not in found.turns and not found.wrong


def test_settings_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = torch.backends.cuda.matmul
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = [getattr(settings, name) for name in names]
    run(monkeypatch)
    assert [getattr(settings, name) for name in names] == before

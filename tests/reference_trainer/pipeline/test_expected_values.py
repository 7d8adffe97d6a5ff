"""The known values of a pipeline, in one process: exact to the largest size, with every fault distinguished."""

from __future__ import annotations

import random

import pytest

from reference_trainer.pipeline import stage as expected_values
from reference_trainer.pipeline.stage import (
    BACKWARD,
    ELEMENTS,
    FORWARD,
    GPIPE,
    LEARNING_RATE,
    MAX_MICROBATCHES,
    MAX_STAGES,
    MAX_UPDATES,
    ONE_F_ONE_B,
    ExpectedValues,
    Slot,
)

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("flush", [True, False])
def test_one_process_reaches_the_closed_forms_bit_for_bit(flush: bool) -> None:
    expected = ExpectedValues(
        ONE_F_ONE_B, MAX_STAGES, MAX_MICROBATCHES, torch.device("cpu"), updates=MAX_UPDATES - 1, flush=flush
    )
    sums = [torch.zeros(ELEMENTS) for _ in range(MAX_STAGES)]
    for m in range(MAX_MICROBATCHES):
        value, gradient = expected.activations(0, m), expected.gradients(MAX_STAGES, m)
        kept = []
        for stage in range(MAX_STAGES):
            weights = expected.weights(stage, expected.version[stage][m])
            kept.append((value, weights))
            value = torch.stack([value[0], value[1] + weights * value[0]])
            assert expected.judge(Slot(FORWARD, m), stage, value, "step") is None
        for stage in reversed(range(MAX_STAGES)):
            came, weights = kept[stage]
            sums[stage] += gradient[1] * came[0]
            gradient = torch.stack([gradient[0] + weights * gradient[1], gradient[1]])
            assert expected.judge(Slot(BACKWARD, m), stage, gradient, "step") is None
    for stage, total in enumerate(sums):
        assert expected.judge_weight_gradients(stage, stage, total, "step") is None
        after = expected.weights(stage, 0) + LEARNING_RATE * total
        assert expected_values.judge_weights(expected, stage, stage, after, "step") is None


def test_any_flipped_bit_of_a_message_is_found() -> None:
    expected = ExpectedValues(GPIPE, 3, 4, torch.device("cpu"))
    chance = random.Random(5)
    for bit in range(32):
        got = expected.activations(1, 2).clone()
        index = chance.randrange(2 * ELEMENTS)
        got.reshape(-1).view(torch.int32)[index] ^= (1 << bit) if bit < 31 else -(1 << 31)
        found = expected.judge(Slot(FORWARD, 2), 1, got, "step", sender=0)
        assert found is not None and (found.wrong, found.index, found.sender) == (1, index, 0)
        assert f"bit {bit}" in found.explanation


@pytest.mark.parametrize("kind", [FORWARD, BACKWARD])
def test_swapped_microbatch_is_identified(kind: str) -> None:
    expected = ExpectedValues(ONE_F_ONE_B, 3, 4, torch.device("cpu"), flush=False)
    other = expected.activations(1, 3) if kind == FORWARD else expected.gradients(2, 3)
    found = expected.judge(Slot(kind, 1), 1, other, "step", sender=0)
    assert found is not None and found.microbatch == 1
    assert found.explanation == "these are the values of microbatch 3: microbatch 1 is lost or out of order"


@pytest.mark.parametrize(("times", "message"), [(0, "microbatch 2 is missing"), (2, "microbatch 2 was added 2 times")])
def test_missing_and_doubled_microbatches_are_decoded(times: int, message: str) -> None:
    expected = ExpectedValues(GPIPE, 2, 4, torch.device("cpu"))
    unit = expected.activations(0, 0)[0]
    total = sum(unit * float(4**m) * (times if m == 2 else 1) for m in range(4))
    found = expected.judge_weight_gradients(1, 1, total, "step")
    assert found is not None and found.explanation == f"the contribution of {message}"

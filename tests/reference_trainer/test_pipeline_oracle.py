"""The known values of a pipeline, in one process: exact to the largest size, and every fault told apart."""

from __future__ import annotations

import random

import pytest

from reference_trainer import pipeline_oracle
from reference_trainer.pipeline_oracle import ELEMENTS, MOST_MICROBATCHES, MOST_STAGES, MOST_UPDATES, RATE, Expected
from reference_trainer.pipeline_schedule import BACKWARD, FORWARD, GPIPE, ONE_F_ONE_B, Slot

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("flush", [True, False])
def test_one_process_comes_to_the_closed_forms_bit_for_bit_at_the_largest_size(flush: bool) -> None:
    expected = Expected(
        ONE_F_ONE_B, MOST_STAGES, MOST_MICROBATCHES, torch.device("cpu"), updates=MOST_UPDATES - 1, flush=flush
    )
    sums = [torch.zeros(ELEMENTS) for _ in range(MOST_STAGES)]
    for m in range(MOST_MICROBATCHES):
        value, gradient = expected.activations(0, m), expected.gradients(MOST_STAGES, m)
        kept = []
        for stage in range(MOST_STAGES):
            weights = expected.weights(stage, expected.version[stage][m])
            kept.append((value, weights))
            value = torch.stack([value[0], value[1] + weights * value[0]])
            assert expected.judge(Slot(FORWARD, m), stage, value, "step") is None
        for stage in reversed(range(MOST_STAGES)):
            came, weights = kept[stage]
            sums[stage] += gradient[1] * came[0]
            gradient = torch.stack([gradient[0] + weights * gradient[1], gradient[1]])
            assert expected.judge(Slot(BACKWARD, m), stage, gradient, "step") is None
    for stage, total in enumerate(sums):
        assert expected.judge_weight_gradients(stage, stage, total, "step") is None
        after = expected.weights(stage, 0) + RATE * total
        assert pipeline_oracle.judge_weights(expected, stage, stage, after, "step") is None


def test_any_flipped_bit_of_a_message_is_found() -> None:
    expected = Expected(GPIPE, 3, 4, torch.device("cpu"))
    chance = random.Random(5)
    for bit in range(32):
        got = expected.activations(1, 2).clone()
        index = chance.randrange(2 * ELEMENTS)
        got.reshape(-1).view(torch.int32)[index] ^= (1 << bit) if bit < 31 else -(1 << 31)
        found = expected.judge(Slot(FORWARD, 2), 1, got, "step", sender=0)
        assert found is not None and (found.wrong, found.index, found.sender) == (1, index, 0)
        assert f"bit {bit}" in found.explanation


@pytest.mark.parametrize("kind", [FORWARD, BACKWARD])
def test_a_microbatch_in_the_place_of_another_is_named(kind: str) -> None:
    expected = Expected(ONE_F_ONE_B, 3, 4, torch.device("cpu"), flush=False)
    other = expected.activations(1, 3) if kind == FORWARD else expected.gradients(2, 3)
    found = expected.judge(Slot(kind, 1), 1, other, "step", sender=0)
    assert found is not None and found.microbatch == 1
    assert found.explanation == "these are the values of microbatch 3: microbatch 1 is lost or out of order"


@pytest.mark.parametrize(("times", "said"), [(0, "microbatch 2 is missing"), (2, "microbatch 2 was added 2 times")])
def test_a_sum_tells_which_microbatch_is_missing_or_doubled(times: int, said: str) -> None:
    expected = Expected(GPIPE, 2, 4, torch.device("cpu"))
    unit = expected.activations(0, 0)[0]
    total = sum(unit * float(4**m) * (times if m == 2 else 1) for m in range(4))
    found = expected.judge_weight_gradients(1, 1, total, "step")
    assert found is not None and found.explanation == f"the contribution of {said}"

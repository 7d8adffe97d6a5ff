"""Stages of a pipeline under real agents: the stalled one is named, whichever stages wait for each other."""

from __future__ import annotations

import pytest

from tests.reference_trainer.live import live
from tests.reference_trainer.test_ranks_live import ranks

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(("stuck", "schedule"), [(0, "1f1b"), (1, "gpipe")])
def test_stalled_stage_is_named(stuck: int, schedule: str) -> None:
    wanted = {"pipeline": {"stages": 3, "microbatches": 4, "schedule": schedule}}
    odd = {r: {**wanted, **({"injected_fault": {"stall_microbatch": 2}} if r == stuck else {})} for r in range(3)}
    found = live(ranks(3, odd=odd)).require_culprit()
    assert (found.rank, found.kind) == (stuck, "stuck")
    assert set(found.waiting) == {0, 1, 2} - {stuck}

"""The pace of a rank: windows of real ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from reference_trainer.collective import bandwidth as pace

Ranks = Callable[..., list[dict[str, Any]]]


@pytest.mark.thorough
def test_ranks_measure_two_windows_with_different_partners(ranks: Ranks) -> None:
    reports = [answer["report"] for answer in ranks(3, steps=2)]
    for report in reports:
        assert len(report["windows"]) == 2
        for window in report["windows"]:
            assert len(window["compute_s"]) == pace.PIECES and statistics.median(window["compute_s"]) > 0
            assert len(window["exchange_s"]) == (pace.EXCHANGES if window["partner"] >= 0 else 0)
    partners = [[window["partner"] for window in report["windows"]] for report in reports]
    assert all(first != second for first, second in partners)


@pytest.mark.thorough
def test_until_exact_ends_after_the_known_sums(ranks: Ranks) -> None:
    for answer in ranks(2, steps=2, overrides={str(r): {"until": "exact"} for r in range(2)}):
        report = answer["report"]
        assert report["operations"] > 0 and report["steps"] == 0 and not report["windows"]

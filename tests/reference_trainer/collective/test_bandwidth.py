"""Bus bandwidth by the published formula, sizes within a budget, and measurements of real ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from reference_trainer.collective import bandwidth
from reference_trainer.collective import bandwidth as pace
from reference_trainer.common import messages

Ranks = Callable[..., list[dict[str, Any]]]


def test_bus_bandwidth_follows_the_published_formula() -> None:
    # NVIDIA/nccl-tests, doc/PERFORMANCE.md: S/t times 2(n-1)/n, (n-1)/n, 1.
    expected = {"all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875, "broadcast": 1.0}
    for operation, factor in expected.items():
        assert bandwidth.bus_bandwidth(operation, 8_000_000, 0.5, 8) == factor * 16_000_000
    assert set(expected) == set(messages.OPERATIONS)
    assert bandwidth.bus_bandwidth("all_reduce", 4096, 0.0, 2) == 0.0


def test_large_message_fits_the_budget() -> None:
    assert bandwidth.large_bytes(1e-5, 1 << 24) == 1 << 24
    assert bandwidth.large_bytes(1.0, 1 << 24) == bandwidth.MIN_LARGE_BYTES
    calls = len(messages.OPERATIONS) * (bandwidth.LARGE_CALLS + 1)
    for least_s in (0.0005, 0.001, 0.002, 0.004):
        size = bandwidth.large_bytes(least_s, 1 << 28)
        assert least_s * size / bandwidth.MIN_LARGE_BYTES * calls <= bandwidth.BUDGET_S


@pytest.mark.thorough
def test_ranks_time_every_collective_at_two_sizes(ranks: Ranks) -> None:
    answers = ranks(3, steps=2, overrides={str(rank): {"local_world_size": 1} for rank in range(3)})
    assert [answer["report"]["transport"]["counted"] for answer in answers] == [True, False, False]
    for answer in answers:
        sweep = answer["report"]["sweep"]
        assert sweep["unsupported"] == [] and sweep["skipped"] == ""
        small, large = sweep["timed"][:5], sweep["timed"][5:]
        assert [t["operation"] for t in small] == [t["operation"] for t in large] == list(messages.OPERATIONS)
        assert {t["message_bytes"] for t in small} == {messages.elements_of(bandwidth.SMALL_BYTES, 3) * 4}
        assert len({t["message_bytes"] for t in large}) == 1
        assert large[0]["message_bytes"] >= bandwidth.MIN_LARGE_BYTES * 0.9
        assert all(t["bytes_per_s"] > 0 for t in sweep["timed"])
        # Whatever their configuration, all of them run on this machine.
        assert (sweep["local_ranks"], sweep["cores"] >= 1, sweep["crossing_bytes"]) == (3, True, 0)


@pytest.mark.thorough
def test_single_rank_measures_nothing(ranks: Ranks) -> None:
    (answer,) = ranks(1, steps=2)
    assert answer["report"]["sweep"]["timed"] == [] and "a single rank" in answer["report"]["sweep"]["skipped"]


@pytest.mark.thorough
def test_flipped_bit_in_a_large_message_is_found(ranks: Ranks) -> None:
    fault = {
        "rank": 1,
        "kind": "flipped",
        "operation": "all_to_all_single",
        "at_least": 200_000,
        "call": bandwidth.LARGE_CALLS + 1,
        "index": 77,
        "bit": 13,
    }
    answers = ranks(2, steps=2, fault=fault)
    assert [len(a["report"]["mismatches"]) for a in answers] == [0, 1]
    (mismatch,) = answers[1]["report"]["mismatches"]
    assert (mismatch["index"], mismatch["flipped_bits"]) == (77, "0x00002000")
    assert mismatch["operation"].startswith("all_to_all of ")


@pytest.mark.thorough
def test_unsupported_collectives_are_reported(ranks: Ranks) -> None:
    fault = {"operation": "all_to_all_single", "kind": "missing", "at_least": 1}
    answers = ranks(2, steps=2, overrides={}, faults=[{**fault, "rank": rank} for rank in range(2)])
    for answer in answers:
        report = answer["report"]
        assert report["unsupported"] == report["sweep"]["unsupported"] == ["all_to_all"]
        assert len(report["sweep"]["timed"]) == 8 and report["steps"] == 2


@pytest.mark.thorough
def test_backend_with_list_collectives_is_measured(ranks: Ranks) -> None:
    faults = [
        {"operation": name, "kind": "missing", "at_least": 1, "rank": rank}
        for rank in range(2)
        for name in flat_names()
    ]
    for answer in ranks(2, steps=2, faults=faults):
        report = answer["report"]
        assert report["unsupported"] == [] and report["mismatches"] == []
        assert len(report["sweep"]["timed"]) == 2 * len(messages.OPERATIONS)
        assert report["sweep"]["in_lists"] == ["all_gather", "reduce_scatter"]


def flat_names() -> list[str]:
    """The names of this torch's collectives over whole tensors."""
    dist = pytest.importorskip("torch.distributed")
    names = (("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor"))
    return [next(name for name in pair if hasattr(dist, name)) for pair in names]


# The pace of a rank: windows of real ranks.


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

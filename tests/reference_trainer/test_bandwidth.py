"""Bus bandwidth by the published formula, sizes within a budget, and what real ranks measure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reference_trainer import bandwidth, messages

Ranks = Callable[..., list[dict[str, Any]]]


def test_bus_bandwidth_is_that_of_the_published_formula() -> None:
    # NVIDIA/nccl-tests, doc/PERFORMANCE.md: S/t times 2(n-1)/n, (n-1)/n, 1.
    expected = {"all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875, "broadcast": 1.0}
    for operation, factor in expected.items():
        assert bandwidth.bus_bandwidth(operation, 8_000_000, 0.5, 8) == factor * 16_000_000
    assert set(expected) == set(messages.OPERATIONS)
    assert bandwidth.bus_bandwidth("all_reduce", 4096, 0.0, 2) == 0.0


def test_the_large_message_keeps_to_the_budget() -> None:
    assert bandwidth.large_bytes(1e-5, 1 << 24) == 1 << 24
    assert bandwidth.large_bytes(1.0, 1 << 24) == bandwidth.LEAST_BYTES
    calls = len(messages.OPERATIONS) * (bandwidth.LARGE_CALLS + 1)
    for least_s in (0.0005, 0.001, 0.002, 0.004):
        size = bandwidth.large_bytes(least_s, 1 << 28)
        assert least_s * size / bandwidth.LEAST_BYTES * calls <= bandwidth.BUDGET_S


def test_what_threads_waited_is_summed(tmp_path: Path) -> None:
    for thread, text in (("1", "5 1000000000 1\n"), ("2", "5 500000000 1\n")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert bandwidth.threads_waited_s(str(tmp_path)) == 1.5
    (tmp_path / "3").mkdir()
    assert bandwidth.threads_waited_s(str(tmp_path)) is None
    assert bandwidth.threads_waited_s(str(tmp_path / "no")) is None


@pytest.mark.smoke
def test_real_ranks_time_every_collective_at_two_sizes(ranks: Ranks) -> None:
    answers = ranks(3, steps=2, overrides={str(rank): {"local_world_size": 1} for rank in range(3)})
    assert [answer["report"]["transport"]["counted"] for answer in answers] == [True, False, False]
    for answer in answers:
        sweep = answer["report"]["sweep"]
        assert sweep["unsupported"] == [] and sweep["skipped"] == ""
        small, large = sweep["timed"][:5], sweep["timed"][5:]
        assert [t["operation"] for t in small] == [t["operation"] for t in large] == list(messages.OPERATIONS)
        assert {t["message_bytes"] for t in small} == {messages.elements_of(bandwidth.SMALL_BYTES, 3) * 4}
        assert len({t["message_bytes"] for t in large}) == 1
        assert large[0]["message_bytes"] >= bandwidth.LEAST_BYTES * 0.9
        assert all(t["bytes_per_s"] > 0 for t in sweep["timed"])
        # Whatever they were told: all of them run on this machine.
        assert (sweep["local_ranks"], sweep["cores"] >= 1, sweep["crossing_bytes"]) == (3, True, 0)


@pytest.mark.smoke
def test_one_rank_alone_has_nothing_to_send(ranks: Ranks) -> None:
    (answer,) = ranks(1, steps=2)
    assert answer["report"]["sweep"]["timed"] == [] and "one rank alone" in answer["report"]["sweep"]["skipped"]


@pytest.mark.smoke
def test_a_bit_that_flips_in_a_large_message_alone_is_found(ranks: Ranks) -> None:
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


@pytest.mark.smoke
def test_what_a_back_end_lacks_is_said_and_the_rest_is_measured(ranks: Ranks) -> None:
    fault = {"operation": "all_to_all_single", "kind": "missing", "at_least": 1}
    answers = ranks(2, steps=2, overrides={}, faults=[{**fault, "rank": rank} for rank in range(2)])
    for answer in answers:
        report = answer["report"]
        assert report["unsupported"] == report["sweep"]["unsupported"] == ["all_to_all"]
        assert len(report["sweep"]["timed"]) == 8 and report["steps"] == 2


@pytest.mark.smoke
def test_a_back_end_that_takes_lists_only_is_measured_with_them(ranks: Ranks) -> None:
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
    """What this torch calls the collectives over whole tensors."""
    dist = pytest.importorskip("torch.distributed")
    names = (("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor"))
    return [next(name for name in pair if hasattr(dist, name)) for pair in names]

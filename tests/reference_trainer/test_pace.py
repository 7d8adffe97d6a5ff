"""The pace of a rank: what is read of the kernel, and windows of real ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reference_trainer import pace

Ranks = Callable[..., list[dict[str, Any]]]


def test_what_a_control_group_held_back_is_read_in_both_versions(tmp_path: Path) -> None:
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    two = root / "job" / "rank"
    two.mkdir(parents=True)
    (two / "cpu.stat").write_text("usage_usec 5\nnr_throttled 2\nthrottled_usec 2500000\n")
    own.write_text("0::/job/rank\n")
    assert pace.throttled_s(str(root), str(own)) == 2.5
    one = root / "cpu,cpuacct" / "job"
    one.mkdir(parents=True)
    (one / "cpu.stat").write_text("nr_periods 7\nthrottled_time 1500000000\n")
    own.write_text("4:memory:/x\n3:cpu,cpuacct:/job\n0::/\n")
    assert pace.throttled_s(str(root), str(own)) == 1.5


def test_a_container_that_sees_only_its_own_group_finds_it_at_the_root(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/kubepods/somewhere/else\n")
    (tmp_path / "cpu.stat").write_text("throttled_usec 1000\n")
    assert pace.throttled_s(str(tmp_path), str(own)) == 0.001


@pytest.mark.parametrize("text", ["", "nonsense\n", "throttled_usec many\n"])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert pace.throttled_s(str(tmp_path), str(tmp_path / "no")) is None
    (tmp_path / "schedstat").write_text(text)
    assert pace.waited_s(str(tmp_path / "schedstat")) is None


def test_the_time_a_thread_waited_is_the_second_number(tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text("30700768 2000000000 24\n")
    assert pace.waited_s(str(tmp_path / "schedstat")) == 2.0


@pytest.mark.smoke
def test_real_ranks_measure_two_windows_with_different_partners(ranks: Ranks) -> None:
    reports = [answer["report"] for answer in ranks(3, steps=2)]
    for report in reports:
        assert len(report["windows"]) == 2
        for window in report["windows"]:
            assert len(window["compute_s"]) == pace.PIECES and statistics.median(window["compute_s"]) > 0
            assert len(window["exchange_s"]) == (pace.EXCHANGES if window["partner"] >= 0 else 0)
    partners = [[window["partner"] for window in report["windows"]] for report in reports]
    assert all(first != second for first, second in partners)


@pytest.mark.smoke
def test_a_trial_ends_after_the_known_sums(ranks: Ranks) -> None:
    for answer in ranks(2, steps=2, overrides={str(r): {"until": "exact"} for r in range(2)}):
        report = answer["report"]
        assert report["operations"] > 0 and report["steps"] == 0 and not report["windows"]

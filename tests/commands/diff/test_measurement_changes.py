"""Links and steps that got worse: beyond the noise of the fleet's own ratios, and grouped by their explanation."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from preflight.commands.diff.compare import Limits, compare_measurements, compare_tables, noise_of
from preflight.commands.diff.difference import Measured
from preflight.model.charts import Bar, Bars, Cell, Column, Lane, Mark, Matrix, Row, Span, Table, Timeline

LIMITS = Limits(1.25, 2.0)


def matrix(
    value: Callable[[str, str], float | None], count: int = 8, *, id: str = "links.bandwidth", unit: str = "Mbit/s"
) -> Matrix:
    """The measurements of every node to every other one."""
    names = tuple(f"node{number}" for number in range(count))
    marks = [
        Mark(row, column, value(names[row], names[column]), "ok")
        for row, column in itertools.permutations(range(count), 2)
    ]
    return Matrix(id, "bandwidth", "", unit, names, names, tuple(marks))


def noisy(spread: float, seed: int, base: float = 9400.0) -> Callable[[str, str], float]:
    """About the same value everywhere, with noise."""
    chance = random.Random(seed)
    return lambda source, peer: base * (1 + chance.uniform(-spread, spread))


def only_series(old: Matrix | Bars, new: Matrix | Bars) -> Measured:
    (found,) = compare_measurements([old], [new])
    return found


def test_two_measurements_of_a_quiet_network_are_the_same() -> None:
    for seed in range(20):
        found = only_series(matrix(noisy(0.05, seed)), matrix(noisy(0.05, seed + 100)))
        assert found.worse == () and found.compared == 56
        assert found.noise.allowed == 1.25 and "is never reported" in found.noise.because


def test_a_noisy_network_widens_the_reported_limit() -> None:
    found = only_series(matrix(noisy(0.2, 1)), matrix(noisy(0.2, 2)))
    assert found.worse == () and 1.25 < found.noise.allowed <= 2
    assert found.noise.spread is not None and "median absolute deviation of 56" in found.noise.because


@pytest.mark.parametrize(
    ("bad", "where", "nodes"),
    [
        (lambda a, b: a == "node3", "from node3", ("node3",)),
        (lambda a, b: b == "node3", "to node3", ("node3",)),
        (lambda a, b: "node3" in (a, b), "from and to node3", ("node3",)),
        (lambda a, b: (a, b) == ("node1", "node2"), "node1 to node2", ("node1", "node2")),
        (lambda a, b: {a, b} == {"node1", "node2"}, "node1 and node2", ("node1", "node2")),
    ],
    ids=["row", "column", "both", "pair", "mutual"],
)
def test_slow_links_are_grouped_by_their_explanation(
    bad: Callable[[str, str], bool], where: str, nodes: tuple[str, ...]
) -> None:
    normal, before = noisy(0.05, 3), matrix(noisy(0.05, 4))
    after = matrix(lambda a, b: normal(a, b) / (4 if bad(a, b) else 1))
    found = only_series(before, after)
    (worse,) = found.worse
    assert (worse.where, worse.nodes) == (where, nodes)
    assert 3 < worse.factor < 5 and worse.before > worse.after
    assert only_series(after, before).worse == () and only_series(after, before).better > 0


def test_a_slower_fleet_and_slower_nodes_are_reported_separately() -> None:
    normal = noisy(0.05, 5)
    after = matrix(lambda a, b: normal(a, b) / (20 if a == "node2" else 2))
    found = only_series(matrix(noisy(0.05, 6)), after)
    assert [item.where for item in found.worse] == ["all 56", "from node2"]
    assert found.change > 1.8


def test_few_links_need_a_factor_of_two() -> None:
    before = matrix(lambda a, b: 9000.0, 2)
    assert only_series(before, matrix(lambda a, b: 5000.0, 2)).worse == ()
    found = only_series(before, matrix(lambda a, b: 4000.0, 2))
    assert [item.where for item in found.worse] == ["node0 and node1"]
    assert found.noise.spread is None and "too few" in found.noise.because


def test_pairs_that_only_one_report_measured_are_counted_and_not_compared() -> None:
    before = matrix(lambda a, b: None if a == "node7" else 9000.0)
    after = matrix(lambda a, b: 100.0 if a == "node7" else None if a == "node6" else 9000.0)
    found = only_series(before, after)
    assert (found.compared, found.missing, found.added, found.worse) == (42, 7, 7, ())
    assert compare_measurements([before], []) == () == compare_measurements([], [before])
    doubtful = replace(before, marks=tuple(replace(mark, state="unknown") for mark in before.marks))
    assert compare_measurements([doubtful], [after]) == (), "what is inconclusive is no measurement"
    other = matrix(lambda a, b: 9.0, unit="Gbit/s")
    assert compare_measurements([before], [other]) == (), "other units are not compared"


def test_latency_is_worse_only_if_it_grows_noticeably() -> None:
    def late(factor: float, base: float) -> Matrix:
        return matrix(lambda a, b: base * (factor if b == "node1" else 1), id="links.latency", unit="us")

    assert [item.where for item in only_series(late(1, 100), late(5, 100)).worse] == ["to node1"]
    assert only_series(late(5, 100), late(1, 100)).worse == ()
    assert only_series(late(1, 5), late(5, 5)).worse == (), "20 us more are nothing"


def bars(times: Mapping[str, float]) -> Bars:
    """Steps of ranks, two on each node."""
    named = [Bar(f"rank {n}", node, value) for n, (node, value) in enumerate(times.items())]
    return Bars("smoke.step_times", "steps", "", "ms", tuple(named))


def test_slow_steps_are_named_by_their_node() -> None:
    normal = {f"node{number}": 100.0 for number in range(10)}
    found = only_series(bars(normal), bars({**normal, "node4": 180.0}))
    (worse,) = found.worse
    assert (worse.where, worse.nodes, worse.factor) == ("rank 4 on node4", ("node4",), 1.8)


def timeline(training_s: Mapping[str, float], importing_s: float = 4.0) -> Timeline:
    """The phases of ranks, one on each node."""
    lanes = tuple(
        Lane(
            f"rank {n}", node, (Span(0.0, importing_s, "importing"), Span(importing_s, importing_s + lasts, "training"))
        )
        for n, (node, lasts) in enumerate(training_s.items())
    )
    return Timeline("smoke.steps", "the run", "", lanes)


def test_every_phase_of_a_run_is_compared_separately() -> None:
    normal = {f"node{number}": 2.0 for number in range(10)}
    importing, training = compare_measurements([timeline(normal)], [timeline({**normal, "node7": 6.0}, 4.1)])
    assert importing.worse == () and importing.title == "the run: importing"
    (worse,) = training.worse
    assert (worse.where, worse.before, worse.after) == ("rank 7 on node7", 2.0, 6.0)
    (slow, _) = compare_measurements([timeline(normal)], [timeline(normal, 40.0)])
    assert [item.where for item in slow.worse] == ["all 10"]
    short = dict.fromkeys(normal, 0.01)
    assert not any(item.worse for item in compare_measurements([timeline(short)], [timeline({**short, "node7": 0.2})]))


def test_noise_is_the_scatter_of_the_ratios_between_floor_and_ceiling() -> None:
    assert noise_of([1.0] * 20, LIMITS).allowed == 1.25
    assert noise_of([1.0, 3.0] * 10, LIMITS).allowed == 2.0
    assert noise_of([1.0] * 7, LIMITS).allowed == 2.0
    # A quarter of faults changes nothing.
    assert noise_of([1.0] * 15 + [50.0] * 5, LIMITS).allowed == 1.25


# --- tables ---


def table(nccl: Mapping[str, str | None], memory: float = 512.0, id: str = "versions") -> Table:
    rows = tuple(Row(node, (Cell(value), Cell(memory))) for node, value in nccl.items())
    return Table(id, "versions", "", (Column("NCCL"), Column("memory", "GiB")), rows)


def test_drift_is_reported_once_for_all_nodes_with_the_same_change() -> None:
    before = table({"a": "2.18", "b": "2.18", "c": "2.18", "d": None, "gone": "1"})
    after = table({"a": "2.20", "b": "2.20", "c": "2.18", "d": "2.20", "came": "3"})
    found = compare_tables([before], [after])
    assert [(item.what, item.before, item.after, item.subjects) for item in found] == [
        ("NCCL", "2.18", "2.20", ("a", "b")),
        ("NCCL", "", "2.20", ("d",)),
    ]


def test_tables_of_several_jobs_are_compared_by_job() -> None:
    def of_job(number: str, nccl: str) -> Table:
        return replace(table({"a": nccl}, id=f"versions{number}"), title=f"versions (job{number})")

    before, after = [of_job("", "1"), of_job(".2", "1")], [of_job("", "1"), of_job(".2", "2")]
    assert [(item.table, item.before, item.after) for item in compare_tables(before, after)] == [("versions", "1", "2")]
    assert compare_tables(before, [replace(one, title="another job") for one in after]) == ()


def test_sizes_that_differ_a_little_have_not_drifted() -> None:
    assert compare_tables([table({"a": "1"}, 503.5)], [table({"a": "1"}, 503.1)]) == ()
    (found,) = compare_tables([table({"a": "1"}, 503.5)], [table({"a": "1"}, 251.0)])
    assert (found.before, found.after) == ("503.5 GiB", "251 GiB")
    assert compare_tables([table({"a": "1"}, id="smoke.other")], [table({"a": "2"}, id="smoke.other")]) == ()

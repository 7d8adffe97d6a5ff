"""What many runs show together: each planted story is told, and healthy noise tells none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from preflight import api
from preflight.commands.history.account import account_of, concerning, to_json
from preflight.commands.history.database import open_database
from preflight.commands.history.past import Past, add_run, load_past
from preflight_checks.charts import node_tables as node_values
from preflight_checks.charts import rank_timelines as ranks
from tests.builders import assert_follows_schema
from tests.commands.history.fleet import Fleet, Sample
from tests.commands.history.planted import missed_and_false, twelve

pytestmark = pytest.mark.thorough

#: Seeds that the limits were chosen with, and seeds that they were not.
SEEN, SEALED = (2,), (301,)


def remembered(fleet: Fleet, address: str) -> Past:
    """The runs of a fleet, after a database has had them."""
    database = open_database(address)
    for report in fleet.reports():
        if report.nodes:
            add_run(database, report)
    past = load_past(database)
    database.close()
    return past


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [*SEEN, *SEALED])
def test_twelve_stories_of_500_nodes_in_90_nights(seed: int, tmp_path: Path, new_postgres: Callable[[], str]) -> None:
    planted = twelve(seed)
    fleet = Fleet(seed=seed, stories=tuple(item.story for item in planted))
    reports = list(fleet.reports())
    accounts = []
    for address in (f"sqlite:///{tmp_path}/h.db", new_postgres()):
        database = open_database(address)
        for report in reports:
            add_run(database, report)
        accounts.append(account_of(load_past(database, days=90), ""))
        database.close()
    assert missed_and_false(planted, accounts[0]) == ([], [])
    assert to_json(accounts[0]) == to_json(accounts[1])


@pytest.mark.parametrize("seed", [3, 302])
def test_a_healthy_fleet_has_no_story(seed: int, tmp_path: Path) -> None:
    past = remembered(Fleet(200, 60, seed), f"sqlite:///{tmp_path}/h.db")
    assert account_of(past, "").stories == ()


@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_small_fleets_have_no_story_by_chance(size: int, tmp_path: Path) -> None:
    past = remembered(Fleet(size, 60, 11 + size), f"sqlite:///{tmp_path}/h.db")
    assert account_of(past, "").stories == ()


@pytest.mark.parametrize("nights", [1, 2, 5])
def test_few_runs_say_nothing(nights: int, tmp_path: Path) -> None:
    def bad(night: int, index: int, sample: Sample) -> None:
        if index == 3:
            sample.gauges[ranks.PACE.name] *= 1 + 0.1 * night

    account = account_of(remembered(Fleet(30, nights, 5, (bad,)), f"sqlite:///{tmp_path}/h.db"), "")
    assert account.stories == () and account.runs == nights


def test_an_empty_history(tmp_path: Path) -> None:
    open_database(f"sqlite:///{tmp_path}/h.db").close()
    account = api.history(f"sqlite:///{tmp_path}/h.db")
    assert (account.runs, account.stories, account.nodes) == (0, (), ())


def test_a_node_that_was_repaired_is_no_story(tmp_path: Path) -> None:
    def for_a_while(night: int, index: int, sample: Sample) -> None:
        if index == 7 and 20 <= night < 32:
            sample.gauges[ranks.PACE.name] *= 1.3
        if index == 8 and 10 <= night < 14:
            sample.failing["GPU004"] = "it was broken, and then repaired"

    past = remembered(Fleet(60, 60, 6, (for_a_while,)), f"sqlite:///{tmp_path}/h.db")
    assert account_of(past, "").stories == ()


def test_what_all_nodes_share_blames_no_node(tmp_path: Path) -> None:
    """The room got warmer at once, and the network slower, for everybody; one model got slower without an update."""

    def shared(night: int, index: int, sample: Sample) -> None:
        if night >= 40:
            sample.gauges[node_values.TEMPERATURE.name] += 9
        if night >= 45 and sample.properties["gpu"].startswith("NVIDIA A100"):
            sample.gauges[ranks.PACE.name] *= 1.2

    stories = account_of(remembered(Fleet(60, 60, 9, (shared,)), f"sqlite:///{tmp_path}/h.db"), "").stories
    assert [(story.kind, len(story.nodes), story.quantities) for story in stories] == [
        ("all-nodes", 24, (ranks.PACE.name,))
    ]


def test_a_run_that_could_not_tell_is_neither_a_failure_nor_health(tmp_path: Path) -> None:
    """A node that is unknown between two failures failed once, and is not healthy."""
    reports = list(Fleet(3, 8, 4, fails=0).reports())
    past = Past()
    database = open_database(f"sqlite:///{tmp_path}/h.db")
    for report in reports:
        add_run(database, report)
    past = load_past(database)
    node = past.nodes[0]
    states = ["failing", "unknown", "failing", "passing", "passing", "unknown", "passing", "passing"]
    from preflight.commands.history.past import Failure
    from preflight.commands.history.stories import health_of

    own = {node: [Failure(run, node, "X", "x", "") for run, state in enumerate(states) if state == "failing"]}
    health = health_of(replace(past, states={node: states}), own)[node]
    assert (health.failures, health.healthy_since, health.mean_time_between_failures_s) == (1, 6, None)


def test_the_account_as_a_document(tmp_path: Path) -> None:
    planted = twelve(2, size=100, nights=60)[:1]
    address = f"sqlite:///{tmp_path}/h.db"
    remembered(Fleet(100, 60, 2, tuple(item.story for item in planted)), address)
    account = api.history(address)
    assert_follows_schema(to_json(account), "history")
    (story,) = account.stories
    assert account.blamed == story.nodes == planted[0].nodes
    lemon = next(node for node in account.nodes if node.node == story.nodes[0])
    assert lemon.failures >= 10 and lemon.mean_days_between_failures is not None
    assert 3 < lemon.mean_days_between_failures < 8
    other = next(node.node for node in account.nodes if node.node not in story.nodes)
    assert concerning(account, {other}).stories == ()
    assert [node.node for node in concerning(account, {other}).nodes] == [other]

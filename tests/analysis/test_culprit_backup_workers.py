"""The culprit in a run with a backup worker: none, as long as it may still replace the lost worker."""

from __future__ import annotations

import pytest

from preflight.agent import rank_events
from preflight.analysis.rank_state import members_of, replaced
from tests.story import Story

SERVER, FIRST, LOST, SPARE = range(4)


def story() -> Story:
    """One server, two workers and a waiting backup worker; worker 1 is lost at 6 s."""
    found = Story(4, servers=1, spares=1)
    found.hellos()
    for number in range(4):
        found.phase(number, 3.0, rank_events.JOINED)
        found.beats(number, 0.5, 5.9 if number == LOST else 40.0)
    found.say(SPARE, 3.0, rank_events.ENTERING, what="a worker to replace", waiting_for=[SERVER], idle=True)
    return found


def steps(found: Story, *members: int, until_s: float = 40.0) -> None:
    """These members continue with their steps all the time."""
    for second in range(4, int(until_s)):
        for number in members:
            found.say(number, float(second), rank_events.ENTERING, what=f"step {second}", waiting_for=[])


def replace(found: Story, at_s: float) -> None:
    found.say(SERVER, at_s, rank_events.REPLACED, worker=LOST, spare=SPARE, clock=3, why="gone", seconds=0.1)


def test_a_backup_worker_is_named_as_such_and_has_no_index() -> None:
    found = story()
    assert [member.name for member in members_of(found.requests)] == ["server 0", "worker 0", "worker 1", "spare 0"]
    steps(found, SERVER, FIRST, LOST)
    found.beats(LOST, 6.0, 40.0)
    assert [found.blame(float(second)) for second in range(1, 40)] == [None] * 39


@pytest.mark.parametrize("how", ["dead", "stopped"])
def test_a_replaced_worker_is_not_blamed(how: str) -> None:
    found = story()
    steps(found, SERVER, FIRST)
    if how == "dead":
        found.ends(LOST, 6.0, "crashed", "killed", -9)
    else:
        found.agent(LOST, 6.0, state="T", pid=7)
    replace(found, 12.0)
    assert [found.blame(second / 2) for second in range(2, 80)] == [None] * 78
    gone = replaced(members_of(found.requests), found.events)
    assert {number: spare.name for number, spare in gone.items() if spare is not None} == {LOST: "spare 0"}


def test_a_worker_that_is_not_replaced_in_time_is_blamed() -> None:
    found = story()
    steps(found, SERVER, FIRST)
    found.ends(LOST, 6.0, "crashed", "killed", -9)
    assert found.blame(20.0) is None
    named = found.blame(21.5)
    assert named is not None and (named.rank, named.kind) == (LOST, "dead")


def test_no_backup_worker_is_awaited_after_the_servers_gave_up() -> None:
    found = story()
    found.ends(LOST, 6.0, "crashed", "killed", -9)
    found.ends(SERVER, 6.5, "blocked", "worker 1 is gone")
    named = found.blame(9.0)
    assert named is not None and (named.rank, named.kind) == (LOST, "dead")


def test_a_dead_backup_worker_is_blamed_and_replaces_nobody() -> None:
    found = story()
    steps(found, SERVER, FIRST)
    found.ends(SPARE, 5.0, "crashed", "killed", -9)
    found.ends(LOST, 6.0, "crashed", "killed", -9)
    named = found.blame(7.0)
    assert named is not None and named.title == "spare 0 on node3"


def test_a_server_is_never_replaced() -> None:
    found = story()
    steps(found, FIRST, LOST)
    found.beats(LOST, 6.0, 40.0)
    found.ends(SERVER, 6.0, "crashed", "killed", -9)
    named = found.blame(8.5)
    assert named is not None and (named.rank, named.kind) == (SERVER, "dead")


def test_a_second_loss_is_blamed_if_the_only_backup_worker_is_used() -> None:
    found = story()
    steps(found, SERVER)
    found.ends(LOST, 6.0, "crashed", "killed", -9)
    replace(found, 7.0)
    found.say(SPARE, 7.0, rank_events.ENTERING, what="step 3", waiting_for=[])
    found.ends(FIRST, 9.0, "crashed", "killed", -9)
    named = found.blame(10.0)
    assert named is not None and (named.rank, named.kind) == (FIRST, "dead")

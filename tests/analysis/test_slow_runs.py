"""Slow is not broken: starved ranks, long imports, deadlines and pauses of the head blame nobody."""

from __future__ import annotations

import pytest

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit, HeadPauses
from preflight.analysis.rank_state import UNFINISHED
from tests.story import Story


def waiting_for_rank_2(*, starved: float) -> Story:
    """Ranks 0, 1 and 3 wait in collective 2 from 5 s on, which rank 2 has not entered."""
    story = Story(4)
    story.training(until_s=5.0)
    for rank in (0, 1, 3):
        story.collective(rank, 5.0, 2)
    for rank in range(4):
        story.beats(rank, 5.5, 60.0, starved=starved if rank == 2 else 0.0)
    return story


def test_a_starved_rank_gets_the_time_that_it_did_not_run() -> None:
    assert waiting_for_rank_2(starved=0.0).blame(11.5) is not None
    slow = waiting_for_rank_2(starved=0.8)
    assert slow.blame(11.5) is None and slow.blame(25.0) is None
    found = slow.blame(45.0)
    assert found is not None and found.rank == 2, "a rank that does not move although it runs is stuck on any node"
    assert waiting_for_rank_2(starved=1.0).blame(59.0) is None


def test_a_rank_whose_kernel_does_not_count_waits_gets_five_times_as_long() -> None:
    story = waiting_for_rank_2(starved=0.0)
    for event in story.events:
        if event.node == "node2":
            event.data.pop("starved_s", None)  # type: ignore[attr-defined]
    assert story.blame(30.0) is None
    assert story.blame(40.0) is not None


def test_a_collective_is_not_stuck_while_one_of_its_ranks_is_starved() -> None:
    story = Story(3)
    story.training(until_s=5.0)
    for rank in range(3):
        story.collective(rank, 5.0, 2)
        story.beats(rank, 5.5, 60.0, starved=0.9 if rank == 1 else 0.0)
    assert story.blame(20.0) is None
    story = Story(3)
    story.training(until_s=30.0)
    for rank in range(3):
        story.collective(rank, 5.0, 2)
    assert story.blame(20.0) is not None


def cut_short(*, loading: tuple[int, ...], at_s: float = 60.0) -> Culprit | None:
    story = Story(3)
    for rank in range(3):
        story.phase(rank, 0.2, rank_events.STARTED)
        if rank in loading:
            story.say(rank, 0.3, rank_events.ENTERING, what="import of torch", waiting_for=[], loading=True)
        else:
            story.phase(rank, 5.0, rank_events.IMPORTED)
            story.say(rank, 5.1, rank_events.ENTERING, what="all ranks to reach the store", waiting_for=list(loading))
        story.beats(rank, 0.5, at_s)
    assert story.blame(at_s - 1) is None
    for rank in range(3):
        story.ends(rank, at_s, "timeout", "no answer within 60 s, waiting for reference_trainer.collective.rank:rank")
    return story.blame(at_s + 0.1)


@pytest.mark.parametrize("loading", [(0,), (0, 1, 2)])
def test_a_deadline_during_an_import_blames_nobody_and_says_what_still_ran(loading: tuple[int, ...]) -> None:
    found = cut_short(loading=loading)
    assert found is not None and (found.kind, found.rank, found.waiting) == (UNFINISHED, None, ())
    assert found.because.startswith("not finished after 60 s: rank")
    assert "(import of torch)" in found.because and "--smoke-deadline 120" in found.because


def test_waits_that_time_out_in_the_library_blame_nobody() -> None:
    story = Story(2)
    story.training(until_s=60.0)
    for rank in range(2):
        story.say(rank, 60.0, rank_events.PROBLEM, problem="failed", consequence=True)
        story.ends(rank, 60.0, "blocked", "Timed out waiting 60000ms for recv operation to complete")
    found = story.blame(63.0)
    assert found is not None and found.kind == UNFINISHED


def test_a_rank_that_died_before_the_deadline_is_still_named() -> None:
    story = Story(2)
    story.training(until_s=60.0)
    story.ends(1, 30.0, "crashed", "killed", -9)
    story.ends(0, 60.0, "timeout", "no answer within 60 s")
    found = story.blame(61.0)
    assert found is not None and (found.rank, found.kind) == (1, "dead")


def pause(story: Story, seconds: float, at_s: float) -> None:
    story._add(0, at_s, "head", {"event": rank_events.HEAD_PAUSED, "seconds": seconds})


def test_silence_while_the_head_paused_is_not_that_of_a_rank() -> None:
    story = Story(2)
    story.training(until_s=5.0)
    story.beats(0, 30.0, 31.0)
    assert story.blame(30.5) is not None
    pause(story, 24.0, 29.9)
    assert story.blame(30.5) is None
    story.beats(0, 31.0, 60.0)
    found = story.blame(45.0)
    assert found is not None and (found.rank, found.kind) == (1, "stopped")
    assert found.since_s == pytest.approx(5.0)


def test_agents_that_ended_because_the_head_was_suspended_blame_no_node() -> None:
    story = Story(2)
    story.training(until_s=5.0)
    for rank in range(2):
        story.agent(rank, 0.1, state="started", pid=5)
        story.ends(rank, 25.5, "unreachable", "its agent ended: the head was silent for 3.0 s")
    assert story.blame(26.0) is not None
    pause(story, 20.0, 25.4)
    found = story.blame(26.0)
    assert found is not None and found.kind == UNFINISHED
    assert "the head did not run for 20 s" in found.because and "node0, node1" in found.because


def test_a_clock_without_pauses_runs_back_to_the_same_time() -> None:
    pauses = HeadPauses(((2.0, 4.0), (10.0, 15.0)))
    assert [pauses.without(at) for at in (1.0, 3.0, 4.0, 9.0, 20.0)] == [1.0, 2.0, 2.0, 7.0, 13.0]
    assert [pauses.with_pauses(pauses.without(at)) for at in (1.0, 4.0, 9.0, 20.0)] == [1.0, 4.0, 9.0, 20.0]

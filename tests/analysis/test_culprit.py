"""The culprit of synthetic events, without processes and clocks."""

from __future__ import annotations

import pytest

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit, decision_time
from preflight.analysis.rank_state import build_views, find_member_outside_framework, members_of, replacements
from tests.story import Story


def named(found: Culprit | None) -> tuple[int | None, str]:
    assert found is not None
    return found.rank, found.kind


def test_healthy_ranks_blame_nobody_at_any_time() -> None:
    story = Story(3)
    story.training(until_s=9.0)
    for rank in range(3):
        for number in range(2, 9):
            story.collective(rank, 3.0 + number, number, took=0.2 + rank / 10)
        story.finishes(rank, 11.5)
    assert [story.blame(tenth / 10) for tenth in range(150)] == [None] * 150


def test_the_first_death_is_named_even_if_its_consequences_are_reported_first() -> None:
    story = Story(3)
    story.training(until_s=6.0)
    story.say(0, 6.0, rank_events.PROBLEM, problem="failed", consequence=True)
    story.ends(0, 6.0, "blocked", "connection closed by peer")
    assert story.blame(6.1) is None
    story.ends(2, 6.3, "crashed", "killed", -9)
    found = story.blame(6.4)
    assert named(found) == (2, "dead")
    assert found is not None and found.node == "node2" and "SIGKILL" in found.because
    assert found.waiting == (1,)


@pytest.mark.parametrize(
    "printed",
    [
        "NCCL watchdog: remote process exited or there was a network error",
        "gloo::IoException: Application timeout caused pair closure",
        "[pair.cc] connect [10.0.0.2]:4242: SO_ERROR: Connection refused",
    ],
)
def test_an_abort_because_of_a_peer_is_a_consequence_and_any_other_abort_is_not(printed: str) -> None:
    story = Story(3)
    story.training(until_s=6.0)
    story.ends(0, 6.0, "crashed", "aborted", -6, printed)
    assert story.blame(6.1) is None
    story.ends(2, 6.5, "crashed", "killed", -9)
    assert named(story.blame(6.6)) == (2, "dead")
    other = Story(2)
    other.training(until_s=6.0)
    other.ends(1, 6.0, "crashed", "aborted", -6, "terminate called after throwing std::bad_alloc")
    assert named(other.blame(6.1)) == (1, "dead")


def test_a_stop_is_named_after_ten_seconds_and_a_shorter_one_never() -> None:
    story = Story(3)
    story.training(until_s=24.0, quiet=(1,))
    story.collective(0, 5.0, 2)
    story.collective(2, 5.0, 2)
    story.agent(1, 5.2, state="T", pid=4711)
    assert story.blame(14.9) is None
    found = story.blame(15.3)
    assert named(found) == (1, "stopped")
    assert found is not None and "4711" in found.because
    story.agent(1, 14.9, state="R", pid=4711)
    story.beats(1, 14.9, 24.0)
    assert story.blame(15.3) is None and story.blame(20.0) is None
    assert named(story.blame(23.0)) == (1, "stuck"), "it runs again, and does not move"


def test_a_silent_rank_is_named_only_if_others_send_events() -> None:
    story = Story(2)
    story.training(until_s=20.0, quiet=(1,))
    assert story.blame(14.9) is None
    assert named(story.blame(15.2)) == (1, "stopped")
    both = Story(2)
    both.training(until_s=5.0)
    assert both.blame(15.2) is None


def test_a_rank_that_loads_libraries_may_be_silent() -> None:
    story = Story(2)
    for rank in range(2):
        story.phase(rank, 0.2, rank_events.STARTED)
        story.say(rank, 0.3, rank_events.ENTERING, what="import of torch", waiting_for=[], loading=True)
    story.beats(0, 0.5, 30.0)
    assert story.blame(20.0) is None


def test_a_rank_that_did_not_enter_the_collective_is_stuck() -> None:
    story = Story(4)
    story.training(until_s=30.0)
    for rank in (0, 1, 3):
        story.collective(rank, 5.0, 2)
    assert story.blame(9.0) is None
    found = story.blame(11.0)
    assert named(found) == (2, "stuck")
    assert found is not None and "did not enter collective 2" in found.because
    assert found.waiting == (0, 1, 3)


def test_slow_steps_may_take_five_times_the_longest_so_far() -> None:
    story = Story(2)
    story.training(until_s=40.0)
    for rank in range(2):
        story.collective(rank, 5.0, 2, took=3.0)
    story.collective(0, 8.1, 3)
    assert story.blame(22.0) is None
    assert named(story.blame(24.0)) == (1, "stuck")


def test_when_all_entered_and_none_left_no_rank_is_named() -> None:
    story = Story(3)
    story.training(until_s=30.0)
    for rank in range(3):
        story.collective(rank, 5.0 + rank / 10, 2)
    found = story.blame(12.0)
    assert named(found) == (None, "stuck")
    assert found is not None and "all 3 ranks entered collective 2 (sum 2)" in found.because


def test_two_ranks_that_others_left_behind_are_named_with_the_path_between_them() -> None:
    story = Story(4)
    story.training(until_s=30.0)
    for rank in range(4):
        story.collective(rank, 5.0, 2, took=0.1 if rank in (0, 3) else None)
    for rank in (0, 3):
        story.collective(rank, 5.2, 3)
    found = story.blame(12.0)
    assert named(found) == (1, "stuck")
    assert found is not None and found.also == (2,)
    assert "rank 2 on node2: check the network path between them" in found.because


def test_the_one_that_left_a_collective_in_which_most_still_wait_is_named() -> None:
    story = Story(3)
    story.training(until_s=30.0)
    for rank in range(3):
        story.collective(rank, 5.0, 2, took=0.1 if rank == 2 else None)
    story.collective(2, 5.2, 3)
    found = story.blame(12.0)
    assert named(found) == (2, "stuck")
    assert found is not None and found.also == () and found.waiting == (0, 1)
    assert "left collective 2 (sum 2), in which ranks 0, 1 on node0, node1 still wait after" in found.because


def broadcasting(*received: int) -> Culprit | None:
    """Rank 0 of four has sent a broadcast and gone on; of the others only `received` have it."""
    story = Story(4)
    story.training(until_s=30.0)
    for rank in range(4):
        story.say(rank, 5.0, rank_events.ENTERING, what="broadcast", waiting_for=[], collective=2, root=0)
        if rank in (0, *received):
            story.say(rank, 5.1, rank_events.LEFT, what="broadcast", collective=2, seconds=0.1)
            story.collective(rank, 5.2, 3)
    return story.blame(12.0)


def test_the_root_of_a_broadcast_may_leave_it_first() -> None:
    found = broadcasting()
    assert named(found) == (None, "stuck")
    assert found is not None and found.waiting == (1, 2, 3) and "cannot show which" in found.because
    assert "rank 0 on node0 left collective 2 (broadcast), in which ranks 1, 2, 3 on node1" in found.because
    found = broadcasting(1)
    assert found is not None and (found.rank, found.also) == (2, (3,)), "rank 1 got it and is healthy"


def test_the_root_of_a_broadcast_is_not_blamed_for_a_rank_that_left_it_out() -> None:
    story = Story(4)
    story.training(until_s=30.0)
    for rank in range(4):
        story.say(rank, 5.0, rank_events.ENTERING, what="broadcast", waiting_for=[], collective=2, root=2)
        if rank != 2:
            story.say(rank, 5.1, rank_events.LEFT, what="broadcast", collective=2, seconds=0.1)
            story.collective(rank, 5.2, 3)
    assert named(story.blame(12.0)) == (None, "stuck")


def test_a_rank_that_is_connected_to_all_others_is_not_blamed_for_those_that_are_not() -> None:
    story = Story(4)
    for rank in range(4):
        story.phase(rank, 0.2, rank_events.STARTED)
        story.phase(rank, 4.0, rank_events.RENDEZVOUS)
        story.say(
            rank, 4.1, rank_events.ENTERING, what="setup", waiting_for=[], collective=1, root=rank_events.ANY_RANK
        )
        story.beats(rank, 0.5, 30.0)
    story.say(0, 4.5, rank_events.LEFT, what="setup", collective=1, seconds=0.4)
    story.collective(0, 4.6, 2)
    found = story.blame(15.0)
    assert found is not None and (found.rank, found.also) == (1, (2, 3))


def test_of_two_ranks_neither_is_blamed_because_one_left_a_collective_and_the_other_did_not() -> None:
    story = Story(2)
    story.training(until_s=30.0)
    story.collective(0, 5.0, 2)
    story.collective(1, 5.0, 2, took=0.1)
    story.collective(1, 5.2, 3)
    found = story.blame(12.0)
    assert named(found) == (None, "stuck")
    assert found is not None and "rank 1 on node1 left collective 2 (sum 2), in which rank 0" in found.because


def test_ranks_that_are_equally_behind_are_named_together() -> None:
    story = Story(4)
    story.training(until_s=30.0)
    for rank in (0, 3):
        story.collective(rank, 5.0, 2)
    found = story.blame(12.0)
    assert found is not None and (found.rank, found.also, found.waiting) == (1, (2,), (0, 2, 3))
    assert "nor did rank 2 on node2; they did not enter collective 2, in which ranks 0, 3 wait" in found.because


def test_ranks_that_are_all_equally_slow_blame_nobody() -> None:
    story = Story(3)
    story.training(until_s=60.0)
    assert story.blame(59.0) is None
    for rank in range(3):
        story.ends(rank, 60.0, "timeout", "no answer within 60 s")
    assert named(story.blame(60.1)) == (None, "unfinished")


def test_ranks_that_end_in_the_same_way_are_named_together() -> None:
    story = Story(3)
    story.training(until_s=6.0)
    for rank, at_s in ((1, 6.0), (2, 6.1)):
        story.ends(rank, at_s, "crashed", "the process was killed", -9)
    found = story.blame(6.2)
    assert found is not None and (found.rank, found.also) == (1, (2,))
    assert "was killed by SIGKILL during" in found.because
    assert "rank 2 on node2 ended the same way" in found.because


def test_the_rank_that_notices_a_lost_connection_first_is_not_blamed_for_it() -> None:
    story = Story(3)
    story.training(until_s=6.0)
    for rank, at_s in ((2, 6.0), (0, 6.1), (1, 6.2)):
        story.say(rank, at_s, rank_events.PROBLEM, problem="failed", consequence=True)
        story.ends(rank, at_s, "blocked", "the connection was lost: connection reset by peer")
    found = story.blame(6.3)
    assert named(found) == (None, "stuck")
    assert found is not None and "ranks 0, 1, 2 on node0, node1, node2 lost their connections" in found.because
    assert "rank 2 on node2 was first" in found.because


def test_a_rank_that_advertises_loopback_is_named_when_the_group_hangs() -> None:
    story = Story(2)
    for rank in range(2):
        story.phase(rank, 0.2, rank_events.STARTED)
        story.phase(rank, 2.0, rank_events.RENDEZVOUS)
        details = {"hostname_resolves_to": "10.0.0.1" if rank == 0 else "127.0.1.1", "interface": ""}
        story.say(rank, 2.1, rank_events.ENTERING, what="setup of the group", collective=1, details=details)
        story.beats(rank, 0.5, 15.0)
    found = story.blame(12.0)
    assert named(found) == (1, "endpoint")
    assert found is not None and "127.0.1.1" in found.because


def test_a_rank_that_starts_slowly_is_not_missing_and_one_whose_agent_cannot_start_it_is() -> None:
    story = Story(3)
    for rank in (0, 1):
        story.phase(rank, 0.2, rank_events.STARTED)
        story.say(rank, 1.0, rank_events.ENTERING, what="all ranks to reach the store", waiting_for=[2])
        story.beats(rank, 0.5, 60.0)
    assert story.blame(59.0) is None
    story.ends(2, 0.7, "context", "`python3` is not there")
    found = story.blame(0.8)
    assert named(found) == (2, "missing")
    assert found is not None and "`python3` is not there" in found.because
    story.records.clear()
    for rank in range(3):
        story.ends(rank, 60.0, "timeout", "no answer within 60 s")
    found = story.blame(60.1)
    assert named(found) == (None, "unfinished")
    assert found is not None and "rank 2 on node2 (starting)" in found.because


def test_a_lost_node_is_distinguished_from_a_dead_process() -> None:
    story = Story(2)
    story.training(until_s=6.0)
    story.agent(1, 0.1, state="started", pid=5)
    story.ends(1, 8.0, "unreachable", "its agent was silent for 3.0 s")
    assert named(story.blame(8.1)) == (1, "lost-node")


def dialling(results: dict[int, str]) -> Story:
    story = Story(len(results))
    story.phase(0, 0.2, rank_events.LISTENING)
    for rank, result in results.items():
        story.phase(rank, 0.2, rank_events.STARTED)
        story.say(rank, 1.0, rank_events.DIAL, result=result, error="no", endpoint="a:1")
        story.beats(rank, 0.5, 20.0)
    return story


def test_one_rank_that_cannot_dial_is_to_blame_itself() -> None:
    story = dialling({0: "open", 1: "open", 2: "timed-out"})
    assert story.blame(3.9) is None
    assert named(story.blame(4.1)) == (2, "endpoint")


def test_when_no_other_node_can_dial_the_master_is_to_blame() -> None:
    assert named(dialling({0: "open", 1: "refused", 2: "refused"}).blame(4.1)) == (0, "endpoint")


def test_rank_0_is_blamed_for_an_address_that_is_not_its_own() -> None:
    assert named(dialling({0: "timed-out", 1: "timed-out"}).blame(4.1)) == (0, "endpoint")


def test_an_unresolvable_master_is_named_within_two_seconds() -> None:
    found = dialling({0: "open", 1: "unresolved", 2: "open"}).blame(2.1)
    assert named(found) == (1, "endpoint")


def test_later_events_do_not_change_the_decision() -> None:
    story = Story(2)
    story.training(until_s=30.0, quiet=(1,))
    live = story.blame(15.2)
    assert live is not None
    story._add(0, 15.2, "head", {"event": rank_events.DECIDED})
    story.ends(0, 15.4, "crashed", "aftermath", -6)
    assert decision_time(story.events, story.records) == 15.2
    assert story.blame(decision_time(story.events, story.records)) == live


def test_events_of_a_hostile_rank_do_not_crash_the_judge() -> None:
    story = Story(2)
    for data in (
        {"phase": 7},
        {"phase": "nonsense"},
        {"collective": "x", "waiting_for": 3},
        {"seconds": "nan"},
    ):
        for event in (
            rank_events.PHASE,
            rank_events.ENTERING,
            rank_events.LEFT,
            rank_events.BEAT,
            rank_events.DIAL,
            "unheard-of",
        ):
            story.say(0, 1.0, event, **data)
    story.agent(1, 1.0, state=3, pid="x")
    assert story.blame(100.0) is None


def serving(*, until_s: float = 30.0, quiet: tuple[int, ...] = ()) -> Story:
    """Two servers (0, 1) and two workers (2, 3) that train from 5 s on; all except `quiet` send heartbeats until
    `until_s`.
    """
    story = Story(4, servers=2)
    story.hellos()
    for number in range(4):
        story.phase(number, 4.0, rank_events.GROUP)
        story.beats(number, 0.5, 5.0 if number in quiet else until_s)
    for server in range(2):
        story.say(server, 5.0, rank_events.ENTERING, what="serving", waiting_for=[2, 3], idle=True)
    return story


def test_waits_lead_through_the_server_to_the_slow_worker() -> None:
    story = serving()
    story.say(2, 5.0, rank_events.ENTERING, what="pull of step 3", waiting_for=[1])
    story.say(1, 5.1, rank_events.ENTERING, what="holding worker 0's pull", waiting_for=[3])
    story.say(3, 5.0, rank_events.ENTERING, what="step 2", waiting_for=[])
    assert story.blame(10.9) is None
    found = story.blame(11.5)
    assert named(found) == (3, "stuck")
    assert found is not None and found.title == "worker 1 on node3"
    assert "worker 1 on node3 made no progress for 6.5 s during step 2" in found.because


def test_a_worker_waiting_for_an_idle_server_blames_the_path() -> None:
    story = serving()
    story.say(2, 5.0, rank_events.ENTERING, what="pull of step 3", waiting_for=[1])
    story.say(3, 5.0, rank_events.ENTERING, what="hold", waiting_for=[2])
    found = story.blame(11.5)
    assert named(found) == (2, "stuck")
    assert found is not None and found.also == (1,)
    assert "server 1 on node1 has received no request" in found.because


def given_up(waiting_for: list[int]) -> Story:
    """Worker 1 is busy, or waits for others, until both servers end because of it, and worker 0 because they ended."""
    story = serving(until_s=30.0)
    story.say(3, 5.0, rank_events.ENTERING, what="step 2", waiting_for=waiting_for)
    for number, at_s in ((2, 11.0), (1, 11.1), (0, 11.2)):
        because = [3] if number < 2 else []
        story.say(number, at_s, rank_events.PROBLEM, problem="failed", consequence=True, because=because)
        story.ends(number, at_s, "blocked", "worker 1 has sent nothing for 10.0 s")
    return story


def test_the_member_that_others_gave_up_on_is_named() -> None:
    found = given_up([]).blame(14.5)
    assert named(found) == (3, "stuck")
    assert found is not None and found.title == "worker 1 on node3" and "servers 0, 1 gave up" in found.because


def test_a_server_that_workers_gave_up_on_is_named_though_another_server_gave_up_on_them() -> None:
    story = serving(until_s=30.0)
    story.say(1, 5.0, rank_events.ENTERING, what="requests of workers", waiting_for=[])
    for number, at_s, because in ((2, 11.0, [1]), (3, 11.1, [1]), (0, 11.2, [2])):
        story.say(number, at_s, rank_events.PROBLEM, problem="failed", consequence=True, because=because)
        story.ends(number, at_s, "blocked", "server 1 said nothing for 10.0 s")
    found = story.blame(14.5)
    assert named(found) == (1, "stuck")
    assert found is not None and "workers 0, 1 gave up" in found.because


def test_a_server_that_goes_on_is_not_blamed_alone_by_a_worker_that_gave_up_on_it() -> None:
    story = serving(until_s=30.0)
    story.say(2, 5.0, rank_events.ENTERING, what="push of step 3", waiting_for=[1])
    for second in range(5, 15):
        story.say(1, second + 0.5, rank_events.ENTERING, what="push", waiting_for=[], progress=second)
    story.say(2, 11.0, rank_events.PROBLEM, problem="failed", consequence=True, because=[1])
    story.ends(2, 11.0, "blocked", "server 1 said nothing for 10.0 s")
    found = story.blame(14.5)
    assert found is not None and (found.title, found.also) == ("worker 0 on node2", (1,))
    assert "gave up on server 1 on node1" in found.because and "check the network path" in found.because


def test_a_chain_whose_end_goes_on_says_on_whom_the_first_gave_up() -> None:
    story = serving(until_s=30.0)
    story.say(2, 5.0, rank_events.ENTERING, what="push of step 3", waiting_for=[1])
    story.say(1, 5.1, rank_events.ENTERING, what="holding worker 0's push", waiting_for=[3])
    for second in range(5, 15):
        story.say(3, second + 0.5, rank_events.ENTERING, what="step 2", waiting_for=[], progress=second)
    story.say(2, 11.0, rank_events.PROBLEM, problem="failed", consequence=True, because=[1])
    story.ends(2, 11.0, "blocked", "server 1 said nothing for 10.0 s")
    found = story.blame(14.5)
    assert found is not None and (found.title, found.also) == ("worker 0 on node2", (1, 3))
    assert "gave up on server 1 on node1" in found.because
    assert "although worker 1 on node3, which that member waited for, continued" in found.because


def test_a_member_that_others_gave_up_on_is_not_named_while_it_waits_for_one_of_them() -> None:
    story = given_up([0])
    story.say(0, 6.0, rank_events.ENTERING, what="apply", waiting_for=[])
    found = story.blame(14.5)
    assert found is not None and found.rank != 3


def waiting(**edges: list[int]) -> Story:
    """From 5 s on these members only wait for others, as in `n2=[1]`."""
    story = serving()
    for number in range(4):
        story.say(number, 5.0, rank_events.ENTERING, what="reply", waiting_for=edges[f"n{number}"])
    return story


def test_mutual_waits_name_the_member_common_to_all_pairs() -> None:
    found = waiting(n0=[2, 3], n1=[2], n2=[0], n3=[0]).blame(11.5)
    assert found is not None and (found.title, found.kind) == ("server 0 on node0", "stuck")
    assert "waits for workers 0, 1, and each of them waits for it" in found.because
    found = waiting(n0=[3], n1=[3], n2=[0], n3=[0, 1]).blame(11.5)
    assert found is not None and found.title == "worker 1 on node3"
    found = waiting(n0=[2], n1=[3], n2=[1], n3=[1]).blame(11.5)
    assert found is not None and (found.title, found.also) == ("worker 1 on node3", (1,))
    assert "waits for server 1 on node1, which waits for it in turn" in found.because


def test_pairs_without_a_common_member_name_no_culprit_with_certainty() -> None:
    found = waiting(n0=[2], n1=[3], n2=[0], n3=[1]).blame(11.5)
    assert found is not None and found.rank is None and "no culprit can be named with certainty" in found.because


def test_a_killed_or_stopped_server_is_named_as_a_server() -> None:
    story = serving(until_s=6.0)
    story.say(2, 6.0, rank_events.PROBLEM, problem="failed", consequence=True)
    story.ends(2, 6.0, "blocked", "server 1 went away")
    story.ends(1, 6.2, "crashed", "killed", -9)
    found = story.blame(6.3)
    assert found is not None and found.title == "server 1 on node1" and "SIGKILL" in found.because
    stopped = serving(quiet=(1,))
    stopped.agent(1, 5.2, state="T", pid=4711)
    found = stopped.blame(15.3)
    assert found is not None and (found.title, found.kind) == ("server 1 on node1", "stopped")


def test_a_server_that_does_not_end_after_its_workers_is_named() -> None:
    story = serving()
    for worker in (2, 3):
        story.say(worker, 6.0, rank_events.PHASE, phase=rank_events.DONE)
        story.finishes(worker, 6.0)
    story.ends(1, 6.1, "cancelled")
    found = story.blame(13.0)
    assert found is not None and found.kind == "stuck" and found.title in ("server 0 on node0", "server 1 on node1")


def test_idle_healthy_servers_blame_nobody() -> None:
    story = serving()
    for worker in (2, 3):
        for second in range(5, 25):
            story.say(worker, second, rank_events.ENTERING, what=f"step {second}", waiting_for=[])
    assert [story.blame(second) for second in range(25)] == [None] * 25


def test_a_heartbeat_reports_a_wait_whose_start_was_not_sent() -> None:
    story = serving()
    story.say(2, 5.0, rank_events.ENTERING, what="step 2", waiting_for=[])
    story.say(2, 5.6, rank_events.BEAT, progress=9, what="pull of step 3", waiting_for=[1], idle=False)
    story.say(1, 5.6, rank_events.BEAT, progress=9, what="holding worker 0's pull", waiting_for=[3], idle=False)
    story.say(3, 5.0, rank_events.ENTERING, what="step 2", waiting_for=[])
    assert named(story.blame(12.0)) == (3, "stuck")


def test_an_awaited_stage_is_named_even_if_it_is_rank_0() -> None:
    story = Story(3)
    story.phase(0, 0.1, rank_events.LISTENING)
    story.training(until_s=30.0)
    for rank, awaited in ((1, [0]), (2, [1])):
        story.say(rank, 4.9, rank_events.ENTERING, what="pipeline step 0: receive", waiting_for=awaited)
    story.say(0, 5.0, rank_events.LEFT, what="pipeline step 0: send", seconds=0.1)
    found = story.blame(25.0)
    assert named(found) == (0, "stuck")
    assert found is not None and found.waiting == (1, 2)


TRAINER = """  File "preflight-bundle:/reference_trainer/collective/group.py", line 206 in _counted
  File "preflight-bundle:/reference_trainer/collective/rank.py", line 53 in rank
"""
IN_COLLECTIVE = '  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
IN_OWN_FILE = '  File "/srv/inj/sitecustomize.py", line 19 in all_reduce\n'


def stacks(*innermost: str) -> Culprit | None:
    """All ranks hang in one collective; the innermost frame of each is given, and empty where no stack was taken."""
    story = Story(len(innermost))
    story.training(until_s=30.0)
    for rank, frame in enumerate(innermost):
        story.collective(rank, 5.0, 2)
        beat = 'Thread 0x7f (most recent call first):\n  File "threading.py", line 331 in wait\n\n'
        if frame:
            story.agent(rank, 12.0, stacks=f"{beat}Current thread 0x7e (most recent call first):\n{frame}{TRAINER}")
    found = story.blame(12.0)
    assert found is not None and found.rank is None
    return find_member_outside_framework(build_views(members_of(story.requests), story.events, [], began_s=0.0), found)


def test_the_rank_whose_stack_is_outside_the_collective_is_named() -> None:
    found = stacks(IN_COLLECTIVE, IN_COLLECTIVE, IN_OWN_FILE)
    assert named(found) == (2, "stuck")
    assert found is not None and found.waiting == (0, 1) and found.doing == "sum 2"
    assert "rank 2 on node2 is in all_reduce (/srv/inj/sitecustomize.py:19), outside the framework" in found.because


def test_stacks_that_do_not_differ_clearly_name_no_rank() -> None:
    assert stacks(IN_COLLECTIVE, IN_COLLECTIVE, IN_COLLECTIVE) is None
    assert stacks(IN_COLLECTIVE, IN_OWN_FILE) is None, "one against one"
    assert stacks(IN_COLLECTIVE, IN_COLLECTIVE, "") is None, "a stack is missing"
    assert stacks(IN_COLLECTIVE, IN_COLLECTIVE, "\n") is None, "it waits for its GPU in the trainer's own code"


# The culprit in a run with a backup worker: none, as long as it may still replace the lost worker.


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
    gone = replacements(members_of(found.requests), found.events)
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

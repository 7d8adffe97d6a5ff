"""The member that does not match the others, from their reports at start."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit
from tests.story import Story

#: Two servers (0 and 1) and three workers (2 to 4).
MEMBERS, SERVERS = 5, 2


def group() -> Story:
    return Story(MEMBERS, servers=SERVERS)


def culprit_with(number: int, **settings: Any) -> Culprit:
    """The culprit that is found at once if one member of the group has other settings."""
    story = group()
    story.hellos(without=[number])
    story.hello(number, **settings)
    found = story.blame(0.3)
    assert found is not None and found.kind == "mismatch"
    return found


def test_members_that_belong_together_blame_nobody() -> None:
    for story in (group(), Story(3)):
        story.hellos()
        assert story.blame(1.0) is None


def test_a_repeated_index_names_both_processes_and_the_unused_index() -> None:
    found = culprit_with(2, index=1)
    assert {found.rank, *found.also} == {2, 3}
    assert "are both worker 1" in found.because and "no process is worker 0" in found.because
    assert "host2:102" in found.because and "host3:103" in found.because


def test_one_endpoint_given_to_two_servers() -> None:
    found = culprit_with(1, index=0, endpoint="10.0.0.0:6170")
    assert {found.rank, *found.also} == {0, 1} and "are both server 0" in found.because


def test_a_different_count_names_both_sides() -> None:
    found = culprit_with(4, workers=4)
    assert found.rank == 4 and found.title == "worker 2 on node4"
    assert "was configured with 4 workers, but servers 0, 1 and workers 0, 1 with 3 workers" in found.because
    assert culprit_with(0, servers=3).title == "server 0 on node0"


def test_the_count_of_started_processes_is_right() -> None:
    story = Story(2)
    story.hello(0, world_size=3)
    story.hello(1)
    found = story.blame(0.3)
    assert found is not None and found.rank == 0
    assert "was configured with 3 ranks, but rank 1 with 2 ranks" in found.because


def test_both_sides_of_a_tie_are_named() -> None:
    story = Story(2)
    story.hello(0, master="node0:29500")
    story.hello(1, master="node0:29501")
    found = story.blame(0.3)
    assert found is not None and {found.rank, *found.also} == {0, 1}
    assert "the master at node0:29501" in found.because


def test_an_endpoint_missing_from_the_list() -> None:
    found = culprit_with(1, endpoint="127.0.0.9:6170")
    assert found.rank == 1
    assert "127.0.0.9:6170, which is not in its own list of servers (10.0.0.0:6170, 10.0.0.1:6170)" in found.because


def test_an_endpoint_at_another_position_in_the_list() -> None:
    assert "server 1 of its own list is 10.0.0.1:6170" in culprit_with(1, endpoint="10.0.0.0:6170").because


def test_an_address_of_another_host() -> None:
    found = culprit_with(1, endpoint_problem="10.0.0.1 is no address of this host")
    assert found.rank == 1 and "no address of this host" in found.because


def test_a_list_of_servers_that_differs() -> None:
    found = culprit_with(3, server_endpoints=["10.0.0.0:6170", "10.0.0.1:6999"])
    assert found.title == "worker 1 on node3" and "10.0.0.1:6999" in found.because


def test_the_first_tensor_that_differs_is_named() -> None:
    found = culprit_with(3, parameters="xyz", tensors=["a [2] float32 server 0", "b [4] float32 server 1"])
    assert found.rank == 3
    assert "parameter 1 is b [4] float32 server 1 here and b [3] float32 server 1 there" in found.because
    assert "parameter 1 is none here" in culprit_with(3, parameters="xyz", tensors=["a [2] float32 server 0"]).because
    assert "the digest of the list is xyz" in culprit_with(3, parameters="xyz").because


def test_a_misspelt_role_and_an_index_that_is_not_a_number() -> None:
    assert (
        "the role 'SERVERS', which is not one of server, worker; did you mean server?"
        in culprit_with(0, role="SERVERS").because
    )
    assert "the role 'mistress'" in culprit_with(0, role="mistress").because
    assert "the index '', which is not a number" in culprit_with(2, index="").because


def test_a_surplus_member_is_named() -> None:
    story = Story(3)
    for number in range(3):
        story.hello(number, world_size=2)
    found = story.blame(0.3)
    assert found is not None and found.rank == 2 and found.kind == "mismatch"
    assert "is one too many: its own configuration has 2 ranks, 0 to 1" in found.because


def test_a_missing_member_is_reported_once_all_others_have_reported() -> None:
    story = group()
    for number in range(MEMBERS):
        assert story.blame(0.3) is None
        story.hello(number, workers=4)
    found = story.blame(0.3)
    assert found is not None and (found.rank, found.kind, found.title) == (None, "missing", "")
    assert found.because.startswith("no process was started as worker 3: all were configured with 4 workers")


def test_a_contradiction_waits_briefly_for_other_members() -> None:
    story = Story(3)
    story.hello(0, world_size=4)
    story.hello(1, at_s=0.5)
    assert story.blame(1.4) is None
    found = story.blame(1.6)
    assert found is not None and found.rank == 0
    story.hello(2, at_s=1.0)
    assert story.blame(1.1) == story.blame(1.6)


def test_the_handshake_does_not_need_torch() -> None:
    story = group()
    story.hellos(without=[2])
    story.hello(2, index=1)
    assert not any(event.data.get("phase") == rank_events.IMPORTED for event in story.events)
    found = story.blame(0.3)
    assert found is not None and "importing torch" in found.doing


@pytest.mark.parametrize("servers", [0, SERVERS])
@pytest.mark.parametrize("value", [None, [], {}, "x" * 5000, -1, 2**80, 1.5, [None], True])
def test_reports_of_a_hostile_member_do_not_crash_the_judge(value: Any, servers: int) -> None:
    for key in ("role", "index", "rank", "servers", "workers", "world_size", "server_endpoints", "endpoint", "tensors"):
        story = Story(MEMBERS, servers=servers)
        story.hellos(without=[3])
        story.hello(3, **{key: value})
        story.blame(3.0)

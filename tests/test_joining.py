"""Who does not belong to the others, from what each says of itself when it starts."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.culprit import Culprit
from reference_trainer import phases
from tests.story import Story

#: Two servers (0 and 1) and three workers (2 to 4).
MEMBERS, SERVERS = 5, 2


def group() -> Story:
    return Story(MEMBERS, servers=SERVERS)


def odd(number: int, **told: Any) -> Culprit:
    """What is said at once when one member of the group was told something else."""
    story = group()
    story.hellos(without=[number])
    story.hello(number, **told)
    found = story.blame(0.3)
    assert found is not None and found.kind == "mismatch"
    return found


def test_members_that_belong_together_blame_nobody() -> None:
    for story in (group(), Story(3)):
        story.hellos()
        assert story.blame(1.0) is None


def test_one_index_given_twice_names_both_processes_and_the_place_that_is_left() -> None:
    found = odd(2, index=1)
    assert {found.rank, *found.also} == {2, 3}
    assert "are both worker 1" in found.because and "nobody is worker 0" in found.because
    assert "host2:102" in found.because and "host3:103" in found.because


def test_one_endpoint_given_to_two_servers() -> None:
    found = odd(1, index=0, endpoint="10.0.0.0:6170")
    assert {found.rank, *found.also} == {0, 1} and "are both server 0" in found.because


def test_a_count_that_differs_says_who_says_what() -> None:
    found = odd(4, workers=4)
    assert found.rank == 4 and found.title == "worker 2 on node4"
    assert "was told of 4 workers, but servers 0, 1 and workers 0, 1 of 3 workers" in found.because
    assert odd(0, servers=3).title == "server 0 on node0"


def test_of_two_counts_that_of_the_processes_that_were_started_is_right() -> None:
    story = Story(2)
    story.hello(0, world_size=3)
    story.hello(1)
    found = story.blame(0.3)
    assert found is not None and found.rank == 0
    assert "was told of 3 ranks, but rank 1 of 2 ranks" in found.because


def test_two_of_equal_weight_are_both_named() -> None:
    story = Story(2)
    story.hello(0, master="node0:29500")
    story.hello(1, master="node0:29501")
    found = story.blame(0.3)
    assert found is not None and {found.rank, *found.also} == {0, 1}
    assert "the master at node0:29501" in found.because


def test_an_endpoint_that_is_in_no_list() -> None:
    found = odd(1, endpoint="127.0.0.9:6170")
    assert found.rank == 1
    assert "127.0.0.9:6170, which is not in its own list of servers (10.0.0.0:6170, 10.0.0.1:6170)" in found.because


def test_an_endpoint_at_another_place_of_the_list() -> None:
    assert "server 1 of its own list is 10.0.0.1:6170" in odd(1, endpoint="10.0.0.0:6170").because


def test_an_address_of_another_host() -> None:
    found = odd(1, endpoint_problem="10.0.0.1 is no address of this host")
    assert found.rank == 1 and "no address of this host" in found.because


def test_a_list_of_servers_that_differs() -> None:
    found = odd(3, server_endpoints=["10.0.0.0:6170", "10.0.0.1:6999"])
    assert found.title == "worker 1 on node3" and "10.0.0.1:6999" in found.because


def test_the_first_tensor_that_differs_is_named() -> None:
    found = odd(3, parameters="xyz", tensors=["a [2] float32 server 0", "b [4] float32 server 1"])
    assert found.rank == 3
    assert "number 1 is b [4] float32 server 1, there it is b [3] float32 server 1" in found.because
    assert "its number 1 is none" in odd(3, parameters="xyz", tensors=["a [2] float32 server 0"]).because
    assert "the digest of its list is xyz" in odd(3, parameters="xyz").because


def test_a_misspelt_role_and_an_index_that_is_no_number() -> None:
    assert "the role 'SERVERS', which is none of server, worker; did you mean server?" in odd(0, role="SERVERS").because
    assert "the role 'mistress'" in odd(0, role="mistress").because
    assert "the index '', which is no number" in odd(2, index="").because


def test_one_too_many() -> None:
    story = Story(3)
    for number in range(3):
        story.hello(number, world_size=2)
    found = story.blame(0.3)
    assert found is not None and found.rank == 2 and found.kind == "mismatch"
    assert "is one too many: there are 2 ranks, 0 to 1" in found.because


def test_a_place_that_nobody_was_started_for_is_told_once_all_have_spoken() -> None:
    story = group()
    for number in range(MEMBERS):
        assert story.blame(0.3) is None
        story.hello(number, workers=4)
    found = story.blame(0.3)
    assert found is not None and (found.rank, found.kind, found.title) == (None, "missing", "")
    assert found.because.startswith("nobody was started as worker 3: everybody was told of 4 workers")


def test_others_are_waited_for_a_moment_before_a_side_is_taken() -> None:
    story = Story(3)
    story.hello(0, world_size=4)
    story.hello(1, at_s=0.5)
    assert story.blame(1.4) is None
    found = story.blame(1.6)
    assert found is not None and found.rank == 0
    story.hello(2, at_s=1.0)
    assert story.blame(1.1) == story.blame(1.6)


def test_torch_need_not_be_there() -> None:
    story = group()
    story.hellos(without=[2])
    story.hello(2, index=1)
    assert not any(event.data.get("phase") == phases.IMPORTED for event in story.events)
    found = story.blame(0.3)
    assert found is not None and "importing torch" in found.doing


@pytest.mark.parametrize("servers", [0, SERVERS])
@pytest.mark.parametrize("value", [None, [], {}, "x" * 5000, -1, 2**80, 1.5, [None], True])
def test_words_of_a_hostile_member_do_not_crash_the_judge(value: Any, servers: int) -> None:
    for key in ("role", "index", "rank", "servers", "workers", "world_size", "server_endpoints", "endpoint", "tensors"):
        story = Story(MEMBERS, servers=servers)
        story.hellos(without=[3])
        story.hello(3, **{key: value})
        story.blame(3.0)

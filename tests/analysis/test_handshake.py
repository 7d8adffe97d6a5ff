"""The member that does not match the others, from their reports at start."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit
from preflight.analysis.link_matrix import ALL_PAIRS_UP_TO, disjoint_rounds, round_count, rounds, schedule
from preflight.model.requests import Request
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
    assert "is one too many: its configuration has 2 ranks, 0 to 1" in found.because


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


# The server, worker or path at fault, from the results of every worker connecting to every server.


PATH_SERVERS, WORKERS = 2, 3


def matrix(*bad: tuple[int, int], result: str = "timed-out", servers: int = PATH_SERVERS, silent: int = -1) -> Story:
    """All servers listen, and workers (by index) connect to them; the cells in `bad` fail."""
    story = Story(servers + WORKERS, servers=servers)
    story.hellos()
    for number in range(servers + WORKERS):
        story.beats(number, 0.5, 20.0)
    for server in range(servers):
        if server != silent:
            story.phase(server, 0.5, rank_events.LISTENING)
        for worker in range(WORKERS):
            outcome = result if (worker, server) in bad else "open"
            endpoint = f"10.0.0.{server}:6170"
            for at_s in (1.0, *((2.0, 3.0, 3.5) if outcome != "open" else ())):
                data = {"to": server, "result": outcome, "error": "no", "endpoint": endpoint}
                story.say(servers + worker, at_s, rank_events.DIAL, **data)
    return story


def path(story: Story, now_s: float = 4.1) -> Culprit:
    found = story.blame(now_s)
    assert found is not None and found.kind == "path", found
    return found


def test_all_open_blames_nobody() -> None:
    assert matrix().blame(5.0) is None


def test_a_column_is_a_server_that_cannot_be_reached() -> None:
    story = matrix((0, 1), (1, 1), (2, 1))
    assert story.blame(3.4) is None
    found = path(story)
    assert (found.title, found.also) == ("server 1 on node1", ())
    assert "listens, but no worker can open its port: 10.0.0.1:6170 is timed-out" in found.because
    assert path(matrix((0, 0), (1, 0), (2, 0), servers=1)).title == "server 0 on node0"


def test_a_row_is_a_worker_that_is_cut_off() -> None:
    found = path(matrix((2, 0), (2, 1)))
    assert (found.title, found.also) == ("worker 2 on node4", ())
    assert "cannot open the port of any server (servers 0, 1), although they listen" in found.because


def test_a_cell_is_the_path_between_two() -> None:
    found = path(matrix((1, 0), result="refused"))
    assert (found.title, found.also) == ("worker 1 on node3", (0,))
    assert "cannot open the port of server 0 on node0, which listens and which workers 0, 2 can reach" in found.because


def test_part_of_a_column_blames_the_server() -> None:
    assert path(matrix((0, 1), (1, 1))).title == "server 1 on node1"


def test_failures_before_the_server_listens_are_ignored() -> None:
    story = Story(3, servers=1)
    story.hellos()
    for number in range(3):
        story.beats(number, 0.5, 20.0)
    dial = {"to": 0, "error": "no", "endpoint": "10.0.0.0:6170"}
    for worker in (1, 2):
        story.say(worker, 1.0, rank_events.DIAL, result="refused", **dial)
    story.phase(0, 1.1, rank_events.LISTENING)
    assert story.blame(19.0) is None
    for worker in (1, 2):
        story.say(worker, 5.0, rank_events.DIAL, result="refused", **dial)
    assert path(story, 5.1).title == "server 0 on node0"


def test_a_server_that_does_not_listen_yet_is_not_judged() -> None:
    story = matrix((0, 1), (1, 1), (2, 1), result="refused", silent=1)
    assert story.blame(5.0) is None


def test_an_unresolvable_name_is_reported_after_a_second() -> None:
    found = path(matrix((1, 0), result="unresolved"), 2.1)
    assert "the name of 10.0.0.0:6170 cannot be resolved" in found.because


def test_another_process_on_the_port_is_reported() -> None:
    found = path(matrix((0, 0), (1, 0), (2, 0), result="stranger"))
    assert found.title == "server 0 on node0" and "not a server of this run" in found.because


def test_a_worker_that_gives_up_does_not_hide_the_others() -> None:
    story = matrix((0, 1), (1, 1), (2, 1))
    story.ends(2, 3.0, "unreachable", "gave up")
    assert path(story, 5.1).title == "server 1 on node1"


def test_a_server_that_cannot_listen_is_named_with_its_own_error() -> None:
    story = matrix((0, 1), (1, 1), (2, 1), result="refused", silent=1)
    story.say(1, 0.6, rank_events.PROBLEM, problem="listen", error="cannot listen on port 6170: Address already in use")
    found = story.blame(0.7)
    assert found is not None and found.title == "server 1 on node1" and found.kind == "endpoint"
    assert "must serve, but cannot listen on port 6170" in found.because


def redirected(*workers: int) -> Culprit | None:
    """These workers reach server 1 at the address of server 0."""
    story = matrix()
    for worker in workers:
        error = f"worker {worker} on node{PATH_SERVERS + worker} {rank_events.EXPECTS_SERVER % 0} server 1"
        story.say(1, 1.1, rank_events.PROBLEM, problem="mismatch", what="hello", error=error, worker=worker)
        said = f"server 0 at 10.0.0.0:6170 says: {error}"
        story.say(
            PATH_SERVERS + worker, 1.2, rank_events.PROBLEM, problem="mismatch", what="hello", error=said, server=0
        )
    assert story.blame(1.3) is None, "the other workers may say the same"
    return story.blame(4.1)


def test_a_worker_whose_path_leads_to_another_server_is_named_and_not_that_server() -> None:
    found = redirected(1)
    assert found is not None and (found.title, found.kind, found.also) == ("worker 1 on node3", "path", ())
    assert (
        "reaches server 1 on node1 at 10.0.0.0:6170, the address of server 0 on node0, which workers 0, 2 reach there"
        in found.because
    )


def test_a_server_that_all_workers_take_for_another_one_is_at_fault() -> None:
    found = redirected(0, 1, 2)
    assert found is not None and (found.title, found.kind) == ("server 1 on node1", "mismatch")


# Pairs in rounds.


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9])
def test_every_pair_meets_once_and_no_node_twice_in_a_round(count: int) -> None:
    names = [f"n{i}" for i in range(count)]
    found = list(rounds(names))
    assert len(found) == count - 1 + count % 2
    for pairs in found:
        met = [name for pair in pairs for name in pair]
        assert len(met) == len(set(met))
    every = [frozenset(pair) for pairs in found for pair in pairs]
    assert sorted(map(sorted, every)) == sorted(map(sorted, itertools.combinations(names, 2)))


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_nodes_to_pair(count: int) -> None:
    assert list(rounds(list(range(count)))) == []


def test_a_sample_above_the_limit_still_pairs_every_node() -> None:
    plan = schedule([f"n{i}" for i in range(20)], max_rounds=4)
    assert plan.is_sample and len(plan.rounds) == 4
    assert plan.pairs == 40 and plan.all_pairs == 190
    assert "40 of 190" in plan.coverage_text and "4 partners per node" in plan.coverage_text
    for pairs in plan.rounds:
        assert len({name for pair in pairs for name in pair}) == 20


def test_the_limit_of_all_pairs_and_the_size_of_samples() -> None:
    assert round_count(ALL_PAIRS_UP_TO) == ALL_PAIRS_UP_TO - 1
    assert [round_count(n) for n in (65, 1000, 5000, 10_000)] == [48, 48, 9, 8]


@pytest.mark.parametrize("count", [65, 101, 1000])
def test_a_sample_gives_each_node_the_same_number_of_partners(count: int) -> None:
    met: dict[int, set[int]] = {}
    for pairs in schedule([str(i) for i in range(count)]).rounds:
        for a, b in pairs:
            met.setdefault(int(a), set()).add(int(b))
            met.setdefault(int(b), set()).add(int(a))
    assert len(met) == count
    assert {len(others) for others in met.values()} <= {47, 48}


@pytest.mark.thorough
def test_rounds_of_ten_thousand_nodes_are_planned_at_once() -> None:
    began = time.process_time()
    plan = schedule([f"n{i}" for i in range(10_000)])
    assert plan.pairs == 8 * 5000 and time.process_time() - began < 1


def test_disjoint_rounds_are_the_planned_rounds() -> None:
    asked = [Request("m:f", a, peers=(b,), exclusive=True) for pairs in rounds(["a", "b", "c", "d"]) for a, b in pairs]
    found = disjoint_rounds(asked)
    assert [len(item) for item in found] == [2, 2, 2]
    assert [r.key for item in found for r in item] == [r.key for r in asked]


@pytest.mark.thorough
def test_rounds_of_many_requests_are_computed_quickly() -> None:
    names = [f"n{i}" for i in range(5000)]
    asked = [Request("m:f", a, peers=(b,)) for pairs in rounds(names, 3) for a, b in pairs]
    began = time.process_time()
    assert [len(item) for item in disjoint_rounds(asked)] == [2500, 2500, 2500]
    assert time.process_time() - began < 1

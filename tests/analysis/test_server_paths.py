"""The server, worker or path at fault, from the results of every worker connecting to every server."""

from __future__ import annotations

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit
from tests.story import Story

SERVERS, WORKERS = 2, 3


def matrix(*bad: tuple[int, int], result: str = "timed-out", servers: int = SERVERS, silent: int = -1) -> Story:
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
    assert "cannot open the port of any server (servers 0, 1), though they listen" in found.because


def test_a_cell_is_the_path_between_two() -> None:
    found = path(matrix((1, 0), result="refused"))
    assert (found.title, found.also) == ("worker 1 on node3", (0,))
    assert "cannot open the port of server 0 on node0, which listens, and which workers 0, 2 can open" in found.because


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
        error = f"worker {worker} on node{SERVERS + worker} {rank_events.EXPECTS_SERVER % 0} server 1"
        story.say(1, 1.1, rank_events.PROBLEM, problem="mismatch", what="hello", error=error, worker=worker)
        said = f"server 0 at 10.0.0.0:6170 says: {error}"
        story.say(SERVERS + worker, 1.2, rank_events.PROBLEM, problem="mismatch", what="hello", error=said, server=0)
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

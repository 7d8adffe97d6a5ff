"""Ranks without a store of torch tell each other over their connections to rank 0 who failed, and the verdict."""

from __future__ import annotations

import socket
import threading

import pytest

from reference_trainer.common.arrays import MAX_BYTES, JsonLines
from reference_trainer.common.watchdog import PeerLines
from tests.waiting import until


class Ranks:
    """Three ranks in this process, with what each was told."""

    def __init__(self) -> None:
        self.ends = {rank: socket.socketpair() for rank in (1, 2)}
        self.told: dict[int, list[str]] = {0: [], 1: [], 2: []}
        lines = {rank: JsonLines(ends[0]) for rank, ends in self.ends.items()}
        before = set(threading.enumerate())
        self.of = {0: PeerLines(0, "a", lines, self.told[0].append)}
        (self.reader_of_0,) = set(threading.enumerate()) - before
        for rank, ends in self.ends.items():
            self.of[rank] = PeerLines(rank, "bc"[rank - 1], {0: JsonLines(ends[1])}, self.told[rank].append)


def test_a_rank_whose_process_ends_is_named_to_all_others() -> None:
    ranks = Ranks()
    assert until(lambda: len(ranks.of[0]._hosts) == 2)
    ranks.ends[2][1].shutdown(socket.SHUT_RDWR)
    expected = ["rank 2 on c: its process ended"]
    assert until(lambda: ranks.told[0] and ranks.told[1])
    assert ranks.told[0] == ranks.told[1] == expected
    assert ranks.of[0].reason == ranks.of[1].reason == expected[0]


def test_the_reason_of_one_rank_reaches_all_others() -> None:
    ranks = Ranks()
    ranks.of[1].fail("rank 1 on b: a fault")
    assert until(lambda: ranks.told[0] and ranks.told[2])
    assert ranks.told == {0: ["rank 1 on b: a fault"], 1: [], 2: ["rank 1 on b: a fault"]}


def test_the_end_of_rank_0_is_named() -> None:
    # Nothing reads the ends of rank 0: a rank 0 that still ran would report the first closed one as rank 1's.
    ends = socket.socketpair()
    told: list[str] = []
    peer = PeerLines(1, "b", {0: JsonLines(ends[1])}, told.append)
    ends[0].close()
    assert until(lambda: told)
    assert told == ["rank 0: its process ended"] and peer.reason == told[0]


def test_reports_and_the_verdict() -> None:
    ranks = Ranks()
    for rank in (1, 2):
        assert ranks.of[rank].finish({"host": "x", "faults": [], "rank": rank}, 20) == {}
    assert sorted(ranks.of[0].finish({}, 20)) == [1, 2]
    ranks.of[0].publish(True, [])
    assert [ranks.of[rank].await_verdict(20) for rank in (1, 2)] == [{"go": True, "why": []}] * 2
    # The end of a rank that has reported is no failure.
    ranks.ends[2][1].shutdown(socket.SHUT_RDWR)
    ranks.ends[1][1].shutdown(socket.SHUT_RDWR)
    until(lambda: not ranks.reader_of_0.is_alive())
    assert ranks.told[0] == []


def test_a_rank_that_never_reports_is_not_waited_for_without_end() -> None:
    ranks = Ranks()
    ranks.of[1].finish({"host": "b", "faults": []}, 1)
    assert until(lambda: 1 in ranks.of[0]._reports)
    assert sorted(ranks.of[0].finish({}, 0.2)) == [1]
    assert ranks.of[2].await_verdict(0.2) is None


def test_an_overlong_line_is_told_from_a_closed_connection() -> None:
    ends = socket.socketpair()
    line = JsonLines(ends[1])
    ends[1].setblocking(False)
    with pytest.raises(ConnectionError, match=f"a line exceeds {4 * MAX_BYTES} bytes"):
        for _ in range(8):
            ends[0].sendall(b"x" * MAX_BYTES)
            line.ready()
    ends[0].close()
    ends[1].close()

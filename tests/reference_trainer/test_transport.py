"""What one rank records of its transport: counters on one rank a node, NCCL's words from memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from reference_trainer.nccl_log import NcclSaid
from reference_trainer.transport import Transport, Watcher

SENT = 1 << 20


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")


def exchange() -> None:
    """A megabyte over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as out:
        accepted, _ = server.accept()
        with accepted:
            received = 0
            for _ in range(SENT // 4096):
                out.sendall(bytes(4096))
                received += len(accepted.recv(4096, socket.MSG_WAITALL))
    assert received == SENT


def test_one_rank_of_a_node_counts_what_its_cards_carry() -> None:
    first, second = Watcher(), Watcher()
    for watcher in (first, second):
        watcher.listen("gloo")
        watcher.begin(counts=watcher is first)
    exchange()
    for watcher in (first, second):
        watcher.end()
    found = first.found(77)
    assert found.counted and found.crossing_bytes == 77 and found.nccl == NcclSaid()
    assert all(count >= SENT for count in found.carried.interfaces["lo"])
    assert second.found(77) == Transport(crossing_bytes=77)


def test_nothing_is_counted_where_it_never_came_so_far() -> None:
    watcher = Watcher()
    watcher.begin(counts=True)
    assert watcher.found(0) == Transport()


def test_what_nccl_says_is_kept_and_its_warnings_are_last_words(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Watcher()
    watcher.complain()
    watcher.listen("nccl")
    with Path(os.environ["NCCL_DEBUG_FILE"]).open("w") as log:
        log.write("NCCL version 2.27.5+cuda12.9\nx:1:1 [0] NCCL INFO Using network Socket\n")
        log.write("x:1:1 [0] socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3\n")
    assert watcher.found(0).nccl.network == "Socket"
    watcher.complain()
    assert capsys.readouterr().err == "NCCL WARN socketFinalizeAccept: wrong type 4 != 3\n"


def test_other_back_ends_write_no_log() -> None:
    Watcher().listen("gloo")
    assert os.environ["NCCL_DEBUG_FILE"] == ""

"""The transport record of a rank: counters on one rank per node, NCCL's log from memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from reference_trainer.common.used_transport import NcclConnections, Transport, TransportWatcher

SENT = 1 << 20


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")


def exchange() -> None:
    """Send a megabyte over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as out:
        accepted, _ = server.accept()
        with accepted:
            received = 0
            for _ in range(SENT // 4096):
                out.sendall(bytes(4096))
                received += len(accepted.recv(4096, socket.MSG_WAITALL))
    assert received == SENT


def test_one_rank_per_node_counts_card_traffic() -> None:
    first, second = TransportWatcher(), TransportWatcher()
    for watcher in (first, second):
        watcher.listen("gloo")
        watcher.begin(counts=watcher is first)
    exchange()
    for watcher in (first, second):
        watcher.end()
    found = first.found(77)
    assert found.counted and found.crossing_bytes == 77 and found.nccl == NcclConnections()
    assert all(count >= SENT for count in found.carried.interfaces["lo"])
    assert second.found(77) == Transport(crossing_bytes=77)


def test_no_counts_without_a_measurement() -> None:
    watcher = TransportWatcher()
    watcher.begin(counts=True)
    assert watcher.found(0) == Transport()


def test_nccl_log_is_kept_and_its_warnings_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = TransportWatcher()
    watcher.print_warnings()
    watcher.listen("nccl")
    with Path(os.environ["NCCL_DEBUG_FILE"]).open("w") as log:
        log.write("NCCL version 2.27.5+cuda12.9\nx:1:1 [0] NCCL INFO Using network Socket\n")
        log.write("x:1:1 [0] socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3\n")
    assert watcher.found(0).nccl.network == "Socket"
    watcher.print_warnings()
    assert capsys.readouterr().err == "NCCL WARN socketFinalizeAccept: wrong type 4 != 3\n"


def test_other_backends_write_no_log() -> None:
    TransportWatcher().listen("gloo")
    assert os.environ["NCCL_DEBUG_FILE"] == ""

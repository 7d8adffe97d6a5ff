"""Ranks of horovodrun meet over its own store of keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from reference_trainer.common.launcher_environment import NoMaster, NotLaunched, is_served, master, place


class _Store(BaseHTTPRequestHandler):
    """What horovodrun serves: PUT and GET of one value for each path."""

    values: dict[str, bytes]

    def do_PUT(self) -> None:
        self.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        value = self.values.get(self.path)
        self.send_response(200 if value is not None else 404)
        self.end_headers()
        self.wfile.write(value or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """The variables of a process of horovodrun, whose store runs until the end of the test."""
    handler = type("Store", (_Store,), {"values": {}})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.server_address[:2]
        yield {"HOROVOD_GLOO_RENDEZVOUS_ADDR": str(host), "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
        server.shutdown()


def ranked(environment: dict[str, str], rank: int) -> dict[str, str]:
    return {**environment, "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "2"}


def test_rank_0_leaves_its_address_for_the_others(environment: dict[str, str]) -> None:
    assert is_served(environment) and not is_served({})
    first = place(ranked(environment, 0))
    assert first.master_addr == "127.0.0.1" and first.master_port > 0
    for rank in (1, 3):
        other = place(ranked(environment, rank))
        assert (other.rank, other.master_addr, other.master_port) == (rank, first.master_addr, first.master_port)


def test_a_rank_0_that_never_comes_and_a_store_that_is_gone_are_named(environment: dict[str, str]) -> None:
    with pytest.raises(NoMaster, match=r"rank 0 left no address in horovodrun's store at .* within 0.3 s"):
        master(environment, 1, wait_s=0.3)
    gone = {**environment, "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    with pytest.raises(NotLaunched, match="does not answer"):
        place(ranked(gone, 1))


def test_an_address_that_the_job_exports_comes_first(environment: dict[str, str]) -> None:
    given = place({**ranked(environment, 1), "MASTER_ADDR": "n1", "MASTER_PORT": "4000"})
    assert (given.master_addr, given.master_port) == ("n1", 4000)

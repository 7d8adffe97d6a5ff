"""The ranks' meeting point under horovodrun over several nodes, which sets no MASTER_ADDR.

horovodrun serves a store of keys over HTTP for its own workers (horovod/runner/http/http_server.py, Horovod 0.28): PUT
and GET of /SCOPE/KEY. Rank 0 leaves its address there, and the others read it.
"""

from __future__ import annotations

import http.client
import socket
import time
from typing import Mapping, Optional, Tuple

_ADDRESS, _PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
_KEY = "/preflight/master"
#: Ranks start at different times; rank 0 announces its address before it imports anything large.
WAIT_S = 60.0
_ANSWER_S = 5.0


class NoMaster(Exception):
    """The ranks cannot learn the address of rank 0; the message tells why."""


def is_served(environment: Mapping[str, str]) -> bool:
    """Whether horovodrun serves a store for this process."""
    return bool(environment.get(_ADDRESS)) and environment.get(_PORT, "").isdecimal()


def master(environment: Mapping[str, str], rank: int, wait_s: float = WAIT_S) -> Tuple[str, int]:
    """The address and port of rank 0: its own choice on rank 0, which others wait for.

    Raises NoMaster if the store does not answer, or rank 0 leaves nothing there in time.
    """
    host, port = environment[_ADDRESS], int(environment[_PORT])
    if rank == 0:
        own = _own_address(host, port), _free_port()
        _request(host, port, "PUT", ("%s %d" % own).encode())
        return own
    ends = time.monotonic() + wait_s
    while True:
        answer = _request(host, port, "GET")
        if answer is not None:
            address, _, number = answer.decode("ascii", "replace").partition(" ")
            if not number.isdecimal():
                raise NoMaster("horovodrun's store at %s:%d holds %r instead of an address" % (host, port, answer[:80]))
            return address, int(number)
        if time.monotonic() >= ends:
            raise NoMaster("rank 0 left no address in horovodrun's store at %s:%d within %g s" % (host, port, wait_s))
        time.sleep(0.2)


def _request(host: str, port: int, method: str, body: Optional[bytes] = None) -> Optional[bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_S)
    try:
        connection.request(method, _KEY, body)
        answer = connection.getresponse()
        data = answer.read(4096)
    except (OSError, http.client.HTTPException) as error:
        raise NoMaster("horovodrun's store at %s:%d does not answer: %s" % (host, port, error)) from None
    finally:
        connection.close()
    return data if answer.status == 200 else None


def _own_address(host: str, port: int) -> str:
    """The address of this node on the way to the store, which the other nodes can reach, too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])

"""What a host name means on this node."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List

#: A dead name server costs 12 s per look-up with default resolver options (measured); nobody should wait that long.
LOOKUP_S = 3.0


@dataclass(frozen=True)
class Lookup:
    """How a name resolved: addresses in the resolver's order, or `problem` (`unresolved`, `timeout`).

    `own` says that the node was asked for its own name (`socket.gethostname()`).
    """

    name: str
    addresses: List[str] = field(default_factory=list)
    problem: str = ""
    detail: str = ""
    took_s: float = 0.0
    own: bool = False


def resolve(params: Dict[str, Any]) -> Lookup:
    """Look up `params["name"]`, or the node's own name when it is empty or missing.

    The look-up runs in a thread and is given up after `params["limit_s"]` seconds (3 by default), because a
    resolver cannot be interrupted; the answer `timeout` is an observation, not a failure to observe.
    """
    name = str(params.get("name") or "")
    own = not name
    if own:
        name = socket.gethostname()
    return lookup(name, float(params.get("limit_s", LOOKUP_S)), own)


def lookup(name: str, limit_s: float, own: bool = False) -> Lookup:
    """The addresses of `name`, waiting at most `limit_s` seconds."""
    answer: Dict[str, Any] = {}
    began = time.monotonic()
    thread = threading.Thread(target=_look_up, args=(name, answer), daemon=True)
    thread.start()
    thread.join(limit_s)
    took_s = round(time.monotonic() - began, 3)
    if not answer:
        detail = "no answer from the resolver within %.1f s" % limit_s
        return Lookup(name, [], "timeout", detail, took_s, own)
    if "error" in answer:
        return Lookup(name, [], "unresolved", answer["error"], took_s, own)
    return Lookup(name, answer["addresses"], "", "", took_s, own)


def _look_up(name: str, answer: Dict[str, Any]) -> None:
    try:
        found = socket.getaddrinfo(name, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        answer["error"] = str(error)
        return
    addresses = []  # type: List[str]
    for _family, _kind, _protocol, _canonical, address in found:
        text = str(address[0])
        if text not in addresses:
            addresses.append(text)
    answer["addresses"] = addresses

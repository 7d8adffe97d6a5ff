"""What a host name means on this node."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from preflight.node.cheap import cheap
from preflight.node.record import ANNOTATED, dataclass, field, replace

if ANNOTATED:
    from typing import Any, Dict, List, Optional

#: A dead name server costs 12 s per look-up with default resolver options (measured); nobody should wait that long.
LOOKUP_S = 3.0
#: Names are looked up one after the other, until no answer came for so long.
STALLED_S = 0.05
#: So many names are looked up in one request.
MOST_NAMES = 64
HOSTS = "/etc/hosts"
#: Files of large sites have thousands of lines; what is behind this is not read.
LARGEST_HOSTS = 4 * 1024 * 1024


@dataclass(frozen=True)
class Lookup:
    """How a name resolved: addresses in the resolver's order, or `problem` (`unresolved`, `timeout`).

    `own` says that the node was asked for its own name (`socket.gethostname()`). `bound` is then the first of the
    addresses that can be bound here, which is the one Gloo takes; empty where none can, None where it was not tried.
    """

    name: str
    addresses: List[str] = field(default_factory=list)
    problem: str = ""
    detail: str = ""
    took_s: float = 0.0
    own: bool = False
    bound: Optional[str] = None


@dataclass(frozen=True)
class Lookups:
    """Several names, in the order asked for. `hosts_file` is what /etc/hosts says of those that stand there."""

    lookups: List[Lookup]
    hosts_file: Dict[str, List[str]] = field(default_factory=dict)


@cheap("node", asks=True)
def resolve(params: Dict[str, Any]) -> Lookup:
    """Look up `params["name"]`, or the node's own name when it is empty or missing.

    The look-up runs in a thread and is given up after `params["limit_s"]` seconds (3 by default), because a
    resolver cannot be interrupted; the answer `timeout` is an observation, not a failure to observe.
    """
    name = str(params.get("name") or "")
    own = not name
    if own:
        name = socket.gethostname()
    found = lookup(name, float(params.get("limit_s", LOOKUP_S)), own)
    return replace(found, bound=first_bindable(found.addresses)) if own else found


def first_bindable(addresses: List[str]) -> str:
    """The first of these addresses that this node can bind; empty where it can bind none."""
    for text in addresses:
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as plain:
                plain.bind((text, 0))
                return text
        except OSError:
            continue
    return ""


@cheap("node", asks=True)
def resolve_many(params: Dict[str, Any]) -> Lookups:
    """Look up all of `params["names"]` at the same time, each within `limit_s` seconds."""
    names = [str(name) for name in params["names"]][:MOST_NAMES]
    limit_s = float(params.get("limit_s", LOOKUP_S))
    ends = time.monotonic() + limit_s + 0.5
    found: Dict[str, Lookup] = {}
    left = list(reversed(names))

    def in_turn() -> None:
        # The last of them may be taken away between a look and the next.
        with suppress(IndexError):
            while True:
                name = left.pop()
                found[name] = _timed(name)

    def alone(name: str) -> None:
        found[name] = lookup(name, limit_s)

    # Where all is well one thread is done with all of them sooner than as many threads are started.
    threads = [threading.Thread(target=in_turn, daemon=True)]
    threads[0].start()
    known = -1
    while threads[0].is_alive() and len(found) > known:
        known = len(found)
        threads[0].join(STALLED_S)
    if threads[0].is_alive():
        rest, left[:] = list(left), []
        threads += [threading.Thread(target=alone, args=(name,), daemon=True) for name in reversed(rest)]
        for thread in threads[1:]:
            thread.start()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    late = "no answer from the resolver within %.1f s" % limit_s
    answers = [found.get(name) or Lookup(name, [], "timeout", late, limit_s) for name in names]
    return Lookups(answers, parse_hosts(_hosts_text(), names))


def _hosts_text() -> str:
    try:
        with open(HOSTS, "rb") as file:
            return file.read(LARGEST_HOSTS).decode("utf-8", "replace")
    except OSError:
        return ""


def parse_hosts(text: str, names: List[str]) -> Dict[str, List[str]]:
    """The addresses that lines of /etc/hosts give to these names, in file order."""
    wanted = {name.lower(): name for name in names}
    found: Dict[str, List[str]] = {}
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        for word in words[1:]:
            name = wanted.get(word.lower())
            if name is not None and words[0] not in found.setdefault(name, []):
                found[name].append(words[0])
    return found


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


def _timed(name: str) -> Lookup:
    """The addresses of `name`, however long that takes."""
    answer: Dict[str, Any] = {}
    began = time.monotonic()
    _look_up(name, answer)
    took_s = round(time.monotonic() - began, 3)
    if "error" in answer:
        return Lookup(name, [], "unresolved", answer["error"], took_s)
    return Lookup(name, answer["addresses"], "", "", took_s)


def _look_up(name: str, answer: Dict[str, Any]) -> None:
    # As text it would pass the codec of international names, which takes longer to import than the look-up.
    host = name.encode() if name.isascii() else name
    try:
        found = socket.getaddrinfo(host, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        answer["error"] = str(error)
        return
    addresses = []  # type: List[str]
    for _family, _kind, _protocol, _canonical, address in found:
        text = str(address[0])
        if text not in addresses:
            addresses.append(text)
    answer["addresses"] = addresses

"""Resolves host names on this node."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Callable, TypeVar

from preflight.agent.cheap import cheap
from preflight.agent.process import read_text

T = TypeVar("T")
#: A dead name server costs 12 s per lookup with default resolver options (measured); a check must not wait that long.
LOOKUP_S = 3.0
#: Names are resolved one after the other, until there was no answer for this long.
STALLED_S = 0.05
#: The number of names that are resolved in one request.
MAX_NAMES = 64
HOSTS = "/etc/hosts"
#: Files of large sites have thousands of lines; lines after this are not read.
MAX_HOSTS_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Lookup:
    """The resolution of a name: addresses in the resolver's order, or `problem` (`unresolved`, `timeout`).

    `own`: whether it is the node's own name (`socket.gethostname()`). `bound` is then the first address that can be
    bound here, which Gloo uses; empty if none can, None if this was not tried.
    """

    name: str
    addresses: list[str] = field(default_factory=list)
    problem: str = ""
    detail: str = ""
    took_s: float = 0.0
    own: bool = False
    bound: str | None = None


@dataclass(frozen=True)
class Lookups:
    """Several names, in the requested order. `hosts_file` is what /etc/hosts contains about them."""

    lookups: list[Lookup]
    hosts_file: dict[str, list[str]] = field(default_factory=dict)


@cheap("node", sends_requests=True)
def resolve(params: dict[str, Any]) -> Lookup:
    """Look up `params["name"]` (default: own name) in a thread that is abandoned after `params["limit_s"]` seconds
    (3).
    """
    name = str(params.get("name") or "")
    own = not name
    if own:
        name = socket.gethostname()
    found = lookup(name, float(params.get("limit_s", LOOKUP_S)), own)
    return replace(found, bound=first_bindable(found.addresses)) if own else found


def first_bindable(addresses: list[str]) -> str:
    """Return the first of these addresses that this node can bind; empty if it cannot bind any of them."""
    for text in addresses:
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as plain:
                plain.bind((text, 0))
                return text
        except OSError:
            continue
    return ""


@cheap("node", sends_requests=True)
def resolve_many(params: dict[str, Any]) -> Lookups:
    """Resolve all of `params["names"]` at the same time, each within `limit_s` seconds."""
    names = [str(name) for name in params["names"]][:MAX_NAMES]
    answers = lookup_all(names, float(params.get("limit_s", LOOKUP_S)))
    return Lookups(answers, parse_hosts(read_text(HOSTS, MAX_HOSTS_BYTES), names))


def lookup_all(names: list[str], limit_s: float) -> list[Lookup]:
    """Return the lookups of these names in this order, all made at the same time and within `limit_s` seconds."""
    ends = time.monotonic() + limit_s + 0.5
    results: dict[str, Lookup] = {}
    remaining = list(reversed(names))

    def resolve_sequentially() -> None:
        # The last of them may be removed between the check and the access.
        with suppress(IndexError):
            while True:
                name = remaining.pop()
                results[name] = _timed_lookup(name)

    def resolve_one(name: str) -> None:
        results[name] = lookup(name, limit_s)

    # On a healthy node one thread resolves all of them faster than a thread for each can be started.
    threads = [threading.Thread(target=resolve_sequentially, daemon=True)]
    threads[0].start()
    known = -1
    while threads[0].is_alive() and len(results) > known:
        known = len(results)
        threads[0].join(STALLED_S)
    if threads[0].is_alive():
        rest, remaining[:] = list(remaining), []
        threads += [threading.Thread(target=resolve_one, args=(name,), daemon=True) for name in reversed(rest)]
        for thread in threads[1:]:
            thread.start()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    late = f"no response from the resolver within {limit_s:.1f} s"
    return [results.get(name) or Lookup(name, [], "timeout", late, limit_s) for name in names]


def parse_hosts(text: str, names: list[str]) -> dict[str, list[str]]:
    """Return the addresses of these names in /etc/hosts, in file order."""
    wanted = {name.lower(): name for name in names}
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        for word in words[1:]:
            name = wanted.get(word.lower())
            if name is not None and words[0] not in found.setdefault(name, []):
                found[name].append(words[0])
    return found


def run_within(limit_s: float, read: Callable[[], T], otherwise: T) -> T:
    """Return the result of `read`, or `otherwise` if it is late; `read` then continues in an abandoned thread."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(read()), daemon=True)
    thread.start()
    thread.join(limit_s)
    return found[0] if found else otherwise


def lookup(name: str, limit_s: float, own: bool = False) -> Lookup:
    """Return the addresses of `name`, waiting at most `limit_s` seconds."""
    late = Lookup(name, [], "timeout", f"no response from the resolver within {limit_s:.1f} s", limit_s, own)
    return run_within(limit_s, lambda: _timed_lookup(name, own), late)


def _timed_lookup(name: str, own: bool = False) -> Lookup:
    """Return the addresses of `name`, without a time limit."""
    # As text it would pass the codec of international names, which takes longer to import than the lookup.
    host = name.encode() if name.isascii() else name
    started_at = time.monotonic()
    try:
        found = socket.getaddrinfo(host, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Lookup(name, [], "unresolved", str(error), round(time.monotonic() - started_at, 3), own)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    return Lookup(name, addresses, "", "", round(time.monotonic() - started_at, 3), own)

"""The nodes of a fleet by name and address, and whether they are separate machines."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable

from preflight._util.hostnames import folded, is_loopback
from preflight.model.recording import Fleet, Node
from preflight.plugins.memo import memoize

#: Number of addresses whose parsed form is cached: several for each node of a large fleet.
_ADDRESSES = 1 << 16
#: Up to this many names are listed one by one; more that end in numbers become a range if the range is short.
_LISTED, _MAX_RANGE_LENGTH = 4, 80
#: Making a range of more names takes a tenth of a second.
_MAX_FOLDED = 1000
_NUMBERED = re.compile(r"[A-Za-z][A-Za-z0-9-]*[0-9]", re.ASCII)


def named(fleet: Fleet, host: str) -> Node | None:
    """The node with this name, short name or address."""
    wanted = host.rstrip(".").lower()
    whole, short = _by_name(fleet)
    found = whole.get(wanted)
    if found is not None or is_literal(host):
        return found
    nodes = short.get(wanted.split(".")[0], ())
    return nodes[0] if len(nodes) == 1 else None


@memoize
def _by_name(fleet: Fleet) -> tuple[dict[str, Node], dict[str, list[Node]]]:
    """The nodes by name and address, and by short name. Memoized: callers look up every node of a large fleet."""
    whole: dict[str, Node] = {}
    short: dict[str, list[Node]] = {}
    for node in fleet.nodes:
        whole.setdefault(node.name.lower(), node)
        whole.setdefault(node.address.lower(), node)
        short.setdefault(node.name.split(".")[0].lower(), []).append(node)
    return whole, short


def unreached(fleet: Fleet) -> tuple[str, ...]:
    """The nodes without an agent, which NOD001 reports."""
    return tuple(record.node.name for record in fleet.records if record.problem)


def is_single_machine(fleet: Fleet) -> bool:
    """Whether all nodes are processes of this machine."""
    return bool(fleet.nodes) and all(is_loopback(node.address or "-") for node in fleet.nodes)


def nodes_share_machine(fleet: Fleet) -> bool:
    """Whether several "nodes" are processes of one machine, as with `--on local`.

    The names of the job's nodes and of this machine then mean nothing.
    """
    return len(fleet.nodes) > 1 and is_single_machine(fleet)


def is_multi_node(fleet: Fleet) -> bool:
    """Whether the job runs on several machines, as far as known."""
    return len(fleet.nodes) > 1 and not nodes_share_machine(fleet)


@functools.lru_cache(_ADDRESSES)
def literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address in `host`, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_literal(host: str) -> bool:
    """Whether `host` is an address, not a name."""
    return literal(host) is not None


def fold(names: Iterable[str], limit: int = 8) -> str:
    """Names for display: all of a few, a range such as `node[1-9]`, or the first ones and the number of the rest."""
    listed = list(dict.fromkeys(names))
    if _LISTED < len(listed) <= _MAX_FOLDED and all(_NUMBERED.fullmatch(name) for name in listed):
        text = folded(listed)
        if len(text) <= _MAX_RANGE_LENGTH:
            return text
    if len(listed) <= limit:
        return ", ".join(listed)
    return ", ".join(listed[:limit]) + f" and {len(listed) - limit} more"

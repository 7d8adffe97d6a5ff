"""Host names: which strings may be one, and lists of them in the notation of schedulers (`node[01-04,07],login1`).

Host names come from untrusted files and end up on the command lines of ssh and srun. So the grammar is strict: a valid
name cannot be an option, shell syntax, a path or a user name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

#: RFC 1035: a whole name has at most 253 characters, one label at most 63.
MAX_NAME_LENGTH = 253
#: RFC 952 does not allow underscores, but container and cloud host names have them and resolvers accept them.
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)


def is_hostname(text: str) -> bool:
    """Return whether `text` is only a DNS name or an address (no brackets, zone), never an option or shell syntax."""
    if not text or len(text) > MAX_NAME_LENGTH or not text.isascii():
        return False
    if ":" in text:
        return "%" not in text and is_address(text)
    labels = text.removesuffix(".").split(".")
    if all(_LABEL.fullmatch(label) for label in labels):
        return not all(label.isdecimal() for label in labels) or is_address(text)
    return False


def folded(names: Iterable[str]) -> str:
    """Return `node[1-3],db` for host names, as in Slurm, pdsh and `--hosts`; without duplicates, in order."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    # No groups: their definitions may be commands.
    return str(NodeSet.fromlist(_fold_consecutive(names), resolver=RESOLVER_NOGROUP))


def number_ranges(numbers: Iterable[int]) -> list[str]:
    """Return `["0-2", "5"]` for 5, 0, 1 and 2."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in spans]


#: The text before the last number of a name, the number, and the text after the number.
_NUMBERED = re.compile(r"(.*?)([0-9]+)([^0-9]*)", re.ASCII)


def _fold_consecutive(names: Iterable[str]) -> list[str]:
    """Return the names with consecutive numbers merged into ranges, because NodeSet takes 20 us for each string."""
    numbers: dict[tuple[str, int, str], set[int]] = {}
    ranges: list[str] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            ranges.append(name)
        else:
            prefix, number, suffix = match.groups()
            numbers.setdefault((prefix, len(number), suffix), set()).add(int(number))
    for (prefix, width, suffix), known in numbers.items():
        ordered = sorted(known)
        first = last = ordered[0]
        for number in [*ordered[1:], -1]:
            if number != last + 1:
                written = f"{first:0{width}}" if first == last else f"[{first:0{width}}-{last:0{width}}]"
                ranges.append(f"{prefix}{written}{suffix}")
                first = number
            last = number
    return ranges


def is_address(text: str) -> bool:
    """Return whether `text` is a literal IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


#: The names that every machine has for itself, besides those below `.localhost` (RFC 6761).
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
#: The short and numeric spellings of IPv4 that resolvers accept: `127.1`, `0x7f000001`, `2130706433`.
_SHORT_IPV4 = re.compile(r"(?:0x)?[0-9a-f]+(?:\.(?:0x)?[0-9a-f]+){0,3}", re.ASCII)


def is_loopback(text: str) -> bool:
    """Return whether `host`, with or without port, can only mean this machine (not 0.0.0.0), without a lookup."""
    host = text.strip().lower()
    if (endpoint := split_endpoint(host)) is not None:
        host = endpoint[0]
    host = host.removesuffix(".")
    if host in _LOOPBACK_NAMES or host.endswith(".localhost"):
        return True
    address = _address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address is not None and address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a resolver parses from `host` without a lookup; None for a name."""
    # Most names differ from addresses in their first letter; checking it avoids an exception.
    if ":" not in host and not host[:1].isdecimal():
        return None
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        if not _SHORT_IPV4.fullmatch(host):
            return None
    import socket

    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def split_endpoint(text: str) -> tuple[str, int | None] | None:
    """Return host and unchecked port of `host`, `host:port` or `[v6]:port`; None for any other string."""
    match = re.fullmatch(r"\[([^\]\[]+)\](?::(\d{1,9}))?", text, re.ASCII)
    if match is None:
        if text.count(":") > 1:
            return (text, None) if is_hostname(text) else None
        match = re.fullmatch(r"([^:]+)(?::(\d{1,9}))?", text, re.ASCII)
    if match is None or not is_hostname(match.group(1)):
        return None
    return match.group(1), int(match.group(2)) if match.group(2) else None


#: Largest number of hosts in a range; more is a mistake, or an attempt to fill the memory.
_MAX_HOSTS = 100_000
_RANGE = re.compile(r"\[(\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*)\]")


def is_host_range(text: str) -> bool:
    """Return whether `text` is a host name, or one with number ranges (`node[1-4,7]`), of bounded size."""
    count = 1
    for match in _RANGE.finditer(text):
        here = 0
        for part in match[1].split(","):
            first, _, last = part.partition("-")
            here += int(last or first) - int(first) + 1
            if last and int(last) < int(first):
                return False
        count *= here
    return count <= _MAX_HOSTS and is_hostname(_RANGE.sub("0", text))


#: Largest number of hosts in a list; more is a mistake, or an attempt to fill the memory.
_MAX_LISTED_HOSTS = 16384
#: Real lists are shorter, and splitting a longer one could be slow.
_MAX_LIST_LENGTH = 100_000
_MAX_RANGES = 4096
#: Largest number of ranges in a name, one for each level of a cluster: row, rack, node.
_MAX_DIMENSIONS = 8
_FAR_TOO_MANY = 10**12


def expand_hosts(text: str) -> tuple[str, ...]:
    """Expand a list. Raises ValueError if it is not a list of hosts, or is far too long."""
    if len(text) > _MAX_LIST_LENGTH or text.count("[") > _MAX_RANGES:
        raise ValueError("the list of hosts is too long")
    hosts: list[str] = []
    for part in split_outside_brackets(text):
        if part.count("[") > _MAX_DIMENSIONS:
            raise ValueError(f"more than {_MAX_DIMENSIONS} ranges in one name")
        hosts.extend(_expand(part))
        if len(hosts) > _MAX_LISTED_HOSTS:
            raise ValueError(f"more than {_MAX_LISTED_HOSTS} hosts")
    if not hosts or not all(is_hostname(host) for host in hosts):
        raise ValueError(f"{text!r:.200} is not a list of host names")
    return tuple(hosts)


def max_host_count(text: str) -> int:
    """Return the maximum number of names in a list, without expanding it; ranges may have steps (`node[0-8/2]`)."""
    total = 0
    for part in split_outside_brackets(text):
        count = 1
        for inside in re.findall(r"\[([^\[\]]*)\]", part):
            count *= sum(_range_size(piece) for piece in inside.split(","))
            if count > _FAR_TOO_MANY:
                break
        total += count
    return total


def _range_size(piece: str) -> int:
    low, dash, high = piece.partition("/")[0].strip().partition("-")
    if not dash or not (low.isascii() and low.isdecimal() and high.isascii() and high.isdecimal()):
        return 1
    return _FAR_TOO_MANY if len(high.lstrip("0")) > 12 else max(1, int(high) - int(low.lstrip("0")[:13] or "0") + 1)


def split_outside_brackets(text: str) -> list[str]:
    """Return `a,b[1,3]` split at the commas outside brackets; parts are stripped, and empty ones kept."""
    parts: list[str] = []
    depth = start = 0
    for match in re.finditer(r"[\[\],]", text):
        character = match.group()
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _expand(text: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\](.*)", text)
    if match is None:
        return [text] if text else []
    prefix, inside, suffix = match.groups()
    numbers: list[str] = []
    for piece in inside.split(","):
        low, dash, high = piece.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ValueError(f"{text!r:.200} is not a host range")
        last = int(high) if dash else int(low)
        if last - int(low) > _MAX_LISTED_HOSTS:
            raise ValueError(f"more than {_MAX_LISTED_HOSTS} hosts")
        numbers.extend(str(number).zfill(len(low)) for number in range(int(low), last + 1))
        if len(numbers) > _MAX_LISTED_HOSTS:
            raise ValueError(f"more than {_MAX_LISTED_HOSTS} hosts")
    tails = _expand(suffix) or [""]
    if len(numbers) * len(tails) > _MAX_LISTED_HOSTS:
        raise ValueError(f"more than {_MAX_LISTED_HOSTS} hosts")
    return [prefix + number + tail for number in numbers for tail in tails]


def host_of(endpoint: str) -> str:
    """Return the host of `host`, `host:port`, `[::1]:port` or `::1`."""
    text = endpoint.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    head, colon, tail = text.rpartition(":")
    return head if colon and ":" not in head and (not tail or (tail.isascii() and tail.isdecimal())) else text


def is_unspecified(host: str) -> bool:
    """Return whether `host` is the unspecified address, which means every interface and cannot be connected to."""
    return host.strip() in ("0.0.0.0", "::", "0")

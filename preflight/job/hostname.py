"""Which texts may be used as the name of a host.

Host names come out of files that strangers wrote and end up on the command lines of ssh and srun. So the
grammar is strict: what it lets through can be no option, no shell syntax, no path and no user name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from preflight.lazy.patterns import lazy_pattern

#: RFC 1035: a whole name has at most 253 characters, one label at most 63.
LONGEST_NAME = 253
#: Underscores are no part of RFC 952, but container and cloud host names have them and resolvers accept them.
_LABEL = lazy_pattern(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)


def is_hostname(text: str) -> bool:
    """Whether `text` is a DNS name, an IPv4 or an IPv6 address (no brackets, no zone), and nothing else.

    Never true for something that begins with `-`, holds a space, a shell metacharacter, `@` or `/`.
    """
    if not text or len(text) > LONGEST_NAME or not text.isascii():
        return False
    if ":" in text:
        return "%" not in text and is_address(text)
    labels = text.removesuffix(".").split(".")
    if all(_LABEL.fullmatch(label) for label in labels):
        return not all(label.isdigit() for label in labels) or is_address(text)
    return False


def folded(names: Iterable[str]) -> str:
    """`node[1-3],db` for host names, as Slurm, pdsh and `--hosts` take it; duplicates once, in the order of names."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    # No groups: their definitions may be commands.
    return str(NodeSet.fromlist(_in_runs(names), resolver=RESOLVER_NOGROUP))


#: What stands before the last number of a name, that number, and what stands behind it.
_NUMBERED = lazy_pattern(r"(.*?)([0-9]+)([^0-9]*)", re.ASCII)


def _in_runs(names: Iterable[str]) -> list[str]:
    """The same names with neighbours as one range, because NodeSet takes 20 us for each text it is given."""
    numbers: dict[tuple[str, int, str], set[int]] = {}
    found: list[str] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            found.append(name)
        else:
            before, number, behind = match.groups()
            numbers.setdefault((before, len(number), behind), set()).add(int(number))
    for (before, width, behind), known in numbers.items():
        ordered = sorted(known)
        first = last = ordered[0]
        for number in [*ordered[1:], -1]:
            if number != last + 1:
                written = f"{first:0{width}}" if first == last else f"[{first:0{width}}-{last:0{width}}]"
                found.append(f"{before}{written}{behind}")
                first = number
            last = number
    return found


def is_address(text: str) -> bool:
    """Whether `text` is a literal IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def split_endpoint(text: str) -> tuple[str, int | None] | None:
    """Host and port of `host`, `host:port` or `[v6]:port`; None when it is none of these.

    The port is not judged (0 and 99999 come back as they are), only that it is a number.
    """
    match = re.fullmatch(r"\[([^\]\[]+)\](?::(\d{1,9}))?", text, re.ASCII)
    if match is None:
        if text.count(":") > 1:
            return (text, None) if is_hostname(text) else None
        match = re.fullmatch(r"([^:]+)(?::(\d{1,9}))?", text, re.ASCII)
    if match is None or not is_hostname(match.group(1)):
        return None
    return match.group(1), int(match.group(2)) if match.group(2) else None


#: A range of more hosts than this is a slip, or meant to fill the memory.
_MOST_HOSTS = 100_000
_RANGE = lazy_pattern(r"\[(\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*)\]")


def is_host_range(text: str) -> bool:
    """Whether `text` is a host name, or one with number ranges in brackets (`node[1-4,7]`), of a bounded size."""
    count = 1
    for match in _RANGE.finditer(text):
        here = 0
        for part in match[1].split(","):
            first, _, last = part.partition("-")
            here += int(last or first) - int(first) + 1
            if last and int(last) < int(first):
                return False
        count *= here
    return count <= _MOST_HOSTS and is_hostname(_RANGE.sub("0", text))

"""Lists of hosts in the notation of schedulers: `node[01-04,07],login1` and the names it expands to, in order."""

from __future__ import annotations

import re

from preflight._util.hostnames import is_hostname

#: More hosts than this are a mistake, or an attempt to fill the memory.
_MAX_HOSTS = 16384
#: Real lists are shorter, and splitting a longer one could be slow.
_MAX_LIST_LENGTH = 100_000
_MAX_RANGES = 4096
#: A name has one range for each level of a cluster: row, rack, node.
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
        hosts.extend(_expanded(part))
        if len(hosts) > _MAX_HOSTS:
            raise ValueError(f"more than {_MAX_HOSTS} hosts")
    if not hosts or not all(is_hostname(host) for host in hosts):
        raise ValueError(f"{text!r:.200} is not a list of host names")
    return tuple(hosts)


def max_host_count(text: str) -> int:
    """The maximum number of names in a list, without expanding it; ranges may have steps (`node[0-8/2]`)."""
    total = 0
    for part in split_outside_brackets(text):
        count = 1
        for inside in re.findall(r"\[([^\[\]]*)\]", part):
            count *= sum(_length(piece) for piece in inside.split(","))
            if count > _FAR_TOO_MANY:
                break
        total += count
    return total


def _length(piece: str) -> int:
    low, dash, high = piece.partition("/")[0].strip().partition("-")
    if not dash:
        return 1
    if not (low.isascii() and low.isdecimal() and high.isascii() and high.isdecimal()):
        return 1
    return _FAR_TOO_MANY if len(high.lstrip("0")) > 12 else max(1, int(high) - int(low.lstrip("0")[:13] or "0") + 1)


def split_outside_brackets(text: str) -> list[str]:
    """`a,b[1,3]` split at the commas outside brackets; parts are stripped, and empty ones kept."""
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


def _expanded(text: str) -> list[str]:
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
        if last - int(low) > _MAX_HOSTS:
            raise ValueError(f"more than {_MAX_HOSTS} hosts")
        numbers.extend(str(number).zfill(len(low)) for number in range(int(low), last + 1))
        if len(numbers) > _MAX_HOSTS:
            raise ValueError(f"more than {_MAX_HOSTS} hosts")
    tails = _expanded(suffix) or [""]
    if len(numbers) * len(tails) > _MAX_HOSTS:
        raise ValueError(f"more than {_MAX_HOSTS} hosts")
    return [prefix + number + tail for number in numbers for tail in tails]

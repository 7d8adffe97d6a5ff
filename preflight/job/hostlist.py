"""Lists of hosts as schedulers write them: `node[01-04,07],login1` and the names it stands for, in that order."""

from __future__ import annotations

import re

from preflight.job.hostname import is_hostname

#: More hosts than these are a slip, or meant to fill the memory.
_MOST_HOSTS = 16384
#: Longer lists are no one's, and could make splitting them slow.
_LONGEST_LIST = 100_000
_MOST_RANGES = 4096


def expand_hosts(text: str) -> tuple[str, ...]:
    """The names that a list stands for. Raises ValueError when it is none, or far too long."""
    if len(text) > _LONGEST_LIST or text.count("[") > _MOST_RANGES:
        raise ValueError("too long a list of hosts")
    hosts: list[str] = []
    for part in outside_brackets(text):
        hosts.extend(_expanded(part))
        if len(hosts) > _MOST_HOSTS:
            raise ValueError(f"more than {_MOST_HOSTS} hosts")
    if not hosts or not all(is_hostname(host) for host in hosts):
        raise ValueError(f"{text!r:.200} is no list of host names")
    return tuple(hosts)


def outside_brackets(text: str) -> list[str]:
    """`a,b[1,3]` cut at the commas that are not inside brackets; without blanks around the parts, and empty ones."""
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
    before, inside, behind = match.groups()
    numbers: list[str] = []
    for piece in inside.split(","):
        low, dash, high = piece.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ValueError(f"{text!r:.200} is no host range")
        last = int(high) if dash else int(low)
        if last - int(low) > _MOST_HOSTS:
            raise ValueError(f"more than {_MOST_HOSTS} hosts")
        numbers.extend(str(number).zfill(len(low)) for number in range(int(low), last + 1))
        if len(numbers) > _MOST_HOSTS:
            raise ValueError(f"more than {_MOST_HOSTS} hosts")
    tails = _expanded(behind) or [""]
    if len(numbers) * len(tails) > _MOST_HOSTS:
        raise ValueError(f"more than {_MOST_HOSTS} hosts")
    return [before + number + tail for number in numbers for tail in tails]

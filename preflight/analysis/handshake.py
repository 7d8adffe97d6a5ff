"""Checks that the members of a run belong together, by comparing the settings that each reports at start.

A library would hang instead, because each process knows only its own settings. All settings are compared before torch
is imported anywhere, from the first messages alone.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preflight._util.usage_error import similar_names
from preflight.analysis.culprit_model import Culprit, Limits, Views, fold, make_culprit, names_text, title
from preflight.analysis.rank_state import BACKUP_WORKER, RANK, RankView

#: No run has more members; a larger number is not a count or index of any.
_MAX_MEMBERS = 1 << 31
#: The roles of a parameter-server run, and the key in a hello with the number of members of each.
_COUNTS = {"server": "servers", "worker": "workers"}


@dataclass(frozen=True, slots=True)
class Hello:
    """One member's report about itself.

    Args:
        index: its index within its role; None if it was given none, or one that is not a number.
        counts: the number of members of each role, as configured for it.
        master: the endpoint to which the ranks of a collective connect. mode: when servers apply the workers' pushes.
        endpoints: addresses of the servers, in the order of their indexes; `endpoint` is its own.
        tensors: the trained parameters, as one string for each piece with the server that holds it; `parameters` is a
            digest of all.
    """

    view: RankView
    role: str
    index: int | None
    raw_index: str
    counts: Mapping[str, int]
    master: str
    mode: str
    endpoints: tuple[str, ...]
    endpoint: str
    endpoint_problem: str
    parameters: str
    tensors: tuple[str, ...]
    process: str

    @property
    def label(self) -> str:
        """Format name, node and process."""
        return f"{title(self.view)} ({self.process})" if self.process else title(self.view)


def find_mismatch(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Find the member that does not belong to the others.

    A report that is wrong by itself is judged at once. When two contradict each other, the function waits briefly for
    the others, because the majority decides which one is wrong.
    """
    # Backup workers have no index until they replace a worker.
    views = {number: view for number, view in views.items() if view.role != BACKUP_WORKER}
    hellos = [_hello(view) for view in views.values() if view.hello]
    for hello in hellos:
        text = _own_fault(hello)
        if text:
            return make_culprit(views, hello.view, "mismatch", hello.view.hello_at, text)
    awaited = [view for view in views.values() if view.alive and not view.hello]
    for look in _COMPARISONS:
        odd = look(hellos, views)
        if odd is not None and (not awaited or now_s - odd.since_s >= limits.agree_s):
            return make_culprit(views, odd.hello.view, "mismatch", odd.since_s, odd.text, also=odd.also)
    return None if awaited or len(hellos) < len(views) else _missing_member(hellos, views)


def _hello(view: RankView) -> Hello:
    hello = view.hello
    as_written = hello.get("index", hello.get("rank", ""))
    collective = view.role == RANK
    counts = {RANK: hello.get("world_size")} if collective else {role: hello.get(key) for role, key in _COUNTS.items()}
    endpoints = hello.get("server_endpoints", ())
    tensors = hello.get("tensors", ())
    return Hello(
        view,
        RANK if collective else str(hello.get("role", "")),
        as_written if type(as_written) is int and abs(as_written) <= _MAX_MEMBERS else None,
        str(as_written),
        {role: count for role, count in counts.items() if isinstance(count, int) and abs(count) <= _MAX_MEMBERS},
        str(hello.get("master", "")),
        str(hello.get("mode", "")),
        tuple(str(item) for item in endpoints) if isinstance(endpoints, (list, tuple)) else (),
        str(hello.get("endpoint", "")),
        str(hello.get("endpoint_problem", "")),
        str(hello.get("parameters", "")),
        tuple(str(item) for item in tensors) if isinstance(tensors, (list, tuple)) else (),
        f"{hello.get('host', '')}:{hello.get('pid', '')}" if "pid" in hello else "",
    )


def _own_fault(hello: Hello) -> str:
    """The reason why a report is wrong by itself, regardless of the others; empty if it is not."""
    if hello.role == RANK:
        return ""
    if hello.role not in _COUNTS:
        near = similar_names(hello.role.lower(), _COUNTS, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"was given the role {hello.role!r}, which is not one of {', '.join(_COUNTS)}{hint}"
    if hello.index is None:
        return f"was given the index {hello.raw_index!r}, which is not a number"
    if hello.role != "server":
        return ""
    listed = fold(hello.endpoints) or "empty"
    if hello.endpoint not in hello.endpoints:
        return f"was given the endpoint {hello.endpoint or 'none'}, which is not in its own list of servers ({listed})"
    if 0 <= hello.index < len(hello.endpoints) and hello.endpoints[hello.index] != hello.endpoint:
        place = hello.endpoints[hello.index]
        return (
            f"was given the endpoint {hello.endpoint}, but server {hello.index} of its own list is {place} ({listed})"
        )
    if hello.endpoint_problem:
        return f"was given the endpoint {hello.endpoint}, but {hello.endpoint_problem}"
    return ""


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """The member that differs from the others, since when, and a sentence that follows its name."""

    hello: Hello
    since_s: float
    text: str
    also: tuple[int, ...] = ()


def _find_duplicate(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    """Two members with one role and index, or two servers with one endpoint."""
    used: dict[tuple[str, object], Hello] = {}
    for hello in sorted(hellos, key=lambda item: (item.view.hello_at, item.view.rank)):
        places: list[tuple[str, object]] = [(hello.role, hello.index)] if hello.index is not None else []
        if hello.role == "server" and hello.endpoint:
            places.append(("endpoint", hello.endpoint))
        for place in places:
            other = used.setdefault(place, hello)
            if other is hello:
                continue
            what = f"are both {hello.role} {hello.index}" if place[0] != "endpoint" else f"both serve at {place[1]}"
            text = f"({hello.process}) and {other.label} {what}{_unused_indexes_text(hello.role, hellos, views)}"
            return _Mismatch(hello, hello.view.hello_at, text, (other.view.rank,))
    return None


def _unused_indexes_text(role: str, hellos: Sequence[Hello], views: Views) -> str:
    """The unused indexes of a role, once all members have reported."""
    if len(hellos) < len(views):
        return ""
    free = _unused_indexes(role, hellos)
    return f"; no process is {role} {fold([str(index) for index in free])}" if free else ""


def _unused_indexes(role: str, hellos: Sequence[Hello]) -> list[int]:
    counts = Counter(hello.counts[role] for hello in hellos if role in hello.counts)
    if len(counts) != 1:
        return []
    used = {hello.index for hello in hellos if hello.role == role}
    return [index for index in range(min(next(iter(counts)), len(hellos) + 64)) if index not in used]


def _odd_count(hellos: Sequence[Hello], views: Views, *, role: str) -> _Mismatch | None:
    """A member configured with a different count; the right count is the number of members of the role."""
    started = sum(view.role == role for view in views.values())
    return _find_odd(hellos, lambda hello: hello.counts.get(role), lambda value: f"{value} {role}s", right=started)


def _odd_master(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    return _find_odd(hellos, lambda hello: hello.master or None, lambda value: f"the master at {value}")


def _odd_mode(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    return _find_odd(hellos, lambda hello: hello.mode or None, lambda value: f"the mode {value}")


def _odd_servers(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    def as_written(value: tuple[str, ...]) -> str:
        return f"the servers {fold(value)}" if value else "no servers"

    return _find_odd(hellos, lambda hello: hello.endpoints if hello.role != RANK else None, as_written)


def _find_odd(
    hellos: Sequence[Hello], value_of: Callable[[Hello], Any], as_written: Callable[[Any], str], *, right: Any = None
) -> _Mismatch | None:
    """The member whose setting differs from that of most others, or from `right` if any member has that."""
    groups: dict[Any, list[Hello]] = {}
    for hello in sorted(hellos, key=lambda item: (item.view.hello_at, item.view.rank)):
        value = value_of(hello)
        if value is not None:
            groups.setdefault(value, []).append(hello)
    if len(groups) < 2:
        return None
    common = right if right in groups else max(groups, key=lambda value: len(groups[value]))
    odd = [hello for value, group in groups.items() if value != common for hello in group]
    value = value_of(odd[0])
    same = groups[value]
    text = (
        f"was configured with {as_written(value)}, but {names_text([h.view for h in groups[common]])} with"
        f" {as_written(common)}"
    )
    if len(same) > 1:
        text = f"and {names_text([h.view for h in same[1:]])} were {text.removeprefix('was ')}"
    since_s = max(min(h.view.hello_at for h in group) for group in groups.values())
    tie = len(groups[common]) == len(same) and common != right
    others = (*odd[1:], *(groups[common] if tie else ()))
    return _Mismatch(odd[0], since_s, text, tuple(hello.view.rank for hello in others))


def _odd_parameters(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    """A member that trains other parameters, or assigns them to the servers differently; with the first piece that
    differs.
    """
    odd = _find_odd(hellos, lambda hello: hello.parameters or None, str)
    if odd is None:
        return None
    counts = Counter(hello.parameters for hello in hellos if hello.parameters)
    others = [hello for hello in hellos if hello.parameters and hello.parameters != odd.hello.parameters]
    other = max(others, key=lambda hello: counts[hello.parameters])
    return _Mismatch(
        odd.hello,
        odd.since_s,
        f"trains different parameters from {title(other.view)}: {_first_difference(odd.hello, other)}",
        odd.also,
    )


def _first_difference(odd: Hello, other: Hello) -> str:
    for index in range(max(len(odd.tensors), len(other.tensors))):
        ours, theirs = (list_[index] if index < len(list_) else "none" for list_ in (odd.tensors, other.tensors))
        if ours != theirs:
            return f"parameter {index} is {ours} here and {theirs} there"
    return f"the digest of the list is {odd.parameters[:16]} here and {other.parameters[:16]} there"


def _surplus(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    """A surplus member, whose index is not below the count that all others have."""
    for hello in hellos:
        count = hello.counts.get(hello.role)
        if hello.index is not None and count is not None and not 0 <= hello.index < count:
            text = f"is one too many: its own configuration has {count} {hello.role}s, 0 to {count - 1}"
            return _Mismatch(hello, hello.view.hello_at, text)
    return None


#: The first that finds something explains the rest: a wrong count also makes an index too large.
_COMPARISONS: tuple[Callable[[Sequence[Hello], Views], _Mismatch | None], ...] = (
    _find_duplicate,
    functools.partial(_odd_count, role=RANK),
    functools.partial(_odd_count, role="server"),
    functools.partial(_odd_count, role="worker"),
    _odd_master,
    _odd_servers,
    _odd_mode,
    _odd_parameters,
    _surplus,
)


def _missing_member(hellos: Sequence[Hello], views: Views) -> Culprit | None:
    """An index that every member expects but that no process was started for."""
    for role in dict.fromkeys(hello.role for hello in hellos):
        free = _unused_indexes(role, hellos)
        if not free:
            continue
        count = next(hello.counts[role] for hello in hellos if role in hello.counts)
        own = [hello.view for hello in hellos if hello.role == role]
        missing = f"{role} {free[0]}" if len(free) == 1 else f"{role}s {fold([str(index) for index in free])}"
        text = (
            f"no process was started as {missing}: all were configured with {count} {role}s, but there are "
            f"{fold([title(view) for view in own]) or 'none'}"
        )
        since_s = max(hello.view.hello_at for hello in hellos)
        return Culprit(None, "", "missing", "", "", since_s, text, tuple(views), ())
    return None

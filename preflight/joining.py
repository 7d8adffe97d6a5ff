"""Whether the members of a run belong together: what each said of itself when it started, against all the others.

Libraries find out by hanging, because each process knows only what it was told itself. Here all of that lies side by
side before torch is imported anywhere. Everything is judged from the first words alone.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from preflight.blame import Culprit, Limits, Views, blame, fold, names_text, title
from preflight.lazy.dataclasses import dataclass
from preflight.ranks import RANK, SPARE, RankView

#: The parts of a parameter-server run, and the key in a hello that says how many of each there are.
_COUNTS = {"server": "servers", "worker": "workers"}


@dataclass(frozen=True, slots=True)
class Hello:
    """What one member said of itself.

    Args:
        index: its place among those of its role; None where it was told none, or no number.
        counts: how many of each role there are, as it was told.
        master: where the ranks of a collective meet; `mode` when servers apply what workers push.
        endpoints: where the servers are, in the order of their indexes; `endpoint` its own.
        tensors: what is trained, one text for each piece and the server that holds it; `parameters` a digest of all.
    """

    view: RankView
    role: str
    index: int | None
    spelled_index: str
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
    def who(self) -> str:
        """Name, node and process."""
        return f"{title(self.view)} ({self.process})" if self.process else title(self.view)


def apart(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Who does not belong to the others.

    What one member says is wrong by itself is told at once. Where two contradict each other the rest is waited for,
    but not for long, because what most of them say decides who is wrong.
    """
    # Spare workers have no place until they take one.
    found = {number: view for number, view in found.items() if view.role != SPARE}
    hellos = [_hello(view) for view in found.values() if view.hello]
    for hello in hellos:
        text = _wrong_by_itself(hello)
        if text:
            return blame(found, hello.view, "mismatch", hello.view.hello_at, text)
    awaited = [view for view in found.values() if view.alive and not view.hello]
    for look in _LOOKS:
        odd = look(hellos, found)
        if odd is not None and (not awaited or now_s - odd.since_s >= limits.agree_s):
            return blame(found, odd.hello.view, "mismatch", odd.since_s, odd.text, also=odd.also)
    return None if awaited or len(hellos) < len(found) else _nobody(hellos, found)


def _hello(view: RankView) -> Hello:
    said = view.hello
    spelled = said.get("index", said.get("rank", ""))
    collective = view.role == RANK
    counts = {RANK: said.get("world_size")} if collective else {role: said.get(key) for role, key in _COUNTS.items()}
    endpoints = said.get("server_endpoints", ())
    tensors = said.get("tensors", ())
    return Hello(
        view,
        RANK if collective else str(said.get("role", "")),
        spelled if isinstance(spelled, int) and not isinstance(spelled, bool) else None,
        str(spelled),
        {role: count for role, count in counts.items() if isinstance(count, int)},
        str(said.get("master", "")),
        str(said.get("mode", "")),
        tuple(str(item) for item in endpoints) if isinstance(endpoints, (list, tuple)) else (),
        str(said.get("endpoint", "")),
        str(said.get("endpoint_problem", "")),
        str(said.get("parameters", "")),
        tuple(str(item) for item in tensors) if isinstance(tensors, (list, tuple)) else (),
        f"{said.get('host', '')}:{said.get('pid', '')}" if "pid" in said else "",
    )


def _wrong_by_itself(hello: Hello) -> str:
    """What cannot be right whatever the others say; empty when there is nothing."""
    if hello.role == RANK:
        return ""
    if hello.role not in _COUNTS:
        near = get_close_matches(hello.role.lower(), _COUNTS, 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"was given the role {hello.role!r}, which is none of {', '.join(_COUNTS)}{hint}"
    if hello.index is None:
        return f"was given the index {hello.spelled_index!r}, which is no number"
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
class _Odd:
    """The member that stands against others, since when, and in which words behind its name."""

    hello: Hello
    since_s: float
    text: str
    also: tuple[int, ...] = ()


def _same_place(hellos: Sequence[Hello], found: Views) -> _Odd | None:
    """Two with one role and index, or two servers with one endpoint."""
    taken: dict[tuple[str, object], Hello] = {}
    for hello in sorted(hellos, key=lambda item: (item.view.hello_at, item.view.rank)):
        places: list[tuple[str, object]] = [(hello.role, hello.index)] if hello.index is not None else []
        if hello.role == "server" and hello.endpoint:
            places.append(("endpoint", hello.endpoint))
        for place in places:
            other = taken.setdefault(place, hello)
            if other is hello:
                continue
            what = f"are both {hello.role} {hello.index}" if place[0] != "endpoint" else f"both serve at {place[1]}"
            text = f"({hello.process}) and {other.who} {what}{_vacant(hello.role, hellos, found)}"
            return _Odd(hello, hello.view.hello_at, text, (other.view.rank,))
    return None


def _vacant(role: str, hellos: Sequence[Hello], found: Views) -> str:
    """Which places of a role nobody took, where all have spoken."""
    if len(hellos) < len(found):
        return ""
    free = _free(role, hellos)
    return f"; nobody is {role} {fold([str(index) for index in free])}" if free else ""


def _free(role: str, hellos: Sequence[Hello]) -> list[int]:
    counts = Counter(hello.counts[role] for hello in hellos if role in hello.counts)
    if len(counts) != 1:
        return []
    taken = {hello.index for hello in hellos if hello.role == role}
    return [index for index in range(min(next(iter(counts)), len(hellos) + 64)) if index not in taken]


def _count(hellos: Sequence[Hello], found: Views, *, role: str) -> _Odd | None:
    """Members that were told different numbers; as many as there are of this role is the right one."""
    started = sum(view.role == role for view in found.values())
    return _odd_one(hellos, lambda hello: hello.counts.get(role), lambda value: f"{value} {role}s", right=started)


def _master(hellos: Sequence[Hello], found: Views) -> _Odd | None:
    return _odd_one(hellos, lambda hello: hello.master or None, lambda value: f"the master at {value}")


def _mode(hellos: Sequence[Hello], found: Views) -> _Odd | None:
    return _odd_one(hellos, lambda hello: hello.mode or None, lambda value: f"the mode {value}")


def _servers(hellos: Sequence[Hello], found: Views) -> _Odd | None:
    def spelled(value: tuple[str, ...]) -> str:
        return f"the servers {fold(value)}" if value else "no servers"

    return _odd_one(hellos, lambda hello: hello.endpoints if hello.role != RANK else None, spelled)


def _odd_one(
    hellos: Sequence[Hello],
    value_of: Callable[[Hello], Any],
    spelled: Callable[[Any], str],
    *,
    right: Any = None,
) -> _Odd | None:
    """Who was told something else than most, or than what is `right` where anybody was told that."""
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
    text = f"was told of {spelled(value)}, but {names_text([h.view for h in groups[common]])} of {spelled(common)}"
    if len(same) > 1:
        text = f"and {names_text([h.view for h in same[1:]])} were told of {text.removeprefix('was told of ')}"
    since_s = max(min(h.view.hello_at for h in group) for group in groups.values())
    tie = len(groups[common]) == len(same) and common != right
    others = (*odd[1:], *(groups[common] if tie else ()))
    return _Odd(odd[0], since_s, text, tuple(hello.view.rank for hello in others))


def _tensors(hellos: Sequence[Hello], found: Views) -> _Odd | None:
    """Who trains other parameters, or deals them to the servers otherwise; with the first piece that differs."""
    odd = _odd_one(hellos, lambda hello: hello.parameters or None, str)
    if odd is None:
        return None
    counts = Counter(hello.parameters for hello in hellos if hello.parameters)
    others = [hello for hello in hellos if hello.parameters and hello.parameters != odd.hello.parameters]
    other = max(others, key=lambda hello: counts[hello.parameters])
    return _Odd(
        odd.hello,
        odd.since_s,
        f"trains other parameters than {title(other.view)}: {_first(odd.hello, other)}",
        odd.also,
    )


def _first(odd: Hello, other: Hello) -> str:
    for index in range(max(len(odd.tensors), len(other.tensors))):
        ours, theirs = (list_[index] if index < len(list_) else "none" for list_ in (odd.tensors, other.tensors))
        if ours != theirs:
            return f"its number {index} is {ours}, there it is {theirs}"
    return f"the digest of its list is {odd.parameters[:16]}, there it is {other.parameters[:16]}"


def _beyond(hellos: Sequence[Hello], found: Views) -> _Odd | None:
    """One too many: an index that all the others have no place for."""
    for hello in hellos:
        count = hello.counts.get(hello.role)
        if hello.index is not None and count is not None and not 0 <= hello.index < count:
            text = f"is one too many: there are {count} {hello.role}s, 0 to {count - 1}, as it was told itself"
            return _Odd(hello, hello.view.hello_at, text)
    return None


#: In the order in which they are told: a wrong count also makes an index that is one too many.
_LOOKS: tuple[Callable[[Sequence[Hello], Views], _Odd | None], ...] = (
    _same_place,
    functools.partial(_count, role=RANK),
    functools.partial(_count, role="server"),
    functools.partial(_count, role="worker"),
    _master,
    _servers,
    _mode,
    _tensors,
    _beyond,
)


def _nobody(hellos: Sequence[Hello], found: Views) -> Culprit | None:
    """A place that nobody was started for, though everybody has been told that there is one."""
    for role in dict.fromkeys(hello.role for hello in hellos):
        free = _free(role, hellos)
        if not free:
            continue
        count = hellos[0].counts[role]
        mine = [hello.view for hello in hellos if hello.role == role]
        missing = f"{role} {free[0]}" if len(free) == 1 else f"{role}s {fold([str(index) for index in free])}"
        text = (
            f"nobody was started as {missing}: everybody was told of {count} {role}s, and there are "
            f"{fold([title(view) for view in mine]) or 'none'}"
        )
        since_s = max(hello.view.hello_at for hello in hellos)
        return Culprit(None, "", "missing", "", "", since_s, text, tuple(found), ())
    return None

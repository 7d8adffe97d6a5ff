"""Faults of the connections of a run: members that do not belong together, the rendezvous, and paths to servers.

A library would hang instead, because each process knows only its own settings. All settings are compared before torch
is imported anywhere, from the first messages alone.

Every worker connects to every server. Failures form a matrix: a column means that a server cannot be reached, a row
that a worker is cut off, and a single cell that the path between the two is at fault.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preflight._util.hostnames import is_loopback
from preflight._util.usage_error import similar_names
from preflight.agent import rank_events
from preflight.analysis.link_matrix import Cell, Shape, shapes
from preflight.analysis.rank_state import (
    BACKUP_WORKER,
    RANK,
    Culprit,
    Dial,
    Limits,
    RankView,
    Views,
    by_time,
    fold,
    make_culprit,
    names_text,
    nodes_text,
    title,
)

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
    """Return the reason why a report is wrong by itself, regardless of the others; empty if it is not."""
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
    """Return the unused indexes of a role, once all members have reported."""
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
    """Return a member configured with a different count; the right count is the number of members of the role."""
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
    """Return the member whose setting differs from that of most others, or from `right` if any member has that."""
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
    """Return a member that trains other parameters, or assigns them to the servers differently; with the first piece
    that differs.
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
    """Return a surplus member, whose index is not below the count that all others have."""
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
    """Return an index that every member expects but that no process was started for."""
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


def find_taken_endpoint(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Find a report by rank 0 that it cannot listen on the master port, or by a server that it cannot listen on its
    own.
    """
    for view in by_time(views, lambda v: v.problem_at("listen")):
        problem = view.problem("listen")
        assert problem is not None
        part = "must be the master" if view.role == RANK else "must serve"
        text = f"{part}, but {problem.get('error', 'it cannot listen')}"
        return make_culprit(views, view, "endpoint", view.problem_at("listen") or 0.0, text)
    return None


def find_unresolved_master(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Find a rank that cannot resolve the master's name."""
    failing = [v for v in views.values() if v.dial_result == "unresolved" and now_s - v.dial_at >= limits.unresolved_s]
    if not failing:
        return None
    first = min(failing, key=lambda v: (v.dial_at, v.rank))
    text = f"cannot resolve the name of the master {first.dial_endpoint}: {first.dial_error}"
    return make_culprit(views, first, "endpoint", first.dial_at, text, also=[v.rank for v in failing if v is not first])


def find_unreachable_master(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Find ranks that cannot connect to the master's port although rank 0 listens on it: a row, a column or a path."""
    master = views.get(0)
    if master is None or master.role != RANK or not master.listening_at:
        return None
    failing = [v for v in views.values() if v.dial_result not in ("", "open")]
    ready = [v for v in failing if not v.alive or now_s - max(v.dial_at, master.listening_at) >= limits.dial_s]
    if not ready:
        return None
    first = min(ready, key=lambda v: (v.dial_at, v.rank))
    pending = [v for v in views.values() if v.alive and v.started and not v.dial_result]
    if pending and now_s - max(first.dial_at, master.listening_at) < 2 * limits.dial_s:
        return None
    others = [v.rank for v in failing if v is not first]
    how = f"{first.dial_endpoint} is {first.dial_result} ({first.dial_error})"
    reached = [v for v in views.values() if v.dial_result == "open" and v.node != master.node]
    if master.dial_result not in ("", "open"):
        text = f"listens on its port, but {master.dial_endpoint} does not lead to it: {master.dial_error}"
        return make_culprit(
            views, master, "endpoint", master.dial_at, text, also=[v.rank for v in failing if v is not master]
        )
    if not reached and len({v.node for v in failing}) > 1:
        text = f"listens, but no other node can open its port: {how}, seen from {nodes_text(failing)}"
        return make_culprit(views, master, "endpoint", first.dial_at, text)
    text = f"cannot open the master's port, though rank 0 on {master.node} listens: {how}"
    return make_culprit(views, first, "endpoint", first.dial_at, text, also=others)


def blame_network(views: Views, view: RankView, frozen_s: float) -> Culprit:
    """Blame the network if all ranks entered and none left, unless one of them advertises loopback."""
    spread = len({v.node for v in views.values()}) > 1
    lost = [v for v in views.values() if is_loopback(v.advertised) and not v.interface]
    if spread and lost:
        first = min(lost, key=lambda v: v.rank)
        text = (
            f"advertises {first.advertised} to the others, because its host name resolves to that and "
            f"no interface is set; all ranks have waited in {view.what} for {frozen_s:.1f} s"
        )
        return make_culprit(
            views, first, "endpoint", view.changed_at, text, also=[v.rank for v in lost if v is not first]
        )
    text = (
        f"all {len(views)} ranks entered collective {view.inside} ({view.what}) and none left it for {frozen_s:.1f} s:"
        " messages between them are lost, or not all make the same calls; the ranks alone cannot show where"
    )
    waiting = tuple(sorted(views))
    return Culprit(None, "", "stuck", view.phase, view.what, view.changed_at, text, waiting, (), view.key)


#: Results of connecting that point to a name or a list rather than the network.
_UNRESOLVED, _STRANGER = "unresolved", "stranger"


def find_unreached_server(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Find servers that listen but cannot be reached by their workers, as one row, column or cell."""
    cells = _cells(views, now_s, limits)
    failing = [cell for cell in cells if cell.result.result != "open"]
    if not failing:
        return None
    since_s = min(cell.result.since_s for cell in failing)
    if _is_pending(views) and now_s - since_s < 2 * limits.dial_s:
        return None
    first, *_ = shapes(cells, lambda cell: cell.result.result != "open")
    return _culprit_of_shape(views, first, since_s)


#: What a server and a worker say of each other if the worker reached another server than it dialled.
_REDIRECTED = re.compile(
    r"(worker \S{1,20}) on \S{1,300} " + rank_events.EXPECTS_SERVER.replace("%s", r"(\S{1,20})") + r" (server \S{1,20})"
)


def find_redirected(views: Views, error: str, since_s: float) -> Culprit | None:
    """Find a worker that reached another server than the one at that address, though other workers reach the right one.

    Then the server is what it was configured to be, and something on the worker's path leads elsewhere.

    Args:
        error: the error of a mismatch, as server or worker report it.
    """
    match = _REDIRECTED.search(error)
    by_name = {view.name: view for view in views.values()}
    if match is None:
        return None
    worker, server, reached = (by_name.get(name) for name in (match[1], f"server {match[2]}", match[3]))
    dial = worker.dials.get(server.rank) if worker is not None and server is not None else None
    if worker is None or server is None or reached is None or dial is None:
        return None
    right = [
        other
        for other in views.values()
        if other is not worker
        and (theirs := other.dials.get(server.rank)) is not None
        and (theirs.result, theirs.endpoint) == ("open", dial.endpoint)
        and other.problem("mismatch") is None
    ]
    if not right:
        return None
    text = (
        f"reaches {title(reached)} at {dial.endpoint}, the address of {title(server)}, which {names_text(right)} reach"
        f"{'es' if len(right) == 1 else ''} there: a rule on {worker.node} or on its path leads to another machine"
    )
    return make_culprit(views, worker, "path", since_s, text)


def _cells(views: Views, now_s: float, limits: Limits) -> list[Cell[Dial]]:
    """Return the results of connecting, as far as they can be judged yet; a success within one node says nothing about
    the network.
    """
    cells: list[Cell[Dial]] = []
    for worker in views.values():
        for number, dial in sorted(worker.dials.items()):
            server = views.get(number)
            if server is None:
                continue
            if dial.result == "open":
                ready = worker.node != server.node
            elif dial.result == _UNRESOLVED:
                ready = now_s - dial.since_s >= limits.unresolved_s
            else:
                # Workers that import torch may not connect for seconds: the time of the last failure counts.
                listens = server.listening_at > 0 and server.alive
                ready = listens and (not worker.alive or dial.at_s - server.listening_at >= limits.dial_s)
            if ready:
                cells.append(Cell(str(worker.rank), str(number), "port", dial, dial.since_s))
    return cells


def _is_pending(views: Views) -> bool:
    """Return whether a running worker has not yet connected to all the servers that other workers have."""
    dialled = {number for view in views.values() for number in view.dials}
    return any(view.alive and view.started and view.dials and set(view.dials) < dialled for view in views.values())


def _culprit_of_shape(views: Views, shape: Shape[Dial], since_s: float) -> Culprit:
    workers = [views[number] for number in dict.fromkeys(int(cell.source) for cell in shape.cells)]
    servers = [views[number] for number in dict.fromkeys(int(cell.peer) for cell in shape.cells)]
    dial = min((cell.result for cell in shape.cells), key=lambda item: item.since_s)
    how = _format_dial(dial)
    if len(servers) == 1 and len(workers) > 1:
        server = servers[0]
        who = (
            "no worker can open its port" if shape.kind == "inbound" else f"{names_text(workers)} cannot open its port"
        )
        text = f"listens, but {who}: {how}, seen from {nodes_text(workers)}"
        return make_culprit(views, server, "path", since_s, text)
    worker = workers[0]
    also = [view.rank for view in (*workers[1:], *servers)]
    if len(workers) == 1 and len(servers) > 1:
        text = f"cannot open the port of any server ({names_text(servers)}), though they listen: {how}"
        return make_culprit(views, worker, "path", since_s, text)
    if len(workers) > 1:
        text = (
            f"and {names_text(workers[1:])} cannot open the port of any server ({names_text(servers)}),"
            f" though these listen: {how}"
        )
        return make_culprit(views, worker, "path", since_s, text, also=also)
    return make_culprit(
        views,
        worker,
        "path",
        since_s,
        f"cannot open the port of {title(servers[0])}{_opened_text(views, servers[0])}: {how}",
        also=also,
    )


def _opened_text(views: Views, server: RankView) -> str:
    """Return the members that do connect to it."""
    opened = [v for v in views.values() if (dial := v.dials.get(server.rank)) is not None and dial.result == "open"]
    return f", which listens, and which {names_text(opened)} can open" if opened else ", though it listens"


def _format_dial(dial: Dial) -> str:
    if dial.result == _UNRESOLVED:
        return f"the name of {dial.endpoint} cannot be resolved ({dial.error})"
    if dial.result == _STRANGER:
        return f"the process at {dial.endpoint} is not a server of this run ({dial.error})"
    return f"{dial.endpoint} is {dial.result} ({dial.error})"


def find_wait_cycle(views: Views, waiting: Sequence[RankView]) -> Culprit | None:
    """Find workers and servers that wait for each other, as after a lost message.

    A server or worker that is in all such pairs is named; for a single pair, both ends are.
    """
    pairs = [
        (worker, views[number])
        for worker in waiting
        if worker.role == "worker"
        for number in worker.waiting_for
        if number in views and views[number].role == "server" and worker.rank in views[number].waiting_for
    ]
    workers = list({worker.rank: worker for worker, _ in pairs}.values())
    servers = list({server.rank: server for _, server in pairs}.values())
    if not pairs or (len(workers) > 1 and len(servers) > 1):
        return None
    if len(pairs) == 1:
        (worker, server), since_s = pairs[0], max(view.changed_at for view in pairs[0])
        text = f"waits for {title(server)}, which waits for it in turn: a message between them was lost"
        return make_culprit(views, worker, "stuck", since_s, text, also=[server.rank])
    one, others = (servers[0], workers) if len(servers) == 1 else (workers[0], servers)
    since_s = max(view.changed_at for view in (one, *others))
    text = f"waits for {names_text(others)}, and each of them waits for it: messages to it or from it are lost"
    return make_culprit(views, one, "stuck", since_s, text)

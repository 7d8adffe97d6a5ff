"""Finds faults of the connections of a run: members that do not belong together, the rendezvous, and paths to servers.

Every worker connects to every server. Failures form a matrix: a column means that a server cannot be reached, a row
means that a worker has no connection, and a single cell means that the path between the two is at fault.
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

#: The largest number of members of a run; a larger number is not a count or an index.
_MAX_MEMBERS = 1 << 31
#: The roles of a parameter-server run, each with the key of its number of members in the report of a member.
_COUNT_KEYS = {"server": "servers", "worker": "workers"}


@dataclass(frozen=True, slots=True)
class Hello:
    """One member's report about itself.

    Args:
        index: the index of the member within its role; None if none was configured, or if it is not a number.
        raw_index: the index as configured.
        counts: the number of members of each role, as configured.
        master: the endpoint to which the ranks of a collective connect.
        mode: the mode in which servers apply the pushes of the workers.
        endpoints: the addresses of the servers, in the order of their indexes.
        endpoint: the member's own endpoint.
        endpoint_problem: the reason why the member cannot use its endpoint; empty if it can.
        parameters: a digest of `tensors`.
        tensors: the trained parameters, as one string for each piece with the server that holds it.
        process: the host and the process id.
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
        """Return the name, the node and the process of the member as text."""
        return f"{title(self.view)} ({self.process})" if self.process else title(self.view)


def find_mismatch(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return the member that does not belong to the others; None if there is none, or if it is not known yet.

    A report that is wrong by itself is judged at once. If two reports contradict each other, the result waits briefly
    for the other reports, because the majority decides which report is wrong.
    """
    # Backup workers have no index until they replace a worker.
    views = {number: view for number, view in views.items() if view.role != BACKUP_WORKER}
    hellos = [_parse_hello(view) for view in views.values() if view.hello]
    for hello in hellos:
        fault = _configuration_fault(hello)
        if fault:
            return make_culprit(views, hello.view, "mismatch", hello.view.hello_at, fault)
    silent_members = [view for view in views.values() if view.alive and not view.hello]
    for find_odd in _COMPARISONS:
        mismatch = find_odd(hellos, views)
        if mismatch is not None and (not silent_members or now_s - mismatch.since_s >= limits.agree_s):
            return make_culprit(
                views, mismatch.hello.view, "mismatch", mismatch.since_s, mismatch.text, also=mismatch.also
            )
    return None if silent_members or len(hellos) < len(views) else _find_missing_member(hellos, views)


def _parse_hello(view: RankView) -> Hello:
    hello = view.hello
    configured_index = hello.get("index", hello.get("rank", ""))
    collective = view.role == RANK
    counts = (
        {RANK: hello.get("world_size")} if collective else {role: hello.get(key) for role, key in _COUNT_KEYS.items()}
    )
    endpoints = hello.get("server_endpoints", ())
    tensors = hello.get("tensors", ())
    return Hello(
        view,
        RANK if collective else str(hello.get("role", "")),
        configured_index if type(configured_index) is int and abs(configured_index) <= _MAX_MEMBERS else None,
        str(configured_index),
        {role: count for role, count in counts.items() if isinstance(count, int) and abs(count) <= _MAX_MEMBERS},
        str(hello.get("master", "")),
        str(hello.get("mode", "")),
        tuple(str(endpoint) for endpoint in endpoints) if isinstance(endpoints, (list, tuple)) else (),
        str(hello.get("endpoint", "")),
        str(hello.get("endpoint_problem", "")),
        str(hello.get("parameters", "")),
        tuple(str(endpoint) for endpoint in tensors) if isinstance(tensors, (list, tuple)) else (),
        f"{hello.get('host', '')}:{hello.get('pid', '')}" if "pid" in hello else "",
    )


def _configuration_fault(hello: Hello) -> str:
    """Return the reason why a report is wrong regardless of the other reports; empty if there is none."""
    if hello.role == RANK:
        return ""
    if hello.role not in _COUNT_KEYS:
        similar_roles = similar_names(hello.role.lower(), _COUNT_KEYS, cutoff=0.5)
        hint = f"; did you mean {similar_roles[0]}?" if similar_roles else ""
        return f"has the role {hello.role!r}, which is not one of {', '.join(_COUNT_KEYS)}{hint}"
    if hello.index is None:
        return f"has the index {hello.raw_index!r}, which is not a number"
    if hello.role != "server":
        return ""
    server_list = fold(hello.endpoints) or "empty"
    if hello.endpoint not in hello.endpoints:
        endpoint = hello.endpoint or "none"
        return f"has the endpoint {endpoint}, which is not in its own list of servers ({server_list})"
    if 0 <= hello.index < len(hello.endpoints) and hello.endpoints[hello.index] != hello.endpoint:
        expected_endpoint = hello.endpoints[hello.index]
        expected_text = f"server {hello.index} of its own list is {expected_endpoint} ({server_list})"
        return f"has the endpoint {hello.endpoint}, but {expected_text}"
    if hello.endpoint_problem:
        return f"has the endpoint {hello.endpoint}, but {hello.endpoint_problem}"
    return ""


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """The member that differs from the others, the time since which it differs, and a sentence that follows its
    name.
    """

    hello: Hello
    since_s: float
    text: str
    also: tuple[int, ...] = ()


def _find_duplicate(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    """Return two members with the same role and index, or two servers with one endpoint; None if there are none."""
    hello_by_identity: dict[tuple[str, object], Hello] = {}
    for hello in sorted(hellos, key=lambda item: (item.view.hello_at, item.view.rank)):
        identities: list[tuple[str, object]] = [(hello.role, hello.index)] if hello.index is not None else []
        if hello.role == "server" and hello.endpoint:
            identities.append(("endpoint", hello.endpoint))
        for identity in identities:
            other = hello_by_identity.setdefault(identity, hello)
            if other is hello:
                continue
            problem_text = (
                f"are both {hello.role} {hello.index}" if identity[0] != "endpoint" else f"both listen at {identity[1]}"
            )
            text = (
                f"({hello.process}) and {other.label} {problem_text}{_unused_indexes_text(hello.role, hellos, views)}"
            )
            return _Mismatch(hello, hello.view.hello_at, text, (other.view.rank,))
    return None


def _unused_indexes_text(role: str, hellos: Sequence[Hello], views: Views) -> str:
    """Return a text about the unused indexes of a role; empty until all members have reported."""
    if len(hellos) < len(views):
        return ""
    unused_indexes = _unused_indexes(role, hellos)
    return f"; no process is {role} {fold([str(index) for index in unused_indexes])}" if unused_indexes else ""


def _unused_indexes(role: str, hellos: Sequence[Hello]) -> list[int]:
    counts = Counter(hello.counts[role] for hello in hellos if role in hello.counts)
    if len(counts) != 1:
        return []
    used_indexes = {hello.index for hello in hellos if hello.role == role}
    return [index for index in range(min(next(iter(counts)), len(hellos) + 64)) if index not in used_indexes]


def _find_odd_count(hellos: Sequence[Hello], views: Views, *, role: str) -> _Mismatch | None:
    """Return a member that was configured with a count of a role other than the number of its members."""
    started = sum(view.role == role for view in views.values())
    return _find_odd(
        hellos, lambda hello: hello.counts.get(role), lambda value: f"{value} {role}s", correct_value=started
    )


def _find_odd_master(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    return _find_odd(hellos, lambda hello: hello.master or None, lambda value: f"the master at {value}")


def _find_odd_mode(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    return _find_odd(hellos, lambda hello: hello.mode or None, lambda value: f"the mode {value}")


def _find_odd_servers(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    def as_written(value: tuple[str, ...]) -> str:
        return f"the servers {fold(value)}" if value else "no servers"

    return _find_odd(hellos, lambda hello: hello.endpoints if hello.role != RANK else None, as_written)


def _find_odd(
    hellos: Sequence[Hello],
    value_of: Callable[[Hello], Any],
    value_text: Callable[[Any], str],
    *,
    correct_value: Any = None,
) -> _Mismatch | None:
    """Return the member whose setting differs from most others, or from `correct_value` if a member has that; None if
    there is none.
    """
    hellos_by_value: dict[Any, list[Hello]] = {}
    for hello in sorted(hellos, key=lambda item: (item.view.hello_at, item.view.rank)):
        value = value_of(hello)
        if value is not None:
            hellos_by_value.setdefault(value, []).append(hello)
    if len(hellos_by_value) < 2:
        return None
    usual_value = (
        correct_value
        if correct_value in hellos_by_value
        else max(hellos_by_value, key=lambda value: len(hellos_by_value[value]))
    )
    odd_hellos = [hello for value, group in hellos_by_value.items() if value != usual_value for hello in group]
    value = value_of(odd_hellos[0])
    equal_hellos = hellos_by_value[value]
    text = (
        f"was configured with {value_text(value)}, but {names_text([h.view for h in hellos_by_value[usual_value]])}"
        f" with {value_text(usual_value)}"
    )
    if len(equal_hellos) > 1:
        text = f"and {names_text([h.view for h in equal_hellos[1:]])} were {text.removeprefix('was ')}"
    since_s = max(min(h.view.hello_at for h in group) for group in hellos_by_value.values())
    is_tie = len(hellos_by_value[usual_value]) == len(equal_hellos) and usual_value != correct_value
    other_hellos = (*odd_hellos[1:], *(hellos_by_value[usual_value] if is_tie else ()))
    return _Mismatch(odd_hellos[0], since_s, text, tuple(hello.view.rank for hello in other_hellos))


def _find_odd_parameters(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    """Return a member that trains or assigns other parameters, with the first difference."""
    mismatch = _find_odd(hellos, lambda hello: hello.parameters or None, str)
    if mismatch is None:
        return None
    counts = Counter(hello.parameters for hello in hellos if hello.parameters)
    other_hellos = [hello for hello in hellos if hello.parameters and hello.parameters != mismatch.hello.parameters]
    usual_hello = max(other_hellos, key=lambda hello: counts[hello.parameters])
    return _Mismatch(
        mismatch.hello,
        mismatch.since_s,
        f"trains different parameters from {title(usual_hello.view)}: {_first_difference(mismatch.hello, usual_hello)}",
        mismatch.also,
    )


def _first_difference(odd: Hello, other: Hello) -> str:
    for index in range(max(len(odd.tensors), len(other.tensors))):
        odd_tensor, other_tensor = (
            tensors[index] if index < len(tensors) else "none" for tensors in (odd.tensors, other.tensors)
        )
        if odd_tensor != other_tensor:
            return f"parameter {index} is {odd_tensor} here and {other_tensor} there"
    return f"the digest of the list is {odd.parameters[:16]} here and {other.parameters[:16]} there"


def _find_surplus(hellos: Sequence[Hello], views: Views) -> _Mismatch | None:
    """Return a member whose index is not below the configured count of its role; None if there is none."""
    for hello in hellos:
        count = hello.counts.get(hello.role)
        if hello.index is not None and count is not None and not 0 <= hello.index < count:
            text = f"is one too many: its configuration has {count} {hello.role}s, 0 to {count - 1}"
            return _Mismatch(hello, hello.view.hello_at, text)
    return None


#: The functions in the order of their use. The first result explains the later ones: a wrong count also makes an index
#: too large.
_COMPARISONS: tuple[Callable[[Sequence[Hello], Views], _Mismatch | None], ...] = (
    _find_duplicate,
    functools.partial(_find_odd_count, role=RANK),
    functools.partial(_find_odd_count, role="server"),
    functools.partial(_find_odd_count, role="worker"),
    _find_odd_master,
    _find_odd_servers,
    _find_odd_mode,
    _find_odd_parameters,
    _find_surplus,
)


def _find_missing_member(hellos: Sequence[Hello], views: Views) -> Culprit | None:
    """Return the result for an index that every member expects but that no process has; None if there is none."""
    for role in dict.fromkeys(hello.role for hello in hellos):
        unused_indexes = _unused_indexes(role, hellos)
        if not unused_indexes:
            continue
        count = next(hello.counts[role] for hello in hellos if role in hello.counts)
        role_members = [hello.view for hello in hellos if hello.role == role]
        missing_text = (
            f"{role} {unused_indexes[0]}"
            if len(unused_indexes) == 1
            else f"{role}s {fold([str(index) for index in unused_indexes])}"
        )
        text = (
            f"no process was started as {missing_text}: all were configured with {count} {role}s, but only "
            f"{fold([title(view) for view in role_members]) or 'none'} started"
        )
        since_s = max(hello.view.hello_at for hello in hellos)
        return Culprit(None, "", "missing", "", "", since_s, text, tuple(views), ())
    return None


def find_taken_endpoint(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return rank 0 or a server that cannot listen on its port; None if all can."""
    for view in by_time(views, lambda v: v.problem_at("listen")):
        problem = view.problem("listen")
        assert problem is not None
        duty_text = "must be the master" if view.role == RANK else "must serve"
        text = f"{duty_text}, but {problem.get('error', 'it cannot listen')}"
        return make_culprit(views, view, "endpoint", view.problem_at("listen") or 0.0, text)
    return None


def find_unresolved_master(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return the first rank that cannot resolve the name of the master; None if there is none."""
    failing_members = [
        v for v in views.values() if v.dial_result == "unresolved" and now_s - v.dial_at >= limits.unresolved_s
    ]
    if not failing_members:
        return None
    first_member = min(failing_members, key=lambda v: (v.dial_at, v.rank))
    text = f"cannot resolve the name of the master {first_member.dial_endpoint}: {first_member.dial_error}"
    return make_culprit(
        views,
        first_member,
        "endpoint",
        first_member.dial_at,
        text,
        also=[v.rank for v in failing_members if v is not first_member],
    )


def find_unreachable_master(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return the rank to blame if ranks cannot connect to rank 0 although it listens; None if all can."""
    master = views.get(0)
    if master is None or master.role != RANK or not master.listening_at:
        return None
    failing_members = [v for v in views.values() if v.dial_result not in ("", "open")]
    long_failing_members = [
        v for v in failing_members if not v.alive or now_s - max(v.dial_at, master.listening_at) >= limits.dial_s
    ]
    if not long_failing_members:
        return None
    first_member = min(long_failing_members, key=lambda v: (v.dial_at, v.rank))
    pending_members = [v for v in views.values() if v.alive and v.started and not v.dial_result]
    if pending_members and now_s - max(first_member.dial_at, master.listening_at) < 2 * limits.dial_s:
        return None
    other_ranks = [v.rank for v in failing_members if v is not first_member]
    error_text = f"{first_member.dial_endpoint} is {first_member.dial_result} ({first_member.dial_error})"
    connected_members = [v for v in views.values() if v.dial_result == "open" and v.node != master.node]
    if master.dial_result not in ("", "open"):
        text = f"listens on its port, but {master.dial_endpoint} does not reach it: {master.dial_error}"
        return make_culprit(
            views, master, "endpoint", master.dial_at, text, also=[v.rank for v in failing_members if v is not master]
        )
    if not connected_members and len({v.node for v in failing_members}) > 1:
        text = f"listens, but no other node can open its port: {error_text}, seen from {nodes_text(failing_members)}"
        return make_culprit(views, master, "endpoint", first_member.dial_at, text)
    text = f"cannot open the master's port, although rank 0 on {master.node} listens: {error_text}"
    return make_culprit(views, first_member, "endpoint", first_member.dial_at, text, also=other_ranks)


def blame_network(views: Views, view: RankView, frozen_s: float) -> Culprit:
    """Return the result for a collective that no rank left: a rank that advertises loopback, or the network."""
    has_several_nodes = len({v.node for v in views.values()}) > 1
    loopback_members = [v for v in views.values() if is_loopback(v.advertised) and not v.interface]
    if has_several_nodes and loopback_members:
        first_member = min(loopback_members, key=lambda v: v.rank)
        text = (
            f"advertises {first_member.advertised} to the others, because its host name resolves to that address and "
            f"no interface is set; all ranks have waited in {view.what} for {frozen_s:.1f} s"
        )
        return make_culprit(
            views,
            first_member,
            "endpoint",
            view.changed_at,
            text,
            also=[v.rank for v in loopback_members if v is not first_member],
        )
    text = (
        f"all {len(views)} ranks entered collective {view.inside} ({view.what}) and none has left it for "
        f"{frozen_s:.1f} s: messages between them are lost, or not all make the same calls; the ranks alone cannot "
        "show where"
    )
    waiting = tuple(sorted(views))
    return Culprit(None, "", "stuck", view.phase, view.what, view.changed_at, text, waiting, (), view.key)


#: Results of connecting that are caused by a name or a list of servers, and not by the network.
_UNRESOLVED, _STRANGER = "unresolved", "stranger"


def find_unreached_server(views: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Return the member to blame if workers cannot reach servers that listen; None if there is none."""
    cells = _dial_cells(views, now_s, limits)
    failing_cells = [cell for cell in cells if cell.result.result != "open"]
    if not failing_cells:
        return None
    since_s = min(cell.result.since_s for cell in failing_cells)
    if _is_pending(views) and now_s - since_s < 2 * limits.dial_s:
        return None
    first_shape, *_ = shapes(cells, lambda cell: cell.result.result != "open")
    return _culprit_of_shape(views, first_shape, since_s)


#: The message of a server or a worker if the worker reached another server than it dialled.
_REDIRECTED = re.compile(
    r"(worker \S{1,20}) on \S{1,300} " + rank_events.EXPECTS_SERVER.replace("%s", r"(\S{1,20})") + r" (server \S{1,20})"
)


def find_redirected(views: Views, error: str, since_s: float) -> Culprit | None:
    """Return a worker whose path to a server leads to another machine, although others reach it; None if there is
    none.
    """
    match = _REDIRECTED.search(error)
    member_by_name = {view.name: view for view in views.values()}
    if match is None:
        return None
    worker, server, reached_server = (member_by_name.get(name) for name in (match[1], f"server {match[2]}", match[3]))
    dial = worker.dials.get(server.rank) if worker is not None and server is not None else None
    if worker is None or server is None or reached_server is None or dial is None:
        return None
    correct_workers = [
        other
        for other in views.values()
        if other is not worker
        and (other_dial := other.dials.get(server.rank)) is not None
        and (other_dial.result, other_dial.endpoint) == ("open", dial.endpoint)
        and other.problem("mismatch") is None
    ]
    if not correct_workers:
        return None
    text = (
        f"reaches {title(reached_server)} at {dial.endpoint}, the address of {title(server)}, which"
        f" {names_text(correct_workers)} reach"
        f"{'es' if len(correct_workers) == 1 else ''} there: a rule on {worker.node} or on its path leads to another"
        " machine"
    )
    return make_culprit(views, worker, "path", since_s, text)


def _dial_cells(views: Views, now_s: float, limits: Limits) -> list[Cell[Dial]]:
    """Return the connection results that already count, without successes within one node, which prove nothing."""
    cells: list[Cell[Dial]] = []
    for worker in views.values():
        for number, dial in sorted(worker.dials.items()):
            server = views.get(number)
            if server is None:
                continue
            if dial.result == "open":
                is_conclusive = worker.node != server.node
            elif dial.result == _UNRESOLVED:
                is_conclusive = now_s - dial.since_s >= limits.unresolved_s
            else:
                # Workers that import torch may not connect for seconds: the time of the last failure counts.
                is_listening = server.listening_at > 0 and server.alive
                is_conclusive = is_listening and (not worker.alive or dial.at_s - server.listening_at >= limits.dial_s)
            if is_conclusive:
                cells.append(Cell(str(worker.rank), str(number), "port", dial, dial.since_s))
    return cells


def _is_pending(views: Views) -> bool:
    """Return whether a running worker has not yet dialled all servers that other workers have dialled."""
    dialled_ranks = {number for view in views.values() for number in view.dials}
    return any(
        view.alive and view.started and view.dials and set(view.dials) < dialled_ranks for view in views.values()
    )


def _culprit_of_shape(views: Views, shape: Shape[Dial], since_s: float) -> Culprit:
    workers = [views[number] for number in dict.fromkeys(int(cell.source) for cell in shape.cells)]
    servers = [views[number] for number in dict.fromkeys(int(cell.peer) for cell in shape.cells)]
    dial = min((cell.result for cell in shape.cells), key=lambda dial_result: dial_result.since_s)
    error_text = _format_dial(dial)
    if len(servers) == 1 and len(workers) > 1:
        server = servers[0]
        failure_text = (
            "no worker can open its port" if shape.kind == "inbound" else f"{names_text(workers)} cannot open its port"
        )
        text = f"listens, but {failure_text}: {error_text}, seen from {nodes_text(workers)}"
        return make_culprit(views, server, "path", since_s, text)
    worker = workers[0]
    also_ranks = [view.rank for view in (*workers[1:], *servers)]
    if len(workers) == 1 and len(servers) > 1:
        text = f"cannot open the port of any server ({names_text(servers)}), although they listen: {error_text}"
        return make_culprit(views, worker, "path", since_s, text)
    if len(workers) > 1:
        text = (
            f"and {names_text(workers[1:])} cannot open the port of any server ({names_text(servers)}), although "
            f"these listen: {error_text}"
        )
        return make_culprit(views, worker, "path", since_s, text, also=also_ranks)
    return make_culprit(
        views,
        worker,
        "path",
        since_s,
        f"cannot open the port of {title(servers[0])}{_connected_text(views, servers[0])}: {error_text}",
        also=also_ranks,
    )


def _connected_text(views: Views, server: RankView) -> str:
    connected_members = [
        v for v in views.values() if (dial := v.dials.get(server.rank)) is not None and dial.result == "open"
    ]
    return (
        f", which listens and which {names_text(connected_members)} can reach"
        if connected_members
        else ", although it listens"
    )


def _format_dial(dial: Dial) -> str:
    if dial.result == _UNRESOLVED:
        return f"the name of {dial.endpoint} cannot be resolved ({dial.error})"
    if dial.result == _STRANGER:
        return f"the process at {dial.endpoint} is not a server of this run ({dial.error})"
    return f"{dial.endpoint} is {dial.result} ({dial.error})"


def find_wait_cycle(views: Views, waiting: Sequence[RankView]) -> Culprit | None:
    """Return the server or worker in every pair of members that wait for each other; both of a single pair; None if
    there is no pair.
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
    common_member, other_members = (servers[0], workers) if len(servers) == 1 else (workers[0], servers)
    since_s = max(view.changed_at for view in (common_member, *other_members))
    text = f"waits for {names_text(other_members)}, and each of them waits for it: messages to it or from it are lost"
    return make_culprit(views, common_member, "stuck", since_s, text)

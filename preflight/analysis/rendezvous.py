"""Faults of the connections of a run: the rendezvous, and the paths between workers and parameter servers.

Every worker connects to every server. Failures form a matrix: a column means that a server cannot be reached, a row
that a worker is cut off, and a single cell that the path between the two is at fault.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight._util.hostnames import is_loopback
from preflight.agent import rank_events
from preflight.analysis.culprit_model import (
    Culprit,
    Limits,
    Views,
    by_time,
    make_culprit,
    names_text,
    nodes_text,
    title,
)
from preflight.analysis.link_matrix import Cell, Shape, shapes
from preflight.analysis.rank_state import RANK, Dial, RankView


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
    """The results of connecting, as far as they can be judged yet; a success within one node says nothing about the
    network.
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
    """Whether a running worker has not yet connected to all the servers that other workers have."""
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
    """The members that do connect to it."""
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

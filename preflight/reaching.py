"""Which server, worker or path it is, when workers of a parameter-server run cannot open their servers' ports.

Every worker dials every server. What fails is a matrix: a column says that a server cannot be reached, a row that a
worker is cut off, and a single cell that the path between the two is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence

from preflight.blame import Culprit, Limits, Views, blame, names_text, nodes_text, title
from preflight.matrix import Cell, Shape, shapes
from preflight.ranks import Dial, RankView

#: Results of dialling that say more about a name or a list than about the network.
_UNRESOLVED, _STRANGER = "unresolved", "stranger"


def unreached(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Servers that listen and cannot be opened by those who dial them, as one row, column or cell."""
    cells = _cells(found, now_s, limits)
    failing = [cell for cell in cells if cell.result.result != "open"]
    if not failing:
        return None
    since_s = min(cell.result.since_s for cell in failing)
    if _pending(found) and now_s - since_s < 2 * limits.dial_s:
        return None
    first, *_ = shapes(cells, lambda cell: cell.result.result != "open")
    return _explained(found, first, since_s)


def _cells(found: Views, now_s: float, limits: Limits) -> list[Cell[Dial]]:
    """What came of dialling, where it can be judged yet; that it works on one node says nothing of the network."""
    cells: list[Cell[Dial]] = []
    for worker in found.values():
        for number, dial in sorted(worker.dials.items()):
            server = found.get(number)
            if server is None:
                continue
            if dial.result == "open":
                ready = worker.node != server.node
            elif dial.result == _UNRESOLVED:
                ready = now_s - dial.since_s >= limits.unresolved_s
            else:
                # Workers that import torch may not get to dial for seconds: what counts is when it last failed.
                listens = server.listening_at > 0 and server.alive
                ready = listens and (not worker.alive or dial.at_s - server.listening_at >= limits.dial_s)
            if ready:
                cells.append(Cell(str(worker.rank), str(number), "port", dial, dial.since_s))
    return cells


def _pending(found: Views) -> bool:
    """Whether a worker that runs has not dialled all the servers yet that others have."""
    dialled = {number for view in found.values() for number in view.dials}
    return any(view.alive and view.started and view.dials and set(view.dials) < dialled for view in found.values())


def _explained(found: Views, shape: Shape[Dial], since_s: float) -> Culprit:
    workers = [found[number] for number in dict.fromkeys(int(cell.source) for cell in shape.cells)]
    servers = [found[number] for number in dict.fromkeys(int(cell.peer) for cell in shape.cells)]
    dial = min((cell.result for cell in shape.cells), key=lambda item: item.since_s)
    how = _how(dial)
    if len(servers) == 1 and len(workers) > 1:
        server = servers[0]
        who = (
            "no worker can open its port" if shape.kind == "inbound" else f"{names_text(workers)} cannot open its port"
        )
        text = f"listens, but {who}: {how}, seen from {nodes_text(workers)}"
        return blame(found, server, "path", since_s, text)
    worker = workers[0]
    also = [view.rank for view in (*workers[1:], *servers)]
    if len(workers) == 1 and len(servers) > 1:
        text = f"can open the port of no server ({names_text(servers)}), though they listen: {how}"
        return blame(found, worker, "path", since_s, text)
    if len(workers) > 1:
        text = f"and {names_text(workers[1:])} can open no server ({names_text(servers)}), though these listen: {how}"
        return blame(found, worker, "path", since_s, text, also=also)
    return blame(
        found, worker, "path", since_s, f"cannot open {title(servers[0])}{_others(found, servers[0])}: {how}", also=also
    )


def _others(found: Views, server: RankView) -> str:
    """Who does open it."""
    opened = [v for v in found.values() if (dial := v.dials.get(server.rank)) is not None and dial.result == "open"]
    return f", which listens, and which {names_text(opened)} can open" if opened else ", though it listens"


def _how(dial: Dial) -> str:
    if dial.result == _UNRESOLVED:
        return f"the name of {dial.endpoint} cannot be resolved ({dial.error})"
    if dial.result == _STRANGER:
        return f"what answers at {dial.endpoint} is no server of this run ({dial.error})"
    return f"{dial.endpoint} is {dial.result} ({dial.error})"


def each_other(found: Views, waiting: Sequence[RankView]) -> Culprit | None:
    """Workers and servers that wait for one another, as after a message that was lost on its way.

    A server in all such pairs is named, or a worker in all of them; of a single pair both ends.
    """
    pairs = [
        (worker, found[number])
        for worker in waiting
        if worker.role == "worker"
        for number in worker.waiting_for
        if number in found and found[number].role == "server" and worker.rank in found[number].waiting_for
    ]
    workers = list({worker.rank: worker for worker, _ in pairs}.values())
    servers = list({server.rank: server for _, server in pairs}.values())
    if not pairs or (len(workers) > 1 and len(servers) > 1):
        return None
    if len(pairs) == 1:
        (worker, server), since_s = pairs[0], max(view.changed_at for view in pairs[0])
        text = f"waits for {title(server)}, which waits for it in turn: something between them was lost"
        return blame(found, worker, "stuck", since_s, text, also=[server.rank])
    one, others = (servers[0], workers) if len(servers) == 1 else (workers[0], servers)
    since_s = max(view.changed_at for view in (one, *others))
    text = f"waits for {names_text(others)}, and each of them waits for it: what it gets, or what it says, is lost"
    return blame(found, one, "stuck", since_s, text)

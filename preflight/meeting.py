"""Faults of where ranks meet: the master's port, its name, and the addresses that ranks tell each other."""

from __future__ import annotations

from preflight.blame import Culprit, Limits, Views, blame, by_time, nodes_text
from preflight.ranks import RANK, RankView


def endpoint_taken(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Rank 0 said that it cannot listen on the master port, or a server that it cannot on its own."""
    for view in by_time(found, lambda v: v.problem_at("listen")):
        problem = view.problem("listen")
        assert problem is not None
        part = "must be the master" if view.role == RANK else "must serve"
        text = f"{part}, but {problem.get('error', 'it cannot listen')}"
        return blame(found, view, "endpoint", view.problem_at("listen") or 0.0, text)
    return None


def unresolved(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """A rank cannot turn the master's name into an address."""
    failing = [v for v in found.values() if v.dial_result == "unresolved" and now_s - v.dial_at >= limits.unresolved_s]
    if not failing:
        return None
    first = min(failing, key=lambda v: (v.dial_at, v.rank))
    text = f"cannot resolve the name of the master {first.dial_endpoint}: {first.dial_error}"
    return blame(found, first, "endpoint", first.dial_at, text, also=[v.rank for v in failing if v is not first])


def cannot_reach(found: Views, now_s: float, limits: Limits) -> Culprit | None:
    """Ranks that cannot open the master's port although rank 0 listens on it: a row, a column or a single path."""
    master = found.get(0)
    if master is None or master.role != RANK or not master.listening_at:
        return None
    failing = [v for v in found.values() if v.dial_result not in ("", "open")]
    ready = [v for v in failing if not v.alive or now_s - max(v.dial_at, master.listening_at) >= limits.dial_s]
    if not ready:
        return None
    first = min(ready, key=lambda v: (v.dial_at, v.rank))
    pending = [v for v in found.values() if v.alive and v.started and not v.dial_result]
    if pending and now_s - max(first.dial_at, master.listening_at) < 2 * limits.dial_s:
        return None
    others = [v.rank for v in failing if v is not first]
    how = f"{first.dial_endpoint} is {first.dial_result} ({first.dial_error})"
    reached = [v for v in found.values() if v.dial_result == "open" and v.node != master.node]
    if master.dial_result not in ("", "open"):
        text = f"listens on its port, but {master.dial_endpoint} does not lead to it: {master.dial_error}"
        return blame(found, master, "endpoint", master.dial_at, text, also=[v.rank for v in failing if v is not master])
    if not reached and len({v.node for v in failing}) > 1:
        text = f"listens, but no other node can open its port: {how}, seen from {nodes_text(failing)}"
        return blame(found, master, "endpoint", first.dial_at, text)
    text = f"cannot open the master's port, though rank 0 on {master.node} listens: {how}"
    return blame(found, first, "endpoint", first.dial_at, text, also=others)


def all_inside(found: Views, view: RankView, frozen_s: float) -> Culprit:
    """Everybody entered and nobody left: the network between them, unless one of them advertises loopback."""
    spread = len({v.node for v in found.values()}) > 1
    lost = [v for v in found.values() if v.advertised.startswith("127.") and not v.interface]
    if spread and lost:
        first = min(lost, key=lambda v: v.rank)
        text = (
            f"tells the others to connect to {first.advertised}, because its host name resolves to that and "
            f"no interface is chosen; all ranks have waited in {view.what} for {frozen_s:.1f} s"
        )
        return blame(found, first, "endpoint", view.changed_at, text, also=[v.rank for v in lost if v is not first])
    text = (
        f"all {len(found)} ranks entered collective {view.inside} ({view.what}) and none left it for {frozen_s:.1f} s:"
        " the network between them loses what they send, and the ranks alone cannot tell where"
    )
    waiting = tuple(sorted(found))
    return Culprit(None, "", "stuck", view.phase, view.what, view.changed_at, text, waiting, (), view.key)

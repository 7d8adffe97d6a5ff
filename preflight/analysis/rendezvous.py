"""Faults of the rendezvous: the master's port, its name, and the addresses that ranks exchange."""

from __future__ import annotations

from preflight._util.hostnames import is_loopback
from preflight.analysis.culprit_model import Culprit, Limits, Views, by_time, make_culprit, nodes_text
from preflight.analysis.rank_state import RANK, RankView


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
        " the network between them loses messages, and the ranks alone cannot show where"
    )
    waiting = tuple(sorted(views))
    return Culprit(None, "", "stuck", view.phase, view.what, view.changed_at, text, waiting, (), view.key)

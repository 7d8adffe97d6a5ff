"""What a Kubernetes cluster could provide to pods, from the lists of its nodes and of all their pods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from preflight.executors.base import ExecutorError
from preflight.model.recording import Cluster, ClusterNode
from preflight.sources.kubernetes.pods import amount

#: For one list; a run should not wait for a cluster that takes longer.
SURVEY_S = 8.0
_BridgeCall = Callable[[str], Awaitable[Any]]


async def survey(call: _BridgeCall) -> Cluster:
    """Return the visible part of the cluster; `call` queries the bridge. Denied requests are listed in `unknown`."""
    unknown: list[str] = []
    try:
        nodes = await call("nodes")
    except ExecutorError as error:
        return Cluster("kubernetes", unknown=(f"the resources of its nodes: {error.message}",))
    taken: dict[str, dict[str, float]] | None = None
    try:
        taken = _sum_requests(await call("taken"))
    except ExecutorError as error:
        unknown.append(f"the resources in use: {error.message}")
    return Cluster("kubernetes", tuple(cluster_node(node, taken) for node in nodes), tuple(unknown))


def cluster_node(node: Mapping[str, Any], taken: Mapping[str, Mapping[str, float]] | None) -> ClusterNode:
    """Return one node, from the API's data about it and from its pods' requests."""
    has = {key: value for key, text in node["allocatable"].items() if (value := _number(text)) is not None}
    free = None
    if taken is not None:
        used = taken.get(node["name"], {})
        free = {key: max(0.0, value - used.get(key, 0.0)) for key, value in has.items()}
    closed = ""
    if node["cordoned"]:
        closed = "it is cordoned"
    elif not node["ready"]:
        closed = f"it is not ready: {node['message'] or 'no reason given'}"
    taints = tuple(
        f"{taint['key']}{'=' if taint['value'] else ''}{taint['value']}:{taint['effect']}" for taint in node["taints"]
    )
    return ClusterNode(node["name"], has, free, dict(node["labels"]), taints, closed)


def _sum_requests(taken: Iterable[Sequence[Any]]) -> dict[str, dict[str, float]]:
    sums: dict[str, dict[str, float]] = {}
    for node, wanted in taken:
        held = sums.setdefault(node, {})
        for key, text in wanted.items():
            held[key] = held.get(key, 0.0) + (_number(text) or 0.0)
    return sums


def _number(text: object) -> float | None:
    try:
        return amount(str(text))
    except ValueError:
        return None

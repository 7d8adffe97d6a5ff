"""The maximum that a job's queue can admit: its LocalQueue, that queue's ClusterQueue, and the quotas (Kueue 0.14)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.model.job import Scope, lift
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of
from preflight.sources.kubernetes.amounts import whole_number
from preflight.sources.kubernetes.pods import GPU_RESOURCE

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: Annotations with which a job may be admitted with fewer pods than it requests.
_PARTIAL_ADMISSION = ("kueue.x-k8s.io/job-min-parallelism", "kueue.x-k8s.io/elastic-job")


def state_queue(node_claims: NodeClaims, root: Node, known: Sequence[Node], scope: Scope) -> None:
    """State a workload's queue, those that the files define, and the maximum number of GPUs if they determine it.

    A ClusterQueue in a cohort may borrow, so nothing is certain about it. A queue that is not in the tree is on the
    cluster.
    """
    label = _label_value(root, QUEUE_LABEL)
    if label is not None:
        node_claims.add("queue_name", value_of(label.node), label, scope=scope)
        for defined in _queues_of(known, root.text("metadata", "namespace")):
            node_claims.add("queue_defined", value_of(defined.node), defined, scope=scope)
    if label is None or any(_label_value(root, name) is not None for name in _PARTIAL_ADMISSION):
        return
    name = label.node.value
    if label.node.kind is not Kind.SCALAR or not isinstance(name, str):
        return
    local = _only_object(known, "LocalQueue", name, root.text("metadata", "namespace"))
    cluster = _only_object(known, "ClusterQueue", local.text("spec", "clusterQueue"), "") if local is not None else None
    if cluster is None or cluster.at("spec", "cohort") is not None or cluster.at("spec", "cohortName") is not None:
        return
    quotas = list(_gpu_quotas(cluster))
    if quotas:
        total = lift(
            lambda *each: sum(int(str(n)) for n in each), *(whole_number(value_of(quota.node)) for quota in quotas)
        )
        node_claims.add("queue_gpus", total, quotas[0], scope=scope)


def _label_value(root: Node, name: str) -> Member | None:
    return root.member("metadata", "labels", name) or root.member("metadata", "annotations", name)


def _queues_of(known: Sequence[Node], namespace: str) -> Iterator[Member]:
    """The names of the LocalQueues of a namespace."""
    for node in known:
        name = node.member("metadata", "name")
        if node.text("kind") == "LocalQueue" and node.text("metadata", "namespace") == namespace and name is not None:
            yield name


def _only_object(known: Sequence[Node], kind: str, name: str, namespace: str) -> Node | None:
    """The only object of a kind with a name, in the same namespace if both name one; None for several or none."""
    found = [
        node
        for node in known
        if name
        and node.text("kind") == kind
        and node.text("metadata", "name") == name
        and (not namespace or node.text("metadata", "namespace") in ("", namespace))
    ]
    return found[0] if len(found) == 1 else None


def _gpu_quotas(cluster: Node) -> Iterator[Member]:
    groups = cluster.at("spec", "resourceGroups")
    for group in groups.items if groups is not None else ():
        flavors = group.at("flavors")
        for flavor in flavors.items if flavors is not None else ():
            resources = flavor.at("resources")
            for resource in resources.items if resources is not None else ():
                quota = resource.member("nominalQuota")
                if quota is not None and GPU_RESOURCE.fullmatch(resource.text("name")):
                    yield quota

"""Objects that start no pods and still decide about those of others: groups, claims, quotas, network policies."""

from __future__ import annotations

from preflight.job import Known, Scope, as_int
from preflight.sources.kubernetes.amounts import whole
from preflight.sources.kubernetes.pods import GPU_RESOURCE
from preflight.sources.structured import Kind, Member, Node, NodeStating, value_of


def state_aside(stating: NodeStating, root: Node, head: Member, name: str) -> None:
    """State what an object says; `name` is the scope of its claims."""
    scope = Scope(launch=name)
    kind = root.text("kind")
    if kind == "PodGroup":
        _group(stating, root, head, scope)
    elif kind == "PersistentVolumeClaim":
        claimed, modes = root.member("metadata", "name"), root.member("spec", "accessModes")
        if claimed is not None and modes is not None:
            stating.say("shared_volume", value_of(claimed.node), claimed, scope=scope)
            stating.say("volume_access", value_of(modes.node), modes, scope=scope)
    elif kind == "NetworkPolicy":
        _policy(stating, root, head, scope)
    elif kind in ("ResourceQuota", "Queue"):
        stating.given("namespace", root.member("metadata", "namespace"), scope=scope)
        for section in ("hard", "capability"):
            _quota(stating, root.at("spec", section), scope)
    elif kind == "ClusterQueue":
        _kueue(stating, root, scope)


def _group(stating: NodeStating, root: Node, head: Member, scope: Scope) -> None:
    """A PodGroup makes its pods a gang."""
    group = root.text("apiVersion").rpartition("/")[0]
    stating.say("workload", Known(f"{group}/PodGroup"), head, scope=scope)
    stating.given("gang_min", root.member("spec", "minMember"), as_int, scope=scope)
    name = root.member("metadata", "name")
    if name is not None:
        stating.say("gang", value_of(name.node), name, scope=scope)


def _quota(stating: NodeStating, limits: Node | None, scope: Scope) -> None:
    for member in limits.in_force if limits is not None else ():
        if GPU_RESOURCE.fullmatch(member.key.removeprefix("requests.").removeprefix("limits.")):
            stating.say("quota_gpus", whole(value_of(member.node)), member, scope=scope)


def _kueue(stating: NodeStating, root: Node, scope: Scope) -> None:
    """The quota of a queue that lends and borrows nothing; with a cohort it may hold more."""
    if root.at("spec", "cohort") is not None or root.at("spec", "cohortName") is not None:
        return
    found: list[Member] = []
    for group in _items(root.at("spec", "resourceGroups")):
        for flavor in _items(group.at("flavors")):
            for resource in _items(flavor.at("resources")):
                quota = resource.member("nominalQuota")
                if quota is not None and GPU_RESOURCE.fullmatch(resource.text("name")):
                    found.append(quota)
    if len(found) == 1:
        stating.say("quota_gpus", whole(value_of(found[0].node)), found[0], scope=scope)


def _policy(stating: NodeStating, root: Node, head: Member, scope: Scope) -> None:
    """A policy that selects every pod of its namespace and lets nobody in."""
    spec = root.at("spec")
    selector = spec.at("podSelector") if spec is not None else None
    if spec is None or selector is None or selector.kind is not Kind.OBJECT or selector.members:
        return
    types = spec.at("policyTypes")
    if types is not None and "Ingress" not in [item.value for item in types.items]:
        return
    rules = spec.at("ingress")
    if rules is None or (rules.kind is Kind.ARRAY and not rules.items):
        stating.given("namespace", root.member("metadata", "namespace"), scope=scope)
        stating.say("denies_ingress", Known(True), head, scope=scope)


def _items(node: Node | None) -> tuple[Node, ...]:
    return node.items if node is not None and node.kind is Kind.ARRAY else ()

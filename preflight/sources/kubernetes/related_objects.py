"""Objects that start no pods but affect the pods of others: groups, claims, quotas, network policies."""

from __future__ import annotations

from preflight.model.job import Known, Scope, as_int
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of
from preflight.sources.kubernetes.amounts import whole_number
from preflight.sources.kubernetes.pods import GPU_RESOURCE


def state_related_object(node_claims: NodeClaims, root: Node, head: Member, name: str) -> None:
    """State the claims of an object; `name` is their scope."""
    scope = Scope(launch=name)
    kind = root.text("kind")
    if kind == "PodGroup":
        _group(node_claims, root, head, scope)
    elif kind == "PersistentVolumeClaim":
        claimed, modes = root.member("metadata", "name"), root.member("spec", "accessModes")
        if claimed is not None and modes is not None:
            node_claims.add("shared_volume", value_of(claimed.node), claimed, scope=scope)
            node_claims.add("volume_access", value_of(modes.node), modes, scope=scope)
    elif kind == "NetworkPolicy":
        _policy(node_claims, root, head, scope)
        _allowance(node_claims, root, head, scope)
    elif kind in ("CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"):
        _allowance(node_claims, root, head, scope)
    elif kind in ("ResourceQuota", "Queue"):
        if root.at("spec", "scopes") is not None or root.at("spec", "scopeSelector") is not None:
            # It counts only some of the namespace's pods.
            return
        node_claims.add_member("namespace", root.member("metadata", "namespace"), scope=scope)
        for section in ("hard", "capability"):
            _quota(node_claims, root.at("spec", section), scope)
    elif kind == "ClusterQueue":
        _kueue(node_claims, root, scope)


def _group(node_claims: NodeClaims, root: Node, head: Member, scope: Scope) -> None:
    """A PodGroup, which schedules its pods as a gang."""
    group = root.text("apiVersion").rpartition("/")[0]
    node_claims.add("workload", Known(f"{group}/PodGroup"), head, scope=scope)
    node_claims.add_member("gang_min", root.member("spec", "minMember"), as_int, scope=scope)
    name = root.member("metadata", "name")
    if name is not None:
        node_claims.add("gang", value_of(name.node), name, scope=scope)


def _quota(node_claims: NodeClaims, limits: Node | None, scope: Scope) -> None:
    for member in limits.in_force if limits is not None else ():
        if GPU_RESOURCE.fullmatch(member.key.removeprefix("requests.").removeprefix("limits.")):
            node_claims.add("quota_gpus", whole_number(value_of(member.node)), member, scope=scope)


def _kueue(node_claims: NodeClaims, root: Node, scope: Scope) -> None:
    """The quota of a queue that neither lends nor borrows; in a cohort it may hold more."""
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
        node_claims.add("quota_gpus", whole_number(value_of(found[0].node)), found[0], scope=scope)


def _policy(node_claims: NodeClaims, root: Node, head: Member, scope: Scope) -> None:
    """A policy that selects every pod of its namespace and allows no ingress from there."""
    spec = root.at("spec")
    selector = spec.at("podSelector") if spec is not None else None
    if spec is None or selector is None or selector.kind is not Kind.OBJECT or selector.members:
        return
    types = spec.at("policyTypes")
    if types is not None and "Ingress" not in [item.value for item in types.items]:
        return
    rules = spec.at("ingress")
    namespace = root.text("metadata", "namespace")
    if rules is None or (
        rules.kind is Kind.ARRAY and all(_lets_only_others_in(rule, namespace) for rule in rules.items)
    ):
        node_claims.add_member("namespace", root.member("metadata", "namespace"), scope=scope)
        node_claims.add("denies_ingress", Known(True), head, scope=scope)


def _allowance(node_claims: NodeClaims, root: Node, head: Member, scope: Scope) -> None:
    """A policy that admits some connections: policies add up, so it may open what another one leaves closed."""
    namespace = root.text("metadata", "namespace")
    rules = [
        rule for spec in (root.at("spec"), *_items(root.at("specs"))) if spec for rule in _items(spec.at("ingress"))
    ]
    if any(not _lets_only_others_in(rule, namespace) for rule in rules):
        node_claims.add_member("namespace", root.member("metadata", "namespace"), scope=scope)
        node_claims.add("allows_ingress", Known(True), head, scope=scope)


def _lets_only_others_in(rule: Node, namespace: str) -> bool:
    """Whether a rule admits only pods of namespaces that it names, all of them other ones.

    A peer without a namespace selector is in the policy's own namespace, and a rule without peers admits everybody.
    """
    peers = _items(rule.at("from"))
    named = [peer.text("namespaceSelector", "matchLabels", "kubernetes.io/metadata.name") for peer in peers]
    return bool(namespace and peers) and all(name and name != namespace for name in named)


def _items(node: Node | None) -> tuple[Node, ...]:
    return node.items if node is not None and node.kind is Kind.ARRAY else ()

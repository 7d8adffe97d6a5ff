"""Devices that pods claim by Dynamic Resource Allocation, and the NVLink domains of GB200 racks.

Read from resource.k8s.io v1 to v1alpha3 (ResourceClaimTemplate) and from resource.nvidia.com/v1beta1 (ComputeDomain,
DRA driver 25.8).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.model.job import Known, Scope, Unresolved, Value, as_int, lift
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of
from preflight.sources.kubernetes.kinds import Role

_GPU_CLASS = re.compile(r"(?:gpu|mig|vfio\.gpu)\.nvidia\.com|gpu\.amd\.com|gpu\.intel\.com")


def state_claims(node_claims: NodeClaims, role: Role, known: Sequence[Node], scope: Scope) -> None:
    """State the GPUs that the pods of a role claim, and the compute domain that they join."""
    pod = role.pod
    listed = pod.at("resourceClaims") if pod is not None else None
    total: Value | None = None
    at: Member | None = None
    for claim in listed.items if listed is not None else ():
        member = claim.member("resourceClaimTemplateName") or claim.member("resourceClaimName")
        if member is None:
            continue
        domain = _domain(known, member.node)
        if domain is not None:
            node_claims.add("compute_domain", value_of(domain.node), domain, scope=scope)
        template = _template(known, member.node)
        gpus = _gpus(template) if template is not None else None
        if gpus is not None:
            total = gpus if total is None else lift(lambda a, b: a + b, total, gpus)
            at = at or member
    is_stated = any(item.quantity == "pod_gpus" and item.scope == scope for item in node_claims.claims)
    if total is not None and at is not None and not is_stated:
        node_claims.add("pod_gpus", total, at, scope=scope)


def _template(known: Sequence[Node], name: Node) -> Node | None:
    for item in known:
        if item.text("kind") in ("ResourceClaimTemplate", "ResourceClaim") and _have_equal_names(
            item.at("metadata", "name"), name
        ):
            spec = item.at("spec")
            return spec.at("spec") or spec if spec is not None else None
    return None


def _gpus(spec: Node) -> Value | None:
    """How many GPUs a claim requests; None for a claim of other devices."""
    requests = spec.at("devices", "requests")
    total: Value | None = None
    for request in requests.items if requests is not None else ():
        asked = request.at("exactly") or request
        if not _GPU_CLASS.fullmatch(asked.text("deviceClassName")):
            continue
        count = asked.member("count")
        value: Value = as_int(value_of(count.node)) if count is not None else Known(1)
        if asked.text("allocationMode") == "All":
            value = Unresolved("every device of the node that matches")
        total = value if total is None else lift(lambda a, b: a + b, total, value)
    return total


def _domain(known: Sequence[Node], name: Node) -> Member | None:
    """Where the ComputeDomain whose claim template a pod names sets its number of nodes."""
    for item in known:
        template = item.at("spec", "channel", "resourceClaimTemplate", "name")
        if item.text("kind") == "ComputeDomain" and _have_equal_names(template, name):
            return item.member("spec", "numNodes")
    return None


def _have_equal_names(first: Node | None, second: Node) -> bool:
    """Whether two names are equal, with equal placeholders."""
    if first is None or first.kind not in (Kind.SCALAR, Kind.TEMPLATE) or second.kind is not first.kind:
        return False
    return first.value is not None and str(first.value).strip("\"'") == str(second.value).strip("\"'")

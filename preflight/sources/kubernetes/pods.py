"""The requests of a role's pods: devices, memory, volumes, network, placement and restarts.

Read from resource.k8s.io v1 to v1alpha3 (ResourceClaimTemplate) and from resource.nvidia.com/v1beta1 (ComputeDomain,
DRA driver 25.8).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from preflight.model.job import WHOLE_JOB, Known, Plain, Scope, Unresolved, Value, as_int, lift, one_of
from preflight.sources.configs.packages import package_of_image
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of
from preflight.sources.kubernetes.objects import Role

_Parse: TypeAlias = Callable[[Value], Value]

#: Device plugins' names for whole accelerators that hold one rank each.
GPU_RESOURCE = re.compile(
    r"(?:nvidia|amd|aliyun)\.com/gpu|nvidia\.com/mig-[\w.-]+|habana\.ai/gaudi|huawei\.com/Ascend\w+"
)
_RDMA = re.compile(
    r"(?:rdma|mellanox\.com|openshift\.io|nvidia\.com)/.*(?:hca|rdma|ib|roce|sriov|mlnx|vf).*|vpc\.amazonaws\.com/efa"
)
#: Labels of nodes that name their GPU.
_GPU_PRODUCT = frozenset(
    (
        "cloud.google.com/gke-accelerator",
        "nvidia.com/gpu.product",
        "k8s.amazonaws.com/accelerator",
        "gpu.nvidia.com/class",
    )
)
_MESH = ("sidecar.istio.io/inject", "linkerd.io/inject", "kuma.io/sidecar-injection", "istio.io/dataplane-mode")
_GANG_LABELS = (
    *("kueue.x-k8s.io/queue-name", "pod-group.scheduling.sigs.k8s.io", "scheduling.x-k8s.io/pod-group"),
    *("scheduling.k8s.io/group-name", "yunikorn.apache.org/task-groups", "runai/queue", "kai.scheduler/queue"),
    *(
        "ray.io/scheduler-name",
        "volcano.sh/queue-name",
        "ray.io/gang-scheduling-enabled",
        "kueue.x-k8s.io/pod-group-name",
    ),
    *("pod-group.scheduling.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/exclusive-topology"),
)
#: Schedulers that place a job's pods together: Volcano, YuniKorn, KAI, NVIDIA Run:ai, coscheduling profiles.
_GANG_SCHEDULER = re.compile(
    r"volcano|yunikorn|kai-scheduler|runai-scheduler|koord-scheduler|.*(?:gang|cosched|kube-batch|plugins).*"
)


def state_pods(node_claims: NodeClaims, role: Role, scope: Scope) -> None:
    """State everything that the pods of one role request, in `scope`."""
    _replicas(node_claims, role, scope)
    state_labels(node_claims, role.template, scope)
    pod = role.pod
    if pod is None:
        return
    scheduler = pod.member("schedulerName")
    if scheduler is not None:
        claim = node_claims.add("pod_scheduler", value_of(scheduler.node), scheduler, scope=scope)
        if any(isinstance(item, str) and _GANG_SCHEDULER.fullmatch(item) for item in claim.alternatives):
            node_claims.add("gang", claim.value, scheduler, scope=scope)
    _state_settings(node_claims, pod, scope)
    shm = _volumes(node_claims, pod, scope)
    for container in containers_of(pod):
        _container(node_claims, container, shm, scope)
    _devices(node_claims, pod, scope)
    _start_params(node_claims, role, scope)


def _start_params(node_claims: NodeClaims, role: Role, scope: Scope) -> None:
    """The resources that a Ray node announces by default."""
    if role.start_params is not None:
        for key, quantity in (("num-gpus", "ray_num_gpus"), ("num-cpus", "ray_num_cpus")):
            node_claims.add_member(quantity, role.start_params.node.member(key), as_int, scope=scope)


def containers_of(pod: Node) -> Iterator[Node]:
    """The containers of a pod that run as long as the pod does."""
    listed = pod.at("containers")
    for item in listed.items if listed is not None else ():
        if item.kind is Kind.OBJECT:
            yield item


def state_labels(node_claims: NodeClaims, holder: Node, scope: Scope) -> None:
    """State the meshes and gangs that labels and annotations request."""
    for part in ("annotations", "labels"):
        found = holder.at("metadata", part)
        for member in found.in_force if found is not None else ():
            if member.key in _MESH:
                node_claims.add("mesh_injection", _text(value_of(member.node)), member, scope=scope)
            elif member.key in _GANG_LABELS:
                node_claims.add("gang", Known(member.key), member, scope=scope)


def _text(value: Value) -> Value:
    return lift(lambda item: str(item).lower() if isinstance(item, bool) else str(item), value)


def _replicas(node_claims: NodeClaims, role: Role, scope: Scope) -> None:
    if role.member is not None:
        node_claims.add("pod_replicas", role.replicas, role.member, scope=scope)
        node_claims.add("pod_trains", Known(role.trains), role.member, scope=scope)
        return
    at = Member("template", role.template.start, role.template.start, role.template)
    if role.template.end > role.template.start:
        node_claims.add("pod_replicas", role.replicas, at, scope=scope)
        node_claims.add("pod_trains", Known(role.trains), at, scope=scope)


def _state_settings(node_claims: NodeClaims, pod: Node, scope: Scope) -> None:
    node_claims.add_member("host_network", pod.member("hostNetwork"), scope=scope)
    node_claims.add_member("restart_policy", pod.member("restartPolicy"), scope=scope)
    ipc = pod.member("hostIPC")
    if ipc is not None and value_of(ipc.node) != Known(False):
        node_claims.add("shm_mib", Unresolved("hostIPC: the node's own /dev/shm"), ipc, scope=scope)
    selector = pod.at("nodeSelector")
    for member in selector.in_force if selector is not None else ():
        value = lift(lambda item, key=member.key: f"{key}={_plain(item)}", value_of(member.node))
        node_claims.add("node_label", value, member, scope=scope)
        if member.key in _GPU_PRODUCT:
            node_claims.add("gpu_type", value_of(member.node), member, scope=scope)
    _affinity(node_claims, pod, scope)


def _affinity(node_claims: NodeClaims, pod: Node, scope: Scope) -> None:
    """Labels that a required node affinity demands; one of several values, or of several terms, must match."""
    terms = pod.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    if terms is None:
        return
    found: dict[str, list[tuple[list[str], Member]]] = {}
    for term in terms.items:
        expressions = term.at("matchExpressions")
        for expression in expressions.items if expressions is not None else ():
            key, values = expression.text("key"), expression.member("values")
            if not key or values is None or expression.text("operator") != "In":
                continue
            scalars = [item.value for item in values.node.items if item.kind is Kind.SCALAR]
            if scalars and len(scalars) == len(values.node.items):
                found.setdefault(key, []).append(([f"{key}={_plain(item)}" for item in scalars], values))
    for given in found.values():
        # A label that one of several terms leaves open may have any value.
        if len(given) == len(terms.items):
            node_claims.add(
                "node_label",
                one_of(dict.fromkeys(text for texts, _ in given for text in texts)),
                given[0][1],
                scope=scope,
            )


def _plain(item: Plain) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)


def _volumes(node_claims: NodeClaims, pod: Node, scope: Scope) -> dict[str, tuple[Value, Member]]:
    """State host paths and claims; return the volumes in memory, or on the node, by name."""
    sizes: dict[str, tuple[Value, Member]] = {}
    volumes = pod.at("volumes")
    for volume in volumes.items if volumes is not None else ():
        name = volume.text("name")
        path = volume.member("hostPath", "path")
        if path is not None:
            node_claims.add("host_path", value_of(path.node), path, scope=scope)
            sizes[name] = (Unresolved("a directory of the node"), path)
        claim = volume.member("persistentVolumeClaim", "claimName")
        read_only = volume.at("persistentVolumeClaim", "readOnly")
        if claim is not None and (read_only is None or read_only.value is not True):
            node_claims.add("shared_volume", value_of(claim.node), claim, scope=scope)
        empty = volume.member("emptyDir")
        if empty is not None:
            limit = empty.node.member("sizeLimit")
            if empty.node.text("medium") == "Memory" and limit is not None:
                sizes[name] = (mebibytes(value_of(limit.node)), limit)
            else:
                sizes[name] = (Unresolved("an emptyDir without a sizeLimit: as large as the node allows"), empty)
    return sizes


_TRAINING_ROLES = ("", "worker", "master", "trainer")


def _container(node_claims: NodeClaims, container: Node, sizes: dict[str, tuple[Value, Member]], scope: Scope) -> None:
    image = container.member("image")
    node_claims.add_member("pod_image", image, scope=scope)
    package = package_of_image(container.text("image"))
    if image is not None and package is not None and scope.role in _TRAINING_ROLES:
        # The launch in the command of the container has a scope of its own.
        node_claims.add("package", Known(f"{package.name}{package.version}"), image, scope=WHOLE_JOB)
    mounts = container.at("volumeMounts")
    for mount in mounts.items if mounts is not None else ():
        path = mount.text("mountPath").rstrip("/")
        if path in ("/dev/shm", "/dev", "/run/shm"):
            size, member = sizes.get(mount.text("name")) or (Unresolved("a volume of another kind"), None)
            member = member or mount.member("mountPath")
            if member is not None:
                node_claims.add("shm_mib", size, member, scope=scope)
    ports = container.at("ports")
    for port in ports.items if ports is not None else ():
        node_claims.add_member("host_port", port.member("hostPort"), as_int, scope=scope)
    context = container.at("securityContext")
    if context is not None:
        privileged = context.member("privileged")
        if privileged is not None and privileged.node.value is not False:
            node_claims.add("pod_capability", Known("privileged"), privileged, scope=scope)
        added = context.member("capabilities", "add")
        for item in added.node.items if added is not None else ():
            node_claims.add("pod_capability", value_of(item), Member("add", item.start, item.end, item), scope=scope)


def _devices(node_claims: NodeClaims, pod: Node, scope: Scope) -> None:
    """Devices, cores and memory, over all containers of the pod."""
    _state_sum(node_claims, pod, "limits", GPU_RESOURCE, "pod_gpus", whole_number, scope)
    _state_sum(node_claims, pod, "requests", GPU_RESOURCE, "pod_gpu_requests", whole_number, scope)
    _state_requests(node_claims, pod, "cpu", "pod_cpu_requests", cores, scope)
    _state_requests(node_claims, pod, "memory", "pod_memory_requests_mib", mebibytes, scope)
    if not _any_unlimited(pod, "cpu"):
        _state_sum(node_claims, pod, "limits", re.compile("cpu"), "pod_cpus", cores, scope)
    if not _any_unlimited(pod, "memory"):
        _state_sum(node_claims, pod, "limits", re.compile("memory"), "pod_memory_mib", mebibytes, scope)
    for container in containers_of(pod):
        limits = container.at("resources", "limits") or container.at("resources", "requests")
        for member in limits.in_force if limits is not None else ():
            if _RDMA.fullmatch(member.key) and str(member.node.value) != "0":
                value = lift(lambda item, key=member.key: f"{key}={int(amount(item))}", value_of(member.node))
                node_claims.add("pod_rdma", value, member, scope=scope)


def gpus_of(container: Node) -> tuple[Value, Member] | None:
    """The GPUs that one container gets, and where they are set; None if it sets none."""
    limits = container.at("resources", "limits")
    found = [member for member in (limits.in_force if limits is not None else ()) if GPU_RESOURCE.fullmatch(member.key)]
    return (whole_number(value_of(found[0].node)), found[0]) if len(found) == 1 else None


def _state_requests(node_claims: NodeClaims, pod: Node, name: str, quantity: str, read: _Parse, scope: Scope) -> None:
    """The amount that the scheduler counts: each container's request, or its limit if it has no request."""
    found = [
        member
        for container in containers_of(pod)
        if (member := container.member("resources", "requests", name) or container.member("resources", "limits", name))
    ]
    if found:
        node_claims.add(quantity, _total([read(value_of(member.node)) for member in found]), found[0], scope=scope)


def _total(values: list[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = lift(lambda a, b: a + b, total, value)
    return total


def _any_unlimited(pod: Node, name: str) -> bool:
    return any(container.at("resources", "limits", name) is None for container in containers_of(pod))


def _state_sum(
    node_claims: NodeClaims, pod: Node, section: str, name: re.Pattern[str], quantity: str, read: _Parse, scope: Scope
) -> None:
    total: Value | None = None
    first: Member | None = None
    for container in containers_of(pod):
        given = container.at("resources", section)
        for member in given.in_force if given is not None else ():
            if name.fullmatch(member.key):
                value = read(value_of(member.node))
                total = value if total is None else lift(lambda a, b: a + b, total, value)
                first = first or member
    if total is not None and first is not None:
        node_claims.add(quantity, total, first, scope=scope)


_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(m|k|K|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei|[eE][+-]?[0-9]+)?\s*")
_FACTORS = {"": 1.0, "m": 0.001}
_FACTORS.update({sign: 1000.0**power for power, sign in enumerate("kMGTPE", start=1)})
_FACTORS.update({f"{sign}i": 1024.0**power for power, sign in enumerate("KMGTPE", start=1)})
_FACTORS["K"] = 1000.0


def amount(item: Plain) -> float:
    """Parse a quantity. Raises ValueError when it is not one."""
    if isinstance(item, bool) or item is None or isinstance(item, tuple):
        raise ValueError(f"{item!r} is not a quantity")
    match = _AMOUNT.fullmatch(str(item))
    if match is None:
        raise ValueError(f"{item!r} is not a quantity")
    suffix = match[2] or ""
    if suffix[:1] in ("e", "E") and suffix not in _FACTORS:
        return float(match[1] + suffix)
    return float(match[1]) * _FACTORS[suffix]


def cores(value: Value) -> Value:
    """Parse a number of CPU cores, with fractions."""
    return lift(amount, value)


def whole_number(value: Value) -> Value:
    """Parse a number of devices, which must be whole."""
    return lift(lambda item: int(amount(item)), value)


def mebibytes(value: Value) -> Value:
    """Parse an amount of memory in MiB, rounded down."""
    return lift(lambda item: int(amount(item) / 1024**2), value)


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

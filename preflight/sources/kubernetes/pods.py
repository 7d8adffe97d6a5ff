"""What the pods of a role ask for: devices, memory, volumes, network, and how they are placed and restarted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from preflight.job import Known, Plain, Scope, Unresolved, Value, as_int, lift, one_of
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.kubernetes.amounts import amount, cores, mebibytes, whole
from preflight.sources.kubernetes.kinds import Role
from preflight.sources.structured import Kind, Member, Node, NodeStating, value_of

_Read: TypeAlias = Callable[[Value], Value]

#: Device plugins' names for whole accelerators that hold one rank each.
GPU_RESOURCE = lazy_pattern(
    r"(?:nvidia|amd|aliyun)\.com/gpu|nvidia\.com/mig-[\w.-]+|habana\.ai/gaudi|huawei\.com/Ascend\w+"
)
_RDMA = lazy_pattern(
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
_GANG_SCHEDULER = lazy_pattern(
    r"volcano|yunikorn|kai-scheduler|runai-scheduler|koord-scheduler|.*(?:gang|cosched|kube-batch|plugins).*"
)


def state_pods(stating: NodeStating, role: Role, scope: Scope) -> None:
    """State everything the pods of one role ask for, in `scope`."""
    _replicas(stating, role, scope)
    state_labels(stating, role.template, scope)
    pod = role.pod
    if pod is None:
        return
    scheduler = pod.member("schedulerName")
    if scheduler is not None:
        claim = stating.say("pod_scheduler", value_of(scheduler.node), scheduler, scope=scope)
        if any(isinstance(item, str) and _GANG_SCHEDULER.fullmatch(item) for item in claim.alternatives):
            stating.say("gang", claim.value, scheduler, scope=scope)
    _given(stating, pod, scope)
    shm = _volumes(stating, pod, scope)
    for container in containers_of(pod):
        _container(stating, container, shm, scope)
    _devices(stating, pod, scope)
    _start_params(stating, role, scope)


def _start_params(stating: NodeStating, role: Role, scope: Scope) -> None:
    """What a Ray node announces of its own accord."""
    if role.start_params is not None:
        stating.given("ray_num_gpus", role.start_params.node.member("num-gpus"), as_int, scope=scope)


def containers_of(pod: Node) -> Iterator[Node]:
    """The containers of a pod that run for as long as it does."""
    listed = pod.at("containers")
    for item in listed.items if listed is not None else ():
        if item.kind is Kind.OBJECT:
            yield item


def state_labels(stating: NodeStating, holder: Node, scope: Scope) -> None:
    """What labels and annotations say about meshes and gangs."""
    for part in ("annotations", "labels"):
        found = holder.at("metadata", part)
        for member in found.in_force if found is not None else ():
            if member.key in _MESH:
                stating.say("mesh_injection", _text(value_of(member.node)), member, scope=scope)
            elif member.key in _GANG_LABELS:
                stating.say("gang", Known(member.key), member, scope=scope)


def _text(value: Value) -> Value:
    return lift(lambda item: str(item).lower() if isinstance(item, bool) else str(item), value)


def _replicas(stating: NodeStating, role: Role, scope: Scope) -> None:
    if role.member is not None:
        stating.say("pod_replicas", role.replicas, role.member, scope=scope)
        stating.say("pod_trains", Known(role.trains), role.member, scope=scope)
        return
    at = Member("template", role.template.start, role.template.start, role.template)
    if role.template.end > role.template.start:
        stating.say("pod_replicas", role.replicas, at, scope=scope)
        stating.say("pod_trains", Known(role.trains), at, scope=scope)


def _given(stating: NodeStating, pod: Node, scope: Scope) -> None:
    stating.given("host_network", pod.member("hostNetwork"), scope=scope)
    stating.given("restart_policy", pod.member("restartPolicy"), scope=scope)
    ipc = pod.member("hostIPC")
    if ipc is not None and value_of(ipc.node) != Known(False):
        stating.say("shm_mib", Unresolved("hostIPC: the node's own /dev/shm"), ipc, scope=scope)
    selector = pod.at("nodeSelector")
    for member in selector.in_force if selector is not None else ():
        value = lift(lambda item, key=member.key: f"{key}={_plain(item)}", value_of(member.node))
        stating.say("node_label", value, member, scope=scope)
        if member.key in _GPU_PRODUCT:
            stating.say("gpu_type", value_of(member.node), member, scope=scope)
    _affinity(stating, pod, scope)


def _affinity(stating: NodeStating, pod: Node, scope: Scope) -> None:
    """Labels that a required node affinity asks for; of several values one must hold."""
    terms = pod.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    if terms is None or len(terms.items) != 1:
        return
    expressions = terms.items[0].at("matchExpressions")
    for expression in expressions.items if expressions is not None else ():
        key, values = expression.text("key"), expression.member("values")
        if not key or values is None or expression.text("operator") != "In":
            continue
        scalars = [item.value for item in values.node.items if item.kind is Kind.SCALAR]
        if scalars and len(scalars) == len(values.node.items):
            value = one_of(f"{key}={_plain(item)}" for item in scalars)
            stating.say("node_label", value, values, scope=scope)


def _plain(item: Plain) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)


def _volumes(stating: NodeStating, pod: Node, scope: Scope) -> dict[str, tuple[Value, Member]]:
    """State host paths and claims; the volumes in memory, or of the node, come back by name."""
    sizes: dict[str, tuple[Value, Member]] = {}
    volumes = pod.at("volumes")
    for volume in volumes.items if volumes is not None else ():
        name = volume.text("name")
        path = volume.member("hostPath", "path")
        if path is not None:
            stating.say("host_path", value_of(path.node), path, scope=scope)
            sizes[name] = (Unresolved("a directory of the node"), path)
        claim = volume.member("persistentVolumeClaim", "claimName")
        read_only = volume.at("persistentVolumeClaim", "readOnly")
        if claim is not None and (read_only is None or read_only.value is not True):
            stating.say("shared_volume", value_of(claim.node), claim, scope=scope)
        empty = volume.member("emptyDir")
        if empty is not None:
            limit = empty.node.member("sizeLimit")
            if empty.node.text("medium") == "Memory" and limit is not None:
                sizes[name] = (mebibytes(value_of(limit.node)), limit)
            else:
                sizes[name] = (Unresolved("an emptyDir without a sizeLimit: as large as the node allows"), empty)
    return sizes


def _container(stating: NodeStating, container: Node, sizes: dict[str, tuple[Value, Member]], scope: Scope) -> None:
    stating.given("pod_image", container.member("image"), scope=scope)
    mounts = container.at("volumeMounts")
    for mount in mounts.items if mounts is not None else ():
        path = mount.text("mountPath").rstrip("/")
        if path in ("/dev/shm", "/dev", "/run/shm"):
            size, member = sizes.get(mount.text("name")) or (Unresolved("a volume of another kind"), None)
            member = member or mount.member("mountPath")
            if member is not None:
                stating.say("shm_mib", size, member, scope=scope)
    ports = container.at("ports")
    for port in ports.items if ports is not None else ():
        stating.given("host_port", port.member("hostPort"), as_int, scope=scope)
    context = container.at("securityContext")
    if context is not None:
        privileged = context.member("privileged")
        if privileged is not None and privileged.node.value is not False:
            stating.say("pod_capability", Known("privileged"), privileged, scope=scope)
        added = context.member("capabilities", "add")
        for item in added.node.items if added is not None else ():
            stating.say("pod_capability", value_of(item), Member("add", item.start, item.end, item), scope=scope)


def _devices(stating: NodeStating, pod: Node, scope: Scope) -> None:
    """Devices, cores and memory, over all containers of the pod."""
    _summed(stating, pod, "limits", GPU_RESOURCE, "pod_gpus", whole, scope)
    _summed(stating, pod, "requests", GPU_RESOURCE, "pod_gpu_requests", whole, scope)
    _requested(stating, pod, "cpu", "pod_cpu_requests", cores, scope)
    _requested(stating, pod, "memory", "pod_memory_requests_mib", mebibytes, scope)
    if not _any_unlimited(pod, "cpu"):
        _summed(stating, pod, "limits", re.compile("cpu"), "pod_cpus", cores, scope)
    if not _any_unlimited(pod, "memory"):
        _summed(stating, pod, "limits", re.compile("memory"), "pod_memory_mib", mebibytes, scope)
    for container in containers_of(pod):
        limits = container.at("resources", "limits") or container.at("resources", "requests")
        for member in limits.in_force if limits is not None else ():
            if _RDMA.fullmatch(member.key):
                value = lift(lambda item, key=member.key: f"{key}={int(amount(item))}", value_of(member.node))
                stating.say("pod_rdma", value, member, scope=scope)


def gpus_of(container: Node) -> tuple[Value, Member] | None:
    """The GPUs that one container is given, and where that stands; None where it names none."""
    limits = container.at("resources", "limits")
    found = [member for member in (limits.in_force if limits is not None else ()) if GPU_RESOURCE.fullmatch(member.key)]
    return (whole(value_of(found[0].node)), found[0]) if len(found) == 1 else None


def _requested(stating: NodeStating, pod: Node, name: str, quantity: str, read: _Read, scope: Scope) -> None:
    """What the scheduler looks for: each container's request, or its limit where it has no request."""
    found = [
        member
        for container in containers_of(pod)
        if (member := container.member("resources", "requests", name) or container.member("resources", "limits", name))
    ]
    if found:
        stating.say(quantity, _total([read(value_of(member.node)) for member in found]), found[0], scope=scope)


def _total(values: list[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = lift(lambda a, b: a + b, total, value)
    return total


def _any_unlimited(pod: Node, name: str) -> bool:
    return any(container.at("resources", "limits", name) is None for container in containers_of(pod))


def _summed(
    stating: NodeStating, pod: Node, section: str, name: re.Pattern[str], quantity: str, read: _Read, scope: Scope
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
        stating.say(quantity, total, first, scope=scope)

"""What stands between the pods of a job: meshes, host networks, RDMA devices."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job, Span
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.outcome import Confidence, Severity
from preflight_rules.cluster.workloads import KUBEFLOW, Role, Workload, workloads
from preflight_rules.reading import numbers, placed, quoted, texts, undecided

#: Namespaces of clusters and of documentation; a profile of a Kubeflow user is never called so.
_PLAIN_NAMESPACES = frozenset(
    ("", "default", "kubeflow", "kubeflow-system", "kube-system", "kube-public", "training-operator", "mpi-operator")
)
#: Namespaces that a platform without a mesh creates for its tenants (Amazon SageMaker HyperPod's task governance).
_OTHER_PLATFORM = ("hyperpod-",)
_OFF = frozenset(("false", "disabled", "none"))


@rule(
    "KUB008",
    "mesh-proxy-may-join-pods",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("kubeflow/pytorch-operator#258", "kubeflow/trainer#1636", "canonical/bundle-kubeflow#610"),
)
def mesh_proxy_may_join_pods(job: Job) -> Iterator[Verdict]:
    """The pods of a distributed job in a user namespace do not say that no mesh proxy may join them.

    What it checks:
        A Kubeflow job of two or more pods in a namespace of its own carries `sidecar.istio.io/inject: "false"` (or
        the switch of Linkerd or Kuma) as annotation or label of each role's pod template. Kubeflow creates user
        namespaces ("profiles") with injection on; `default`, the operators' own namespaces, and manifests without a
        namespace carry no sign of a mesh, and there nothing is said.

    Why it matters:
        The proxy takes over the ports of the pod. Ranks that dial the master before the proxies trust each other are
        refused, gRPC and NCCL bootstraps break inside mutual TLS, and the workers crash or wait for ever; the proxy
        also keeps a finished pod running.

    Example:
        A PyTorchJob with `namespace: alice` and pod templates without annotations.

    Fix:
        `metadata: {annotations: {sidecar.istio.io/inject: "false"}}` in the pod template of every role.

    Known limits:
        The annotation on the job itself is not counted, because the operators do not hand it to the pods. Whether the
        namespace is under injection is known to the cluster only: hence a warning of medium confidence,
        and none where the namespace is left to whoever applies the manifest.

    Evidence:
        kubeflow/pytorch-operator#258, kubeflow/trainer#1636, canonical/bundle-kubeflow#610.
    """
    met = False
    for workload in workloads(job):
        namespaces = workload.say("namespace")
        if workload.kind not in KUBEFLOW or not workload.group.endswith("kubeflow.org"):
            continue
        if not namespaces:
            continue
        met = True
        open_end = undecided(workload.id, (*namespaces, *(role.count for role in workload.roles)))
        pods = numbers(workload.pods())
        if open_end is not None:
            yield open_end
            continue
        name = (texts(namespaces[0].value) or ("",))[0]
        open_roles = [role for role in workload.roles if not _is_off(workload, role)]
        if name in _PLAIN_NAMESPACES or name.startswith(_OTHER_PLATFORM) or not pods or max(pods) < 2 or not open_roles:
            yield passed(workload.id)
            continue
        yield failed(
            workload.id,
            f"{quoted(workload.head)} starts {max(pods)} pods in {placed(namespaces[0])} and"
            f' {_named(open_roles)} no `sidecar.istio.io/inject: "false"`: under injection, as in every profile of'
            " Kubeflow, a mesh proxy joins each pod and blocks the ranks' first connections.",
            at=namespaces[0],
            also=tuple((role.count, role.name) for role in open_roles[:4]),
            remedy='Annotate the pod template of each role with `sidecar.istio.io/inject: "false"`.',
        )
    if not met:
        yield not_applicable(job.name, "no Kubeflow job says in which namespace it runs")


def _is_off(workload: Workload, role: Role) -> bool:
    """Whether the pod template says so; of the job's own annotations only a TrainJob's reach the pods."""
    said = [
        claim for claim in role.every("mesh_injection") if claim.scope.role == role.name or workload.kind == "TrainJob"
    ]
    return any(text.lower() in _OFF for claim in said for text in texts(claim.value))


def _named(roles: list[Role]) -> str:
    names = ", ".join(f"`{role.name}`" for role in roles)
    return f"{names} has" if len(roles) == 1 else f"{names} have"


#: Where the access to memory that adapters read and write is granted.
_LOCKING = frozenset(("IPC_LOCK", "CAP_IPC_LOCK", "SYS_RESOURCE", "ALL", "privileged"))


@rule(
    "KUB017",
    "rdma-device-without-locked-memory",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("Mellanox/k8s-rdma-shared-dev-plugin#20", "NVIDIA/nccl-tests#206", "openucx/ucx#8229"),
)
def rdma_device_without_locked_memory(job: Job) -> Iterator[Verdict]:
    """A pod asks for an RDMA device and may not lock memory for it.

    What it checks:
        A container that asks for an RDMA resource has the capability IPC_LOCK, or is privileged.

    Why it matters:
        RDMA pins its buffers. Where the runtime limits locked memory, registration fails ("ibv_reg_mr failed: Cannot
        allocate memory") or NCCL falls back to sockets.

    Example:
        `limits: {rdma/hca: 1}` and no `securityContext`.

    Fix:
        `securityContext: {capabilities: {add: [IPC_LOCK]}}`.

    Known limits:
        A runtime started without a limit of locked memory needs no capability. EFA devices are left out, because
        their nodes are set up so.

    Evidence:
        Documentation of k8s-rdma-shared-dev-plugin; NVIDIA/nccl-tests#206, openucx/ucx#8229.
    """
    met = False
    for workload in workloads(job):
        for role in workload.roles:
            devices = [c for c in role.every("pod_rdma") if "efa" not in c.spelling]
            if not devices:
                continue
            met = True
            capable = role.every("pod_capability")
            open_end = undecided(workload.id, (*devices, *capable))
            if open_end is not None:
                yield open_end
            elif any(text in _LOCKING for claim in capable for text in texts(claim.value)):
                yield passed(workload.id)
            else:
                yield failed(
                    workload.id,
                    f"{quoted(devices[0])} gives the pod an RDMA device, but no container may lock memory for it.",
                    at=devices[0],
                    remedy="Add `securityContext: {capabilities: {add: [IPC_LOCK]}}`.",
                )
    if not met:
        yield not_applicable(job.name, "no pod asks for an RDMA device")


@rule(
    "KUB018",
    "rdma-device-requested-and-unused",
    severity=Severity.WARNING,
    evidence=("areal-project/AReaL#639", "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"),
)
def rdma_device_requested_and_unused(job: Job) -> Iterator[Verdict]:
    """A pod asks for an RDMA device, and a variable tells NCCL not to use it.

    What it checks:
        Where a pod asks for an RDMA resource, neither `NCCL_IB_DISABLE=1` nor `NCCL_NET=Socket` is set in it.

    Why it matters:
        The traffic of all ranks goes over TCP, four to five times slower in a reported case, while the adapter that
        was asked for stands idle and keeps others from being scheduled.

    Example:
        `limits: {rdma/hca: 1}` with `NCCL_IB_DISABLE: "1"`.

    Fix:
        Remove the variable, or the device.

    Known limits:
        Variables that the image sets are not seen.

    Evidence:
        areal-project/AReaL#639; NCCL documentation, environment variables.
    """
    met = False
    for workload in workloads(job):
        for role in workload.roles:
            devices = role.every("pod_rdma")
            if not devices:
                continue
            met = True
            off = [c for n in ("NCCL_IB_DISABLE", "NCCL_NET") for c in role.every(f"env.{n}")]
            off += [c for _, scope in workload.launches() for c in job.setting("env.NCCL_IB_DISABLE", scope)]
            open_end = undecided(workload.id, off)
            blocking = [c for c in off if _turns_off(c.quantity, texts(c.value))]
            if open_end is not None:
                yield open_end
            elif blocking:
                yield failed(
                    workload.id,
                    f"{quoted(blocking[0])} keeps NCCL off the device that {placed(devices[0])} asks for.",
                    at=blocking[0],
                    also=((devices[0], "the device"),),
                    remedy="Remove the variable, or do not ask for the device.",
                )
            else:
                yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no pod asks for an RDMA device")


def _turns_off(quantity: str, values: tuple[str, ...]) -> bool:
    wanted = {"1"} if quantity == "env.NCCL_IB_DISABLE" else {"socket"}
    return bool(values) and {value.strip().lower() for value in values} <= wanted


@rule(
    "KUB019",
    "rdma-devices-mounted-beside-plugin",
    severity=Severity.WARNING,
    evidence=("aws-samples/aws-do-eks#63",),
)
def rdma_devices_mounted_beside_plugin(job: Job) -> Iterator[Verdict]:
    """A pod mounts all RDMA devices of its node beside the ones that a device plugin gives it.

    What it checks:
        A pod that asks for an RDMA resource mounts neither /dev/infiniband nor a device below it from the node.

    Why it matters:
        The mount hides what the plugin put there: the pod sees adapters that it was not given, with the permissions of
        none, and NCCL picks one it may not open, or two pods use one.

    Example:
        `limits: {rdma/hca: 1}` and `hostPath: {path: /dev/infiniband}`.

    Fix:
        Remove the hostPath volume.

    Known limits:
        A privileged pod that wants every adapter is told too: there the resource is what can go.

    Evidence:
        aws-samples/aws-do-eks#63.
    """
    met = False
    told: set[Span] = set()
    for workload in workloads(job):
        for role in workload.roles:
            devices = role.every("pod_rdma")
            paths = [claim for claim in role.every("host_path") if claim.span not in told]
            if not devices or not paths:
                continue
            # Pod templates that share one anchor share the volume too.
            told.update(claim.span for claim in paths)
            met = True
            open_end = undecided(workload.id, paths)
            mounted = [c for c in paths if any(t.startswith("/dev/infiniband") for t in texts(c.value))]
            if open_end is not None:
                yield open_end
            elif mounted:
                yield failed(
                    workload.id,
                    f"{quoted(mounted[0])} mounts the node's RDMA devices over those of {placed(devices[0])}.",
                    at=mounted[0],
                    also=((devices[0], "given by the plugin"),),
                    remedy="Remove the hostPath volume: the device plugin brings the devices.",
                )
            else:
                yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no pod has both an RDMA device and a directory of the node")

"""The network of pods: service meshes and RDMA devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from preflight._util.hostnames import host_of
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Span, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import items, numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import argument_of, placed, quoted
from preflight_rules.kubernetes.workloads import KUBEFLOW, Role, Workload, workloads

#: System and example namespaces, which are never a Kubeflow user's profile.
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
    otherwise="no Kubeflow job names its namespace",
)
def mesh_proxy_may_join_pods(job: Job) -> Iterator[Verdict]:
    """The pods of a distributed job in a user namespace do not disable the sidecar of a service mesh.

    What it checks: A Kubeflow job of two or more pods in a user namespace carries `sidecar.istio.io/inject: "false"`
    (or the switch of Linkerd or Kuma) as annotation or label of each role's pod template. Kubeflow creates user
    namespaces ("profiles") with injection on; `default`, the operators' own namespaces, namespaces that the files make
    without such a label, and manifests without a namespace show no sign of a mesh, so nothing is reported there.

    Why it matters: The proxy takes over the ports of the pod. The proxies reject ranks that dial the master before they
    trust each other, the bootstraps of gRPC and NCCL break under mutual TLS, and the workers crash or wait forever; the
    proxy also keeps a finished pod running.

    Example: A PyTorchJob with `namespace: alice` and pod templates without annotations.

    Fix: `metadata: {annotations: {sidecar.istio.io/inject: "false"}}` in the pod template of every role.

    Known limits: The annotation on the job itself is not counted, because the operators do not pass it on to the pods.
    Where the files do not make the namespace, only the cluster shows whether it has injection: then this is
    informational.
    """
    for workload in workloads(job):
        namespaces = workload.in_force("namespace")
        if workload.kind not in KUBEFLOW or not workload.group.endswith("kubeflow.org") or not namespaces:
            continue
        pods = numbers(workload.pods())
        if undecided_verdict := undecided(workload.id, (*namespaces, *(role.count for role in workload.roles))):
            yield undecided_verdict
            continue
        name = (texts(namespaces[0].value) or ("",))[0]
        open_roles = [role for role in workload.roles if not _is_off(workload, role)]
        without = {value for claim in workload.in_force("namespace_without_mesh") for value in claim.alternatives}
        if without == {True}:
            open_roles = []
        if name in _PLAIN_NAMESPACES or name.startswith(_OTHER_PLATFORM) or not pods or max(pods) < 2 or not open_roles:
            yield passed(workload.id)
            continue
        yield failed(
            workload.id,
            f"{quoted(workload.head)} starts {max(pods)} pods in {placed(namespaces[0])} and"
            f' {_named(open_roles)} no `sidecar.istio.io/inject: "false"`: with injection, as in every profile of'
            " Kubeflow, each pod gets a mesh proxy, which blocks the ranks' first connections.",
            at=namespaces[0],
            also=tuple((role.count, role.name) for role in open_roles[:4]),
            remedy='Annotate the pod template of each role with `sidecar.istio.io/inject: "false"`.',
            severity=None if without == {False} else Severity.INFO,
        )


def _is_off(workload: Workload, role: Role) -> bool:
    """Whether the pod template disables injection; only a TrainJob passes its own annotations to the pods."""
    stated = [
        claim for claim in role.every("mesh_injection") if claim.scope.role == role.name or workload.kind == "TrainJob"
    ]
    return any(text.lower() in _OFF for claim in stated for text in texts(claim.value))


def _named(roles: list[Role]) -> str:
    names = ", ".join(f"`{role.name}`" for role in roles)
    return f"{names} has" if len(roles) == 1 else f"{names} have"


#: Capabilities that allow a container to lock memory.
_LOCKING = frozenset(("IPC_LOCK", "CAP_IPC_LOCK", "SYS_RESOURCE", "ALL", "privileged"))


@rule(
    "KUB017",
    "rdma-device-without-locked-memory",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    otherwise="no pod requests an RDMA device",
)
def rdma_device_without_locked_memory(job: Job) -> Iterator[Verdict]:
    """A pod requests an RDMA device but may not lock memory.

    What it checks: A container that requests an RDMA resource has the capability IPC_LOCK, or is privileged.

    Why it matters: RDMA pins its buffers. If the runtime limits locked memory, registration fails ("ibv_reg_mr failed:
    Cannot allocate memory") or NCCL falls back to sockets.

    Example: `limits: {rdma/hca: 1}` and no `securityContext`.

    Fix: `securityContext: {capabilities: {add: [IPC_LOCK]}}`.

    Known limits: A runtime started without a limit of locked memory, as containerd usually is, needs no capability;
    hence information only. EFA devices are left out, because their nodes are set up so.
    """
    for workload in workloads(job):
        for role in workload.roles:
            devices = [c for c in role.every("pod_rdma") if "efa" not in c.spelling]
            if not devices:
                continue
            capable = role.every("pod_capability")
            verdict = undecided(workload.id, (*devices, *capable))
            if verdict is None and not any(text in _LOCKING for claim in capable for text in texts(claim.value)):
                verdict = failed(
                    workload.id,
                    f"{quoted(devices[0])} gives the pod an RDMA device, but no container may lock the memory that"
                    f" RDMA needs.",
                    at=devices[0],
                    remedy="Add `securityContext: {capabilities: {add: [IPC_LOCK]}}`.",
                )
            yield verdict or passed(workload.id)


@rule(
    "KUB018", "rdma-device-requested-and-unused", severity=Severity.WARNING, otherwise="no pod requests an RDMA device"
)
def rdma_device_requested_and_unused(job: Job) -> Iterator[Verdict]:
    """A pod requests an RDMA device, but a variable keeps NCCL from using it.

    What it checks: If a pod requests an RDMA resource, neither `NCCL_IB_DISABLE=1` nor `NCCL_NET=Socket` is set in it.

    Why it matters: The traffic of all ranks goes over TCP, four to five times slower in a reported case, while the
    requested adapter sits idle and is not available to other pods.

    Example: `limits: {rdma/hca: 1}` with `NCCL_IB_DISABLE: "1"`.

    Fix: Remove the variable, or the device.

    Known limits: Variables that the image sets are not seen.
    """
    for workload in workloads(job):
        for role in workload.roles:
            devices = role.every("pod_rdma")
            if not devices:
                continue
            off = [c for n in ("NCCL_IB_DISABLE", "NCCL_NET", "FI_PROVIDER") for c in role.every(f"env.{n}")]
            off += [c for _, scope in workload.launches() for c in job.setting("env.FI_PROVIDER", scope)]
            off += [c for _, scope in workload.launches() for c in job.setting("env.NCCL_IB_DISABLE", scope)]
            verdict = undecided(workload.id, off)
            blocking = [c for c in off if _turns_off(c.quantity, texts(c.value))]
            if verdict is None and blocking:
                verdict = failed(
                    workload.id,
                    f"{quoted(blocking[0])} keeps NCCL off the device that {placed(devices[0])} requests.",
                    at=blocking[0],
                    also=((devices[0], "the device"),),
                    remedy="Remove the variable, or do not ask for the device.",
                )
            yield verdict or passed(workload.id)


#: Values that keep ranks off an RDMA device, by the variable's quantity.
_WITHOUT_DEVICE = {
    "env.NCCL_IB_DISABLE": frozenset(("1",)),
    "env.FI_PROVIDER": frozenset(("tcp", "sockets", "tcp;ofi_rxm")),
}


def _turns_off(quantity: str, values: tuple[str, ...]) -> bool:
    wanted = _WITHOUT_DEVICE.get(quantity, {"socket"})
    return bool(values) and {value.strip().lower() for value in values} <= wanted


@rule(
    "KUB019",
    "rdma-devices-mounted-beside-plugin",
    severity=Severity.WARNING,
    otherwise="no pod has both an RDMA device and a host path",
)
def rdma_devices_mounted_beside_plugin(job: Job) -> Iterator[Verdict]:
    """A pod that gets RDMA devices from a device plugin also mounts all RDMA devices of the node.

    What it checks: A pod that requests an RDMA resource mounts neither /dev/infiniband nor a device below it from the
    node.

    Why it matters: The mount hides what the plugin put there: the pod sees adapters that it was not given, without
    permissions for them, and NCCL picks one that it may not open, or two pods use the same one.

    Example: `limits: {rdma/hca: 1}` and `hostPath: {path: /dev/infiniband}`.

    Fix: Remove the hostPath volume.

    Known limits: A privileged pod that needs every adapter is reported too; it can drop the resource request instead.
    """
    reported: set[Span] = set()
    for workload in workloads(job):
        for role in workload.roles:
            devices = role.every("pod_rdma")
            paths = [claim for claim in role.every("host_path") if claim.span not in reported]
            if not devices or not paths:
                continue
            # Pod templates that share a YAML anchor share the volume.
            reported.update(claim.span for claim in paths)
            verdict = undecided(workload.id, paths)
            mounted = [c for c in paths if any(t.startswith("/dev/infiniband") for t in texts(c.value))]
            if verdict is None and mounted:
                verdict = failed(
                    workload.id,
                    f"{quoted(mounted[0])} mounts the node's RDMA devices over those of {placed(devices[0])}.",
                    at=mounted[0],
                    also=((devices[0], "given by the plugin"),),
                    remedy="Remove the hostPath volume: the device plugin provides the devices.",
                )
            yield verdict or passed(workload.id)


#: Values by which libfabric or NCCL is told to use a device, by variable.
_NEEDS_DEVICE = {
    "FI_PROVIDER": ("efa", "verbs"),
    "NCCL_NET": ("ib", "aws libfabric"),
    "FI_EFA_USE_DEVICE_RDMA": ("1",),
}


@rule(
    "KUB054",
    "rdma-set-up-and-not-requested",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no pod with GPUs chooses an RDMA device",
)
def rdma_set_up_and_not_requested(job: Job) -> Iterator[Verdict]:
    """The variables of a pod choose EFA or InfiniBand, but the pod requests no such device.

    What it checks: A pod with `FI_PROVIDER=efa`, `FI_EFA_USE_DEVICE_RDMA=1` or `NCCL_NET=IB` asks for a device that its
    plugin offers (`vpc.amazonaws.com/efa`, `rdma/...`), uses the host's devices, or is privileged.

    Why it matters: Without the resource the container sees no device. NCCL stops because the network that it was told
    to use is missing, or falls back to TCP and trains several times slower.

    Example: `FI_PROVIDER: efa` and `limits: {nvidia.com/gpu: 8}` without `vpc.amazonaws.com/efa`.

    Fix: Request the device: `vpc.amazonaws.com/efa: 4`, as many as the instance has.

    Known limits: An admission webhook, or a claim of dynamic resource allocation, may add the device.
    """
    for workload in workloads(job):
        for role in workload.roles:
            scopes = [scope for owner, scope in workload.launches() if owner.name == role.name]
            variables = [
                claim
                for name in _NEEDS_DEVICE
                for claim in (*role.every(f"env.{name}"), *(c for s in scopes for c in job.setting(f"env.{name}", s)))
            ]
            needing = [claim for claim in variables if _chooses_device(claim)]
            opened = [claim for claim in variables if isinstance(claim.value, Unresolved)]
            if not role.gpus or not variables:
                continue
            has_device = bool(role.every("pod_rdma")) or _sees_devices(role)
            if needing and not has_device:
                yield failed(
                    workload.id,
                    f"{quoted(needing[0])} chooses a device that the {role.name or 'pod'} does not request.",
                    at=needing[0],
                    remedy="Request the device beside the GPUs, such as `vpc.amazonaws.com/efa: 4` or `rdma/ib: 1`.",
                )
            elif opened and not has_device:
                yield unknown(workload.id, f"{quoted(opened[0])} is known only at run time", at=opened[0])
            else:
                yield passed(workload.id)


def _sees_devices(role: Role) -> bool:
    """Whether a pod may see the node's devices without a request: it is privileged, or mounts them."""
    capabilities = {text for claim in role.every("pod_capability") for text in texts(claim.value)}
    mounted = [text for claim in role.every("host_path") for text in texts(claim.value)]
    return "privileged" in capabilities or any(map(_holds_devices, mounted))


def _holds_devices(folder: str) -> bool:
    """Whether a folder of the node holds its RDMA devices; `/dev/shm` has none."""
    return folder.rstrip("/") == "/dev" or folder.startswith("/dev/inf")


def _chooses_device(claim: Claim) -> bool:
    wanted = _NEEDS_DEVICE[claim.quantity.removeprefix("env.")]
    found = [text.strip().lower() for text in texts(claim.value)]
    return bool(found) and all(text in wanted for text in found)


#: The claims that name hosts of the job.
_NAMING = ("master_addr", "hosts", "ps_server_endpoints", "ps_worker_endpoints")


@rule(
    "KUB033",
    "host-name-of-no-pod",
    severity=Severity.ERROR,
    otherwise="no launch in a pod names a host that looks like a pod of its object",
)
def host_name_of_no_pod(job: Job) -> Iterator[Verdict]:
    """A launch line names a host that looks like a pod of its own object, and the object has no such pod.

    What it checks: Where the address of the rendezvous, or a node or server in a list, begins with the name of the
    object that the launch line is in, it is the name of one of its pods, as the operator makes them, or of a service in
    the files: `JOB-master-0` for a PyTorchJob, `JOB-TASK-0.JOB` for a Volcano job, `JOB-ROLE-0-0.JOB` for a JobSet,
    `NAME-0.SERVICENAME` for a StatefulSet.

    Why it matters: The name never resolves. Every rank waits for the rendezvous until it times out.

    Example: `--master_addr=train-head-0.train` in a Volcano job `train` whose tasks are `master` and `worker`.

    Fix: Use a name from the list in the message.

    Known limits: A service of that name may be in files that were not given; the finding is a warning unless the name
    is in the domain that the operator names after the object. Pods with a DNS configuration, a host name or the host's
    network are not judged.
    """
    everyone = sorted({text for claim in job.about("workload_name") for text in texts(claim.value)}, key=len)
    for workload in workloads(job):
        names = texts(job_value(workload.in_force("workload_name")))
        if not workload.hosts or not names:
            continue
        for _, scope in workload.launches():
            launch = job.launch(scope.launch)
            for claim in (claim for quantity in _NAMING for claim in job.setting(quantity, scope)):
                named = [host_of(text) for text in (*texts(claim.value), *items(claim.value))]
                own = [host for host in named if _owner(host, everyone) == names[0]]
                wrong = next((host for host in own if not workload.has_host(host)), None)
                unnamed = workload.in_force("pods_unnamed")
                if undecided_verdict := undecided(scope.launch, (claim,), launch):
                    yield undecided_verdict
                elif own and unnamed:
                    yield failed(
                        scope.launch,
                        f"{quoted(claim)} names a pod of {quoted(workload.head)} `{names[0]}`, whose pods get no names:"
                        f" {placed(unnamed[0])}.",
                        at=claim,
                        also=((unnamed[0], "switches them off"),),
                        remedy="Remove it: by default JobSet gives its pods names.",
                        waits_at="rendezvous",
                    )
                elif wrong is not None:
                    yield _named_wrongly(workload, names[0], claim, wrong)
                elif own:
                    yield passed(scope.launch)


def _named_wrongly(workload: Workload, name: str, claim: Claim, wrong: str) -> Verdict:
    hosts = workload.hosts
    # The operator names this domain after the object, and every name in it.
    in_own_domain = wrong.partition(".")[2].partition(".")[0] == name and all(f".{name}" in host for host in hosts[:1])
    of_a_role = "." not in wrong and re.fullmatch(rf"{re.escape(name)}-\w+-\d+", wrong) is not None
    certain = in_own_domain or (of_a_role and "." not in hosts[0])
    shown = ", ".join(f"`{host.replace('{i}', '0')}`" for host in hosts[:4])
    return failed(
        claim.scope.launch,
        f"{quoted(claim)} names `{wrong}`, but {quoted(workload.head)} `{name}` has no pod of this name. Its pods"
        f" have names such as {shown}.",
        at=claim,
        also=((argument_of(claim) or workload.head, "the name" if argument_of(claim) else "the object"),),
        remedy="Use one of these names.",
        severity=None if certain else Severity.WARNING,
        waits_at="rendezvous",
    )


def _owner(host: str, names: Sequence[str]) -> str:
    """The object whose pod a host looks like: that with the longest name that the host begins with."""
    return next((name for name in reversed(names) if host.startswith(f"{name}-")), "")


#: The plugin of Volcano that gives pods names and lists of each other, and those that add it.
_CONNECTING = frozenset(("svc", "tensorflow", "mpi", "pytorch", "ray"))


@rule(
    "KUB061",
    "pod-address-without-svc",
    severity=Severity.ERROR,
    otherwise="no pod of a Volcano job looks for the address of another",
)
def pod_address_without_svc(job: Job) -> Iterator[Verdict]:
    """The pods of a Volcano job look for each other's addresses, and the job has no plugin that provides them.

    What it checks: Where a task's command, a script that it runs or a variable of its pods reads a file below
    /etc/volcano or a variable such as VC_WORKER_HOSTS, or names a pod as `JOB-TASK-0.JOB`, the job has the plugin
    `svc`, or one that adds it (pytorch, tensorflow, mpi, ray).

    Why it matters: Only `svc` mounts these files, sets these variables and gives the pods names. Without it the address
    is empty or does not resolve: the script stops, or every pod waits for the rendezvous until it times out.

    Example: `MASTER=$(head -n 1 /etc/volcano/master.host)` in a job with `plugins: {env: []}`.

    Fix: Add `svc: []` to `spec.plugins`.

    Known limits: A line of a Python program, or of a script under a condition, makes the finding a warning. A script
    that asks first whether the file or variable is there is not judged. Names that a script composes are not seen.
    """
    for workload in workloads(job):
        for claim in workload.in_force("pod_address"):
            plugins = workload.in_force("volcano_plugins")
            verdict = undecided(workload.id, plugins)
            if verdict is None and _CONNECTING.isdisjoint(items(plugins[0].value)):
                verdict = failed(
                    workload.id,
                    f"{placed(claim)} is provided by Volcano's plugin svc alone, which {quoted(workload.head)} does not"
                    " have: a pod does not find the others.",
                    at=claim,
                    also=((plugins[0], "without svc"),),
                    remedy="Add `svc: []` to spec.plugins.",
                    severity=Severity.WARNING if claim.condition else None,
                    waits_at="rendezvous",
                )
            yield verdict or passed(workload.id)

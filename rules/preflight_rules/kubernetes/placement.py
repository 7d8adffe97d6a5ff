"""The placement and network of pods: machine types, quotas, devices, network policies, service meshes, RDMA."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from preflight._util.hostnames import host_of
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Span, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import items, numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import argument_of, counted, joined, placed, quoted
from preflight_rules.data_tables import instance_gpus
from preflight_rules.kubernetes.workloads import KUBEFLOW, Role, Workload, workloads

#: Least length of a word that may be misspelt; shorter words often distinguish queues.
_MIN_WORD_LENGTH = 4
_INSTANCE_LABELS = ("node.kubernetes.io/instance-type=", "beta.kubernetes.io/instance-type=")


@rule(
    "KUB022",
    "pod-larger-than-instance",
    severity=Severity.ERROR,
    otherwise="no pod with GPUs selects a known machine type",
)
def pod_larger_than_instance(job: Job) -> Iterator[Verdict]:
    """A pod requests more GPUs than its instance type has.

    What it checks: If a node selector or a required node affinity names the instance type, the pod's GPU limit is at
    most the number of GPUs of that type (of every type, if several are named).

    Why it matters: No node ever fits: the pods stay pending ("Insufficient nvidia.com/gpu"), and an autoscaler adds
    nothing.

    Example: `nvidia.com/gpu: 8` with `node.kubernetes.io/instance-type: g5.12xlarge`, which has 4.

    Fix: Request what the machine has, or name another machine type.

    Known limits: Time-slicing announces more GPUs than there are; MIG instances are not counted. Types that are not in
    the table are not judged.
    """
    for workload in workloads(job):
        for role in workload.roles:
            # A GPU with MIG instances counts several times.
            gpus = tuple(claim for claim in role.setting("pod_gpus") if "/mig-" not in claim.spelling)
            labels = [claim for claim in role.about("node_label") if _instance_sizes(claim)]
            if not gpus or not labels:
                continue
            verdict = undecided(workload.id, gpus)
            requested, available = numbers(job_value(gpus)), max(_instance_sizes(labels[0]))
            if verdict is None and requested and min(requested) > available:
                verdict = failed(
                    workload.id,
                    f"{quoted(gpus[0])} requests more than the {counted(available, 'GPU')} of {placed(labels[0])}.",
                    at=gpus[0],
                    also=((labels[0], counted(available, "GPU")),),
                    remedy=f"Request {available}, or name a machine type with {min(requested)}.",
                )
            yield verdict or passed(workload.id)


def _instance_sizes(claim: Claim) -> tuple[int, ...]:
    """Return the number of GPUs of each machine type that a label names; empty if a type is unknown."""
    sizes = []
    for text in texts(claim.value):
        prefix = next((label for label in _INSTANCE_LABELS if text.startswith(label)), None)
        size = instance_gpus(text.removeprefix(prefix)) if prefix is not None else None
        if size is None:
            return ()
        sizes.append(size)
    return tuple(sizes)


@rule(
    "KUB023",
    "job-larger-than-quota",
    severity=Severity.ERROR,
    otherwise="no GPU quota applies to a job that requests GPUs",
)
def job_larger_than_quota(job: Job) -> Iterator[Verdict]:
    """A job requests more GPUs than a quota in its files allows.

    What it checks: The GPUs of all pods of a job together do not exceed the ResourceQuota of its namespace, or the
    nominal quota of a Kueue ClusterQueue without a cohort, if the files contain it. A ResourceQuota of the job's
    namespace is also found in another file of the same folder.

    Why it matters: Under a ResourceQuota the last pods are rejected while the first hold their GPUs; a queue keeps the
    job waiting forever.

    Example: `requests.nvidia.com/gpu: "8"` and a job of two pods with 8 GPUs each.

    Fix: A smaller job, or a larger quota.

    Known limits: Judged only if the files contain exactly one such quota, in the same namespace if both name one. A
    quota with scopes counts only some pods and is not judged.
    """
    quotas = job.about("quota_gpus")
    for workload in workloads(job) if len({claim.scope.launch for claim in quotas}) == 1 else ():
        if not _may_share_namespace(job, workload, quotas[0]):
            continue
        verdict = _quota_verdict(workload, quotas, "never grants more")
        if verdict is not None:
            # A quota or a job without a namespace may be applied to any namespace.
            namespaces = [claim for claim in job.about("namespace") if claim.scope == quotas[0].scope]
            is_certain = bool(namespaces and workload.setting("namespace"))
            yield verdict if is_certain or verdict.severity is None else replace(verdict, severity=Severity.WARNING)


def _quota_verdict(workload: Workload, quotas: Sequence[Claim], limit_text: str) -> Verdict | None:
    """Return the verdict on whether all pods together request more GPUs than a quota; None if they request no GPUs."""
    pods = [(role, role.setting("pod_gpus") or role.setting("pod_gpu_requests")) for role in workload.roles]
    requesting = [(role, gpus) for role, gpus in pods if gpus]
    if not requesting:
        return None
    undecided_verdict = undecided(
        workload.id, (*quotas, *(claim for role, gpus in requesting for claim in (role.count, *gpus)))
    )
    if undecided_verdict is not None:
        return undecided_verdict
    if not all(numbers(role.count.value) and numbers(job_value(gpus)) for role, gpus in requesting):
        reason = "the number of GPUs that its pods request is not a whole number"
        return unknown(workload.id, reason, at=requesting[0][1][0])
    requests = [min(numbers(role.count.value)) * min(numbers(job_value(gpus))) for role, gpus in requesting]
    limit = max(numbers(job_value(quotas)), default=sum(requests))
    if sum(requests) <= limit:
        return passed(workload.id)
    largest = requesting[requests.index(max(requests))]
    return failed(
        workload.id,
        f"{quoted(workload.head)} requests {sum(requests)} GPUs in total, but {placed(quotas[0])} {limit_text} than"
        f" {limit}.",
        at=largest[1][0],
        also=((quotas[0], "the quota"),),
        remedy="Make the job smaller, or the quota larger.",
        severity=Severity.WARNING if _starts_with_fewer(workload) else Severity.ERROR,
    )


def _starts_with_fewer(workload: Workload) -> bool:
    """Return whether an object may run with fewer pods: it is elastic, its gang is smaller, or its pods are
    independent.
    """
    pods = numbers(workload.pods())
    is_small_gang = any(
        size and pods and min(size) < max(pods)
        for size in (numbers(claim.value) for claim in workload.claims.of(workload.id, "gang_min"))
    )
    is_elastic = any(workload.job.about("min_nodes", scope) for _, scope in workload.launches())
    is_independent = workload.kind == "Deployment" or (workload.kind == "Job" and workload.group == "batch")
    return is_small_gang or is_elastic or is_independent


@rule(
    "KUB060",
    "queue-name-misspelt",
    severity=Severity.WARNING,
    otherwise="no job names an undefined queue while the files define a similar one",
)
def queue_name_misspelt(job: Job) -> Iterator[Verdict]:
    """A job names a queue that no file defines, and its namespace has a queue with almost the same name.

    What it checks: The label `kueue.x-k8s.io/queue-name` of a job is the name of a LocalQueue of its namespace, if the
    job's file or another file in its folder defines LocalQueues there and the name of one is almost the same: one word
    differs by one character.

    Why it matters: Kueue keeps the job suspended until a queue of that name exists. No pod is created, and no pod event
    gives the reason.

    Example: `kueue.x-k8s.io/queue-name: trainings` beside a LocalQueue `training`.

    Fix: The name of the LocalQueue.

    Known limits: A queue with that name may exist on the cluster, which is not checked.
    """
    for workload in workloads(job):
        names_of_job, definitions = workload.setting("queue_name"), workload.setting("queue_defined")
        names = {text: claim for claim in definitions for text in texts(claim.value)}
        if not names_of_job or not names:
            continue
        claim = names_of_job[0]
        if isinstance(claim.value, Unresolved):
            yield unknown(workload.id, f"{quoted(claim)} depends on {claim.value.why}", at=claim)
            continue
        requested = texts(claim.value)
        similar = [name for text in requested for name in sorted(names) if _is_misspelt(text, name)]
        if any(text in names for text in requested):
            yield passed(workload.id)
        elif similar:
            yield failed(
                workload.id,
                f"the queue in {quoted(claim)} is not defined in these files; {similar[0]} "
                f"({names[similar[0]].span.path}:{names[similar[0]].span.line}) is probably meant. Kueue keeps the "
                "job suspended until the queue exists.",
                at=claim,
                also=((names[similar[0]], "a queue of this namespace"),),
                remedy=f"Write {similar[0]}.",
            )


def _is_misspelt(written: str, name: str) -> bool:
    """Return whether a name has a typing mistake in one word.

    `gpu-h100` and `gpu-h200` are different queues, and so are `team-a` and `team-b`.
    """
    words, other_words = re.split(r"[-_.]", written), re.split(r"[-_.]", name)
    differences = [pair for pair in zip(words, other_words, strict=False) if pair[0] != pair[1]]
    if len(words) != len(other_words) or len(differences) != 1:
        return False
    first, second = differences[0]
    if min(len(first), len(second)) < _MIN_WORD_LENGTH or re.search(r"\d", first + second):
        return False
    return _is_one_edit(first, second)


def _is_one_edit(first: str, second: str) -> bool:
    """Return whether two different words differ in one character, or in two swapped adjacent characters."""
    shorter, longer = sorted((first, second), key=len)
    first_difference = next(
        (index for index, character in enumerate(shorter) if character != longer[index]), len(shorter)
    )
    if len(longer) != len(shorter):
        return len(longer) == len(shorter) + 1 and shorter[first_difference:] == longer[first_difference + 1 :]
    is_swap = longer[first_difference : first_difference + 2] == shorter[first_difference : first_difference + 2][::-1]
    return shorter[first_difference + 1 :] == longer[first_difference + 1 :] or (
        is_swap and shorter[first_difference + 2 :] == longer[first_difference + 2 :]
    )


@rule(
    "KUB030",
    "job-larger-than-queue",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no job with GPUs names a queue whose quota is in the files",
)
def job_larger_than_queue(job: Job) -> Iterator[Verdict]:
    """A job requests more GPUs than its queue has.

    What it checks: The GPUs of all pods of a job with the label `kueue.x-k8s.io/queue-name` are at most the nominal
    quotas of that LocalQueue's ClusterQueue, if both are in the files and the ClusterQueue has no cohort. The GPUs of a
    Volcano job are at most the capability of its queue.

    Why it matters: Kueue and Volcano admit a job as a whole. One that is larger than its queue waits forever.

    Example: `nominalQuota: 16` for `nvidia.com/gpu`, and a JobSet of four pods with 8 GPUs each.

    Fix: A smaller job, a larger quota, or a cohort to borrow from.

    Known limits: Jobs that may start with fewer pods (partial admission, elastic jobs) are not judged.
    """
    for workload in workloads(job):
        quotas = workload.setting("queue_gpus")
        verdict = _quota_verdict(workload, quotas, "of its queue never admits more") if quotas else None
        if verdict is not None:
            yield verdict


@rule(
    "KUB031",
    "compute-domain-larger-than-job",
    severity=Severity.WARNING,
    otherwise="no pod claims a channel of a ComputeDomain",
)
def compute_domain_larger_than_job(job: Job) -> Iterator[Verdict]:
    """A ComputeDomain waits for more nodes than the job has pods.

    What it checks: `numNodes` of a ComputeDomain is at most the number of pods that claim a channel of it.

    Why it matters: A pod of the domain starts when `numNodes` nodes have joined, and a node joins when a pod of the
    domain is placed on it. With fewer pods, all pods wait in ContainerCreating.

    Example: `numNodes: 18`, and a JobSet of 16 pods that name its claim template.

    Fix: Set `numNodes` to the number of pods, or to 0 if the driver allows it.

    Known limits: Drivers from 25.8 on need not wait for all nodes. A pod is assumed to run on one node of the domain.
    """
    for workload in workloads(job):
        members = [(role, claims[0]) for role in workload.roles if (claims := role.setting("compute_domain"))]
        if not members:
            continue
        domain = members[0][1]
        pods = workload.pods(tuple(role for role, _ in members))
        counts = [role.count for role, _ in members]
        if undecided_verdict := undecided(workload.id, (domain, *counts)):
            yield undecided_verdict
            continue
        expected, pod_counts = numbers(domain.value), numbers(pods)
        if expected and pod_counts and min(expected) > max(pod_counts):
            yield failed(
                workload.id,
                f"{quoted(domain)} waits for {min(expected)} nodes, but {placed(counts[0])} starts only"
                f" {max(pod_counts)} pods that join it.",
                at=domain,
                also=((counts[0], "the pods"),),
                remedy="Set numNodes to the number of pods.",
            )
        else:
            yield passed(workload.id)


def _may_share_namespace(job: Job, workload: Workload, other: Claim) -> bool:
    """Return whether an object may be in the same namespace as the job."""
    other_namespaces = [claim for claim in job.about("namespace") if claim.scope == other.scope]
    namespaces = workload.setting("namespace")
    return not other_namespaces or not namespaces or other_namespaces[0].value == namespaces[0].value


@rule(
    "KUB024",
    "network-policy-blocks-ranks",
    severity=Severity.WARNING,
    otherwise="no network policy in a job's namespace denies all traffic",
)
def network_policy_blocks_ranks(job: Job) -> Iterator[Verdict]:
    """A network policy blocks all connections to the pods of a job.

    What it checks: No NetworkPolicy of the job's namespace, in its file or in the same folder, selects all pods and
    allows no ingress, or ingress only from other namespaces, unless another policy in that namespace allows some
    ingress.

    Why it matters: The ranks connect to each other: rendezvous, NCCL, Gloo and MPI all wait for connections that the
    policy drops, until they time out.

    Example: `podSelector: {}` with `policyTypes: [Ingress]` and a PyTorchJob with workers in that namespace.

    Fix: A policy that lets the job's pods talk to each other on every port.

    Known limits: Policies add up, and a policy in other files may allow the traffic. Which pods and ports another
    policy opens is not compared with the job's.
    """
    policies = job.about("denies_ingress")
    for workload in workloads(job) if policies else ():
        trainers = workload.trainers
        blocking = [claim for claim in policies if _may_share_namespace(job, workload, claim)]
        if not blocking or not trainers:
            continue
        if any(_may_share_namespace(job, workload, claim) for claim in job.about("allows_ingress")):
            # The usual pair: one policy denies everything, another one lets the job's pods in.
            yield passed(workload.id)
            continue
        verdict = undecided(workload.id, tuple(role.count for role in workload.roles))
        pods = numbers(workload.pods())
        if verdict is None and pods and max(pods) > 1:
            verdict = failed(
                workload.id,
                f"{placed(blocking[0])} selects every pod and allows no ingress from its namespace, but the {max(pods)}"
                f" pods of {placed(workload.head)} must reach each other.",
                at=blocking[0],
                also=((workload.head, "several pods"),),
                remedy="Allow ingress between the job's pods on all ports.",
                confidence=Confidence.MEDIUM,
            )
        yield verdict or passed(workload.id)


@rule(
    "KUB025",
    "gpu-training-without-gpu-limit",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch line in a pod with limits names its backend",
)
def gpu_training_without_gpu_limit(job: Job) -> Iterator[Verdict]:
    """A launch line uses NCCL, but its pods request no GPU.

    What it checks: A pod whose launch line passes `nccl` as the backend has a GPU limit.

    Why it matters: The pod goes to any node, and its container is given no device: "CUDA driver version is
    insufficient", "no NCCL capable device".

    Example: `args: [--backend, nccl]` in a container with `limits: {cpu: 4}`.

    Fix: `limits: {nvidia.com/gpu: 1}`.

    Known limits: Device resources with unknown names do not count; only pods with some limit are judged.
    """
    for workload in workloads(job):
        for role, scope in workload.launches():
            backend = _nccl_claim(job, scope.launch)
            rank_role = next((r for r in workload.roles if r.trains), role) if workload.kind == "MPIJob" else role
            if backend is None or not _limits_something(rank_role):
                continue
            if isinstance(backend.value, Unresolved):
                yield unknown(workload.id, f"{quoted(backend)} is known only at run time", at=backend)
            elif "nccl" not in {text.lower() for text in texts(backend.value)} or rank_role.setting("pod_gpus"):
                yield passed(workload.id)
            else:
                limits = rank_role.setting("pod_cpus") or rank_role.setting("pod_memory_mib")
                yield failed(
                    workload.id,
                    f"{quoted(backend)} needs a GPU for each rank, but the limits of {rank_role.name or 'the pod'} "
                    f"({quoted(limits[0])}) request none.",
                    at=backend,
                    also=((limits[0], "limits without GPUs"),),
                    remedy="Add `nvidia.com/gpu` to the limits.",
                )


def _nccl_claim(job: Job, launch: str) -> Claim | None:
    claims = [c for c in job.about("backend") if c.scope.launch == launch and c.source == "arguments"]
    return claims[0] if claims else None


def _limits_something(role: Role) -> bool:
    return bool(role.setting("pod_gpus") or role.setting("pod_cpus") or role.setting("pod_memory_mib"))


# The network of pods: service meshes and RDMA devices.


#: System and example namespaces, which are never a Kubeflow user's profile.
_PLAIN_NAMESPACES = frozenset(
    ("", "default", "kubeflow", "kubeflow-system", "kube-system", "kube-public", "training-operator", "mpi-operator")
)
#: Namespaces that a platform without a mesh creates for its tenants (Amazon SageMaker HyperPod's task governance).
_MESHLESS_PREFIXES = ("hyperpod-",)
_OFF_VALUES = frozenset(("false", "disabled", "none"))


@rule(
    "KUB008",
    "mesh-proxy-may-join-pods",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no Kubeflow job names its namespace",
)
def mesh_proxy_may_join_pods(job: Job) -> Iterator[Verdict]:
    """The pods of a distributed job in a user namespace do not disable the sidecar of a service mesh.

    What it checks: A Kubeflow job of two or more pods in a user namespace has `sidecar.istio.io/inject: "false"` (or
    the equivalent of Linkerd or Kuma) as an annotation or label on each role's pod template. Kubeflow creates user
    namespaces ("profiles") with injection enabled; `default`, the operators' own namespaces, namespaces that the files
    create without such a label, and manifests without a namespace show no sign of a mesh and are not reported.

    Why it matters: The proxy takes over the ports of the pod. The proxies reject ranks that connect to the master
    before mutual trust is established, the bootstraps of gRPC and NCCL fail under mutual TLS, and the workers crash or
    wait forever; the proxy also keeps a finished pod running.

    Example: A PyTorchJob with `namespace: alice` and pod templates without annotations.

    Fix: `metadata: {annotations: {sidecar.istio.io/inject: "false"}}` in the pod template of every role.

    Known limits: The annotation on the job itself is not counted, because the operators do not pass it on to the pods.
    If the files do not create the namespace, only the cluster shows whether injection is enabled, and the finding is
    informational.
    """
    for workload in workloads(job):
        namespaces = workload.setting("namespace")
        if workload.kind not in KUBEFLOW or not workload.group.endswith("kubeflow.org") or not namespaces:
            continue
        pods = numbers(workload.pods())
        if undecided_verdict := undecided(workload.id, (*namespaces, *(role.count for role in workload.roles))):
            yield undecided_verdict
            continue
        name = (texts(namespaces[0].value) or ("",))[0]
        injected_roles = [role for role in workload.roles if not _disables_injection(workload, role)]
        mesh_values = {value for claim in workload.setting("namespace_without_mesh") for value in claim.alternatives}
        if mesh_values == {True}:
            injected_roles = []
        if (
            name in _PLAIN_NAMESPACES
            or name.startswith(_MESHLESS_PREFIXES)
            or not pods
            or max(pods) < 2
            or not injected_roles
        ):
            yield passed(workload.id)
            continue
        yield failed(
            workload.id,
            f"{quoted(workload.head)} starts {max(pods)} pods in {placed(namespaces[0])} and"
            f' {_roles_have(injected_roles)} no `sidecar.istio.io/inject: "false"`: with injection, as in every'
            " profile of"
            " Kubeflow, each pod gets a mesh proxy, which blocks the ranks' first connections.",
            at=namespaces[0],
            also=tuple((role.count, role.name) for role in injected_roles[:4]),
            remedy='Annotate the pod template of each role with `sidecar.istio.io/inject: "false"`.',
            severity=None if mesh_values == {False} else Severity.INFO,
        )


def _disables_injection(workload: Workload, role: Role) -> bool:
    """Return whether the pod template disables injection; only a TrainJob passes its own annotations to the pods."""
    claims = [
        claim for claim in role.about("mesh_injection") if claim.scope.role == role.name or workload.kind == "TrainJob"
    ]
    return any(text.lower() in _OFF_VALUES for claim in claims for text in texts(claim.value))


def _roles_have(roles: list[Role]) -> str:
    names = ", ".join(f"`{role.name}`" for role in roles)
    return f"{names} has" if len(roles) == 1 else f"{names} have"


#: Capabilities that allow a container to lock memory.
_LOCKING_CAPABILITIES = frozenset(("IPC_LOCK", "CAP_IPC_LOCK", "SYS_RESOURCE", "ALL", "privileged"))


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

    Known limits: A runtime started without a limit of locked memory, as containerd usually is, needs no capability, so
    the finding is informational. EFA devices are not checked, because their nodes are set up this way.
    """
    for workload in workloads(job):
        for role in workload.roles:
            devices = [c for c in role.about("pod_rdma") if "efa" not in c.spelling]
            if not devices:
                continue
            capabilities = role.about("pod_capability")
            verdict = undecided(workload.id, (*devices, *capabilities))
            if verdict is None and not any(
                text in _LOCKING_CAPABILITIES for claim in capabilities for text in texts(claim.value)
            ):
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
            devices = role.about("pod_rdma")
            if not devices:
                continue
            variables = [c for n in ("NCCL_IB_DISABLE", "NCCL_NET", "FI_PROVIDER") for c in role.about(f"env.{n}")]
            variables += [c for _, scope in workload.launches() for c in job.setting("env.FI_PROVIDER", scope)]
            variables += [c for _, scope in workload.launches() for c in job.setting("env.NCCL_IB_DISABLE", scope)]
            verdict = undecided(workload.id, variables)
            blocking = [c for c in variables if _turns_off(c.quantity, texts(c.value))]
            if verdict is None and blocking:
                verdict = failed(
                    workload.id,
                    f"{quoted(blocking[0])} keeps NCCL from using the device that {placed(devices[0])} requests.",
                    at=blocking[0],
                    also=((devices[0], "the device"),),
                    remedy="Remove the variable, or do not request the device.",
                )
            yield verdict or passed(workload.id)


#: Values that keep ranks off an RDMA device, by the variable's quantity.
_VALUES_WITHOUT_DEVICE = {
    "env.NCCL_IB_DISABLE": frozenset(("1",)),
    "env.FI_PROVIDER": frozenset(("tcp", "sockets", "tcp;ofi_rxm")),
}


def _turns_off(quantity: str, values: tuple[str, ...]) -> bool:
    off_values = _VALUES_WITHOUT_DEVICE.get(quantity, {"socket"})
    return bool(values) and {value.strip().lower() for value in values} <= off_values


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

    Why it matters: The mount hides the devices of the plugin: the pod sees adapters that it was not given and may not
    open, and NCCL picks one of these, or two pods use the same one.

    Example: `limits: {rdma/hca: 1}` and `hostPath: {path: /dev/infiniband}`.

    Fix: Remove the hostPath volume.

    Known limits: A privileged pod that needs every adapter is also reported; it can drop the resource request instead.
    """
    reported_spans: set[Span] = set()
    for workload in workloads(job):
        for role in workload.roles:
            devices = role.about("pod_rdma")
            paths = [claim for claim in role.about("host_path") if claim.span not in reported_spans]
            if not devices or not paths:
                continue
            # Pod templates that share a YAML anchor share the volume.
            reported_spans.update(claim.span for claim in paths)
            verdict = undecided(workload.id, paths)
            mounts = [c for c in paths if any(t.startswith("/dev/infiniband") for t in texts(c.value))]
            if verdict is None and mounts:
                verdict = failed(
                    workload.id,
                    f"{quoted(mounts[0])} mounts the node's RDMA devices over the ones that {placed(devices[0])} "
                    "provides.",
                    at=mounts[0],
                    also=((devices[0], "provided by the device plugin"),),
                    remedy="Remove the hostPath volume: the device plugin provides the devices.",
                )
            yield verdict or passed(workload.id)


#: Values by which libfabric or NCCL is told to use a device, by variable.
_VALUES_WITH_DEVICE = {
    "FI_PROVIDER": ("efa", "verbs"),
    "NCCL_NET": ("ib", "aws libfabric"),
    "FI_EFA_USE_DEVICE_RDMA": ("1",),
}


@rule(
    "KUB054",
    "rdma-set-up-and-not-requested",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no pod with GPUs selects an RDMA device",
)
def rdma_set_up_and_not_requested(job: Job) -> Iterator[Verdict]:
    """The variables of a pod select EFA or InfiniBand, but the pod requests no such device.

    What it checks: A pod with `FI_PROVIDER=efa`, `FI_EFA_USE_DEVICE_RDMA=1` or `NCCL_NET=IB` requests a device that its
    plugin offers (`vpc.amazonaws.com/efa`, `rdma/...`), uses the host's devices, or is privileged.

    Why it matters: Without the resource the container sees no device. NCCL stops because the configured network is
    missing, or falls back to TCP and trains several times slower.

    Example: `FI_PROVIDER: efa` and `limits: {nvidia.com/gpu: 8}` without `vpc.amazonaws.com/efa`.

    Fix: Request the device: `vpc.amazonaws.com/efa: 4`, as many as the instance has.

    Known limits: An admission webhook, or a claim of dynamic resource allocation, may add the device.
    """
    for workload in workloads(job):
        for role in workload.roles:
            scopes = [scope for owner, scope in workload.launches() if owner.name == role.name]
            variables = [
                claim
                for name in _VALUES_WITH_DEVICE
                for claim in (*role.about(f"env.{name}"), *(c for s in scopes for c in job.setting(f"env.{name}", s)))
            ]
            choosing = [claim for claim in variables if _chooses_device(claim)]
            unresolved = [claim for claim in variables if isinstance(claim.value, Unresolved)]
            if not role.gpus or not variables:
                continue
            has_device = bool(role.about("pod_rdma")) or _sees_devices(role)
            if choosing and not has_device:
                yield failed(
                    workload.id,
                    f"{quoted(choosing[0])} selects a device that the {role.name or 'pod'} does not request.",
                    at=choosing[0],
                    remedy="Also request the device, such as `vpc.amazonaws.com/efa: 4` or `rdma/ib: 1`.",
                )
            elif unresolved and not has_device:
                yield unknown(workload.id, f"{quoted(unresolved[0])} is known only at run time", at=unresolved[0])
            else:
                yield passed(workload.id)


def _sees_devices(role: Role) -> bool:
    """Return whether a pod may see the node's devices without a request: it is privileged, or mounts them."""
    capabilities = {text for claim in role.about("pod_capability") for text in texts(claim.value)}
    mounted = [text for claim in role.about("host_path") for text in texts(claim.value)]
    return "privileged" in capabilities or any(map(_holds_devices, mounted))


def _holds_devices(folder: str) -> bool:
    """Return whether a folder of the node contains its RDMA devices; `/dev/shm` does not."""
    return folder.rstrip("/") == "/dev" or folder.startswith("/dev/inf")


def _chooses_device(claim: Claim) -> bool:
    device_values = _VALUES_WITH_DEVICE[claim.quantity.removeprefix("env.")]
    values = [text.strip().lower() for text in texts(claim.value)]
    return bool(values) and all(text in device_values for text in values)


#: The claims that name hosts of the job.
_HOST_QUANTITIES = ("master_addr", "hosts", "ps_server_endpoints", "ps_worker_endpoints")


@rule(
    "KUB033",
    "host-name-of-no-pod",
    severity=Severity.ERROR,
    otherwise="no launch in a pod names a host that looks like a pod of the same job",
)
def host_name_of_no_pod(job: Job) -> Iterator[Verdict]:
    """A launch line names a host that looks like a pod of its own object, and the object has no such pod.

    What it checks: If the rendezvous address, or a node or server in a list, begins with the name of the object that
    contains the launch line, it is the name of one of the object's pods, as the operator creates them, or of a service
    in the files: `JOB-master-0` for a PyTorchJob, `JOB-TASK-0.JOB` for a Volcano job, `JOB-ROLE-0-0.JOB` for a JobSet,
    `NAME-0.SERVICENAME` for a StatefulSet, `NAME-0.SUBDOMAIN` for an Indexed Job whose template has a subdomain. Pods
    on the host's network that use such a name, or one in `svc`, have `dnsPolicy: ClusterFirstWithHostNet`; a warning if
    not.

    Why it matters: The name never resolves. Every rank waits for the rendezvous until it times out.

    Example: `--master_addr=train-head-0.train` in a Volcano job `train` whose tasks are `master` and `worker`.

    Fix: Use a name from the list in the message.

    Known limits: A service with that name may be in files that were not passed; the finding is a warning unless the
    name is in the domain that the operator names after the object. The names of pods with a DNS configuration, a host
    name or the host's network are not judged.
    """
    object_names = sorted({text for claim in job.about("workload_name") for text in texts(claim.value)}, key=len)
    for workload in workloads(job):
        yield from _host_network_verdicts(job, workload)
        names = texts(job_value(workload.setting("workload_name")))
        unnamed_claims = workload.setting("pods_unnamed")
        if not (workload.hosts or unnamed_claims) or not names:
            continue
        for _, scope in workload.launches():
            launch = job.launch(scope.launch)
            for claim in (claim for quantity in _HOST_QUANTITIES for claim in job.setting(quantity, scope)):
                hosts = [host_of(text) for text in (*texts(claim.value), *items(claim.value))]
                own_hosts = [host for host in hosts if _owner(host, object_names) == names[0]]
                wrong_host = next((host for host in own_hosts if not workload.has_host(host)), None)
                if unnamed_claims:
                    own_hosts = [
                        host
                        for host in own_hosts
                        if re.match(rf"{re.escape(names[0])}(?:-[a-z]\w*)*(?:-\d+)+(?:\.|$)", host)
                    ]
                if undecided_verdict := undecided(scope.launch, (claim,), launch):
                    yield undecided_verdict
                elif own_hosts and unnamed_claims:
                    yield _nameless_pods_finding(workload, names[0], claim, unnamed_claims[0])
                elif wrong_host is not None:
                    yield _wrong_name_finding(workload, names[0], claim, wrong_host)
                elif own_hosts:
                    yield passed(scope.launch)


#: Kinds whose pods resolve names of the cluster whatever the launch line says; CFG002 judges them.
_ALWAYS_RESOLVING = frozenset(
    ("PyTorchJob", "TFJob", "JAXJob", "XGBoostJob", "JobSet", "LeaderWorkerSet", "MPIJob", "RayCluster", "RayJob")
)


def _host_network_verdicts(job: Job, workload: Workload) -> Iterator[Verdict]:
    """Yield the verdicts on pods on the host's network whose launch names a host that only the cluster's DNS knows."""
    names = texts(job_value(workload.setting("workload_name")))
    for role, scope in workload.launches():
        network, policies = role.setting("host_network"), role.setting("dns_policy")
        addresses = [
            claim
            for quantity in _HOST_QUANTITIES
            for claim in job.setting(quantity, scope)
            if any(_is_cluster_name(host_of(text), names) for text in (*texts(claim.value), *items(claim.value)))
        ]
        if not network or not addresses or workload.kind in _ALWAYS_RESOLVING:
            continue
        if verdict := undecided(scope.launch, (*network, *policies)):
            yield verdict
        elif network[0].alternatives != (True,) or texts(job_value(policies)) not in ((), ("ClusterFirst",)):
            yield passed(scope.launch)
        else:
            yield failed(
                scope.launch,
                f"{quoted(network[0])} makes the pods use the node's DNS, which does not resolve {quoted(addresses[0])}"
                " without `dnsPolicy: ClusterFirstWithHostNet`.",
                at=network[0],
                also=((addresses[0], "a name of the cluster"), *((claim, "not enough") for claim in policies)),
                remedy="Set `dnsPolicy: ClusterFirstWithHostNet` beside hostNetwork.",
                severity=Severity.WARNING,
                waits_at="rendezvous",
            )


def _is_cluster_name(host: str, object_names: Sequence[str]) -> bool:
    """Return whether a host is a service, or a pod of one of the objects in the domain of a service."""
    in_service = any(re.match(rf"{re.escape(name)}(?:-[a-z]\w*)*(?:-\d+)+\.[a-z]", host) for name in object_names)
    return in_service or re.search(r"\.svc(?:\.|$)", host) is not None


def _nameless_pods_finding(workload: Workload, name: str, claim: Claim, unnamed: Claim) -> Verdict:
    """Return the finding on a host name of an object whose pods have no names."""
    is_job = unnamed.span == workload.head.span
    reason = "the template has no `subdomain`" if is_job else placed(unnamed)
    return failed(
        claim.scope.launch,
        f"{quoted(claim)} names a pod of {quoted(workload.head)} `{name}`, but its pods have no DNS names: {reason}.",
        at=claim,
        also=((unnamed, "the object" if is_job else "disables them"),),
        remedy="Set `subdomain` in the pod template to the name of the headless Service."
        if is_job
        else "Remove it: by default, JobSet gives its pods DNS names.",
        waits_at="rendezvous",
    )


def _wrong_name_finding(workload: Workload, name: str, claim: Claim, wrong: str) -> Verdict:
    hosts = workload.hosts
    # The operator creates every name in the domain that has the object's name.
    in_own_domain = wrong.partition(".")[2].partition(".")[0] == name and all(f".{name}" in host for host in hosts[:1])
    names_role = "." not in wrong and re.fullmatch(rf"{re.escape(name)}-\w+-\d+", wrong) is not None
    is_certain = in_own_domain or (names_role and "." not in hosts[0])
    examples = ", ".join(f"`{host.replace('{i}', '0')}`" for host in hosts[:4])
    return failed(
        claim.scope.launch,
        f"{quoted(claim)} names `{wrong}`, but {quoted(workload.head)} `{name}` has no pod of this name. Its pods"
        f" have names such as {examples}.",
        at=claim,
        also=((argument_of(claim) or workload.head, "the name" if argument_of(claim) else "the object"),),
        remedy="Use one of these names.",
        severity=None if is_certain else Severity.WARNING,
        waits_at="rendezvous",
    )


def _owner(host: str, names: Sequence[str]) -> str:
    """Return the longest object name that the host begins with; empty if none."""
    return next((name for name in reversed(names) if host.startswith(f"{name}-")), "")


#: Volcano's plugin `svc`, which gives pods names and lists of each other, and the plugins that add it.
_SVC_PLUGINS = frozenset(("svc", "tensorflow", "mpi", "pytorch", "ray"))


@rule(
    "KUB061",
    "pod-address-without-svc",
    severity=Severity.ERROR,
    otherwise="no pod of a Volcano job reads the address of another",
)
def pod_address_without_svc(job: Job) -> Iterator[Verdict]:
    """The pods of a Volcano job use each other's addresses, but the job has no plugin that provides them.

    What it checks: If a task's command, a script that it runs or a variable of its pods reads a file under /etc/volcano
    or a variable such as VC_WORKER_HOSTS, or names a pod as `JOB-TASK-0.JOB`, the job has the plugin `svc`, or a plugin
    that adds it (pytorch, tensorflow, mpi, ray).

    Why it matters: Only `svc` mounts these files, sets these variables and gives the pods names. Without it the address
    is empty or does not resolve: the script stops, or every pod waits for the rendezvous until it times out.

    Example: `MASTER=$(head -n 1 /etc/volcano/master.host)` in a job with `plugins: {env: []}`.

    Fix: Add `svc: []` to `spec.plugins`.

    Known limits: A line of a Python program, or of a script under a condition, makes the finding a warning. A script
    that first checks whether the file or variable exists is not judged. Names that a script composes are not seen.
    """
    for workload in workloads(job):
        for claim in workload.setting("pod_address"):
            plugins = workload.setting("volcano_plugins")
            verdict = undecided(workload.id, plugins)
            if verdict is None and _SVC_PLUGINS.isdisjoint(items(plugins[0].value)):
                verdict = failed(
                    workload.id,
                    f"{placed(claim)} is set only by Volcano's plugin svc, which {quoted(workload.head)} does not"
                    " have: the pods cannot find each other.",
                    at=claim,
                    also=((plugins[0], "without svc"),),
                    remedy="Add `svc: []` to spec.plugins.",
                    severity=Severity.WARNING if claim.condition else None,
                    waits_at="rendezvous",
                )
            yield verdict or passed(workload.id)


@rule("KUB062", "mount-without-volume", severity=Severity.ERROR, otherwise="no container mounts a volume")
def mount_without_volume(job: Job) -> Iterator[Verdict]:
    """A container mounts a volume that its pod does not have.

    What it checks: Each name in `volumeMounts` is the name of one of the pod's `volumes`, or of one of the
    `volumeClaimTemplates` of its StatefulSet.

    Why it matters: The API server rejects the pod. A Job or a StatefulSet is rejected at once; an operator's object is
    accepted, and its pods are never created.

    Example: `volumeMounts: [{name: dshm, mountPath: /dev/shm}]` in a pod whose `volumes` has only `data`.

    Fix: Add the volume to the pod, or correct the name.

    Known limits: TrainJobs, whose runtime adds volumes, and templates are not judged.
    """
    for claim in job.about("volume_mount"):
        volume_claim = claim.because[0]
        names, volumes = texts(claim.value), items(volume_claim.value)
        if verdict := undecided(claim.spelling, (claim, volume_claim)):
            yield verdict
        elif volumes is not None and names[0] in volumes:
            yield passed(names[0])
        else:
            volumes_text = f"it has {joined(volumes)}" if volumes else "it has none"
            yield failed(
                names[0],
                f"{quoted(claim)}: the pod has no volume of this name ({volumes_text}), so the API server rejects it.",
                at=claim,
                remedy="Add the volume to the pod, or correct the name.",
            )


@rule(
    "KUB064", "volume-claim-misspelled", severity=Severity.WARNING, otherwise="no pod uses a volume claim of the files"
)
def volume_claim_misspelled(job: Job) -> Iterator[Verdict]:
    """A pod uses a volume claim whose name differs slightly from one that the files define.

    What it checks: Each `claimName` that resembles the name of a PersistentVolumeClaim in the files is such a name.

    Why it matters: A pod whose claim does not exist stays Pending, and the other pods of the job wait for it.

    Example: `claimName: datasets` beside a PersistentVolumeClaim `dataset`.

    Fix: Correct the name, or add a PersistentVolumeClaim of this name.

    Known limits: The claim may exist in the cluster although no file defines it, so it is a warning. Names that
    resemble no defined claim are not judged, and neither are templates.
    """
    for claim in job.about("volume_claim"):
        defined = claim.because[0]
        name = texts(claim.value)
        if not name:
            yield unknown(claim.spelling, "its name is known only at run time", at=claim)
        elif name[0] in items(defined.value):
            yield passed(name[0])
        else:
            yield failed(
                name[0],
                f"{quoted(claim)}: the files define {', '.join(items(defined.value))}, but no volume claim of this"
                " name. If the cluster has none either, the pod stays Pending.",
                at=claim,
                also=((defined, "a volume claim that is defined"),),
                remedy="Correct the name, or add a PersistentVolumeClaim of this name.",
            )


@rule("KUB063", "service-selects-no-pod", severity=Severity.WARNING, otherwise="no service selects pods of the job")
def service_selects_no_pod(job: Job) -> Iterator[Verdict]:
    """A service selects no pod, because a label of the job's pods has another value.

    What it checks: The service that has the name of a job's domain (`serviceName`, `subdomain`, the name of a JobSet)
    selects the pods of an object in the files. Labels that controllers add (`training.kubeflow.org/job-name`,
    `jobset.sigs.k8s.io/jobset-name`) are known.

    Why it matters: The names of pods under a headless service do not resolve, and a service with an address has no
    endpoints: the ranks wait for the master until the rendezvous times out.

    Example: `selector: {app: trainer}` where the pods have the label `app: train`.

    Fix: Write the label of the pods into the selector.

    Known limits: A service is judged only if the pods of the job have its labels, with another value, because any other
    service may have a different purpose.
    """
    for claim in job.about("service_selects"):
        key, value = items(claim.because[0].value) or ("", "")
        if verdict := undecided(claim.spelling, (claim,)):
            yield verdict
        elif claim.value == Known(True):
            yield passed(claim.spelling)
        else:
            yield failed(
                claim.spelling,
                f"{quoted(claim)} selects no pod: the pods of the job have `{key}: {value}`, and no other object has"
                " the selected labels.",
                at=claim,
                remedy=f"Select `{key}: {value}`, or give the pods the label.",
                waits_at="rendezvous",
            )

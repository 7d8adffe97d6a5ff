"""Pods that can never be placed, or never reached: machine types, quotas, network policies, missing devices."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.cluster.workloads import Role, Workload, workloads
from preflight_rules.reading import counted, job_value, numbers, placed, quoted, texts, undecided
from preflight_rules.tables import instance_gpus

_INSTANCE_LABELS = ("node.kubernetes.io/instance-type=", "beta.kubernetes.io/instance-type=")


@rule(
    "KUB022",
    "pod-larger-than-instance",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("ray-project/ray#47792", "https://kubernetes.io/docs/reference/labels-annotations-taints/"),
)
def pod_larger_than_instance(job: Job) -> Iterator[Verdict]:
    """A pod asks for more GPUs than the machine type it is sent to has.

    What it checks:
        Where a node selector or a required node affinity names the instance type, the pod's GPU limit is no more than
        what that type holds (every type, where several are named).

    Why it matters:
        No node will ever fit: the pods stay pending ("Insufficient nvidia.com/gpu"), and an autoscaler adds nothing.

    Example:
        `nvidia.com/gpu: 8` with `node.kubernetes.io/instance-type: g5.12xlarge`, which has 4.

    Fix:
        Ask for what the machine has, or name another machine type.

    Known limits:
        Time-slicing announces more GPUs than there are; MIG instances are not counted. Types that are not in the table
        are left alone.

    Evidence:
        ray-project/ray#47792 (a bundle that fits no node waits for ever); the clouds' lists of machine types.
    """
    met = False
    for workload in workloads(job):
        for role in workload.roles:
            # A GPU that is cut into instances counts several times.
            gpus = tuple(claim for claim in role.say("pod_gpus") if "/mig-" not in claim.spelling)
            labels = [claim for claim in role.every("node_label") if _sizes(claim)]
            if not gpus or not labels:
                continue
            met = True
            open_end = undecided(workload.id, gpus)
            wanted, most = numbers(job_value(gpus)), max(_sizes(labels[0]))
            if open_end is not None:
                yield open_end
            elif wanted and min(wanted) > most:
                yield failed(
                    workload.id,
                    f"{quoted(gpus[0])} asks for more than {placed(labels[0])} has: {counted(most, 'GPU')}.",
                    at=gpus[0],
                    also=((labels[0], counted(most, "GPU")),),
                    remedy=f"Ask for {most}, or name a machine type with {min(wanted)}.",
                )
            else:
                yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no pod with GPUs is sent to a machine type that is known")


def _sizes(claim: Claim) -> tuple[int, ...]:
    """The GPUs of every machine type a label names; empty where one is not known."""
    found = []
    for text in texts(claim.value):
        prefix = next((label for label in _INSTANCE_LABELS if text.startswith(label)), None)
        size = instance_gpus(text.removeprefix(prefix)) if prefix is not None else None
        if size is None:
            return ()
        found.append(size)
    return tuple(found)


@rule(
    "KUB023",
    "job-larger-than-quota",
    severity=Severity.WARNING,
    evidence=("kubernetes-sigs/kueue#2796", "https://kubernetes.io/docs/concepts/policy/resource-quotas/"),
)
def job_larger_than_quota(job: Job) -> Iterator[Verdict]:
    """A job asks for more GPUs than a quota in the same files ever grants.

    What it checks:
        The GPUs of all pods of a job together are no more than the ResourceQuota of its namespace, the capability of
        a Volcano queue, or the nominal quota of a Kueue ClusterQueue that has no cohort, where it stands in the files.

    Why it matters:
        Under a ResourceQuota the last pods are rejected while the first hold their GPUs; a queue keeps the job waiting
        for ever.

    Example:
        `requests.nvidia.com/gpu: "8"` and a job of two pods with 8 GPUs each.

    Fix:
        A smaller job, or a larger quota.

    Known limits:
        Only where there is one such quota in the files, and of the same namespace where both name theirs.

    Evidence:
        kubernetes-sigs/kueue#2796; Kubernetes documentation, "Resource quotas".
    """
    met = False
    quotas = job.about("quota_gpus")
    for workload in workloads(job) if len({claim.scope.launch for claim in quotas}) == 1 else ():
        if not _same_namespace(job, workload, quotas[0]):
            continue
        pods = [(role, role.say("pod_gpus")) for role in workload.roles]
        asking = [(role, gpus) for role, gpus in pods if gpus]
        if not asking:
            continue
        met = True
        open_end = undecided(workload.id, (*quotas, *(claim for role, gpus in asking for claim in (role.count, *gpus))))
        if open_end is not None:
            yield open_end
            continue
        total = sum(min(numbers(role.count.value)) * min(numbers(job_value(gpus))) for role, gpus in asking)
        granted = max(numbers(job_value(quotas)), default=total)
        if total > granted:
            yield failed(
                workload.id,
                f"{quoted(workload.head)} asks for {total} GPUs in all, and {placed(quotas[0])} never grants more than"
                f" {granted}.",
                at=asking[0][1][0],
                also=((quotas[0], "the quota"),),
                remedy="Make the job smaller, or the quota larger.",
            )
        else:
            yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no quota of GPUs stands beside a job that asks for some")


def _same_namespace(job: Job, workload: Workload, other: Claim) -> bool:
    """Whether nothing says that an object lives in another namespace than the job."""
    theirs = [claim for claim in job.about("namespace") if claim.scope == other.scope]
    ours = workload.say("namespace")
    return not theirs or not ours or theirs[0].value == ours[0].value


@rule(
    "KUB024",
    "network-policy-blocks-ranks",
    severity=Severity.WARNING,
    evidence=("kubeflow/trainer#1636", "https://kubernetes.io/docs/concepts/services-networking/network-policies/"),
)
def network_policy_blocks_ranks(job: Job) -> Iterator[Verdict]:
    """A network policy beside a job lets nobody connect to its pods.

    What it checks:
        No NetworkPolicy in the same files and namespace selects all pods and allows no ingress, unless another one
        allows some.

    Why it matters:
        The ranks dial each other: rendezvous, NCCL, Gloo and MPI all wait for connections that the policy drops, until
        they time out.

    Example:
        `podSelector: {}` with `policyTypes: [Ingress]` and a PyTorchJob with workers in that namespace.

    Fix:
        A policy that lets the job's pods talk to each other on every port.

    Known limits:
        Policies add up; one that stands elsewhere may allow the traffic.

    Evidence:
        kubeflow/trainer#1636; Kubernetes documentation, "Network policies".
    """
    met = False
    policies = job.about("denies_ingress")
    for workload in workloads(job) if policies else ():
        trainers = workload.trainers
        found = [claim for claim in policies if _same_namespace(job, workload, claim)]
        if not found or not trainers:
            continue
        met = True
        open_end = undecided(workload.id, tuple(role.count for role in workload.roles))
        pods = numbers(workload.pods())
        if open_end is not None:
            yield open_end
        elif pods and max(pods) > 1:
            yield failed(
                workload.id,
                f"{placed(found[0])} selects every pod and lets nobody in, and the {max(pods)} pods of"
                f" {placed(workload.head)} must reach each other.",
                at=found[0],
                also=((workload.head, "several pods"),),
                remedy="Allow ingress between the pods of the job, on every port.",
                confidence=Confidence.MEDIUM,
            )
        else:
            yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no network policy that denies all stands beside a job")


@rule(
    "KUB025",
    "gpu-training-without-gpu-limit",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nvidia-docker#400", "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/"),
)
def gpu_training_without_gpu_limit(job: Job) -> Iterator[Verdict]:
    """A launch line asks for NCCL, and its pods ask for no GPU.

    What it checks:
        A pod whose launch line passes `nccl` as back end has a limit for GPUs.

    Why it matters:
        The pod goes to any node, and its container is given no device: "CUDA driver version is insufficient", "no NCCL
        capable device".

    Example:
        `args: [--backend, nccl]` in a container with `limits: {cpu: 4}`.

    Fix:
        `limits: {nvidia.com/gpu: 1}`.

    Known limits:
        Resources of devices under names that are not known count as none; only pods that name some limit are judged.

    Evidence:
        NVIDIA/nvidia-docker#400; Kubernetes documentation, "Schedule GPUs".
    """
    met = False
    for workload in workloads(job):
        for role, scope in workload.launches():
            backend = _asks_for_nccl(job, scope.launch)
            holder = next((r for r in workload.roles if r.trains), role) if workload.kind == "MPIJob" else role
            if backend is None or not _limits_something(holder):
                continue
            met = True
            if isinstance(backend.value, Unresolved):
                yield unknown(workload.id, f"{quoted(backend)} is known at run time only", at=backend)
            elif "nccl" not in {text.lower() for text in texts(backend.value)} or holder.say("pod_gpus"):
                yield passed(workload.id)
            else:
                limits = holder.say("pod_cpus") or holder.say("pod_memory_mib")
                yield failed(
                    workload.id,
                    f"{quoted(backend)} needs a GPU for each rank, and the limits of {holder.name or 'the pod'}"
                    f" ({quoted(limits[0])}) name none.",
                    at=backend,
                    also=((limits[0], "limits without GPUs"),),
                    remedy="Add `nvidia.com/gpu` to the limits.",
                )
    if not met:
        yield not_applicable(job.name, "no launch line in a pod with limits names its back end")


def _asks_for_nccl(job: Job, launch: str) -> Claim | None:
    found = [c for c in job.about("backend") if c.scope.launch == launch and c.source == "arguments"]
    return found[0] if found else None


def _limits_something(role: Role) -> bool:
    return bool(role.say("pod_gpus") or role.say("pod_cpus") or role.say("pod_memory_mib"))

"""The placement of pods: machine types, quotas, network policies, missing devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, placed, quoted
from preflight_rules.data_tables import instance_gpus
from preflight_rules.kubernetes.workloads import Role, Workload, workloads

#: Queues with shorter words in their names are often told apart by them.
_SHORTEST_WORD = 4
_INSTANCE_LABELS = ("node.kubernetes.io/instance-type=", "beta.kubernetes.io/instance-type=")


@rule(
    "KUB022",
    "pod-larger-than-instance",
    severity=Severity.ERROR,
    otherwise="no pod with GPUs selects a known machine type",
)
def pod_larger_than_instance(job: Job) -> Iterator[Verdict]:
    """A pod requests more GPUs than its machine type has.

    What it checks: If a node selector or a required node affinity names the instance type, the pod's GPU limit is at
    most what that type holds (every type, where several are named).

    Why it matters: No node ever fits: the pods stay pending ("Insufficient nvidia.com/gpu"), and an autoscaler adds
    nothing.

    Example: `nvidia.com/gpu: 8` with `node.kubernetes.io/instance-type: g5.12xlarge`, which has 4.

    Fix: Request what the machine has, or name another machine type.

    Known limits: Time-slicing announces more GPUs than there are; MIG instances are not counted. Types that are not in
    the table are left alone.
    """
    for workload in workloads(job):
        for role in workload.roles:
            # A GPU that is cut into instances counts several times.
            gpus = tuple(claim for claim in role.in_force("pod_gpus") if "/mig-" not in claim.spelling)
            labels = [claim for claim in role.every("node_label") if _sizes(claim)]
            if not gpus or not labels:
                continue
            verdict = undecided(workload.id, gpus)
            wanted, most = numbers(job_value(gpus)), max(_sizes(labels[0]))
            if verdict is None and wanted and min(wanted) > most:
                verdict = failed(
                    workload.id,
                    f"{quoted(gpus[0])} requests more than {placed(labels[0])} has: {counted(most, 'GPU')}.",
                    at=gpus[0],
                    also=((labels[0], counted(most, "GPU")),),
                    remedy=f"Request {most}, or name a machine type with {min(wanted)}.",
                )
            yield verdict or passed(workload.id)


def _sizes(claim: Claim) -> tuple[int, ...]:
    """The GPUs of every machine type that a label names; empty if one is unknown."""
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
    severity=Severity.ERROR,
    otherwise="no GPU quota applies to a job that requests GPUs",
)
def job_larger_than_quota(job: Job) -> Iterator[Verdict]:
    """A job requests more GPUs than a quota in its files allows.

    What it checks: The GPUs of all pods of a job together are at most the ResourceQuota of its namespace, or the
    nominal quota of a Kueue ClusterQueue that has no cohort, where it is in the files. A ResourceQuota of the job's
    namespace is also found in another file of the same folder.

    Why it matters: Under a ResourceQuota the last pods are rejected while the first hold their GPUs; a queue keeps the
    job waiting forever.

    Example: `requests.nvidia.com/gpu: "8"` and a job of two pods with 8 GPUs each.

    Fix: A smaller job, or a larger quota.

    Known limits: Only where there is one such quota in the files, and of the same namespace where both name theirs. A
    quota with scopes counts only some pods and is not judged.
    """
    quotas = job.about("quota_gpus")
    for workload in workloads(job) if len({claim.scope.launch for claim in quotas}) == 1 else ():
        if not _same_namespace(job, workload, quotas[0]):
            continue
        verdict = _larger_than(workload, quotas, "never grants more")
        if verdict is not None:
            # A quota or a job that names no namespace may be applied to any.
            theirs = [claim for claim in job.about("namespace") if claim.scope == quotas[0].scope]
            certain = bool(theirs and workload.in_force("namespace"))
            yield verdict if certain or verdict.severity is None else replace(verdict, severity=Severity.WARNING)


def _larger_than(workload: Workload, quotas: Sequence[Claim], why: str) -> Verdict | None:
    """Whether the GPUs of all pods are more than a quota; None if they request none."""
    pods = [(role, role.in_force("pod_gpus") or role.in_force("pod_gpu_requests")) for role in workload.roles]
    requesting = [(role, gpus) for role, gpus in pods if gpus]
    if not requesting:
        return None
    undecided_verdict = undecided(
        workload.id, (*quotas, *(claim for role, gpus in requesting for claim in (role.count, *gpus)))
    )
    if undecided_verdict is not None:
        return undecided_verdict
    if not all(numbers(role.count.value) and numbers(job_value(gpus)) for role, gpus in requesting):
        why_open = "the number of GPUs that its pods request is not a whole number"
        return unknown(workload.id, why_open, at=requesting[0][1][0])
    each = [min(numbers(role.count.value)) * min(numbers(job_value(gpus))) for role, gpus in requesting]
    granted = max(numbers(job_value(quotas)), default=sum(each))
    if sum(each) <= granted:
        return passed(workload.id)
    largest = requesting[each.index(max(each))]
    return failed(
        workload.id,
        f"{quoted(workload.head)} requests {sum(each)} GPUs in total, but {placed(quotas[0])} {why} than {granted}.",
        at=largest[1][0],
        also=((quotas[0], "the quota"),),
        remedy="Make the job smaller, or the quota larger.",
        severity=Severity.WARNING if _starts_with_fewer(workload) else Severity.ERROR,
    )


def _starts_with_fewer(workload: Workload) -> bool:
    """Whether an object may run with fewer pods: it is elastic, a smaller gang, or a Job of independent pods."""
    pods = numbers(workload.pods())
    smaller = any(
        size and pods and min(size) < max(pods)
        for size in (numbers(claim.value) for claim in workload.claims.of(workload.id, "gang_min"))
    )
    elastic = any(workload.job.about("min_nodes", scope) for _, scope in workload.launches())
    alone = workload.kind == "Deployment" or (workload.kind == "Job" and workload.group == "batch")
    return smaller or elastic or alone


@rule(
    "KUB060",
    "queue-name-misspelt",
    severity=Severity.WARNING,
    otherwise="no job names a queue beside similar ones in its files",
)
def queue_name_misspelt(job: Job) -> Iterator[Verdict]:
    """A job names a queue that no file defines, and its namespace has one with almost the same name.

    What it checks: The label `kueue.x-k8s.io/queue-name` of a job is the name of a LocalQueue of its namespace, where
    the job's file or another one in its folder defines LocalQueues there and one of them has almost the same name: one
    word of it differs by one character.

    Why it matters: Kueue keeps the job suspended until a queue of that name exists. No pod is created and no event of a
    pod says why.

    Example: `kueue.x-k8s.io/queue-name: trainings` beside a LocalQueue `training`.

    Fix: The name of the LocalQueue.

    Known limits: A queue with a name of its own kind may exist on the cluster, and is not judged.
    """
    for workload in workloads(job):
        wanted, defined = workload.in_force("queue_name"), workload.in_force("queue_defined")
        names = {text: claim for claim in defined for text in texts(claim.value)}
        if not wanted or not names:
            continue
        claim = wanted[0]
        if isinstance(claim.value, Unresolved):
            yield unknown(workload.id, f"{quoted(claim)} depends on {claim.value.why}", at=claim)
            continue
        asked = texts(claim.value)
        near = [name for text in asked for name in sorted(names) if _is_misspelt(text, name)]
        if any(text in names for text in asked):
            yield passed(workload.id)
        elif near:
            yield failed(
                workload.id,
                f"{quoted(claim)} names no queue of these files; {near[0]} ({names[near[0]].span.path}:"
                f"{names[near[0]].span.line}) is probably meant. Kueue keeps the job suspended until the queue exists.",
                at=claim,
                also=((names[near[0]], "a queue of this namespace"),),
                remedy=f"Write {near[0]}.",
            )


def _is_misspelt(asked: str, name: str) -> bool:
    """Whether one word of a name has a typing mistake. `gpu-h100` beside `gpu-h200` is another queue, and so is
    `team-b` beside `team-a`.
    """
    ours, theirs = re.split(r"[-_.]", asked), re.split(r"[-_.]", name)
    differing = [pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]]
    if len(ours) != len(theirs) or len(differing) != 1:
        return False
    first, second = differing[0]
    if min(len(first), len(second)) < _SHORTEST_WORD or re.search(r"\d", first + second):
        return False
    return _is_one_edit(first, second)


def _is_one_edit(first: str, second: str) -> bool:
    """Whether two different words are equal but for one character, or for two neighbours that are swapped."""
    short, long = sorted((first, second), key=len)
    start = next((at for at, letter in enumerate(short) if letter != long[at]), len(short))
    if len(long) != len(short):
        return len(long) == len(short) + 1 and short[start:] == long[start + 1 :]
    swapped = long[start : start + 2] == short[start : start + 2][::-1]
    return short[start + 1 :] == long[start + 1 :] or (swapped and short[start + 2 :] == long[start + 2 :])


@rule(
    "KUB030",
    "job-larger-than-queue",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no job with GPUs names a queue whose quota is in the files",
)
def job_larger_than_queue(job: Job) -> Iterator[Verdict]:
    """A job requests more GPUs than its queue holds.

    What it checks: The GPUs of all pods of a job with the label `kueue.x-k8s.io/queue-name` are at most the nominal
    quotas of the ClusterQueue behind that LocalQueue, where both are in the files and the ClusterQueue has no cohort.
    Those of a Volcano job are at most the capability of its queue.

    Why it matters: Kueue and Volcano admit a job as a whole. One that is larger than its queue waits forever.

    Example: `nominalQuota: 16` for `nvidia.com/gpu`, and a JobSet of four pods with 8 GPUs each.

    Fix: A smaller job, a larger quota, or a cohort to borrow from.

    Known limits: Jobs that may start with fewer pods (partial admission, elastic jobs) are not judged.
    """
    for workload in workloads(job):
        quotas = workload.in_force("queue_gpus")
        verdict = _larger_than(workload, quotas, "of its queue never admits more") if quotas else None
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
    domain is placed on it. If there are fewer pods, all of them wait in ContainerCreating.

    Example: `numNodes: 18`, and a JobSet of 16 pods that name its claim template.

    Fix: Set `numNodes` to the number of pods, or to 0 if the driver allows it.

    Known limits: Drivers from 25.8 on need not wait for all nodes. A pod is assumed to run on one node of the domain.
    """
    for workload in workloads(job):
        joining = [(role, claims[0]) for role in workload.roles if (claims := role.in_force("compute_domain"))]
        if not joining:
            continue
        domain = joining[0][1]
        pods = workload.pods(tuple(role for role, _ in joining))
        counts = [role.count for role, _ in joining]
        if undecided_verdict := undecided(workload.id, (domain, *counts)):
            yield undecided_verdict
            continue
        wanted, there = numbers(domain.value), numbers(pods)
        if wanted and there and min(wanted) > max(there):
            yield failed(
                workload.id,
                f"{quoted(domain)} waits for {min(wanted)} nodes, but {placed(counts[0])} starts only"
                f" {max(there)} pods that join it.",
                at=domain,
                also=((counts[0], "the pods"),),
                remedy="Set numNodes to the number of pods.",
            )
        else:
            yield passed(workload.id)


def _same_namespace(job: Job, workload: Workload, other: Claim) -> bool:
    """Whether an object may be in the same namespace as the job."""
    theirs = [claim for claim in job.about("namespace") if claim.scope == other.scope]
    ours = workload.in_force("namespace")
    return not theirs or not ours or theirs[0].value == ours[0].value


@rule(
    "KUB024",
    "network-policy-blocks-ranks",
    severity=Severity.WARNING,
    otherwise="no network policy denies all traffic beside a job",
)
def network_policy_blocks_ranks(job: Job) -> Iterator[Verdict]:
    """A network policy blocks all connections to the pods of a job.

    What it checks: No NetworkPolicy of the job's namespace, in its file or beside it, selects all pods and allows no
    ingress, or only from other namespaces, unless another policy there allows some ingress.

    Why it matters: The ranks dial each other: rendezvous, NCCL, Gloo and MPI all wait for connections that the policy
    drops, until they time out.

    Example: `podSelector: {}` with `policyTypes: [Ingress]` and a PyTorchJob with workers in that namespace.

    Fix: A policy that lets the job's pods talk to each other on every port.

    Known limits: Policies add up; one in other files may allow the traffic. Which pods and ports another policy opens
    is not compared with the job's.
    """
    policies = job.about("denies_ingress")
    for workload in workloads(job) if policies else ():
        trainers = workload.trainers
        found = [claim for claim in policies if _same_namespace(job, workload, claim)]
        if not found or not trainers:
            continue
        if any(_same_namespace(job, workload, claim) for claim in job.about("allows_ingress")):
            # The usual pair: one policy denies everything, another one lets the job's pods in.
            yield passed(workload.id)
            continue
        verdict = undecided(workload.id, tuple(role.count for role in workload.roles))
        pods = numbers(workload.pods())
        if verdict is None and pods and max(pods) > 1:
            verdict = failed(
                workload.id,
                f"{placed(found[0])} selects every pod and allows no ingress from its namespace, but the {max(pods)}"
                f" pods of {placed(workload.head)} must reach each other.",
                at=found[0],
                also=((workload.head, "several pods"),),
                remedy="Allow ingress between the pods of the job, on every port.",
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

    What it checks: A pod whose launch line passes `nccl` as backend has a limit for GPUs.

    Why it matters: The pod goes to any node, and its container is given no device: "CUDA driver version is
    insufficient", "no NCCL capable device".

    Example: `args: [--backend, nccl]` in a container with `limits: {cpu: 4}`.

    Fix: `limits: {nvidia.com/gpu: 1}`.

    Known limits: Device resources with unknown names count as none; only pods that name some limit are judged.
    """
    for workload in workloads(job):
        for role, scope in workload.launches():
            backend = _nccl_claim(job, scope.launch)
            holder = next((r for r in workload.roles if r.trains), role) if workload.kind == "MPIJob" else role
            if backend is None or not _limits_something(holder):
                continue
            if isinstance(backend.value, Unresolved):
                yield unknown(workload.id, f"{quoted(backend)} is known only at run time", at=backend)
            elif "nccl" not in {text.lower() for text in texts(backend.value)} or holder.in_force("pod_gpus"):
                yield passed(workload.id)
            else:
                limits = holder.in_force("pod_cpus") or holder.in_force("pod_memory_mib")
                yield failed(
                    workload.id,
                    f"{quoted(backend)} needs a GPU for each rank, and the limits of {holder.name or 'the pod'}"
                    f" ({quoted(limits[0])}) name none.",
                    at=backend,
                    also=((limits[0], "limits without GPUs"),),
                    remedy="Add `nvidia.com/gpu` to the limits.",
                )


def _nccl_claim(job: Job, launch: str) -> Claim | None:
    found = [c for c in job.about("backend") if c.scope.launch == launch and c.source == "arguments"]
    return found[0] if found else None


def _limits_something(role: Role) -> bool:
    return bool(role.in_force("pod_gpus") or role.in_force("pod_cpus") or role.in_force("pod_memory_mib"))

"""Pods: their resource requests, GPUs that they hold without using, and their life cycle."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity, Status
from preflight.model.job import Claim, Job, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import counted, joined, placed, quoted
from preflight_rules.kubernetes.workloads import Role, Workload, workloads
from preflight_rules.launches import certainly_several

#: The default of containerd and CRI-O (runc's default mount of /dev/shm).
_DEFAULT_SHM_MIB = 64
#: Size below which several ranks of one pod are known to fail (NVIDIA's containers advise 1 GiB).
_SMALL_SHM_MIB = 256


@rule(
    "KUB001",
    "gpu-request-without-equal-limit",
    severity=Severity.ERROR,
    otherwise="no pod requests GPUs separately from its limits",
)
def gpu_request_without_equal_limit(job: Job) -> Iterator[Verdict]:
    """A pod requests GPUs without an equal limit.

    What it checks: If the containers of a pod request GPUs, their limits name the same number.

    Why it matters: GPUs are extended resources, which cannot be overcommitted: the API server rejects the pod ("Limit
    must be set for non overcommitable resources"), and the operator retries forever without creating a pod.

    Example: `resources: {requests: {nvidia.com/gpu: 8}}` with no limits.

    Fix: Set `limits` only; requests then follow.

    Known limits: The containers of a pod are summed.
    """
    for workload in workloads(job):
        for role in workload.roles:
            requests, limits = role.setting("pod_gpu_requests"), role.setting("pod_gpus")
            if not requests:
                continue
            verdict = undecided(workload.id, (*requests, *limits))
            if verdict is None and not limits:
                verdict = failed(
                    workload.id,
                    f"{quoted(requests[0])} is under `requests` without a limit: the API server rejects such a pod.",
                    at=requests[0],
                    remedy=f"Move {quoted(requests[0])} to `limits`.",
                )
            elif verdict is None and not set(numbers(job_value(requests))) & set(numbers(job_value(limits))):
                verdict = failed(
                    workload.id,
                    f"{quoted(requests[0])} under `requests` differs from {placed(limits[0])} under `limits`:"
                    " the API server rejects such a pod.",
                    at=requests[0],
                    also=((limits[0], "the limit"),),
                    remedy="Set `limits` only, or make the two equal.",
                )
            yield verdict or passed(workload.id)


@rule(
    "KUB002",
    "shared-memory-not-enlarged",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no pod certainly runs several ranks or loader workers",
)
def shared_memory_not_enlarged(job: Job) -> Iterator[Verdict]:
    """Several ranks or loader workers of one pod share the default /dev/shm of 64 MiB.

    What it checks: A training pod with more than one GPU, or with one GPU and loader workers, mounts a volume at
    /dev/shm, and that volume has at least 256 MiB.

    Why it matters: NCCL keeps the buffers that the ranks of a node share in /dev/shm and stops with "posix_fallocate
    failed: No space left on device"; loader workers pass their batches through it and die with "Bus error".

    Example: `limits: {nvidia.com/gpu: 8}` and no volume mounted at /dev/shm.

    Fix: Add `volumes: [{name: dshm, emptyDir: {medium: Memory}}]` and mount it at /dev/shm. Its content counts against
    the pod's memory limit.

    Known limits: A site may enlarge /dev/shm for all pods with an admission webhook, which no manifest shows. A
    training runtime is a template that its jobs may patch, so it gets a hint only. Ray sizes its own object store and
    is not judged.
    """
    for workload in workloads(job):
        if workload.kind.startswith("Ray"):
            continue
        verdicts = [
            (role, _shm_verdict(workload, role, reason))
            for role in workload.trainers
            if (reason := _shm_reason(workload, role))
        ]
        # One finding names all roles, because the same volume is missing in each of their templates.
        faults = [(role, verdict) for role, verdict in verdicts if verdict.status is Status.FAIL]
        if len(faults) > 1:
            also = tuple((role.count, role.name) for role, _ in faults[:4])
            first = faults[0][0]
            yield _shm_verdict(workload, first, _shm_reason(workload, first), also=also)
        else:
            yield from (verdict for _, verdict in faults or verdicts)


def _shm_reason(workload: Workload, role: Role) -> str:
    """Return why a role's pods need a large /dev/shm; empty if they do not, or if this is unknown."""
    if role.gpus and min(role.gpus) > 1:
        return f"{joined(role.gpus)} GPUs in each pod"
    for owner, scope in workload.launches():
        workers = workload.job.setting("dataloader_workers", scope)
        counts = numbers(job_value(workers)) if workers else ()
        if owner.name == role.name and role.gpus and counts and min(counts) > 1:
            return f"{placed(workers[0])} for each rank"
    return ""


def _shm_verdict(workload: Workload, role: Role, reason: str, *, also: tuple[tuple[Claim, str], ...] = ()) -> Verdict:
    sizes = role.setting("shm_mib")
    if not sizes:
        gpus = role.setting("pod_gpus")
        return failed(
            workload.id,
            f"/dev/shm has its default size, {_DEFAULT_SHM_MIB} MiB, which is too small for {reason}.",
            at=gpus[0] if gpus else role.count,
            also=also,
            remedy="Mount an emptyDir with `medium: Memory` at /dev/shm.",
            severity=Severity.INFO if workload.kind.endswith("TrainingRuntime") else None,
        )
    known_sizes = [claim for claim in sizes if not isinstance(claim.value, Unresolved)]
    if known_sizes and all(size < _SMALL_SHM_MIB for claim in known_sizes for size in numbers(claim.value)):
        return failed(
            workload.id,
            f"{quoted(known_sizes[0])} limits /dev/shm to {joined(numbers(known_sizes[0].value))} MiB, which is too "
            f"small for {reason}.",
            at=known_sizes[0],
            also=also,
            remedy="Raise sizeLimit to several GiB, or remove it: the pod's memory limit bounds the volume anyway.",
        )
    if not known_sizes and "placeholder" in str(getattr(sizes[0].value, "why", "")):
        return unknown(workload.id, f"{quoted(sizes[0])} is unknown: {getattr(sizes[0].value, 'why', '')}", at=sizes[0])
    return passed(workload.id)


@rule(
    "KUB021",
    "cpu-limit-below-ranks",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no training pod limits both CPUs and GPUs",
)
def cpu_limit_below_ranks(job: Job) -> Iterator[Verdict]:
    """A pod's CPU limit is below one core per GPU.

    What it checks: The CPU limit of a training pod is at least one core for each of its GPUs.

    Why it matters: Each rank has a Python thread, NCCL's proxy threads and its loader workers. A limit is enforced by
    stopping all of these for the rest of each 100 ms period: the GPUs wait, and no log shows why.

    Example: `limits: {nvidia.com/gpu: 8, cpu: 4}`.

    Fix: Give the pod several cores per GPU, or no CPU limit (a request is enough for scheduling).

    Known limits: The usual advice is two to four cores per GPU; only limits below one core are reported.
    """
    for workload in workloads(job):
        for role in workload.trainers:
            cores, gpus = role.setting("pod_cpus"), role.setting("pod_gpus")
            if not cores or not gpus:
                continue
            verdict = undecided(workload.id, (*cores, *gpus))
            limit = max((float(str(item)) for claim in cores for item in claim.alternatives), default=0.0)
            if verdict is None and role.gpus and limit < min(role.gpus):
                verdict = failed(
                    workload.id,
                    f"{quoted(cores[0])} limits the pod to {limit:g} cores for {placed(gpus[0])}: less than one for"
                    " each GPU's rank, its loader workers and NCCL's threads.",
                    at=cores[0],
                    also=((gpus[0], "GPUs"),),
                    remedy=f"Raise the limit to {4 * min(role.gpus)} cores or more, or remove it.",
                )
            yield verdict or passed(workload.id)


@rule(
    "KUB026",
    "shared-memory-above-memory-limit",
    severity=Severity.WARNING,
    otherwise="no pod limits both its memory and the volume at /dev/shm",
)
def shared_memory_above_memory_limit(job: Job) -> Iterator[Verdict]:
    """A pod's /dev/shm may grow beyond the pod's memory limit.

    What it checks: The sizeLimit of the memory volume at /dev/shm is below the pod's memory limit.

    Why it matters: Data in a memory volume counts as the container's memory. Loader workers and NCCL rely on the
    volume's size, but the container is killed for its memory use before the volume is full.

    Example: `sizeLimit: 64Gi` and `limits: {memory: 32Gi}`.

    Fix: Raise the memory limit to the processes' need plus the volume, or lower the sizeLimit.

    Known limits: A volume that is never filled does no harm, but is reported.
    """
    for workload in workloads(job):
        for role in workload.trainers:
            sizes, limits = role.setting("shm_mib"), role.setting("pod_memory_mib")
            known_sizes = [claim for claim in sizes if not isinstance(claim.value, Unresolved)]
            if not sizes or not limits:
                continue
            verdict = undecided(workload.id, (*limits, *(known_sizes or sizes)))
            shm, memory = numbers(job_value(known_sizes)) if known_sizes else (), numbers(job_value(limits))
            if verdict is None and shm and memory and min(shm) >= max(memory):
                verdict = failed(
                    workload.id,
                    f"{quoted(known_sizes[0])} lets /dev/shm grow to {min(shm)} MiB, and {placed(limits[0])} kills"
                    f" the pod at {max(memory)} MiB, including the content of /dev/shm.",
                    at=known_sizes[0],
                    also=((limits[0], "the pod's memory"),),
                    remedy="Raise the memory limit above the volume, or make the volume smaller.",
                )
            yield verdict or passed(workload.id)


@rule(
    "CST010",
    "gpus-on-pod-that-trains-nothing",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no pod without ranks requests a GPU",
    profile="pedantic",
)
def gpus_on_pod_that_trains_nothing(job: Job) -> Iterator[Verdict]:
    """The launcher of an MPIJob holds GPUs, or a Ray head that does not offer them does.

    What it checks: The Launcher of an MPIJob with workers requests no GPU (unless `runLauncherAsWorker`), and a Ray
    head with `num-gpus: "0"` requests none.

    Why it matters: The launcher only runs mpirun and waits; a Ray head that announces no GPU never runs a GPU task. The
    GPUs are paid for during the whole run, and a job that needs GPUs does not start.

    Example: `nvidia.com/gpu: 1` in the Launcher's limits.

    Fix: Remove the GPU from that pod.

    Known limits: mpirun that starts ranks on the launcher's own host (an mpirun with -H localhost) is not recognized.
    """
    for workload in workloads(job):
        for role in workload.roles:
            gpus = role.setting("pod_gpus")
            if not gpus or not _runs_no_rank(workload, role):
                continue
            verdict = undecided(workload.id, gpus)
            gpu_counts = numbers(job_value(gpus))
            if verdict is None and gpu_counts and min(gpu_counts) > 0:
                verdict = failed(
                    workload.id,
                    f"{quoted(gpus[0])} requests {counted(min(gpu_counts), 'GPU')} for {role.name}, which runs no"
                    " rank.",
                    at=gpus[0],
                    remedy=f"Remove the GPU from {role.name}.",
                )
            yield verdict or passed(workload.id)


def _runs_no_rank(workload: Workload, role: Role) -> bool:
    if workload.kind == "MPIJob":
        workers = [other for other in workload.roles if other.name == "Worker"]
        return role.name == "Launcher" and bool(workers) and not workload.setting("launcher_trains")
    gpus = role.setting("ray_num_gpus")
    return bool(gpus) and numbers(job_value(gpus)) == (0,)


@rule(
    "CST011",
    "gpus-beside-cpu-backend",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch line in a pod with GPUs names its backend",
)
def gpus_beside_cpu_backend(job: Job) -> Iterator[Verdict]:
    """Pods request GPUs, but the launch line uses a CPU backend.

    What it checks: A launch line in a pod with GPUs does not pass `gloo` or `mpi` as its only backend.

    Why it matters: Either the training runs on CPUs while the GPUs are paid for, or each gradient is copied through
    host memory.

    Example: `args: [--backend, gloo]` with `nvidia.com/gpu: 1`.

    Fix: `--backend nccl`, or pods without GPUs.

    Known limits: A script that uses gloo next to nccl on purpose (for objects or barriers) passes it in code, which is
    not checked here.
    """
    for workload in workloads(job):
        for role, scope in workload.launches():
            gpus, backends = role.setting("pod_gpus"), job.setting("backend", scope)
            backend_claims = [claim for claim in backends if claim.source == "arguments"]
            if gpus and not backend_claims and _plain_backend(job, scope) in ("gloo", "mpi"):
                yield failed(
                    workload.id,
                    f"`--backend {_plain_backend(job, scope)}` keeps the ranks' collectives on the CPU, and"
                    f" {placed(gpus[0])} gives each pod GPUs.",
                    at=job.launch(scope.launch),
                    also=((gpus[0], "GPUs"),),
                    remedy="Pass nccl, or request pods without GPUs.",
                )
                continue
            if not gpus or not backend_claims:
                continue
            verdict = undecided(workload.id, (*gpus, *backend_claims))
            backend_names = {text.lower() for claim in backend_claims for text in texts(claim.value)}
            if verdict is None and backend_names and backend_names <= {"gloo", "mpi"}:
                verdict = failed(
                    workload.id,
                    f"{quoted(backend_claims[0])} keeps the ranks' collectives on the CPU, and {placed(gpus[0])}"
                    f" gives each pod {counted(min(numbers(job_value(gpus)), default=1), 'GPU')}.",
                    at=backend_claims[0],
                    also=((gpus[0], "GPUs"),),
                    remedy="Pass nccl, or request pods without GPUs.",
                )
            yield verdict or passed(workload.id)


def _plain_backend(job: Job, scope: Scope) -> str:
    """Return the value of `--backend` in lower case, which a program may use for other things; empty if not given."""
    words = job.launch(scope.launch).arguments
    for index, word in enumerate(words):
        if word == "--backend":
            return (next(iter(words[index + 1 : index + 2]), None) or "").lower()
        if word is not None and word.startswith("--backend="):
            return word.partition("=")[2].lower()
    return ""


@rule(
    "KUB020",
    "ray-announces-more-gpus-than-pod",
    severity=Severity.WARNING,
    otherwise="no Ray node sets num-gpus",
)
def ray_announces_more_gpus_than_pod(job: Job) -> Iterator[Verdict]:
    """A Ray node announces more GPUs than its pod has.

    What it checks: `num-gpus` among rayStartParams is at most the GPU limit of the pod.

    Why it matters: Ray sends tasks to GPUs that do not exist: they fail with "No CUDA GPUs are available", or two share
    one device.

    Example: `num-gpus: "8"` and `limits: {nvidia.com/gpu: 4}`.

    Fix: Remove num-gpus: KubeRay uses the limits.

    Known limits: Fewer than the limit is allowed: some GPUs may be kept for something else. Without any limit, the
    finding is a hint, because a test may pretend to have GPUs.
    """
    for workload in workloads(job):
        for role in workload.roles:
            announcements, gpus = role.setting("ray_num_gpus"), role.setting("pod_gpus")
            if not announcements:
                continue
            verdict = undecided(workload.id, (*announcements, *gpus))
            announced, gpu_count = numbers(job_value(announcements)), numbers(job_value(gpus)) if gpus else (0,)
            if verdict is None and announced and gpu_count and min(announced) > max(gpu_count):
                limit_text = (
                    f"{placed(gpus[0])} gives the container only {max(gpu_count)}"
                    if gpus
                    else ("its limits request none")
                )
                verdict = failed(
                    workload.id,
                    f"{quoted(announcements[0])} announces {min(announced)} GPUs for {role.name}, and {limit_text}.",
                    at=announcements[0],
                    also=((gpus[0], "the limit"),) if gpus else (),
                    remedy="Remove num-gpus: KubeRay uses the limits.",
                    severity=None if gpus else Severity.INFO,
                )
            yield verdict or passed(workload.id)


#: Labels of spot and preemptible nodes.
_SPOT_LABELS = re.compile(
    r"cloud\.google\.com/gke-(?:spot|preemptible|provisioning)=(?:true|spot)|eks\.amazonaws\.com/capacityType=SPOT"
    r"|karpenter\.sh/capacity-type=spot|kubernetes\.azure\.com/scalesetpriority=spot|(?:.*/)?(?:lifecycle|capacity)=.*spot"
    r"|(?:.*/)?(?:spot|preemptible)=true",
    re.IGNORECASE,
)
_CHECKPOINT_WORDS = re.compile(r"resume|checkpoint|ckpt|save|restore|load|snapshot|output[_-]dir", re.IGNORECASE)
_ALLOWED_POLICIES = frozenset(("Never", "OnFailure"))


@rule(
    "KUB013",
    "job-restart-policy-rejected",
    severity=Severity.ERROR,
    fix="unsafe",
    otherwise="no native Kubernetes Job starts ranks",
)
def job_restart_policy_rejected(job: Job) -> Iterator[Verdict]:
    """A Job's pods have a restart policy that Kubernetes rejects.

    What it checks: The pod template of a `batch/v1` Job has `restartPolicy: Never` or `OnFailure`.

    Why it matters: The API server rejects any other Job; the default of a pod template is `Always`.

    Example: A Job that trains, without `restartPolicy`.

    Fix: `restartPolicy: Never`, with `backoffLimit` for the retries.

    Known limits: An overlay or a template may add a missing policy, so the finding is a warning.
    """
    for workload in workloads(job):
        if (workload.group, workload.kind) not in (("batch", "Job"), ("batch", "CronJob")):
            continue
        for role in workload.roles:
            policies = role.setting("restart_policy")
            if any(isinstance(claim.value, Unresolved) for claim in policies):
                yield unknown(workload.id, f"{quoted(policies[0])} is known only at run time", at=policies[0])
            elif not policies:
                yield failed(
                    workload.id,
                    "The pod template has no restartPolicy; the default, `Always`, is not allowed in a Job, so the "
                    "API server rejects it.",
                    at=workload.head,
                    remedy="Add `restartPolicy: Never` to the pod's spec.",
                    severity=Severity.WARNING,
                )
            elif not _ALLOWED_POLICIES & set(texts(policies[0].value)):
                yield failed(
                    workload.id,
                    f"{quoted(policies[0])} is not allowed in a Job: expected Never or OnFailure.",
                    at=policies[0],
                    remedy="Write `restartPolicy: Never`.",
                    # Unsafe: whether failed pods are restarted is the user's choice.
                    fix=make_fix(
                        "write Never", replace_text(policies[0], texts(policies[0].value)[0], "Never"), safe=False
                    )
                    if texts(policies[0].value)
                    else None,
                )
            else:
                yield passed(workload.id)


@rule(
    "KUB034",
    "pods-restarted-after-success",
    severity=Severity.WARNING,
    otherwise="no Volcano job starts ranks in pods that finish",
)
def pods_restarted_after_success(job: Job) -> Iterator[Verdict]:
    """The pods of a Volcano job are restarted after their program has ended.

    What it checks: The pod template of each task of a Volcano Job that starts ranks, or whose policy ends the job on
    `TaskCompleted`, has `restartPolicy: OnFailure` or `Never`.

    Why it matters: The default of a pod template is `Always`. Volcano keeps it, although a native Job would be
    rejected. Containers that exit with 0 are restarted, so the pods never succeed and the job keeps its GPUs: the
    master is in CrashLoopBackOff, and the workers wait for it. A policy for `TaskCompleted` never applies.

    Example: A task with `torchrun train.py` and no `restartPolicy`.

    Fix: `restartPolicy: OnFailure`, or `Never`.

    Known limits: Tasks of parameter servers, pods with a command that does not end by itself (`sleep infinity`, sshd, a
    server), and tasks that are stopped when another task ends are not judged. An overlay or a webhook may add the
    policy, so the finding is a warning.
    """
    for workload in workloads(job):
        policies = [(role, claim) for role in workload.roles for claim in role.setting("pod_restarts")]
        if not policies:
            continue
        endings = workload.claims.of(workload.id, "job_ending_policy")
        ended = any(_may_end(workload, role, endings) for role in workload.roles)
        wrong = []
        for role, claim in policies:
            own = [ending for ending in endings if ending.scope.role == role.name]
            if (own or (not ended and role.trains)) and not _ALLOWED_POLICIES & set(texts(claim.value)):
                wrong.append((claim, own))
        wrong = [(claim, own) for claim, own in wrong if not isinstance(claim.value, Unresolved)]
        unresolved = next((claim for _, claim in policies if isinstance(claim.value, Unresolved)), None)
        if wrong:
            (claim, own), *_ = wrong
            policy = "has no restartPolicy, so the default `Always` applies"
            if claim.spelling.startswith("restartPolicy"):
                policy = f"has {quoted(claim)}"
            effect = "the pods never succeed, and the job never ends"
            if own:
                effect = f"the pods never succeed, so {quoted(own[0])} never applies"
            yield failed(
                workload.id,
                f"The pod template of {claim.scope.role} {policy}: containers that exit with 0 are restarted, "
                f"{effect}.",
                at=claim,
                also=(*((item, item.scope.role) for item, _ in wrong[1:]), *((item, "never applies") for item in own)),
                remedy="Write `restartPolicy: OnFailure` or `Never` in the spec of each pod template.",
            )
        elif unresolved is not None:
            yield unknown(workload.id, f"{quoted(unresolved)} is known only at run time", at=unresolved)
        else:
            yield passed(workload.id)


def _may_end(workload: Workload, role: Role, endings: tuple[Claim, ...]) -> bool:
    """Return whether the whole job may end with a role's pods, because they may succeed and a policy then ends the
    job.
    """
    policies = role.setting("restart_policy")
    if not policies or texts(policies[0].value) == ("Always",):
        return False
    return any(ending.scope.role in ("", role.name) for ending in endings)


@rule(
    "KUB014",
    "completion-index-without-indexed-mode",
    severity=Severity.ERROR,
    otherwise="no Job's launch line uses a completion index",
)
def completion_index_without_indexed_mode(job: Job) -> Iterator[Verdict]:
    """A Job's ranks use a completion index that its pods do not have.

    What it checks: A Job whose launch line uses JOB_COMPLETION_INDEX has `completionMode: Indexed`.

    Why it matters: Without it the variable is empty in every pod: all pods claim the same rank, or the launcher stops
    because the number is empty.

    Example: `torchrun --node_rank=$JOB_COMPLETION_INDEX` in a Job with `parallelism: 4` and no completionMode.

    Fix: `completionMode: Indexed`, and a headless service so that pod 0 has a name.

    Known limits: Only launch lines in the manifest are judged.
    """
    for workload in workloads(job):
        modes = workload.setting("completion_mode")
        index_claims = [
            claim
            for _, scope in workload.launches()
            if (claim := _completion_index_claim(job, scope.launch)) is not None
        ]
        if not modes or not index_claims:
            continue
        verdict = undecided(workload.id, modes)
        if verdict is None and "Indexed" not in texts(modes[0].value):
            verdict = failed(
                workload.id,
                f"{quoted(index_claims[0])} requires a completion index, but the Job's pods have none: completionMode"
                f" is {texts(modes[0].value)[0]}.",
                at=index_claims[0],
                also=((modes[0], "no `completionMode: Indexed`"),),
                remedy="Add `completionMode: Indexed` to the Job's spec.",
            )
        yield verdict or passed(workload.id)


def _completion_index_claim(job: Job, launch: str) -> Claim | None:
    ranks = [claim for claim in job.about("node_rank") if claim.scope.launch == launch]
    return next((claim for claim in ranks if "JOB_COMPLETION_INDEX" in claim.spelling), None)


@rule(
    "KUB015",
    "single-node-volume-on-several-pods",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no pod mounts a volume claim of these files",
)
def single_node_volume_on_several_pods(job: Job) -> Iterator[Verdict]:
    """Several pods of one job mount a volume that only one node or one pod may mount.

    What it checks: No role with several pods mounts, for writing, a persistent volume claim of the same files that has
    ReadWriteOnce or ReadWriteOncePod.

    Why it matters: The pods on the second node stay in ContainerCreating ("Multi-Attach error"), while the first ones
    hold their GPUs and wait.

    Example: `accessModes: [ReadWriteOnce]` and a Worker with `replicas: 4` that mounts the claim.

    Fix: A storage class with ReadWriteMany, or a separate volume for each pod.

    Known limits: Pods that all fit on one node can share a ReadWriteOnce volume.
    """
    modes = {
        text: claim
        for claim in job.about("volume_access")
        for mount_claim in job.about("shared_volume")
        if mount_claim.scope == claim.scope and not mount_claim.scope.role
        for text in texts(mount_claim.value)
    }
    for workload in workloads(job):
        for role in workload.roles:
            for mount in role.about("shared_volume"):
                access = next((modes[text] for text in texts(mount.value) if text in modes), None)
                if access is None or not mount.scope.role:
                    continue
                verdict = undecided(workload.id, (access, role.count))
                modes_of_volume = {
                    str(mode) for item in access.alternatives if isinstance(item, tuple) for mode in item
                }
                holder = "pod" if "ReadWriteOncePod" in modes_of_volume else "node"
                if (
                    verdict is None
                    and modes_of_volume
                    and modes_of_volume <= {"ReadWriteOnce", "ReadWriteOncePod"}
                    and certainly_several(role.count.value)
                ):
                    verdict = failed(
                        workload.id,
                        f"{placed(mount)} is mounted by {max(numbers(role.count.value))} pods "
                        f"({quoted(role.count)}), but {placed(access)} allows only one {holder} to mount it.",
                        at=mount,
                        also=((access, "access modes"), (role.count, "pods")),
                        remedy="Use a claim with ReadWriteMany, or one claim for each pod.",
                    )
                yield verdict or passed(workload.id)


@rule(
    "KUB016",
    "preemptible-nodes-without-resume",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no training pod is scheduled on preemptible nodes",
    profile="pedantic",
)
def preemptible_nodes_without_resume(job: Job) -> Iterator[Verdict]:
    """A job runs on spot or preemptible nodes, and its launch line names no checkpoint.

    What it checks: If a node selector requests spot or preemptible nodes, some argument of the program is about saving,
    loading, checkpoints, resuming or an output directory.

    Why it matters: The nodes are reclaimed with 30 seconds' to two minutes' notice. Without a checkpoint the job starts
    from scratch each time, and every lost hour is paid for.

    Example: `nodeSelector: {cloud.google.com/gke-spot: "true"}` and `torchrun train.py --lr 0.1`.

    Fix: Save checkpoints at an interval shorter than the acceptable loss, and resume from the last one at start.

    Known limits: A script may save and resume without any argument, so the finding is a warning of medium confidence,
    or a hint if the command line is unknown.
    """
    for workload in workloads(job):
        for role in workload.trainers:
            spot_labels = [
                c for c in role.about("node_label") if any(_SPOT_LABELS.fullmatch(text) for text in texts(c.value))
            ]
            if not spot_labels:
                continue
            yield _spot_verdict(workload, spot_labels[0])


def _spot_verdict(workload: Workload, label: Claim) -> Verdict:
    launches = [
        launch for _, scope in workload.launches() for launch in workload.job.launches if launch.id == scope.launch
    ]
    arguments = [argument for launch in launches for argument in launch.arguments]
    if not launches or any(argument is None for argument in arguments):
        return unknown(workload.id, "the program's command line is not completely known", at=label)
    if any(_CHECKPOINT_WORDS.search(argument) for argument in arguments if argument) or workload.job.about(
        "checkpoint_written"
    ):
        return passed(workload.id)
    return failed(
        workload.id,
        f"{quoted(label)} schedules the job on nodes that may be reclaimed, but no argument of the program names a "
        "checkpoint.",
        at=label,
        also=((launches[0], "starts without a checkpoint argument"),),
        remedy="Save checkpoints and resume from the last one, or use nodes that are not preemptible.",
    )

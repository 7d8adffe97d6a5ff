"""GPUs that pods hold without using them, or use without holding them."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Job, Scope
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided
from preflight.plugins.claim_text import counted, placed, quoted
from preflight_rules.kubernetes.workloads import Role, Workload, workloads


@rule(
    "CST010",
    "gpus-on-pod-that-trains-nothing",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no pod without ranks requests a GPU",
    profile="pedantic",
)
def gpus_on_pod_that_trains_nothing(job: Job) -> Iterator[Verdict]:
    """The launcher of an MPIJob, or a Ray head that offers none, holds GPUs.

    What it checks: The Launcher of an MPIJob with workers requests no GPU (unless `runLauncherAsWorker`), and a Ray
    head with `num-gpus: "0"` requests none.

    Why it matters: The launcher only runs mpirun and waits; a Ray head that announces no GPU is given no task that
    needs one. The GPUs are paid for over the whole run, and a job that needs them does not start.

    Example: `nvidia.com/gpu: 1` in the Launcher's limits.

    Fix: Remove the GPU from that pod.

    Known limits: mpirun that starts ranks on the launcher's own host (an mpirun with -H localhost) is not recognised.
    """
    for workload in workloads(job):
        for role in workload.roles:
            gpus = role.in_force("pod_gpus")
            if not gpus or not _runs_no_rank(workload, role):
                continue
            verdict = undecided(workload.id, gpus)
            found = numbers(job_value(gpus))
            if verdict is None and found and min(found) > 0:
                verdict = failed(
                    workload.id,
                    f"{quoted(gpus[0])} requests {counted(min(found), 'GPU')} for {role.name}, which runs no rank.",
                    at=gpus[0],
                    remedy=f"Remove the GPU from {role.name}.",
                )
            yield verdict or passed(workload.id)


def _runs_no_rank(workload: Workload, role: Role) -> bool:
    if workload.kind == "MPIJob":
        workers = [other for other in workload.roles if other.name == "Worker"]
        return role.name == "Launcher" and bool(workers) and not workload.in_force("launcher_trains")
    announced = role.in_force("ray_num_gpus")
    return bool(announced) and numbers(job_value(announced)) == (0,)


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

    Known limits: A script that uses gloo beside nccl on purpose (for objects, for barriers) passes it in code, which is
    not checked here.
    """
    for workload in workloads(job):
        for role, scope in workload.launches():
            gpus, backends = role.in_force("pod_gpus"), job.setting("backend", scope)
            stated = [claim for claim in backends if claim.source == "arguments"]
            if gpus and not stated and _plain_backend(job, scope) in ("gloo", "mpi"):
                yield failed(
                    workload.id,
                    f"`--backend {_plain_backend(job, scope)}` keeps the ranks' collectives on the CPU, and"
                    f" {placed(gpus[0])} gives each pod GPUs.",
                    at=job.launch(scope.launch),
                    also=((gpus[0], "GPUs"),),
                    remedy="Pass nccl, or request pods without GPUs.",
                )
                continue
            if not gpus or not stated:
                continue
            verdict = undecided(workload.id, (*gpus, *stated))
            found = {text.lower() for claim in stated for text in texts(claim.value)}
            if verdict is None and found and found <= {"gloo", "mpi"}:
                verdict = failed(
                    workload.id,
                    f"{quoted(stated[0])} keeps the ranks' collectives on the CPU, and {placed(gpus[0])} gives each pod"
                    f" {counted(min(numbers(job_value(gpus)), default=1), 'GPU')}.",
                    at=stated[0],
                    also=((gpus[0], "GPUs"),),
                    remedy="Pass nccl, or request pods without GPUs.",
                )
            yield verdict or passed(workload.id)


def _plain_backend(job: Job, scope: Scope) -> str:
    """The value of `--backend`, which some programs use for something other than collectives."""
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
    otherwise="no Ray node announces its GPUs itself",
)
def ray_announces_more_gpus_than_pod(job: Job) -> Iterator[Verdict]:
    """A Ray node announces more GPUs than its pod has.

    What it checks: `num-gpus` among rayStartParams is at most the GPU limit of the pod.

    Why it matters: Ray sends tasks to GPUs that do not exist: they fail with "No CUDA GPUs are available", or two share
    one device.

    Example: `num-gpus: "8"` and `limits: {nvidia.com/gpu: 4}`.

    Fix: Remove num-gpus: KubeRay takes it from the limits.

    Known limits: Fewer than the limit is allowed: some GPUs may be kept for something else. Without any limit it is a
    hint, because a test may pretend to have GPUs.
    """
    for workload in workloads(job):
        for role in workload.roles:
            announced, gpus = role.in_force("ray_num_gpus"), role.in_force("pod_gpus")
            if not announced:
                continue
            verdict = undecided(workload.id, (*announced, *gpus))
            wanted, gpu_count = numbers(job_value(announced)), numbers(job_value(gpus)) if gpus else (0,)
            if verdict is None and wanted and gpu_count and min(wanted) > max(gpu_count):
                workers = f"{placed(gpus[0])} gives it only {max(gpu_count)}" if gpus else "its limits name none"
                verdict = failed(
                    workload.id,
                    f"{quoted(announced[0])} announces {min(wanted)} GPUs for {role.name}, and {workers}.",
                    at=announced[0],
                    also=((gpus[0], "the limit"),) if gpus else (),
                    remedy="Remove num-gpus: KubeRay takes it from the limits.",
                    severity=None if gpus else Severity.INFO,
                )
            yield verdict or passed(workload.id)

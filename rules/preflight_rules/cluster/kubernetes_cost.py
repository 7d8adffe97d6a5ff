"""What pods hold and do not use, and what they use and do not hold."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.outcome import Confidence, Severity
from preflight_rules.cluster.workloads import Role, Workload, workloads
from preflight_rules.reading import counted, job_value, numbers, placed, quoted, texts, undecided


@rule(
    "CST010",
    "gpus-on-pod-that-trains-nothing",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/mpi/",
        "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html",
    ),
)
def gpus_on_pod_that_trains_nothing(job: Job) -> Iterator[Verdict]:
    """The launcher of an MPIJob, or a Ray head that offers none, holds GPUs.

    What it checks:
        The Launcher of an MPIJob with workers asks for no GPU (unless `runLauncherAsWorker`), and a Ray head with
        `num-gpus: "0"` asks for none.

    Why it matters:
        The launcher only runs mpirun and waits; a Ray head that announces no GPU is given no task that needs one. The
        GPUs are paid for over the whole run, and a job that needs them does not start.

    Example:
        `nvidia.com/gpu: 1` in the Launcher's limits.

    Fix:
        Remove the GPU from that pod.

    Known limits:
        mpirun that starts ranks on the launcher's own host (an mpirun with -H localhost) is not recognised.

    Evidence:
        Kubeflow documentation, MPIJob; Ray documentation, KubeRay configuration.
    """
    met = False
    for workload in workloads(job):
        for role in workload.roles:
            gpus = role.say("pod_gpus")
            if not gpus or not _idles(workload, role):
                continue
            met = True
            open_end = undecided(workload.id, gpus)
            found = numbers(job_value(gpus))
            if open_end is not None:
                yield open_end
            elif found and min(found) > 0:
                yield failed(
                    workload.id,
                    f"{quoted(gpus[0])} gives {counted(min(found), 'GPU')} to {role.name}, which runs no rank.",
                    at=gpus[0],
                    remedy=f"Remove the GPU from {role.name}.",
                )
            else:
                yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no pod that trains nothing holds a GPU")


def _idles(workload: Workload, role: Role) -> bool:
    if workload.kind == "MPIJob":
        beside = [other for other in workload.roles if other.name == "Worker"]
        return role.name == "Launcher" and bool(beside) and not workload.say("launcher_trains")
    announced = role.say("ray_num_gpus")
    return bool(announced) and numbers(job_value(announced)) == (0,)


@rule(
    "CST011",
    "gpus-beside-cpu-backend",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://docs.pytorch.org/docs/stable/distributed.html#backends", "kubeflow/pytorch-operator#258"),
)
def gpus_beside_cpu_backend(job: Job) -> Iterator[Verdict]:
    """Pods hold GPUs and the launch line asks for a back end that works on CPUs.

    What it checks:
        A launch line in a pod with GPUs does not pass `gloo` or `mpi` as its only back end.

    Why it matters:
        Either the training runs on CPUs while the GPUs are paid for, or each gradient takes the way over host memory.

    Example:
        `args: [--backend, gloo]` with `nvidia.com/gpu: 1`.

    Fix:
        `--backend nccl`, or pods without GPUs.

    Known limits:
        A script that uses gloo beside nccl on purpose (for objects, for barriers) passes it in code, which is not
        looked at here.

    Evidence:
        PyTorch documentation, torch.distributed, "Which backend to use?".
    """
    met = False
    for workload in workloads(job):
        for role, scope in workload.launches():
            gpus, backends = role.say("pod_gpus"), job.setting("backend", scope)
            said = [claim for claim in backends if claim.source == "arguments"]
            if gpus and not said and _plain_backend(job, scope) in ("gloo", "mpi"):
                met = True
                yield failed(
                    workload.id,
                    f"`--backend {_plain_backend(job, scope)}` keeps the ranks' collectives on the CPU, and"
                    f" {placed(gpus[0])} gives each pod GPUs.",
                    at=job.launch(scope.launch),
                    also=((gpus[0], "GPUs"),),
                    remedy="Pass nccl, or ask for pods without GPUs.",
                )
                continue
            if not gpus or not said:
                continue
            met = True
            open_end = undecided(workload.id, (*gpus, *said))
            found = {text.lower() for claim in said for text in texts(claim.value)}
            if open_end is not None:
                yield open_end
            elif found and found <= {"gloo", "mpi"}:
                yield failed(
                    workload.id,
                    f"{quoted(said[0])} keeps the ranks' collectives on the CPU, and {placed(gpus[0])} gives each pod"
                    f" {counted(min(numbers(job_value(gpus)), default=1), 'GPU')}.",
                    at=said[0],
                    also=((gpus[0], "GPUs"),),
                    remedy="Pass nccl, or ask for pods without GPUs.",
                )
            else:
                yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no launch line in a pod with GPUs names its back end")


def _plain_backend(job: Job, scope: Scope) -> str:
    """The value of `--backend`, a name that not every program uses for its collectives."""
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
    evidence=("https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html", "gpustack/gpustack#5509"),
)
def ray_announces_more_gpus_than_pod(job: Job) -> Iterator[Verdict]:
    """A Ray node announces more GPUs than its pod may use.

    What it checks:
        `num-gpus` among rayStartParams is no more than the GPU limit of the pod.

    Why it matters:
        Ray sends tasks to GPUs that do not exist: they fail with "No CUDA GPUs are available", or two share one device.

    Example:
        `num-gpus: "8"` and `limits: {nvidia.com/gpu: 4}`.

    Fix:
        Leave num-gpus out: KubeRay takes it from the limits.

    Known limits:
        Fewer than the limit is allowed: some GPUs may be kept for something else. Without any limit it is a hint,
        because a test may pretend to have GPUs.

    Evidence:
        Ray documentation, KubeRay configuration; gpustack/gpustack#5509.
    """
    met = False
    for workload in workloads(job):
        for role in workload.roles:
            announced, gpus = role.say("ray_num_gpus"), role.say("pod_gpus")
            if not announced:
                continue
            met = True
            open_end = undecided(workload.id, (*announced, *gpus))
            wanted, there = numbers(job_value(announced)), numbers(job_value(gpus)) if gpus else (0,)
            if open_end is not None:
                yield open_end
            elif wanted and there and min(wanted) > max(there):
                beside = f"{placed(gpus[0])} gives it {max(there)}" if gpus else "its limits name none"
                yield failed(
                    workload.id,
                    f"{quoted(announced[0])} announces {min(wanted)} GPUs for {role.name}, and {beside}.",
                    at=announced[0],
                    also=((gpus[0], "the limit"),) if gpus else (),
                    remedy="Leave num-gpus out: KubeRay takes it from the limits.",
                    severity=None if gpus else Severity.INFO,
                )
            else:
                yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no Ray node announces its GPUs itself")

"""Pods that must start together: gang scheduling and the size of the gang; MPIJob: slots, ranks and workers."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.job.claim import job_value
from preflight.model.job.value import known_number, numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, placed, quoted
from preflight_rules.kubernetes.workloads import KUBEFLOW, Role, Workload, workloads


@rule(
    "KUB005",
    "pods-not-gang-scheduled",
    severity=Severity.INFO,
    otherwise="no training job requests GPUs in several pods",
)
def pods_not_gang_scheduled(job: Job) -> Iterator[Verdict]:
    """The pods of a GPU job are not gang-scheduled, so some may start without the others.

    What it checks: A training job of two or more pods that hold GPUs names a gang scheduler, a queue of Kueue, or a pod
    group, and its `minAvailable` counts all training pods.

    Why it matters: In a cluster that is nearly full some pods start and hold their GPUs while the others stay pending;
    two such jobs can wait for each other forever.

    Example: A PyTorchJob with a master and seven workers of 8 GPUs each and no `schedulerName`.

    Fix: `schedulerName: volcano` (or the site's), `runPolicy.schedulingPolicy`, or the label
    `kueue.x-k8s.io/queue-name`.

    Known limits: An operator can be started with gang scheduling for all its jobs, which no manifest shows: therefore a
    hint.
    """
    for workload in workloads(job):
        trainers = workload.trainers
        in_gang = workload.kind in KUBEFLOW or (workload.group == "batch.volcano.sh" and bool(workload.launches()))
        if not in_gang or not any(role.gpus and min(role.gpus) > 0 for role in trainers):
            continue
        pods = workload.pods(trainers)
        unresolved = undecided(workload.id, workload.in_force("gang_min"))
        if unresolved is not None:
            yield unresolved
            continue
        least = numbers(job_value(workload.in_force("gang_min"))) if workload.in_force("gang_min") else ()
        if least and numbers(pods) and 0 < max(least) < min(numbers(pods)):
            stated = workload.in_force("gang_min")[0]
            yield failed(
                workload.id,
                f"{quoted(stated)} lets {max(least)} of {min(numbers(pods))} training pods start without the others"
                " and hold their GPUs while they wait.",
                at=stated,
                also=tuple((role.count, role.name) for role in trainers[:4]),
                remedy=f"Set it to {max(numbers(workload.pods()), default=0)}, the sum of the replicas.",
            )
        elif workload.gangs() or certainly_alone(pods):
            yield passed(workload.id)
        elif not numbers(pods):
            yield unknown(workload.id, "the number of pods is known only at run time", at=workload.head)
        else:
            yield failed(
                workload.id,
                f"{quoted(workload.head)} with {max(numbers(pods))} GPU pods has no gang scheduler, queue or pod "
                "group: some of them may start and hold their GPUs while the others wait.",
                at=workload.head,
                remedy="Name the cluster's gang scheduler in `schedulerName`, or a Kueue queue in the labels.",
            )


def certainly_alone(value: object) -> bool:
    """Whether there is at most one pod."""
    found = numbers(value)  # type: ignore[arg-type]
    return bool(found) and max(found) <= 1


@rule("KUB006", "gang-larger-than-job", severity=Severity.ERROR, otherwise="no job sets the size of its gang")
def gang_larger_than_job(job: Job) -> Iterator[Verdict]:
    """A gang waits for more pods than the job has.

    What it checks: `minAvailable` (or `minMember`) is at most the sum of the replicas of all roles.

    Why it matters: Volcano rejects the job; the other gang schedulers hold all pods back forever, waiting for a pod
    that will never be created.

    Example: `minAvailable: 4` with a master and two workers.

    Fix: Set it to the sum of the replicas, or leave it out: operators then fill in the sum.

    Known limits: A separate PodGroup is not matched with its pods.
    """
    for workload in workloads(job):
        wanted = workload.in_force("gang_min")
        if not wanted or not workload.roles:
            continue
        verdict = undecided(workload.id, (*wanted, *(role.count for role in workload.roles)))
        least, pods = numbers(job_value(wanted)), numbers(workload.pods())
        if verdict is None and least and pods and min(least) > max(pods):
            verdict = failed(
                workload.id,
                f"{quoted(wanted[0])} waits for {min(least)} pods, but the roles have {max(pods)}"
                f" ({', '.join(quoted(role.count) for role in workload.roles[:4])}).",
                at=wanted[0],
                also=tuple((role.count, role.name) for role in workload.roles[:6]),
                remedy=f"Set it to {max(pods)}, or remove it.",
            )
        yield verdict or passed(workload.id)


@rule(
    "KUB007",
    "gang-waits-for-ordered-start",
    severity=Severity.WARNING,
    otherwise="no gang-scheduled job creates its roles one after another",
)
def gang_waits_for_ordered_start(job: Job) -> Iterator[Verdict]:
    """A gang waits for all pods of a job whose roles start one after another.

    What it checks: Where the operator creates the pods of one role only when those of another run (kubedl's PyTorchJob:
    the master first; an MPIJob with `launcherCreationPolicy: WaitForWorkersReady`; tasks of a Volcano Job with
    `dependsOn`), the gang needs no more pods than are created first.

    Why it matters: The gang scheduler holds the first pods back until the others exist, and the operator creates the
    others once the first run: both wait, with enough free GPUs.

    Example: A kubedl PyTorchJob with `schedulerName: volcano`, one master and one worker.

    Fix: Disable the ordered start (kubedl: feature gate DAGScheduling; MPIJob: AtStartup), or set minAvailable to the
    pods that are created first.

    Known limits: Whether kubedl's ordered start is switched off for the whole operator cannot be seen in a manifest.
    """
    for workload in workloads(job):
        order, gangs = workload.in_force("pods_started_first"), workload.gangs()
        if not order or not gangs:
            continue
        wanted = workload.in_force("gang_min")
        if undecided_verdict := undecided(workload.id, (*order, *wanted, *(role.count for role in workload.roles))):
            yield undecided_verdict
            continue
        first = known_number(job_value(order))
        needed = known_number(job_value(wanted)) if wanted else known_number(workload.pods())
        if first is None or needed is None or needed <= first:
            yield passed(workload.id)
            continue
        by = wanted[0] if wanted else gangs[0]
        yield failed(
            workload.id,
            f"{placed(by)} holds pods back until {needed} exist, but {_ordered_by(workload)} creates"
            f" {counted(first, 'pod')} first ({quoted(order[0])}) and the rest once they run: both wait forever.",
            at=by,
            also=((order[0], f"created first: {first}"),),
            remedy=f"Disable the ordered start, or set `minAvailable: {first}`.",
        )


def _ordered_by(workload: Workload) -> str:
    return "kubedl" if workload.group == "training.kubedl.io" else f"the {workload.kind}"


def _worker(workload: Workload) -> Role | None:
    return next((role for role in workload.roles if role.name.lower() == "worker"), None)


@rule(
    "KUB003",
    "mpi-slots-exceed-worker",
    severity=Severity.WARNING,
    otherwise="no MPIJob sets both the slots and the resources of its workers",
)
def mpi_slots_exceed_worker(job: Job) -> Iterator[Verdict]:
    """An MPIJob gives each worker more slots than the worker has GPUs, or CPU cores where it has no GPU.

    What it checks: `slotsPerWorker` is at most the GPU limit of a worker or, without GPUs, its CPU limit.

    Why it matters: mpirun places as many ranks on a worker as it has slots. The ranks beyond the GPUs find no device;
    those beyond the cores are throttled, and Open MPI refuses to bind them ("There are not enough slots available"),
    while launcher and workers stay running.

    Example: `slotsPerWorker: 4` with `limits: {cpu: 2}` for the workers.

    Fix: Set slotsPerWorker to the worker's GPUs (or cores), and mpirun's -np to workers x slots.

    Known limits: A rank that needs less than one core is not recognized.
    """
    for workload in workloads(job):
        slots, worker = workload.in_force("slots_per_worker"), _worker(workload)
        if not slots or worker is None:
            continue
        what = "GPUs" if worker.in_force("pod_gpus") else "CPU cores"
        resources = worker.in_force("pod_gpus") or worker.in_force("pod_cpus")
        if not resources:
            continue
        if undecided_verdict := undecided(workload.id, (*slots, *resources)):
            yield undecided_verdict
            continue
        wanted, most = numbers(job_value(slots)), _most(resources)
        if wanted and min(wanted) > max(most, 1):
            yield failed(
                workload.id,
                f"{quoted(slots[0])} lets mpirun place {min(wanted)} ranks on each worker, but {placed(resources[0])}"
                f" gives a worker {most:g} {what}.",
                at=slots[0],
                also=((resources[0], f"{most:g} {what}"),),
                remedy=f"Set `slotsPerWorker: {max(int(most), 1)}`, or give each worker {min(wanted)} {what}.",
            )
        else:
            yield passed(workload.id)


def _most(claims: tuple[Claim, ...]) -> float:
    return max(float(str(item)) for claim in claims for item in claim.alternatives)


@rule(
    "KUB004", "mpi-ranks-unlike-slots", severity=Severity.WARNING, otherwise="no MPIJob starts a known number of ranks"
)
def mpi_ranks_unlike_slots(job: Job) -> Iterator[Verdict]:
    """mpirun starts more ranks than an MPIJob has slots, or so few that some workers get none.

    What it checks: The `-np` of the launcher's mpirun fits into workers x slotsPerWorker, and reaches every worker:
    ranks fill the slots of one worker before the next.

    Why it matters: Too many ranks: "There are not enough slots available in the system", and the job fails. Too few:
    the ranks share the first workers while the others are paid for and idle.

    Example: Two workers, `slotsPerWorker: 4`, `mpirun -np 2`: both ranks run on the first worker.

    Fix: `-np` = workers x slotsPerWorker.

    Known limits: Nothing is reported where options of mpirun place the ranks (--map-by, -N, --oversubscribe), and where
    the launcher itself is a worker.
    """
    for workload in workloads(job):
        worker = _worker(workload)
        if workload.kind != "MPIJob" or worker is None:
            continue
        for _, scope in workload.launches():
            tasks = job.setting("tasks", scope)
            if not tasks or _places_ranks(job, scope.launch):
                continue
            yield _ranks(workload, worker, tasks[0], workload.in_force("slots_per_worker"))


def _places_ranks(job: Job, launch: str) -> bool:
    mapped = [claim for claim in job.about("mpi_mapping") if claim.scope.launch == launch]
    if any(claim.alternatives not in (("slot",), ("core",)) for claim in mapped):
        return True
    return any(claim.scope.launch == launch for claim in (*job.about("tasks_per_node"), *job.about("hosts")))


def _ranks(workload: Workload, worker: Role, tasks: Claim, slots: tuple[Claim, ...]) -> Verdict:
    if undecided_verdict := undecided(workload.id, (tasks, worker.count, *slots)):
        return undecided_verdict
    ranks, workers = known_number(tasks.value), known_number(worker.count.value)
    each = known_number(job_value(slots)) if slots else 1
    if ranks is None or workers is None or not each:
        return passed(workload.id)
    room = workers * each
    also = [(worker.count, counted(workers, "worker")), *((claim, f"{each} slots each") for claim in slots)]
    remedy = f"Start {room} ranks ({workers} workers x {counted(each, 'slot')}), or change the slots."
    if ranks > room:
        return failed(
            workload.id,
            f"{quoted(tasks)} starts {ranks} ranks, but {workers} workers x {counted(each, 'slot')} hold {room}.",
            at=tasks,
            also=also,
            remedy=remedy,
        )
    used = -(-ranks // each)
    if used < workers:
        return failed(
            workload.id,
            f"{quoted(tasks)} starts {counted(ranks, 'rank')}, which fill the {each} slots of"
            f" {counted(used, 'worker')} first: {workers - used} of {workers} workers get no rank.",
            at=tasks,
            also=also,
            remedy=remedy,
            confidence=Confidence.MEDIUM,
        )
    return passed(workload.id)

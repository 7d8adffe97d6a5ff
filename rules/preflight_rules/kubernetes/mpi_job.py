"""MPIJob: slots, ranks and the resources of the workers."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.job.claim import job_value
from preflight.model.job.value import known_number, numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided
from preflight.plugins.claim_text import counted, placed, quoted
from preflight_rules.kubernetes.workloads import Role, Workload, workloads


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

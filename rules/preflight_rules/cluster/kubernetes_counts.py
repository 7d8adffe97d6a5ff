"""How many pods a role has, and whether the pods of all training roles are of one size."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.cluster.workloads import certainly, workloads
from preflight_rules.reading import placed, quoted, spoken

#: Kinds whose training roles run one program, split only by rank.
_ONE_PROGRAM = frozenset(("PyTorchJob", "PaddleJob", "XGBoostJob", "JAXJob"))
#: Kinds whose master is rank 0, and so can only be one.
_ONE_MASTER = frozenset(("PyTorchJob", "XGBoostJob"))


@rule(
    "KUB028",
    "several-masters",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/",),
)
def several_masters(job: Job) -> Iterator[Verdict]:
    """A job asks for more than one master.

    What it checks:
        `Master` of a PyTorchJob or XGBoostJob has one replica.

    Why it matters:
        The master is rank 0. The operator has no rank for a second one and starts nothing, or two pods take
        themselves for rank 0.

    Example:
        `Master: {replicas: 2}`.

    Fix:
        `replicas: 1` for the Master, and the others as Workers.

    Known limits:
        None known.

    Evidence:
        Kubeflow documentation of PyTorchJob (one master, which is rank 0).
    """
    met = False
    for workload in workloads(job):
        for role in workload.roles:
            if workload.kind not in _ONE_MASTER or role.name.lower() != "master":
                continue
            met = True
            if isinstance(role.count.value, Unresolved):
                yield unknown(workload.id, f"{quoted(role.count)} is filled in later", at=role.count)
            elif certainly(role.count.value, 2):
                yield failed(
                    workload.id,
                    f"{quoted(role.count)} asks for several masters, and the master of a {workload.kind} is rank 0:"
                    " there can be one.",
                    at=role.count,
                    remedy="Ask for one Master, and for the others as Workers.",
                )
            else:
                yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no job has a role for its master")


@rule(
    "KUB029",
    "gpus-differ-between-roles",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("huggingface/accelerate#2335", "NVIDIA/aicr#1858"),
)
def gpus_differ_between_roles(job: Job) -> Iterator[Verdict]:
    """The master and the workers of one job hold different numbers of GPUs.

    What it checks:
        The training roles of a PyTorchJob, PaddleJob, XGBoostJob or JAXJob set one GPU limit.

    Why it matters:
        The operator counts ranks as pods times processes of a pod, and takes the processes for the same everywhere.
        With 8 GPUs here and 4 there, some ranks have no device, or some devices no rank.

    Example:
        `nvidia.com/gpu: 8` for the Master, `nvidia.com/gpu: 4` for the Workers.

    Fix:
        One number in every role.

    Known limits:
        A job whose roles deliberately do different work is not told from one that was edited in one place only.

    Evidence:
        huggingface/accelerate#2335 (machines with different numbers of GPUs hang), NVIDIA/aicr#1858.
    """
    met = False
    for workload in workloads(job):
        trainers = workload.trainers
        if workload.kind not in _ONE_PROGRAM or len(trainers) < 2:
            continue
        limits = [claims[0] for role in trainers if len(claims := role.say("pod_gpus")) == 1]
        if len(limits) < 2:
            continue
        met = True
        open_one = next((claim for claim in limits if isinstance(claim.value, Unresolved)), None)
        if open_one is not None:
            yield unknown(workload.id, f"{quoted(open_one)} is filled in later", at=open_one)
        else:
            yield _compared(workload.id, limits)
    if not met:
        yield not_applicable(job.name, "no job gives GPUs to several roles that train")


def _compared(subject: str, limits: list[Claim]) -> Verdict:
    first = limits[0]
    other = next((claim for claim in limits if not set(claim.alternatives) & set(first.alternatives)), None)
    if other is None:
        return passed(subject)
    return failed(
        subject,
        f"{placed(other)} gives each {other.scope.role} {spoken(other.alternatives)} GPUs, but {placed(first)} gives"
        f" the {first.scope.role} {spoken(first.alternatives)}: ranks are counted as if all pods were alike.",
        at=other,
        also=((first, first.scope.role),),
        remedy="Give every role that trains the same number of GPUs.",
    )

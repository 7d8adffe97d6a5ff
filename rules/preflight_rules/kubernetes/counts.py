"""The number of pods of a role, and the GPUs of the pods of each role."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import joined, placed, quoted
from preflight_rules.kubernetes.workloads import certainly, workloads

#: Kinds whose training roles run one program, split only by rank.
_ONE_PROGRAM = frozenset(("PyTorchJob", "PaddleJob", "XGBoostJob", "JAXJob"))
#: Kinds whose master is rank 0, so there can be only one.
_ONE_MASTER = frozenset(("PyTorchJob", "XGBoostJob"))


@rule(
    "KUB028",
    "several-masters",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job has a master role",
    evidence=(
        (
            "Kubeflow documentation of PyTorchJob (one master, which is rank 0)",
            "https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/",
        ),
    ),
)
def several_masters(job: Job) -> Iterator[Verdict]:
    """A job requests more than one master.

    What it checks: `Master` of a PyTorchJob or XGBoostJob has one replica.

    Why it matters: The master is rank 0. The operator has no rank for a second one and starts nothing, or two pods act
    as rank 0.

    Example: `Master: {replicas: 2}`.

    Fix: `replicas: 1` for the Master, and the others as Workers.

    Known limits: None known.
    """
    for workload in workloads(job):
        for role in workload.roles:
            if workload.kind not in _ONE_MASTER or role.name.lower() != "master":
                continue
            if isinstance(role.count.value, Unresolved):
                yield unknown(workload.id, f"{quoted(role.count)} is known only at run time", at=role.count)
            elif certainly(role.count.value, 2):
                yield failed(
                    workload.id,
                    f"{quoted(role.count)} requests several masters, but the master of a {workload.kind} is rank"
                    " 0, so there can be only one.",
                    at=role.count,
                    remedy="Use one Master, and make the others Workers.",
                )
            else:
                yield passed(workload.id)


@rule(
    "KUB029",
    "gpus-differ-between-roles",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job has several training roles with GPUs",
    evidence=(("machines with different numbers of GPUs hang", "huggingface/accelerate#2335"), "NVIDIA/aicr#1858"),
)
def gpus_differ_between_roles(job: Job) -> Iterator[Verdict]:
    """The master and the workers of one job hold different numbers of GPUs.

    What it checks: The training roles of a PyTorchJob, PaddleJob, XGBoostJob or JAXJob set the same GPU limit.

    Why it matters: The operator computes the number of ranks as pods times processes per pod, and assumes the same
    number in all pods. With 8 GPUs in one role and 4 in another, some ranks have no device, or some devices no rank.

    Example: `nvidia.com/gpu: 8` for the Master, `nvidia.com/gpu: 4` for the Workers.

    Fix: Set the same number in every role.

    Known limits: A job whose roles do different work on purpose is reported too.
    """
    for workload in workloads(job):
        trainers = workload.trainers
        if workload.kind not in _ONE_PROGRAM or len(trainers) < 2:
            continue
        limits = [claims[0] for role in trainers if len(claims := role.in_force("pod_gpus")) == 1]
        if len(limits) < 2:
            continue
        open_limit = next((claim for claim in limits if isinstance(claim.value, Unresolved)), None)
        if open_limit is not None:
            yield unknown(workload.id, f"{quoted(open_limit)} is known only at run time", at=open_limit)
        else:
            yield _verdict_on_limits(workload.id, limits)


def _verdict_on_limits(subject: str, limits: list[Claim]) -> Verdict:
    first = limits[0]
    other = next((claim for claim in limits if not set(claim.alternatives) & set(first.alternatives)), None)
    if other is None:
        return passed(subject)
    return failed(
        subject,
        f"{placed(other)} gives each {other.scope.role} {joined(other.alternatives)} GPUs, but {placed(first)} gives"
        f" the {first.scope.role} {joined(first.alternatives)}: ranks are counted as if all pods were alike.",
        at=other,
        also=((first, first.scope.role),),
        remedy="Give every role that trains the same number of GPUs.",
    )

"""Kubernetes objects that start pods (their roles, pod counts and resources), and those that the API server rejects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Known, Relation, Scope, Unresolved, Value, lift, strongest
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import items, numbers
from preflight.plugins.authoring import Verdict, failed, rule, unknown
from preflight.plugins.claim_text import quoted

#: Kinds of Kubeflow, whose operator waits for all pods and whose users work in profile namespaces.
KUBEFLOW = frozenset(("PyTorchJob", "TFJob", "MPIJob", "PaddleJob", "XGBoostJob", "JAXJob", "MXJob", "TrainJob"))


class Claims:
    """The claims of a job, indexed by object and quantity, because a file may contain hundreds of objects."""

    def __init__(self, job: Job) -> None:
        self._by_object: dict[str, dict[str, list[Claim]]] = {}
        for claim in job.claims:
            self._by_object.setdefault(claim.scope.launch, {}).setdefault(claim.quantity, []).append(claim)

    def about(self, quantity: str, scope: Scope) -> tuple[Claim, ...]:
        """Every claim about a quantity in the scope of an object or of one of its roles."""
        return tuple(claim for claim in self.of(scope.launch, quantity, whole=True) if claim.scope.covers(scope))

    def of(self, launch: str, quantity: str, *, whole: bool = False) -> tuple[Claim, ...]:
        """The claims in the scope of one object and its roles; with `whole` also those of the whole job."""
        own = self._by_object.get(launch, {}).get(quantity, ())
        return (*self._by_object.get("", {}).get(quantity, ()), *own) if whole and launch else tuple(own)

    def everything(self, launch: str) -> Iterator[Claim]:
        """All claims in the scope of one object."""
        for found in self._by_object.get(launch, {}).values():
            yield from found


@dataclass(frozen=True, slots=True)
class Role:
    """One group of equal pods of a workload."""

    claims: Claims
    name: str
    scope: Scope
    count: Claim

    def in_force(self, quantity: str) -> tuple[Claim, ...]:
        """The claims about this role's pods that are in force."""
        return strongest(claim for claim in self.every(quantity) if claim.relation is Relation.SETS)

    def every(self, quantity: str) -> tuple[Claim, ...]:
        """All claims about this role's pods, including the object's own."""
        return self.claims.about(quantity, self.scope)

    @property
    def trains(self) -> bool:
        """Whether its pods hold ranks."""
        return all(claim.value == Known(True) for claim in self.in_force("pod_trains"))

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs of each pod; empty if not given or unknown."""
        return numbers(job_value(self.in_force("pod_gpus"))) if self.in_force("pod_gpus") else ()


class Workload(NamedTuple):
    """One object that starts pods."""

    job: Job
    claims: Claims
    head: Claim

    @property
    def id(self) -> str:
        """`path:line` of the object."""
        return self.head.scope.launch

    @property
    def kind(self) -> str:
        """`PyTorchJob`; empty where the kind is unknown, as in a file from which a secret was removed."""
        return self._kind.rpartition("/")[2]

    @property
    def group(self) -> str:
        """`kubeflow.org`; empty where it is unknown."""
        return self._kind.rpartition("/")[0]

    @property
    def _kind(self) -> str:
        return str(self.head.alternatives[0]) if self.head.alternatives else ""

    @property
    def scope(self) -> Scope:
        """The scope of the claims that hold for all of its pods."""
        return self.head.scope

    def in_force(self, quantity: str) -> tuple[Claim, ...]:
        """The claims about the object as a whole."""
        return tuple(claim for claim in self.claims.of(self.id, quantity) if claim.scope == self.scope)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Its roles, in file order."""
        found: dict[str, Role] = {}
        for claim in self.claims.of(self.id, "pod_replicas"):
            found.setdefault(claim.scope.role, Role(self.claims, claim.scope.role, claim.scope, claim))
        return tuple(found.values())

    @property
    def trainers(self) -> tuple[Role, ...]:
        """The roles whose pods hold ranks."""
        return tuple(role for role in self.roles if role.trains)

    def pods(self, roles: tuple[Role, ...] | None = None) -> Value:
        """The total number of pods of the given roles, or of all roles."""
        counted = self.roles if roles is None else roles
        if not counted:
            return Unresolved("the number of pods is not given")
        return lift(lambda *each: sum(int(str(n)) for n in each), *(role.count.value for role in counted))

    def gangs(self) -> tuple[Claim, ...]:
        """The claims that make its pods start together, of any role."""
        return self.claims.of(self.id, "gang")

    def launches(self) -> tuple[tuple[Role, Scope], ...]:
        """The launch lines of its containers, each with its role and scope."""
        found: list[tuple[Role, Scope]] = []
        for claim in self.claims.of(self.id, "workload_launch"):
            role = next((role for role in self.roles if role.name == claim.scope.role), None)
            if role is not None:
                found.extend((role, Scope(launch=str(item))) for item in claim.alternatives)
        return tuple(found)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names of its pods, with `{i}` for a number, and the services beside it; empty if not known."""
        return tuple(host for claim in self.in_force("pod_hosts") for host in items(claim.value))

    def has_host(self, host: str) -> bool:
        """Whether one of its pods, or a service, has this name; `.NAMESPACE.svc` may follow."""
        forms = (re.escape(form).replace(r"\{i\}", r"\d+") for form in self.hosts)
        return any(re.match(rf"{form}(?:\.|$)", host) for form in forms)


def workloads(job: Job) -> Iterator[Workload]:
    """Every object of the job's files that starts pods."""
    heads = job.about("workload")
    claims = Claims(job) if heads else None
    for claim in heads:
        if claims is not None and not str(claim.alternatives[0] if claim.alternatives else "").endswith("/PodGroup"):
            yield Workload(job, claims, claim)


def certainly(value: Value, minimum: int) -> bool:
    """Whether every alternative of a number is at least `minimum`."""
    found = numbers(value)
    return bool(found) and min(found) >= minimum


@rule(
    "KUB032",
    "manifest-refused",
    severity=Severity.ERROR,
    otherwise="no object of a known custom resource",
    passes_with=("manifest_schema",),
)
def manifest_refused(job: Job) -> Iterator[Verdict]:
    """The API server rejects a custom resource: a field, a value or a combination that its kind does not have.

    What it checks: Every field of a PyTorchJob, MPIJob, PaddleJob, TrainJob, JobSet, Volcano Job, RayCluster,
    LeaderWorkerSet and so on against the schemas and rules of the operators' releases: unknown and missing fields,
    types, allowed values, ranges, names, and fields that exclude each other.

    Why it matters: `kubectl apply` stops with an error and no pod starts. A pipeline that submits without strict
    validation drops the unknown field, and the job runs with a default.

    Example: `replica: 4` in a role of a PyTorchJob.

    Fix: Use the field or the value that the finding names.

    Known limits: Checks that only an operator's webhook makes are not covered. A field that some releases accept is a
    warning that names them. In the templates of a chart it is a warning, because a chart may have branches for several
    releases.
    """
    for claim in distinct(job.about("manifest_refused")):
        subject = claim.scope.launch or f"{claim.span.path}:{claim.span.line}"
        if isinstance(claim.value, Unresolved):
            yield unknown(subject, f"{quoted(claim)} depends on {claim.value.why}", at=claim)
        else:
            yield _refused(subject, claim)


def _refused(subject: str, claim: Claim) -> Verdict:
    stated = next(iter(claim.alternatives), ())
    words = [str(word) for word in stated] if isinstance(stated, tuple) else []
    # A recording from elsewhere may hold fewer.
    problem, remedy, accepted, refused = [*words, "", "", "", ""][:4]
    effect = "the API server rejects the object and no pod starts"
    if accepted:
        effect = f"{refused} rejects the object, while {accepted} accepts it"
    return failed(
        subject,
        f"{problem}: {effect}.",
        at=claim,
        remedy=remedy,
        # A chart often has branches for several releases of an operator; which one runs is known to its user.
        severity=Severity.WARNING if accepted or "templates" in claim.span.path.split("/")[:-1] else None,
    )

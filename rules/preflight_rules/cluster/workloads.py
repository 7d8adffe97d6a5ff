"""What rules ask of a Kubernetes object: its roles, how many pods they have, what each of them asks for."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Known, Relation, Scope, Unresolved, Value, lift, strongest
from preflight.lazy.dataclasses import dataclass
from preflight_rules.reading import job_value, numbers

#: Kubeflow's kinds: their operator waits for all pods, and their users work in profile namespaces.
KUBEFLOW = frozenset(("PyTorchJob", "TFJob", "MPIJob", "PaddleJob", "XGBoostJob", "JAXJob", "MXJob", "TrainJob"))


class Claims:
    """The claims of a job by object and quantity: a file may hold hundreds of objects."""

    def __init__(self, job: Job) -> None:
        self._by_object: dict[str, dict[str, list[Claim]]] = {}
        for claim in job.claims:
            self._by_object.setdefault(claim.scope.launch, {}).setdefault(claim.quantity, []).append(claim)

    def about(self, quantity: str, scope: Scope) -> tuple[Claim, ...]:
        """Every claim about a quantity that holds in the scope of an object or of one of its roles."""
        return tuple(claim for claim in self.of(scope.launch, quantity, whole=True) if claim.scope.covers(scope))

    def of(self, launch: str, quantity: str, *, whole: bool = False) -> tuple[Claim, ...]:
        """The claims that stand in the scope of one object, in any of its roles; `whole`: of the job's too."""
        own = self._by_object.get(launch, {}).get(quantity, ())
        return (*self._by_object.get("", {}).get(quantity, ()), *own) if whole and launch else tuple(own)

    def everything(self, launch: str) -> Iterator[Claim]:
        """All claims that stand in the scope of one object."""
        for found in self._by_object.get(launch, {}).values():
            yield from found


@dataclass(frozen=True, slots=True)
class Role:
    """One group of equal pods of a workload."""

    claims: Claims
    name: str
    scope: Scope
    count: Claim

    def say(self, quantity: str) -> tuple[Claim, ...]:
        """The claims about this role's pods that are in force."""
        return strongest(claim for claim in self.every(quantity) if claim.relation is Relation.SETS)

    def every(self, quantity: str) -> tuple[Claim, ...]:
        """All claims about this role's pods, the object's own among them."""
        return self.claims.about(quantity, self.scope)

    @property
    def trains(self) -> bool:
        """Whether its pods hold ranks."""
        return all(claim.value == Known(True) for claim in self.say("pod_trains"))

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs of each pod; empty where nothing is said or it is not known."""
        return numbers(job_value(self.say("pod_gpus"))) if self.say("pod_gpus") else ()


@dataclass(frozen=True, slots=True)
class Workload:
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
        """`PyTorchJob`."""
        return str(self.head.alternatives[0]).rpartition("/")[2]

    @property
    def group(self) -> str:
        """`kubeflow.org`."""
        return str(self.head.alternatives[0]).rpartition("/")[0]

    @property
    def scope(self) -> Scope:
        """The scope of what holds for all of its pods."""
        return self.head.scope

    def say(self, quantity: str) -> tuple[Claim, ...]:
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
        """How many pods the roles have together (all of them when none are given)."""
        counted = self.roles if roles is None else roles
        if not counted:
            return Unresolved("nothing says how many pods there are")
        return lift(lambda *each: sum(int(str(n)) for n in each), *(role.count.value for role in counted))

    def gangs(self) -> tuple[Claim, ...]:
        """Everything that makes its pods start together, in any of its roles."""
        return self.claims.of(self.id, "gang")

    def launches(self) -> tuple[tuple[Role, Scope], ...]:
        """The launch lines its containers run, each with its role and its own scope."""
        found: list[tuple[Role, Scope]] = []
        for claim in self.claims.of(self.id, "workload_launch"):
            role = next((role for role in self.roles if role.name == claim.scope.role), None)
            if role is not None:
                found.extend((role, Scope(launch=str(item))) for item in claim.alternatives)
        return tuple(found)


def workloads(job: Job) -> Iterator[Workload]:
    """Every object of the job's files that starts pods of its own."""
    heads = job.about("workload")
    claims = Claims(job) if heads else None
    for claim in heads:
        if claims is not None and not str(claim.alternatives[0] if claim.alternatives else "").endswith("/PodGroup"):
            yield Workload(job, claims, claim)


def certainly(value: Value, least: int) -> bool:
    """Whether a number is at least `least` whatever is still open about it."""
    found = numbers(value)
    return bool(found) and min(found) >= least


def known_number(value: Value) -> int | None:
    """The one number a value is; None when it may be several."""
    found = numbers(value)
    return found[0] if len(found) == 1 else None

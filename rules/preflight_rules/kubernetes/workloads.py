"""Objects that start pods: roles, pod counts, images, variables, faults that the API server rejects, and gangs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Relation, Scope, Unresolved, Value, lift, strongest
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import items, known_number, numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, joined, placed, quoted

#: Kinds of Kubeflow, whose operator waits for all pods and whose users work in profile namespaces.
KUBEFLOW = frozenset(("PyTorchJob", "TFJob", "MPIJob", "PaddleJob", "XGBoostJob", "JAXJob", "MXJob", "TrainJob"))


class ClaimIndex:
    """The claims of a job, indexed by object and quantity, because a file may contain hundreds of objects."""

    def __init__(self, job: Job) -> None:
        self._by_object: dict[str, dict[str, list[Claim]]] = {}
        for claim in job.claims:
            self._by_object.setdefault(claim.scope.launch, {}).setdefault(claim.quantity, []).append(claim)

    def about(self, quantity: str, scope: Scope) -> tuple[Claim, ...]:
        """Return all claims about a quantity that cover the scope of an object or of one of its roles."""
        return tuple(claim for claim in self.of(scope.launch, quantity, whole=True) if claim.scope.covers(scope))

    def of(self, launch: str, quantity: str, *, whole: bool = False) -> tuple[Claim, ...]:
        """Return the claims in the scope of one object and its roles; with `whole` also those of the whole job."""
        own_claims = self._by_object.get(launch, {}).get(quantity, ())
        return (*self._by_object.get("", {}).get(quantity, ()), *own_claims) if whole and launch else tuple(own_claims)

    def all_claims(self, launch: str) -> Iterator[Claim]:
        """Yield all claims in the scope of one object."""
        for claims in self._by_object.get(launch, {}).values():
            yield from claims


@dataclass(frozen=True, slots=True)
class Role:
    """One group of equal pods of a workload."""

    claims: ClaimIndex
    name: str
    scope: Scope
    count: Claim

    def setting(self, quantity: str) -> tuple[Claim, ...]:
        """Return the claims about this role's pods that are effective."""
        return strongest(claim for claim in self.about(quantity) if claim.relation is Relation.SETS)

    def about(self, quantity: str) -> tuple[Claim, ...]:
        """Return all claims about this role's pods, including the object's own."""
        return self.claims.about(quantity, self.scope)

    @property
    def trains(self) -> bool:
        """Return whether the role's pods run ranks."""
        return all(claim.value == Known(True) for claim in self.setting("pod_trains"))

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs of each pod; empty if not given or unknown."""
        return numbers(job_value(self.setting("pod_gpus"))) if self.setting("pod_gpus") else ()


class Workload(NamedTuple):
    """One object that starts pods."""

    job: Job
    claims: ClaimIndex
    head: Claim

    @property
    def id(self) -> str:
        """`path:line` of the object."""
        return self.head.scope.launch

    @property
    def kind(self) -> str:
        """The kind, such as `PyTorchJob`; empty if unknown, for example after a secret was redacted from the file."""
        return self._kind.rpartition("/")[2]

    @property
    def group(self) -> str:
        """The API group, such as `kubeflow.org`; empty if unknown."""
        return self._kind.rpartition("/")[0]

    @property
    def _kind(self) -> str:
        return str(self.head.alternatives[0]) if self.head.alternatives else ""

    @property
    def scope(self) -> Scope:
        """The scope of the claims about all pods of the object."""
        return self.head.scope

    def setting(self, quantity: str) -> tuple[Claim, ...]:
        """Return the claims about a quantity of the object as a whole."""
        return tuple(claim for claim in self.claims.of(self.id, quantity) if claim.scope == self.scope)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the object, in file order."""
        roles_by_name: dict[str, Role] = {}
        for claim in self.claims.of(self.id, "pod_replicas"):
            roles_by_name.setdefault(claim.scope.role, Role(self.claims, claim.scope.role, claim.scope, claim))
        return tuple(roles_by_name.values())

    @property
    def trainers(self) -> tuple[Role, ...]:
        """The roles whose pods run ranks."""
        return tuple(role for role in self.roles if role.trains)

    def pods(self, roles: tuple[Role, ...] | None = None) -> Value:
        """Return the total number of pods of the given roles, or of all roles."""
        counted_roles = self.roles if roles is None else roles
        if not counted_roles:
            return Unresolved("the number of pods is not given")
        return lift(lambda *counts: sum(int(str(n)) for n in counts), *(role.count.value for role in counted_roles))

    def gang_claims(self) -> tuple[Claim, ...]:
        """Return the gang-scheduling claims for its pods, for any role."""
        return self.claims.of(self.id, "gang")

    def launches(self) -> tuple[tuple[Role, Scope], ...]:
        """Return the launch lines of its containers, each with its role and scope."""
        launches: list[tuple[Role, Scope]] = []
        for claim in self.claims.of(self.id, "workload_launch"):
            role = next((role for role in self.roles if role.name == claim.scope.role), None)
            if role is not None:
                launches.extend((role, Scope(launch=str(item))) for item in claim.alternatives)
        return tuple(launches)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names of its pods, with `{i}` for a number, and of services in the files; empty if unknown."""
        return tuple(host for claim in self.setting("pod_hosts") for host in items(claim.value))

    def has_host(self, host: str) -> bool:
        """Return whether one of its pods, or a service, has this name; `.NAMESPACE.svc` may follow."""
        patterns = (re.escape(pattern).replace(r"\{i\}", r"\d+") for pattern in self.hosts)
        return any(re.match(rf"{pattern}(?:\.|$)", host) for pattern in patterns)


def workloads(job: Job) -> Iterator[Workload]:
    """Yield every object of the job's files that starts pods."""
    heads = job.about("workload")
    claims = ClaimIndex(job) if heads else None
    for claim in heads:
        if claims is not None and not str(claim.alternatives[0] if claim.alternatives else "").endswith("/PodGroup"):
            yield Workload(job, claims, claim)


def is_at_least(value: Value, minimum: int) -> bool:
    """Return whether every alternative of a number is at least `minimum`."""
    counts = numbers(value)
    return bool(counts) and min(counts) >= minimum


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
    LeaderWorkerSet and so on is checked against the schemas and rules of the operators' releases: unknown and missing
    fields, types, allowed values, ranges, names, and mutually exclusive fields.

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
            yield _rejection_finding(subject, claim)


def _rejection_finding(subject: str, claim: Claim) -> Verdict:
    detail = next(iter(claim.alternatives), ())
    words = [str(word) for word in detail] if isinstance(detail, tuple) else []
    # A recording from another version may contain fewer words.
    problem, remedy, accepting_releases, rejecting_releases = [*words, "", "", "", ""][:4]
    effect = "the API server rejects the object and no pod starts"
    if accepting_releases:
        effect = f"{rejecting_releases} rejects the object, while {accepting_releases} accepts it"
    return failed(
        subject,
        f"{problem}: {effect}.",
        at=claim,
        remedy=remedy,
        # A chart often has branches for several releases of an operator, and only its user knows the release.
        severity=Severity.WARNING if accepting_releases or "templates" in claim.span.path.split("/")[:-1] else None,
    )


# The roles of one job: their numbers of pods, images and variables, and those that the operator sets.


#: Kinds whose training roles all run one program, and differ only in rank.
_ONE_PROGRAM_KINDS = frozenset(("PyTorchJob", "PaddleJob", "XGBoostJob", "JAXJob"))
#: Prefixes of variables of communication libraries, which must not differ between ranks.
_COLLECTIVE_PREFIXES = ("env.NCCL_", "env.RCCL_", "env.GLOO_", "env.UCX_", "env.FI_")
#: Names that may differ between nodes: interfaces, adapters, files.
_PER_NODE_NAMES = ("SOCKET_IFNAME", "_HCA", "DEBUG", "TOPO_FILE", "NET_DEVICES", "CROSS_NIC", "GID_INDEX")


@rule(
    "KUB009",
    "image-differs-between-roles",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job has several training roles that name images",
)
def image_differs_between_roles(job: Job) -> Iterator[Verdict]:
    """The training roles of one job run different images.

    What it checks: The training roles of a PyTorchJob, PaddleJob, XGBoostJob or JAXJob use the same image.

    Why it matters: All ranks run the same program over the same NCCL. With another version of the framework or of NCCL
    on some of them, the job hangs in the first collective or silently trains with different code.

    Example: `image: train:1.4` for the Master, `image: train:1.3` for the Worker.

    Fix: One tag (better: one digest) in every role.

    Known limits: Two tags may name the same image.
    """
    for workload, images, unknown_verdict in _trainer_claims(job, "pod_image"):
        first = images[0]
        other = next((claim for claim in images if claim.value != first.value), None)
        if unknown_verdict is not None:
            yield unknown_verdict
        elif other is not None:
            yield failed(
                workload.id,
                f"{placed(other)} of {other.scope.role} differs from {placed(first)} of {first.scope.role}: the ranks"
                " of one job must run the same versions.",
                at=other,
                also=((first, first.scope.role),),
                remedy="Name one image, preferably by digest, in every role.",
            )
        else:
            yield passed(workload.id)


@rule(
    "KUB010",
    "shared-variables-differ-between-roles",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job with several training roles sets such a variable",
)
def shared_variables_differ_between_roles(job: Job) -> Iterator[Verdict]:
    """A variable that the pods of a job must share differs between its roles.

    What it checks: Every training role of a job sets the same NCCL_, RCCL_, GLOO_, UCX_ and FI_ variables to the same
    values. Names of interfaces and adapters, topology files and debug levels may differ. All roles, including servers,
    that set MASTER_PORT, WORLD_SIZE, PADDLE_PORT, PADDLE_TRAINERS_NUM, PADDLE_PSERVERS_NUM or DMLC_ numbers set the
    same values.

    Why it matters: NCCL does not compare such settings between ranks: with a different algorithm, protocol or transport
    on some ranks, the first collective hangs or reports a corrupted message. Pods with another port or number of
    processes wait for each other.

    Example: `NCCL_IB_DISABLE=1` for the Worker and not for the Master.

    Fix: Put the variables into one ConfigMap and refer to it with `envFrom` in every role.

    Known limits: Variables that the image or a script inside sets are not seen.
    """
    for workload in workloads(job):
        yield from _shared_number_verdicts(workload)
        trainers = workload.trainers
        if workload.kind not in _ONE_PROGRAM_KINDS or len(trainers) < 2:
            continue
        variables_by_role = {role.name: _collective_variables(workload, role.name) for role in trainers}
        names = sorted({name for variables in variables_by_role.values() for name in variables})
        if not names:
            continue
        has_difference = False
        for name in names:
            claims = [variables[name] for variables in variables_by_role.values() if name in variables]
            unresolved = next((claim for claim in claims if isinstance(claim.value, Unresolved)), None)
            if unresolved is not None:
                yield unknown(workload.id, f"{quoted(unresolved)} is known only at run time", at=unresolved)
                has_difference = True
                continue
            other = next((claim for claim in claims if claim.value != claims[0].value), None)
            roles_without = [role for role, variables in variables_by_role.items() if name not in variables]
            if other is None and not roles_without:
                continue
            has_difference = True
            difference = (
                f"{placed(other)} of {other.scope.role}"
                if other
                else f"{roles_without[0]}, which does not set the variable"
            )
            yield failed(
                workload.id,
                f"{placed(claims[0])} of {claims[0].scope.role} differs from {difference}: communication libraries do"
                f" not compare such settings between ranks.",
                at=other or claims[0],
                also=((claims[0], claims[0].scope.role),) if other else (),
                remedy=f"Set {name.removeprefix('env.')} the same way in every role.",
            )
        if not has_difference:
            yield passed(workload.id)


#: Numbers that the pods of all roles share. The default port of a Paddle server may be unused by trainers.
_SHARED_NUMBERS = {
    **dict.fromkeys(("MASTER_PORT", "WORLD_SIZE", "PADDLE_TRAINERS_NUM", "PADDLE_PSERVERS_NUM"), Severity.ERROR),
    **dict.fromkeys(("DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER"), Severity.ERROR),
    "PADDLE_PORT": Severity.WARNING,
}


def _shared_number_verdicts(workload: Workload) -> Iterator[Verdict]:
    for name, severity in _SHARED_NUMBERS.items():
        claims = [
            claim
            for claim in workload.claims.all_claims(workload.id)
            if claim.quantity == f"env.{name}" and claim.scope.role and isinstance(claim.value, Known)
        ]
        other = next((claim for claim in claims if claim.value != claims[0].value), None)
        if other is not None:
            yield failed(
                workload.id,
                f"{quoted(other)} of {other.scope.role} differs from {placed(claims[0])} of {claims[0].scope.role}: the"
                " pods of the job wait for each other.",
                at=other,
                also=((claims[0], claims[0].scope.role),),
                remedy=f"Set {name} to one value in all roles.",
                severity=severity,
            )
        elif len(claims) > 1:
            yield passed(workload.id)


def _collective_variables(workload: Workload, role: str) -> dict[str, Claim]:
    return {
        claim.quantity: claim
        for claim in workload.claims.all_claims(workload.id)
        if claim.scope.role == role
        and claim.quantity.startswith(_COLLECTIVE_PREFIXES)
        and not claim.quantity.endswith(_PER_NODE_NAMES)
    }


@rule(
    "KUB011",
    "variable-not-expanded-in-arguments",
    severity=Severity.WARNING,
    otherwise="no container runs a known launch line",
)
def variable_not_expanded_in_arguments(job: Job) -> Iterator[Verdict]:
    """`$NAME` is in a container's command or arguments, where no shell expands it.

    What it checks: A `command` or `args` that starts a program without a shell does not contain `$NAME` or `${NAME}` of
    a variable that the container gets from its own `env` or from its operator.

    Why it matters: Kubernetes expands only `$(NAME)`. The program gets the literal text `$NAME`: torchrun stops at
    `--nnodes=$WORLD_SIZE`, or a path of that name is created.

    Example: `command: [torchrun, "--nnodes=$WORLD_SIZE", train.py]`.

    Fix: `$(WORLD_SIZE)`, or `command: [bash, -c, "torchrun --nnodes=$WORLD_SIZE train.py"]`.

    Known limits: Only variables that the container is known to have are reported: others may be placeholders that
    envsubst fills in.
    """
    for workload in workloads(job):
        variables = workload.setting("unexpanded_variable")
        if not variables:
            if workload.launches():
                yield passed(workload.id)
            continue
        for claim in variables:
            name = texts(claim.value)[0] if texts(claim.value) else ""
            if not name:
                yield unknown(workload.id, "a variable is known only at run time", at=claim)
                continue
            yield failed(
                workload.id,
                f"{quoted_spelling(claim)} is passed to the program unexpanded: Kubernetes expands only `$({name})`, "
                "and no shell expands the rest.",
                at=claim,
                remedy=f"Write `$({name})`, or start the program through `bash -c`.",
            )


def quoted_spelling(claim: Claim) -> str:
    """Return the claim as written, without its value, because the variable is not expanded."""
    return f"`{claim.spelling}`"


@rule(
    "KUB012",
    "operator-variable-set-by-hand",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no PyTorchJob",
)
def operator_variable_set_by_hand(job: Job) -> Iterator[Verdict]:
    """A manifest sets RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT, which the operator sets in every pod.

    What it checks: The containers of a PyTorchJob of several pods do not name these variables in their `env`.

    Why it matters: A rank written into a pod template is the same in all of its replicas; an address or a world size is
    right only by chance. Which of the two values wins depends on the operator's version.

    Example: `env: [{name: RANK, value: "0"}]` in a PyTorchJob.

    Fix: Remove them.

    Known limits: A value that equals the operator's own is not reported.
    """
    for workload in workloads(job):
        if workload.kind != "PyTorchJob":
            continue
        variables = [
            claim
            for claim in workload.claims.all_claims(workload.id)
            if claim.scope.role
            and claim.quantity in _OPERATOR_VARIABLES
            and not _equals_operator_value(workload, claim)
        ]
        for claim in variables:
            name = claim.quantity.removeprefix("env.")
            if isinstance(claim.value, Unresolved):
                yield unknown(workload.id, f"{quoted(claim)} is known only at run time", at=claim)
                continue
            yield failed(
                workload.id,
                f"{quoted(claim)} is in the pod template of {claim.scope.role}, but the operator sets {name} "
                "separately in each pod; a value in the template is the same in every replica.",
                at=claim,
                remedy=f"Remove {name}.",
            )
        if not variables:
            yield passed(workload.id)


def _equals_operator_value(workload: Workload, claim: Claim) -> bool:
    """Return whether a value equals the one that the operator sets."""
    if claim.quantity == "env.MASTER_PORT":
        return texts(claim.value) == ("23456",)
    if claim.quantity == "env.WORLD_SIZE":
        pods = numbers(workload.pods())
        return len(pods) == 1 and texts(claim.value) == (str(pods[0]),)
    return False


_OPERATOR_VARIABLES = frozenset(
    ("env.RANK", "env.WORLD_SIZE", "env.MASTER_ADDR", "env.MASTER_PORT", "env.PET_NODE_RANK")
)


@rule(
    "KUB027",
    "image-tag-moves",
    severity=Severity.INFO,
    profile="pedantic",
    otherwise="no job of several pods names its images",
)
def image_tag_moves(job: Job) -> Iterator[Verdict]:
    """The pods of a distributed job run an image without a fixed tag.

    What it checks: The images of a job with several pods have a tag other than `latest`, or a digest.

    Why it matters: Each node pulls the image separately and keeps its copy: after a push, the nodes run different
    versions of one program, and a rank that is restarted on another node joins with different code.

    Example: `image: registry/train` in a job of eight workers.

    Fix: A tag that is never pushed twice, or `image@sha256:...`.

    Known limits: A tag that looks fixed can be pushed again.
    """
    for workload in workloads(job):
        pods = workload.pods()
        if not is_at_least(pods, 2):
            continue
        images = [claim for role in workload.roles for claim in role.setting("pod_image")]
        mutable = [claim for claim in images if any(_is_mutable_tag(text) for text in texts(claim.value))]
        unresolved = next((claim for claim in images if isinstance(claim.value, Unresolved)), None)
        if not images:
            continue
        if mutable:
            yield failed(
                workload.id,
                f"{quoted(mutable[0])} has no fixed tag, and {max(numbers(pods))} pods pull the image separately.",
                at=mutable[0],
                remedy="Name a tag that is never pushed twice, or a digest.",
            )
        elif unresolved is not None:
            yield unknown(workload.id, f"{quoted(unresolved)} is known only at run time", at=unresolved)
        else:
            yield passed(workload.id)


def _is_mutable_tag(image: str) -> bool:
    """Return whether an image has no tag, or `latest`, and no digest."""
    name = image.strip().rpartition("/")[2]
    return bool(name) and "@" not in name and name.partition(":")[2] in ("", "latest")


#: Kinds whose master is rank 0, so there can be only one.
_ONE_MASTER_KINDS = frozenset(("PyTorchJob", "XGBoostJob"))


@rule(
    "KUB028",
    "several-masters",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job has a master role",
)
def several_masters(job: Job) -> Iterator[Verdict]:
    """A job requests more than one master.

    What it checks: `Master` of a PyTorchJob or XGBoostJob has one replica.

    Why it matters: The master is rank 0. The operator has no rank for a second master and starts nothing, or two pods
    act as rank 0.

    Example: `Master: {replicas: 2}`.

    Fix: `replicas: 1` for the Master, and the others as Workers.

    Known limits: None known.
    """
    for workload in workloads(job):
        for role in workload.roles:
            if workload.kind not in _ONE_MASTER_KINDS or role.name.lower() != "master":
                continue
            if isinstance(role.count.value, Unresolved):
                yield unknown(workload.id, f"{quoted(role.count)} is known only at run time", at=role.count)
            elif is_at_least(role.count.value, 2):
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
)
def gpus_differ_between_roles(job: Job) -> Iterator[Verdict]:
    """The master and the workers of one job hold different numbers of GPUs.

    What it checks: The training roles of a PyTorchJob, PaddleJob, XGBoostJob or JAXJob set the same GPU limit.

    Why it matters: The operator computes the number of ranks as pods times processes per pod, and assumes the same
    number in all pods. With 8 GPUs in one role and 4 in another, some ranks have no device, or some devices have no
    rank.

    Example: `nvidia.com/gpu: 8` for the Master, `nvidia.com/gpu: 4` for the Workers.

    Fix: Set the same number in every role.

    Known limits: A job whose roles do different work on purpose is also reported.
    """
    for workload, limits, unknown_verdict in _trainer_claims(job, "pod_gpus"):
        yield unknown_verdict or _verdict_on_limits(workload.id, limits)


def _trainer_claims(job: Job, quantity: str) -> Iterator[tuple[Workload, list[Claim], Verdict | None]]:
    """Yield workloads whose trainers run one program, a claim about each trainer, and the verdict if one is unknown."""
    for workload in workloads(job):
        trainers = workload.trainers
        if workload.kind not in _ONE_PROGRAM_KINDS or len(trainers) < 2:
            continue
        claims = [role_claims[0] for role in trainers if len(role_claims := role.setting(quantity)) == 1]
        if len(claims) < 2:
            continue
        unresolved = (claim for claim in claims if isinstance(claim.value, Unresolved))
        verdicts = (
            unknown(workload.id, f"{quoted(claim)} is known only at run time", at=claim) for claim in unresolved
        )
        yield workload, claims, next(verdicts, None)


def _verdict_on_limits(subject: str, limits: list[Claim]) -> Verdict:
    first = limits[0]
    other = next((claim for claim in limits if not set(claim.alternatives) & set(first.alternatives)), None)
    if other is None:
        return passed(subject)
    return failed(
        subject,
        f"{placed(other)} gives each {other.scope.role} {joined(other.alternatives)} GPUs, but {placed(first)} gives "
        f"the {first.scope.role} {joined(first.alternatives)}: the number of ranks is computed as if all pods were "
        "equal.",
        at=other,
        also=((first, first.scope.role),),
        remedy="Give every role that trains the same number of GPUs.",
    )


# Pods that must start together: gang scheduling and the size of the gang; MPIJob: slots, ranks and workers.


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

    Why it matters: In a cluster that is nearly full, some pods start and hold their GPUs while the others stay pending;
    two such jobs can wait for each other forever.

    Example: A PyTorchJob with a master and seven workers of 8 GPUs each and no `schedulerName`.

    Fix: `schedulerName: volcano` (or the site's), `runPolicy.schedulingPolicy`, or the label
    `kueue.x-k8s.io/queue-name`.

    Known limits: An operator can be started with gang scheduling for all its jobs, which no manifest shows, so the
    finding is a hint.
    """
    for workload in workloads(job):
        trainers = workload.trainers
        needs_gang = workload.kind in KUBEFLOW or (workload.group == "batch.volcano.sh" and bool(workload.launches()))
        if not needs_gang or not any(role.gpus and min(role.gpus) > 0 for role in trainers):
            continue
        pods = workload.pods(trainers)
        if unresolved := undecided(workload.id, workload.setting("gang_min")):
            yield unresolved
            continue
        minimum = numbers(job_value(workload.setting("gang_min"))) if workload.setting("gang_min") else ()
        if minimum and numbers(pods) and 0 < max(minimum) < min(numbers(pods)):
            gang_min = workload.setting("gang_min")[0]
            yield failed(
                workload.id,
                f"{quoted(gang_min)} allows {max(minimum)} of {min(numbers(pods))} training pods to start without "
                "the others and hold their GPUs while they wait.",
                at=gang_min,
                also=tuple((role.count, role.name) for role in trainers[:4]),
                remedy=f"Set it to {max(numbers(workload.pods()), default=0)}, the total number of replicas.",
            )
        elif workload.gang_claims() or is_at_most_one(pods):
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


def is_at_most_one(value: Value) -> bool:
    """Return whether every alternative of a number is at most 1."""
    counts = numbers(value)
    return bool(counts) and max(counts) <= 1


@rule("KUB006", "gang-larger-than-job", severity=Severity.ERROR, otherwise="no job sets its gang size")
def gang_larger_than_job(job: Job) -> Iterator[Verdict]:
    """A gang waits for more pods than the job has.

    What it checks: `minAvailable` (or `minMember`) is at most the sum of the replicas of all roles.

    Why it matters: Volcano rejects the job; the other gang schedulers hold all pods back forever, waiting for a pod
    that will never be created.

    Example: `minAvailable: 4` with a master and two workers.

    Fix: Set it to the sum of the replicas, or omit it: operators then fill in the sum.

    Known limits: A separate PodGroup is not matched with its pods.
    """
    for workload in workloads(job):
        gang_min = workload.setting("gang_min")
        if not gang_min or not workload.roles:
            continue
        verdict = undecided(workload.id, (*gang_min, *(role.count for role in workload.roles)))
        minimum, pods = numbers(job_value(gang_min)), numbers(workload.pods())
        if verdict is None and minimum and pods and min(minimum) > max(pods):
            verdict = failed(
                workload.id,
                f"{quoted(gang_min[0])} waits for {min(minimum)} pods, but the roles have only {max(pods)} "
                f"({', '.join(quoted(role.count) for role in workload.roles[:4])}).",
                at=gang_min[0],
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

    What it checks: If the operator creates the pods of one role only when the pods of another role are running
    (kubedl's PyTorchJob: the master first; an MPIJob with `launcherCreationPolicy: WaitForWorkersReady`; tasks of a
    Volcano Job with `dependsOn`), the gang needs no more pods than are created first. The ranks of a StatefulSet do not
    wait for pods that are created only after a readiness probe of the program succeeds.

    Why it matters: The gang scheduler holds the first pods back until the others exist, and the operator creates the
    others once the first run: both wait, with enough free GPUs. In the same way, the first pod of a StatefulSet waits
    for the ranks of the others before it is ready, and the next pod is created once it is.

    Example: A kubedl PyTorchJob with `schedulerName: volcano`, one master and one worker.

    Fix: Disable the ordered start (kubedl: feature gate DAGScheduling; MPIJob: AtStartup), or set minAvailable to the
    pods that are created first. In a StatefulSet: `podManagementPolicy: Parallel`.

    Known limits: A manifest does not show whether kubedl's ordered start is disabled for the whole operator, nor
    whether a script creates the file of a probe before it starts the ranks.
    """
    for workload in workloads(job):
        order, gang_claims = workload.setting("pods_started_first"), workload.gang_claims()
        if order and workload.kind == "StatefulSet":
            yield from _ordered_pods_verdicts(job, workload, order[0])
            continue
        if not order or not gang_claims:
            continue
        gang_min = workload.setting("gang_min")
        if undecided_verdict := undecided(workload.id, (*order, *gang_min, *(role.count for role in workload.roles))):
            yield undecided_verdict
            continue
        created_first = known_number(job_value(order))
        needed = known_number(job_value(gang_min)) if gang_min else known_number(workload.pods())
        if created_first is None or needed is None or needed <= created_first:
            yield passed(workload.id)
            continue
        gang_claim = gang_min[0] if gang_min else gang_claims[0]
        yield failed(
            workload.id,
            f"{placed(gang_claim)} holds pods back until {needed} exist, but {_start_order_text(workload)} creates"
            f" {counted(created_first, 'pod')} first ({quoted(order[0])}) and the rest once they run: both wait"
            " forever.",
            at=gang_claim,
            also=((order[0], f"created first: {created_first}"),),
            remedy=f"Disable the ordered start, or set `minAvailable: {created_first}`.",
        )


def _ordered_pods_verdicts(job: Job, workload: Workload, order: Claim) -> Iterator[Verdict]:
    """Yield the verdicts on launches whose ranks wait for pods that a probe of the first pod holds back."""
    for _, scope in workload.launches():
        nodes = job.requirement_claims("nodes", scope)
        if not nodes:
            continue
        if verdict := undecided(workload.id, (order, *nodes)):
            yield verdict
        elif not is_at_least(job_value(nodes), 2):
            yield passed(workload.id)
        else:
            yield failed(
                workload.id,
                f"{placed(nodes[0])} makes the ranks wait for each other, but a StatefulSet with the policy"
                " OrderedReady creates each pod only when the one before it is ready: if this probe succeeds only after"
                " all ranks have joined, the second pod never starts.",
                at=order,
                also=((nodes[0], "ranks of all pods"), (workload.head, "OrderedReady is its default")),
                remedy="Set `podManagementPolicy: Parallel`.",
                waits_at="rendezvous",
            )


def _start_order_text(workload: Workload) -> str:
    return "kubedl" if workload.group == "training.kubedl.io" else f"the {workload.kind}"


def _worker_role(workload: Workload) -> Role | None:
    return next((role for role in workload.roles if role.name.lower() == "worker"), None)


@rule(
    "KUB003",
    "mpi-slots-exceed-worker",
    severity=Severity.WARNING,
    otherwise="no MPIJob sets both the slots and the resources of its workers",
)
def mpi_slots_exceed_worker(job: Job) -> Iterator[Verdict]:
    """An MPIJob gives each worker more slots than the worker has GPUs, or CPU cores if it has no GPU.

    What it checks: `slotsPerWorker` is at most the GPU limit of a worker or, without GPUs, its CPU limit.

    Why it matters: mpirun places as many ranks on a worker as it has slots. The ranks beyond the GPUs find no device;
    those beyond the cores are throttled, and Open MPI refuses to bind them ("There are not enough slots available"),
    while the launcher and the workers keep running.

    Example: `slotsPerWorker: 4` with `limits: {cpu: 2}` for the workers.

    Fix: Set slotsPerWorker to the worker's GPUs (or cores), and mpirun's -np to workers x slots.

    Known limits: A rank that needs less than one core is not recognized.
    """
    for workload in workloads(job):
        slots, worker = workload.setting("slots_per_worker"), _worker_role(workload)
        if not slots or worker is None:
            continue
        resource = "GPUs" if worker.setting("pod_gpus") else "CPU cores"
        resources = worker.setting("pod_gpus") or worker.setting("pod_cpus")
        if not resources:
            continue
        if undecided_verdict := undecided(workload.id, (*slots, *resources)):
            yield undecided_verdict
            continue
        slot_counts, amount = numbers(job_value(slots)), _largest_amount(resources)
        if slot_counts and min(slot_counts) > max(amount, 1):
            yield failed(
                workload.id,
                f"{quoted(slots[0])} allows mpirun to place {min(slot_counts)} ranks on each worker, but "
                f"{placed(resources[0])} gives a worker {amount:g} {resource}.",
                at=slots[0],
                also=((resources[0], f"{amount:g} {resource}"),),
                remedy=f"Set `slotsPerWorker: {max(int(amount), 1)}`, or give each worker {min(slot_counts)}"
                f" {resource}.",
            )
        else:
            yield passed(workload.id)


def _largest_amount(claims: tuple[Claim, ...]) -> float:
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

    Known limits: If options of mpirun place the ranks (--map-by, -N), only too many ranks are reported, and nothing
    with --oversubscribe or with hosts on the line. A launcher that is itself a worker is not recognized.
    """
    for workload in workloads(job):
        worker = _worker_role(workload)
        if workload.kind != "MPIJob" or worker is None:
            continue
        for _, scope in workload.launches():
            tasks = job.setting("tasks", scope)
            if not tasks or any(
                c.scope.launch == scope.launch for c in (*job.about("oversubscribe"), *job.about("hosts"))
            ):
                continue
            slots = workload.setting("slots_per_worker")
            yield _rank_verdict(workload, worker, tasks[0], slots, is_placed=_places_ranks(job, scope.launch))


def _places_ranks(job: Job, launch: str) -> bool:
    mappings = [claim for claim in job.about("mpi_mapping") if claim.scope.launch == launch]
    if any(claim.alternatives not in (("slot",), ("core",)) for claim in mappings):
        return True
    return any(claim.scope.launch == launch for claim in job.about("tasks_per_node"))


def _rank_verdict(
    workload: Workload, worker: Role, tasks: Claim, slots: tuple[Claim, ...], *, is_placed: bool
) -> Verdict:
    if undecided_verdict := undecided(workload.id, (tasks, worker.count, *slots)):
        return undecided_verdict
    ranks, workers = known_number(tasks.value), known_number(worker.count.value)
    slots_each = known_number(job_value(slots)) if slots else 1
    if ranks is None or workers is None or not slots_each:
        return passed(workload.id)
    slot_count = workers * slots_each
    also = [(worker.count, counted(workers, "worker")), *((claim, f"{slots_each} slots each") for claim in slots)]
    remedy = f"Start {slot_count} ranks ({workers} workers x {counted(slots_each, 'slot')}), or change the slots."
    if ranks > slot_count:
        return failed(
            workload.id,
            f"{quoted(tasks)} starts {ranks} ranks, but {workers} workers x {counted(slots_each, 'slot')} have room "
            f"for {slot_count}.",
            at=tasks,
            also=also,
            remedy=remedy,
        )
    used_workers = -(-ranks // slots_each)
    if used_workers < workers and not is_placed:
        return failed(
            workload.id,
            f"{quoted(tasks)} starts {counted(ranks, 'rank')}, which fit into the {slots_each} slots of "
            f"{counted(used_workers, 'worker')}: {workers - used_workers} of {workers} workers get no rank.",
            at=tasks,
            also=also,
            remedy=remedy,
            confidence=Confidence.MEDIUM,
        )
    return passed(workload.id)

"""The roles of one job: their numbers of pods, images and variables, and those that the operator sets."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import joined, placed, quoted
from preflight_rules.kubernetes.workloads import Workload, certainly, workloads

#: Kinds whose training roles run one program, split only by rank.
_ONE_PROGRAM = frozenset(("PyTorchJob", "PaddleJob", "XGBoostJob", "JAXJob"))
#: Prefixes of variables of communication libraries, which must not differ between ranks.
_COLLECTIVE = ("env.NCCL_", "env.RCCL_", "env.GLOO_", "env.UCX_", "env.FI_")
#: Names that differ between nodes for a reason: interfaces, adapters, files.
_PER_NODE_NAMES = ("SOCKET_IFNAME", "_HCA", "DEBUG", "TOPO_FILE", "NET_DEVICES", "CROSS_NIC", "GID_INDEX")


@rule(
    "KUB009",
    "image-differs-between-roles",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job has several training roles with an image each",
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
    for workload, images, unknown_verdict in _of_trainers(job, "pod_image"):
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
                remedy="Name one image, best by digest, in every role.",
            )
        else:
            yield passed(workload.id)


@rule(
    "KUB010",
    "collective-variables-differ-between-roles",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job with several training roles sets such a variable",
)
def collective_variables_differ_between_roles(job: Job) -> Iterator[Verdict]:
    """A variable of NCCL, Gloo, UCX or libfabric differs between the roles of one job.

    What it checks: Every training role of a job sets the same NCCL_, RCCL_, GLOO_, UCX_ and FI_ variables to the same
    values. Names of interfaces and adapters, topology files and debug levels may differ.

    Why it matters: NCCL does not compare such settings between ranks: with another algorithm, protocol or transport on
    some of them the first collective hangs or reports a corrupted message.

    Example: `NCCL_IB_DISABLE=1` for the Worker and not for the Master.

    Fix: Put the variables into one ConfigMap and refer to it with `envFrom` in every role.

    Known limits: Variables that the image or a script inside sets are not seen.
    """
    for workload in workloads(job):
        trainers = workload.trainers
        if workload.kind not in _ONE_PROGRAM or len(trainers) < 2:
            continue
        stated = {role.name: _collective(workload, role.name) for role in trainers}
        names = sorted({name for found in stated.values() for name in found})
        if not names:
            continue
        different = False
        for name in names:
            claims = [found[name] for found in stated.values() if name in found]
            open_image = next((claim for claim in claims if isinstance(claim.value, Unresolved)), None)
            if open_image is not None:
                yield unknown(workload.id, f"{quoted(open_image)} is known only at run time", at=open_image)
                different = True
                continue
            other = next((claim for claim in claims if claim.value != claims[0].value), None)
            absent = [role for role, found in stated.items() if name not in found]
            if other is None and not absent:
                continue
            different = True
            difference = f"{placed(other)} of {other.scope.role}" if other else f"{absent[0]}, which does not set it"
            yield failed(
                workload.id,
                f"{placed(claims[0])} of {claims[0].scope.role} differs from {difference}: communication libraries do"
                f" not compare such settings between ranks.",
                at=other or claims[0],
                also=((claims[0], claims[0].scope.role),) if other else (),
                remedy=f"Set {name.removeprefix('env.')} the same way in every role.",
            )
        if not different:
            yield passed(workload.id)


def _collective(workload: Workload, role: str) -> dict[str, Claim]:
    return {
        claim.quantity: claim
        for claim in workload.claims.everything(workload.id)
        if claim.scope.role == role
        and claim.quantity.startswith(_COLLECTIVE)
        and not claim.quantity.endswith(_PER_NODE_NAMES)
    }


@rule(
    "KUB011",
    "variable-not-expanded-in-arguments",
    severity=Severity.WARNING,
    otherwise="no container runs a known launch line",
)
def variable_not_expanded_in_arguments(job: Job) -> Iterator[Verdict]:
    """`$NAME` is in a container's command or arguments, where no shell replaces it.

    What it checks: A `command` or `args` that starts a program without a shell does not contain `$NAME` or `${NAME}` of
    a variable that the container gets from its own `env` or from its operator.

    Why it matters: Kubernetes replaces `$(NAME)` only. The program gets the literal text `$NAME`: torchrun stops at
    `--nnodes=$WORLD_SIZE`, or a path of that name is created.

    Example: `command: [torchrun, "--nnodes=$WORLD_SIZE", train.py]`.

    Fix: `$(WORLD_SIZE)`, or `command: [bash, -c, "torchrun --nnodes=$WORLD_SIZE train.py"]`.

    Known limits: Only variables that the container is known to have are reported: others may be placeholders that
    envsubst fills in.
    """
    for workload in workloads(job):
        found = workload.in_force("unexpanded_variable")
        if not found:
            if workload.launches():
                yield passed(workload.id)
            continue
        for claim in found:
            name = texts(claim.value)[0] if texts(claim.value) else ""
            if not name:
                yield unknown(workload.id, "a variable is known only at run time", at=claim)
                continue
            yield failed(
                workload.id,
                f"{quoted_plainly(claim)} reaches the program as it is written: without a shell Kubernetes replaces"
                f" only `$({name})`.",
                at=claim,
                remedy=f"Write `$({name})`, or start the program through `bash -c`.",
            )


def quoted_plainly(claim: Claim) -> str:
    """The claim as written, without its value, because the variable is not expanded."""
    return f"`{claim.spelling}`"


@rule(
    "KUB012",
    "operator-variable-set-by-hand",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no PyTorchJob",
)
def operator_variable_set_by_hand(job: Job) -> Iterator[Verdict]:
    """A manifest sets RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT, which the operator sets for every pod itself.

    What it checks: The containers of a PyTorchJob of several pods do not name these variables in their `env`.

    Why it matters: A rank written into a pod template is the same in all of its replicas; an address or a world size is
    right only by chance. Which of the two values wins depends on the operator's version.

    Example: `env: [{name: RANK, value: "0"}]` in a PyTorchJob.

    Fix: Leave them out.

    Known limits: A value equal to the operator's own does no harm.
    """
    for workload in workloads(job):
        if workload.kind != "PyTorchJob":
            continue
        found = [
            claim
            for claim in workload.claims.everything(workload.id)
            if claim.scope.role and claim.quantity in _OPERATORS and not _equals_operator_value(workload, claim)
        ]
        for claim in found:
            name = claim.quantity.removeprefix("env.")
            if isinstance(claim.value, Unresolved):
                yield unknown(workload.id, f"{quoted(claim)} is known only at run time", at=claim)
                continue
            yield failed(
                workload.id,
                f"{quoted(claim)} is in the pod template of {claim.scope.role}, but the operator sets {name}"
                " in each pod itself: set here, it is the same in every replica.",
                at=claim,
                remedy=f"Remove {name}.",
            )
        if not found:
            yield passed(workload.id)


def _equals_operator_value(workload: Workload, claim: Claim) -> bool:
    """Whether a value equals the one that the operator sets."""
    if claim.quantity == "env.MASTER_PORT":
        return texts(claim.value) == ("23456",)
    if claim.quantity == "env.WORLD_SIZE":
        pods = numbers(workload.pods())
        return len(pods) == 1 and texts(claim.value) == (str(pods[0]),)
    return False


_OPERATORS = frozenset(("env.RANK", "env.WORLD_SIZE", "env.MASTER_ADDR", "env.MASTER_PORT", "env.PET_NODE_RANK"))


@rule(
    "KUB027",
    "image-tag-moves",
    severity=Severity.INFO,
    profile="pedantic",
    otherwise="no job of several pods names its images",
)
def image_tag_moves(job: Job) -> Iterator[Verdict]:
    """The pods of a distributed job run an image without a fixed tag.

    What it checks: The images of a job of several pods carry a tag other than `latest`, or a digest.

    Why it matters: Each node pulls the image separately and keeps what it has: after a push the nodes run different
    versions of one program, and a rank that is restarted on another node joins with other code.

    Example: `image: registry/train` in a job of eight workers.

    Fix: A tag that is never pushed twice, or `image@sha256:...`.

    Known limits: A tag that looks fixed can be pushed again.
    """
    for workload in workloads(job):
        counted = workload.pods()
        if not certainly(counted, 2):
            continue
        images = [claim for role in workload.roles for claim in role.in_force("pod_image")]
        moving = [claim for claim in images if any(_is_mutable_tag(text) for text in texts(claim.value))]
        open_image = next((claim for claim in images if isinstance(claim.value, Unresolved)), None)
        if not images:
            continue
        if moving:
            yield failed(
                workload.id,
                f"{quoted(moving[0])} has no fixed tag, and {max(numbers(counted))} pods pull it separately.",
                at=moving[0],
                remedy="Name a tag that is never pushed twice, or a digest.",
            )
        elif open_image is not None:
            yield unknown(workload.id, f"{quoted(open_image)} is known only at run time", at=open_image)
        else:
            yield passed(workload.id)


def _is_mutable_tag(image: str) -> bool:
    """Whether an image has no tag, or `latest`, and no digest."""
    name = image.strip().rpartition("/")[2]
    return bool(name) and "@" not in name and name.partition(":")[2] in ("", "latest")


#: Kinds whose master is rank 0, so there can be only one.
_ONE_MASTER = frozenset(("PyTorchJob", "XGBoostJob"))


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
    for workload, limits, unknown_verdict in _of_trainers(job, "pod_gpus"):
        yield unknown_verdict or _verdict_on_limits(workload.id, limits)


def _of_trainers(job: Job, quantity: str) -> Iterator[tuple[Workload, list[Claim], Verdict | None]]:
    """Workloads whose trainers run one program, with a claim of each; and the verdict if one is not known."""
    for workload in workloads(job):
        trainers = workload.trainers
        if workload.kind not in _ONE_PROGRAM or len(trainers) < 2:
            continue
        claims = [found[0] for role in trainers if len(found := role.in_force(quantity)) == 1]
        if len(claims) < 2:
            continue
        hidden = (claim for claim in claims if isinstance(claim.value, Unresolved))
        verdicts = (unknown(workload.id, f"{quoted(claim)} is known only at run time", at=claim) for claim in hidden)
        yield workload, claims, next(verdicts, None)


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

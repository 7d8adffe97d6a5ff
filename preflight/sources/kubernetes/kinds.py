"""Which objects of a manifest are jobs, and which roles they have.

Read from the types of the operators' own code: kubeflow training-operator 1.9 and trainer 2.1, mpi-operator 0.6,
paddle-operator 0.4 (batch.paddlepaddle.org/v1), kubedl 0.5, Volcano 1.12, KubeRay 1.4, JobSet 0.8, LWS 0.6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from preflight.job import Known, Unresolved, Value, as_int, lift
from preflight.lazy.dataclasses import dataclass
from preflight.sources.structured import Kind, Member, Node, value_of

#: Kinds that exist to train; any other one is a job only where a container of it holds a launch line.
TRAINING_KINDS = frozenset(
    (
        *("PyTorchJob", "MPIJob", "PaddleJob", "TFJob", "XGBoostJob", "JAXJob", "MXJob", "MXNetJob", "TrainJob"),
        *("TrainingRuntime", "ClusterTrainingRuntime", "RayCluster", "RayJob", "RayService"),
    )
)
GENERIC_KINDS = frozenset(("Job", "CronJob", "Pod", "Deployment", "StatefulSet", "JobSet", "LeaderWorkerSet"))
#: Objects that hold no pods and still say something about a job.
ASIDE_KINDS = frozenset(
    ("PodGroup", "ConfigMap", "PersistentVolumeClaim", "ResourceQuota", "NetworkPolicy", "Queue", "ClusterQueue")
)
RAY_KINDS = frozenset(("RayCluster", "RayJob", "RayService"))
_SERVER_ROLES = frozenset(("ps", "pserver", "server", "parameterserver", "scheduler", "tracker", "evaluator"))
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")


@dataclass(frozen=True, slots=True)
class Role:
    """One group of equal pods. `member` is where their number stands; `trains`: its pods hold training ranks."""

    name: str
    replicas: Value
    member: Member | None
    template: Node
    trains: bool = True
    #: KubeRay's `rayStartParams`.
    start_params: Member | None = None

    @property
    def pod(self) -> Node | None:
        """The pod's own specification."""
        found = self.template.at("spec")
        return found if found is not None and found.kind is Kind.OBJECT else None


@dataclass(frozen=True, slots=True)
class Workload:
    """One object that starts pods. `group` is its API group (`kubeflow.org`)."""

    kind: str
    group: str
    head: Member
    root: Node
    roles: tuple[Role, ...] = ()
    #: Where the ranks of each pod are counted (`nprocPerNode`, `slotsPerWorker`, `numProcPerNode`).
    processes: Member | None = None
    #: Where the number of nodes is said apart from the roles (`numNodes`).
    nodes: Member | None = None
    #: How many pods must be there before any of them starts, and what else makes them one gang.
    gang_min: Member | None = None
    gang: Member | None = None
    #: Bounds of an elastic job.
    min_nodes: Member | None = None
    max_nodes: Member | None = None
    #: What makes some pods wait for others, and how many are created first.
    order: Member | None = None
    first: Value | None = None
    plugins: Member | None = None
    entrypoint: Member | None = None

    @property
    def is_training(self) -> bool:
        """Whether objects of this kind exist to train."""
        return self.kind in TRAINING_KINDS

    @property
    def counts_gang(self) -> bool:
        """Whether it is a job of Volcano that says how many of its pods must be there, whatever they run."""
        return self.group == "batch.volcano.sh" and self.gang_min is not None

    @property
    def spec(self) -> Node:
        """The object's specification; an empty one where it has none."""
        return self.root.at("spec") or _NOTHING


_NOTHING = Node(Kind.OBJECT, 0, 0)
_ONE = Known(1)


def objects(root: Node) -> Iterator[Node]:
    """The objects of a document, those of a `List` one by one."""
    if root.kind is not Kind.OBJECT:
        return
    items = root.at("items")
    if items is not None and items.kind is Kind.ARRAY and root.text("kind").endswith("List"):
        for item in items.items:
            yield from objects(item)
    else:
        yield root


def workload_of(root: Node) -> Workload | None:
    """The workload an object is; None for one of another kind."""
    head = root.member("kind")
    kind, version = root.text("kind"), root.text("apiVersion")
    if head is None or (kind not in TRAINING_KINDS and kind not in GENERIC_KINDS):
        return None
    found = Workload(kind, version.rpartition("/")[0], head, root)
    spec = found.spec
    reader = _READERS.get((kind, found.group)) or _READERS.get((kind, ""))
    if reader is not None:
        return reader(found, spec)
    replica_specs = next((m for m in spec.in_force if re.fullmatch(r"\w+[rR]eplicaSpecs", m.key)), None)
    if replica_specs is not None:
        return _with_roles(found, replica_specs.node)
    return found


def _with_roles(found: Workload, specs: Node) -> Workload:
    """Kubeflow's jobs, and kubedl's: one entry for each role."""
    roles = [
        _role(member.key, member.node, trains=not (member.key == "Launcher" or member.key.lower() in _SERVER_ROLES))
        for member in specs.in_force
        if member.node.kind is Kind.OBJECT
    ]
    spec = found.spec
    processes = spec.member("nprocPerNode") or spec.member("elasticPolicy", "nProcPerNode")
    processes = processes or spec.member("slotsPerWorker")
    order, first = _order(found, roles)
    return replace(
        found,
        order=order,
        first=first,
        roles=tuple(roles),
        processes=processes,
        gang_min=spec.member("runPolicy", "schedulingPolicy", "minAvailable"),
        min_nodes=spec.member("elasticPolicy", "minReplicas"),
        max_nodes=spec.member("elasticPolicy", "maxReplicas"),
    )


#: The role on which the others depend in kubedl 0.5 (controllers' defaults with DAG scheduling).
_FIRST = {"PyTorchJob": "Master", "TFJob": "PS", "MPIJob": "Worker"}


def _order(found: Workload, roles: list[Role]) -> tuple[Member | None, Value | None]:
    """kubedl creates the role that the others depend on first; mpi-operator may be told to create the launcher last."""
    if found.group == "training.kubedl.io" and found.kind in _FIRST:
        return next(((role.member, role.replicas) for role in roles if role.name == _FIRST[found.kind]), (None, None))
    policy = found.spec.member("launcherCreationPolicy")
    if policy is not None and policy.node.value == "WaitForWorkersReady":
        return policy, next((role.replicas for role in roles if role.name == "Worker"), None)
    return None, None


def _role(name: str, node: Node, *, trains: bool = True, count: str = "replicas") -> Role:
    member = node.member(count)
    return Role(name, _count(member), member, node.at("template") or _NOTHING, trains)


def _count(member: Member | None, default: int = 1) -> Value:
    if member is None or (member.node.kind is Kind.SCALAR and member.node.value is None):
        return Known(default)
    return as_int(value_of(member.node))


def _sum(counts: Iterable[Value]) -> Value:
    return lift(lambda *each: sum(int(str(item)) for item in each), *counts)


def _paddleflow(found: Workload, spec: Node) -> Workload:
    roles = [
        _role(name, node, trains=name != "ps")
        for name in ("ps", "worker", "heter")
        if (node := spec.at(name)) is not None
    ]
    return replace(found, roles=tuple(roles), gang_min=spec.member("schedulingPolicy", "minAvailable"))


def _volcano(found: Workload, spec: Node) -> Workload:
    tasks = spec.at("tasks")
    pairs = [
        (_role(task.text("name") or f"task {number}", task), task)
        for number, task in enumerate(tasks.items if tasks is not None else ())
        if task.kind is Kind.OBJECT
    ]
    roles = [role for role, _ in pairs]
    waiting = {role.name: m for role, task in pairs if (m := task.member("dependsOn")) is not None}
    first = _sum(role.replicas for role in roles if role.name not in waiting) if waiting else None
    return replace(
        found,
        roles=tuple(roles),
        order=next(iter(waiting.values()), None),
        first=first,
        gang_min=spec.member("minAvailable"),
        gang=found.head,
        plugins=spec.member("plugins"),
    )


def _batch(found: Workload, spec: Node) -> Workload:
    """A plain Job: as many pods at a time as `parallelism` says."""
    inner = spec.at("jobTemplate", "spec") if found.kind == "CronJob" else spec
    if inner is None:
        return found
    return replace(found, roles=(_job_role("", inner),))


def _job_role(name: str, spec: Node, times: Value = _ONE) -> Role:
    member = spec.member("parallelism")
    count = lift(lambda a, b: int(str(a)) * int(str(b)), _count(member), times)
    return Role(name, count, member, spec.at("template") or _NOTHING)


def _jobset(found: Workload, spec: Node) -> Workload:
    return replace(found, roles=tuple(_replicated(spec)))


def _replicated(spec: Node) -> Iterator[Role]:
    jobs = spec.at("replicatedJobs")
    for number, job in enumerate(jobs.items if jobs is not None else ()):
        template = job.at("template", "spec")
        if template is not None:
            role = _job_role(job.text("name") or f"job {number}", template, _count(job.member("replicas")))
            member = role.member or job.member("replicas")
            yield Role(role.name, role.replicas, member, role.template, not _prepares(role.name))


def _prepares(name: str) -> bool:
    return re.search(r"initializer|launcher|^(?:dataset|model)-", name) is not None


def _runtime(found: Workload, spec: Node) -> Workload:
    """A training runtime is a JobSet with a policy; the job that names it says how many nodes."""
    policy = spec.at("mlPolicy") or _NOTHING
    processes = policy.member("torch", "numProcPerNode") or policy.member("mpi", "numProcPerNode")
    roles = tuple(_replicated(spec.at("template", "spec") or _NOTHING))
    gang = spec.member("podGroupPolicy")
    return replace(found, roles=roles, processes=processes, nodes=policy.member("numNodes"), gang=gang)


def _train_job(found: Workload, spec: Node) -> Workload:
    trainer = spec.at("trainer") or _NOTHING
    container = Node(Kind.ARRAY, trainer.start, trainer.end, items=(_as_container(trainer),))
    pod = Node(
        Kind.OBJECT, trainer.start, trainer.end, members=(Member("containers", trainer.start, trainer.end, container),)
    )
    template = Node(Kind.OBJECT, trainer.start, trainer.end, members=(Member("spec", trainer.start, trainer.end, pod),))
    nodes = trainer.member("numNodes")
    count = _count(nodes) if nodes is not None else Unresolved("the training runtime says how many nodes")
    role = Role("trainer", count, nodes, template)
    return replace(found, roles=(role,), processes=trainer.member("numProcPerNode"), nodes=nodes)


def _as_container(trainer: Node) -> Node:
    """A TrainJob's `trainer` is its container under other names."""
    members = tuple(
        Member("resources", m.key_start, m.key_end, m.node) if m.key == "resourcesPerNode" else m
        for m in trainer.in_force
    )
    return Node(Kind.OBJECT, trainer.start, trainer.end, members=members)


def _ray(found: Workload, spec: Node) -> Workload:
    cluster = spec
    if found.kind == "RayJob":
        cluster = spec.at("rayClusterSpec") or _NOTHING
    elif found.kind == "RayService":
        cluster = spec.at("rayClusterConfig") or spec.at("rayClusterSpec") or _NOTHING
    roles = []
    head = cluster.member("headGroupSpec")
    if head is not None:
        template = head.node.at("template") or _NOTHING
        roles.append(Role("head", Known(1), None, template, False, head.node.member("rayStartParams")))
    groups = cluster.at("workerGroupSpecs")
    for number, group in enumerate(groups.items if groups is not None else ()):
        name = group.text("groupName") or f"group {number}"
        member = group.member("replicas") or group.member("minReplicas")
        count = lift(lambda a, b: int(str(a)) * int(str(b)), _count(member, 0), _count(group.member("numOfHosts")))
        template = group.at("template") or _NOTHING
        roles.append(Role(name, count, member, template, True, group.member("rayStartParams")))
    return replace(found, roles=tuple(roles), entrypoint=spec.member("entrypoint"))


def _leader_worker(found: Workload, spec: Node) -> Workload:
    template = spec.at("leaderWorkerTemplate") or _NOTHING
    member = template.member("size")
    size = _count(member)
    worker, leader = template.at("workerTemplate"), template.at("leaderTemplate")
    roles = []
    if leader is not None:
        roles.append(Role("leader", Known(1), None, leader))
        size = lift(lambda number: int(str(number)) - 1, size)
    if worker is not None:
        roles.append(Role("worker", size, member, worker))
    return replace(found, roles=tuple(roles))


def _replicas(found: Workload, spec: Node) -> Workload:
    return replace(found, roles=(_role("", spec),))


def _pod(found: Workload, spec: Node) -> Workload:
    return replace(found, roles=(Role("", Known(1), None, found.root),))


_READERS: dict[tuple[str, str], Callable[[Workload, Node], Workload]] = {
    ("PaddleJob", "batch.paddlepaddle.org"): _paddleflow,
    ("Job", "batch.volcano.sh"): _volcano,
    ("Job", ""): _batch,
    ("CronJob", ""): _batch,
    ("JobSet", ""): _jobset,
    ("TrainJob", ""): _train_job,
    ("RayCluster", ""): _ray,
    ("RayJob", ""): _ray,
    ("RayService", ""): _ray,
    ("LeaderWorkerSet", ""): _leader_worker,
    ("StatefulSet", ""): _replicas,
    ("Deployment", ""): _replicas,
    ("Pod", ""): _pod,
    **{(kind, ""): _runtime for kind in _RUNTIMES},
}

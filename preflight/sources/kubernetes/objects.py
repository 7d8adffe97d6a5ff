"""Which objects of a manifest are jobs, which roles they have, and which objects contain others.

Read from the types of AppWrapper (workload.codeflare.dev/v1beta1 and v1beta2), Argo Workflows 3.7 (ResourceTemplate),
OpenShift Template v1 and Open Cluster Management's ManifestWork v1.

Read from the types of the operators' own code: kubeflow training-operator 1.9 and trainer 2.1, mpi-operator 0.6,
paddle-operator 0.4 (batch.paddlepaddle.org/v1), kubedl 0.5, Volcano 1.12, KubeRay 1.4, JobSet 0.8, LWS 0.6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from preflight._util import toml
from preflight.model.job import Known, Unresolved, Value, as_int, lift
from preflight.sources.formats.structured import Kind, Member, Node, shift_node, value_of
from preflight.sources.value_readers import product_of, sum_of

#: Kinds whose objects contain objects.
WRAPPER_KINDS = frozenset(("AppWrapper", "List", "Template", "ManifestWork"))
WORKFLOW_KINDS = frozenset(("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"))
_MAX_DEPTH = 4
_HEADER = re.compile(r"[|>](?:[0-9][+-]?|[+-][0-9]?)?[ \t]*(?:#[^\n]*)?\r?\n")


def objects(root: Node, text: str, depth: int = 0) -> Iterator[Node]:
    """Yield the objects of a document: those that it contains, then itself. `text` is what it was parsed from."""
    if root.kind is not Kind.OBJECT or depth > _MAX_DEPTH:
        return
    kind = root.text("kind")
    held: tuple[Node, ...] = ()
    if kind.endswith("List"):
        held = root.items_at("items")
    elif kind == "Template":
        held = root.items_at("objects")
    elif kind == "ManifestWork":
        held = root.items_at("spec", "workload", "manifests")
    elif kind == "AppWrapper":
        components = root.items_at("spec", "components")
        held = tuple(node for item in components if (node := item.at("template")) is not None)
        generic = root.items_at("spec", "resources", "GenericItems")
        held += tuple(node for item in generic if (node := item.at("generictemplate")) is not None)
    elif kind in WORKFLOW_KINDS:
        held = tuple(_manifests(root, text))
    for node in held:
        yield from objects(node, text, depth + 1)
    if not held or kind in WORKFLOW_KINDS:
        yield root


def workflow_spec(root: Node) -> Node | None:
    """Return the specification of a workflow, whichever kind of object contains it."""
    return root.at("spec", "workflowSpec") if root.text("kind") == "CronWorkflow" else root.at("spec")


def _manifests(root: Node, text: str) -> Iterator[Node]:
    """Yield the objects that the templates of a workflow create."""
    spec = workflow_spec(root)
    for template in spec.items_at("templates") if spec is not None else ():
        manifest = template.at("resource", "manifest")
        if manifest is None:
            continue
        if manifest.kind is Kind.OBJECT:
            yield manifest
            continue
        source = text[manifest.start : manifest.end]
        header = _HEADER.match(source)
        if header is not None:
            yield from _parse_block(source[header.end() :], manifest.start + header.end())


def _parse_block(code: str, start: int) -> Iterator[Node]:
    """Yield the objects of YAML in a block of text; its common indentation is irrelevant."""
    from preflight.sources.formats import lenient_yaml

    for document in lenient_yaml.parse_all(code):
        if document.root is not None:
            yield shift_node(document.root, start)


#: Kinds that exist to train; any other kind is a job only if one of its containers has a launch line.
TRAINING_KINDS = toml.words(__file__, "names.toml", "training-kinds")
GENERIC_KINDS = (
    frozenset(("Job", "CronJob", "Pod", "Deployment", "StatefulSet", "JobSet", "LeaderWorkerSet")) | WORKFLOW_KINDS
)
#: Objects without pods that make claims about a job.
ASIDE_KINDS = toml.words(__file__, "names.toml", "aside-kinds")
#: Those that bind the pods of a job from a file of their own, by its namespace or a volume's name.
BINDING_KINDS = frozenset(("PersistentVolumeClaim", "ResourceQuota", "NetworkPolicy", "CiliumNetworkPolicy"))
RAY_KINDS = frozenset(("RayCluster", "RayJob", "RayService"))
_SERVER_ROLES = frozenset(("ps", "pserver", "server", "parameterserver", "scheduler", "tracker", "evaluator"))
#: Where the number of pods of a template is set, in kinds that have no reader.
_COUNTS = ("replicas", "numReplicas", "parallelism", "count", "size", "minReplicas")
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")


@dataclass(frozen=True, slots=True)
class Role:
    """One group of equal pods. `member` is where their number is set; `trains`: whether its pods contain training
    ranks.
    """

    name: str
    replicas: Value
    member: Member | None
    template: Node
    trains: bool = True
    #: KubeRay's `rayStartParams`.
    start_params: Member | None = None

    @property
    def pod(self) -> Node | None:
        """Return the pod's own specification."""
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
    #: Where the ranks of each pod are set (`nprocPerNode`, `slotsPerWorker`, `numProcPerNode`).
    processes: Member | None = None
    #: Where the number of nodes is set separately from the roles (`numNodes`).
    nodes: Member | None = None
    #: How many pods must exist before any of them starts, and the other settings that make them a gang.
    gang_min: Member | None = None
    gang: Member | None = None
    #: Bounds of an elastic job.
    min_nodes: Member | None = None
    max_nodes: Member | None = None
    #: Settings that make some pods wait for others, and how many pods are created first.
    order: Member | None = None
    first: Value | None = None
    plugins: Member | None = None
    entrypoint: Member | None = None

    @property
    def is_training(self) -> bool:
        """Return whether objects of this kind exist to train."""
        return self.kind in TRAINING_KINDS

    @property
    def counts_gang(self) -> bool:
        """Return whether the workload is a Volcano job that sets how many of its pods must exist, whatever they run."""
        return self.group == "batch.volcano.sh" and self.gang_min is not None

    @property
    def spec(self) -> Node:
        """Return the object's specification; empty if it has none."""
        return self.root.at("spec") or _NOTHING


_NOTHING = Node(Kind.OBJECT, 0, 0)
_ONE = Known(1)


def workload_of(root: Node) -> Workload | None:
    """Return the object as a workload; None for an object without pods.

    Of a kind that has no reader here, every pod template is a role.
    """
    head = root.member("kind")
    kind, version = root.text("kind"), root.text("apiVersion")
    if head is None:
        return None
    found = Workload(kind, version.rpartition("/")[0], head, root)
    spec = found.spec
    if kind not in TRAINING_KINDS and kind not in GENERIC_KINDS:
        roles = tuple(_roles_in(spec)) if "." in found.group else ()
        return replace(found, roles=roles) if roles else None
    reader = _READERS.get((kind, found.group)) or _READERS.get((kind, ""))
    if reader is not None:
        return reader(found, spec)
    replica_specs = next((m for m in spec.in_force if re.fullmatch(r"\w+ReplicaSpecs|replicaSpecs", m.key)), None)
    if replica_specs is not None:
        return _with_roles(found, replica_specs.node)
    return found


def _roles_in(node: Node, name: str = "", depth: int = 0) -> Iterator[Role]:
    """Yield the pod templates in an object, each with the number of its pods beside it."""
    template = node.at("template")
    if template is not None and template.at("spec", "containers") is not None:
        member = next((found for key in _COUNTS if (found := node.member(key)) is not None), None)
        own = node.text("name") or node.text("type") or node.text("role") or name
        yield Role(own, _count(member), member, template, trains=own.lower() not in _SERVER_ROLES)
    elif depth < _MAX_DEPTH:
        for member in node.in_force:
            yield from _roles_in(member.node, member.key, depth + 1)
        for item in node.items:
            yield from _roles_in(item, name, depth + 1)


def _with_roles(workload: Workload, specs: Node) -> Workload:
    """Return jobs of Kubeflow and kubedl, which have one entry for each role."""
    roles = [
        _role(name, node, trains=not (name == "Launcher" or name.lower() in _SERVER_ROLES))
        for name, node in _entries(specs)
        if node.kind is Kind.OBJECT
    ]
    spec = workload.spec
    processes = spec.member("nprocPerNode") or spec.member("elasticPolicy", "nProcPerNode")
    processes = processes or spec.member("slotsPerWorker")
    order, first = _order(workload, roles)
    return replace(
        workload,
        order=order,
        first=first,
        roles=tuple(roles),
        processes=processes,
        gang_min=spec.member("runPolicy", "schedulingPolicy", "minAvailable"),
        min_nodes=spec.member("elasticPolicy", "minReplicas") or spec.member("minReplicas"),
        max_nodes=spec.member("elasticPolicy", "maxReplicas") or spec.member("maxReplicas"),
    )


def _entries(specs: Node) -> Iterator[tuple[str, Node]]:
    """Yield roles by name: the entries of a mapping, or a list whose items have names (HyperPodPyTorchJob)."""
    for member in specs.in_force:
        yield member.key, member.node
    for number, item in enumerate(specs.items):
        yield item.text("name") or f"role {number}", item


def _mpi_alpha(workload: Workload, spec: Node) -> Workload:
    """Read MPIJob v1alpha1: one template for launcher and workers; the number of workers follows from a number of
    GPUs.
    """
    specs = spec.at("mpiReplicaSpecs")
    if specs is not None:
        return _with_roles(workload, specs)
    template = spec.at("template") or _NOTHING
    counted = spec.member("replicas")
    count = _count(counted)
    total = spec.member("gpus") or spec.member("processingUnits")
    each = spec.member("gpusPerNode") or spec.member("processingUnitsPerNode")
    if counted is None and total is not None:
        # The operator's default is 8 GPUs per node; fewer than that stay on one node.
        share = _count(each) if each is not None else Known(8)
        count = lift(lambda a, b: max(1, -(-int(str(a)) // int(str(b)))), _count(total), share)
    roles = (Role("Launcher", Known(1), None, template, False), Role("Worker", count, counted or total, template))
    return replace(workload, roles=roles, processes=spec.member("slotsPerWorker"))


def _edl(workload: Workload, spec: Node) -> Workload:
    """Read EDL's TrainingJob (paddlepaddle.org/v1): trainers and parameter servers, each with a range of instances."""
    roles = []
    for name, trains in (("pserver", False), ("trainer", True), ("master", False)):
        part = spec.at(name)
        if part is None or part.kind is not Kind.OBJECT:
            continue
        least, most = part.member("min-instance"), part.member("max-instance")
        count = _count(least or most)
        if least is not None and most is not None and _count(most) != count:
            count = Unresolved(f"between {least.node.value} and {most.node.value} instances, as many as fit")
        image = spec.member("image")
        container = replace(part, members=(*part.in_force, *((image,) if image is not None else ())))
        roles.append(Role(name, count, least or most, _pod_of(container), trains))
    return replace(workload, roles=tuple(roles), entrypoint=spec.member("trainer", "entrypoint"))


def _pod_of(container: Node) -> Node:
    """Return a pod template around one container."""
    start, end = container.start, container.end
    listed = Node(Kind.ARRAY, start, end, items=(container,))
    pod = Node(Kind.OBJECT, start, end, members=(Member("containers", start, end, listed),))
    return Node(Kind.OBJECT, start, end, members=(Member("spec", start, end, pod),))


def _workflow(workload: Workload, spec: Node) -> Workload:
    """Return an Argo Workflow: each template with a container is a pod; the resources that it creates are separate
    objects.
    """
    inner = workflow_spec(workload.root)
    roles = []
    for number, template in enumerate(inner.items_at("templates") if inner is not None else ()):
        container = template.at("container") or template.at("script")
        if container is not None and container.kind is Kind.OBJECT:
            name = template.text("name") or f"template {number}"
            roles.append(Role(name, Known(1), None, _pod_of(container)))
    return replace(workload, roles=tuple(roles))


#: The role on which the others depend in kubedl 0.5 (controllers' defaults with DAG scheduling).
_FIRST = {"PyTorchJob": "Master", "TFJob": "PS", "MPIJob": "Worker"}


def _order(workload: Workload, roles: list[Role]) -> tuple[Member | None, Value | None]:
    """Return the order of roles: kubedl creates the role that the others depend on first; mpi-operator can be set to
    create the launcher last.
    """
    if workload.group == "training.kubedl.io" and workload.kind in _FIRST:
        return next(
            ((role.member, role.replicas) for role in roles if role.name == _FIRST[workload.kind]), (None, None)
        )
    policy = workload.spec.member("launcherCreationPolicy")
    if policy is not None and policy.node.value == "WaitForWorkersReady":
        return policy, next((role.replicas for role in roles if role.name == "Worker"), None)
    return None, None


def _stateful_set(workload: Workload, spec: Node) -> Workload:
    """Add the order of the pods, each of which is created when the one before it is ready, if a probe decides that."""
    policy, probe = spec.member("podManagementPolicy"), _probe_of_program(workload.roles[0].template)
    ordered = value_of(policy.node) if policy is not None else Known("OrderedReady")
    if probe is None or ordered == Known("Parallel"):
        return workload
    return replace(workload, order=probe, first=lift(lambda _: 1, ordered))


#: A probe for a file: `test -f /tmp/joined`, `cat /tmp/joined`.
_PROBED_FILE = re.compile(r"(?:\s-[efs]|\bcat|\bls)\s+(?P<path>/\S+)")


def _probe_of_program(template: Node) -> Member | None:
    """Return the readiness probe that succeeds only once the program answers it or has made a file."""
    for container in template.items_at("spec", "containers"):
        probe = container.member("readinessProbe")
        if probe is None or probe.node.kind is not Kind.OBJECT:
            continue
        words = [str(item.value) for item in probe.node.items_at("exec", "command")]
        file = _PROBED_FILE.search(" ".join(words).rstrip("] "))
        started = [str(item.value) for name in ("command", "args") for item in container.items_at(name)]
        if (file is not None and not any(file["path"] in text for text in started)) or probe.node.at("httpGet"):
            return probe
    return None


def _role(name: str, node: Node, *, trains: bool = True) -> Role:
    member = node.member("replicas")
    return Role(name, _count(member), member, node.at("template") or _NOTHING, trains)


def _count(member: Member | None, default: int = 1) -> Value:
    if member is None or (member.node.kind is Kind.SCALAR and member.node.value is None):
        return Known(default)
    return as_int(value_of(member.node))


def _paddleflow(workload: Workload, spec: Node) -> Workload:
    roles = [
        _role(name, node, trains=name != "ps")
        for name in ("ps", "worker", "heter")
        if (node := spec.at(name)) is not None
    ]
    return replace(workload, roles=tuple(roles), gang_min=spec.member("schedulingPolicy", "minAvailable"))


def _volcano(workload: Workload, spec: Node) -> Workload:
    pairs = [
        (_role(task.text("name") or f"task {number}", task), task)
        for number, task in enumerate(spec.items_at("tasks"))
        if task.kind is Kind.OBJECT
    ]
    roles = [role for role, _ in pairs]
    waiting = {role.name: m for role, task in pairs if (m := task.member("dependsOn")) is not None}
    first = lift(sum_of, *(role.replicas for role in roles if role.name not in waiting)) if waiting else None
    return replace(
        workload,
        roles=tuple(roles),
        order=next(iter(waiting.values()), None),
        first=first,
        gang_min=spec.member("minAvailable"),
        gang=workload.head,
        plugins=spec.member("plugins"),
    )


def _batch(workload: Workload, spec: Node) -> Workload:
    """Return a plain Job: `parallelism` is the number of pods at a time."""
    inner = spec.at("jobTemplate", "spec") if workload.kind == "CronJob" else spec
    if inner is None:
        return workload
    return replace(workload, roles=(_job_role("", inner),))


def _job_role(name: str, spec: Node, times: Value = _ONE) -> Role:
    member = spec.member("parallelism")
    count = lift(product_of, _count(member), times)
    return Role(name, count, member, spec.at("template") or _NOTHING)


def _replicated_jobs(spec: Node) -> Iterator[Role]:
    for number, job in enumerate(spec.items_at("replicatedJobs")):
        template = job.at("template", "spec")
        if template is not None:
            role = _job_role(job.text("name") or f"job {number}", template, _count(job.member("replicas")))
            member = role.member or job.member("replicas")
            yield Role(role.name, role.replicas, member, role.template, not _prepares(role.name))


def _prepares(name: str) -> bool:
    return re.search(r"initializer|launcher|^(?:dataset|model)-", name) is not None


def _runtime(workload: Workload, spec: Node) -> Workload:
    """Read a training runtime: a JobSet with a policy. The job that refers to it sets the number of nodes."""
    policy = spec.at("mlPolicy") or _NOTHING
    processes = policy.member("torch", "numProcPerNode") or policy.member("mpi", "numProcPerNode")
    roles = tuple(_replicated_jobs(spec.at("template", "spec") or _NOTHING))
    gang = spec.member("podGroupPolicy")
    return replace(workload, roles=roles, processes=processes, nodes=policy.member("numNodes"), gang=gang)


def _train_job(workload: Workload, spec: Node) -> Workload:
    trainer = spec.at("trainer") or _NOTHING
    template = _pod_of(_as_container(trainer))
    nodes = trainer.member("numNodes")
    count = _count(nodes) if nodes is not None else Unresolved("the training runtime sets the number of nodes")
    role = Role("trainer", count, nodes, template)
    return replace(workload, roles=(role,), processes=trainer.member("numProcPerNode"), nodes=nodes)


def _as_container(trainer: Node) -> Node:
    """Return a TrainJob's `trainer` as a container: it has the same fields under other names."""
    renamed = (replace(m, key="resources") if m.key == "resourcesPerNode" else m for m in trainer.in_force)
    return Node(Kind.OBJECT, trainer.start, trainer.end, members=tuple(renamed))


def _ray(workload: Workload, spec: Node) -> Workload:
    cluster = spec
    if workload.kind == "RayJob":
        cluster = spec.at("rayClusterSpec") or _NOTHING
    elif workload.kind == "RayService":
        cluster = spec.at("rayClusterConfig") or spec.at("rayClusterSpec") or _NOTHING
    roles = []
    head = cluster.member("headGroupSpec")
    if head is not None:
        template = head.node.at("template") or _NOTHING
        roles.append(Role("head", Known(1), None, template, False, head.node.member("rayStartParams")))
    for number, group in enumerate(cluster.items_at("workerGroupSpecs")):
        name = group.text("groupName") or f"group {number}"
        member = group.member("replicas") or group.member("minReplicas")
        count = lift(product_of, _count(member, 0), _count(group.member("numOfHosts")))
        template = group.at("template") or _NOTHING
        roles.append(Role(name, count, member, template, True, group.member("rayStartParams")))
    return replace(workload, roles=tuple(roles), entrypoint=spec.member("entrypoint"))


def _leader_worker(workload: Workload, spec: Node) -> Workload:
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
    return replace(workload, roles=tuple(roles))


_READERS: dict[tuple[str, str], Callable[[Workload, Node], Workload]] = {
    ("PaddleJob", "batch.paddlepaddle.org"): _paddleflow,
    ("Job", "batch.volcano.sh"): _volcano,
    ("CronJob", "batch.volcano.sh"): lambda found, spec: _volcano(found, spec.at("jobTemplate", "spec") or _NOTHING),
    ("MPIJob", "kubeflow.org"): _mpi_alpha,
    ("TrainingJob", ""): _edl,
    **{(kind, ""): _workflow for kind in WORKFLOW_KINDS},
    ("Job", ""): _batch,
    ("CronJob", ""): _batch,
    ("JobSet", ""): lambda found, spec: replace(found, roles=tuple(_replicated_jobs(spec))),
    ("TrainJob", ""): _train_job,
    ("RayCluster", ""): _ray,
    ("RayJob", ""): _ray,
    ("RayService", ""): _ray,
    ("LeaderWorkerSet", ""): _leader_worker,
    ("StatefulSet", ""): lambda found, spec: _stateful_set(replace(found, roles=(_role("", spec),)), spec),
    ("Deployment", ""): lambda found, spec: replace(found, roles=(_role("", spec),)),
    ("Pod", ""): lambda found, _: replace(found, roles=(Role("", Known(1), None, found.root),)),
    **{(kind, ""): _runtime for kind in _RUNTIMES},
}

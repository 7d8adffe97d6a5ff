"""The variables that operators add to their objects, and the fields of an object as settings
(`setting.kubeflow_job.spec.runPolicy`).

The object is one place, and so is each of its parts: a role, a group of workers, a pod template, a container. A part's
claims rest on a claim that represents the part, and that claim rests on the one that represents the object. Faults of
values are rows of the rules' tables (data/refusals/kubernetes.toml and its neighbours).

Source: paddle-operator (api/v1/paddlejob_types.go, controllers/paddlejob_helper.go; 0.4) and training-operator
(pkg/controller.v1/paddlepaddle/envvar.go, pkg/webhooks/paddlepaddle; 1.9).

Read from kubeflow training-operator (pkg/controller.v1/{pytorch,paddlepaddle}/envvar.go, elastic.go; 1.5 to 1.9),
trainer (pkg/runtime/framework/plugins/torch/torch.go; 2.1), paddle-operator (controllers/paddlejob_helper.go; 0.4),
Volcano (pkg/controllers/job/plugins; 1.12), kubedl (controllers/pytorch; 0.5), Kubernetes' indexed Job (1.33) and
LeaderWorkerSet (0.6).

The runtime is a JobSet with a policy. The job's `trainer` wins over the runtime's `node` container and over its policy
(trainer 2.1, pkg/runtime/framework/plugins/{jobset,torch}).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from preflight._util.budget import truncate
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Unresolved, Value, as_int, lift
from preflight.model.job.value import SECTION, SETTING_PREFIX
from preflight.sources.configs.framework_files import state_settings
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of
from preflight.sources.kubernetes.admission import is_filled_in
from preflight.sources.kubernetes.objects import GENERIC_KINDS, TRAINING_KINDS, Role, Workload
from preflight.sources.kubernetes.pods import containers_of
from preflight.sources.shell.shell_document import Place
from preflight.sources.shell.state import Kind as SlotKind
from preflight.sources.shell.state import Slot
from preflight.sources.shell.words import hole, literal
from preflight.sources.value_readers import sum_of

#: How these claims are named; `because` is the place.
SOURCE = "object"
#: Stands for the place itself: true where all its fields are written out.
_CALL = "(call)"


#: Sections and lists that are stated without what is in them: some of the variables are secret, containers are places
#: of their own, and no table has a row about the rest.
_APART = frozenset(
    (
        *("env", "envFrom", "containers", "initContainers", "volumes", "volumeMounts", "ports", "affinity"),
        *("tolerations", "lifecycle", "readinessProbe", "startupProbe", "nodeSelector"),
        *("workerGroupSpecs", "replicatedJobs", "rules", "runtimePatches"),
    )
)
_MAX_PARTS = 60


def state_object(stating: NodeClaims, workload: Workload, *, whole: bool) -> None:
    """Add claims for the fields of an object, of its parts, and of its pods; `whole` if all its fields could be
    read.
    """
    root = workload.root
    head = root.member("kind")
    shape = SHAPES.get((root.text("apiVersion"), root.text("kind")))
    if shape is None or head is None:
        return
    own = NodeClaims(stating.file, SOURCE, stating.scope, stating.strength)
    own.places = stating.places
    place = _place(own, shape.framework, head, (), whole=whole)
    _state_value(own, root, shape.framework, place)
    _state_template(own, root.at("spec"), shape.framework, place)
    for path, framework in shape.parts.items():
        for part in truncate(list(_parts(root, path)), _MAX_PARTS, "parts of an object"):
            number = len(own.claims)
            at = _place(own, framework, part, (place,), whole=whole, number=number)
            if part.key:
                own.claims.append(_named(own, framework, "role", Known(part.key), part, at))
            _state_value(own, part.node, framework, at)
            _state_template(own, part.node, framework, at)
    # The pods of a TrainJob are those of its runtime.
    for role in workload.roles if workload.kind != "TrainJob" else ():
        _state_pod(own, root, role, place, whole=whole)
    stating.claims.extend(own.claims)


def _state_template(own: NodeClaims, node: Node | None, framework: str, place: Claim) -> None:
    """Add claims for the container names and the restart policy of a part's pod template."""
    for path in (("template",), ("template", "spec", "template")):
        pod = node.at(*path, "spec") if node is not None else None
        containers = containers_of(pod) if pod is not None and pod.kind is Kind.OBJECT else ()
        names = [name for container in containers if (name := container.member("name")) is not None]
        if pod is None or not names:
            continue
        value = lift(lambda *items: tuple(map(str, items)), *(_read(name.node) for name in names))
        own.claims.append(_named(own, framework, "containers", value, names[0], place))
        policy = pod.member("restartPolicy")
        if policy is not None:
            own.claims.append(_named(own, framework, "template_restart_policy", _read(policy.node), policy, place))


def _parts(root: Node, path: str) -> Iterator[Member]:
    """Yield the parts at a path: the members of a mapping, or the items of a list under no name."""
    *above, last = path.split(".")
    if last != "*":
        member = root.member(*above, last)
        if member is not None and member.node.kind is Kind.OBJECT:
            yield member
        return
    found = root.member(*above)
    if found is None:
        return
    yield from (member for member in found.node.in_force if member.node.kind is Kind.OBJECT)
    for item in found.node.items:
        if item.kind is Kind.OBJECT and item.members:
            first = item.member("name") or item.members[0]
            yield Member("", first.key_start, first.key_end, item)


def _state_pod(own: NodeClaims, root: Node, role: Role, place: Claim, *, whole: bool) -> None:
    pod = role.pod
    if pod is None or not role.template.members:
        return
    if role.template is root:
        at = place
    else:
        first = role.template.members[0]
        at = _place(own, POD, first, (place,), whole=whole, number=len(own.claims))
        own.claims.append(_named(own, POD, "pods", role.replicas, first, at))
        own.claims.append(_named(own, POD, "role", Known(role.name), first, at))
        _state_value(own, role.template, POD, at)
    for container in containers_of(pod):
        if not container.members:
            continue
        head = container.member("name") or container.members[0]
        within = _place(own, CONTAINER, head, (place, at), whole=whole, number=len(own.claims))
        _state_value(own, container, CONTAINER, within)
        for item in container.items_at("env"):
            name, value = item.member("name"), item.at("value")
            if name is not None and isinstance(name.node.value, str) and name.node.value.isidentifier():
                hidden = value is None or is_secret(name.node.value)
                read = Unresolved("a value that is not shown") if value is None or hidden else _read(value)
                own.claims.append(_named(own, CONTAINER, f"variables.{name.node.value}", read, name, within))


def _place(
    own: NodeClaims, framework: str, head: Member, above: tuple[Claim, ...], *, whole: bool, number: int = 0
) -> Claim:
    """Return a claim that represents a place; `number` distinguishes claims at the same characters."""
    span = own.places.span(head.key_start, head.key_end)
    text = _shown(own, head)
    value: Value = Known(True) if whole else Unresolved("parts of the file that are written later")
    quantity = f"{SETTING_PREFIX}{framework}.{_CALL}"
    mark = Claim(quantity, value, span, f"{text}#{number}", SOURCE, own.scope, own.strength)
    # What a place belongs to is said once, not by each of its claims.
    rests = (replace(mark, because=above),)
    own.claims.append(Claim(quantity, value, span, text, SOURCE, own.scope, own.strength, because=rests))
    return mark


def _named(own: NodeClaims, framework: str, name: str, value: Value, at: Member, place: Claim) -> Claim:
    quantity = f"{SETTING_PREFIX}{framework}.{name}"
    span = own.places.span(at.key_start, at.key_end)
    return Claim(quantity, value, span, _shown(own, at), SOURCE, own.scope, own.strength, because=(place,))


def _shown(own: NodeClaims, at: Member) -> str:
    return own.spelling(at) if at.node.kind is Kind.SCALAR else own.file.text[at.key_start : at.key_end]


def _state_value(own: NodeClaims, node: Node, framework: str, place: Claim) -> None:
    state_settings(own, node, framework, key_of=_as_name, stops=_is_apart, read=_read, because=(place,), names=True)


def _as_name(key: str) -> str:
    """Return a key as a condition names it: `nvidia_com_gpu`."""
    return re.sub(r"\W", "_", key)


def _is_apart(member: Member) -> bool:
    """Return whether a member is a pod template, which is a place of its own, or one of `_APART`."""
    is_pod = member.key.lower().endswith("template") and member.node.member("spec", "containers") is not None
    return is_pod or member.key in _APART


def _read(node: Node) -> Value:
    """Return the value; unresolved where a placeholder is written. A `$` in a list is one of a command."""
    if is_filled_in(node):
        return Unresolved("a placeholder that is replaced later")
    return lift(lambda item: item, value_of(node))


#: The names of the settings of a pod template and of a container.
POD, CONTAINER = "pod_template", "pod_container"


@dataclass(frozen=True, slots=True)
class Shape:
    """The prefix of the settings of an object, and the prefixes of the settings of its parts, by path.

    A path that ends in `.*` is that of a list or mapping of parts.
    """

    framework: str
    parts: dict[str, str] = field(default_factory=dict)


def _kubeflow(specs: str) -> Shape:
    return Shape("kubeflow_job", {f"spec.{specs}.*": "kubeflow_role"})


_RUNTIME = Shape("training_runtime", {"spec.template.spec.replicatedJobs.*": "runtime_job"})


def _ray(framework: str, spec: str) -> Shape:
    return Shape(
        framework, {spec: "ray_spec", f"{spec}.headGroupSpec": "ray_group", f"{spec}.workerGroupSpecs.*": "ray_group"}
    )


#: The objects by API version and kind, with the types of training-operator 1.9, trainer 2.3, mpi-operator 0.8, JobSet
#: 0.12, LWS 0.10, Volcano 1.15, KubeRay 1.7 and Kubernetes 1.34.
SHAPES = {
    **{(f"kubeflow.org/{v}", "PyTorchJob"): _kubeflow("pytorchReplicaSpecs") for v in ("v1", "v1beta1", "v1beta2")},
    **{(f"kubeflow.org/{v}", "TFJob"): _kubeflow("tfReplicaSpecs") for v in ("v1", "v1beta1", "v1beta2")},
    ("kubeflow.org/v1", "XGBoostJob"): _kubeflow("xgbReplicaSpecs"),
    ("kubeflow.org/v1", "PaddleJob"): _kubeflow("paddleReplicaSpecs"),
    ("kubeflow.org/v1", "JAXJob"): _kubeflow("jaxReplicaSpecs"),
    ("kubeflow.org/v1", "MPIJob"): _kubeflow("mpiReplicaSpecs"),
    ("kubeflow.org/v2beta1", "MPIJob"): Shape("mpijob", {"spec.mpiReplicaSpecs.*": "mpijob_role"}),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): Shape("trainjob", {"spec.runtimePatches.*": "trainjob_patch"}),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): _RUNTIME,
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): _RUNTIME,
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): Shape(
        "jobset", {"spec.replicatedJobs.*": "jobset_job", "spec.failurePolicy.rules.*": "jobset_rule"}
    ),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): Shape("leader_worker_set"),
    ("batch.volcano.sh/v1alpha1", "Job"): Shape(
        "volcano_job",
        {"spec.tasks.*": "volcano_task", "spec.policies.*": "volcano_policy", "spec.volumes.*": "volcano_volume"},
    ),
    ("ray.io/v1", "RayCluster"): _ray("ray_cluster", "spec"),
    ("ray.io/v1", "RayJob"): _ray("ray_job", "spec.rayClusterSpec"),
    ("ray.io/v1", "RayService"): _ray("ray_service", "spec.rayClusterConfig"),
    ("batch/v1", "Job"): Shape("batch_job", {"spec.podFailurePolicy.rules.*": "job_failure_rule"}),
    ("v1", "Pod"): Shape("bare_pod"),
}


_PREFIX = f"{SETTING_PREFIX}paddlejob."
_PLAIN = ("intranet", "cleanPodPolicy", "withGloo", "elastic")
_ETCD = ("PADDLE_ELASTIC_SERVER", "PADDLE_ELASTIC_ETCD_SERVICE_HOST")


def state_paddle_job(stating: NodeClaims, workload: Workload) -> None:
    """Add claims about what the operator of this PaddleJob reads."""
    if workload.kind != "PaddleJob":
        return
    if workload.group == "batch.paddlepaddle.org":
        _state_own(stating, workload.spec)
    else:
        _state_kubeflow(stating, workload.spec)


def _state_own(stating: NodeClaims, spec: Node) -> None:
    for name in _PLAIN:
        stating.add_member(f"{_PREFIX}spec.{name}", spec.member(name))
    for name in ("ps", "worker", "heter"):
        member = spec.member(name)
        if member is None or member.node.kind is not Kind.OBJECT:
            continue
        _state(stating, f"spec.{name}", Known(SECTION), member)
        stating.add_member(f"{_PREFIX}spec.{name}.replicas", member.node.member("replicas"))
        containers = member.node.member("template", "spec", "containers")
        pods = containers.node.items if containers is not None else ()
        if containers is not None and len(pods) > 1 and not _starts(pods[0]) and any(map(_starts, pods)):
            _state(stating, f"spec.{name}.program_behind", Known(True), containers)
        if any(item.text("name") in _ETCD for pod in pods for item in _items(pod.at("env"))):
            _state(stating, "spec.etcd", Known(True), member)


def _state_kubeflow(stating: NodeClaims, spec: Node) -> None:
    specs = spec.at("paddleReplicaSpecs")
    for member in specs.in_force if specs is not None and specs.kind is Kind.OBJECT else ():
        if member.node.kind is not Kind.OBJECT:
            continue
        known = member.key in ("Master", "Worker")
        _state(stating, f"replicas.{member.key if known else 'unknown'}", Known(member.key), member)
        containers = _items(member.node.at("template", "spec", "containers"))
        names = [name for pod in containers if (name := pod.member("name")) is not None]
        if names and all(isinstance(value_of(name.node), Known) and name.node.value != "paddle" for name in names):
            stating.add_member(f"{_PREFIX}replicas.container", names[0])


def _state(stating: NodeClaims, name: str, value: Value, member: Member) -> None:
    stating.add(f"{_PREFIX}{name}", value, member)


def _items(node: Node | None) -> tuple[Node, ...]:
    return tuple(item for item in node.items if item.kind is Kind.OBJECT) if node is not None else ()


def _starts(container: Node) -> bool:
    """Return whether a container's command runs Python, or anything of Paddle."""
    words = [item.value for key in ("command", "args") if (node := container.at(key)) for item in node.items]
    return any(isinstance(word, str) and ("python" in word or "paddle" in word) for word in words)


_TORCH_PORT = "23456"
_TRAINER_PORT = "29400"
_SET_BY_OPERATOR = "the operator sets it in each pod"


def injected_variables(workload: Workload, role: Role, place: Place) -> dict[str, Slot]:
    """Return the variables that the operator sets in a role's containers.

    Their location is the member they come from, if there is one, otherwise `place`, that of the object's kind.
    """
    values: dict[str, str | None] = {}
    total = pods(workload)
    processes = _text(value_of(workload.processes.node)) if workload.processes is not None else None
    if workload.kind == "PyTorchJob":
        values = _torch(workload, total, processes)
    elif workload.kind in ("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"):
        values = _pet(_text(total), processes, _TRAINER_PORT)
    elif workload.kind == "PaddleJob":
        values = {"PADDLE_NNODES": _text(total), "PADDLE_MASTER": None, "PADDLE_JOB_ID": None}
        if workload.group == "batch.paddlepaddle.org":
            values = _paddleflow(workload, role)
    elif workload.group == "batch.volcano.sh" and workload.plugins is not None:
        values = _volcano(workload, total)
    elif workload.kind == "LeaderWorkerSet":
        values = {"LWS_LEADER_ADDRESS": None, "LWS_GROUP_SIZE": _text(total), "LWS_WORKER_INDEX": None}
    elif workload.kind == "ElasticJob" and workload.group.startswith("elastic.iml"):
        number = _text(total)
        values = dict.fromkeys(("NODE_RANK", "NODE_ID", "WORKER_RANK", "WORKER_ID", "RANK", "DLROVER_MASTER_ADDR"))
        values |= {"NODE_NUM": number, "WORKER_NUM": number, "WORLD_SIZE": number}
    elif workload.kind == "TrainingJob":
        values = _edl(workload)
    elif workload.kind == "JobSet" or _is_indexed(workload):
        # The controller adds it to the containers' own list, so `$(JOB_COMPLETION_INDEX)` is replaced, too.
        values = {"JOB_COMPLETION_INDEX": None}
    elif workload.kind not in TRAINING_KINDS | GENERIC_KINDS:
        # What its operator sets is not known; what the pods use of it shows.
        values = dict.fromkeys(sorted(set(_names_used(role.template))))
    origins = {"PET_NPROC_PER_NODE": workload.processes, "PET_NNODES": workload.nodes}
    found: dict[str, Slot] = {}
    for name, value in values.items():
        member = origins.get(name)
        at = place if member is None else Place(place.file, member.node.start, member.node.end)
        found[name] = _slot(value, name, at)
    return found


_REFERENCE = re.compile(r"(?<!\$)\$\(([A-Za-z_]\w*)\)")


def _names_used(node: Node) -> Iterator[str]:
    """Yield the variables that `$(NAME)` stands for anywhere in a pod template."""
    if isinstance(node.value, str):
        yield from _REFERENCE.findall(node.value)
    for inner in (*node.items, *(member.node for member in node.members)):
        yield from _names_used(inner)


def pods(workload: Workload) -> Value:
    """Return how many pods contain ranks, over all training roles; the node count of the job comes first."""
    if workload.nodes is not None:
        return as_int(value_of(workload.nodes.node))
    if workload.kind == "TrainJob":
        return Unresolved("the training runtime sets the number of nodes")
    counts = [role.replicas for role in workload.roles if role.trains]
    return lift(sum_of, *counts) if counts else Unresolved("no role")


def _is_indexed(workload: Workload) -> bool:
    """Return whether the workload is a Job whose pods are numbered, or may be, if a template decides it."""
    mode = workload.spec.member("completionMode")
    return workload.kind == "Job" and mode is not None and mode.node.value != "NonIndexed"


def _slot(value: str | None, name: str, place: Place) -> Slot:
    text = hole(_SET_BY_OPERATOR, place, f"${name}") if value is None else literal(value, place, value)
    return Slot(SlotKind.TEXT, place, text, exported=True)


def _text(value: Value) -> str | None:
    return str(value.value) if isinstance(value, Known) else None


def _number(member: Member | None) -> str | None:
    return _text(value_of(member.node)) if member is not None else None


def _pet(nodes: str | None, processes: str | None, port: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {"PET_NNODES": nodes, "PET_NPROC_PER_NODE": processes}
    return {**found, "PET_NODE_RANK": None, "PET_MASTER_ADDR": None, "PET_MASTER_PORT": port}


def _torch(workload: Workload, total: Value, processes: str | None) -> dict[str, str | None]:
    names = {role.name for role in workload.roles}
    if workload.max_nodes is not None or workload.min_nodes is not None:
        least, most = _number(workload.min_nodes), _number(workload.max_nodes)
        span = f"{least}:{most}" if least and most else None
        found: dict[str, str | None] = {"PET_NNODES": span, "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": None}
        restarts = _number(workload.spec.member("elasticPolicy", "maxRestarts"))
        found |= {"PET_MAX_RESTARTS": restarts} if restarts is not None else {}
        return {**found, "PET_NPROC_PER_NODE": processes, "RANK": None, "WORLD_SIZE": None, "MASTER_ADDR": None}
    # Up to 1.6 the world size counts pods; later it counts the processes of nprocPerNode.
    world = _text(total) if processes in (None, "1") else None
    found = {"MASTER_ADDR": None, "MASTER_PORT": _TORCH_PORT, "WORLD_SIZE": world, "RANK": None}
    if workload.group == "kubeflow.org" and ("Master" in names or "Worker" in names):
        pet = _pet(_text(total), processes, _TORCH_PORT)
        if processes is None:
            # Newer operators default it to `auto`, older ones leave it out.
            pet.pop("PET_NPROC_PER_NODE")
        found.update(pet)
    return found


def _paddleflow(workload: Workload, role: Role) -> dict[str, str | None]:
    counts = {each.name: _text(each.replicas) for each in workload.roles}
    names = ("POD_IP", "PADDLE_TRAINER_ID", "PADDLE_PORT", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINERS")
    found: dict[str, str | None] = dict.fromkeys(names)
    found["PADDLE_TRAINERS_NUM"] = counts.get("worker")
    if "ps" in counts:
        found["TRAINING_ROLE"] = "PSERVER" if role.name == "ps" else "TRAINER"
        found["PADDLE_PSERVERS_IP_PORT_LIST"] = None
    else:
        # A role of a collective job has no list of servers, and is not part of a parameter-server job.
        # The launcher takes the nodes from PADDLE_TRAINERS, a list with one entry for each worker.
        found["PADDLE_NNODES"] = counts.get("worker")
    return found


def _edl(workload: Workload) -> dict[str, str | None]:
    """Return the variables that `paddle_k8s` sets in the pods of EDL's TrainingJob (PaddleCloud, docker/paddle_k8s)."""
    counts = {role.name: _text(role.replicas) for role in workload.roles}
    names = ("PADDLE_PSERVERS", "PADDLE_TRAINER_ID", "PADDLE_CURRENT_IP", "PADDLE_INIT_TRAINER_ID")
    found: dict[str, str | None] = {**dict.fromkeys(names), "PADDLE_INIT_PSERVERS": None}
    trainers = counts.get("trainer")
    return {**found, "PADDLE_TRAINERS": trainers, "PADDLE_INIT_NUM_GRADIENT_SERVERS": trainers}


def _volcano(workload: Workload, total: Value) -> dict[str, str | None]:
    plugins = workload.plugins
    names = {member.key for member in plugins.node.in_force} if plugins is not None else set()
    found: dict[str, str | None] = {}
    if "pytorch" in names:
        port = _port_option(plugins) or _TORCH_PORT
        found.update({"MASTER_ADDR": None, "MASTER_PORT": port, "WORLD_SIZE": _text(total), "RANK": None})
    if "mpi" in names:
        found["MPI_HOST"] = None
    if "env" in names or "svc" in names:
        found.update({"VC_TASK_INDEX": None, "VK_TASK_INDEX": None})
    if "svc" in names:
        for role in workload.roles:
            key = role.name.upper().replace("-", "_")
            found.update({f"VC_{key}_HOSTS": None, f"VC_{key}_NUM": _text(role.replicas)})
    return found


def _port_option(plugins: Member | None) -> str | None:
    """Return the port among the arguments of Volcano's plugin for torch (`pytorch: ["--port=23456"]`)."""
    listed = plugins.node.items_at("pytorch") if plugins is not None else ()
    match = re.search(r"(?:^|\0)--port[=\0]([^\0]*)", "\0".join(str(item.value) for item in listed))
    return match[1] if match is not None else None


#: The container that runs the ranks.
_NODE = "node"


def with_runtime(job: Workload, runtime: Workload) -> Workload:
    """Return the job's roles as the operator creates them from the runtime."""
    trainer = job.spec.at("trainer")
    chosen = _trainer_role(runtime.roles)
    if chosen is None:
        return job
    nodes = job.nodes or runtime.nodes
    roles = []
    for role in runtime.roles:
        if role is not chosen:
            roles.append(role)
            continue
        template = _with_trainer(role.template, trainer) if trainer is not None else role.template
        count = as_int(value_of(nodes.node)) if nodes is not None else role.replicas
        roles.append(Role(role.name, count, nodes or role.member, template))
    return replace(
        job,
        roles=tuple(roles),
        processes=job.processes or runtime.processes,
        nodes=nodes,
        gang=job.gang or runtime.gang,
    )


def _trainer_role(roles: tuple[Role, ...]) -> Role | None:
    for role in roles:
        containers = role.pod.items_at("containers") if role.pod is not None else ()
        if any(item.text("name") in (_NODE, "trainer") for item in containers):
            return role
    return next((role for role in roles if role.trains), None)


def _with_trainer(template: Node, trainer: Node) -> Node:
    """Return the pod template with the container that the job changes."""
    spec = template.at("spec")
    containers = spec.at("containers") if spec is not None else None
    if spec is None or containers is None or not containers.items:
        return template
    named = [item for item in containers.items if item.text("name") in (_NODE, "trainer")]
    target = named[0] if named else containers.items[0]
    items = tuple(_change_container(item, trainer) if item is target else item for item in containers.items)
    return _with(template, "spec", _with(spec, "containers", replace(containers, items=items)))


def _change_container(container: Node, trainer: Node) -> Node:
    for key in ("image", "command", "args"):
        member = trainer.member(key)
        if member is not None:
            container = _with_member(container, member)
    resources = trainer.member("resourcesPerNode")
    if resources is not None:
        container = _with_member(container, replace(resources, key="resources"))
    own = trainer.member("env")
    if own is not None and own.node.kind is Kind.ARRAY:
        names = {item.text("name") for item in own.node.items}
        kept = tuple(item for item in container.items_at("env") if item.text("name") not in names)
        container = _with_member(container, replace(own, node=replace(own.node, items=(*kept, *own.node.items))))
    return container


def _with(node: Node, key: str, value: Node) -> Node:
    member = node.member(key)
    assert member is not None
    return _with_member(node, replace(member, node=value))


def _with_member(node: Node, member: Member) -> Node:
    kept = tuple(each for each in node.members if each.key != member.key)
    return replace(node, members=(*kept, member))

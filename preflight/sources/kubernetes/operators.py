"""What operators add to their objects: the variables they set in pods, and the runtime that a TrainJob names.

Read from kubeflow training-operator (pkg/controller.v1/{pytorch,paddlepaddle}/envvar.go, elastic.go; 1.5 to 1.9),
trainer (pkg/runtime/framework/plugins/torch/torch.go; 2.1), paddle-operator (controllers/paddlejob_helper.go; 0.4),
Volcano (pkg/controllers/job/plugins; 1.12), kubedl (controllers/pytorch; 0.5), Kubernetes' indexed Job (1.33) and
LeaderWorkerSet (0.6).

The runtime is a JobSet with a policy. The job's `trainer` wins over the runtime's `node` container and over its policy
(trainer 2.1, pkg/runtime/framework/plugins/{jobset,torch}).
"""

from __future__ import annotations

from dataclasses import replace

from preflight.model.job import Known, Unresolved, Value, as_int, lift
from preflight.sources.formats.structured import Kind as NodeKind
from preflight.sources.formats.structured import Member, Node, value_of
from preflight.sources.kubernetes.objects import Role, Workload
from preflight.sources.shell.shell_document import Place
from preflight.sources.shell.state import Kind, Slot
from preflight.sources.shell.words import hole, literal

_TORCH_PORT = "23456"
_TRAINER_PORT = "29400"
_SET_BY_OPERATOR = "the operator sets it in each pod"


def injected_variables(workload: Workload, role: Role, place: Place) -> dict[str, Slot]:
    """The variables that the operator sets in a role's containers.

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
        values = _paddleflow(workload, role) if workload.group == "batch.paddlepaddle.org" else _paddle(total)
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
    origins = {"PET_NPROC_PER_NODE": workload.processes, "PET_NNODES": workload.nodes}
    found: dict[str, Slot] = {}
    for name, value in values.items():
        member = origins.get(name)
        at = place if member is None else Place(place.file, member.node.start, member.node.end)
        found[name] = _slot(value, name, at)
    return found


def pods(workload: Workload) -> Value:
    """How many pods contain ranks, over all training roles; the node count of the job comes first."""
    if workload.nodes is not None:
        return as_int(value_of(workload.nodes.node))
    if workload.kind == "TrainJob":
        return Unresolved("the training runtime sets the number of nodes")
    counts = [role.replicas for role in workload.roles if role.trains]
    return lift(lambda *each: sum(int(str(item)) for item in each), *counts) if counts else Unresolved("no role")


def _is_indexed(workload: Workload) -> bool:
    """Whether it is a Job whose pods are numbered, or may be, if a template decides it."""
    mode = workload.spec.member("completionMode")
    return workload.kind == "Job" and mode is not None and mode.node.value != "NonIndexed"


def _slot(value: str | None, name: str, place: Place) -> Slot:
    text = hole(_SET_BY_OPERATOR, place, f"${name}") if value is None else literal(value, place, value)
    return Slot(Kind.TEXT, place, text, exported=True)


def _text(value: Value) -> str | None:
    return str(value.value) if isinstance(value, Known) else None


def _number(member: Member | None) -> str | None:
    return _text(value_of(member.node)) if member is not None else None


def _pet(nodes: str | None, processes: str | None, port: str) -> dict[str, str | None]:
    return {
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": processes,
        "PET_NODE_RANK": None,
        "PET_MASTER_ADDR": None,
        "PET_MASTER_PORT": port,
    }


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


def _paddle(total: Value) -> dict[str, str | None]:
    found: dict[str, str | None] = {"PADDLE_NNODES": _text(total), "PADDLE_MASTER": None, "PADDLE_JOB_ID": None}
    return found


def _paddleflow(workload: Workload, role: Role) -> dict[str, str | None]:
    counts = {each.name: _text(each.replicas) for each in workload.roles}
    found: dict[str, str | None] = {
        "POD_IP": None,
        "PADDLE_TRAINER_ID": None,
        "PADDLE_PORT": None,
        "PADDLE_TRAINER_ENDPOINTS": None,
        "PADDLE_TRAINERS": None,
        "PADDLE_TRAINERS_NUM": counts.get("worker"),
        "TRAINING_ROLE": "PSERVER" if role.name == "ps" else "TRAINER",
    }
    if "ps" in counts:
        found["PADDLE_PSERVERS_IP_PORT_LIST"] = None
    else:
        # A role of a collective job has no list of servers, and is not part of a parameter-server job.
        found.pop("TRAINING_ROLE")
        # The launcher takes the nodes from PADDLE_TRAINERS, a list with one entry for each worker.
        found["PADDLE_NNODES"] = counts.get("worker")
    return found


def _edl(workload: Workload) -> dict[str, str | None]:
    """The variables that `paddle_k8s` sets in the pods of EDL's TrainingJob (PaddleCloud, docker/paddle_k8s)."""
    counts = {role.name: _text(role.replicas) for role in workload.roles}
    names = (
        "PADDLE_PSERVERS",
        "PADDLE_TRAINER_ID",
        "PADDLE_CURRENT_IP",
        "PADDLE_INIT_TRAINER_ID",
        "PADDLE_INIT_PSERVERS",
    )
    found: dict[str, str | None] = dict.fromkeys(names)
    found |= {"PADDLE_TRAINERS": counts.get("trainer"), "PADDLE_INIT_NUM_GRADIENT_SERVERS": counts.get("trainer")}
    return found


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
    """The port among the arguments of Volcano's plugin for torch (`pytorch: ["--port=23456"]`)."""
    listed = plugins.node.at("pytorch") if plugins is not None else None
    words = [str(item.value) for item in (listed.items if listed is not None else ())]
    for number, word in enumerate(words):
        if word.startswith("--port="):
            return word.partition("=")[2]
        if word == "--port" and number + 1 < len(words):
            return words[number + 1]
    return None


#: The container that runs the ranks.
_NODE = "node"


def with_runtime(job: Workload, runtime: Workload) -> Workload:
    """The job's roles as the operator creates them from the runtime."""
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
        pod = role.pod
        containers = pod.at("containers") if pod is not None else None
        if containers is not None and any(item.text("name") in (_NODE, "trainer") for item in containers.items):
            return role
    return next((role for role in roles if role.trains), None)


def _with_trainer(template: Node, trainer: Node) -> Node:
    """The pod template with the container that the job changes."""
    containers = template.at("spec", "containers")
    if containers is None or not containers.items:
        return template
    named = [item for item in containers.items if item.text("name") in (_NODE, "trainer")]
    target = named[0] if named else containers.items[0]
    items = tuple(_change_container(item, trainer) if item is target else item for item in containers.items)
    spec = template.at("spec")
    assert spec is not None
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
    if own is not None and own.node.kind is NodeKind.ARRAY:
        before = container.at("env")
        names = {item.text("name") for item in own.node.items}
        kept = tuple(item for item in (before.items if before is not None else ()) if item.text("name") not in names)
        container = _with_member(container, replace(own, node=replace(own.node, items=(*kept, *own.node.items))))
    return container


def _with(node: Node, key: str, value: Node) -> Node:
    member = node.member(key)
    assert member is not None
    return _with_member(node, replace(member, node=value))


def _with_member(node: Node, member: Member) -> Node:
    kept = tuple(each for each in node.members if each.key != member.key)
    return replace(node, members=(*kept, member))

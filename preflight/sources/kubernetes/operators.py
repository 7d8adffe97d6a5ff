"""What each operator puts into the environment of its pods, as far as a command line may depend on it.

Read from kubeflow training-operator (pkg/controller.v1/{pytorch,paddlepaddle}/envvar.go, elastic.go; 1.5 to 1.9),
trainer (pkg/runtime/framework/plugins/torch/torch.go; 2.1), paddle-operator (controllers/paddlejob_helper.go; 0.4),
Volcano (pkg/controllers/job/plugins; 1.12), kubedl (controllers/pytorch; 0.5), Kubernetes' indexed Job (1.33) and
LeaderWorkerSet (0.6).
"""

from __future__ import annotations

from preflight.job import Known, Unresolved, Value, as_int, lift
from preflight.sources.kubernetes.kinds import Role, Workload
from preflight.sources.shell.document import Place
from preflight.sources.shell.state import Kind, Slot
from preflight.sources.shell.text import hole, literal
from preflight.sources.structured import Member, value_of

_TORCH_PORT = "23456"
_TRAINER_PORT = "29400"
_PADDLE_PORT = "36543"
_HELD_BY_OPERATOR = "the operator sets it in each pod"


def injected(workload: Workload, role: Role, place: Place) -> dict[str, Slot]:
    """The variables a role's containers find set by the operator.

    Their place is the member they come from, where there is one, else `place`, that of the object's kind.
    """
    values: dict[str, str | None] = {}
    total = pods(workload)
    processes = _text(value_of(workload.processes.node)) if workload.processes is not None else None
    if workload.kind == "PyTorchJob":
        values = _torch(workload, total, processes)
    elif workload.kind in ("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"):
        values = _pet(_text(total), processes, _TRAINER_PORT)
    elif workload.kind == "PaddleJob":
        values = _paddleflow(workload, role) if workload.group == "batch.paddlepaddle.org" else _paddle(workload, total)
    elif workload.group == "batch.volcano.sh" and workload.plugins is not None:
        values = _volcano(workload, total)
    elif workload.kind == "LeaderWorkerSet":
        values = {"LWS_LEADER_ADDRESS": None, "LWS_GROUP_SIZE": _text(total), "LWS_WORKER_INDEX": None}
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
    """How many pods hold ranks, over all training roles; what a job says of its nodes comes first."""
    if workload.nodes is not None:
        return as_int(value_of(workload.nodes.node))
    if workload.kind == "TrainJob":
        return Unresolved("the training runtime says how many nodes")
    counts = [role.replicas for role in workload.roles if role.trains]
    return lift(lambda *each: sum(int(str(item)) for item in each), *counts) if counts else Unresolved("no role")


def _is_indexed(workload: Workload) -> bool:
    """Whether it is a Job whose pods are numbered, or may be: a template may say so."""
    mode = workload.spec.member("completionMode")
    return workload.kind == "Job" and mode is not None and mode.node.value != "NonIndexed"


def _slot(value: str | None, name: str, place: Place) -> Slot:
    text = hole(_HELD_BY_OPERATOR, place, f"${name}") if value is None else literal(value, place, value)
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
        return {**found, "PET_NPROC_PER_NODE": processes, "RANK": None, "WORLD_SIZE": None, "MASTER_ADDR": None}
    # Up to 1.6 the world size counts pods; later it counts the processes that nprocPerNode asks for.
    world = _text(total) if processes in (None, "1") else None
    found = {"MASTER_ADDR": None, "MASTER_PORT": _TORCH_PORT, "WORLD_SIZE": world, "RANK": None}
    if workload.group == "kubeflow.org" and ("Master" in names or "Worker" in names):
        pet = _pet(_text(total), processes, _TORCH_PORT)
        if processes is None:
            # Newer operators default it to `auto`, older ones leave it out.
            pet.pop("PET_NPROC_PER_NODE")
        found.update(pet)
    return found


def _paddle(workload: Workload, total: Value) -> dict[str, str | None]:
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
        # A collective job's role has no list of servers beside it, and is none of a parameter-server job.
        found.pop("TRAINING_ROLE")
        # The launcher takes the nodes from PADDLE_TRAINERS, a list of them; as many as there are workers.
        found["PADDLE_NNODES"] = counts.get("worker")
    return found


def _volcano(workload: Workload, total: Value) -> dict[str, str | None]:
    plugins = workload.plugins
    names = {member.key for member in plugins.node.in_force} if plugins is not None else set()
    found: dict[str, str | None] = {}
    if "pytorch" in names:
        found.update({"MASTER_ADDR": None, "MASTER_PORT": _TORCH_PORT, "WORLD_SIZE": _text(total), "RANK": None})
    if "env" in names or "svc" in names:
        found.update({"VC_TASK_INDEX": None, "VK_TASK_INDEX": None})
    if "svc" in names:
        for role in workload.roles:
            key = role.name.upper().replace("-", "_")
            found.update({f"VC_{key}_HOSTS": None, f"VC_{key}_NUM": _text(role.replicas)})
    return found

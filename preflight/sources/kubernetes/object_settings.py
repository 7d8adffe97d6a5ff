"""The fields of a controller's object as settings: `setting.kubeflow_job.spec.nprocPerNode`.

The object is one place, and so is each of its parts: a role, a group of workers, a pod template, a container. A part's
claims rest on a claim that stands for the part, and that one rests on the claim that stands for the object. What is
wrong with a value is a row of the rules' tables (data/refusals/kubernetes.toml and its neighbours).

Source: paddle-operator (api/v1/paddlejob_types.go, controllers/paddlejob_helper.go; 0.4) and training-operator
(pkg/controller.v1/paddlepaddle/envvar.go, pkg/webhooks/paddlepaddle; 1.9).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from preflight._util.budget import truncate
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Unresolved, Value, lift
from preflight.model.job.quantities import SECTION, SETTING_PREFIX
from preflight.sources.configs.setting_claims import state_settings
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of
from preflight.sources.kubernetes.admission import is_filled_in
from preflight.sources.kubernetes.objects import Role, Workload
from preflight.sources.kubernetes.pods import containers_of

#: How these claims are named; `because` is the place.
SOURCE = "object"
#: Stands for the place itself: true where all its fields are written out.
_CALL = "(call)"


#: Sections and lists that are stated without what is in them: some of the variables are secret, containers are places
#: of their own, and no table has a row about the rest.
_APART = frozenset(
    (
        *("env", "envFrom", "containers", "initContainers", "volumes", "volumeMounts", "ports", "affinity"),
        *("securityContext", "tolerations", "lifecycle", "readinessProbe", "startupProbe", "nodeSelector"),
        *("workerGroupSpecs", "replicatedJobs", "rules", "runtimePatches"),
    )
)
_MAX_PARTS = 60


def state_object(stating: NodeClaims, workload: Workload, *, whole: bool) -> None:
    """State the fields of an object, of its parts, and of its pods; `whole` if all its fields could be read."""
    root = workload.root
    head = root.member("kind")
    shape = SHAPES.get((root.text("apiVersion"), root.text("kind")))
    if shape is None or head is None:
        return
    own = NodeClaims(stating.file, SOURCE, stating.scope, stating.strength)
    own.places = stating.places
    place = _place(own, shape.framework, head, (), whole=whole)
    _stated(own, root, shape.framework, place)
    _state_template(own, root.at("spec"), shape.framework, place)
    for path, framework in shape.parts.items():
        for part in truncate(list(_parts(root, path)), _MAX_PARTS, "parts of an object"):
            number = len(own.claims)
            at = _place(own, framework, part, (place,), whole=whole, number=number)
            if part.key:
                own.claims.append(_named(own, framework, "role", Known(part.key), part, at))
            _stated(own, part.node, framework, at)
            _state_template(own, part.node, framework, at)
    # The pods of a TrainJob are those of its runtime.
    for role in workload.roles if workload.kind != "TrainJob" else ():
        _state_pod(own, root, role, place, whole=whole)
    stating.claims.extend(own.claims)


def _state_template(own: NodeClaims, node: Node | None, framework: str, place: Claim) -> None:
    """State the names of the containers of a part's pods, and their policy of restarts."""
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
    """The parts at a path: the members of a mapping, or the items of a list under no name."""
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
        _stated(own, role.template, POD, at)
    for container in containers_of(pod):
        if not container.members:
            continue
        head = container.member("name") or container.members[0]
        within = _place(own, CONTAINER, head, (place, at), whole=whole, number=len(own.claims))
        _stated(own, container, CONTAINER, within)
        env = container.at("env")
        for item in env.items if env is not None else ():
            name, value = item.member("name"), item.at("value")
            if name is not None and isinstance(name.node.value, str) and name.node.value.isidentifier():
                hidden = value is None or is_secret(name.node.value)
                read = Unresolved("a value that is not shown") if value is None or hidden else _read(value)
                own.claims.append(_named(own, CONTAINER, f"variables.{name.node.value}", read, name, within))


def _place(
    own: NodeClaims, framework: str, head: Member, above: tuple[Claim, ...], *, whole: bool, number: int = 0
) -> Claim:
    """A claim that stands for a place; `number` tells apart those at the same characters."""
    span = own.places.span(head.key_start, head.key_end)
    text = own.spelling(head) if head.node.kind is Kind.SCALAR else own.file.text[head.key_start : head.key_end]
    value: Value = Known(True) if whole else Unresolved("parts of the file that are written later")
    quantity = f"{SETTING_PREFIX}{framework}.{_CALL}"
    mark = Claim(quantity, value, span, f"{text}#{number}", SOURCE, own.scope, own.strength)
    # What a place belongs to is said once, not by each of its claims.
    rests = (replace(mark, because=above),)
    own.claims.append(Claim(quantity, value, span, text, SOURCE, own.scope, own.strength, because=rests))
    return mark


def _named(own: NodeClaims, framework: str, name: str, value: Value, at: Member, place: Claim) -> Claim:
    span = own.places.span(at.key_start, at.key_end)
    spelling = own.spelling(at) if at.node.kind is Kind.SCALAR else own.file.text[at.key_start : at.key_end]
    quantity = f"{SETTING_PREFIX}{framework}.{name}"
    return Claim(quantity, value, span, spelling, SOURCE, own.scope, own.strength, because=(place,))


def _stated(own: NodeClaims, node: Node, framework: str, place: Claim) -> None:
    state_settings(own, node, framework, key_of=_plain, stops=_is_apart, read=_read, because=(place,), names=True)


def _plain(key: str) -> str:
    """A key as a condition names it: `nvidia_com_gpu`."""
    return re.sub(r"\W", "_", key)


def _is_apart(member: Member) -> bool:
    """Whether a member is a pod template, which is a place of its own, or one of `_APART`."""
    is_pod = member.key.lower().endswith("template") and member.node.member("spec", "containers") is not None
    return is_pod or member.key in _APART


def _read(node: Node) -> Value:
    """The value; unresolved where a placeholder is written. A `$` in a list is one of a command."""
    if is_filled_in(node):
        return Unresolved("a placeholder that is replaced later")
    return lift(lambda item: item, value_of(node))


#: The names of the settings of a pod template and of a container.
POD, CONTAINER = "pod_template", "pod_container"


@dataclass(frozen=True, slots=True)
class Shape:
    """How the settings of an object are named, and those of its parts by their paths.

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
    ("kubeflow.org/v1", "PyTorchJob"): _kubeflow("pytorchReplicaSpecs"),
    ("kubeflow.org/v1", "TFJob"): _kubeflow("tfReplicaSpecs"),
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
    """State what the operator of this PaddleJob reads."""
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
    """Whether a container's command runs Python, or anything of Paddle."""
    words = [item.value for key in ("command", "args") if (node := container.at(key)) for item in node.items]
    return any(isinstance(word, str) and ("python" in word or "paddle" in word) for word in words)

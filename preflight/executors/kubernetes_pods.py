"""The pods of a job as its manifest describes them, and pods of our own that are like them.

Ours get what decides where pods go and what they find there (image, devices, node selection, tolerations, networks,
volumes, environment), and nothing of what makes a pod part of a service or start its program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from preflight.errors import UsageError
from preflight.job import Known
from preflight.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from preflight.sources.structured import Node

#: Labels of queues without which pods are not admitted, and of meshes that would stand in front of them.
_KEPT_LABELS = (
    *("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class", "scheduling.volcano.sh/queue-name"),
    *("sidecar.istio.io/inject", "linkerd.io/inject", "runai/queue", "kai.scheduler/queue"),
)
#: Annotations of tools that would take our pods for their own.
_DROPPED_NOTES = ("kubectl.kubernetes.io/", "preflight/", "argocd.argoproj.io/", "meta.helm.sh/")
#: What of a container belongs to its program alone.
_OF_THE_PROGRAM = (
    *("command", "args", "ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"),
    *("stdin", "stdinOnce", "tty", "restartPolicy"),
)
_OF_THE_POD = (
    *("initContainers", "ephemeralContainers", "hostname", "subdomain", "nodeName", "topologySpreadConstraints"),
    *("activeDeadlineSeconds", "readinessGates", "schedulingGates"),
)
MANAGED = "app.kubernetes.io/managed-by"
RUN = "preflight/run"
#: Waits to be told to go, in any image that has a shell; a shell that is process 1 ends on no signal by itself.
IDLE = ("/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 2147483 & wait $!; done")
#: Between the end of a Job and its removal, in case nobody is left who deletes it.
KEPT_S = 30


@dataclass(frozen=True, slots=True)
class PodRole:
    """Equal pods of one object. `count` is None where only something else knows it; `place` the template's place."""

    name: str
    count: int | None
    trains: bool
    template: Mapping[str, Any]
    place: Node


@dataclass(frozen=True, slots=True)
class PodSource:
    """One object of a manifest that starts pods."""

    kind: str
    name: str
    namespace: str
    roles: tuple[PodRole, ...]
    #: `true` in `spec.suspend`: nothing starts before somebody says so.
    labels: Mapping[str, str]

    @property
    def trainers(self) -> tuple[PodRole, ...]:
        """The roles whose pods hold ranks; all where none says so."""
        return tuple(role for role in self.roles if role.trains) or self.roles


def pod_sources(text: str) -> tuple[PodSource, ...]:
    """Every object of a manifest whose pods are described in it.

    Raises:
        UsageError: the text is no YAML, or still holds placeholders of a template.
    """
    import yaml

    from preflight.sources import lenient_yaml
    from preflight.sources.kubernetes.kinds import objects

    try:
        plain = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        hint = "; render the template first (`helm template`, `kustomize build`)" if "{{" in text else ""
        raise UsageError(f"the manifest is no YAML{hint}: {str(error).splitlines()[0]}") from None
    roots = [document.root for document in lenient_yaml.parse_all(text) if document.root is not None]
    found: list[PodSource] = []
    for root, value in zip(roots, plain, strict=False):
        for inner in objects(root):
            path = path_to(root, inner)
            source = _source(inner, at_path(value, path)) if path is not None else None
            if source is not None:
                found.append(source)
    return tuple(found)


def chosen_source(text: str, name: str) -> PodSource:
    """The object called `name`, or the only one there is. Raises UsageError where that is none, or several."""
    found = [source for source in pod_sources(text) if not name or source.name == name]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{source.kind} {source.name}" for source in pod_sources(text)) or "none"
    wanted = f"no object {name!r} in the manifest starts pods" if name else "the manifest does not hold one job"
    raise UsageError(f"{wanted}; those that start pods are: {names}")


def _source(root: Node, value: Any) -> PodSource | None:
    from preflight.sources.kubernetes.kinds import workload_of

    workload = workload_of(root)
    if workload is None or not isinstance(value, dict):
        return None
    roles: list[PodRole] = []
    for role in workload.roles:
        path = path_to(root, role.template)
        template = at_path(value, path) if path is not None else None
        if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
            continue
        if not template["spec"].get("containers"):
            continue
        count = role.replicas.value if isinstance(role.replicas, Known) else None
        count = count if isinstance(count, int) and not isinstance(count, bool) else None
        roles.append(PodRole(role.name, count, role.trains, template, role.template))
    metadata = value.get("metadata") or {}
    if not roles:
        return None
    name = metadata.get("name") or metadata.get("generateName") or ""
    labels = {**(metadata.get("labels") or {})}
    return PodSource(workload.kind, str(name), str(metadata.get("namespace") or ""), tuple(roles), labels)


def path_to(root: Node, wanted: Node) -> tuple[str | int, ...] | None:
    """The keys and indices that lead from one node to another inside it; None where it is not inside."""
    from preflight.sources.structured import Kind

    if root is wanted:
        return ()
    steps: Iterator[tuple[str | int, Node]] = iter(
        [*((member.key, member.node) for member in root.in_force), *enumerate(root.items)]
    )
    for step, inner in steps:
        # Of what a template makes up the place is none of the file's.
        if inner.kind in (Kind.OBJECT, Kind.ARRAY) and inner.start <= wanted.start and wanted.end <= inner.end:
            below = path_to(inner, wanted)
            if below is not None:
                return (step, *below)
    return None


def at_path(value: Any, path: Sequence[str | int]) -> Any:
    """What stands there in plain data; None where nothing does."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def container_of(template: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The container with this name; without one the first that asks for devices, else the first.

    Raises:
        UsageError: there is no container of that name.
    """
    containers: list[dict[str, Any]] = template["spec"]["containers"]
    if name:
        for container in containers:
            if container.get("name") == name:
                return container
        known = ", ".join(str(container.get("name")) for container in containers)
        raise UsageError(f"the pods have no container {name!r}; they have {known}")
    devices = (each for each in containers if any("/" in key for key in _limits(each)))
    return next(devices, containers[0])


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (container.get("resources") or {}).get("limits")
    return found if isinstance(found, dict) else {}


def own_job(
    source: PodSource,
    role: PodRole,
    *,
    name: str,
    namespace: str,
    count: int,
    lifetime_s: int,
    container: str = "",
    command: Sequence[str] = IDLE,
) -> dict[str, Any]:
    """A Job with one pod on each of `count` nodes that is like a pod of `role`, and ends after `lifetime_s`."""
    labels = {MANAGED: "preflight", RUN: name}
    kept = {key: str(value) for key, value in source.labels.items() if key in _KEPT_LABELS}
    metadata = role.template.get("metadata") or {}
    kept_of_pod = {k: str(v) for k, v in (metadata.get("labels") or {}).items() if k in _KEPT_LABELS}
    notes = {
        key: str(value)
        for key, value in (metadata.get("annotations") or {}).items()
        if not key.startswith(_DROPPED_NOTES)
    }
    template: dict[str, Any] = {
        "metadata": {"labels": {**kept_of_pod, **labels}, **({"annotations": notes} if notes else {})},
        "spec": _pod_spec(role.template, container, command, labels),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {**kept, **labels}},
        "spec": {
            "completions": count,
            "parallelism": count,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "activeDeadlineSeconds": lifetime_s,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": template,
        },
    }


def _pod_spec(
    template: Mapping[str, Any], container: str, command: Sequence[str], labels: Mapping[str, str]
) -> dict[str, Any]:
    chosen = container_of(template, container)
    own = {key: value for key, value in chosen.items() if key not in _OF_THE_PROGRAM}
    own["command"] = list(command)
    # The API takes numbers for quantities, and the client's own schema wants text.
    resources = own.get("resources") or {}
    own["resources"] = {
        key: {name: str(amount) for name, amount in value.items()} if key in ("limits", "requests") else value
        for key, value in resources.items()
        if value is not None
    }
    spec = {key: value for key, value in template["spec"].items() if key not in _OF_THE_POD}
    spec["containers"] = [own]
    spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = 1
    spec["automountServiceAccountToken"] = False
    affinity = dict(spec.get("affinity") or {})
    # The job's own affinity between pods speaks of labels that ours do not have.
    affinity.pop("podAffinity", None)
    one_a_node = {"labelSelector": {"matchLabels": {RUN: labels[RUN]}}, "topologyKey": "kubernetes.io/hostname"}
    affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [one_a_node]}
    spec["affinity"] = affinity
    return spec

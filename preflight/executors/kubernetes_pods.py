"""The pods of a job as its manifest describes them, and similar pods of our own.

Our pods get everything that determines where pods run and what is available there (image, devices, node selection,
tolerations, networks, volumes, environment), and nothing that makes a pod part of a service or starts its program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preflight._util.sequences import value_at
from preflight._util.usage_error import UsageError
from preflight.model.job import Known

if TYPE_CHECKING:
    from preflight.sources.formats.structured import Node

#: Labels of queues that pods need to be admitted, and of meshes that would intercept their traffic.
_COPIED_LABELS = (
    *("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class", "scheduling.volcano.sh/queue-name"),
    *("sidecar.istio.io/inject", "linkerd.io/inject", "runai/queue", "kai.scheduler/queue"),
)
#: Annotations of tools that would manage our pods as their own.
_OMITTED_ANNOTATIONS = ("kubectl.kubernetes.io/", "preflight/", "argocd.argoproj.io/", "meta.helm.sh/")
#: Fields of a container that concern only its program.
_PROGRAM_FIELDS = (
    *("command", "args", "ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"),
    *("stdin", "stdinOnce", "tty", "restartPolicy"),
)
_POD_FIELDS = (
    *("initContainers", "ephemeralContainers", "hostname", "subdomain", "nodeName", "topologySpreadConstraints"),
    *("activeDeadlineSeconds", "readinessGates", "schedulingGates"),
)
MANAGED_LABEL = "app.kubernetes.io/managed-by"
RUN_LABEL = "preflight/run"
#: Waits for a signal, in any image that has a shell; a shell that is process 1 ends on no signal by itself.
IDLE_COMMAND = ("/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 2147483 & wait $!; done")
#: Time between the end of a Job and its removal, in case it is not deleted.
TTL_S = 30


@dataclass(frozen=True, slots=True)
class PodRole:
    """Identical pods of one object. `count` is None if unknown; `template_node` locates the template."""

    name: str
    count: int | None
    trains: bool
    template: Mapping[str, Any]
    template_node: Node


@dataclass(frozen=True, slots=True)
class PodSource:
    """One object of a manifest that starts pods."""

    kind: str
    name: str
    namespace: str
    roles: tuple[PodRole, ...]
    #: `true` in `spec.suspend`: nothing starts until it is false.
    labels: Mapping[str, str]

    @property
    def trainers(self) -> tuple[PodRole, ...]:
        """Return the roles whose pods hold ranks; all roles if none is marked."""
        return tuple(role for role in self.roles if role.trains) or self.roles


def pod_sources(text: str) -> tuple[PodSource, ...]:
    """Return every object of a manifest that describes pods. Raises UsageError for YAML errors or placeholders."""
    import yaml

    from preflight.sources.formats import lenient_yaml
    from preflight.sources.kubernetes.objects import objects

    try:
        plain = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        hint = "; render the template first (`helm template`, `kustomize build`)" if "{{" in text else ""
        raise UsageError(f"the manifest is not valid YAML{hint}: {str(error).splitlines()[0]}") from None
    roots = [document.root for document in lenient_yaml.parse_all(text) if document.root is not None]
    found: list[PodSource] = []
    for root, value in zip(roots, plain, strict=False):
        for inner in objects(root, text):
            path = path_to(root, inner)
            source = _source(inner, value_at(value, *path)) if path is not None else None
            if source is not None:
                found.append(source)
    return tuple(found)


def choose_source(text: str, name: str) -> PodSource:
    """Return the object with this name, else the only object. Raises UsageError unless exactly one matches."""
    found = [source for source in pod_sources(text) if not name or source.name == name]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{source.kind} {source.name}" for source in pod_sources(text)) or "none"
    wanted = (
        f"no object {name!r} in the manifest starts pods" if name else "the manifest does not contain exactly one job"
    )
    raise UsageError(f"{wanted}; the objects that start pods are: {names}")


def _source(root: Node, value: Any) -> PodSource | None:
    from preflight.sources.kubernetes.objects import workload_of

    workload = workload_of(root)
    if workload is None or not isinstance(value, dict):
        return None
    roles: list[PodRole] = []
    for role in workload.roles:
        path = path_to(root, role.template)
        template = value_at(value, *path) if path is not None else None
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
    """Return the keys and indices that lead from one node to another inside it; None if the other is not inside."""
    from preflight.sources.formats.structured import Kind

    if root is wanted:
        return ()
    steps: Iterator[tuple[str | int, Node]] = iter(
        [*((member.key, member.node) for member in root.in_force), *enumerate(root.items)]
    )
    for step, inner in steps:
        # A template's output has no location in the file.
        if inner.kind in (Kind.OBJECT, Kind.ARRAY) and inner.start <= wanted.start and wanted.end <= inner.end:
            below = path_to(inner, wanted)
            if below is not None:
                return (step, *below)
    return None


def container_of(template: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the named container, else the first with devices, else the first. Raises UsageError if missing."""
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
    found = value_at(container, "resources", "limits")
    return found if isinstance(found, dict) else {}


def build_job(
    source: PodSource,
    role: PodRole,
    *,
    name: str,
    namespace: str,
    count: int,
    lifetime_s: int,
    container: str = "",
    command: Sequence[str] = IDLE_COMMAND,
) -> dict[str, Any]:
    """Build a Job with one pod on each of `count` nodes that is like a pod of `role`, and ends after `lifetime_s`."""
    labels = {MANAGED_LABEL: "preflight", RUN_LABEL: name}
    copied_labels = {key: str(value) for key, value in source.labels.items() if key in _COPIED_LABELS}
    metadata = role.template.get("metadata") or {}
    kept_of_pod = {k: str(v) for k, v in (metadata.get("labels") or {}).items() if k in _COPIED_LABELS}
    notes = {
        key: str(value)
        for key, value in (metadata.get("annotations") or {}).items()
        if not key.startswith(_OMITTED_ANNOTATIONS)
    }
    template: dict[str, Any] = {
        "metadata": {"labels": {**kept_of_pod, **labels}, **({"annotations": notes} if notes else {})},
        "spec": _pod_spec(role.template, container, command, labels),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {**copied_labels, **labels}},
        "spec": {
            "completions": count,
            "parallelism": count,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "activeDeadlineSeconds": lifetime_s,
            "ttlSecondsAfterFinished": TTL_S,
            "template": template,
        },
    }


def _pod_spec(
    template: Mapping[str, Any], container: str, command: Sequence[str], labels: Mapping[str, str]
) -> dict[str, Any]:
    chosen = container_of(template, container)
    own = {key: value for key, value in chosen.items() if key not in _PROGRAM_FIELDS}
    own["command"] = list(command)
    # The API accepts numbers as quantities, but the client's own schema requires text.
    resources = own.get("resources") or {}
    own["resources"] = {
        key: {name: str(amount) for name, amount in value.items()} if key in ("limits", "requests") else value
        for key, value in resources.items()
        if value is not None
    }
    spec = {key: value for key, value in template["spec"].items() if key not in _POD_FIELDS}
    spec["containers"] = [own]
    spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = 1
    spec["automountServiceAccountToken"] = False
    affinity = dict(spec.get("affinity") or {})
    # The job's own pod affinity refers to labels that our pods do not have.
    affinity.pop("podAffinity", None)
    one_per_node = {
        "labelSelector": {"matchLabels": {RUN_LABEL: labels[RUN_LABEL]}},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [one_per_node]}
    spec["affinity"] = affinity
    return spec

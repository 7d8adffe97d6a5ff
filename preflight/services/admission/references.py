"""The objects of the cluster that a submitted object refers to, by kind and name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.services.admission.submission import ObjectFile

#: The namespace of objects of the whole cluster.
_NONE = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """Where the API server keeps objects of a kind.

    Args:
        listed: all of a namespace matter, whatever their names.
        version: of the group; empty for the one that the server prefers.
    """

    group: str
    plural: str
    namespaced: bool = True
    listed: bool = False
    version: str = ""


#: The kinds that are read together with a job (docs/admission.md and the chart's ClusterRole list the same).
RESOURCES = {
    "ConfigMap": Resource("", "configmaps"),
    "PersistentVolumeClaim": Resource("", "persistentvolumeclaims"),
    "ResourceQuota": Resource("", "resourcequotas", listed=True),
    "ResourceClaimTemplate": Resource("resource.k8s.io", "resourceclaimtemplates"),
    "LocalQueue": Resource("kueue.x-k8s.io", "localqueues"),
    "ClusterQueue": Resource("kueue.x-k8s.io", "clusterqueues", namespaced=False),
    "TrainingRuntime": Resource("trainer.kubeflow.org", "trainingruntimes"),
    "ClusterTrainingRuntime": Resource("trainer.kubeflow.org", "clustertrainingruntimes", namespaced=False),
    "Queue": Resource("scheduling.volcano.sh", "queues", namespaced=False),
}


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """An object of the cluster; an empty name for all objects of the kind in the namespace."""

    kind: str
    name: str
    namespace: str = ""

    @property
    def words(self) -> str:
        """The reference for a message: `LocalQueue q in namespace team-a`."""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.kind} {self.name}{where}" if self.name else f"every {self.kind}{where}"


def references_of(
    files: Iterable[ObjectFile], documents: Sequence[Mapping[str, Any]], namespace: str
) -> set[Reference]:
    """What these objects of a namespace refer to, as far as it can be read from a cluster."""
    from preflight.sources.formats import lenient_yaml
    from preflight.sources.kubernetes.inputs import referenced_names

    names: set[tuple[str, str]] = set()
    for file in files:
        roots = [document.root for document in lenient_yaml.parse_all(file.text) if document.root is not None]
        names |= referenced_names(roots)
    for document in documents:
        names.update(_further_names(document))
    found = set()
    for kind, name in names:
        resource = RESOURCES.get(kind)
        if resource is not None and isinstance(name, str):
            found.add(Reference(kind, name, namespace if resource.namespaced else _NONE))
    return found


def _further_names(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names that lint joins only if the objects are named together with the job."""
    spec = document.get("spec")
    if document.get("apiVersion") == "batch.volcano.sh/v1alpha1" and isinstance(spec, Mapping):
        yield "Queue", spec.get("queue") or "default"
    waiting: list[Any] = [spec]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Mapping):
            claim = here.get("persistentVolumeClaim")
            if isinstance(claim, Mapping) and isinstance(claim.get("claimName"), str):
                yield "PersistentVolumeClaim", claim["claimName"]
            waiting.extend(here.values())
        elif isinstance(here, list):
            waiting.extend(here)

"""Reads objects from the API server, with the client and the login of the Kubernetes executor."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from preflight.executors.bridge.kubernetes_side import KubernetesSide
from preflight.executors.bridge.mux import BridgeError
from preflight.services.admission.judgement import RESOURCES, Read, Reference, Resource

#: Time limits of one call: (connect, answer).
_REQUEST_S = (2.0, 4.0)
#: Objects of one kind that are read of a namespace.
_MAX_LISTED = 50
_MERGE = "application/merge-patch+json"
_CORE = {
    "configmaps": "read_namespaced_config_map",
    "persistentvolumeclaims": "read_namespaced_persistent_volume_claim",
    "resourcequotas": "list_namespaced_resource_quota",
}


class ClusterError(Exception):
    """The API server cannot be asked. `kind` is that of the bridge: `missing`, `denied`, `timeout` and so on."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Cluster(KubernetesSide):
    """One cluster; every method may be called from any thread, and ends within `_REQUEST_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._versions: dict[str, str] = {}
        self._api_client: Any = None

    @staticmethod
    def connect(kubeconfig: str = "", context: str = "") -> Cluster:
        """Read the login from a kubeconfig or the service account of the pod; nothing is requested yet.

        Raises:
            ClusterError: there is none, or the extra `kubernetes` is not installed.
        """
        cluster = Cluster()
        try:
            cluster.do_connect(kubeconfig, context)
        except BridgeError as error:
            raise ClusterError(error.kind, str(error)) from None
        cluster._api_client = cluster._client.client.ApiClient(cluster._configuration)
        return cluster

    def read(self, reference: Reference) -> Read:
        """The objects of a reference, or why there are none."""
        resource = RESOURCES[reference.kind]
        try:
            if resource.listed:
                return Read(reference, self._listed(reference, resource))
            found = self.get(resource, reference.namespace, reference.name)
        except ClusterError as error:
            if error.kind == "missing":
                return Read(reference, problem="the cluster has no such object now")
            return Read(reference, problem=str(error))
        version = found.get("apiVersion") or "v1"
        return Read(reference, ({**found, "apiVersion": version, "kind": reference.kind},))

    def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """One object.

        Raises:
            ClusterError: it does not exist, or cannot be read.
        """
        to = f"read {resource.plural} {name}"
        if not resource.group:
            return self._ask(to, getattr(self._typed(), _CORE[resource.plural]), name, namespace)
        where = (resource.group, self._version_of(resource))
        if resource.namespaced:
            return self._ask(to, self._custom().get_namespaced_custom_object, *where, namespace, resource.plural, name)
        return self._ask(to, self._custom().get_cluster_custom_object, *where, resource.plural, name)

    def _listed(self, reference: Reference, resource: Resource) -> tuple[Mapping[str, Any], ...]:
        function = getattr(self._typed(), _CORE[resource.plural])
        page = self._ask(f"list {resource.plural}", function, reference.namespace, limit=_MAX_LISTED)
        items = page.get("items")
        # A list leaves version and kind of its items out.
        kinds = {"apiVersion": "v1", "kind": reference.kind}
        return tuple({**kinds, **item} for item in items if isinstance(item, dict)) if isinstance(items, list) else ()

    def list_all(self, resource: Resource) -> tuple[list[dict[str, Any]], str]:
        """Every object of a kind in all namespaces, and the version from which a watch continues.

        Raises:
            ClusterError: they cannot be read.
        """
        function = self._custom().list_cluster_custom_object
        where = (resource.group, self._version_of(resource), resource.plural)
        page = self._ask(f"list {resource.plural}", function, *where)
        items = page.get("items") or []
        return [item for item in items if isinstance(item, dict)], str(
            (page.get("metadata") or {}).get("resourceVersion")
        )

    def watch(self, resource: Resource, since: str, seconds: int) -> Iterator[dict[str, Any]]:
        """What happens to the objects of a kind in all namespaces, for so many seconds.

        Raises:
            ClusterError: they cannot be watched, or the connection broke.
        """
        from kubernetes.client.rest import ApiException
        from urllib3.exceptions import HTTPError

        where = (resource.group, self._version_of(resource), resource.plural)
        options = {"resource_version": since, "timeout_seconds": seconds, "_request_timeout": (2.0, seconds + 5.0)}
        try:
            answer = self._custom().list_cluster_custom_object(*where, watch=True, _preload_content=False, **options)
            waiting = b""
            for chunk in answer.stream(65536):
                *lines, waiting = (waiting + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line) if line.strip() else None
                    if isinstance(event, dict):
                        yield event
        except (ApiException, HTTPError, ValueError, OSError) as error:
            raise ClusterError("unreachable", f"watching {resource.plural} ended: {type(error).__name__}") from None

    def patch_status(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> None:
        """Merge `body` into an object, and there only into its status.

        Raises:
            ClusterError: it is refused, also because the object has changed since.
        """
        to = f"set the status of {resource.plural} {name}"
        where = (resource.group, self._version_of(resource))
        custom = self._custom()
        options = {"_content_type": _MERGE}
        if resource.namespaced:
            function = custom.patch_namespaced_custom_object_status
            self._ask(to, function, *where, namespace, resource.plural, name, dict(body), **options)
        else:
            self._ask(
                to, custom.patch_cluster_custom_object_status, *where, resource.plural, name, dict(body), **options
            )

    def _version_of(self, resource: Resource) -> str:
        return resource.version or self.version(resource.group)

    def version(self, group: str) -> str:
        """The version of a group that the server prefers.

        Raises:
            ClusterError: the server does not have the group, or cannot be asked.
        """
        with self._lock:
            known = self._versions.get(group)
        if known is None:
            found = self._ask("list the API groups", self._client.client.ApisApi(self._api_client).get_api_versions)
            groups = [item for item in found.get("groups") or [] if isinstance(item, dict)]
            versions = {
                str(item.get("name")): str((item.get("preferredVersion") or {}).get("version")) for item in groups
            }
            with self._lock:
                self._versions = versions
            known = versions.get(group)
        if known is None:
            with self._lock:
                # It may be installed later.
                self._versions = {}
            raise ClusterError("missing", f"the cluster has no API group {group}")
        return known

    def resource_of(self, api_version: str, kind: str) -> Resource:
        """Where the server keeps objects of a kind of this version.

        Raises:
            ClusterError: the server does not have it, or cannot be asked.
        """
        group, _, version = api_version.rpartition("/")
        if not group:
            raise ClusterError("missing", f"objects of kind {kind} are not read")
        found = self._ask(f"list the kinds of {api_version}", self._custom().get_api_resources, group, version)
        for each in found.get("resources") or []:
            if each.get("kind") == kind and "/" not in str(each.get("name")):
                return Resource(group, str(each["name"]), namespaced=bool(each.get("namespaced")), version=version)
        raise ClusterError("missing", f"the cluster has no {kind} of {api_version}")

    def _ask(self, to: str, function: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        try:
            return self._call(to, function, *arguments, _request_timeout=_REQUEST_S, **options)
        except BridgeError as error:
            raise ClusterError(error.kind, str(error)) from None

    def _typed(self) -> Any:
        return self._client.client.CoreV1Api(self._api_client)

    def _custom(self) -> Any:
        return self._client.client.CustomObjectsApi(self._api_client)

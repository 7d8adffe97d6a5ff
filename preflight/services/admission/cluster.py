"""Reads objects from the API server, and controls an AdmissionCheck of Kueue: a job starts after its check is Ready.

The controller watches Workloads, judges the job that each belongs to, and sets the state of its own checks. States and
fields are those of kueue.x-k8s.io/v1beta1 and v1beta2. Setting a state twice changes nothing, so several copies may
run.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import anyio
import anyio.to_thread

from preflight._util.sequences import value_at
from preflight.executors.bridge.kubernetes_side import KubernetesBridgeServer
from preflight.executors.bridge.mux import BridgeError
from preflight.runner.supervisor import Terminated, termination_raises
from preflight.services.admission.judgement import (
    RESOURCES,
    Judgement,
    Policy,
    Read,
    Reference,
    Resource,
    Workers,
    not_judged,
)
from preflight.services.admission.webhook import log_line

#: Time limits of one call: (connect, answer).
_REQUEST_S = (2.0, 4.0)
#: Largest number of objects of one kind that are read from a namespace.
_MAX_LISTED = 50
_MERGE = "application/merge-patch+json"
_CORE = {
    "configmaps": "read_namespaced_config_map",
    "persistentvolumeclaims": "read_namespaced_persistent_volume_claim",
    "resourcequotas": "list_namespaced_resource_quota",
}


class ClusterError(Exception):
    """The API server cannot be queried. `kind` is that of the bridge: `missing`, `denied`, `timeout` ..."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Cluster(KubernetesBridgeServer):
    """One cluster; every method may be called from any thread, and ends within `_REQUEST_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._versions: dict[str, str] = {}
        self._api_client: Any = None

    @staticmethod
    def connect(kubeconfig: str = "", context: str = "") -> Cluster:
        """Read the login from a kubeconfig or the pod's service account, without a request. Raises ClusterError."""
        cluster = Cluster()
        try:
            cluster.do_connect(kubeconfig, context)
        except BridgeError as error:
            raise ClusterError(error.kind, str(error)) from None
        cluster._api_client = cluster._client.client.ApiClient(cluster._configuration)
        return cluster

    def read(self, reference: Reference) -> Read:
        """Return the objects of a reference, or why there are none."""
        resource = RESOURCES[reference.kind]
        try:
            if resource.listed:
                return Read(reference, self._list_objects(reference, resource))
            found = self.get(resource, reference.namespace, reference.name)
        except ClusterError as error:
            if error.kind == "missing":
                return Read(reference, problem="the cluster has no such object now")
            return Read(reference, problem=str(error))
        version = found.get("apiVersion") or "v1"
        return Read(reference, ({**found, "apiVersion": version, "kind": reference.kind},))

    def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """Return one object. Raises ClusterError."""
        to = f"read {resource.plural} {name}"
        if not resource.group:
            return self._ask(to, getattr(self._typed(), _CORE[resource.plural]), name, namespace)
        where = (resource.group, self._version_of(resource))
        if resource.namespaced:
            return self._ask(to, self._custom().get_namespaced_custom_object, *where, namespace, resource.plural, name)
        return self._ask(to, self._custom().get_cluster_custom_object, *where, resource.plural, name)

    def _list_objects(self, reference: Reference, resource: Resource) -> tuple[Mapping[str, Any], ...]:
        function = getattr(self._typed(), _CORE[resource.plural])
        page = self._ask(f"list {resource.plural}", function, reference.namespace, limit=_MAX_LISTED)
        items = page.get("items")
        # A list omits version and kind of its items.
        kinds = {"apiVersion": "v1", "kind": reference.kind}
        return tuple({**kinds, **item} for item in items if isinstance(item, dict)) if isinstance(items, list) else ()

    def list_all(self, resource: Resource) -> tuple[list[dict[str, Any]], str]:
        """Return every object of a kind, and the version from which a watch continues. Raises ClusterError."""
        function = self._custom().list_cluster_custom_object
        where = (resource.group, self._version_of(resource), resource.plural)
        page = self._ask(f"list {resource.plural}", function, *where)
        items = page.get("items") or []
        return [item for item in items if isinstance(item, dict)], str(value_at(page, "metadata", "resourceVersion"))

    def watch(self, resource: Resource, since: str, seconds: int) -> Iterator[dict[str, Any]]:
        """Yield events about the objects of a kind for `seconds`. Raises ClusterError."""
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
        """Merge `body` into the status of an object. Raises ClusterError, for instance if it changed."""
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
        """Return the server's preferred version of a group. Raises ClusterError."""
        with self._lock:
            known = self._versions.get(group)
        if known is None:
            found = self._ask("list the API groups", self._client.client.ApisApi(self._api_client).get_api_versions)
            groups = [item for item in found.get("groups") or [] if isinstance(item, dict)]
            versions = {str(item.get("name")): str(value_at(item, "preferredVersion", "version")) for item in groups}
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
        """Return the resource for objects of this version and kind. Raises ClusterError."""
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


_GROUP = "kueue.x-k8s.io"
WORKLOADS = Resource(_GROUP, "workloads")
CHECKS = Resource(_GROUP, "admissionchecks", namespaced=False)
#: Seconds of one watch; afterwards all objects are listed again.
_WATCH_S = 60
#: Seconds until the next attempt if the API server cannot be queried.
_BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 30.0)
#: Seconds after which Kueue retries the check of a job that could not be judged.
_REQUEUE_S = 60
_MESSAGE_LENGTH = 8000


@dataclass
class Controller:
    """Answers the checks whose controllerName is `name`."""

    api: Cluster
    workers: Workers
    name: str
    checks: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Work until cancelled."""
        failures = 0
        async with anyio.create_task_group() as group:
            group.start_soon(self._warm)
            while True:
                try:
                    await self.pass_over()
                    failures = 0
                except ClusterError as error:
                    wait = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
                    failures += 1
                    log_line(level="warning", event="cluster", problem=str(error), again_in_s=wait)
                    await anyio.sleep(wait)

    async def _warm(self) -> None:
        await self.workers.warm()
        log_line(level="info", event="ready", controller=self.name)

    async def pass_over(self, seconds: int = _WATCH_S) -> None:
        """Answer all waiting Workloads and those arriving within `seconds`, several at once. Raises ClusterError."""
        turn = anyio.CapacityLimiter(self.workers.policy.max_concurrent)
        troubles: list[ClusterError] = []

        async def answer(workload: Mapping[str, Any]) -> None:
            async with turn:
                await until_trouble(self.answer, workload)

        async def until_trouble(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
            # A task group would raise a group of errors.
            try:
                await work(*arguments)
            except ClusterError as error:
                troubles.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            await until_trouble(self._follow, seconds, lambda workload: group.start_soon(answer, workload))
        if troubles:
            raise troubles[0]

    async def _follow(self, seconds: int, on_object: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `on_object` with every present Workload, and each that appears or changes within `seconds`."""
        await self.find_checks()
        workloads, since = await anyio.to_thread.run_sync(self.api.list_all, WORKLOADS, abandon_on_cancel=True)
        for workload in workloads:
            on_object(workload)
        events = self.api.watch(WORKLOADS, since, seconds)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            event = await anyio.to_thread.run_sync(next, events, None, abandon_on_cancel=True)
            if event is None:
                return
            value = event.get("object")
            if event.get("type") == "ERROR" or not isinstance(value, dict):
                return
            if event.get("type") in ("ADDED", "MODIFIED"):
                if set(_pending_checks(value)) - self.checks:
                    await self.find_checks()
                on_object(value)

    async def find_checks(self) -> None:
        """Find the checks of this controller, and mark them as active in their status."""
        found, _ = await anyio.to_thread.run_sync(self.api.list_all, CHECKS, abandon_on_cancel=True)
        mine = [each for each in found if value_at(each, "spec", "controllerName") == self.name]
        self.checks = {str(value_at(each, "metadata", "name")) for each in mine}
        for check in mine:
            if not _is_active(check):
                body = {"status": {"conditions": [*_other_conditions(check), _active_condition(check)]}}
                await self._patch(CHECKS, "", str(value_at(check, "metadata", "name")), body)

    async def answer(self, workload: Mapping[str, Any]) -> None:
        """Set the state of our pending checks of one Workload."""
        mine = set(_pending_checks(workload)) & self.checks
        if not mine or not _has_quota(workload):
            return
        namespace, name = str(value_at(workload, "metadata", "namespace")), str(value_at(workload, "metadata", "name"))
        started = time.monotonic()
        judgement = await self._judge(workload, namespace)
        state, message = state_of(judgement, self.workers.policy)
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        states = []
        for each in _check_states(workload):
            if each.get("name") in mine:
                changed = {**each, "state": state, "message": message, "lastTransitionTime": now}
                if state == "Retry":
                    changed["requeueAfterSeconds"] = _REQUEUE_S
                states.append(changed)
            else:
                states.append(each)
        # With the version that was judged: another state may have been set meanwhile, and the list is replaced whole.
        version = value_at(workload, "metadata", "resourceVersion")
        body = {"metadata": {"resourceVersion": version}, "status": {"admissionChecks": states}}
        done = await self._patch(WORKLOADS, namespace, name, body)
        log_line(
            level="info",
            event="decision",
            workload=name,
            namespace=namespace,
            state=state,
            written=done,
            rules=sorted({rule for rule, _ in judgement.findings}),
            milliseconds=round((time.monotonic() - started) * 1000),
        )

    async def _judge(self, workload: Mapping[str, Any], namespace: str) -> Judgement:
        policy = self.workers.policy
        owner = _owner(workload)
        if owner is None:
            return not_judged(policy, "the Workload names no object that it belongs to")
        api_version, kind, name = owner
        try:
            with anyio.fail_after(policy.deadline_s):
                job = await anyio.to_thread.run_sync(
                    self._read_job, api_version, kind, namespace, name, abandon_on_cancel=True
                )
                return await self.workers.judge_object(job, namespace)
        except ClusterError as error:
            return not_judged(policy, str(error))
        except TimeoutError:
            return not_judged(policy, "there was not enough time")
        except Exception as error:
            log_line(level="error", event="crashed", error=type(error).__name__)
            return not_judged(policy, f"a bug in preflight ({type(error).__name__})")

    def _read_job(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        found = self.api.get(self.api.resource_of(api_version, kind), namespace, name)
        return {**found, "apiVersion": api_version, "kind": kind}

    async def _patch(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> bool:
        try:
            await anyio.to_thread.run_sync(
                self.api.patch_status, resource, namespace, name, body, abandon_on_cancel=True
            )
            return True
        except ClusterError as error:
            if error.kind in ("blocked", "missing"):
                # The Workload has changed or no longer exists; the watch reports its new state.
                return False
            raise


def state_of(judgement: Judgement, policy: Policy) -> tuple[str, str]:
    """Return the state of a check, and its message.

    Rejected deactivates the job, so it needs a finding. A job that could not be judged is retried, unless the policy
    lets it pass.
    """
    warnings = "; ".join(judgement.warnings)
    if judgement.result == "not-judged":
        if policy.on_failure == "refuse":
            return "Retry", judgement.message[:_MESSAGE_LENGTH]
        return "Ready", f"not judged. {warnings}"[:_MESSAGE_LENGTH]
    if not judgement.allowed:
        return "Rejected", judgement.message[:_MESSAGE_LENGTH]
    text = f"preflight found nothing that stops this job. {warnings}" if warnings else "preflight found no fault"
    return "Ready", text[:_MESSAGE_LENGTH]


def run_controller(api: Cluster, workers: Workers, name: str) -> None:
    """Run until a signal ends the process."""
    try:
        with termination_raises():
            anyio.run(Controller(api, workers, name).run)
    except (KeyboardInterrupt, Terminated):
        log_line(level="info", event="ended")
    finally:
        workers.close()


def _list_at(value: object, *path: str) -> list[dict[str, Any]]:
    found = value_at(value, *path)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _check_states(workload: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _list_at(workload, "status", "admissionChecks")


def _pending_checks(workload: Mapping[str, Any]) -> list[str]:
    if any(each.get("type") == "Finished" and each.get("status") == "True" for each in _conditions(workload)):
        return []
    return [str(each.get("name")) for each in _check_states(workload) if each.get("state") == "Pending"]


def _has_quota(workload: Mapping[str, Any]) -> bool:
    """Return whether the quota is reserved. Kueue resets a state that is set before that."""
    return any(each.get("type") == "QuotaReserved" and each.get("status") == "True" for each in _conditions(workload))


def _conditions(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _list_at(value, "status", "conditions")


def _owner(workload: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return version, kind and name of the job of a Workload."""
    owners = _list_at(workload, "metadata", "ownerReferences")
    chosen = next((each for each in owners if each.get("controller")), owners[0] if owners else None)
    if chosen is None:
        return None
    return str(chosen.get("apiVersion")), str(chosen.get("kind")), str(chosen.get("name"))


def _is_active(check: Mapping[str, Any]) -> bool:
    generation = value_at(check, "metadata", "generation")
    return any(
        each.get("type") == "Active" and each.get("status") == "True" and each.get("observedGeneration") == generation
        for each in _conditions(check)
    )


def _other_conditions(check: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each for each in _conditions(check) if each.get("type") != "Active"]


def _active_condition(check: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "preflight answers this check",
        "lastTransitionTime": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": value_at(check, "metadata", "generation"),
    }

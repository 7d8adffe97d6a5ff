"""Reaches nodes through the Kubernetes API: an agent in each pod of a job, or in similar pods of our own.

The agent is started with `exec` and speaks over that connection. Existing pods are left unchanged. Our own pods belong
to one Job, which is deleted at the end: by the bridge if this process is killed, otherwise by its own deadline.
"""

from __future__ import annotations

import functools
import logging
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio

from preflight._util import regular_file
from preflight._util.hostnames import is_hostname
from preflight._util.usage_error import UsageError
from preflight.agent import bootstrap
from preflight.executors.base import (
    Bundle,
    Executor,
    ExecutorError,
    GatheredNodes,
    NodeRequest,
    Option,
    file_problem,
    interpreter_problem,
    yes_no_problem,
)
from preflight.executors.bridge.head import Bridge, BridgedChannel
from preflight.executors.kubernetes_pods import PodSource, build_job, choose_source
from preflight.executors.pipe import make_nonce, no_python, start_agent
from preflight.model.job import Claim, Job, Known, is_whole_number
from preflight.model.recording import Cluster, ClusterNode, Node
from preflight.sources.formats.tree import MAX_BYTES
from preflight.sources.kubernetes.pods import amount

_log = logging.getLogger(__name__)

#: Time between two polls of pods that are not placed yet.
_POLL_S = 0.5
#: Time to wait after the scheduler reports that no pod fits; room may become free.
_UNSCHEDULABLE_S = 2.0
#: Roles in the order in which their pods hold the ranks.
_ROLES = ("master", "launcher", "leader", "head", "chief", "")
#: The longest lifetime of our own pods, in case they are not deleted.
LIFETIME_S = 900
#: Names of pods, jobs and namespaces.
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def _name_problem(value: str) -> str:
    return (
        "" if NAME.fullmatch(value) else f"{value!r} is not a Kubernetes name: use lower-case letters, digits, - and ."
    )


def _number_problem(value: str) -> str:
    return "" if is_whole_number(value) and 0 < int(value) <= 100_000 else "expected a number above 0"


OPTIONS = (
    Option("job", "use the pods of this job (of any controller)", "train", _name_problem),
    Option("selector", "use the pods that match this label selector", "app=train"),
    Option(
        "namespace", "the namespace of the pods; default: the manifest's, or else the context's", "ml", _name_problem
    ),
    Option("container", "the container of each pod; default: the one with devices, or else the first", "trainer"),
    Option("manifest", "the manifest that names the job, and whose pods `create` copies", "job.yaml", file_problem),
    Option("object", "the object in the manifest, if it contains several jobs", "train"),
    Option(
        "create", "create pods like the manifest's, one per node, and delete them at the end", "yes", yes_no_problem
    ),
    Option("pods", "the number of pods to create; default: that of the manifest's job", "4", _number_problem),
    Option("lifetime", "the maximum lifetime of created pods, in seconds", str(LIFETIME_S), _number_problem),
    Option("kubeconfig", "the kubeconfig to use instead of kubectl's", "~/.kube/other", file_problem),
    Option("context", "the kubeconfig context to use", "cluster-a"),
    Option("interpreter", "a local Python that has the Kubernetes client", "/opt/k8s/bin/python", interpreter_problem),
)


@dataclass(slots=True)
class KubernetesExecutor(Executor):
    """Runs agents in pods. `settings` are the options; `environment` is added to that of the client process."""

    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "kubernetes"
    _bridge: Bridge | None = None
    _namespace: str = ""
    #: The location of each node's agent: the name of a pod, or the index of one that does not exist yet.
    _pods: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    #: Missing pods, with the reason.
    _missing_pods: dict[str, str] = field(default_factory=dict)

    options = OPTIONS

    def configured(self, settings: Mapping[str, str]) -> KubernetesExecutor:
        """Return a copy with these options. Raises UsageError for options that contradict each other."""
        if settings.get("create") == "yes":
            if "manifest" not in settings:
                raise UsageError(
                    "--on-option create=yes creates pods like those in a manifest; name it with manifest=FILE"
                )
            for other in ("job", "selector"):
                if other in settings:
                    raise UsageError(
                        f"--on-option create=yes creates new pods, but {other} selects existing pods; use only one"
                    )
        return KubernetesExecutor(settings=dict(settings), environment=self.environment)

    def detect(self, environment: Mapping[str, str]) -> str:
        """Return why this is a pod of an Indexed Job, else empty. Other pods, such as notebooks, use ssh or local."""
        if not environment.get("KUBERNETES_SERVICE_HOST"):
            return ""
        index = environment.get("JOB_COMPLETION_INDEX")
        return f"KUBERNETES_SERVICE_HOST and JOB_COMPLETION_INDEX={index} are set" if index else ""

    async def check_usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Return the configured cluster. Raises ExecutorError if there is none, or its client cannot be imported."""
        connected = await self._call("connect", deadline_s=deadline_s)
        return f"{connected['where']}, namespace {connected['namespace']}; its API server was not contacted"

    async def gather(self, request: NodeRequest) -> GatheredNodes | None:
        """Return existing or new pods, named as the cluster's nodes. Raises ExecutorError or UsageError."""
        with anyio.move_on_after(request.deadline_s):
            return await self._gather(request)
        raise ExecutorError("timeout", f"the API server did not list the pods within {request.deadline_s:g} s")

    async def _gather(self, request: NodeRequest) -> GatheredNodes:
        source = self._source()
        connected = await self._call("connect", deadline_s=request.deadline_s)
        self._namespace = (
            self.settings.get("namespace")
            or (source.namespace if source else self._claimed_namespace(request))
            or connected["namespace"]
        )
        where = f"namespace {self._namespace} of {connected['where']}"
        # Done before our own pods use resources.
        cluster = await survey(self._survey_call)
        return replace(await self._find_or_create_pods(source, request, where), cluster=cluster)

    async def _survey_call(self, call: str) -> Any:
        return await self._call(call, deadline_s=SURVEY_S)

    async def _find_or_create_pods(self, source: PodSource | None, request: NodeRequest, where: str) -> GatheredNodes:
        if self.settings.get("create") == "yes":
            assert source is not None
            return await self._create_pods(source, request, where)
        if request.named_nodes:
            self._pods = {node.name: (node.name, "", 0) for node in request.named_nodes}
            return GatheredNodes(request.named_nodes, where)
        job, words = self._wanted_job(source, request)
        selector = self.settings.get("selector", "")
        if not job and not selector:
            own = await self._call("own", namespace=self._namespace, deadline_s=request.deadline_s)
            if not own:
                raise UsageError(
                    "the pods are unknown; name their job with --on-option job=NAME, or the pods with "
                    "selector=LABELS, or create pods with manifest=FILE and create=yes"
                )
            job, words = own[0], f"job {own[0]}, in one of whose pods preflight runs"
        pods = await self._call(
            "pods", namespace=self._namespace, selector=selector, job=job, deadline_s=request.deadline_s
        )
        nodes = self._nodes([pod for pod in pods if not pod["deleted"]])
        missing = await self._missing(job, pods, len(nodes), request) if job else ()
        if not nodes and not missing:
            which = f"of the job {job}" if job else f"with {selector}"
            raise ExecutorError(
                "missing", f"no pods {which} in {where}; `kubectl get pods -n {self._namespace}` lists them"
            )
        return GatheredNodes((*nodes, *missing), f"pods of {words or selector} in {where}")

    def _source(self) -> PodSource | None:
        path = self.settings.get("manifest")
        if path is None:
            return None
        try:
            return choose_source(regular_file.read_text(path, MAX_BYTES), self.settings.get("object", ""))
        except (UsageError, OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--on-option manifest={path}: {error}") from None

    def _wanted_job(self, source: PodSource | None, request: NodeRequest) -> tuple[str, str]:
        if self.settings.get("selector"):
            return self.settings.get("job", ""), ""
        if self.settings.get("job"):
            return self.settings["job"], f"job {self.settings['job']}"
        if source is not None:
            return source.name, f"{source.kind} {source.name} ({self.settings['manifest']})"
        own = _own_job(request.environment)
        if own:
            return own, f"job {own}, in one of whose pods preflight runs"
        named, _ = _claimed_job(request.jobs)
        if named and not request.trust_job:
            raise UsageError(
                f"the job's own files name the job {named}; pass --trust-job to use its pods, or name it with "
                f"--on-option job={named}"
            )
        return named, f"job {named}"

    def _claimed_namespace(self, request: NodeRequest) -> str:
        """Return the namespace of the pods in the job's manifest, if that manifest names them."""
        if self.settings.get("job") or self.settings.get("selector") or request.named_nodes or not request.trust_job:
            return ""
        return "" if _own_job(request.environment) else _claimed_job(request.jobs)[1]

    def _nodes(self, pods: list[dict[str, Any]]) -> tuple[Node, ...]:
        """Return one node per pod, in rank order. A node has the name of the pod's node if no other pod shares it."""
        pods = sorted(pods, key=_rank_order)
        held = [pod["node"] for pod in pods]
        nodes = []
        for index, pod in enumerate(pods):
            alone = pod["node"] and held.count(pod["node"]) == 1 and is_hostname(pod["node"])
            name = pod["node"] if alone else pod["name"]
            self._pods[name] = (pod["name"], "", 0)
            nodes.append(Node(name, index, pod["name"] if alone else ""))
        return tuple(nodes)

    async def _missing(
        self, job: str, pods: list[dict[str, Any]], first: int, request: NodeRequest
    ) -> tuple[Node, ...]:
        """Return a node for each pod that a plain Job should have but does not have."""
        found = await self._call("job", namespace=self._namespace, name=job, deadline_s=request.deadline_s)
        spec = (found or {}).get("spec") or {}
        count = spec.get("parallelism")
        if not isinstance(count, int) or spec.get("completionMode") != "Indexed":
            return ()
        found_indices = {pod["index"] for pod in pods}
        absent = [index for index in range(min(count, spec.get("completions") or count)) if index not in found_indices]
        why = "the Job is suspended" if spec.get("suspend") else "the Job has not created the pod"
        conditions = ((found or {}).get("status") or {}).get("conditions") or []
        failed = [each for each in conditions if each.get("type") == "Failed" and each.get("status") == "True"]
        if failed:
            why = f"the Job has failed: {failed[0].get('reason', '')}: {failed[0].get('message', '')}"
        for index in absent:
            self._missing_pods[f"{job}-{index}"] = f"no pod has index {index}: {why}"
        return tuple(Node(f"{job}-{index}", first + number) for number, index in enumerate(absent))

    async def _create_pods(self, source: PodSource, request: NodeRequest, where: str) -> GatheredNodes:
        """Create a Job, and wait until each of its pods has a node or cannot get one."""
        trainers = source.trainers
        role = max(trainers, key=lambda role: role.count or 0)
        count = int(self.settings.get("pods") or 0) or sum(each.count or 0 for each in trainers) or request.count or 0
        if not count:
            raise UsageError("the number of pods is unknown; pass it with --on-option pods=N")
        name = f"preflight-{secrets.token_hex(4)}"
        job = build_job(
            source,
            role,
            name=name,
            namespace=self._namespace,
            count=count,
            lifetime_s=int(self.settings.get("lifetime") or LIFETIME_S),
            container=self.settings.get("container", ""),
        )
        request.on_note(f"waiting for {count} pods of {name} to be scheduled")
        await self._call("create", namespace=self._namespace, job=job, deadline_s=request.deadline_s)
        pods = await self._await_placement(name, count, request)
        nodes: list[Node] = []
        for index in range(count):
            pod = pods.get(index)
            on = pod["node"] if pod and is_hostname(pod["node"]) else ""
            node = Node(on or f"{name}-{index}", index, pod["name"] if pod and on else "")
            self._pods[node.name] = ("", name, index)
            nodes.append(node)
        unplaced = count - sum(1 for pod in pods.values() if pod["node"])
        notes = (f"{unplaced} of {count} pods have no node",) if unplaced else ()
        words = f"{count} pods like those of {source.kind} {source.name}, created for this run in {where} as Job {name}"
        return GatheredNodes(tuple(nodes), words, notes)

    async def _await_placement(self, name: str, count: int, request: NodeRequest) -> dict[int, dict[str, Any]]:
        """Return our Job's pods by index, when each is placed or cannot be, at the latest after three quarters of the
        time.
        """
        pods: dict[int, dict[str, Any]] = {}
        refused_at_s: float | None = None
        with anyio.move_on_after(request.deadline_s * 0.75):
            while True:
                found = await self._call(
                    "pods",
                    namespace=self._namespace,
                    selector=f"batch.kubernetes.io/job-name={name}",
                    job="",
                    deadline_s=request.deadline_s,
                )
                pods = {pod["index"]: pod for pod in found if pod["index"] is not None}
                placed = sum(1 for pod in pods.values() if pod["node"])
                request.on_note(f"{placed} of {count} pods of {name} are scheduled")
                refused = sum(1 for pod in pods.values() if not pod["node"] and _is_refused(pod))
                if placed == count:
                    break
                if placed + refused < count:
                    refused_at_s = None
                elif refused_at_s is None:
                    refused_at_s = anyio.current_time()
                elif anyio.current_time() - refused_at_s > _UNSCHEDULABLE_S:
                    break
                await anyio.sleep(_POLL_S)
        return pods

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> BridgedChannel:
        """Start an agent in the node's pod. Raises ExecutorError with the message of the API server or the pod."""
        if node.name in self._missing_pods:
            raise ExecutorError("missing", f"{node.name}: {self._missing_pods[node.name]}")
        pod, job, index = self._pods.get(node.name, (node.address or node.name, "", 0))
        if not NAME.fullmatch(pod or job):
            raise ExecutorError("denied", f"{node.name}: {pod!r} is not a valid pod name")
        nonce = make_nonce()
        what = pod or f"{job}-{index}"
        with anyio.move_on_after(deadline_s):
            if not self._namespace:
                connected = await self._call("connect", deadline_s=deadline_s)
                self._namespace = self.settings.get("namespace") or connected["namespace"]
            started_at = anyio.current_time()
            _log.debug("%s: exec through the API server: -n %s %s", node.name, self._namespace, what)
            try:
                channel = await self._running().open(
                    {
                        "namespace": self._namespace,
                        "pod": pod,
                        "job": job,
                        "index": index,
                        "container": self.settings.get("container", ""),
                        "command": ["/bin/sh", "-c", bootstrap.shell_line(nonce)],
                        "deadline_s": max(0.5, deadline_s - 1.0),
                    },
                    description=f"kubectl exec -n {self._namespace} {what}",
                    deadline_s=deadline_s,
                )
            except ExecutorError as error:
                raise ExecutorError(error.kind, f"{node.name}: {error.message}", error.detail) from None
            left = max(0.5, deadline_s - (anyio.current_time() - started_at))
            diagnose = functools.partial(explain, node.name, what, deadline_s=deadline_s)
            await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=left)
            return channel
        raise ExecutorError(
            "timeout",
            f"{node.name}: no agent within {deadline_s:g} s, waiting for the API server to start one in {what}; "
            "--open-deadline gives more time",
        )

    async def aclose(self) -> None:
        """End the agents in pods, and delete the created pods."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            await bridge.aclose()

    def _running(self) -> Bridge:
        if self._bridge is None:
            interpreter = self.settings.get("interpreter") or sys.executable
            self._bridge = Bridge("kubernetes_side:main", interpreter=interpreter, environment=self.environment)
        return self._bridge

    async def _call(self, call: str, /, *, deadline_s: float, **parameters: Any) -> Any:
        if call == "connect":
            kubeconfig = self.settings.get("kubeconfig", "")
            parameters = {
                "kubeconfig": str(Path(kubeconfig).expanduser()) if kubeconfig else "",
                "context": self.settings.get("context", ""),
            }
        return await self._running().call(call, parameters, deadline_s=deadline_s)


def explain(name: str, pod: str, code: int | None, error_text: str, *, deadline_s: float) -> ExecutorError:
    """Explain a failed start in a pod, from its exit `code` (None: unknown, or still running) and its `error_text`."""
    error_text = bootstrap.without_mark(error_text)
    lines = [line.strip() for line in error_text.splitlines() if line.strip()]
    missing = no_python(name, lines, code, error_text, where=f"in the image of {pod}")
    if missing is not None:
        return missing
    last_line = f': "{lines[-1]}"' if lines else ""
    if re.search(r"executable file not found|no such file or directory", error_text, re.IGNORECASE) and code in (
        None,
        126,
        127,
    ):
        return ExecutorError(
            "missing", f"{name}: the image of {pod} has no /bin/sh, which starts the agent{last_line}", error_text
        )
    if code is None and not error_text:
        return ExecutorError("timeout", f"{name}: {pod} did not start the agent within {deadline_s:g} s", error_text)
    if code is None:
        return ExecutorError(
            "unreachable", f"{name}: the connection to {pod} ended before the agent responded{last_line}", error_text
        )
    return ExecutorError(
        "crashed",
        f"{name}: the command that starts the agent in {pod} ended with exit code {code}{last_line}",
        error_text,
    )


def _rank_order(pod: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of ranks: leading role, index from the controller, names in natural order."""
    role = pod["role"]
    order = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    natural = tuple(
        (int(part), "") if is_whole_number(part) else (-1, part) for part in re.split(r"(\d+)", pod["name"])
    )
    return (order, role, pod["index"] if pod["index"] is not None else 1 << 30, natural)


def _is_refused(pod: Mapping[str, Any]) -> bool:
    """Return whether the scheduler has found no node for the pod."""
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in pod["conditions"])


def _own_job(environment: Mapping[str, str]) -> str:
    """Return the Indexed Job of this pod: its pods are named NAME-INDEX."""
    index = environment.get("JOB_COMPLETION_INDEX", "")
    host = environment.get("HOSTNAME", "")
    match = re.fullmatch(rf"(.+)-{re.escape(index)}(?:-[a-z0-9]{{5}})?", host) if index else None
    return match[1] if match is not None else ""


def _claimed_job(jobs: tuple[Job, ...]) -> tuple[str, str]:
    """Return the name and namespace of the first object with pods in the jobs' manifests; else two empty strings."""
    for job in jobs:
        for claim in job.about("workload_name"):
            name = _name(claim)
            if name:
                spaces = [_name(each) for each in job.about("namespace") if each.scope == claim.scope]
                return name, next(iter(spaces), "")
    return "", ""


def _name(claim: Claim) -> str:
    value = claim.value.value if isinstance(claim.value, Known) else None
    return value if isinstance(value, str) and NAME.fullmatch(value) else ""


EXECUTOR = KubernetesExecutor()


#: Time limit of one list; a run should not wait longer for a cluster.
SURVEY_S = 8.0
_BridgeCall = Callable[[str], Awaitable[Any]]


async def survey(call: _BridgeCall) -> Cluster:
    """Return the visible part of the cluster; `call` queries the bridge. Denied requests are listed in `unknown`."""
    unknown: list[str] = []
    try:
        nodes = await call("nodes")
    except ExecutorError as error:
        return Cluster("kubernetes", unknown=(f"the resources of its nodes: {error.message}",))
    requests_by_node: dict[str, dict[str, float]] | None = None
    try:
        requests_by_node = _sum_requests(await call("taken"))
    except ExecutorError as error:
        unknown.append(f"the resources in use: {error.message}")
    return Cluster("kubernetes", tuple(cluster_node(node, requests_by_node) for node in nodes), tuple(unknown))


def cluster_node(node: Mapping[str, Any], requests: Mapping[str, Mapping[str, float]] | None) -> ClusterNode:
    """Return one node, from the API's data about it and from its pods' requests."""
    has = {key: value for key, text in node["allocatable"].items() if (value := _number(text)) is not None}
    free = None
    if requests is not None:
        used = requests.get(node["name"], {})
        free = {key: max(0.0, value - used.get(key, 0.0)) for key, value in has.items()}
    closed = ""
    if node["cordoned"]:
        closed = "it is cordoned"
    elif not node["ready"]:
        closed = f"it is not ready: {node['message'] or 'no reason given'}"
    return ClusterNode(node["name"], has, free, dict(node["labels"]), closed)


def _sum_requests(requests: Iterable[Sequence[Any]]) -> dict[str, dict[str, float]]:
    sums: dict[str, dict[str, float]] = {}
    for node, wanted in requests:
        held = sums.setdefault(node, {})
        for key, text in wanted.items():
            held[key] = held.get(key, 0.0) + (_number(text) or 0.0)
    return sums


def _number(text: object) -> float | None:
    try:
        return amount(str(text))
    except ValueError:
        return None

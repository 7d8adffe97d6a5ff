"""Nodes reached through the Kubernetes API: an agent in each pod of a job, or in pods of our own like the job's.

Nothing listens and nothing is installed: the agent is started with `exec` and speaks over its connection. Pods that
exist are left as they are. Pods of our own belong to one Job, which is deleted at the end, by the bridge when this
process was killed, and by its own deadline when all of that fails.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import anyio

from preflight.errors import UsageError
from preflight.executors.base import Bundle, ExecutorError, Gathered, Option, Wanted
from preflight.executors.bridge.head import Bridge, BridgedChannel
from preflight.executors.kubernetes_options import LIFETIME_S, NAME, OPTIONS
from preflight.executors.kubernetes_pods import PodSource, chosen_source, own_job
from preflight.executors.kubernetes_survey import SURVEY_S, survey
from preflight.executors.pipe import new_nonce, start_agent
from preflight.job import Claim, Job, Known
from preflight.job.hostname import is_hostname
from preflight.lazy.dataclasses import dataclass
from preflight.node import bootstrap
from preflight.recording import Node

#: Between two looks at pods that are not placed yet.
_LOOK_S = 0.5
#: A scheduler that finds no room says so at once, and may find some soon after.
_REFUSED_S = 2.0
#: Roles in the order in which their pods hold the ranks.
_ROLES = ("master", "launcher", "leader", "head", "chief", "")


@dataclass(slots=True)
class KubernetesExecutor:
    """Runs agents in pods. `told` are the options; `environment` is laid over that of the process of the client."""

    told: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "kubernetes"
    _bridge: Bridge | None = None
    _namespace: str = ""
    #: Where each node's agent goes: the name of a pod, or the index of one that is still to come.
    _pods: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    #: Why there is no pod where there should be one.
    _absent: dict[str, str] = field(default_factory=dict)

    @property
    def options(self) -> tuple[Option, ...]:
        """What it can be told."""
        return OPTIONS

    def configured(self, given: Mapping[str, str]) -> KubernetesExecutor:
        """Another one that was told so. Raises UsageError for options that contradict each other."""
        if given.get("create") == "yes":
            if "manifest" not in given:
                raise UsageError("--on-option create=yes makes pods like those of a manifest; name it: manifest=FILE")
            for other in ("job", "selector"):
                if other in given:
                    raise UsageError(f"--on-option create=yes makes pods, and {other} names ones that exist")
        return KubernetesExecutor(told=dict(given), environment=self.environment)

    def detect(self, environment: Mapping[str, str]) -> str:
        """In a pod of a job that counts its pods; any other pod may be a notebook, where ssh or local is meant."""
        if not environment.get("KUBERNETES_SERVICE_HOST"):
            return ""
        index = environment.get("JOB_COMPLETION_INDEX")
        return f"KUBERNETES_SERVICE_HOST and JOB_COMPLETION_INDEX={index} are set" if index else ""

    async def usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Which cluster is configured. Raises ExecutorError where none is, or its client cannot be imported."""
        connected = await self._call("connect", deadline_s=deadline_s)
        return f"{connected['where']}, namespace {connected['namespace']}; its API server was not asked"

    async def gather(self, wanted: Wanted) -> Gathered | None:
        """The pods there are, or those that are made here; nodes carry the names of the cluster's nodes.

        Raises:
            ExecutorError: the API server cannot be asked, or refuses.
            UsageError: nothing says which pods.
        """
        with anyio.move_on_after(wanted.deadline_s):
            return await self._gather(wanted)
        raise ExecutorError(
            "timeout", f"the API server did not say within {wanted.deadline_s:g} s which pods there are"
        )

    async def _gather(self, wanted: Wanted) -> Gathered:
        source = self._source()
        connected = await self._call("connect", deadline_s=wanted.deadline_s)
        self._namespace = (
            self.told.get("namespace")
            or (source.namespace if source else self._claimed_namespace(wanted))
            or connected["namespace"]
        )
        where = f"namespace {self._namespace} of {connected['where']}"
        # Before pods of our own take what they need.
        cluster = await survey(self._survey_call)
        return replace(await self._found(source, wanted, where), cluster=cluster)

    async def _survey_call(self, call: str) -> Any:
        return await self._call(call, deadline_s=SURVEY_S)

    async def _found(self, source: PodSource | None, wanted: Wanted, where: str) -> Gathered:
        if self.told.get("create") == "yes":
            assert source is not None
            return await self._made(source, wanted, where)
        if wanted.named:
            self._pods = {node.name: (node.name, "", 0) for node in wanted.named}
            return Gathered(wanted.named, where)
        job, words = self._wanted_job(source, wanted)
        selector = self.told.get("selector", "")
        if not job and not selector:
            own = await self._call("own", namespace=self._namespace, deadline_s=wanted.deadline_s)
            if own:
                job, words = own[0], f"job {own[0]}, whose pod this is"
        if not job and not selector:
            raise UsageError(
                "which pods? name their job with --on-option job=NAME, or the pods with selector=LABELS, or make some "
                "with manifest=FILE and create=yes"
            )
        pods = await self._call(
            "pods", namespace=self._namespace, selector=selector, job=job, deadline_s=wanted.deadline_s
        )
        nodes = self._nodes([pod for pod in pods if not pod["deleted"]])
        missing = await self._missing(job, pods, len(nodes), wanted) if job else ()
        if not nodes and not missing:
            which = f"of the job {job}" if job else f"with {selector}"
            raise ExecutorError(
                "missing",
                f"there are no pods {which} in {where}; `kubectl get pods -n {self._namespace}` lists them",
            )
        return Gathered((*nodes, *missing), f"pods of {words or selector} in {where}")

    def _source(self) -> PodSource | None:
        path = self.told.get("manifest")
        if path is None:
            return None
        try:
            return chosen_source(Path(path).read_text(encoding="utf-8"), self.told.get("object", ""))
        except UsageError as error:
            raise UsageError(f"--on-option manifest={path}: {error}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--on-option manifest={path}: {error}") from None

    def _wanted_job(self, source: PodSource | None, wanted: Wanted) -> tuple[str, str]:
        if self.told.get("selector"):
            return self.told.get("job", ""), ""
        if self.told.get("job"):
            return self.told["job"], f"job {self.told['job']}"
        if source is not None:
            return source.name, f"{source.kind} {source.name} ({self.told['manifest']})"
        own = _own_job(wanted.environment)
        if own:
            return own, f"job {own}, whose pod this is"
        named, _ = _claimed(wanted.jobs)
        if named and not wanted.trust_job:
            raise UsageError(
                f"the job's own files name the job {named}; pass --trust-job to look into its pods, or name it with "
                f"--on-option job={named}"
            )
        return named, f"job {named}"

    def _claimed_namespace(self, wanted: Wanted) -> str:
        """Where the manifest among the job's files says that its pods are, if it is the one that names them."""
        if self.told.get("job") or self.told.get("selector") or wanted.named or not wanted.trust_job:
            return ""
        return "" if _own_job(wanted.environment) else _claimed(wanted.jobs)[1]

    def _nodes(self, pods: list[dict[str, Any]]) -> tuple[Node, ...]:
        """One node for each pod, in the order of ranks, called like the node that the pod is on if it has it alone."""
        pods = sorted(pods, key=_rank)
        held = [pod["node"] for pod in pods]
        nodes = []
        for index, pod in enumerate(pods):
            alone = pod["node"] and held.count(pod["node"]) == 1 and is_hostname(pod["node"])
            name = pod["node"] if alone else pod["name"]
            self._pods[name] = (pod["name"], "", 0)
            nodes.append(Node(name, index, pod["name"] if alone else ""))
        return tuple(nodes)

    async def _missing(self, job: str, pods: list[dict[str, Any]], first: int, wanted: Wanted) -> tuple[Node, ...]:
        """A node for each pod that a plain Job should have and has not."""
        found = await self._call("job", namespace=self._namespace, name=job, deadline_s=wanted.deadline_s)
        spec = (found or {}).get("spec") or {}
        count = spec.get("parallelism")
        if not isinstance(count, int) or spec.get("completionMode") != "Indexed":
            return ()
        there = {pod["index"] for pod in pods}
        absent = [index for index in range(min(count, spec.get("completions") or count)) if index not in there]
        why = "the Job is suspended" if spec.get("suspend") else "the Job has not made it"
        conditions = ((found or {}).get("status") or {}).get("conditions") or []
        failed = [each for each in conditions if each.get("type") == "Failed" and each.get("status") == "True"]
        if failed:
            why = f"the Job has failed: {failed[0].get('reason', '')}: {failed[0].get('message', '')}"
        for index in absent:
            self._absent[f"{job}-{index}"] = f"there is no pod of index {index}: {why}"
        return tuple(Node(f"{job}-{index}", first + number) for number, index in enumerate(absent))

    async def _made(self, source: PodSource, wanted: Wanted, where: str) -> Gathered:
        """Make a Job of our own, and wait until its pods have a node each or cannot get one."""
        trainers = source.trainers
        role = max(trainers, key=lambda role: role.count or 0)
        count = int(self.told.get("pods") or 0) or sum(each.count or 0 for each in trainers) or wanted.count or 0
        if not count:
            raise UsageError("how many pods? the manifest does not say; name it with --on-option pods=N")
        name = f"preflight-{secrets.token_hex(4)}"
        job = own_job(
            source,
            role,
            name=name,
            namespace=self._namespace,
            count=count,
            lifetime_s=int(self.told.get("lifetime") or LIFETIME_S),
            container=self.told.get("container", ""),
        )
        wanted.tell(f"{count} pods of {name} to be placed")
        await self._call("create", namespace=self._namespace, job=job, deadline_s=wanted.deadline_s)
        pods = await self._placed(name, count, wanted)
        nodes: list[Node] = []
        for index in range(count):
            pod = pods.get(index)
            on = pod["node"] if pod and is_hostname(pod["node"]) else ""
            node = Node(on or f"{name}-{index}", index, pod["name"] if pod and on else "")
            self._pods[node.name] = ("", name, index)
            nodes.append(node)
        unplaced = count - sum(1 for pod in pods.values() if pod["node"])
        notes = (f"{unplaced} of {count} pods have no node",) if unplaced else ()
        words = f"{count} pods like those of {source.kind} {source.name}, made for this in {where} as Job {name}"
        return Gathered(tuple(nodes), words, notes)

    async def _placed(self, name: str, count: int, wanted: Wanted) -> dict[int, dict[str, Any]]:
        """The pods of our Job by index, once each has a node, or the scheduler says nothing new of the others.

        At the latest when three quarters of the time are over, so that pods without a node can still be told each.
        """
        pods: dict[int, dict[str, Any]] = {}
        refused_at_s: float | None = None
        with anyio.move_on_after(wanted.deadline_s * 0.75):
            while True:
                found = await self._call(
                    "pods",
                    namespace=self._namespace,
                    selector=f"batch.kubernetes.io/job-name={name}",
                    job="",
                    deadline_s=wanted.deadline_s,
                )
                pods = {pod["index"]: pod for pod in found if pod["index"] is not None}
                placed = sum(1 for pod in pods.values() if pod["node"])
                wanted.tell(f"{placed} of {count} pods of {name} are placed")
                refused = sum(1 for pod in pods.values() if not pod["node"] and _is_refused(pod))
                if placed == count:
                    break
                if placed + refused < count:
                    refused_at_s = None
                elif refused_at_s is None:
                    refused_at_s = anyio.current_time()
                elif anyio.current_time() - refused_at_s > _REFUSED_S:
                    break
                await anyio.sleep(_LOOK_S)
        return pods

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> BridgedChannel:
        """Start an agent in the node's pod. Raises ExecutorError that says what the API server or the pod said."""
        if node.name in self._absent:
            raise ExecutorError("missing", f"{node.name}: {self._absent[node.name]}")
        pod, job, index = self._pods.get(node.name, (node.address or node.name, "", 0))
        if not NAME.fullmatch(pod or job):
            raise ExecutorError("denied", f"{node.name}: {pod!r} is no host name, and pods have such names")
        nonce = new_nonce()
        what = pod or f"{job}-{index}"
        with anyio.move_on_after(deadline_s):
            if not self._namespace:
                connected = await self._call("connect", deadline_s=deadline_s)
                self._namespace = self.told.get("namespace") or connected["namespace"]
            began = anyio.current_time()
            try:
                channel = await self._running().open(
                    {
                        "namespace": self._namespace,
                        "pod": pod,
                        "job": job,
                        "index": index,
                        "container": self.told.get("container", ""),
                        "command": ["/bin/sh", "-c", bootstrap.shell_line(nonce)],
                        "deadline_s": max(0.5, deadline_s - 1.0),
                    },
                    description=f"kubectl exec -n {self._namespace} {what}",
                    deadline_s=deadline_s,
                )
            except ExecutorError as error:
                raise ExecutorError(error.kind, f"{node.name}: {error.message}", error.detail) from None
            left = max(0.5, deadline_s - (anyio.current_time() - began))

            def diagnose(code: int | None, words: str) -> ExecutorError:
                return explain(node.name, what, code, words, deadline_s=deadline_s)

            await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=left)
            return channel
        raise ExecutorError(
            "timeout",
            f"{node.name}: no agent within {deadline_s:g} s, waiting for the API server to start one in {what}; "
            "--open-deadline gives more time",
        )

    async def aclose(self) -> None:
        """End what runs in pods, and delete the pods that were made here."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            await bridge.aclose()

    def _running(self) -> Bridge:
        if self._bridge is None:
            interpreter = self.told.get("interpreter") or sys.executable
            self._bridge = Bridge("kubernetes_side:main", interpreter=interpreter, environment=self.environment)
        return self._bridge

    async def _call(self, call: str, /, *, deadline_s: float, **parameters: Any) -> Any:
        if call == "connect":
            kubeconfig = self.told.get("kubeconfig", "")
            parameters = {
                "kubeconfig": str(Path(kubeconfig).expanduser()) if kubeconfig else "",
                "context": self.told.get("context", ""),
            }
        return await self._running().call(call, parameters, deadline_s=deadline_s)


def explain(name: str, pod: str, code: int | None, words: str, *, deadline_s: float) -> ExecutorError:
    """What became of a start in a pod that ended with `code` (None: nobody knows, or it had not) and said `words`."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    missing = next((line for line in lines if line.startswith(bootstrap.NO_PYTHON_MARK)), None)
    if missing is not None or code == bootstrap.NO_PYTHON:
        tried = (missing or "").removeprefix(bootstrap.NO_PYTHON_MARK).split()
        listed = ", ".join(tried) if tried else "none of " + ", ".join(bootstrap.INTERPRETERS) + " is there"
        return ExecutorError(
            "missing",
            f"{name}: no Python >= 3.8 in the image of {pod}: tried {listed}; preflight's agent needs one",
            words,
        )
    said = f': "{lines[-1]}"' if lines else ""
    if re.search(r"executable file not found|no such file or directory", words, re.IGNORECASE) and code in (
        None,
        126,
        127,
    ):
        return ExecutorError(
            "missing", f"{name}: the image of {pod} has no /bin/sh, which starts the agent{said}", words
        )
    if code is None and not words:
        return ExecutorError("timeout", f"{name}: {pod} started nothing within {deadline_s:g} s", words)
    if code is None:
        return ExecutorError(
            "unreachable", f"{name}: the connection to {pod} ended before the agent spoke{said}", words
        )
    return ExecutorError("crashed", f"{name}: what starts the agent in {pod} ended with exit code {code}{said}", words)


def _rank(pod: Mapping[str, Any]) -> tuple[Any, ...]:
    """The order of ranks: the role that leads, then the index that the controller gave, then names as numbers go."""
    role = pod["role"]
    order = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    natural = tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", pod["name"]))
    return (order, role, pod["index"] if pod["index"] is not None else 1 << 30, natural)


def _is_refused(pod: Mapping[str, Any]) -> bool:
    """Whether the scheduler has found no node for it."""
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in pod["conditions"])


def _own_job(environment: Mapping[str, str]) -> str:
    """The Indexed Job whose pod this is: its pods are called NAME-INDEX."""
    index = environment.get("JOB_COMPLETION_INDEX", "")
    host = environment.get("HOSTNAME", "")
    match = re.fullmatch(rf"(.+)-{re.escape(index)}(?:-[a-z0-9]{{5}})?", host) if index else None
    return match[1] if match is not None else ""


def _claimed(jobs: tuple[Job, ...]) -> tuple[str, str]:
    """The name and the namespace of the first object with pods that the jobs' manifests hold; empty where none does."""
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

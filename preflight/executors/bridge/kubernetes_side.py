"""The Kubernetes client in a bridge: finds, creates and deletes pods, and starts programs in them.

Its websocket carries one byte of channel before each message (`v4.channel.k8s.io`; with `v5`, 255 closes a channel):
kubernetes/apimachinery, pkg/util/remotecommand/constants.go.
"""

from __future__ import annotations

import json
import os
import re
import select
import threading
import time
from typing import Any, Iterator

from preflight.executors.bridge import mux
from preflight.executors.bridge.mux import BridgeError, BridgeServer, Stream

#: Time limits of one call to the API server: (connect, answer).
_REQUEST_S = (3.0, 8.0)
_PAGE = 500
#: The maximum length of a list of all pods of a cluster.
_MAX_PODS = 20 * _PAGE
#: Time between two polls of a pod that is not running yet.
_POLL_S = 0.4
#: Labels that give a pod's job, from the controllers' code.
JOB_LABELS = (
    "batch.kubernetes.io/job-name",
    "job-name",
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "volcano.sh/job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "ray.io/cluster",
)
#: Kinds of owners that are jobs; others make services and notebooks.
_JOB_KINDS = ("Job", "PyTorchJob", "MPIJob", "TFJob", "PaddleJob", "XGBoostJob", "JAXJob", "LeaderWorkerSet", "JobSet")


def main(bundle: bytes, fd_in: int, fd_out: int) -> None:
    mux.serve(KubernetesBridgeServer(), fd_in, fd_out)


class KubernetesBridgeServer(BridgeServer):
    """One cluster, reached through a kubeconfig context or from the pod that this process runs in."""

    def __init__(self) -> None:
        self._client: Any = None
        self._configuration: Any = None
        self._created_jobs: list[tuple[str, str]] = []

    def do_connect(self, kubeconfig: str, context: str) -> dict[str, Any]:
        """Read the configuration; nothing is requested from the API server yet."""
        try:
            import kubernetes
        except ImportError as error:
            raise BridgeError(
                "missing",
                f"the Kubernetes client cannot be imported ({error}); pip install 'preflight-train[kubernetes]'",
            )
        configuration = kubernetes.client.Configuration()
        namespace, where = "default", ""
        try:
            if _has_kubeconfig(kubeconfig):
                kubernetes.config.load_kube_config(
                    config_file=kubeconfig or None, context=context or None, client_configuration=configuration
                )
                _, active = kubernetes.config.list_kube_config_contexts(config_file=kubeconfig or None)
                chosen = _named_context(kubernetes, kubeconfig, context) or active
                namespace = chosen["context"].get("namespace") or namespace
                where = "context {}".format(chosen["name"])
            else:
                kubernetes.config.load_incluster_config(client_configuration=configuration)
                namespace, where = _own_namespace() or namespace, "the pod that preflight runs in"
        except Exception as error:  # The client's reader of configuration files raises many kinds of errors.
            raise BridgeError(
                "missing",
                f"no cluster is configured here ({str(error) or type(error).__name__}); pass a file with --on-option "
                "kubeconfig=FILE, or run this where `kubectl get pods` works",
            )
        # Retries would outlast every deadline.
        configuration.retries = 0
        self._configuration = configuration
        self._client = kubernetes
        return {"namespace": namespace, "server": configuration.host, "where": where}

    def do_pods(self, namespace: str, selector: str, job: str) -> list[dict[str, Any]]:
        """Return the pods that match a label selector or belong to a job; without either, all pods of the namespace."""
        options = {"label_selector": selector} if selector else {}
        pods = self._pages(f"list pods in {namespace}", self._core().list_namespaced_pod, namespace, **options)
        return [pod_facts(pod) for pod in pods if not job or _belongs_to(pod, job)]

    def do_own(self, namespace: str) -> list[str]:
        """Return the names of the jobs that our own pod belongs to; empty if this process is not in a pod."""
        name = os.environ.get("HOSTNAME", "")
        if not name or not _own_namespace():
            return []
        read = self._core().read_namespaced_pod
        try:
            pod = self._call("read its own pod", read, name, namespace)
        except BridgeError:
            return []
        metadata = pod.get("metadata") or {}
        labels, owners = metadata.get("labels") or {}, metadata.get("ownerReferences") or []
        names = [labels[key] for key in JOB_LABELS if labels.get(key)]
        return list(dict.fromkeys([*names, *(owner["name"] for owner in owners if owner.get("kind") in _JOB_KINDS)]))

    def do_job(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the Job with this name; None if it does not exist."""
        try:
            job = self._call(f"read the Job {name}", self._batch().read_namespaced_job, name, namespace)
        except BridgeError as trouble:
            if trouble.kind in ("missing", "denied"):
                return None
            raise
        return job

    def do_taken(self) -> list[tuple[str, dict[str, str]]]:
        """Return the resource requests of all running pods, each with its node."""
        requests: list[tuple[str, dict[str, str]]] = []
        running = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="
        pods = self._pages(
            "list pods of all namespaces", self._core().list_pod_for_all_namespaces, field_selector=running
        )
        for number, pod in enumerate(pods):
            if number >= _MAX_PODS:
                raise BridgeError("timeout", f"the cluster runs more than {_MAX_PODS} pods, more than preflight lists")
            spec = pod.get("spec") or {}
            for container in spec.get("containers") or []:
                resources = container.get("resources") or {}
                wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
                requests.append((spec.get("nodeName", ""), {key: str(value) for key, value in wanted.items()}))
        return requests

    def do_nodes(self) -> list[dict[str, Any]]:
        """Return every node of the cluster: resources, labels and conditions."""
        page = self._call("list nodes", self._core().list_node, limit=5000)
        return [node_facts(node) for node in page.get("items") or []]

    def do_create(self, namespace: str, job: dict[str, Any]) -> str:
        """Create a Job, which is deleted when this bridge ends."""
        owner = self._own_pod(namespace)
        if owner is not None:
            job["metadata"]["ownerReferences"] = [owner]
        name = job["metadata"]["name"]
        # Recorded first: the Job may exist even if the answer is lost.
        self._created_jobs.append((namespace, name))
        created = self._call(
            f"create the Job {name} in {namespace}", self._batch().create_namespaced_job, namespace, job
        )
        return str(created["metadata"]["name"])

    def start(
        self, namespace: str, pod: str, job: str, index: int, container: str, command: list[str], deadline_s: float
    ) -> Stream:
        """Start `command` in a container of a pod (or of the pod with this index of a job) once it runs."""
        until = time.monotonic() + deadline_s
        while True:
            facts = self._find(namespace, pod, job, index)
            what = pod or f"the pod of index {index} of {job}"
            if facts is not None:
                problem = startup_problem(facts, container)
                if problem is None:
                    break
                kind, message, final = problem
            else:
                # The job controller makes another pod, or has not made this one yet.
                kind, message, final = "missing", "the pod does not exist", bool(pod)
            if final or time.monotonic() + _POLL_S >= until:
                waited = "" if final else f" (waited {deadline_s:.0f} s)"
                raise BridgeError(kind, "{}: {}{}".format(facts["name"] if facts else what, message, waited))
            time.sleep(_POLL_S)
        return self._exec(facts, container, command, max(1.0, until - time.monotonic()))

    def close(self) -> None:
        """Delete everything that was created here."""
        created, self._created_jobs = self._created_jobs, []
        for namespace, name in created:
            body = self._client.client.V1DeleteOptions(propagation_policy="Background", grace_period_seconds=0)
            for tried in range(3):
                try:
                    self._batch().delete_namespaced_job(name, namespace, body=body, _request_timeout=(1.0, 2.0))
                    break
                except Exception as error:
                    if getattr(error, "status", None) == 404 or tried == 2:
                        break

    def _find(self, namespace: str, pod: str, job: str, index: int) -> dict[str, Any] | None:
        if pod:
            try:
                found = self._call(f"read the pod {pod}", self._core().read_namespaced_pod, pod, namespace)
            except BridgeError as trouble:
                if trouble.kind == "missing":
                    return None
                raise
            return pod_facts(found)
        pods = [each for each in self.do_pods(namespace, "", job) if each["index"] == index]
        # A pod that failed may have been replaced.
        pods.sort(key=lambda each: (each["phase"] == "Running", each["created"]))
        return pods[-1] if pods else None

    def _exec(self, facts: dict[str, Any], container: str, command: list[str], deadline_s: float) -> Stream:
        import websocket
        from kubernetes.stream import stream

        # For the handshake. The setting applies to every websocket of this process.
        websocket.setdefaulttimeout(deadline_s)
        name, namespace = facts["name"], facts["namespace"]
        try:
            opened = stream(
                self._core().connect_get_namespaced_pod_exec,
                name,
                namespace,
                command=command,
                container=container or main_container(facts),
                stdin=True,
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
            )
        except Exception as error:
            raise explain_exec_error(name, str(getattr(error, "reason", "") or error))
        return ExecStream(opened.sock)

    def _own_pod(self, namespace: str) -> dict[str, Any] | None:
        """Return an owner reference to our own pod, so that created objects are deleted with it."""
        if _own_namespace() != namespace:
            return None
        try:
            name = os.environ.get("HOSTNAME", "")
            pod = self._call(
                "read its own pod", self._core().read_namespaced_pod, name, namespace, _request_timeout=(1.0, 2.0)
            )
        except BridgeError:
            return None
        return {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}

    def _core(self) -> Any:
        # One client for each use: `stream` replaces one of its methods during a call.
        return self._client.client.CoreV1Api(self._client.client.ApiClient(self._configuration))

    def _batch(self) -> Any:
        return self._client.client.BatchV1Api(self._client.client.ApiClient(self._configuration))

    def _pages(self, to: str, function: Any, *arguments: Any, **options: Any) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, which the API server sends page by page."""
        while True:
            page = self._call(to, function, *arguments, limit=_PAGE, **options)
            yield from page.get("items") or []
            options["_continue"] = (page.get("metadata") or {}).get("continue")
            if not options["_continue"]:
                return

    def _call(self, to: str, function: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Return the JSON answer to a call; the client's own classes reject newer data. Raises BridgeError."""
        from kubernetes.client.rest import ApiException
        from urllib3.exceptions import HTTPError

        try:
            options.setdefault("_request_timeout", _REQUEST_S)
            answer = function(*arguments, _preload_content=False, **options)
        except ApiException as error:
            # Older clients leave the body unchanged.
            body = error.body or error.reason or ""
            raise explain_api_error(
                to, int(error.status or 0), body.decode("utf-8", "replace") if isinstance(body, bytes) else body
            )
        except HTTPError as error:
            raise explain_connection_error(to, self._configuration.host, str(error))
        except ValueError as error:
            # Newer clients validate requests against the schema of their own version.
            raise BridgeError(
                "blocked", "the Kubernetes client could not {}: {}".format(to, " ".join(str(error).split()))
            )
        try:
            found = json.loads(answer.data)
        except ValueError as error:
            raise BridgeError("crashed", f"the API server's response is not JSON (request: {to}): {error}")
        if not isinstance(found, dict):
            raise BridgeError("crashed", f"the API server's response is not a JSON object (request: {to})")
        return found


def _has_kubeconfig(named: str) -> bool:
    if named:
        return True
    given = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    return any(os.path.exists(os.path.expanduser(path)) for path in given.split(os.pathsep) if path)


def _named_context(kubernetes: Any, kubeconfig: str, context: str) -> Any:
    contexts, _ = kubernetes.config.list_kube_config_contexts(config_file=kubeconfig or None)
    return next((each for each in contexts if each["name"] == context), None)


def _own_namespace() -> str:
    try:
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _belongs_to(pod: dict[str, Any], job: str) -> bool:
    metadata = pod.get("metadata") or {}
    labels, owners = metadata.get("labels") or {}, metadata.get("ownerReferences") or []
    return any(labels.get(key) == job for key in JOB_LABELS) or any(owner.get("name") == job for owner in owners)


#: Waiting reasons that do not resolve by themselves (kubernetes/kubelet, pkg/kubelet/images/types.go and
#: container/sync_result.go).
_STUCK = frozenset(
    (
        *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"),
    )
)


def pod_facts(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the relevant data of a pod from the API's JSON."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    states = {each.get("name"): each for each in status.get("containerStatuses") or []}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return {
        "name": metadata.get("name", ""),
        "namespace": metadata.get("namespace", ""),
        "created": str(metadata.get("creationTimestamp") or ""),
        "deleted": bool(metadata.get("deletionTimestamp")),
        "hostname": spec.get("hostname") or "",
        "node": spec.get("nodeName") or "",
        "ip": status.get("podIP") or "",
        "phase": status.get("phase") or "Pending",
        "reason": status.get("reason") or "",
        "message": status.get("message") or "",
        "role": _role(labels),
        "index": _index(labels, notes),
        "scheduler": spec.get("schedulerName") or "",
        "containers": [
            {
                "name": each.get("name", ""),
                "image": each.get("image", ""),
                "requests": (each.get("resources") or {}).get("requests") or {},
                "state": (states.get(each.get("name")) or {}).get("state") or {},
            }
            for each in spec.get("containers") or []
        ],
        "conditions": [
            {key: str(each.get(key) or "") for key in ("type", "status", "reason", "message")}
            for each in status.get("conditions") or []
        ],
    }


def main_container(pod: dict[str, Any]) -> str:
    """Return the container that requests devices, otherwise the first."""
    devices = (each for each in pod["containers"] if any("/" in key for key in each["requests"]))
    return str(next(devices, pod["containers"][0])["name"])


def _role(labels: dict[str, str]) -> str:
    for key in ("training.kubeflow.org/replica-type", "volcano.sh/task-spec", "ray.io/node-type"):
        if labels.get(key):
            return labels[key].lower()
    return ""


def _index(labels: dict[str, str], notes: dict[str, str]) -> int | None:
    """Return a pod's index in its job, as set by its controller."""
    for key in (
        "batch.kubernetes.io/job-completion-index",
        "training.kubeflow.org/replica-index",
        "volcano.sh/task-index",
        "leaderworkerset.sigs.k8s.io/worker-index",
        "apps.kubernetes.io/pod-index",
    ):
        value = labels.get(key) or notes.get(key)
        if value is not None and str(value).isdecimal():
            return int(value)
    return None


def node_facts(node: dict[str, Any]) -> dict[str, Any]:
    """Return the relevant data of a node from the API's JSON."""
    metadata, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or []}
    return {
        "name": metadata.get("name", ""),
        "labels": metadata.get("labels") or {},
        "allocatable": status.get("allocatable") or {},
        "cordoned": bool(spec.get("unschedulable")),
        "ready": (conditions.get("Ready") or {}).get("status") == "True",
        "message": str((conditions.get("Ready") or {}).get("message") or ""),
    }


def startup_problem(pod: dict[str, Any], container: str) -> tuple[str, str, bool] | None:
    """Return why a container cannot start (kind, message, whether waiting is useless); None if it can."""
    if pod["deleted"]:
        return "unreachable", "the pod is being deleted", True
    names = [each["name"] for each in pod["containers"]]
    if container and container not in names:
        return "missing", "the pod has no container {!r}; it has {}".format(container, ", ".join(names)), True
    if pod["phase"] in ("Succeeded", "Failed"):
        value = " ".join(filter(None, (pod["reason"], pod["message"]))) or _has_ended(pod)
        return "unreachable", "the pod has ended ({}){}".format(pod["phase"], ": " + value if value else ""), True
    chosen = next(each for each in pod["containers"] if each["name"] == (container or main_container(pod)))
    waiting = chosen["state"].get("waiting") or {}
    if waiting.get("reason") in _STUCK:
        words = "container {} ({}): {}".format(chosen["name"], chosen["image"], waiting["reason"])
        kind = "missing" if "mage" in waiting["reason"] else "crashed"
        return kind, ": ".join(filter(None, (words, waiting.get("message") or ""))), True
    if "terminated" in chosen["state"]:
        code = chosen["state"]["terminated"].get("exitCode")
        return "crashed", "container {} has ended with exit code {}".format(chosen["name"], code), False
    if "running" in chosen["state"]:
        return None
    for condition in pod["conditions"]:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            words = "the pod is Pending: {}: {}".format(condition["reason"] or "not scheduled", condition["message"])
            return "blocked", words, False
    on = " on {}".format(pod["node"]) if pod["node"] else ""
    value = waiting.get("reason") or pod["reason"] or "no reason given"
    return "timeout", "the pod is {}{}: {}".format(pod["phase"], on, value), False


def _has_ended(pod: dict[str, Any]) -> str:
    for each in pod["containers"]:
        ended = each["state"].get("terminated")
        if ended:
            return "container {}: {}, exit code {}".format(each["name"], ended.get("reason", ""), ended.get("exitCode"))
    return ""


STDIN, STDOUT, STDERR, STATUS, CLOSE_SIGNAL = 0, 1, 2, 3, 255
_V5 = "v5.channel.k8s.io"
#: Largest message; API servers accept megabytes, proxies in front of them often less.
_MESSAGE_BYTES = 256 * 1024
_STDERR_BYTES = 8192
#: How long a program may take to exit after its standard input is closed.
_LEAVE_S = 1.0


class ExecStream(Stream):
    """One program in a container."""

    def __init__(self, sock: Any) -> None:
        """Take over a websocket after its handshake (websocket-client's `WebSocket`)."""
        self._sock = sock
        self._sock.settimeout(20.0)
        # TLS connections must not be read and written at the same time.
        self._socket_lock = threading.Lock()
        self._stderr = b""
        self._status: dict[str, Any] = {}
        self._problem = ""
        self._closed = False
        self._ended = False

    def read(self) -> bytes:
        """Return the next bytes of standard output; empty once the program or the connection ended."""
        while not self._ended:
            message = self._message()
            if message is None:
                return b""
            channel, data = message[:1], message[1:]
            if channel == bytes([STDOUT]) and data:
                return data
            if channel == bytes([STDERR]):
                self._stderr = (self._stderr + data)[-_STDERR_BYTES:]
            elif channel == bytes([STATUS]):
                self._status = json_object(data)
                return b""
        return b""

    def _message(self) -> bytes | None:
        """Return the next message; empty if there was none for the stream, None at the end."""
        from websocket import ABNF, WebSocketException

        try:
            inner = self._sock.sock
            if inner is None:
                return None
            if not (hasattr(inner, "pending") and inner.pending()):
                poll = select.poll()
                poll.register(inner, select.POLLIN)
                if not poll.poll(1000):
                    return b""
            with self._socket_lock:
                kind, frame = self._sock.recv_data_frame(True)
        except (WebSocketException, OSError, ValueError, AttributeError) as error:
            self._problem = self._problem or ("" if self._closed else str(error))
            return None
        if kind == ABNF.OPCODE_CLOSE:
            return None
        return bytes(frame.data) if kind in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) else b""

    def write(self, data: bytes) -> None:
        from websocket import ABNF

        for start in range(0, len(data), _MESSAGE_BYTES):
            with self._socket_lock:
                self._sock.send(bytes([STDIN]) + data[start : start + _MESSAGE_BYTES], opcode=ABNF.OPCODE_BINARY)

    def exit_state(self) -> tuple[int | None, str]:
        """Return the exit code from the container runtime, and the end of standard error."""
        words = self._stderr.decode("utf-8", "replace").strip()
        if not self._status:
            return None, "\n".join(filter(None, (words, self._problem)))
        if self._status.get("status") == "Success":
            return 0, words
        causes = (self._status.get("details") or {}).get("causes") or []
        codes = [cause.get("message", "") for cause in causes if cause.get("reason") == "ExitCode"]
        if codes and str(codes[0]).isdecimal():
            return int(codes[0]), words
        return None, "\n".join(filter(None, (words, str(self._status.get("message", "")))))

    def close(self) -> None:
        """Close standard input if the server supports it, and the connection soon after; the program notices either."""
        if self._closed:
            return
        self._closed = True
        if self._sock.subprotocol == _V5:
            from websocket import ABNF

            try:
                with self._socket_lock:
                    self._sock.send(bytes([CLOSE_SIGNAL, STDIN]), opcode=ABNF.OPCODE_BINARY)
                # `read` continues until the program's exit code arrives.
                timer = threading.Timer(_LEAVE_S, self._disconnect)
                timer.daemon = True
                timer.start()
                return
            except Exception:
                pass
        self._disconnect()

    def _disconnect(self) -> None:
        self._ended = True
        try:
            self._sock.shutdown()
        except Exception:
            pass


def explain_api_error(to: str, status: int, body: str) -> BridgeError:
    """Explain an error response of the API server."""
    message = str(json_object(body.encode()).get("message") or body.strip()[:300] or "nothing")
    words = 'the API server refused to %s: "%s" (HTTP %d)' % (to, message, status)
    if status == 401:
        return BridgeError(
            "denied", words + "; the credentials are missing or have expired: `kubectl auth whoami`", body[:4000]
        )
    if status == 403:
        return BridgeError("denied", words + "; " + _grant(message), body[:4000])
    if status == 404:
        return BridgeError("missing", words, body[:4000])
    if status in (409, 422, 400):
        return BridgeError("blocked", words, body[:4000])
    return BridgeError("unreachable", words, body[:4000])


def _grant(message: str) -> str:
    """Return the permission to grant, from RBAC's message (kubernetes/apiserver, responsewriters/errors.go)."""
    match = re.search(
        r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?', message
    )
    if match is None:
        return "ask for that permission"
    verb, resource, group, namespace = match.groups()
    where = f"-n {namespace}" if namespace else "--all-namespaces"
    kind, full = ("role", where) if namespace else ("clusterrole", "")
    plural = f"{resource}.{group}" if group else resource
    words = f"kubectl create {kind} preflight {full} --verb={verb} --resource={plural}"
    return "`kubectl auth can-i {} {} {}` checks this; grant it with `{}` and a binding".format(
        verb, plural, where, " ".join(words.split())
    )


def explain_connection_error(to: str, host: str, message: str) -> BridgeError:
    # urllib3 wraps one error into another; the innermost is the cause.
    inner = re.findall(r"Caused by \w+\((.*)\)", message)
    last = (inner[-1] if inner else message).strip()
    last = re.sub(r"<[^>]*>:?\s*|^[\"']|[\"']$", "", last)
    kind = "timeout" if re.search(r"timed out", message, re.IGNORECASE) else "unreachable"
    return BridgeError(
        kind, f"the API server {host} cannot be reached to {to}: {last}; does `kubectl get pods` work here?", message
    )


_HANDSHAKE = re.compile(r"Handshake status (\d+)")


def explain_exec_error(pod: str, message: str) -> BridgeError:
    """Explain why a program could not start in a pod, from websocket-client's handshake message."""
    match = _HANDSHAKE.search(message)
    if match is not None:
        body = message.rpartition("-+-+-")[2].strip()
        quoted = re.fullmatch(r"b(['\"])(.*)\1", body, re.DOTALL)
        if quoted:
            body = quoted[2].encode("latin-1", "replace").decode("unicode_escape")
        trouble = explain_api_error(f"start a program in the pod {pod}", int(match[1]), body)
        return BridgeError(trouble.kind, trouble.message, message[:4000])
    kind = "timeout" if "timed out" in message.lower() else "unreachable"
    return BridgeError(kind, f"no program can be started in the pod {pod}: {message[:300]}", message[:4000])


def json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; return an empty one if `data` is not an object."""
    try:
        found = json.loads(data.decode("utf-8", "replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

"""A STUB of the Kubernetes API server, with only the paths that the executor uses. It behaves like the real one in:
bearer tokens (401), RBAC refusals in RBAC's own words (403), paging, a Job that becomes
pods on nodes with room for them (or stays Pending with a scheduler's message), and exec over a websocket with the
channel protocol v4 or v5, which really starts the command, as a process here. It does not simulate kubelets, images,
pod networks, or the speed of a real control plane.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TOKEN = "stub-token"


@dataclass
class Stub:
    """The state of the cluster; tests change it between calls."""

    protocols: tuple[str, ...] = ("v5.channel.k8s.io", "v4.channel.k8s.io")
    #: The denied pairs of (verb, resource).
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    pods: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    #: The requests, in order.
    log: list[str] = field(default_factory=list)
    processes: dict[str, list[subprocess.Popen[Any]]] = field(default_factory=dict)
    #: Connections of exec by pod, to be cut.
    connections: dict[str, list[socket.socket]] = field(default_factory=dict)
    #: Requests for paths that begin with this are never answered.
    silent: str = ""
    url: str = ""
    #: Starts a command in a pod; without it, on this machine.
    start: Callable[[str, list[str]], subprocess.Popen[Any]] | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def add_node(self, name: str, *, gpus: int = 0, ready: bool = True, taint: str = "") -> None:
        """Add a node with this number of GPUs, 8 cores and 32 GiB."""
        allocatable = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        if gpus:
            allocatable["nvidia.com/gpu"] = str(gpus)
        self.nodes[name] = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}] if taint else []},
            "status": {
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False", "message": "kubelet said so"}],
            },
        }

    def add_pod(self, name: str, *, node: str = "", namespace: str = "train", **changes: Any) -> dict[str, Any]:
        """Add a running pod of one container; `changes` override its metadata, spec and status."""
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{name}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"nodeName": node, "containers": [{"name": "trainer", "image": "registry.example/train:1"}]},
            "status": {
                "phase": "Running",
                "podIP": "10.0.0.1",
                "containerStatuses": [
                    {
                        "name": "trainer",
                        "image": "registry.example/train:1",
                        "imageID": "",
                        "ready": True,
                        "restartCount": 0,
                        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                    }
                ],
            },
        }
        for part, changed in changes.items():
            pod[part].update(changed)
        self.pods[(namespace, name)] = pod
        return pod

    def write_kubeconfig(self, path: Path, *, token: str = TOKEN, namespace: str = "train") -> Path:
        """A kubeconfig for this stub."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stub",
            "clusters": [{"name": "stub", "cluster": {"server": self.url}}],
            "users": [{"name": "tester", "user": {"token": token}}],
            "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "tester", "namespace": namespace}}],
        }
        path.write_text(json.dumps(config))
        return path

    def make_pods(self, namespace: str, job: dict[str, Any]) -> None:
        """Create a pod for each index, each on a node with room, as the job controller and the scheduler do."""
        name, spec = job["metadata"]["name"], job["spec"]
        template = spec["template"]
        wanted = int(template["spec"]["containers"][0].get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))
        taken = {pod["spec"].get("nodeName") for pod in self.pods.values() if name in pod["metadata"]["name"]}
        for index in range(spec["parallelism"]):
            tolerated = {each.get("key") for each in template["spec"].get("tolerations", ())}
            free = [
                node
                for node, facts in self.nodes.items()
                if node not in taken
                and int(facts["status"]["allocatable"].get("nvidia.com/gpu", 0)) >= wanted
                and all(taint["key"] in tolerated for taint in facts["spec"]["taints"])
            ]
            pod = self.add_pod(f"{name}-{index}-abcde", namespace=namespace)
            labels = {"batch.kubernetes.io/job-name": name, "batch.kubernetes.io/job-completion-index": str(index)}
            pod["metadata"]["labels"] = {**template["metadata"].get("labels", {}), **labels}
            pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": name, "apiVersion": "batch/v1", "uid": "u"}]
            pod["spec"] = {**template["spec"], "hostname": f"{name}-{index}"}
            if free:
                pod["spec"]["nodeName"] = free[0]
                taken.add(free[0])
                container = template["spec"]["containers"][0]
                pod["status"]["containerStatuses"][0].update(name=container["name"], image=container["image"])
            else:
                message = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient nvidia.com/gpu."
                condition = {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                }
                pod["status"] = {"phase": "Pending", "conditions": [condition]}

    def remove_pod(self, namespace: str, name: str) -> None:
        """Delete a pod, and kill its processes, as a kubelet would."""
        self.pods.pop((namespace, name), None)
        for process in self.processes.pop(name, []):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=5)

    def cut(self, pod: str) -> None:
        """Close the exec connections to a pod without a message."""
        for connection in self.connections.pop(pod, []):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def api_server(listener: socket.socket | None = None, **options: Any) -> Iterator[Stub]:
    """A stub that listens on a free port of loopback, or on `listener`, which may be of another network namespace."""
    stub = Stub(**options)

    class Handler(_Handler):
        state = stub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=listener is None)
    if listener is not None:
        server.socket.close()
        server.socket = listener
        server.server_address = listener.getsockname()
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.over.set()
        server.shutdown()
        server.server_close()
        for name in list(stub.processes):
            stub.remove_pod("", name)
        thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    state: Stub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing; `log` keeps the requests."""

    def do_GET(self) -> None:
        self._serve("get")

    def do_POST(self) -> None:
        self._serve("create")

    def do_DELETE(self) -> None:
        self._serve("delete")

    def _serve(self, verb: str) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"null") if length else None
        self.state.log.append(f"{self.command} {parts.path}")
        if self.state.silent and parts.path.startswith(self.state.silent):
            self.state.over.wait(60)
            return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._status(401, "Unauthorized", "Unauthorized")
            return
        names = parts.path.strip("/").split("/")
        names = names[2:] if names[0] == "api" else names[3:]
        namespace = names[1] if names[0] == "namespaces" else ""
        resource, *rest = names[2:] if namespace else names
        name, sub = [*rest, "", ""][:2]
        verb = "list" if verb == "get" and not name else verb
        full = f"{resource}/{sub}" if sub else resource
        if sub == "exec":
            verb = "create"
        if (verb, full) in self.state.forbidden:
            group = "batch" if resource == "jobs" else ""
            where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            who = f'{resource} "{name}" is forbidden' if name else f"{resource} is forbidden"
            cannot = f'User "tester" cannot {verb} resource "{full}" in API group "{group}"{where}'
            self._status(403, "Forbidden", f"{who}: {cannot}")
            return
        getattr(self, f"_{resource}")(verb, namespace, name, sub, query, body)

    def _status(self, code: int, reason: str, message: str) -> None:
        self._send(code, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code})

    def _send(self, code: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(data)

    def _missing(self, resource: str, name: str) -> None:
        self._status(404, "NotFound", f'{resource} "{name}" not found')

    def _nodes(self, verb: str, namespace: str, name: str, sub: str, query: Any, body: Any) -> None:
        self._send(200, {"kind": "NodeList", "metadata": {}, "items": list(self.state.nodes.values())})

    def _jobs(self, verb: str, namespace: str, name: str, sub: str, query: Any, body: Any) -> None:
        key = (namespace, name)
        if verb == "create":
            self.state.jobs[(namespace, body["metadata"]["name"])] = body
            self.state.make_pods(namespace, body)
            self._send(201, body)
        elif key not in self.state.jobs:
            self._missing("jobs.batch", name)
        elif verb == "delete":
            del self.state.jobs[key]
            for where, pod in list(self.state.pods):
                if any(o["name"] == name for o in self.state.pods[where, pod]["metadata"].get("ownerReferences", ())):
                    self.state.remove_pod(where, pod)
            self._send(200, {"kind": "Status", "status": "Success"})
        else:
            self._send(200, self.state.jobs[key])

    def _pods(self, verb: str, namespace: str, name: str, sub: str, query: Any, body: Any) -> None:
        if verb == "list":
            self._list_pods(namespace, query)
        elif (namespace, name) not in self.state.pods:
            self._missing("pods", name)
        elif sub == "exec":
            self._exec(name, query)
        else:
            self._send(200, self.state.pods[(namespace, name)])

    def _list_pods(self, namespace: str, query: Any) -> None:
        wanted = dict(part.split("=", 1) for part in query.get("labelSelector", [""])[0].split(",") if part)
        placed = "spec.nodeName!=" in query.get("fieldSelector", [""])[0]
        found = [
            pod
            for (where, _), pod in sorted(self.state.pods.items())
            if where == (namespace or where)
            and all(pod["metadata"].get("labels", {}).get(key) == value for key, value in wanted.items())
            and (not placed or pod["spec"].get("nodeName"))
        ]
        start = int(query.get("continue", ["0"])[0])
        end = start + min(int(query.get("limit", ["500"])[0]), 3)
        going_on = {"continue": str(end)} if end < len(found) else {}
        self._send(200, {"kind": "PodList", "metadata": going_on, "items": found[start:end]})

    def _exec(self, name: str, query: Any) -> None:
        offered = [each.strip() for each in self.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        chosen = next((each for each in self.state.protocols if each in offered), "")
        key = self.headers.get("Sec-WebSocket-Key", "")
        accept = base64.b64encode(hashlib.sha1((key + _MAGIC).encode()).digest()).decode()
        self.send_response(101, "Switching Protocols")
        for header, value in (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", accept),
            ("Sec-WebSocket-Protocol", chosen),
        ):
            self.send_header(header, value)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        self.state.connections.setdefault(name, []).append(self.connection)
        _Exec(self, name, query["command"], chosen == "v5.channel.k8s.io").run()


def _start_here(pod: str, command: list[str]) -> subprocess.Popen[Any]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "HOSTNAME": pod},
        start_new_session=True,
    )


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


class _Exec:
    """One program in a pod, as a kubelet and a container runtime handle it."""

    def __init__(self, handler: _Handler, pod: str, command: list[str], half_closes: bool) -> None:
        self._handler = handler
        self._half_closes = half_closes
        self._sending = threading.Lock()
        self._failure = ""
        try:
            self._process = (handler.state.start or _start_here)(pod, command)
        except OSError as error:
            self._failure = f"exec failed: unable to start container process: {error}"
            return
        handler.state.processes.setdefault(pod, []).append(self._process)

    def run(self) -> None:
        if self._failure:
            self._message(3, {"status": "Failure", "message": self._failure, "reason": "InternalError", "code": 500})
            self._frame(8, b"\x03\xe8")
            return
        process = self._process
        assert process.stdin and process.stdout and process.stderr
        pumps = [
            threading.Thread(target=self._pump, args=(channel, stream.fileno()), daemon=True)
            for channel, stream in ((1, process.stdout), (2, process.stderr))
        ]
        for pump in pumps:
            pump.start()
        threading.Thread(target=self._finish, args=(pumps,), daemon=True).start()
        for message in self._messages():
            if message[:1] == b"\x00":
                with suppress(OSError):
                    _write_all(process.stdin.fileno(), message[1:])
            elif message[:2] == b"\xff\x00" and self._half_closes:
                break
        # The connection or its standard input is closed; the program sees only that.
        with suppress(OSError):
            process.stdin.close()
        process.wait()

    def _finish(self, pumps: list[threading.Thread]) -> None:
        code = self._process.wait()
        for pump in pumps:
            pump.join(2)
        if code == 0:
            status: dict[str, Any] = {"status": "Success"}
        else:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            status = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
        self._message(3, {"metadata": {}, **status})
        self._frame(8, b"\x03\xe8")

    def _pump(self, channel: int, fd: int) -> None:
        with suppress(OSError):
            while data := os.read(fd, 32768):
                self._frame(2, bytes([channel]) + data)

    def _message(self, channel: int, value: Any) -> None:
        self._frame(2, bytes([channel]) + json.dumps(value).encode())

    def _frame(self, opcode: int, data: bytes) -> None:
        length = len(data)
        header = bytes([0x80 | opcode])
        if length < 126:
            header += bytes([length])
        elif length < 1 << 16:
            header += struct.pack(">BH", 126, length)
        else:
            header += struct.pack(">BQ", 127, length)
        with self._sending, suppress(OSError):
            self._handler.connection.sendall(header + data)

    def _messages(self) -> Iterator[bytes]:
        """The client's messages; each frame of the client's is masked (RFC 6455, 5.3)."""
        read = self._handler.rfile.read
        with suppress(OSError, struct.error, ValueError):
            while True:
                first, second = read(2)  # too few at the end of the connection
                length = second & 0x7F
                if length == 126:
                    (length,) = struct.unpack(">H", read(2))
                elif length == 127:
                    (length,) = struct.unpack(">Q", read(8))
                mask = read(4)
                data = read(length)
                if first & 0x0F == 8:
                    return
                data = int.from_bytes(data, "big") ^ int.from_bytes((mask * (length // 4 + 1))[:length], "big")
                yield data.to_bytes(length, "big")

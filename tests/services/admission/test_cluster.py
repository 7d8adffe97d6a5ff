"""The reader of the cluster against a STUB of the API server that answers from a table of paths."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from preflight.services.admission.cluster import WORKLOADS, Cluster, ClusterError
from preflight.services.admission.judgement import Reference
from tests.services.admission.objects import local_queue

_GROUPS = {"groups": [{"name": "kueue.x-k8s.io", "preferredVersion": {"version": "v1beta2"}}]}
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"


class Stub:
    """A STUB of the API server: answers by path, and what was sent to it."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {"/apis/": (200, _GROUPS)}
        self.sent: list[tuple[str, str, Any, str]] = []

    def missing(self, path: str) -> tuple[int, Any]:
        return 404, {"kind": "Status", "message": f"{path} not found", "code": 404}


@pytest.fixture
def stub() -> Iterator[Stub]:
    state = Stub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind = self.headers.get("Content-Type", "")
            state.sent.append((self.command, self.path, json.loads(body) if body else None, kind))
            code, value = state.answers.get(path) or state.missing(path)
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_PATCH = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
    yield state
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def cluster(stub: Stub, tmp_path: Path) -> Cluster:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "stub",
        "clusters": [{"name": "stub", "cluster": {"server": stub.url}}],  # type: ignore[attr-defined]
        "users": [{"name": "tester", "user": {"token": "stub-token"}}],
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "tester"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    return Cluster.connect(str(path))


def test_objects_are_read_in_the_version_that_the_server_prefers(stub: Stub, cluster: Cluster) -> None:
    stub.answers[f"{_KUEUE}/namespaces/team-a/localqueues/gpus"] = (200, local_queue())
    stub.answers["/api/v1/namespaces/team-a/configmaps/c"] = (200, {"data": {"run.sh": "torchrun"}})
    stub.answers["/api/v1/namespaces/team-a/resourcequotas"] = (200, {"items": [{"metadata": {"name": "q"}}]})
    (queue,) = cluster.read(Reference("LocalQueue", "gpus", "team-a")).objects
    assert queue["spec"] == {"clusterQueue": "pool"}
    (config,) = cluster.read(Reference("ConfigMap", "c", "team-a")).objects
    assert (config["apiVersion"], config["kind"]) == ("v1", "ConfigMap")
    (quota,) = cluster.read(Reference("ResourceQuota", "", "team-a")).objects
    assert quota["kind"] == "ResourceQuota"


def test_what_is_not_there_or_denied_has_a_reason(stub: Stub, cluster: Cluster) -> None:
    message = 'localqueues is forbidden: User "t" cannot get resource "localqueues" in API group "kueue.x-k8s.io"'
    stub.answers[f"{_KUEUE}/namespaces/team-a/localqueues/gpus"] = (403, {"kind": "Status", "message": message})
    denied = cluster.read(Reference("LocalQueue", "gpus", "team-a"))
    assert denied.objects == () and "kubectl create clusterrole" in denied.problem
    assert "no such object" in cluster.read(Reference("ClusterQueue", "pool")).problem
    # The group is not installed at all.
    assert "no such object" in cluster.read(Reference("Queue", "default")).problem


def test_a_watch_gives_events_and_a_status_is_merged(stub: Stub, cluster: Cluster) -> None:
    event = json.dumps({"type": "MODIFIED", "object": {"metadata": {"name": "w"}}}).encode()
    stub.answers[f"{_KUEUE}/workloads"] = (200, event + b"\n" + event + b"\n")
    assert [each["type"] for each in cluster.watch(WORKLOADS, "5", 1)] == ["MODIFIED", "MODIFIED"]
    assert "resourceVersion=5" in stub.sent[-1][1] and "watch=" in stub.sent[-1][1]
    stub.answers[f"{_KUEUE}/namespaces/team-a/workloads/w/status"] = (200, {})
    cluster.patch_status(WORKLOADS, "team-a", "w", {"status": {"admissionChecks": []}})
    verb, _, body, kind = stub.sent[-1]
    assert (verb, body, kind) == ("PATCH", {"status": {"admissionChecks": []}}, "application/merge-patch+json")


def test_the_place_of_a_kind_is_asked_for(stub: Stub, cluster: Cluster) -> None:
    kinds = [
        {"name": "pytorchjobs/status", "kind": "PyTorchJob"},
        {"name": "pytorchjobs", "kind": "PyTorchJob", "namespaced": True},
    ]
    stub.answers["/apis/kubeflow.org/v1"] = stub.answers["/apis/kubeflow.org/v1/"] = (200, {"resources": kinds})
    found = cluster.resource_of("kubeflow.org/v1", "PyTorchJob")
    assert (found.group, found.plural, found.version, found.namespaced) == ("kubeflow.org", "pytorchjobs", "v1", True)
    with pytest.raises(ClusterError):
        cluster.resource_of("kubeflow.org/v1", "NoJob")
    with pytest.raises(ClusterError):
        cluster.resource_of("v1", "Pod")


def test_a_server_that_cannot_be_reached_is_a_reason_and_no_crash(tmp_path: Path) -> None:
    with pytest.raises(ClusterError):
        Cluster.connect(str(tmp_path / "missing"))

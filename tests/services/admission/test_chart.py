"""The chart that installs the webhook: valid by Kubernetes' own schemas, and in agreement with the code."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from preflight.cli.servers import admission_check, webhook
from preflight.services.admission.cluster import WORKLOADS, Cluster, ClusterError
from preflight.services.admission.judgement import JUDGED_OWNERS, RESOURCES, Reference
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.kubernetes.helm.chart import Chart
from tests.services.admission.objects import local_queue

_CHART = Path(__file__).resolve().parents[3] / "integrations" / "kubernetes" / "webhook"
_CUSTOM = ("Issuer", "Certificate", "AdmissionCheck")


#: The chart makes a random one by default.
_TOKEN = "chosen-token-of-this-test"


def rendered(**values: Any) -> list[dict[str, Any]]:
    """The objects of the chart with these values changed."""
    chosen = {**yaml.safe_load((_CHART / "values.yaml").read_text()), "pathToken": _TOKEN}
    for key, value in values.items():
        chosen[key] = {**chosen[key], **value} if isinstance(value, dict) else value
    files = {f"c/{path.relative_to(_CHART)}": path.read_text() for path in _CHART.rglob("*") if path.is_file()}
    files["c/values.yaml"] = yaml.safe_dump(chosen)
    chart = Chart("c", MemoryTree(files), blanks=True)
    texts = [chart.render(path) for path in chart.templates]
    assert all(texts) and not chart.notes
    found = ["".join(piece.text for piece in text.pieces) for text in texts if text is not None]
    return [document for text in found for document in yaml.safe_load_all(text) if document]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


_GIVEN = {"certManager": False, "secretName": "tls", "caBundle": "QUJD"}
_CHOICES: list[dict[str, Any]] = [
    {},
    {"certificate": _GIVEN, "failurePolicy": "Fail", "onFailure": "refuse", "configuration": 'profile = "gate"\n'},
    {"kueue": {"enabled": True}, "namespaces": [{"namespace": "sandbox-*", "level": "never"}]},
    {
        "namespaceSelector": {
            "matchLabels": {"preflight": "on"},
            "matchExpressions": [{"key": "a", "operator": "Exists"}],
        }
    },
]


@pytest.mark.parametrize("values", _CHOICES, ids=range(len(_CHOICES)))
def test_every_object_is_valid(values: dict[str, Any]) -> None:
    objects = rendered(**values)
    for document in objects:
        if document["kind"] not in _CUSTOM:
            kubernetes_validate.validate(document, "1.33", strict=True)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)


def test_the_webhook_has_no_side_effects_and_spares_the_system() -> None:
    (hook,) = of_kind(rendered(), "ValidatingWebhookConfiguration")[0]["webhooks"]
    assert hook["sideEffects"] == "None" and hook["matchPolicy"] == "Equivalent"
    assert hook["failurePolicy"] == "Ignore" and hook["admissionReviewVersions"] == ["v1"]
    (excluded,) = hook["namespaceSelector"]["matchExpressions"]
    # The webhook's own namespace: it must not decide whether it may start.
    assert {"kube-system", "default"} <= set(excluded["values"]) and excluded["operator"] == "NotIn"
    assert not any("status" in resource for rule in hook["rules"] for resource in rule["resources"])


def test_owners_that_are_believed_are_judged() -> None:
    (hook,) = of_kind(rendered(), "ValidatingWebhookConfiguration")[0]["webhooks"]
    asked = {resource for rule in hook["rules"] for resource in rule["resources"]}
    assert {f"{kind.lower()}s" for kind in JUDGED_OWNERS} == asked


def test_only_the_api_server_is_told_the_path() -> None:
    objects = rendered()
    (hook,) = of_kind(objects, "ValidatingWebhookConfiguration")[0]["webhooks"]
    assert hook["clientConfig"]["service"]["path"] == f"/admit/{_TOKEN}"
    (secret,) = of_kind(objects, "Secret")
    assert base64.b64decode(secret["data"]["token"]).decode() == _TOKEN
    (deployment,) = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert _TOKEN not in json.dumps(deployment)
    # The command refuses a file that everybody can read; the group is that of the pod.
    (volume,) = [each["secret"] for each in pod["volumes"] if each["name"] == "path-token"]
    assert volume == {"secretName": secret["metadata"]["name"], "defaultMode": 0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]
    assert "--path-token-file=/path-token/token" in pod["containers"][0]["args"]


def test_a_given_certificate_needs_no_cert_manager() -> None:
    objects = rendered(certificate=_GIVEN)
    assert not of_kind(objects, "Certificate") and not of_kind(objects, "Issuer")
    assert of_kind(objects, "ValidatingWebhookConfiguration")[0]["webhooks"][0]["clientConfig"]["caBundle"] == "QUJD"
    volumes = of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "certificate", "secret": {"secretName": "tls"}} in volumes


def test_the_role_grants_what_is_read_and_no_more() -> None:
    (role,) = of_kind(rendered(), "ClusterRole")
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {(each.group, each.plural, "list" if each.listed else "get") for each in RESOURCES.values()}
    (without,) = of_kind(rendered(readConfigMaps=False), "ClusterRole")
    assert not any("configmaps" in rule["resources"] for rule in without["rules"])


@pytest.mark.parametrize("values", _CHOICES, ids=range(len(_CHOICES)))
def test_the_pods_run_options_that_the_command_has(values: dict[str, Any]) -> None:
    for deployment in of_kind(rendered(**values), "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        command = {"webhook": webhook, "admission-check": admission_check}[container["command"][1]]
        shown = CliRunner().invoke(command, ["--help"]).output
        for argument in container["args"]:
            assert re.search(rf"^  {re.escape(argument.partition('=')[0])} ", shown, re.MULTILINE), argument


def test_helm_renders_the_same() -> None:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed; `make test-all` does it")
    with helm.Chart.load(str(_CHART)) as chart:
        texts = chart.render(
            {"kueue": {"enabled": True}, "pathToken": _TOKEN}, name="release-name", namespace="default"
        )
    theirs = [document for text in texts.values() for document in yaml.safe_load_all(text) if document]
    ours = rendered(kueue={"enabled": True})
    key = repr
    assert sorted(map(key, theirs)) == sorted(map(key, ours))


def test_helm_makes_one_random_token() -> None:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed; `make test-all` does it")
    with helm.Chart.load(str(_CHART)) as chart:
        objects = [
            [each for text in chart.render({}, name="a", namespace="b").values() for each in yaml.safe_load_all(text)]
            for _ in range(2)
        ]
    tokens = {base64.b64decode(of_kind(each, "Secret")[0]["data"]["token"]).decode() for each in objects}
    assert len(tokens) == 2 and all(re.fullmatch("[0-9A-Za-z]{40}", each) for each in tokens)
    paths = {
        of_kind(each, "ValidatingWebhookConfiguration")[0]["webhooks"][0]["clientConfig"]["service"]["path"]
        for each in objects
    }
    assert paths == {f"/admit/{each}" for each in tokens}


# The reader of the cluster against a STUB of the API server that answers from a table of paths.


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

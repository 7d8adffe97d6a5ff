"""The chart that installs the webhook: valid by Kubernetes' own schemas, and in agreement with the code."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from preflight.cli.servers import admission_check, webhook
from preflight.services.admission.judgement import RESOURCES
from preflight.services.admission.review import JUDGED_OWNERS
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.kubernetes.helm.chart import Chart

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

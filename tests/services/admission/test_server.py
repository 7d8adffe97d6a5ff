"""The webhook as a pod runs it: over TLS, with hostile bodies, killed processes and a certificate that changes."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from preflight._util.usage_error import UsageError
from preflight.cli.servers import webhook as command
from preflight.services.admission.judgement import Policy, Workers
from preflight.services.admission.webhook import Webhook
from tests.processes import all_gone
from tests.services.admission.objects import UID, broken, good, review
from tests.services.admission.served import Served, make_certificate, webhook
from tests.services.connections import ends
from tests.waiting import until

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(os.system("command -v openssl >/dev/null") != 0, reason="openssl is not installed"),
]

PATH_TOKEN = "a-path-token-of-these-tests"
#: Bodies that are no fault of the API server's: deep, long, wide, and full of what terminals and logs obey.
_DEEP = good()
for _ in range(200):
    _DEEP = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "d"}, "spec": {"a": [_DEEP]}}
HOSTILE: dict[str, Any] = {
    "deep": _DEEP,
    "one long text": {**broken(), "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": "9" * 1_000_000}}}},
    "many roles": {**good(), "spec": {"pytorchReplicaSpecs": {f"R{n}": {"replicas": n} for n in range(20_000)}}},
    "large numbers": {
        **good(),
        "spec": {"nprocPerNode": 10**4000, "pytorchReplicaSpecs": {"Worker": {"replicas": -1}}},
    },
    "wrong types": {"apiVersion": 7, "kind": "PyTorchJob", "metadata": [], "spec": "x"},
    "no metadata": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"},
    "control characters": {**broken(), "metadata": {"name": 'a\x1b[2J\n{"event":"forged"}\r\n::error::\u202e\ud800'}},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("webhook")
    with webhook(folder, "--on-failure", "refuse", "--concurrency", "1", path_token=PATH_TOKEN) as found:
        yield found
        assert PATH_TOKEN not in json.dumps(found.lines)


def test_the_good_job_is_admitted_and_the_broken_one_refused(served: Served) -> None:
    assert served.admit(review(good()))["allowed"] is True
    refused = served.admit(review(broken()))
    assert refused["allowed"] is False and refused["uid"] == UID
    assert "GPU001" in refused["status"]["message"] and "WLD001" in refused["status"]["message"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_objects_are_answered_in_time(served: Served, name: str) -> None:
    answer = served.admit(review(HOSTILE[name]), "?timeout=20s")
    assert answer["uid"] == UID
    said = json.dumps(answer, ensure_ascii=False)
    assert "\x1b" not in said and "\u202e" not in said and len(said) < 20_000
    assert served.process.poll() is None and not served.events("forged")


def test_a_body_above_the_limit_is_answered_by_the_policy(served: Served) -> None:
    answer = served.admit(review({**good(), "padding": "x" * (4 * 1024 * 1024)}))
    assert answer["allowed"] is False and "more than 4194304 bytes" in answer["status"]["message"]


@pytest.mark.parametrize("body", [b"", b"[" * 200_000, b"{}", b"\x00\xff"], ids=range(4))
def test_what_is_no_review_is_a_bad_request(served: Served, body: bytes) -> None:
    assert served.call("POST", served.path, body)[0] == 400
    assert served.call("GET", served.path)[0] == 405
    assert served.call("GET", "/nothing")[0] == 404


def test_a_silent_connection_ends(served: Served) -> None:
    context = ssl.create_default_context(cafile=str(served.chain))
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as silent,
    ):
        assert ends(silent)


def test_health_and_metrics(served: Served) -> None:
    served.admit(review(broken()))
    assert served.call("GET", "/healthz") == (200, b"ok\n")
    assert served.call("GET", "/readyz") == (200, b"ok\n")
    families = {
        family.name: family for family in text_string_to_metric_families(served.call("GET", "/metrics")[1].decode())
    }
    refused = [
        sample.value
        for sample in families["preflight_admission_reviews"].samples
        if sample.name.endswith("_total") and sample.labels == {"kind": "PyTorchJob", "result": "refused"}
    ]
    assert refused and refused[0] >= 1
    assert families["preflight_admission_seconds"].type == "histogram"
    # Nothing of an object becomes a label.
    assert all(
        len(str(label)) < 80 for family in families.values() for s in family.samples for label in s.labels.values()
    )


def test_every_decision_is_one_line_of_the_log(served: Served) -> None:
    served.admit(review(broken(), name="x\n{}"))
    until(lambda: served.events("decision")[-1]["name"] == "x\n{}")
    last = served.events("decision")[-1]
    assert last["allowed"] is False and last["rules"] == ["GPU001", "WLD001"]
    assert last["name"] == "x\n{}" and last["namespace"] == "team-a"


def test_a_process_that_is_killed_leaves_the_answer_to_the_policy_and_the_next_one_works(
    served: Served,
) -> None:
    slow = review(HOSTILE["many roles"])
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(served.admit(slow)))
    known = set(psutil.Process(served.process.pid).children(recursive=True))
    asking.start()
    until = time.monotonic() + 20
    started: set[psutil.Process] = set()
    while not started and time.monotonic() < until:
        started = set(psutil.Process(served.process.pid).children(recursive=True)) - known
    for process in started:
        process.kill()
    asking.join(30)
    assert started and answers[0]["allowed"] is False
    assert "could not check this object: its process ended" in answers[0]["status"]["message"]
    assert "GPU001" in served.admit(review(broken()))["status"]["message"]


def test_a_new_certificate_is_used_without_a_restart(served: Served, tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path, "renewed")
    old = served.chain.read_bytes()
    # A chain whose key has not arrived yet is not used.
    served.chain.write_bytes(chain.read_bytes())
    time.sleep(2.5)
    assert ssl.PEM_cert_to_DER_cert(old.decode()) == _presented(served.port)
    served.chain.with_suffix(".key").write_bytes(key.read_bytes())
    until(lambda: _presented(served.port) == ssl.PEM_cert_to_DER_cert(chain.read_text()))
    assert served.admit(review(good()))["allowed"] is True


def status(hook: Webhook, path: str, body: bytes) -> int:
    """The status of the answer to a request, without a server."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [(b"host", b"hook")]}
    anyio.run(hook.application(), scope, receive, send)
    return int(sent[0]["status"])


def test_only_who_knows_the_path_is_answered() -> None:
    token = PATH_TOKEN
    lines: list[dict[str, Any]] = []
    workers = Workers(Policy())
    hook = Webhook(workers, log=lambda **said: lines.append(said), path_token=token)
    try:
        for path in (
            "/admit",
            "/admit/",
            f"/admit/{token}x",
            f"/admit/{token[:-1]}",
            "/admit/\udcff",
            f"/admit/{token}/x",
        ):
            assert status(hook, path, review(broken())) == 404, path
        assert not lines
        # Not a review, so no process is needed to see that the path is the right one.
        assert status(hook, f"/admit/{token}", b"{}") == 400
        assert status(Webhook(workers, log=lambda **said: None), "/admit", b"{}") == 400
    finally:
        workers.close()
    assert token not in repr((lines, hook)) + hook.metrics.render().decode()


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [("short", 0o600, "found 5"), ("with/a-slash-0123456789", 0o600, "only letters"), ("x" * 20, 0o604, "chmod 600")],
)
def test_a_token_that_is_no_secret_path_is_refused(tmp_path: Path, text: str, mode: int, said: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    words = ["--certificate", "c", "--key", "k", "--no-cluster", "--path-token-file", str(file)]
    with pytest.raises(UsageError, match=said) as raised:
        command.main(words, standalone_mode=False)
    assert text not in str(raised.value)


def _presented(port: int) -> bytes:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=20))


@pytest.mark.parametrize(("on_failure", "allowed"), [("allow", True), ("refuse", False)])
def test_a_judgement_that_takes_too_long_is_ended(on_failure: str, allowed: bool) -> None:
    workers = Workers(Policy(on_failure=on_failure, deadline_s=0.01))
    lines: list[dict[str, Any]] = []
    hook = Webhook(workers, log=lambda **said: lines.append(said))
    try:
        # No process can even start in this time.
        content = anyio.run(hook.answer, review(broken()))
    finally:
        workers.close()
    assert content is not None
    response = json.loads(content)["response"]
    assert response["allowed"] is allowed and response["uid"] == UID
    assert "there was not enough time" in json.dumps(response)
    assert lines[-1]["trouble"] == "deadline"


@pytest.mark.parametrize(("timeout", "expected"), [("", 8.0), ("10s", 8.0), ("5s", 4.0), ("x", 8.0), ("0s", 0.2)])
def test_the_deadline_stays_below_that_of_the_api_server(timeout: str, expected: float) -> None:
    from preflight.services.admission.webhook import _deadline_s

    assert _deadline_s(8.0, timeout) == expected


def test_sigkill_leaves_no_process(served: Served) -> None:
    """The last test: it ends the webhook of this module."""
    children = [child.pid for child in psutil.Process(served.process.pid).children(recursive=True)]
    assert children
    served.process.kill()
    served.process.wait(10)
    assert all_gone(children, 20) == []

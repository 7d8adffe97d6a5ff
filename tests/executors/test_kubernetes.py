"""The Kubernetes executor on a STUB of the API (`kubernetes_stub.py`): pods are reached, created, deleted, or
explained."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from preflight._util.usage_error import UsageError
from preflight.agent.process import stat_of
from preflight.executors.base import ExecutorError, GatheredNodes, NodeRequest
from preflight.executors.bridge.kubernetes_side import explain_api_error, explain_exec_error, pod_facts, startup_problem
from preflight.executors.kubernetes import KubernetesExecutor, explain
from preflight.executors.kubernetes_pods import build_job, choose_source
from preflight.model.recording import Node, NodeRecord
from preflight.runner.session import open_fleet
from tests.executors.kubernetes_stub import Stub, api_server
from tests.executors.trial import no_bundle
from tests.waiting import until

pytestmark = pytest.mark.thorough

pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed: pip install kubernetes")

JOB = """\
# The nightly run.
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  namespace: train
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  template:
    metadata:
      labels: {app: train}
      annotations: {k8s.v1.cni.cncf.io/networks: rdma-net}
    spec:
      hostNetwork: true
      nodeSelector: {pool: gpu}
      tolerations:
        - {key: nvidia.com/gpu, operator: Exists}
      containers:
        - name: sidecar
          image: registry.example/log:1
        - name: trainer
          image: registry.example/train:1
          command: [torchrun, --nnodes=2, train.py]
          livenessProbe: {exec: {command: ["true"]}}
          resources: {limits: {nvidia.com/gpu: 8}}
          volumeMounts: [{name: shm, mountPath: /dev/shm}]
      volumes:
        - {name: shm, emptyDir: {medium: Memory}}
"""


@pytest.fixture
def stub() -> Iterator[Stub]:
    with api_server() as server:
        yield server


def job_pods(stub: Stub, count: int, name: str = "train") -> list[dict[str, Any]]:
    """The running pods of an Indexed Job, each on a node of its own."""
    pods = []
    stub.jobs[("train", name)] = {
        "metadata": {"name": name},
        "spec": {"completions": count, "parallelism": count, "completionMode": "Indexed", "template": {"spec": {}}},
    }
    for index in range(count):
        pod = stub.add_pod(f"{name}-{index}-x{index}x{index}x", node=f"gpu-{index}")
        pod["metadata"]["labels"] = {"job-name": name}
        pod["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
        pods.append(pod)
    return pods


def executor(stub: Stub, folder: Path, **options: str) -> KubernetesExecutor:
    config = stub.write_kubeconfig(folder / "kubeconfig")
    return KubernetesExecutor().configured({"kubeconfig": str(config), **options})


def open_records(
    chosen: KubernetesExecutor, *, deadline_s: float = 15.0, wanted: NodeRequest | None = None
) -> tuple[NodeRecord, ...]:
    """The record of each gathered node."""

    async def main() -> tuple[NodeRecord, ...]:
        try:
            gathered = await chosen.gather(wanted or NodeRequest(deadline_s=20.0))
        except BaseException:
            await chosen.aclose()
            raise
        assert gathered is not None
        async with open_fleet(chosen, gathered.nodes, deadline_s=deadline_s) as fleet:
            return fleet.records

    return anyio.run(main)


def gathered(chosen: KubernetesExecutor, wanted: NodeRequest | None = None) -> GatheredNodes:
    async def main() -> GatheredNodes:
        try:
            found = await chosen.gather(wanted or NodeRequest(deadline_s=20.0))
        finally:
            await chosen.aclose()
        assert found is not None
        return found

    return anyio.run(main)


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
def test_every_pod_answers_and_no_process_remains(stub: Stub, tmp_path: Path, protocol: str) -> None:
    stub.protocols = (protocol,)
    job_pods(stub, 4)
    records = open_records(executor(stub, tmp_path, job="train"))
    assert [record.problem for record in records] == [""] * 4
    assert [record.node.name for record in records] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert [record.node.address for record in records] == [f"train-{i}-x{i}x{i}x" for i in range(4)]
    started = [process for processes in stub.processes.values() for process in processes]
    assert len(started) == 4
    until(lambda: all(process.poll() is not None for process in started))
    assert [process.poll() for process in started] == [0] * 4


def test_a_selector_finds_pods_over_several_pages(stub: Stub, tmp_path: Path) -> None:
    for index in range(8):
        stub.add_pod(f"w-{index}", node=f"n{index}")["metadata"]["labels"] = {"app": "train" if index < 7 else "other"}
    found = gathered(executor(stub, tmp_path, selector="app=train"))
    assert [node.name for node in found.nodes] == [f"n{index}" for index in range(7)]
    assert found.source == "pods of app=train in namespace train of context stub"


def test_pods_that_share_a_node_keep_their_names(stub: Stub, tmp_path: Path) -> None:
    for role, index, node in (("worker", 10, "a"), ("worker", 2, "a"), ("master", 0, "b")):
        pod = stub.add_pod(f"ptj-{role}-{index}", node=node)
        pod["metadata"]["labels"] = {
            "training.kubeflow.org/job-name": "ptj",
            "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": str(index),
        }
    found = gathered(executor(stub, tmp_path, job="ptj"))
    assert [node.name for node in found.nodes] == ["b", "ptj-worker-2", "ptj-worker-10"]
    assert [node.address for node in found.nodes] == ["ptj-master-0", "", ""]


def test_reason_why_a_pod_does_not_run_is_reported(stub: Stub, tmp_path: Path) -> None:
    running, unplaced, unpulled, ended, _ = job_pods(stub, 5)
    assert running["status"]["phase"] == "Running"
    message = "0/8 nodes are available: 8 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    unplaced["status"] = {"phase": "Pending", "conditions": [condition]}
    unplaced["spec"].pop("nodeName")
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.example/train:1"'}
    unpulled["status"]["phase"] = "Pending"
    unpulled["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
    ended["status"] = {"phase": "Failed", "reason": "Evicted", "message": "low on resource: memory"}
    del stub.pods[("train", "train-4-x4x4x")]
    problems = {
        r.node.name: (r.problem_kind, r.problem)
        for r in open_records(executor(stub, tmp_path, job="train"), deadline_s=3.0)
    }
    assert problems["gpu-0"] == ("", "")
    kind, words = problems["train-1-x1x1x"]
    assert kind == "blocked" and words.startswith("train-1-x1x1x: ") and message in words
    kind, words = problems["gpu-2"]
    assert kind == "missing" and "trainer (registry.example/train:1): ImagePullBackOff: Back-off" in words
    kind, words = problems["gpu-3"]
    assert kind == "unreachable" and "Evicted low on resource: memory" in words
    assert problems["train-4"] == ("missing", "train-4: no pod has index 4: the Job has not created the pod")


def test_a_pod_that_starts_late_is_waited_for(stub: Stub, tmp_path: Path) -> None:
    (pod,) = job_pods(stub, 1)
    running = pod["status"]
    pod["status"] = {"phase": "Pending"}

    async def main() -> str:
        chosen = executor(stub, tmp_path, job="train")
        found = await chosen.gather(NodeRequest(deadline_s=20.0))
        assert found is not None

        async def start() -> None:
            await anyio.sleep(0.6)
            pod["status"] = running

        async with anyio.create_task_group() as group:
            group.start_soon(start)
            async with open_fleet(chosen, found.nodes, deadline_s=8.0) as fleet:
                return fleet.records[0].problem

    assert anyio.run(main) == ""


@pytest.mark.parametrize(
    ("forbidden", "words"),
    [
        (("list", "pods"), "--verb=list --resource=pods"),
        (("create", "jobs"), "--verb=create --resource=jobs.batch"),
    ],
)
def test_permission_error_names_the_grant(stub: Stub, tmp_path: Path, forbidden: tuple[str, str], words: str) -> None:
    stub.forbidden.add(forbidden)
    (tmp_path / "job.yaml").write_text(JOB)
    options = {"manifest": str(tmp_path / "job.yaml"), "create": "yes"} if "jobs" in forbidden else {"job": "train"}
    with pytest.raises(ExecutorError) as caught:
        gathered(executor(stub, tmp_path, **options))
    assert caught.value.kind == "denied"
    assert words in caught.value.message and "-n train" in caught.value.message


def test_denied_exec_is_reported_for_each_node(stub: Stub, tmp_path: Path) -> None:
    job_pods(stub, 2)
    stub.forbidden.add(("create", "pods/exec"))
    records = open_records(executor(stub, tmp_path, job="train"))
    for record in records:
        assert record.problem_kind == "denied"
        assert 'cannot create resource "pods/exec"' in record.problem
        assert "--verb=create --resource=pods/exec" in record.problem


def test_expired_login_is_reported(stub: Stub, tmp_path: Path) -> None:
    config = stub.write_kubeconfig(tmp_path / "kubeconfig", token="old")
    with pytest.raises(ExecutorError, match="the credentials are missing or have expired") as caught:
        gathered(KubernetesExecutor().configured({"kubeconfig": str(config), "job": "train"}))
    assert caught.value.kind == "denied"


def test_unreachable_api_server_is_reported(stub: Stub, tmp_path: Path) -> None:
    stub.silent = "/api"
    with pytest.raises(ExecutorError, match="did not list the pods within 2 s") as caught:
        gathered(executor(stub, tmp_path, job="train"), NodeRequest(deadline_s=2.0))
    assert caught.value.kind == "timeout"
    config = stub.write_kubeconfig(tmp_path / "gone")
    config.write_text(config.read_text().replace(stub.url, "http://127.0.0.1:9"))
    with pytest.raises(ExecutorError, match="Connection refused") as caught:
        gathered(KubernetesExecutor().configured({"kubeconfig": str(config), "job": "train"}))
    assert caught.value.kind == "unreachable"


def test_cut_connection_loses_the_node_and_ends_its_processes(stub: Stub, tmp_path: Path) -> None:
    job_pods(stub, 2)

    async def main() -> tuple[NodeRecord, ...]:
        chosen = executor(stub, tmp_path, job="train")
        found = await chosen.gather(NodeRequest(deadline_s=20.0))
        assert found is not None
        async with open_fleet(chosen, found.nodes, deadline_s=15.0) as fleet:
            stub.cut("train-1-x1x1x")
            with anyio.fail_after(15):
                while not fleet.records[1].problem:
                    await anyio.sleep(0.05)
            (process,) = stub.processes["train-1-x1x1x"]
            with anyio.fail_after(15):
                while process.poll() is None:
                    await anyio.sleep(0.05)
            return fleet.records

    first, second = anyio.run(main)
    assert first.problem == ""
    assert second.problem.startswith("gpu-1 was lost")


def test_own_pods_are_created_and_deleted(stub: Stub, tmp_path: Path) -> None:
    for name, gpus in (("cpu-1", 0), ("gpu-1", 8), ("gpu-2", 8)):
        stub.add_node(name, gpus=gpus, taint="nvidia.com/gpu" if gpus else "")
    (tmp_path / "job.yaml").write_text(JOB)
    chosen = executor(stub, tmp_path, manifest=str(tmp_path / "job.yaml"), create="yes")
    notes: list[str] = []
    records = open_records(chosen, wanted=NodeRequest(deadline_s=24.0, on_note=notes.append))
    assert [(record.node.name, record.problem) for record in records] == [("gpu-1", ""), ("gpu-2", "")]
    assert any("2 of 2 pods" in note for note in notes)
    assert stub.jobs == {} and stub.pods == {} and stub.processes == {}


def test_each_unschedulable_pod_is_reported(stub: Stub, tmp_path: Path) -> None:
    stub.add_node("gpu-1", gpus=8)
    (tmp_path / "job.yaml").write_text(JOB)
    chosen = executor(stub, tmp_path, manifest=str(tmp_path / "job.yaml"), create="yes")
    records = open_records(chosen, deadline_s=3.0, wanted=NodeRequest(deadline_s=60.0))
    assert records[0].problem == "" and records[0].node.name == "gpu-1"
    assert records[1].problem_kind == "blocked"
    assert "Insufficient nvidia.com/gpu" in records[1].problem
    assert stub.jobs == {} and stub.pods == {}


HEAD = """
import sys
import anyio
from pathlib import Path
from shipped import SHIPPED
from preflight.executors.base import NodeRequest
from preflight.executors.kubernetes import KubernetesExecutor
from preflight.runner.session import open_fleet
from tests.executors.trial import SHIPPED
from preflight.agent.wire import AgentRequest, Context

async def main():
    executor = KubernetesExecutor().configured({"kubeconfig": sys.argv[1], "manifest": sys.argv[2], "create": "yes"})
    gathered = await executor.gather(NodeRequest(deadline_s=30))
    async with open_fleet(executor, gathered.nodes, deadline_s=30, extra=SHIPPED) as fleet:
        for session in fleet.sessions.values():
            context = Context(sys.executable, environment={"RUN": "cloud"})
            request = AgentRequest(0, "shipped.probes:stubborn", {}, 60.0, context)
            session.start(request, lambda event: print(event, flush=True))
        print("pids", *(session.ready.pid for session in fleet.sessions.values()), flush=True)
        await anyio.sleep(60)

anyio.run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_killed_head_leaves_no_pod_and_no_process(stub: Stub, tmp_path: Path, number: signal.Signals) -> None:
    for name in ("gpu-1", "gpu-2"):
        stub.add_node(name, gpus=8)
    (tmp_path / "job.yaml").write_text(JOB)
    config = stub.write_kubeconfig(tmp_path / "kubeconfig")
    shipped = Path(__file__).parents[1] / "agent"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(shipped)])}
    command = [sys.executable, "-c", HEAD, str(config), str(tmp_path / "job.yaml")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as head:
        assert head.stdout is not None
        try:
            line = next(line for line in head.stdout if line.startswith("pids"))
            pids = [int(word) for word in line.split()[1:]]
            assert len(pids) == 2 and all(stat_of(pid) for pid in pids)
            head.send_signal(number)
            until(lambda: not stub.jobs and not any(stat_of(pid) for pid in pids))
        finally:
            head.kill()


def test_own_pods_resemble_the_jobs_without_its_services() -> None:
    source = choose_source(JOB, "")
    made = build_job(source, source.roles[0], name="preflight-1", namespace="train", count=2, lifetime_s=60)
    pod = made["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["name"] == "trainer" and container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert container["command"][0] == "/bin/sh" and "livenessProbe" not in container
    assert pod["spec"]["hostNetwork"] is True and pod["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert pod["spec"]["volumes"] and container["volumeMounts"]
    assert "app" not in pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "rdma-net"}
    assert made["spec"]["activeDeadlineSeconds"] == 60 and made["spec"]["ttlSecondsAfterFinished"] > 0
    assert made["spec"]["backoffLimit"] == 0 and pod["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "the pods are unknown"),
        ({"create": "yes"}, "manifest=FILE"),
        ({"create": "yes", "manifest": __file__, "job": "train"}, "job selects existing pods"),
        ({"manifest": __file__}, "is not valid YAML"),
    ],
)
def test_user_errors_are_reported_as_such(stub: Stub, tmp_path: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        gathered(executor(stub, tmp_path, **options))


def test_the_pods_of_the_job_it_runs_in_are_found(stub: Stub, tmp_path: Path) -> None:
    job_pods(stub, 2)
    own = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "train-0"}
    chosen = executor(stub, tmp_path)
    assert "JOB_COMPLETION_INDEX=0" in chosen.detect(own)
    assert chosen.detect({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == ""
    found = gathered(chosen, NodeRequest(deadline_s=20.0, environment=own))
    assert found.source.startswith("pods of job train, in one of whose pods preflight runs")


def test_python_without_the_client_is_reported(stub: Stub, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nshift; exec {sys.executable} -I -S -u "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(ExecutorError, match=r"pip install 'preflight-train\[kubernetes\]'") as caught:
        gathered(executor(stub, tmp_path, job="train", interpreter=str(bare)))
    assert caught.value.kind == "missing"


def test_unknown_container_is_reported_with_the_known_ones(stub: Stub, tmp_path: Path) -> None:
    job_pods(stub, 1)
    (record,) = open_records(executor(stub, tmp_path, job="train", container="main"))
    assert record.problem_kind == "missing" and "it has trainer" in record.problem


def test_invalid_pod_name_is_not_requested(stub: Stub, tmp_path: Path) -> None:
    chosen = executor(stub, tmp_path)

    async def main() -> None:
        with pytest.raises(ExecutorError, match="is not a valid pod name"):
            await chosen.open(Node("../nodes", 0), deadline_s=2.0, bundle=no_bundle)

    anyio.run(main)
    assert stub.log == []


def test_failing_init_container_is_reported() -> None:
    pod = pod_facts({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}, "status": {}})
    assert startup_problem(pod, "") == ("timeout", "the pod is Pending: no reason given", False)


@pytest.mark.parametrize(
    ("code", "words", "kind", "message"),
    [
        (98, "preflight-no-python: python3", "missing", "no Python >= 3.8 in the image of p: tried python3"),
        (127, "sh: not found", "crashed", "exit code 127"),
        (None, 'exec: "/bin/sh": executable file not found in $PATH', "missing", "no /bin/sh"),
        (None, "", "timeout", "did not start the agent within 5 s"),
        (None, "broken pipe", "unreachable", "ended before the agent responded"),
        (137, "", "crashed", "exit code 137"),
    ],
)
def test_start_failures_are_explained(code: int | None, words: str, kind: str, message: str) -> None:
    error = explain("n1", "p", code, words, deadline_s=5)
    assert error.kind == kind and message in error.message and error.message.startswith("n1: "), error.message


def test_rejected_handshake_is_explained() -> None:
    status = json.dumps({"kind": "Status", "message": 'container not found ("trainer")', "code": 500})
    said = f"Handshake status 500 Internal Server Error -+-+- {{'date': 'x'}} -+-+- {status.encode()!r}"
    trouble = explain_exec_error("p", said)
    assert trouble.kind == "unreachable" and 'container not found ("trainer")' in trouble.message
    assert explain_api_error("x", 404, "").kind == "missing"


def test_survey_lists_denied_requests(stub: Stub, tmp_path: Path) -> None:
    stub.add_node("gpu-0", gpus=8)
    stub.add_node("gpu-9", gpus=8, ready=False, taint="nvidia.com/gpu")
    (pod,) = job_pods(stub, 1)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "3"}, "requests": {"cpu": "500m"}}
    cluster = gathered(executor(stub, tmp_path, job="train")).cluster
    assert cluster is not None and cluster.unknown == ()
    first, second = cluster.nodes
    assert first.has == {"cpu": 8.0, "memory": 32.0 * 1024**3, "pods": 110.0, "nvidia.com/gpu": 8.0}
    assert first.free == {"cpu": 7.5, "memory": 32.0 * 1024**3, "pods": 110.0, "nvidia.com/gpu": 5.0}
    assert first.closed == "" and second.closed == "it is not ready: kubelet said so"
    stub.forbidden.add(("list", "nodes"))
    cluster = gathered(executor(stub, tmp_path, job="train")).cluster
    assert cluster is not None and cluster.nodes == ()
    assert "--verb=list --resource=nodes" in cluster.unknown[0] and "clusterrole" in cluster.unknown[0]


def test_error_body_in_bytes_is_decoded(stub: Stub, tmp_path: Path) -> None:
    """The client's error contains the server's answer as bytes up to version 31, and as text since."""
    from preflight.executors.bridge.kubernetes_side import KubernetesBridgeServer
    from preflight.executors.bridge.mux import BridgeError

    config = stub.write_kubeconfig(tmp_path / "kubeconfig")
    side = KubernetesBridgeServer()
    side.do_connect(str(config), "")

    def refuse(**_: Any) -> None:
        from kubernetes.client.rest import ApiException

        error = ApiException(status=403, reason="Forbidden")
        error.body = b'{"message": "cannot list resource \\"pods\\" in API group \\"\\" in the namespace \\"a\\""}'
        raise error

    with pytest.raises(BridgeError, match="--verb=list --resource=pods"):
        side._call("list pods", refuse)


@pytest.mark.parametrize("content", ["", "{", "a: [", "apiVersion: v1\nkind: Config\n", "contexts: 7\n"])
def test_invalid_kubeconfig_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / "kubeconfig").write_text(content)
    options = {"kubeconfig": str(tmp_path / "kubeconfig"), "job": "train"}
    with pytest.raises(ExecutorError, match="no cluster is configured here") as caught:
        gathered(KubernetesExecutor().configured(options))
    assert caught.value.kind == "missing" and "Traceback" not in caught.value.message


def test_unknown_context_is_reported(stub: Stub, tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match="no cluster is configured here"):
        gathered(executor(stub, tmp_path, job="train", context="elsewhere"))


def test_own_job_is_found_by_labels_and_owners(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from preflight.executors.bridge import kubernetes_side

    pod = stub.add_pod("ptj-worker-1", node="n")
    pod["metadata"]["labels"] = {"training.kubeflow.org/job-name": "ptj", "app": "x"}
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "r"}, {"kind": "Job", "name": "j"}]
    side = kubernetes_side.KubernetesBridgeServer()
    side.do_connect(str(stub.write_kubeconfig(tmp_path / "kubeconfig")), "")
    assert side.do_own("train") == []
    monkeypatch.setattr(kubernetes_side, "_own_namespace", lambda: "train")
    monkeypatch.setenv("HOSTNAME", "ptj-worker-1")
    assert side.do_own("train") == ["ptj", "j"]
    stub.forbidden.add(("get", "pods"))
    assert side.do_own("train") == []


def test_job_named_by_trusted_files_is_found(stub: Stub, tmp_path: Path) -> None:
    from preflight.config.resolve import jobs_in

    (tmp_path / "job.yaml").write_text(JOB.replace("namespace: train", "namespace: ml"))
    jobs = jobs_in([tmp_path / "job.yaml"], root=tmp_path)
    for where in ("ml", "train"):
        pod = stub.add_pod(f"{where}-0", node=f"node-{where}", namespace=where)
        pod["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "train"}
    found = gathered(executor(stub, tmp_path), NodeRequest(jobs, trust_job=True, deadline_s=20.0))
    assert [node.name for node in found.nodes] == ["node-ml"]
    assert found.source == "pods of job train in namespace ml of context stub"
    with pytest.raises(UsageError, match="pass --trust-job to use its pods"):
        gathered(executor(stub, tmp_path), NodeRequest(jobs, deadline_s=20.0))

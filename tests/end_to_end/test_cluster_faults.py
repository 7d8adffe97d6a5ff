"""Faults of clusters that are reached through their own API, found by the command line.

Ray is real; Kubernetes is a STUB of its API server (tests/executors/kubernetes_stub.py) whose pods are virtual nodes.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.end_to_end.head_command import HARD_LIMIT_S, ROOT, Checked, collect, give_shards, write_job
from tests.executors.kubernetes_stub import Stub, api_server
from tests.executors.ray_cluster import RayNodes, ray_cluster
from tests.executors.test_conformance_kubernetes import listening_in

pytestmark = pytest.mark.thorough
_CONFIG = "/run/kubeconfig"
_PATHS = ":".join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules"))
needs_kubernetes = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes") is None, reason="the Kubernetes client is not installed"
)
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


def checked(cluster: Cluster, job: Path, *options: str, environment: dict[str, str] | None = None) -> Checked:
    """Run a check on the head with the executor's own nodes, and judge its recording again here."""
    command = [
        *(sys.executable, "-m", "preflight", "check", str(job), "--trust-job", "--python", sys.executable),
        *("--save", str(job.parent / "recording.json"), "--output", f"json:{job.parent / 'report.json'}"),
        *("--output", "text", "--until", "node", *options),
    ]
    environment = {"PYTHONPATH": _PATHS, **(environment or {})}
    done = cluster.head.run(command, env=environment, cwd=str(ROOT), timeout=HARD_LIMIT_S)
    return collect(job, done.returncode, done.stdout, done.stderr)


def errors(found: Checked) -> set[tuple[str, str]]:
    """Every error-level finding, with the node it names."""
    return {(f["id"], ",".join(f["nodes"])) for f in found.report["findings"] if f["severity"] == "error"}


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Path:
    give_shards(cluster.nodes)
    return write_job(tmp_path)


@contextmanager
def pods(cluster: Cluster) -> Iterator[Stub]:
    """Four pods of the job `train`, each on a virtual node."""

    def start(pod: str, command: list[str]) -> subprocess.Popen[Any]:
        return cluster.node(pod.replace("train-", "node")).popen(command, stdin=subprocess.PIPE)

    with api_server(listening_in(cluster.head.pid), start=start) as stub:
        for index, node in enumerate(cluster.nodes, start=1):
            pod = stub.add_pod(f"train-{index}", node=node.name)
            pod["metadata"]["labels"] = {"job-name": "train"}
        stub.write_kubeconfig(cluster.head.path(_CONFIG))
        yield stub


_ON = ("--on", "kubernetes", "--on-option", f"kubeconfig={_CONFIG}", "--on-option", "job=train")


@needs_kubernetes
def test_healthy_pods_give_no_finding(cluster: Cluster, job: Path) -> None:
    with pods(cluster):
        found = checked(cluster, job, *_ON)
    assert found.code == 0, found.text
    assert [record.host for record in found.recording.nodes] == ["node1", "node2", "node3", "node4"]
    assert {f["id"] for f in found.report["findings"] if f["severity"] != "info"} == set(), found.text


@needs_kubernetes
def test_pending_pod_is_reported_with_the_schedulers_message(cluster: Cluster, job: Path) -> None:
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    with pods(cluster) as stub:
        pod = stub.pods[("train", "train-3")]
        pod["status"] = {"phase": "Pending", "conditions": [condition]}
        del pod["spec"]["nodeName"]
        found = checked(cluster, job, *_ON, "--open-deadline", "4")
    assert found.code == 1 and errors(found) == {("NOD001", "train-3")}, found.text
    finding = found.only("NOD001")
    assert message in finding["message"] and "kubectl describe pod train-3" in finding["remedy"]


@needs_kubernetes
def test_denied_exec_names_the_missing_grant(cluster: Cluster, job: Path) -> None:
    with pods(cluster) as stub:
        stub.forbidden.add(("create", "pods/exec"))
        found = checked(cluster, job, *_ON)
    assert found.code == 1, found.text
    assert {id for id, _ in errors(found)} == {"NOD001"}
    said = " ".join(f["message"] for f in found.found("NOD001"))
    assert "--verb=create --resource=pods/exec" in said
    assert all(name in said for name in ("node1", "node4"))


@needs_kubernetes
def test_denied_pod_list_is_reported(cluster: Cluster, job: Path) -> None:
    with pods(cluster) as stub:
        stub.forbidden.add(("list", "pods"))
        found = checked(cluster, job, *_ON)
    assert found.code == 3 and errors(found) == set(), found.text
    assert found.recording.origin is not None and found.recording.origin.problem_kind == "denied"
    assert "--verb=list --resource=pods" in found.recording.origin.problem


@pytest.fixture(scope="module")
def ray(cluster: Cluster) -> Iterator[RayNodes]:
    with ray_cluster(cluster, workers=cluster.nodes) as running:
        yield running


@needs_ray
@pytest.mark.thorough
def test_a_ray_node_that_died_is_named(cluster: Cluster, job: Path, ray: RayNodes) -> None:
    environment = {**ray.environment, "RAY_ADDRESS": ray.address}
    healthy = checked(cluster, job, "--open-deadline", "30", environment=environment)
    assert healthy.code == 0, healthy.text
    assert healthy.recording.executor == "ray"
    ray.kill_raylet(cluster.node("node3"))
    found = checked(cluster, job, "--open-deadline", "30", environment=environment)
    assert found.code == 1 and errors(found) == {("NOD001", "node3")}, found.text
    assert "Ray lost it" in found.only("NOD001")["message"]

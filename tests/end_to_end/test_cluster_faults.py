"""Faults of clusters that are reached through their own API, found by the command line.

Ray is real; Kubernetes is a STUB of its API server (tests/executors/kubernetes_stub.py) whose pods are virtual nodes.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, Gpu, Gpus, Node, faults
from tests.cluster.faults.devices import gpu_config
from tests.cluster.faults.services import sshd_stopped
from tests.end_to_end.head_command import (
    HARD_LIMIT_S,
    JOB,
    ROOT,
    THIS_CHECKOUT,
    Checked,
    check,
    collect,
    give_shards,
    write_job,
)
from tests.executors.kubernetes_stub import Stub, api_server
from tests.executors.ray_cluster import RayNodes, ray_cluster
from tests.executors.test_conformance_kubernetes import listening_in
from tests.ports import free_port

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


# If a node does not answer, the smoke run does not continue without it. Other faults: `tests/fault_matrix`.


def test_smoke_run_requires_all_nodes(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.sshd_stopped(cluster.node("node4")):
        checked = check(cluster, job)
    assert checked.only("NOD001")["nodes"] == ["node4"]
    assert checked.code == 1
    smoke = [stage for stage in checked.recording.stages if stage.name == "smoke"]
    assert "node4" in smoke[0].skipped


# Culprits that neither ranks nor link checks can name: smaller groups are tried, and the pace of ranks is compared.


#: The ranks run in this Unix group and the probes of the link stage do not, so a filter can distinguish them.
GROUP = 4242
PYTHON = "/srv/python-of-the-job"


@contextmanager
def ranks_in_a_group(nodes: list[Node], python: str) -> Iterator[str]:
    """An interpreter that runs in `GROUP` on every node."""
    for node in nodes:
        node.write_text(PYTHON, f'#!/bin/sh\nexec setpriv --regid={GROUP} --clear-groups {python} "$@"\n')
        node.must(["chmod", "755", PYTHON])
    yield PYTHON


def run(cluster: Cluster, warm: str, folder: Path, *pairs: tuple[str, str]) -> Checked:
    """Run a check while the ranks' packets from one node of each pair to the other are dropped."""
    give_shards(cluster.nodes)
    job = write_job(folder)
    with ExitStack() as undo:
        python = undo.enter_context(ranks_in_a_group(cluster.nodes, warm))
        for a, b in pairs:
            undo.enter_context(faults.drop_of_group(cluster.node(a), GROUP, cluster.node(b)))
            undo.enter_context(faults.drop_of_group(cluster.node(b), GROUP, cluster.node(a)))
        return check(cluster, job, python=python)


def test_pair_of_nodes_that_hangs_is_found_by_bisection(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    checked = run(cluster, warm, tmp_path, ("node2", "node3"))
    finding = checked.only("SMK001")
    assert sorted(finding["nodes"]) == ["node2", "node3"], checked.text
    assert "hang together, but each of them works with another node" in finding["message"]
    assert not checked.found("LNK001")


def test_node_that_hangs_with_all_others_is_found_by_bisection(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    checked = run(cluster, warm, tmp_path, ("node4", "node2"), ("node4", "node3"))
    finding = checked.only("SMK001")
    assert "node4" in finding["nodes"], checked.text
    assert "smaller groups tried" in finding["message"]


@pytest.mark.alone
def test_a_node_with_part_of_a_core_is_named_as_a_straggler(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.cpu_quota(cluster.node("node3"), 0.3):
        checked = check(cluster, job)
    waits = [
        window["waited"] - window["held_back"]
        for record in checked.recording.facts
        if record.value and record.request.group.startswith("smoke") and record.request.node != "node3"
        for window in record.value["windows"]
    ]
    if statistics.median(waits) > 0.6:
        pytest.skip("so much else runs on this machine that no rank gets more than the quota")
    finding = checked.only("SMK005")
    assert finding["nodes"] == ["node3"] and finding["severity"] == "warning", checked.text
    assert "times as long as the median rank" in finding["message"]
    assert "quota held it back" in finding["message"]


# Errors stop the smoke run, unless they are suppressed in the file or --keep-going is set.


GATE_JOB = """\
torchrun --nnodes=2 --nproc_per_node=1 --node_rank="$NODE_RANK" --master_addr=localhost --master_port={} train.py{}
"""


@pytest.mark.parametrize(
    ("comment", "options", "skipped"),
    [
        ("", [], True),
        ("  # preflight: ignore[RDV001] both nodes are this machine", [], False),
        ("", ["--keep-going"], False),
    ],
    ids=["error", "suppressed", "kept going"],
)
def test_errors_stop_the_smoke_run(tmp_path: Path, comment: str, options: list[str], skipped: bool) -> None:
    (tmp_path / "run.sh").write_text(GATE_JOB.format(free_port(), comment))
    (tmp_path / "train.py").write_text("print('nothing distributed here')\n")
    # An interpreter that ends at once: the test is whether ranks are started, not what they do.
    command = [sys.executable, "-m", "preflight", "check", str(tmp_path / "run.sh"), "--on", "local"]
    report = tmp_path / "report.json"
    subprocess.run(
        [*command, "--python", "/bin/false", "--select", "RDV", "--select", "SMK", *options, "-o", f"json:{report}"],
        cwd=ROOT,
        timeout=60,
        check=False,
        capture_output=True,
    )
    stages = {stage["name"]: stage["skipped"] for stage in json.loads(report.read_text())["run"]["stages"]}
    assert bool(stages["smoke"]) is skipped
    if skipped:
        assert "RDV001" in stages["smoke"]


# `preflight nodes` over virtual nodes with GPUs: the node that differs is named, and the others are not.


def examined(cluster: Cluster, folder: Path, *options: str) -> Checked:
    """Run the command on the head over all nodes, and judge its recording again here."""
    command = [
        *(sys.executable, "-m", "preflight", "nodes", "--hosts", "node[1-4]"),
        *("--save", str(folder / "recording.json"), "--output", f"json:{folder / 'report.json'}", "--output", "text"),
        *options,
    ]
    done = cluster.head.run(command, cwd=str(ROOT), env=THIS_CHECKOUT, timeout=HARD_LIMIT_S)
    return collect(folder / "nodes", done.returncode, done.stdout, done.stderr)


def nodes_errors(found: Checked) -> set[tuple[str, str]]:
    """Every error, with the node it names."""
    return {(f["id"], ",".join(f["nodes"])) for f in found.report["findings"] if f["severity"] == "error"}


def test_equal_nodes_are_a_go_with_all_pairs_of_links(gpu_cluster: Cluster, tmp_path: Path) -> None:
    found = examined(gpu_cluster, tmp_path, "--expect", "gpus=2", "--golden", "node1")
    assert found.code == 0, found.text
    passed: dict[str, Any] = {o["id"]: o for o in found.report["outcomes"] if o["status"] == "pass"}
    # GPUs, machines and links were all judged without a job.
    assert {"NOD001", "NOD005", "GPU011", "SYS001", "LNK001"} <= set(passed), sorted(passed)
    assert found.text.rstrip().endswith("; 4 nodes")


def test_a_node_with_a_missing_gpu_is_named(gpu_cluster: Cluster, tmp_path: Path) -> None:
    with gpu_config(gpu_cluster.node("node3"), Gpus((Gpu(),))):
        found = examined(gpu_cluster, tmp_path, "--until", "node", "--expect", "gpus=2")
    assert ("NOD005", "node3") in nodes_errors(found) and {node for _, node in nodes_errors(found)} == {"node3"}, (
        found.text
    )


def test_a_node_with_another_driver_differs_from_the_golden_one(gpu_cluster: Cluster, tmp_path: Path) -> None:
    with gpu_config(gpu_cluster.node("node2"), Gpus((Gpu(), Gpu()), driver_version="525.60.13")):
        found = examined(gpu_cluster, tmp_path, "--until", "node", "--golden", "node1")
    assert nodes_errors(found) == {("NOD005", "node2")}, found.text
    assert "driver of node2 is 525.60.13, but `--golden node1` requires 535.183.01" in found.only("NOD005")["message"]


def test_a_node_agrees_with_its_own_recording(gpu_cluster: Cluster, tmp_path: Path) -> None:
    examined(gpu_cluster, tmp_path, "--until", "node")
    (tmp_path / "recording.json").rename(tmp_path / "golden.json")
    found = examined(gpu_cluster, tmp_path, "--until", "node", "--golden", f"{tmp_path / 'golden.json'}:node4")
    assert nodes_errors(found) == set(), found.text
    judged = [o for o in json.loads((tmp_path / "report.json").read_text())["outcomes"] if o["id"] == "NOD005"]
    assert {o["status"] for o in judged} == {"pass"}


def test_a_silent_node_is_a_no_go_that_names_it_once(gpu_cluster: Cluster, tmp_path: Path) -> None:
    with sshd_stopped(gpu_cluster.node("node4")):
        found = examined(gpu_cluster, tmp_path, "--until", "node", "--expect", "gpus=2")
    assert nodes_errors(found) == {("NOD001", "node4")}, found.text


# Transport counters on virtual nodes with two networks: a wrong route is found by its bytes.


@contextmanager
def routed_over_management(cluster: Cluster, name: str) -> Iterator[None]:
    """This node sends to the others' data addresses over the management network."""
    node = cluster.node(name)
    others = [other for other in cluster.nodes if other.name != name]
    ways = [[f"{other.data_address}/32", "via", other.management_address, "dev", "eth1"] for other in others]
    for way in ways:
        node.must(["ip", "route", "add", *way, "src", node.data_address])
    try:
        yield
    finally:
        for way in ways:
            node.must(["ip", "route", "del", *way])


def test_bytes_that_leave_over_the_management_network_are_found(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    give_shards(cluster.nodes)
    with routed_over_management(cluster, "node3"):
        checked = check(cluster, write_job(tmp_path), python=warm)
    finding = checked.only("SMK013")
    assert finding["nodes"] == ["node3"], checked.text
    assert "eth1 of node3 sent" in finding["message"] and "GLOO_SOCKET_IFNAME=eth0 chooses it" in finding["message"]


SHARDING = """\
import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--data-path")
parser.parse_args()
dist.init_process_group("gloo")
model = fully_shard(torch.nn.Linear(8, 8))
"""


def test_sharded_job_runs_with_two_ranks_per_node(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    give_shards(cluster.nodes)
    job = JOB.replace("--nnodes=4", "--nnodes=2").replace("--nproc_per_node=1", "--nproc_per_node=2")
    checked = check(cluster, write_job(tmp_path, job, SHARDING), "--hosts", "node[1-2]")
    subjects = {o["id"]: o["subject"] for o in checked.report["outcomes"] if o["status"] == "pass"}
    assert "4 ranks on 2 nodes, gloo (2 ranks per node, as the job starts them" in subjects["SMK001"], checked.text
    assert "equal on 4 ranks with fully_shard" in subjects["SMK003"]
    assert "SMK002" in subjects

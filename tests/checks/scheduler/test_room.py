"""Room for a whole job: the requests of a manifest, compared with the scheduler's list of nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Job
from preflight.model.recording import Cluster, ClusterNode, Facts, Fleet
from preflight.sources.base import SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.kubernetes.workloads import KubernetesSource
from preflight_checks.scheduler.room import gang_does_not_fit, gang_starts_in_part
from tests.checks.check_builders import fleet, job, judge, one, plan, statuses

GIB = 1024.0**3
MANIFEST = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: %d
      template:
        spec:
          nodeSelector: {pool: gpu}
          containers:
          - name: pytorch
            image: i
            command: [torchrun, --nnodes=4, train.py]
            resources:
              limits: {nvidia.com/gpu: %d, memory: 64Gi}
              requests: {nvidia.com/gpu: %d, cpu: "4", memory: 32Gi}
%s
"""


def manifest(replicas: int = 4, gpus: int = 8, more: str = "") -> Job:
    text = MANIFEST % (replicas, gpus, gpus, more)
    reading = KubernetesSource().read(SourceFile("job.yaml", text, "", len(text)), MemoryTree({}))
    return Job("job.yaml", launches=reading.launches, claims=reading.claims)


def node(name: str, gpus: float = 8, free: float | None = None, **changes: object) -> ClusterNode:
    has = {"nvidia.com/gpu": gpus, "cpu": 64.0, "memory": 512 * GIB}
    left = {**has, "nvidia.com/gpu": gpus if free is None else free}
    return replace(ClusterNode(name, has, left, {"pool": "gpu"}), **changes)


def cluster(*nodes: ClusterNode, unknown: tuple[str, ...] = ()) -> Fleet:
    return replace(fleet(4), executor="kubernetes", cluster=Cluster("kubernetes", nodes, unknown))


FOUR = tuple(node(f"gpu-{index}") for index in range(4))


def test_nothing_is_requested_from_nodes() -> None:
    assert plan(gang_does_not_fit, manifest(), cluster(*FOUR)) == []
    assert plan(gang_starts_in_part, manifest(), cluster(*FOUR)) == []


def test_a_gang_that_fits_passes() -> None:
    assert statuses(judge(gang_does_not_fit, manifest(), cluster(*FOUR), Facts())) == {"pass"}


def test_a_gang_larger_than_the_pool_is_an_error_with_the_capacity() -> None:
    others = node("cpu-1", 0, labels={"pool": "cpu"})
    found = one(judge(gang_does_not_fit, manifest(), cluster(*FOUR[:3], others), Facts()), Status.FAIL)
    assert found.severity is None
    assert "4 pods ask for 8 GPUs, 4 cores, 32 GiB each" in found.message
    assert "the nodes with pool=gpu (3) have room for 3 of them" in found.message
    assert found.locations[0].path == "job.yaml" and "gpu-0: 1" in found.evidence[0].observed


def test_a_pod_larger_than_every_node_names_the_largest() -> None:
    found = one(judge(gang_does_not_fit, manifest(2, 16), cluster(*FOUR), Facts()), Status.FAIL)
    assert found.severity is None
    assert "room for 0 of them; the largest has 8 GPUs, 64 cores, 512 GiB (gpu-0)" in found.message


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((*FOUR[:3], node("gpu-9", closed="it is cordoned")), "not counted: gpu-9 (it is cordoned)"),
        (tuple(replace(each, labels={"pool": "gpu", "karpenter.sh/nodepool": "p"}) for each in FOUR[:3]), "room for 3"),
        ((node("cpu-1", 0, labels={"pool": "cpu"}),), "no node of the cluster has these labels"),
    ],
    ids=["cordoned", "growing", "from zero"],
)
def test_a_shortage_that_may_end_is_a_warning(nodes: tuple[ClusterNode, ...], words: str) -> None:
    found = one(judge(gang_does_not_fit, manifest(), cluster(*nodes), Facts()), Status.FAIL)
    assert found.severity is Severity.WARNING and words in found.message


def test_requests_count_and_not_limits() -> None:
    small = tuple(replace(each, has={**each.has, "memory": 40 * GIB}) for each in FOUR)
    assert statuses(judge(gang_does_not_fit, manifest(), cluster(*small), Facts())) == {"pass"}
    smaller = tuple(replace(each, has={**each.has, "memory": 20 * GIB}) for each in FOUR)
    assert statuses(judge(gang_does_not_fit, manifest(), cluster(*smaller), Facts())) == {"fail"}


def test_an_unreported_resource_is_not_missing() -> None:
    silent = tuple(replace(each, has={"nvidia.com/gpu": 8.0}) for each in FOUR)
    assert statuses(judge(gang_does_not_fit, manifest(), cluster(*silent), Facts())) == {"pass"}


def test_a_refused_list_is_unknown() -> None:
    for each in (gang_does_not_fit, gang_starts_in_part):
        found = one(
            judge(each, manifest(), cluster(unknown=("the resources of its nodes: refused",)), Facts()), Status.UNKNOWN
        )
        assert "the resources of its nodes: refused" in found.message and not found.required


def test_not_applicable_to_other_executors_and_jobs() -> None:
    for each in (gang_does_not_fit, gang_starts_in_part):
        assert statuses(judge(each, manifest(), fleet(4), Facts())) == {"not-applicable"}
        assert statuses(judge(each, job(nodes=4), cluster(*FOUR), Facts())) == {"not-applicable"}


def part(*nodes: ClusterNode) -> Fleet:
    """The same, while none of the job's pods runs."""
    return replace(cluster(*nodes), records=fleet(4, node0="x", node1="x", node2="x", node3="x").records)


BUSY = (*FOUR[:3], node("gpu-3", free=2))


def test_a_gang_that_would_start_in_part_is_a_warning() -> None:
    found = one(judge(gang_starts_in_part, manifest(), part(*BUSY), Facts()), Status.FAIL)
    assert "3 of 4 pods of 8 GPUs" in found.message and "gpu-3: 0" in found.evidence[0].observed


@pytest.mark.parametrize(
    ("given", "looked"),
    [
        (manifest(), part(*FOUR)),
        (manifest(), part(*(node(each.name, free=0) for each in FOUR))),
        (manifest(), cluster(*BUSY)),
        (manifest(more="          schedulerName: volcano"), part(*BUSY)),
    ],
    ids=["all fit", "none fits", "all run", "a gang scheduler"],
)
def test_all_or_none_passes(given: Job, looked: Fleet) -> None:
    assert statuses(judge(gang_starts_in_part, given, looked, Facts())) == {"pass"}


def test_unknown_free_resources() -> None:
    nodes = tuple(replace(each, free=None) for each in FOUR)
    looked = part(*nodes)
    assert statuses(judge(gang_starts_in_part, manifest(), looked, Facts())) == {"unknown"}

"""The resources of Slurm and the requests of the header, on facts made for the test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Job, Unresolved
from preflight.model.recording import Cluster, ClusterNode, Facts, Fleet, Origin, Partition
from preflight.plugins.authoring import Check
from preflight.sources.base import SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.kubernetes.workloads import KubernetesSource
from preflight_checks.probes.packages import Packages, packages
from preflight_checks.scheduler import (
    account_not_allowed,
    beyond_partition_limits,
    bundle_fits_no_node,
    gang_does_not_fit,
    gang_starts_in_part,
    node_out_of_service,
    partition_unavailable,
    ray_nodes_differ,
    scheduler_refuses,
    too_few_fitting_nodes,
)
from tests.checks.check_builders import TIMEOUT, claim, fact, facts, fleet, job, judge, one, plan, statuses

GIB = 2**30
GPU = Partition("gpu", "UP", 4, 1, 4, "2-00:00:00", True, allowed_qos=("normal",), denied_accounts=("guests",))
CPU = Partition("cpu", "DOWN", 100, None, None, "")
NODES = tuple(ClusterNode(f"g{i}", {"cpu": 64, "memory": 512 * GIB, "gpu": 8}, labels={"a100": ""}) for i in range(4))
CHECKS = (
    partition_unavailable,
    beyond_partition_limits,
    account_not_allowed,
    node_out_of_service,
    too_few_fitting_nodes,
    scheduler_refuses,
)


def asking(*options: str) -> Job:
    return job([claim("batch_option", option, option) for option in options])


def slurm(*nodes: ClusterNode, refusal: str = "", unknown: tuple[str, ...] = (), count: int = 0) -> Fleet:
    cluster = Cluster("slurm", nodes or NODES, unknown, (GPU, CPU), refusal)
    return replace(fleet(count), executor="slurm", cluster=cluster)


FITS = asking("--partition=gpu", "--nodes=4", "--gres=gpu:8", "--time=1-00:00:00", "--mem=500G", "--qos=normal")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.meta.id)
def test_a_request_that_fits_passes(check: Check) -> None:
    assert statuses(judge(check, FITS, slurm(), facts())) == {"pass"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.meta.id)
def test_not_applicable_without_slurm(check: Check) -> None:
    assert statuses(judge(check, FITS, fleet(4), facts())) == {"not-applicable"}
    kubernetes = replace(fleet(4), cluster=Cluster("kubernetes", NODES))
    assert statuses(judge(check, FITS, kubernetes, facts())) == {"not-applicable"}


@pytest.mark.parametrize(
    ("check", "options", "says"),
    [
        (partition_unavailable, ("--partition=gpus",), "has no partition gpus"),
        (partition_unavailable, ("--partition=cpu",), "cpu is DOWN, so it starts no jobs"),
        (beyond_partition_limits, ("--nodes=5",), "requests 5 nodes, but partition gpu allows at most 4 (MaxNodes)"),
        (beyond_partition_limits, ("--partition=cpu", "--nodes=101"), "at most 100 (TotalNodes)"),
        (
            beyond_partition_limits,
            ("--time=3-00:00:00",),
            "requests 3-00:00:00, but partition gpu allows at most 2-00:00:00",
        ),
        (account_not_allowed, ("--qos=high",), "partition gpu does not allow the quality of service high"),
        (
            too_few_fitting_nodes,
            ("--nodes=2", "--gres=gpu:a100:9"),
            "2 nodes with 9 GPUs at the same time, but its partition has only 0",
        ),
        (too_few_fitting_nodes, ("--nodes=2", "--constraint=h100"), "2 nodes with h100 at the same time"),
        (too_few_fitting_nodes, ("--nodes=1", "--mem=1T"), "1024 GiB of memory"),
        (too_few_fitting_nodes, ("--nodes=1", "--ntasks-per-node=8", "--cpus-per-task=16"), "128 cores"),
    ],
)
def test_an_impossible_request_is_an_error_at_its_line(check: Check, options: tuple[str, ...], says: str) -> None:
    found = one(judge(check, asking(*options), slurm(), facts()), Status.FAIL)
    assert says in found.message and found.locations and found.severity is None


@pytest.mark.parametrize(
    "options",
    [
        ("--partition=cpu,gpu",),
        ("--nodes=2-8",),
        ("--nodes=4", "--constraint=a100&ib"),
        ("--time=UNLIMITED",),
        ("--gpus-per-node=a100:8", "--nodes=4"),
    ],
)
def test_possible_requests_pass(options: tuple[str, ...]) -> None:
    for check in CHECKS:
        assert "fail" not in statuses(judge(check, asking(*options), slurm(), facts())), check.meta.id


def test_limits_with_qos_and_child_accounts_are_warnings() -> None:
    found = one(judge(beyond_partition_limits, asking("--nodes=5", "--qos=normal"), slurm(), facts()), Status.FAIL)
    assert found.severity is Severity.WARNING
    found = one(judge(account_not_allowed, asking("--account=guests"), slurm(), facts()), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_nodes_that_are_drained_are_named_with_the_reason() -> None:
    broken = (*NODES[:3], replace(NODES[3], closed="drained: bad cable"))
    found = one(judge(too_few_fitting_nodes, FITS, slurm(*broken), facts()), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("g3",)
    assert "only 3 are in service, and g3 is not: g3 is drained: bad cable" in found.message
    named = replace(slurm(*broken), origin=Origin("hosts", "--hosts g[0-3]", named=("g0", "g3")))
    found = one(judge(node_out_of_service, FITS, named, facts()), Status.FAIL)
    assert found.nodes == ("g3",) and "does not allocate it" in found.message and found.severity is None


def test_a_drained_node_of_a_running_allocation_is_a_warning() -> None:
    running = slurm(ClusterNode("node1", {}, closed="mixed+drain: fan"), ClusterNode("x", {}, closed="down"), count=2)
    found = one(judge(node_out_of_service, FITS, running, facts()), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("node1",)


def test_slurms_refusal_is_quoted() -> None:
    found = one(judge(scheduler_refuses, FITS, slurm(refusal="Invalid account"), facts()), Status.FAIL)
    assert 'would reject the job: "Invalid account"' in found.message
    assert statuses(judge(scheduler_refuses, FITS, slurm(unknown=("it is silent",)), facts())) == {"unknown"}


# Nodes of a Ray cluster: equal, and large enough for the scripts' bundles.


JOB = job(ray_role="worker")


def versions(*rays: str, python: str = "3.11.7") -> Facts:
    each = [Packages(python, "/usr/bin/python3", {"ray": ray, "torch": "2.4.0"} if ray else {}) for ray in rays]
    return facts(*(fact(packages, f"node{index}", value, context=True) for index, value in enumerate(each)))


def test_versions_are_requested_only_for_ray_on_several_nodes() -> None:
    assert len(plan(ray_nodes_differ, JOB, fleet(4))) == 4
    assert plan(ray_nodes_differ, job(), fleet(4)) == []
    assert plan(ray_nodes_differ, JOB, fleet(1)) == []
    assert plan(ray_nodes_differ, JOB, replace(fleet(4), executor="ray")) == []


def test_another_patch_of_ray_names_its_node() -> None:
    found = one(judge(ray_nodes_differ, JOB, fleet(3), versions("2.9.3", "2.9.0", "2.9.3")), Status.FAIL)
    assert found.nodes == ("node1",) and "node1: 2.9.0; 2 nodes have 2.9.3" in found.message


def test_another_minor_version_of_ray_is_left_to_ver003() -> None:
    assert statuses(judge(ray_nodes_differ, JOB, fleet(2), versions("2.9.3", "2.60.0"))) == {"pass"}


def test_another_python_is_named_and_another_patch_of_it_is_not() -> None:
    have = [Packages(python, "p", {"ray": "2.9.3"}) for python in ("3.11.7", "3.10.2", "3.11.2")]
    known = facts(*(fact(packages, f"node{index}", value, context=True) for index, value in enumerate(have)))
    found = one(judge(ray_nodes_differ, JOB, fleet(3), known), Status.FAIL)
    assert found.nodes == ("node1",) and "Python differs" in found.message and "3.10" in found.message


def test_equal_nodes_pass_and_missing_facts_are_unknown() -> None:
    assert statuses(judge(ray_nodes_differ, JOB, fleet(2), versions("2.9.3", "2.9.3"))) == {"pass"}
    late = facts(*(fact(packages, f"node{index}", TIMEOUT, context=True) for index in range(2)))
    assert statuses(judge(ray_nodes_differ, JOB, fleet(2), late)) == {"unknown"}


def ray_fleet(*pythons: str) -> Fleet:
    records = [
        replace(record, python=python) for record, python in zip(fleet(len(pythons)).records, pythons, strict=True)
    ]
    return Fleet(tuple(records), "ray")


def test_on_a_running_cluster_the_workers_python_counts() -> None:
    found = one(judge(ray_nodes_differ, JOB, ray_fleet("3.11.7", "3.11.2", "3.12.1"), Facts()), Status.FAIL)
    assert found.nodes == ("node2",)
    assert statuses(judge(ray_nodes_differ, JOB, ray_fleet("3.11.7", "3.11.2"), Facts())) == {"pass"}


def cluster(*resources: dict[str, float], **labels: str) -> Fleet:
    nodes = tuple(ClusterNode(f"n{index}", each, labels=labels) for index, each in enumerate(resources))
    return replace(fleet(2), executor="ray", cluster=Cluster("ray", nodes))


EIGHT = {"CPU": 64.0, "GPU": 8.0}


@pytest.mark.parametrize("bundle", ["CPU 96, GPU 8", "GPU 16", "TPU 1"])
def test_a_bundle_that_fits_no_node_is_an_error(bundle: str) -> None:
    asked = job([claim("ray_bundle", bundle, "bundles=[...]")])
    found = one(judge(bundle_fits_no_node, asked, cluster(EIGHT, {"CPU": 128.0}), Facts()), Status.FAIL)
    assert found.severity is None
    assert f"requests {bundle} on one node" in found.message and "n0:" in found.message
    mild = judge(bundle_fits_no_node, asked, cluster(EIGHT, **{"ray.io/node-group": "w"}), Facts())
    assert one(mild, Status.FAIL).severity is Severity.WARNING


def test_a_bundle_that_fits_one_node_passes() -> None:
    asked = job([claim("ray_bundle", "CPU 8, GPU 1"), claim("ray_train_worker_gpus", 8.0)])
    assert statuses(judge(bundle_fits_no_node, asked, cluster(EIGHT), Facts())) == {"pass"}
    assert statuses(judge(bundle_fits_no_node, asked, cluster({"CPU": 64.0}), Facts())) == {"fail"}


def test_unknown_requests_are_not_judged() -> None:
    asked = job([claim("ray_bundle", Unresolved("given at run time"))])
    assert statuses(judge(bundle_fits_no_node, asked, cluster(EIGHT), Facts())) == {"unknown"}
    assert statuses(judge(bundle_fits_no_node, job(), cluster(EIGHT), Facts())) == {"not-applicable"}
    assert statuses(judge(bundle_fits_no_node, asked, fleet(2), Facts())) == {"not-applicable"}


# Room for a whole job: the requests of a manifest, compared with the scheduler's list of nodes.


ROOM_GIB = 1024.0**3
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
    has = {"nvidia.com/gpu": gpus, "cpu": 64.0, "memory": 512 * ROOM_GIB}
    left = {**has, "nvidia.com/gpu": gpus if free is None else free}
    return replace(ClusterNode(name, has, left, {"pool": "gpu"}), **changes)


def room_cluster(*nodes: ClusterNode, unknown: tuple[str, ...] = ()) -> Fleet:
    return replace(fleet(4), executor="kubernetes", cluster=Cluster("kubernetes", nodes, unknown))


FOUR = tuple(node(f"gpu-{index}") for index in range(4))


def test_nothing_is_requested_from_nodes() -> None:
    assert plan(gang_does_not_fit, manifest(), room_cluster(*FOUR)) == []
    assert plan(gang_starts_in_part, manifest(), room_cluster(*FOUR)) == []


def test_a_gang_that_fits_passes() -> None:
    assert statuses(judge(gang_does_not_fit, manifest(), room_cluster(*FOUR), Facts())) == {"pass"}


def test_a_gang_larger_than_the_pool_is_an_error_with_the_capacity() -> None:
    others = node("cpu-1", 0, labels={"pool": "cpu"})
    found = one(judge(gang_does_not_fit, manifest(), room_cluster(*FOUR[:3], others), Facts()), Status.FAIL)
    assert found.severity is None
    assert "4 pods request 8 GPUs, 4 cores, 32 GiB each" in found.message
    assert "room for only 3" in found.message
    assert found.locations[0].path == "job.yaml" and "gpu-0: 1" in found.evidence[0].observed


def test_a_pod_larger_than_every_node_names_the_largest() -> None:
    found = one(judge(gang_does_not_fit, manifest(2, 16), room_cluster(*FOUR), Facts()), Status.FAIL)
    assert found.severity is None
    assert "room for only 0; the largest has 8 GPUs, 64 cores, 512 GiB (gpu-0)" in found.message


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((*FOUR[:3], node("gpu-9", closed="it is cordoned")), "not counted: gpu-9 (it is cordoned)"),
        (
            tuple(replace(each, labels={"pool": "gpu", "karpenter.sh/nodepool": "p"}) for each in FOUR[:3]),
            "room for only 3",
        ),
        ((node("cpu-1", 0, labels={"pool": "cpu"}),), "no node of the cluster has these labels"),
    ],
    ids=["cordoned", "growing", "from zero"],
)
def test_a_shortage_that_may_end_is_a_warning(nodes: tuple[ClusterNode, ...], words: str) -> None:
    found = one(judge(gang_does_not_fit, manifest(), room_cluster(*nodes), Facts()), Status.FAIL)
    assert found.severity is Severity.WARNING and words in found.message


def test_requests_count_and_not_limits() -> None:
    small = tuple(replace(each, has={**each.has, "memory": 40 * ROOM_GIB}) for each in FOUR)
    assert statuses(judge(gang_does_not_fit, manifest(), room_cluster(*small), Facts())) == {"pass"}
    smaller = tuple(replace(each, has={**each.has, "memory": 20 * ROOM_GIB}) for each in FOUR)
    assert statuses(judge(gang_does_not_fit, manifest(), room_cluster(*smaller), Facts())) == {"fail"}


def test_an_unreported_resource_is_not_missing() -> None:
    silent = tuple(replace(each, has={"nvidia.com/gpu": 8.0}) for each in FOUR)
    assert statuses(judge(gang_does_not_fit, manifest(), room_cluster(*silent), Facts())) == {"pass"}


def test_a_refused_list_is_unknown() -> None:
    for each in (gang_does_not_fit, gang_starts_in_part):
        found = one(
            judge(each, manifest(), room_cluster(unknown=("the resources of its nodes: refused",)), Facts()),
            Status.UNKNOWN,
        )
        assert "the resources of its nodes: refused" in found.message and not found.required


def test_not_applicable_to_other_executors_and_jobs() -> None:
    for each in (gang_does_not_fit, gang_starts_in_part):
        assert statuses(judge(each, manifest(), fleet(4), Facts())) == {"not-applicable"}
        assert statuses(judge(each, job(nodes=4), room_cluster(*FOUR), Facts())) == {"not-applicable"}


def part(*nodes: ClusterNode) -> Fleet:
    """The same, while none of the job's pods runs."""
    return replace(room_cluster(*nodes), records=fleet(4, node0="x", node1="x", node2="x", node3="x").records)


BUSY = (*FOUR[:3], node("gpu-3", free=2))


def test_a_gang_that_would_start_in_part_is_a_warning() -> None:
    found = one(judge(gang_starts_in_part, manifest(), part(*BUSY), Facts()), Status.FAIL)
    assert "3 of 4 pods of 8 GPUs" in found.message and "gpu-3: 0" in found.evidence[0].observed


@pytest.mark.parametrize(
    ("given", "looked"),
    [
        (manifest(), part(*FOUR)),
        (manifest(), part(*(node(each.name, free=0) for each in FOUR))),
        (manifest(), room_cluster(*BUSY)),
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

"""Slurm's own daemons on virtual nodes: the suite inside an allocation, and the life of allocations."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cluster import Cluster
from tests.cluster.slurm import Slurm, require_slurm, slurm
from tests.executors.conformance import Conformance, World, names, python_faults
from tests.waiting import until

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def running(cluster: Cluster) -> Iterator[Slurm]:
    """Slurm over four nodes; the partition `two` has two of them."""
    require_slurm()
    partitions = (
        "PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        "PartitionName=two Nodes=node[1-2] MaxTime=60 State=UP",
    )
    with slurm(cluster, partitions=partitions) as started:
        yield started


class TestSlurm(Conformance):
    """Inside an allocation of four nodes."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster, running: Slurm) -> Iterator[World]:
        """The head has the environment of a batch script, including variables meant for other steps."""
        with running.allocation("-N4") as job:
            hostile = {
                "SLURM_LABELIO": "1",
                "SLURM_NTASKS_PER_NODE": "8",
                "SLURM_MEM_PER_CPU": "100",
                "SLURM_MEM_PER_NODE": "100",
                "SLURM_NNODES": "4",
                "SLURM_EXPORT_ENV": "NONE",
            }
            environment = {**running.environment(job), **hostile}
            yield World(
                cluster,
                cluster.head,
                names(cluster.nodes),
                (),
                environment,
                **python_faults(cluster.node("node3"), "node3"),
            )


class TestSlurmFromOutside(Conformance):
    """From a login node, on an allocation that the executor requests."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster, running: Slurm) -> Iterator[World]:
        """No job yet."""
        yield World(
            cluster,
            cluster.head,
            names(cluster.nodes),
            ("--on", "slurm", "--count", "4"),
            **python_faults(cluster.node("node3"), "node3"),
        )
        assert holds_within(5.0, lambda: running.jobs() == [])


@contextmanager
def trial(world: World, what: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running trial, ended with the block."""
    process = world.start(what, *arguments)
    try:
        yield process
    finally:
        process.kill_session()
        process.wait(timeout=10)


def outside(cluster: Cluster, *arguments: str) -> World:
    return World(cluster, cluster.head, names(cluster.nodes), ("--on", "slurm", *arguments))


def holds_within(seconds: float, condition: Callable[[], object]) -> bool:
    """Whether the condition holds in time."""
    try:
        return bool(until(condition, within_s=seconds))
    except TimeoutError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_an_allocation_ends_with_its_head(cluster: Cluster, running: Slurm, number: signal.Signals) -> None:
    with trial(outside(cluster, "--count", "2"), "train", "--run", "held") as head:
        assert head.stdout is not None
        while "training" not in head.stdout.readline():
            pass
        assert len(running.jobs()) == 1
        head.send_signal(number)
        assert holds_within(5.0, lambda: running.jobs() == [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_a_request_in_the_queue_ends_with_its_head(cluster: Cluster, running: Slurm, number: signal.Signals) -> None:
    with running.allocation("-N4", "--exclusive") as job, trial(outside(cluster, "--count", "2"), "look") as head:
        assert holds_within(10.0, lambda: len(running.jobs()) == 2)
        head.send_signal(number)
        assert holds_within(5.0, lambda: running.jobs() == [job])


def test_allocation_has_a_short_time_limit(cluster: Cluster, running: Slurm) -> None:
    with trial(outside(cluster, "--count", "2"), "train", "--run", "held") as head:
        assert head.stdout is not None
        while "training" not in head.stdout.readline():
            pass
        (job,) = running.jobs()
        assert "TimeLimit=00:06:00" in running.control("show", "job", job)


def origin_of(cluster: Cluster, *arguments: str) -> dict[str, str]:
    said = outside(cluster, *arguments).trial("look")
    assert not said["records"] or not said["origin"]["problem"]
    origin: dict[str, str] = said["origin"]
    return origin


def test_request_is_withdrawn_if_no_node_is_free(cluster: Cluster, running: Slurm) -> None:
    with running.allocation("-N4", "--exclusive") as job:
        origin = origin_of(cluster, "--count", "2", "--gather", "2")
        assert origin["problem_kind"] == "blocked"
        assert "no nodes were free for `salloc --nodes=2` within 2 s" in origin["problem"]
        assert running.jobs() == [job]


def test_slurm_refusal_is_quoted(cluster: Cluster, running: Slurm) -> None:
    origin = origin_of(cluster, "--hosts", "nosuch")
    assert origin["problem_kind"] == "denied"
    assert (
        'Slurm rejects `salloc --nodelist=nosuch --nodes=1`: "Job submit/allocate failed: Invalid' in origin["problem"]
    )
    assert running.jobs() == []


def test_running_job_can_be_named(cluster: Cluster, running: Slurm) -> None:
    with running.allocation("-N2") as job:
        said = outside(cluster, "--on-option", f"jobid={job}").trial("look")
        assert said["nodes"] == ["node1", "node2"] and [r["problem"] for r in said["records"]] == ["", ""]
        assert said["origin"]["words"] == f"Slurm job {job} (--on-option jobid={job})"
    origin = origin_of(cluster, "--on-option", f"jobid={job}")
    assert origin["problem_kind"] == "blocked" and f"Slurm job {job} is not running" in origin["problem"]
    origin = origin_of(cluster, "--on-option", "jobid=4000000")
    assert "Invalid job id" in origin["problem"]


def problem_of(cluster: Cluster, node: str, *arguments: str) -> tuple[str, str]:
    """The problem of the only unreached node."""
    said = outside(cluster, *arguments).trial("look", "--deadline", "5")
    records = {r["node"]["name"]: r for r in said["records"]}
    assert [name for name, record in records.items() if record["problem"]] == [node], records
    return records[node]["problem_kind"], records[node]["problem"]


def test_dead_and_frozen_slurmd_are_distinguished(cluster: Cluster, running: Slurm) -> None:
    node = cluster.node("node2")
    with running.allocation("-N3") as job:
        with running.slurmd_dead(node):
            kind, problem = problem_of(cluster, "node2", "--on-option", f"jobid={job}")
        assert kind in ("timeout", "unreachable") and "slurmd is dead" in problem, problem
        with running.slurmd_frozen(node):
            kind, problem = problem_of(cluster, "node2", "--on-option", f"jobid={job}")
        assert kind == "timeout" and "slurmd there accepts connections" in problem and "is dead" not in problem, problem


def test_hanging_step_is_cancelled(cluster: Cluster, running: Slurm) -> None:
    node = cluster.node("node2")
    hanging = python_faults(node, "node2")["silent"]
    with running.allocation("-N2") as job, hanging():
        kind, problem = problem_of(cluster, "node2", "--on-option", f"jobid={job}")
        assert kind == "timeout" and "waiting for srun to start a step" in problem
        assert holds_within(5.0, lambda: not node.run(["pgrep", "-f", "sleep 600"]).stdout), "it sleeps on"


def test_drained_node_is_reached_and_noted(cluster: Cluster, running: Slurm) -> None:
    with running.allocation("-N2") as job, running.drained(cluster.node("node1")):
        said = outside(cluster, "--on-option", f"jobid={job}").trial("look")
    assert [r["problem"] for r in said["records"]] == ["", ""]
    assert said["origin"]["notes"] == ["drained: node1 (MIXED+DRAIN: bad cable)"]


def test_job_that_ends_during_the_run_is_reported(cluster: Cluster, running: Slurm) -> None:
    with running.allocation("-N2") as job:
        with trial(outside(cluster, "--on-option", f"jobid={job}"), "train", "--run", "cut") as head:
            assert head.stdout is not None
            lines = [head.stdout.readline() for _ in range(3)]
            assert sum("training" in line for line in lines) == 2, lines
            cluster.head.must(["scancel", job])
            answer = head.stdout.readline()
        assert "kind='unreachable'" in answer and "was lost" in answer

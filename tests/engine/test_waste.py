"""The cost that a no-go avoided: only for faults that make all ranks wait, and only with documented numbers."""

from __future__ import annotations

import pytest

from preflight.engine.waste import DEFAULTS, AvoidedCost, avoided_cost, with_price
from preflight.model.findings import Confidence, Finding, Location, Severity
from preflight.model.job import Claim, Job, Launch, Scope, Strength, Unresolved
from preflight.reporters.text import groups
from tests.builders import claim, job, span


def waits(
    at: str,
    id: str = "RDV001",
    *,
    severity: Severity = Severity.ERROR,
    subject: str = "run.sh:3",
    path: str = "run.sh",
) -> Finding:
    """A fault that makes all ranks wait there."""
    place = Location.at(span(path))
    return Finding(id, "name", severity, Confidence.HIGH, "-", subject, locations=(place,), waits_at=at)


def launched(*claims: Claim, launcher: str = "torchrun") -> Job:
    """A job with one launch."""
    launch = Launch("run.sh:3", launcher, span())
    return job(*claims, launches=(launch,))


def of_launch(quantity: str, value: object, **more: object) -> Claim:
    """A claim about that launch."""
    return claim(quantity, value, scope=Scope(launch="run.sh:3"), **more)  # type: ignore[arg-type]


NODES, GPUS = of_launch("nodes", 4), of_launch("gpus_per_node", 8)


def test_the_cost_is_nodes_times_gpus_times_the_timeout() -> None:
    found = avoided_cost([waits("rendezvous")], [launched(NODES, GPUS)])
    assert found == AvoidedCost(
        job="run.sh",
        findings=("RDV001",),
        nodes=4,
        nodes_from="`--nodes=4` (run.sh:3)",
        timeout_s=900,
        timeout_from="torchrun's default for a static rendezvous",
        node_hours=1.0,
        gpus_per_node=8,
        gpus_from="`--gpus_per_node=8` (run.sh:3)",
        gpu_hours=8.0,
    )


@pytest.mark.parametrize(
    ("claims", "launcher", "at", "timeout_s"),
    [
        ([], "torchrun", "rendezvous", 900),
        ([of_launch("rendezvous_backend", "c10d")], "torchrun", "rendezvous", 600),
        ([of_launch("rendezvous_conf", "timeout=120")], "torchrun", "rendezvous", 120),
        ([of_launch("standalone", True)], "torchrun", "rendezvous", 600),
        (
            [
                of_launch("rendezvous_backend", "c10d"),
                of_launch("rendezvous_conf", "last_call_timeout=5,join_timeout=77"),
            ],
            "torchrun",
            "rendezvous",
            77,
        ),
        ([of_launch("backend", "nccl")], "torchrun", "collective", 600),
        ([of_launch("backend", "gloo")], "torchrun", "collective", 1800),
        ([of_launch("backend", "gloo"), of_launch("process_group_timeout_s", 60)], "torchrun", "collective", 60),
        ([of_launch("backend", "nccl")], "srun", "rendezvous", 600),
        ([], "deepspeed", "rendezvous", 600),
    ],
)
def test_how_long_ranks_wait(claims: list[Claim], launcher: str, at: str, timeout_s: int) -> None:
    found = avoided_cost([waits(at)], [launched(NODES, *claims, launcher=launcher)])
    assert found is not None
    assert found.timeout_s == timeout_s


@pytest.mark.parametrize(
    ("claims", "launcher", "at"),
    [
        ([], "torchrun", "collective"),
        ([of_launch("backend", "mpi")], "srun", "collective"),
        ([of_launch("rendezvous_backend", Unresolved("set by the caller"))], "torchrun", "rendezvous"),
        ([of_launch("process_group_timeout_s", Unresolved("set by the caller"))], "torchrun", "collective"),
        ([], "paddle", "rendezvous"),
    ],
)
def test_an_unknown_timeout_gives_no_cost(claims: list[Claim], launcher: str, at: str) -> None:
    assert avoided_cost([waits(at)], [launched(NODES, *claims, launcher=launcher)]) is None


def test_an_unknown_number_of_nodes_gives_no_cost() -> None:
    assert avoided_cost([waits("rendezvous")], [launched()]) is None
    assert avoided_cost([waits("rendezvous")], [launched(of_launch("nodes", Unresolved("$NNODES")))]) is None
    assert avoided_cost([waits("rendezvous")], [launched(of_launch("nodes", 1))]) is None


def test_observed_nodes_count_before_the_files() -> None:
    found = avoided_cost([waits("rendezvous")], [launched(NODES)], nodes=("a", "b", "c"))
    assert found is not None
    assert (found.nodes, found.nodes_from) == (3, "nodes of this run")


def test_without_gpus_there_are_hours_of_nodes_and_no_price() -> None:
    found = avoided_cost([waits("rendezvous")], [launched(NODES)])
    assert found is not None
    assert (found.node_hours, found.gpu_hours) == (1.0, None)
    assert with_price(found, 2.5) == found


def test_each_nccl_rank_counts_one_gpu() -> None:
    ranks = of_launch("processes_per_node", 2)
    with_nccl = avoided_cost([waits("rendezvous")], [launched(NODES, ranks, of_launch("backend", "nccl"))])
    with_gloo = avoided_cost([waits("rendezvous")], [launched(NODES, ranks, of_launch("backend", "gloo"))])
    assert with_nccl is not None and with_gloo is not None
    assert (with_nccl.gpu_hours, with_gloo.gpu_hours) == (2.0, None)


def test_many_faults_are_one_wait_and_the_first_counts() -> None:
    found = avoided_cost(
        [waits("collective", "LNK001"), waits("rendezvous"), waits("rendezvous", "WLD001")],
        [launched(NODES, of_launch("backend", "gloo"))],
    )
    assert found is not None
    assert (found.findings, found.timeout_s) == (("RDV001", "WLD001"), 900)


@pytest.mark.parametrize("findings", [[], [waits("")], [waits("rendezvous", severity=Severity.WARNING)]])
def test_a_fault_without_waiting_avoids_no_cost(findings: list[Finding]) -> None:
    assert avoided_cost(findings, [launched(NODES, GPUS)]) is None


def test_a_price_gives_a_cost() -> None:
    found = with_price(avoided_cost([waits("rendezvous")], [launched(NODES, GPUS)]), 2.5)
    assert found is not None
    assert (found.cost, found.price_per_gpu_hour) == (20.0, 2.5)


def test_only_the_job_of_the_finding_counts() -> None:
    other = Job("other.sh", launches=(Launch("other.sh:1", "torchrun", span("other.sh", 1)),))
    found = avoided_cost([waits("rendezvous")], [other, launched(NODES)])
    assert found is not None
    assert found.job == "run.sh"
    assert avoided_cost([waits("rendezvous", subject="elsewhere", path="elsewhere")], [other, other]) is None


def test_the_job_with_the_highest_cost_counts() -> None:
    launch = Launch("big.sh:1", "torchrun", span("big.sh", 1))
    nodes = claim("nodes", 64, scope=Scope(launch="big.sh:1"))
    big = job(nodes, name="big.sh", launches=(launch,))
    both = [waits("rendezvous"), waits("rendezvous", "WLD001", subject="big.sh:1", path="big.sh")]
    found = avoided_cost(both, [launched(NODES), big])
    assert found is not None
    assert (found.job, found.findings, found.node_hours) == ("big.sh", ("WLD001",), 16.0)


def test_every_default_has_a_source() -> None:
    assert all(row.seconds > 0 and row.words and row.source[-10:-6] == "2026" for row in DEFAULTS.values())


def test_a_default_claim_is_not_the_jobs_own_setting() -> None:
    table = of_launch("process_group_timeout_s", 1800, strength=Strength.DEFAULT)
    found = avoided_cost([waits("collective")], [launched(NODES, table, of_launch("backend", "nccl"))])
    assert found is not None
    assert found.timeout_s == 600


@pytest.mark.parametrize(
    ("nodes", "gpus", "words"),
    [
        (4, None, "1 node-hour of waiting (4 nodes x 15 min, RDV001)"),
        (4, 8, "8 GPU-hours of waiting (4 nodes x 8 GPUs x 15 min, RDV001)"),
        (2048, 8, "4,096 GPU-hours of waiting (2048 nodes x 8 GPUs x 15 min, RDV001)"),
    ],
)
def test_the_cost_is_described(nodes: int, gpus: int | None, words: str) -> None:
    claims = [of_launch("nodes", nodes), *([of_launch("gpus_per_node", gpus)] if gpus else [])]
    found = avoided_cost([waits("rendezvous")], [launched(*claims)])
    assert found is not None
    assert groups.avoided_cost(found) == words
    assert groups.avoided_cost_sources(found)[0] == f"nodes: `--nodes={nodes}` (run.sh:3)"


def test_the_cost_is_shown_with_its_price() -> None:
    found = with_price(avoided_cost([waits("rendezvous")], [launched(NODES, GPUS)]), 2.5)
    assert found is not None
    expected = "8 GPU-hours of waiting worth 20.00 at 2.5 each (4 nodes x 8 GPUs x 15 min, RDV001)"
    assert groups.avoided_cost(found) == expected

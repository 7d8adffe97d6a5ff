"""What a no-go saved: only where everybody would wait, only with numbers that stand somewhere."""

from __future__ import annotations

import pytest

from preflight.job import Claim, Job, Launch, Scope, Strength, Unresolved
from preflight.outcome import Confidence, Finding, Location, Severity
from preflight.reporters.grouping import saved_whence, saved_words
from preflight.stakes import Saved, priced, saved
from preflight.timeouts import DEFAULTS
from tests.building import claim, job, span


def waits(
    at: str,
    id: str = "RDV001",
    *,
    severity: Severity = Severity.ERROR,
    subject: str = "run.sh:3",
    path: str = "run.sh",
) -> Finding:
    """A fault that keeps everybody waiting there."""
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


def test_nodes_times_gpus_times_the_time_out() -> None:
    found = saved([waits("rendezvous")], [launched(NODES, GPUS)])
    assert found == Saved(
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
    found = saved([waits(at)], [launched(NODES, *claims, launcher=launcher)])
    assert found is not None
    assert found.timeout_s == timeout_s


@pytest.mark.parametrize(
    ("claims", "launcher", "at"),
    [
        ([], "torchrun", "collective"),
        ([of_launch("backend", "mpi")], "srun", "collective"),
        ([of_launch("rendezvous_backend", Unresolved("from outside"))], "torchrun", "rendezvous"),
        ([of_launch("process_group_timeout_s", Unresolved("from outside"))], "torchrun", "collective"),
        ([], "paddle", "rendezvous"),
    ],
)
def test_a_time_out_that_nobody_knows_is_not_made_up(claims: list[Claim], launcher: str, at: str) -> None:
    assert saved([waits(at)], [launched(NODES, *claims, launcher=launcher)]) is None


def test_nodes_that_nobody_counts_are_not_made_up() -> None:
    assert saved([waits("rendezvous")], [launched()]) is None
    assert saved([waits("rendezvous")], [launched(of_launch("nodes", Unresolved("$NNODES")))]) is None
    assert saved([waits("rendezvous")], [launched(of_launch("nodes", 1))]) is None


def test_nodes_that_were_looked_at_count_before_what_files_say() -> None:
    found = saved([waits("rendezvous")], [launched(NODES)], nodes=("a", "b", "c"))
    assert found is not None
    assert (found.nodes, found.nodes_from) == (3, "nodes of this run")


def test_without_gpus_there_are_hours_of_nodes_and_no_price() -> None:
    found = saved([waits("rendezvous")], [launched(NODES)])
    assert found is not None
    assert (found.node_hours, found.gpu_hours) == (1.0, None)
    assert priced(found, 2.5) == found


def test_ranks_of_nccl_take_a_gpu_each() -> None:
    ranks = of_launch("processes_per_node", 2)
    with_nccl = saved([waits("rendezvous")], [launched(NODES, ranks, of_launch("backend", "nccl"))])
    with_gloo = saved([waits("rendezvous")], [launched(NODES, ranks, of_launch("backend", "gloo"))])
    assert with_nccl is not None and with_gloo is not None
    assert (with_nccl.gpu_hours, with_gloo.gpu_hours) == (2.0, None)


def test_many_faults_are_one_wait_and_the_first_counts() -> None:
    found = saved(
        [waits("collective", "LNK001"), waits("rendezvous"), waits("rendezvous", "WLD001")],
        [launched(NODES, of_launch("backend", "gloo"))],
    )
    assert found is not None
    assert (found.findings, found.timeout_s) == (("RDV001", "WLD001"), 900)


@pytest.mark.parametrize("findings", [[], [waits("")], [waits("rendezvous", severity=Severity.WARNING)]])
def test_what_stops_nobody_saved_nothing(findings: list[Finding]) -> None:
    assert saved(findings, [launched(NODES, GPUS)]) is None


def test_a_price_makes_money_of_it() -> None:
    found = priced(saved([waits("rendezvous")], [launched(NODES, GPUS)]), 2.5)
    assert found is not None
    assert (found.cost, found.price_per_gpu_hour) == (20.0, 2.5)


def test_of_several_jobs_only_that_of_the_finding_counts() -> None:
    other = Job("other.sh", launches=(Launch("other.sh:1", "torchrun", span("other.sh", 1)),))
    found = saved([waits("rendezvous")], [other, launched(NODES)])
    assert found is not None
    assert found.job == "run.sh"
    assert saved([waits("rendezvous", subject="elsewhere", path="elsewhere")], [other, other]) is None


def test_of_several_jobs_that_wait_the_largest_counts_with_its_own_faults() -> None:
    launch = Launch("big.sh:1", "torchrun", span("big.sh", 1))
    nodes = claim("nodes", 64, scope=Scope(launch="big.sh:1"))
    big = job(nodes, name="big.sh", launches=(launch,))
    both = [waits("rendezvous"), waits("rendezvous", "WLD001", subject="big.sh:1", path="big.sh")]
    found = saved(both, [launched(NODES), big])
    assert found is not None
    assert (found.job, found.findings, found.node_hours) == ("big.sh", ("WLD001",), 16.0)


def test_every_default_says_where_it_stands() -> None:
    assert all(row.seconds > 0 and row.words and row.source[-10:-6] == "2026" for row in DEFAULTS.values())


def test_the_strength_of_a_default_does_not_make_it_said() -> None:
    table = of_launch("process_group_timeout_s", 1800, strength=Strength.DEFAULT)
    found = saved([waits("collective")], [launched(NODES, table, of_launch("backend", "nccl"))])
    assert found is not None
    assert found.timeout_s == 600


@pytest.mark.parametrize(
    ("nodes", "gpus", "words"),
    [
        (4, None, "4 nodes x 15 min = 1 node-hour, for which"),
        (4, 8, "4 nodes x 8 GPUs x 15 min = 8 GPU-hours, for which"),
        (2048, 8, "2048 nodes x 8 GPUs x 15 min = 4,096 GPU-hours, for which"),
    ],
)
def test_it_is_told_in_words(nodes: int, gpus: int | None, words: str) -> None:
    claims = [of_launch("nodes", nodes), *([of_launch("gpus_per_node", gpus)] if gpus else [])]
    found = saved([waits("rendezvous")], [launched(*claims)])
    assert found is not None
    assert saved_words(found).startswith(words)
    assert saved_whence(found)[0] == f"nodes: `--nodes={nodes}` (run.sh:3)"


def test_money_is_told_with_its_price() -> None:
    found = priced(saved([waits("rendezvous")], [launched(NODES, GPUS)]), 2.5)
    assert found is not None
    assert "= 8 GPU-hours, 20.00 at 2.5 each, for which" in saved_words(found)

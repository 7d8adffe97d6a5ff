"""The ranks of nodes with GPUs: all get one backend, and NCCL only the interface that a filter selects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from preflight.model.job import Job
from preflight.model.recording import Facts
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.smoke.plan import plan_smoke
from tests.checks.check_builders import fact, fleet, job

TORCH = Packages("3.11", "/usr/bin/python3", torch=Framework("2.9.0", "12.8"))


def node(name: str, *, cards: int) -> list[Any]:
    """The facts of a node with torch for CUDA, so many GPUs and two interfaces."""
    number = int(name[-1]) + 1
    eth = [Interface(f"eth{i}", True, True, False, [Address(f"10.{i}.0.{number}", 24)]) for i in (0, 1)]
    return [
        fact(gpus, name, Gpus(gpus=[Gpu(index) for index in range(cards)])),
        fact(packages, name, TORCH),
        fact(interfaces, name, Interfaces(eth)),
    ]


def planned(asked: Job, *cards: int) -> list[Mapping[str, Any]]:
    """The parameters of the ranks on nodes with so many GPUs."""
    records = [record for index, count in enumerate(cards) for record in node(f"node{index}", cards=count)]
    return [request.params for request in plan_smoke(asked, fleet(len(cards)), Facts(tuple(records)))]


@pytest.mark.parametrize("cards", [(1, 1), (0, 0), (1, 0), (0, 8)])
def test_a_job_that_asks_for_nccl_gets_it_on_every_node(cards: tuple[int, ...]) -> None:
    assert {params["backend"] for params in planned(job(nodes=2, backend="nccl"), *cards)} == {"nccl"}


@pytest.mark.parametrize(("cards", "backend"), [((1, 1), "nccl"), ((0, 0), "gloo"), ((1, 0), "gloo"), ((0, 8), "gloo")])
def test_all_ranks_get_the_same_backend_where_the_job_names_none(cards: tuple[int, ...], backend: str) -> None:
    assert {params["backend"] for params in planned(job(nodes=2), *cards)} == {backend}


def test_only_an_interface_of_the_jobs_filter_is_marked_as_such() -> None:
    filtered = planned(job(nodes=2, backend="nccl", env_NCCL_SOCKET_IFNAME="eth1"), 1, 1)
    assert [(params.get("interface"), params.get("filtered")) for params in filtered] == [("eth1", True)] * 2
    assert not any("filtered" in params for params in planned(job(nodes=2, backend="nccl"), 1, 1))


@pytest.mark.parametrize(
    ("vendor", "framework", "ranks"),
    [
        ("nvidia", Framework("2.9.0", "12.8"), 4),
        ("amd", Framework("2.9.0+rocm6.4", hip="6.4.43482"), 4),
        ("amd", Framework("2.9.0", "12.8"), 1),
        ("nvidia", Framework("2.9.0+rocm6.4", hip="6.4.43482"), 1),
        ("nvidia", Framework("2.9.0+cpu"), 1),
    ],
)
def test_ranks_use_the_gpus_for_which_torch_was_built(vendor: str, framework: Framework, ranks: int) -> None:
    records = (
        fact(gpus, "node0", Gpus(gpus=[Gpu(index) for index in range(8)], vendor=vendor)),
        fact(packages, "node0", Packages("3.11", "/usr/bin/python3", torch=framework)),
    )
    asked = job(nodes=1, processes_per_node=4, backend="nccl")
    assert len(list(plan_smoke(asked, fleet(1), Facts(records)))) == ranks

"""How long a step of the job would communicate with its servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.agent.child import plain
from preflight.model.configuration import SmokeOptions
from preflight.model.findings import Status
from preflight.model.job import Job, Span, Unresolved
from preflight.model.recording import FactRecord, Facts, Fleet
from preflight.model.requests import Request
from preflight_checks.probes.link_quality import Direction, Quality, measure
from preflight_checks.probes.server_place import ServerPlace, server_place
from preflight_checks.smoke.server_run import MAX_BYTES, PROFILE_STEPS, STEPS, job_shape
from preflight_checks.smoke.server_traffic import servers_slower_than_links
from reference_trainer.ps import tasks
from reference_trainer.ps.run_report import ServerReport, WorkerReport
from tests.checks.check_builders import claim, fact, facts, fleet, job, judge, one, plan

MIB = 1 << 20
#: 16 MiB in one matrix.
MATRIX = claim("parameter_shape", (2048, 2048))
PROFILED = replace(fleet(3), smoke_options=SmokeOptions(profile_model=True))


def served(*claims: Any) -> Job:
    return job(claims, ps_mode=True, ps_servers=1, ps_workers=2)


def requests(job_: Job, nodes: Fleet = PROFILED, known: Facts | None = None) -> list[Request]:
    return plan(servers_slower_than_links, job_, nodes, known)


def link(a: str, b: str, mbps: float) -> FactRecord:
    way = Direction(mbps, mbps, 500, 500, 0, 0, 5000, 1472, 3, 0.02)
    quality = Quality(b, "10.0.0.2", "10.0.0.1", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0)
    return fact(measure, a, replace(quality, out=way, back=way), params={"peer": b, "try": 1}, peers=(b,))


def run(job_: Job, *, step_s: float, mbps: float | None = 1000.0, cores: float = 8.0) -> Facts:
    """The server on node0 and a worker on each other node, all of which took `step_s` for each step's exchange."""
    places = [fact(server_place, f"node{i}", ServerPlace(cores=cores)) for i in range(3)]
    records: list[FactRecord] = []
    for request in requests(job_):
        server = request.params["role"] == "server"
        values = (request.params["rank"], request.params["index"], 1, 2)
        answer: object = (
            ServerReport(*values, "h", "node0:6170", "sync", "cpu", "torch", dense_bytes=16 * MIB)
            if server
            else WorkerReport(
                *values,
                "h",
                "sync",
                "cpu",
                "torch",
                exact_steps=1,
                push_s=[9.0, *[step_s / 2] * 3],
                pull_s=[step_s / 2] * 4,
            )
        )
        records.append(FactRecord(request, plain(answer), finished_s=9.0))
    pairs = [("node0", "node1"), ("node0", "node2"), ("node1", "node2")]
    links = [link(a, b, mbps) for a, b in pairs] if mbps else []
    return facts(*places, *records, *links)


def test_the_run_has_the_sizes_of_the_job_only_if_that_is_asked_for() -> None:
    asked = requests(served(MATRIX, claim("parameter_shape", (2048,))))
    assert {request.params["steps"] for request in asked} == {PROFILE_STEPS}
    task = tasks.from_params(asked[0].params["model"])
    # Both together are a little more than the 16 MiB that a run may take.
    assert [parameter.shape for parameter in task.dense] == [(1024, 2048), (1024,)]
    assert "slice_bytes" not in asked[0].params
    small = requests(served(MATRIX), fleet(3))
    assert "model" not in small[0].params and small[0].params["steps"] == STEPS


def test_a_large_model_is_divided_until_the_smallest_node_has_room() -> None:
    table = replace(claim("embedding_shape", (10_000_000, 64)), span=Span("train.py", 3, 1, 3, 9, "table"))
    sparse = replace(claim("embedding_sparse", True), because=(table,))
    shape = job_shape(served(MATRIX, table, sparse), Facts(), ["node0"])
    assert shape is not None and shape.tables and shape.stated_bytes == 16 * MIB
    size = 4 * (shape.dense[0][0] * 2048 + shape.tables[0][0] * 64)
    assert size <= MAX_BYTES * 1.01 and shape.divisor == 154
    crowded = facts(fact(server_place, "node0", ServerPlace(memory_free_bytes=128 * MIB)))
    shared = job_shape(served(MATRIX), crowded, ["node0"] * 4)
    assert shared is not None and shared.divisor == 4 and shared.dense == ((512, 2048),)


def test_a_model_of_unknown_size_is_not_profiled() -> None:
    unsized = served(claim("parameter_shape", Unresolved("rows")))
    assert "model" not in requests(unsized)[0].params
    verdict = one(judge(servers_slower_than_links, unsized, PROFILED, run(unsized, step_s=0.1)), Status.UNKNOWN)
    assert "the size of every parameter" in verdict.message


@pytest.mark.parametrize(("step_s", "status"), [(0.5, Status.PASS), (2.0, Status.FAIL)])
def test_the_time_of_a_step_is_compared_with_the_slowest_link(step_s: float, status: Status) -> None:
    # The server sends 16 MiB to each of two workers: 0.268 s at 1 Gbit/s.
    verdict = one(
        judge(servers_slower_than_links, served(MATRIX), PROFILED, run(served(MATRIX), step_s=step_s)), status
    )
    text = verdict.subject + verdict.message
    assert "exchanged 32 MiB with one server" in text and "268 ms" in text


@pytest.mark.parametrize(
    ("missing", "reason"), [({"mbps": None}, "no link was measured"), ({"cores": 0.5}, "more processes than cores")]
)
def test_what_does_not_reflect_the_network_is_unknown(missing: dict[str, Any], reason: str) -> None:
    slow = run(served(MATRIX), step_s=9.0, **missing)
    assert reason in one(judge(servers_slower_than_links, served(MATRIX), PROFILED, slow), Status.UNKNOWN).message


def test_without_the_option_it_does_not_apply() -> None:
    verdicts = judge(servers_slower_than_links, served(MATRIX), fleet(3), run(served(MATRIX), step_s=1.0))
    assert "--profile-model" in one(verdicts, Status.NOT_APPLICABLE).message

"""The checks of the parameter-server run: what is planned, and what is said of the run that was recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.job import Job
from preflight.judgement import Check, Verdict
from preflight.node.child import plain
from preflight.outcome import Status
from preflight.recording import EventRecord, FactRecord, Facts, Fleet, Recording, Unavailable
from preflight.request import Request
from preflight.saved import load, save
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.smoke.server_end import (
    server_endpoint_unusable,
    server_or_worker_did_not_finish,
    told_differently,
)
from preflight_checks.smoke.server_load import server_load_uneven
from preflight_checks.smoke.server_plan import mode_of
from preflight_checks.smoke.server_results import (
    servers_trained_nothing,
    updates_lost_doubled_or_stale,
    wrong_server_result,
)
from preflight_checks.smoke.smoke import rank_did_not_finish
from reference_trainer import phases
from reference_trainer.oracle import Mismatch
from reference_trainer.ps.report import ServerReport, WorkerReport, WorkerSeen

from .build import fact, fleet, job, one, plan, stand_ins, statuses

JOB = job(
    ps_mode=True,
    ps_update_mode="async",
    ps_server_endpoints=("node0:6170", "node1:6170"),
    ps_worker_endpoints=("node2:6171", "node3:6171"),
)
END = (server_or_worker_did_not_finish, server_endpoint_unusable, told_differently)
RESULTS = (wrong_server_result, updates_lost_doubled_or_stale, server_load_uneven, servers_trained_nothing)
ALL = (*END, *RESULTS)


def requests(job_: Job = JOB, nodes: Fleet | None = None, known: Facts | None = None) -> list[Request]:
    return plan(server_or_worker_did_not_finish, job_, nodes or fleet(4), known)


def params(found: list[Request], name: str) -> list[Any]:
    return [request.params[name] for request in found]


def test_one_request_for_each_process_on_its_node_in_one_group() -> None:
    found = requests()
    assert [r.node for r in found] == ["node0", "node1", "node2", "node3"]
    assert params(found, "role") == ["server", "server", "worker", "worker"]
    assert params(found, "rank") == [0, 1, 2, 3] and params(found, "index") == [0, 1, 0, 1]
    assert params(found, "endpoint") == ["node0:6170", "node1:6170", "", ""]
    assert {tuple(p) for p in params(found, "server_endpoints")} == {("node0:6170", "node1:6170")}
    assert params(found, "numbers")[0] == {"server": [0, 1], "worker": [2, 3]}
    assert set(params(found, "mode")) == {"async"}
    assert all(r.context and r.required and r.group == "smoke train" for r in found)
    assert {claim.quantity for claim in found[0].because} >= {"ps_server_endpoints", "ps_update_mode"}
    assert not [r for r in requests() if "secret" in r.params]


def test_collective_jobs_are_left_alone_and_servers_are_no_collective() -> None:
    collective = job(nodes=2, processes_per_node=1)
    assert requests(collective) == []
    for check in ALL:
        assert statuses(list(check.judge(collective, fleet(2), Facts()))) == {"not-applicable"}
    assert plan(rank_did_not_finish, JOB, fleet(4)) == []


def test_the_mode_is_the_jobs_own() -> None:
    assert mode_of(job(ps_mode=True), Fleet()).name == "sync"
    assert mode_of(job(ps_mode=True, ps_update_mode="half-async"), Fleet()).name == "async"
    geo = mode_of(job(ps_mode=True, ps_update_mode="geo", geo_steps=100), Fleet())
    assert geo.name == "geo" and 1 < geo.geo_steps < 100 and "the job: 100" in geo.why


def test_workers_take_the_gpus_that_torch_can_use_one_each() -> None:
    two = job(ps_mode=True, ps_servers=1, ps_workers=2)
    records = [
        fact(gpus, "node0", Gpus(gpus=[Gpu(0), Gpu(1)])),
        fact(packages, "node0", Packages("3.11", "/usr/bin/python3", torch=Framework("2.9.0", "12.8"))),
    ]
    assert params(requests(two, fleet(1), Facts(tuple(records))), "worker_device") == ["cpu", "cuda:0", "cuda:1"]
    assert params(requests(two, fleet(1)), "worker_device") == ["cpu"] * 3


def test_one_machine_that_plays_all_nodes_listens_on_different_ports() -> None:
    ends = params(requests(nodes=stand_ins(4)), "endpoint")
    assert ends == ["127.0.0.1:6170", "127.0.0.1:6171", "", ""]


def test_a_run_that_cannot_be_planned_is_told_with_its_reason() -> None:
    untold = job(ps_mode=True)
    assert requests(untold, fleet(2)) == []
    for check in ALL:
        verdict = one(list(check.judge(untold, fleet(2), Facts())), Status.UNKNOWN)
        assert "nothing says how many servers" in verdict.message and not verdict.required


def server(index: int, **changes: Any) -> ServerReport:
    seen = [WorkerSeen(w, f"node{w + 2}", 1, f"10.0.0.{w}", pushes=40, bytes_in=1000, bytes_out=1000) for w in (0, 1)]
    healthy = ServerReport(
        *(index, index, 2, 2, f"node{index}", f"node{index}:6170", "async", "cpu", "2.9.0"),
        dense_bytes=5000,
        seen=seen,
        staleness={"0": 30, "1": 10},
        expected_pushes=40,
    )
    return replace(healthy, **changes)


def worker(index: int, **changes: Any) -> WorkerReport:
    healthy = WorkerReport(
        *(index + 2, index, 2, 2, f"node{index + 2}", "async", "cpu", "2.9.0"),
        exact_steps=20,
        steps=20,
        losses=[2.3, 1.9, 1.4, 1.0, 0.6],
        first_loss=2.3,
        last_loss=0.6,
        exact_digest="aa",
        digest="bb",
    )
    return replace(healthy, **changes)


Answer = ServerReport | WorkerReport | Unavailable
Said = tuple[int, float, str, dict[str, Any]]


def recorded(*answers: Answer, events: tuple[Said, ...] = ()) -> Facts:
    """What the four processes came to; events are (number, at_s, origin, data). It goes through a saved recording."""
    asked = requests()
    records = tuple(
        FactRecord(request, unavailable=answer, finished_s=9.0)
        if isinstance(answer, Unavailable)
        else FactRecord(request, plain(answer), finished_s=9.0)
        for request, answer in zip(asked, answers, strict=True)
    )
    said = tuple(EventRecord(asked[n].key, asked[n].node, at_s, origin, data) for n, at_s, origin, data in events)
    recording = Recording((JOB,), "2026-01-01T00:00:00+00:00", "0", facts=records, events=said)
    again = load(save(recording))
    return Facts(again.facts, again.events)


HEALTHY = (server(0), server(1), worker(0), worker(1))


def hellos(**odd: dict[str, Any]) -> tuple[Said, ...]:
    """Everybody says who they are; `n2={...}` changes what number 2 says."""
    said = []
    for number, request in enumerate(requests()):
        names = ("role", "index", "servers", "workers", "server_endpoints", "endpoint")
        details = {name: request.params[name] for name in names} | {"pid": 100 + number, "host": request.node}
        details |= odd.get(f"n{number}", {})
        said.append((number, 0.5, "child", {"event": phases.PHASE, "phase": phases.STARTED, "details": details}))
    return tuple(said)


def dials(**results: str) -> tuple[Said, ...]:
    """Every worker has dialled every server; `d2_1="refused"` says what came of number 2 dialling number 1."""
    said: list[Said] = []
    for number in (0, 1):
        said.append((number, 0.6, "child", {"event": phases.PHASE, "phase": phases.LISTENING}))
        for own in (2, 3):
            result = results.get(f"d{own}_{number}", "open")
            dial = {"event": phases.DIAL, "to": number, "result": result, "endpoint": f"node{number}:6170"}
            said += [(own, at_s, "child", dial) for at_s in (1.0, 4.0)]
    said += [(number, 8.9, "child", {"event": phases.BEAT, "progress": 0}) for number in range(4)]
    return tuple(said)


def judged(check: Check, facts: Facts) -> list[Verdict]:
    return list(check.judge(JOB, fleet(4), facts))


def finding(check: Check, facts: Facts) -> Verdict:
    return one(judged(check, facts), Status.FAIL)


def test_a_healthy_run_passes_every_check_and_says_what_it_was() -> None:
    healthy = recorded(*HEALTHY, events=(*hellos(), *dials()))
    for check in ALL:
        assert statuses(judged(check, healthy)) == {"pass"}, check.meta.id
    (verdict,) = judged(server_or_worker_did_not_finish, healthy)
    assert "servers 0, 1 and workers 0, 1 on 4 nodes (async, as the job)" in str(verdict.subject)


CANCELLED = Unavailable("cancelled", "stopped because of server 1 on node1")


def test_a_dead_server_is_named_with_those_who_wait_for_it() -> None:
    died = Unavailable("crashed", "died", "line one\nMemoryError", -9)
    facts = recorded(CANCELLED, died, CANCELLED, CANCELLED, events=(*hellos(), *dials()))
    verdict = finding(server_or_worker_did_not_finish, facts)
    assert verdict.subject == "server 1 on node1" and verdict.nodes == ("node1",)
    assert "was killed by SIGKILL" in verdict.message
    assert "server 0 and workers 0, 1 could not go on because of it" in verdict.message
    assert "MemoryError" in str(verdict.evidence)
    for check in RESULTS:
        assert "blocked by SMK021" in one(judged(check, facts), Status.UNKNOWN).message
    assert statuses(judged(told_differently, facts)) == {"pass"}
    assert statuses(judged(server_endpoint_unusable, facts)) == {"pass"}


def test_a_path_is_told_by_its_own_check() -> None:
    facts = recorded(*(CANCELLED,) * 4, events=(*hellos(), *dials(d2_1="refused")))
    verdict = finding(server_endpoint_unusable, facts)
    assert set(verdict.nodes) == {"node2", "node1"}
    assert "worker 0 on node2 cannot open server 1 on node1" in verdict.message
    assert "blocked by SMK022" in one(judged(server_or_worker_did_not_finish, facts), Status.UNKNOWN).message


def test_a_port_that_cannot_be_listened_on_is_told_by_the_same_check() -> None:
    problem = {"event": phases.PROBLEM, "problem": "listen", "error": "cannot listen on port 6170: in use"}
    facts = recorded(*(CANCELLED,) * 4, events=(*hellos(), (1, 0.7, "child", problem)))
    verdict = finding(server_endpoint_unusable, facts)
    assert verdict.nodes == ("node1",) and "must serve, but cannot listen on port 6170" in verdict.message


@pytest.mark.parametrize(
    ("odd", "nodes", "words"),
    [
        ({"n2": {"index": 1}}, {"node2", "node3"}, "are both worker 1; nobody is worker 0"),
        ({"n3": {"workers": 3}}, {"node3"}, "was told of 3 workers"),
        ({"n1": {"endpoint": "node9:6170"}}, {"node1"}, "not in its own list of servers"),
        ({"n0": {"role": "SERVER"}}, {"node0"}, "the role 'SERVER'"),
        ({"n2": {"index": ""}}, {"node2"}, "which is no number"),
    ],
)
def test_what_does_not_fit_together_is_told_by_its_own_check(
    odd: dict[str, dict[str, Any]], nodes: set[str], words: str
) -> None:
    facts = recorded(*(CANCELLED,) * 4, events=hellos(**odd))
    verdict = finding(told_differently, facts)
    assert set(verdict.nodes) == nodes and words in verdict.message
    assert "blocked by SMK023" in one(judged(server_or_worker_did_not_finish, facts), Status.UNKNOWN).message


def test_places_that_nobody_was_started_for() -> None:
    everybody = {f"n{number}": {"workers": 3} for number in range(4)}
    verdict = finding(told_differently, recorded(*(CANCELLED,) * 4, events=hellos(**everybody)))
    assert "nobody was started as worker 2" in verdict.message


def test_nobody_starts() -> None:
    facts = recorded(*(Unavailable("context", "`python3` is not there"),) * 4)
    verdict = one(judged(server_or_worker_did_not_finish, facts), Status.UNKNOWN)
    assert (verdict.required and "nobody could start on node[0-3]" in verdict.message) or "node0" in verdict.message
    for check in ALL[1:]:
        assert one(judged(check, facts), Status.UNKNOWN).message.startswith("blocked by SMK02")


def mismatch(**changes: Any) -> Mismatch:
    wrong = Mismatch("pull of hidden.weight, server 1", 2, 10240, 1, 77, "3.0", "-3.0", "sign", {}, "one bit differs")
    return replace(wrong, **changes)


def test_a_wrong_bit_names_the_shard_and_who_sees_it() -> None:
    facts = recorded(server(0), server(1), worker(0, mismatches=[mismatch()]), worker(1))
    verdict = finding(wrong_server_result, facts)
    assert verdict.nodes == ("node2",)
    assert "pull of hidden.weight, server 1: on worker 0 (node2) element 77 is -3.0" in verdict.message


def test_a_lost_push_is_laid_to_the_worker_whose_it_was() -> None:
    wrong = mismatch(contributions={"1": 0}, explanation="the push of worker 1 is missing")
    facts = recorded(server(0), server(1, mismatches=[wrong]), worker(0, mismatches=[wrong]), worker(1))
    assert finding(wrong_server_result, facts).nodes == ("node3",)


def test_workers_that_pull_different_parameters() -> None:
    facts = recorded(server(0), server(1), worker(0), worker(1, exact_digest="zz"))
    assert "pulled other parameters" in finding(wrong_server_result, facts).message
    after = recorded(server(0), server(1), worker(0), worker(1, digest="zz"))
    assert "reads other parameters" in finding(servers_trained_nothing, after).message


@pytest.mark.parametrize(("pushes", "word"), [(39, "1 lost"), (41, "1 doubled")])
def test_pushes_that_are_not_as_many_as_the_steps(pushes: int, word: str) -> None:
    seen = server(1).seen
    facts = recorded(server(0), server(1, seen=[seen[0], replace(seen[1], pushes=pushes)]), worker(0), worker(1))
    verdict = finding(updates_lost_doubled_or_stale, facts)
    assert verdict.nodes == ("node1", "node3")
    assert (
        f"server 1 on node1 applied {pushes} pushes of worker 1 on node3; 40 were expected: {word}" in verdict.message
    )


def test_reads_past_the_bound_and_violations_of_the_protocol() -> None:
    late = server(0, mode="ssp", staleness={"0": 5, "4": 2}, staleness_bound=3)
    verdict = finding(updates_lost_doubled_or_stale, recorded(late, server(1), worker(0), worker(1)))
    assert "2 reads go ahead of the slowest worker by up to 4 steps; in mode ssp at most 3" in verdict.message
    broken = server(0, violations=["push 7 of worker 1 came twice"])
    assert "came twice" in finding(updates_lost_doubled_or_stale, recorded(broken, server(1), *HEALTHY[2:])).message
    free = server(0, staleness={"9": 5})
    assert statuses(judged(updates_lost_doubled_or_stale, recorded(free, server(1), *HEALTHY[2:]))) == {"pass"}


def test_a_server_that_moves_more_than_its_share() -> None:
    busy = server(0, seen=[replace(seen, bytes_in=9000) for seen in server(0).seen])
    verdict = finding(server_load_uneven, recorded(busy, server(1), worker(0), worker(1)))
    assert verdict.nodes == ("node0",) and "holds 50% of the parameters" in verdict.message


def test_a_load_that_no_server_tells_is_not_taken_for_even() -> None:
    silent = recorded(server(0, seen=[]), server(1, seen=[]), worker(0), worker(1))
    assert statuses(judged(server_load_uneven, silent)) == {"unknown"}


def test_training_that_moves_nothing_or_learns_nothing() -> None:
    still = recorded(server(0), server(1), worker(0, unmoved=["hidden.weight"]), worker(1))
    assert "hidden.weight did not change in 20 steps" in finding(servers_trained_nothing, still).message
    flat = recorded(server(0), server(1), worker(0, last_loss=2.3), worker(1))
    assert "went from 2.3 to 2.3" in finding(servers_trained_nothing, flat).message
    apart = recorded(server(0), server(1), worker(0, difference_to_one_process=0.1), worker(1))
    assert "differ by 0.1" in finding(servers_trained_nothing, apart).message

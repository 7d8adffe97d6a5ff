"""The checks of the parameter-server run: the planned processes, and the verdicts about a recorded run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.agent.child import plain
from preflight.model.configuration import SmokeOptions
from preflight.model.findings import Status
from preflight.model.job import Job
from preflight.model.recording import EventRecord, FactRecord, Facts, Fleet, Recording, Unavailable
from preflight.model.recording_io import load, save
from preflight.model.requests import Request
from preflight.plugins.authoring import Check, Verdict
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.smoke.completion import rank_did_not_finish
from preflight_checks.smoke.server_results import (
    process_settings_differ,
    server_endpoint_unusable,
    server_or_worker_did_not_finish,
    servers_trained_nothing,
    updates_lost_doubled_or_stale,
    wrong_server_result,
)
from preflight_checks.smoke.server_run import mode_of
from preflight_checks.smoke.server_traffic import server_load_uneven
from reference_trainer.common.oracle import Mismatch
from reference_trainer.ps.run_report import ServerReport, ServerStats, WorkerReport, WorkerStats
from tests.checks.check_builders import fact, fleet, job, local_fleet, one, plan, statuses

JOB = job(
    ps_mode=True,
    ps_update_mode="async",
    ps_server_endpoints=("node0:6170", "node1:6170"),
    ps_worker_endpoints=("node2:6171", "node3:6171"),
)
END = (server_or_worker_did_not_finish, server_endpoint_unusable, process_settings_differ)
RESULTS = (wrong_server_result, updates_lost_doubled_or_stale, server_load_uneven, servers_trained_nothing)
ALL = (*END, *RESULTS)


def requests(job_: Job = JOB, nodes: Fleet | None = None, known: Facts | None = None) -> list[Request]:
    return plan(server_or_worker_did_not_finish, job_, nodes or fleet(4), known)


def params(requests: list[Request], name: str) -> list[Any]:
    return [request.params[name] for request in requests]


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


def test_collective_jobs_are_not_applicable() -> None:
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
    asked = requests(two, fleet(1), Facts(tuple(records)))
    assert params(asked, "worker_device") == ["cpu", "cuda", "cuda"] and params(asked, "local_index") == [0, 0, 1]
    assert params(asked, "server_device") == ["cpu"] * 3
    assert params(requests(two, fleet(1)), "worker_device") == ["cpu"] * 3


def test_servers_keep_parameters_where_the_job_or_the_user_says() -> None:
    two = {"ps_mode": True, "ps_servers": 2, "ps_workers": 1}
    records = Facts(
        (
            fact(gpus, "node0", Gpus(gpus=[Gpu(0), Gpu(1)])),
            fact(packages, "node0", Packages("3.11", "/usr/bin/python3", torch=Framework("2.9.0", "12.8"))),
        )
    )
    box = requests(job(**two, ps_update_mode="gpubox"), fleet(1), records)
    assert params(box, "server_device") == ["cuda"] * 3 and params(box, "local_index") == [0, 1, 0]
    # torch finds no GPU there.
    assert params(requests(job(**two, ps_update_mode="gpubox"), fleet(1)), "server_device") == ["cpu"] * 3
    chosen = replace(fleet(1), smoke_options=SmokeOptions(server_device="cuda"))
    assert params(requests(job(**two), chosen, records), "server_device") == ["cuda"] * 3
    assert SmokeOptions(server_device="cpu").about_servers == ("--server-device",)


def test_nodes_on_one_machine_listen_on_different_ports() -> None:
    ends = params(requests(nodes=local_fleet(4)), "endpoint")
    assert ends == ["127.0.0.1:6170", "127.0.0.1:6171", "", ""]


def test_an_impossible_plan_has_a_reason() -> None:
    untold = job(ps_mode=True)
    assert requests(untold, fleet(2)) == []
    for check in ALL:
        verdict = one(list(check.judge(untold, fleet(2), Facts())), Status.UNKNOWN)
        assert "nothing states how many servers" in verdict.message and not verdict.required


def server(index: int, **changes: Any) -> ServerReport:
    seen = [WorkerStats(w, f"node{w + 2}", 1, f"10.0.0.{w}", pushes=40, bytes_in=1000, bytes_out=1000) for w in (0, 1)]
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
Event = tuple[int, float, str, dict[str, Any]]


def recorded(*answers: Answer, events: tuple[Event, ...] = ()) -> Facts:
    """The run of four processes, read from a saved recording; events are (number, at_s, origin, data)."""
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


def hello_events(**odd: dict[str, Any]) -> tuple[Event, ...]:
    """The roles that all processes report; `n2={...}` changes the report of number 2."""
    said = []
    for number, request in enumerate(requests()):
        names = ("role", "index", "servers", "workers", "server_endpoints", "endpoint")
        details = {name: request.params[name] for name in names} | {"pid": 100 + number, "host": request.node}
        details |= odd.get(f"n{number}", {})
        said.append(
            (number, 0.5, "child", {"event": rank_events.PHASE, "phase": rank_events.STARTED, "details": details})
        )
    return tuple(said)


def dial_events(**results: str) -> tuple[Event, ...]:
    """Every worker has dialled every server; `d2_1="refused"` is the result of number 2 dialling number 1."""
    said: list[Event] = []
    for number in (0, 1):
        said.append((number, 0.6, "child", {"event": rank_events.PHASE, "phase": rank_events.LISTENING}))
        for own in (2, 3):
            result = results.get(f"d{own}_{number}", "open")
            dial = {"event": rank_events.DIAL, "to": number, "result": result, "endpoint": f"node{number}:6170"}
            said += [(own, at_s, "child", dial) for at_s in (1.0, 4.0)]
    said += [
        (number, 8.9, "child", {"event": rank_events.BEAT, "progress": 0, "starved_s": 0.0}) for number in range(4)
    ]
    return tuple(said)


def judged(check: Check, facts: Facts) -> list[Verdict]:
    return list(check.judge(JOB, fleet(4), facts))


def finding(check: Check, facts: Facts) -> Verdict:
    return one(judged(check, facts), Status.FAIL)


def test_a_healthy_run_passes_every_check() -> None:
    healthy = recorded(*HEALTHY, events=(*hello_events(), *dial_events()))
    for check in ALL:
        assert statuses(judged(check, healthy)) == {"pass"}, check.meta.id
    (verdict,) = judged(server_or_worker_did_not_finish, healthy)
    assert "servers 0, 1 and workers 0, 1 on 4 nodes (async, as in the job)" in str(verdict.subject)


CANCELLED = Unavailable("cancelled", "stopped because of server 1 on node1")


def test_a_dead_server_is_named_with_its_waiting_peers() -> None:
    died = Unavailable("crashed", "died", "line one\nMemoryError", -9)
    facts = recorded(CANCELLED, died, CANCELLED, CANCELLED, events=(*hello_events(), *dial_events()))
    verdict = finding(server_or_worker_did_not_finish, facts)
    assert verdict.subject == "server 1 on node1" and verdict.nodes == ("node1",)
    assert "was killed by SIGKILL" in verdict.message
    assert "server 0 and workers 0, 1 could not continue because of it" in verdict.message
    assert "MemoryError" in str(verdict.evidence)
    for check in RESULTS:
        assert "blocked by SMK021" in one(judged(check, facts), Status.UNKNOWN).message
    assert statuses(judged(process_settings_differ, facts)) == {"pass"}
    assert statuses(judged(server_endpoint_unusable, facts)) == {"pass"}


def test_processes_that_lost_their_connections_together_blame_no_node() -> None:
    lost = Unavailable("blocked", "Connection reset by peer")
    failed = tuple(
        (number, 8.0, "child", {"event": rank_events.PROBLEM, "problem": "failed", "consequence": True})
        for number in range(4)
    )
    facts = recorded(*(lost,) * 4, events=(*hello_events(), *dial_events(), *failed))
    verdict = finding(server_or_worker_did_not_finish, facts)
    assert (verdict.subject, len(verdict.nodes)) == ("parameter-server run", 4)
    assert "servers 0, 1 and workers 0, 1 on node0, node1, node2, node3 lost their connections" in verdict.message
    assert verdict.remedy.startswith("Check the path between the nodes")


def test_a_closed_path_is_left_to_smk022() -> None:
    facts = recorded(*(CANCELLED,) * 4, events=(*hello_events(), *dial_events(d2_1="refused")))
    verdict = finding(server_endpoint_unusable, facts)
    assert set(verdict.nodes) == {"node2", "node1"}
    assert "worker 0 on node2 cannot open the port of server 1 on node1" in verdict.message
    assert "blocked by SMK022" in one(judged(server_or_worker_did_not_finish, facts), Status.UNKNOWN).message


def test_a_port_in_use_is_reported_by_smk022() -> None:
    problem = {"event": rank_events.PROBLEM, "problem": "listen", "error": "cannot listen on port 6170: in use"}
    facts = recorded(*(CANCELLED,) * 4, events=(*hello_events(), (1, 0.7, "child", problem)))
    verdict = finding(server_endpoint_unusable, facts)
    assert verdict.nodes == ("node1",) and "must serve, but cannot listen on port 6170" in verdict.message


@pytest.mark.parametrize(
    ("odd", "nodes", "words"),
    [
        ({"n2": {"index": 1}}, {"node2", "node3"}, "are both worker 1; no process is worker 0"),
        ({"n3": {"workers": 3}}, {"node3"}, "was configured with 3 workers"),
        ({"n1": {"endpoint": "node9:6170"}}, {"node1"}, "not in its own list of servers"),
        ({"n0": {"role": "SERVER"}}, {"node0"}, "the role 'SERVER'"),
        ({"n2": {"index": ""}}, {"node2"}, "which is not a number"),
    ],
)
def test_inconsistent_settings_are_reported_by_smk023(
    odd: dict[str, dict[str, Any]], nodes: set[str], words: str
) -> None:
    facts = recorded(*(CANCELLED,) * 4, events=hello_events(**odd))
    verdict = finding(process_settings_differ, facts)
    assert set(verdict.nodes) == nodes and words in verdict.message
    assert "blocked by SMK023" in one(judged(server_or_worker_did_not_finish, facts), Status.UNKNOWN).message


def test_unfilled_indexes() -> None:
    everybody = {f"n{number}": {"workers": 3} for number in range(4)}
    verdict = finding(process_settings_differ, recorded(*(CANCELLED,) * 4, events=hello_events(**everybody)))
    assert "no process was started as worker 2" in verdict.message


def test_no_process_starts() -> None:
    facts = recorded(*(Unavailable("context", "`python3` is not there"),) * 4)
    verdict = one(judged(server_or_worker_did_not_finish, facts), Status.UNKNOWN)
    assert (verdict.required and "no process could start on node[0-3]" in verdict.message) or "node0" in verdict.message
    for check in ALL[1:]:
        assert one(judged(check, facts), Status.UNKNOWN).message.startswith("blocked by SMK02")


def mismatch(**changes: Any) -> Mismatch:
    wrong = Mismatch("pull of hidden.weight, server 1", 2, 10240, 1, 77, "3.0", "-3.0", "sign", {}, "one bit differs")
    return replace(wrong, **changes)


def test_a_wrong_bit_names_the_shard_and_its_observer() -> None:
    facts = recorded(server(0), server(1), worker(0, mismatches=[mismatch()]), worker(1))
    verdict = finding(wrong_server_result, facts)
    assert verdict.nodes == ("node2",)
    assert "pull of hidden.weight, server 1: on worker 0 (node2) element 77 is -3.0" in verdict.message


def test_a_lost_push_is_attributed_to_its_worker() -> None:
    wrong = mismatch(contributions={"1": 0}, explanation="the push of worker 1 is missing")
    facts = recorded(server(0), server(1, mismatches=[wrong]), worker(0, mismatches=[wrong]), worker(1))
    assert finding(wrong_server_result, facts).nodes == ("node3",)
    assert finding(wrong_server_result, facts).processes == ("worker 1",)


def test_a_wrong_tensor_names_its_receiver_and_sender() -> None:
    facts = recorded(server(0), server(1), worker(0, mismatches=[mismatch(sender="server 1")]), worker(1))
    assert finding(wrong_server_result, facts).processes == ("worker 0", "server 1")


def test_workers_with_different_parameters_fail() -> None:
    facts = recorded(server(0), server(1), worker(0), worker(1, exact_digest="zz"))
    assert "pulled different parameters" in finding(wrong_server_result, facts).message
    after = recorded(server(0), server(1), worker(0), worker(1, digest="zz"))
    assert "reads different parameters" in finding(servers_trained_nothing, after).message


@pytest.mark.parametrize(("pushes", "word"), [(39, "1 lost"), (41, "1 doubled")])
def test_pushes_differ_from_steps(pushes: int, word: str) -> None:
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
    assert "allowed 2 reads up to 4 steps ahead of the slowest worker; mode ssp permits at most 3" in verdict.message
    broken = server(0, violations=["push 7 of worker 1 came twice"])
    assert "came twice" in finding(updates_lost_doubled_or_stale, recorded(broken, server(1), *HEALTHY[2:])).message
    free = server(0, staleness={"9": 5})
    assert statuses(judged(updates_lost_doubled_or_stale, recorded(free, server(1), *HEALTHY[2:]))) == {"pass"}


def test_a_server_moves_more_than_its_share() -> None:
    busy = server(0, seen=[replace(seen, bytes_in=9000) for seen in server(0).seen])
    verdict = finding(server_load_uneven, recorded(busy, server(1), worker(0), worker(1)))
    assert verdict.nodes == ("node0",) and "holds 50% of the parameters" in verdict.message


def test_a_server_for_whose_replies_all_workers_wait_is_named_as_slow() -> None:
    def waiting(index: int, *seconds: float) -> WorkerReport:
        return worker(index, seen=[ServerStats(i, f"node{i}:6170", waited_s=each) for i, each in enumerate(seconds)])

    late = recorded(server(0), server(1), waiting(0, 0.4, 69.0), waiting(1, 0.3, 81.0))
    found = finding(server_load_uneven, late)
    assert found.nodes == ("node1",) and "waited at least 69 s for replies of server 1 on node1" in found.message
    held = server(1, seen=[replace(seen, waited_s=68.0) for seen in server(1).seen])
    for answers in (
        (server(0), held, waiting(0, 0.4, 69.0), waiting(1, 0.3, 81.0)),
        (server(0), server(1), waiting(0, 0.4, 69.0), waiting(1, 0.3, 0.5)),
        (server(0), server(1), waiting(0, 40.0, 69.0), waiting(1, 40.0, 69.0)),
        (server(0), server(1), waiting(0, 0.1, 1.9), waiting(1, 0.1, 1.9)),
    ):
        assert statuses(judged(server_load_uneven, recorded(*answers))) == {"pass"}


def test_an_unreported_load_is_unknown() -> None:
    silent = recorded(server(0, seen=[]), server(1, seen=[]), worker(0), worker(1))
    assert statuses(judged(server_load_uneven, silent)) == {"unknown"}


def test_training_without_effect() -> None:
    still = recorded(server(0), server(1), worker(0, unmoved=["hidden.weight"]), worker(1))
    assert "hidden.weight did not change in 20 steps" in finding(servers_trained_nothing, still).message
    flat = recorded(server(0), server(1), worker(0, last_loss=2.3), worker(1))
    assert "changed from 2.3 to 2.3" in finding(servers_trained_nothing, flat).message
    apart = recorded(server(0), server(1), worker(0, difference_to_one_process=0.1), worker(1))
    assert "differ by 0.1" in finding(servers_trained_nothing, apart).message

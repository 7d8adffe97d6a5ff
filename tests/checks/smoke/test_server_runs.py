"""The checks of the parameter-server run: the planned processes, and the verdicts about a recorded run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.agent.child import plain
from preflight.model.findings import Severity, Status
from preflight.model.job import Job, Launch, Scope, Span, Strength, Unresolved
from preflight.model.recording import (
    EventRecord,
    FactRecord,
    Facts,
    Fleet,
    InjectedFault,
    Recording,
    SmokeOptions,
    Unavailable,
)
from preflight.model.recording_io import load, save
from preflight.model.requests import Request
from preflight.plugins.authoring import Check, Verdict
from preflight_checks.probes.environment import Environment, ResolvedHost, ServerPlace, environment, server_place
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.link_quality import Direction, Quality, measure
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.probes.ports import FreePorts, free_ports
from preflight_checks.smoke.completion import injected_fault_not_named, rank_did_not_finish
from preflight_checks.smoke.server_results import (
    process_settings_differ,
    server_endpoint_unusable,
    server_load_uneven,
    server_or_worker_did_not_finish,
    servers_slower_than_links,
    servers_trained_nothing,
    updates_lost_doubled_or_stale,
    worker_replaced,
    wrong_server_result,
)
from preflight_checks.smoke.server_run import MAX_BYTES, PROFILE_STEPS, STEPS, Process, job_shape, mode_of, processes
from reference_trainer.common.oracle import Mismatch
from reference_trainer.ps import tasks
from reference_trainer.ps.run_report import Replacement, ServerReport, ServerStats, WorkerReport, WorkerStats
from tests.checks.check_builders import claim, fact, facts, fleet, job, judge, local_fleet, one, plan, statuses

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
    assert SmokeOptions(server_device="cpu").server_options == ("--server-device",)


def test_nodes_on_one_machine_listen_on_different_ports() -> None:
    ends = params(requests(nodes=local_fleet(4)), "endpoint")
    assert ends == ["127.0.0.1:6170", "127.0.0.1:6171", "", ""]


def test_an_impossible_plan_has_a_reason() -> None:
    untold = job(ps_mode=True)
    assert requests(untold, fleet(2)) == []
    for check in ALL:
        verdict = one(list(check.judge(untold, fleet(2), Facts())), Status.UNKNOWN)
        assert "the number of servers is not given" in verdict.message and not verdict.required


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
        f"server 1 on node1 applied {pushes} pushes of worker 1 on node3, but 40 were expected: {word}"
        in verdict.message
    )


def test_reads_past_the_bound_and_violations_of_the_protocol() -> None:
    late = server(0, mode="ssp", staleness={"0": 5, "4": 2}, staleness_bound=3)
    verdict = finding(updates_lost_doubled_or_stale, recorded(late, server(1), worker(0), worker(1)))
    assert (
        "allowed 2 reads up to 4 steps ahead of the slowest worker, but mode ssp permits at most 3" in verdict.message
    )
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


# The servers and workers of a job, their nodes and settings: from files, and from the nodes' environments.


SERVERS = ("10.0.0.1:6170", "10.0.0.2:6170")


def processes_of(job_: Job, nodes: Fleet, *records: FactRecord) -> tuple[Process, ...]:
    found = processes(job_, nodes, Facts(records))
    assert not isinstance(found, str), found
    return found


def summary(processes: tuple[Process, ...]) -> list[str]:
    """Kind, node, index, endpoint of each."""
    return [f"{p.kind} {p.index} {p.node.name} {p.endpoint}".strip() for p in processes]


def launched(*lines: dict[str, Any]) -> Job:
    """A job with a launch line for each process."""
    launches, claims = [], []
    for number, values in enumerate(lines, start=1):
        span = Span("start.sh", number, 1, number, 20, "python train.py")
        launches.append(Launch(f"start.sh:{number}", "python", span))
        scope = Scope(f"start.sh:{number}")
        claims += [claim(name, value, scope=scope) for name, value in {"ps_mode": True, **values}.items()]
    return Job("train", launches=tuple(launches), claims=tuple(claims))


def process_server(endpoint: str, index: int | None, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"ps_role": "PSERVER", "ps_server_endpoints": SERVERS, "ps_current_endpoint": endpoint}
    return {**values, **({} if index is None else {"ps_index": index}), "ps_workers": 2, **more}


def trainer(index: int | Unresolved, **more: Any) -> dict[str, Any]:
    return {"ps_role": "TRAINER", "ps_server_endpoints": SERVERS, "ps_index": index, "ps_workers": 2, **more}


def places(**hosts: str) -> list[FactRecord]:
    """The facts about the nodes' own addresses: node -> address."""
    known = [*hosts.values()]
    return [
        fact(server_place, node, ServerPlace([ResolvedHost(host, [host], host == own) for host in known]))
        for node, own in hosts.items()
    ]


def test_lists_of_one_launcher_put_each_process_on_its_host() -> None:
    listed = job(
        ps_mode=True,
        ps_server_endpoints=("node0:6170", "node1:6170"),
        ps_worker_endpoints=("node0:6171", "node1:6171", "node2:6171"),
    )
    found = processes_of(listed, fleet(3))
    assert summary(found) == [
        "server 0 node0 node0:6170",
        "server 1 node1 node1:6170",
        "worker 0 node0",
        "worker 1 node1",
        "worker 2 node2",
    ]
    assert {(p.servers, p.workers) for p in found} == {(2, 3)}


def test_addresses_are_found_on_their_nodes() -> None:
    listed = job(ps_mode=True, ps_server_endpoints=SERVERS, ps_worker_endpoints=("10.0.0.3:1", "10.0.0.4:1"))
    known = places(node0="10.0.0.2", node1="10.0.0.1", node2="10.0.0.4", node3="10.0.0.3")
    assert [p.node.name for p in processes_of(listed, fleet(4), *known)] == ["node1", "node0", "node3", "node2"]
    assert [p.node.name for p in processes_of(listed, fleet(4))] == ["node0", "node1", "node2", "node3"]


def test_numbers_are_distributed_over_nodes_with_unique_ports() -> None:
    counted = job(ps_mode=True, ps_servers=2, ps_workers=4)
    found = processes_of(counted, fleet(2))
    assert summary(found) == [
        "server 0 node0 node0:6170",
        "server 1 node1 node1:6170",
        "worker 0 node0",
        "worker 1 node0",
        "worker 2 node1",
        "worker 3 node1",
    ]
    assert [
        p.endpoint for p in processes_of(job(ps_mode=True, ps_servers=2, ps_workers=1), fleet(1)) if p.endpoint
    ] == [
        "node0:6170",
        "node0:6171",
    ]


def test_each_process_gets_the_settings_of_its_launch_line() -> None:
    found = processes_of(
        launched(
            process_server(SERVERS[0], 0), process_server("10.0.0.9:6170", None), trainer(1), trainer(1, ps_workers=3)
        ),
        fleet(4),
    )
    assert summary(found) == [
        "server 0 node0 10.0.0.1:6170",
        "server 1 node1 10.0.0.9:6170",
        "worker 1 node2",
        "worker 1 node3",
    ]
    assert sorted(p.workers for p in found) == [2, 2, 2, 3]
    assert {p.source for p in found} == {"start.sh:1", "start.sh:2", "start.sh:3", "start.sh:4"}


def test_an_unknown_role_stays_as_written() -> None:
    wrong = process_server(SERVERS[1], None, ps_role="SERVER")
    found = processes_of(launched(process_server(SERVERS[0], 0), wrong, trainer(0), trainer(1)), fleet(4))
    assert [(p.kind, p.role) for p in found][1] == ("server", "SERVER")


def test_a_list_in_another_order_stays_in_that_order() -> None:
    turned = trainer(1, ps_server_endpoints=SERVERS[::-1])
    found = processes_of(
        launched(process_server(SERVERS[0], 0), process_server(SERVERS[1], 1), trainer(0), turned), fleet(4)
    )
    assert found[3].server_endpoints == SERVERS[::-1] and found[2].server_endpoints == SERVERS


def test_an_extra_launch_line_starts_an_extra_process() -> None:
    found = processes_of(
        launched(process_server(SERVERS[0], 0), process_server(SERVERS[1], 1), trainer(0), trainer(1), trainer(2)),
        fleet(4),
    )
    assert [p.index for p in found] == [0, 1, 0, 1, 2]


def test_an_old_cluster_has_a_server_and_a_trainer_on_every_host() -> None:
    old = job(
        ps_mode=True, cluster_hosts=("node0", "node1"), hosts=("node0", "node1"), ps_workers=2, ps_servers=2,
        pserver_port=7164,
    )  # fmt: skip
    assert summary(processes_of(old, fleet(2))) == [
        "server 0 node0 node0:7164",
        "server 1 node1 node1:7164",
        "worker 0 node0",
        "worker 1 node1",
    ]


def pod(node: str, **variables: str) -> FactRecord:
    return fact(environment, node, Environment(variables), params={"run_key": ""})


def test_nodes_with_their_own_roles() -> None:
    lists = {"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6170", "PADDLE_TRAINERS_NUM": "2"}
    found = processes_of(
        job(ps_mode=True, ps_role=Unresolved("$TRAINING_ROLE is set by the caller")),
        fleet(4),
        pod("node0", TRAINING_ROLE="PSERVER", POD_IP="10.0.0.1", PADDLE_PORT="6170", **lists),
        pod("node1", TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="1", **lists),
        pod("node2", TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="", **{**lists, "PADDLE_TRAINERS_NUM": "3"}),
    )
    assert summary(found) == ["server 0 node0 10.0.0.1:6170", "worker 1 node1", "worker  node2"]
    assert [p.workers for p in found] == [2, 2, 3]
    assert found[2].source == "the environment of node2" and found[2].index == ""


def test_nodes_with_their_own_roles_get_what_the_script_sets_for_all() -> None:
    own = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINERS_NUM": "7", "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6170"}
    found = processes_of(
        job([claim("env.PADDLE_TRAINERS_NUM", "2")], ps_mode=True),
        fleet(2),
        pod("node0", PADDLE_TRAINER_ID="0", **own),
        pod("node1", PADDLE_TRAINER_ID="1", **own),
    )
    assert [(process.index, process.workers) for process in found] == [(0, 2), (1, 2)]


def test_every_endpoint_gets_a_port_if_nodes_share_a_machine() -> None:
    listed = job(ps_mode=True, ps_server_endpoints=SERVERS, ps_workers=2)
    found = processes_of(listed, local_fleet(4))
    assert found[0].server_endpoints == ("127.0.0.1:6170", "127.0.0.1:6171")
    assert [p.endpoint for p in found] == ["127.0.0.1:6170", "127.0.0.1:6171", "", ""]
    turned = launched(
        process_server(SERVERS[0], 0),
        process_server(SERVERS[1], 1),
        trainer(0),
        trainer(1, ps_server_endpoints=SERVERS[::-1]),
    )
    assert processes_of(turned, local_fleet(4))[3].server_endpoints == ("127.0.0.1:6171", "127.0.0.1:6170")


def test_free_ports_are_used_if_the_files_name_none() -> None:
    def endpoints_of(job_: Job, *more: FactRecord, nodes: int = 4) -> list[int]:
        found = processes_of(job_, local_fleet(nodes), free, *more)
        assert {p.server_endpoints for p in found} == {tuple(p.endpoint for p in found if p.endpoint)}
        return [int(p.endpoint.rpartition(":")[2]) for p in found if p.endpoint]

    free = fact(free_ports, "local0", FreePorts([20001, 6170, 20003]), params={"count": 32, "job": "train"})
    assert endpoints_of(job(ps_mode=True, ps_servers=2, ps_workers=2)) == [20001, 6170]
    assert endpoints_of(job(ps_mode=True, ps_servers=1, ps_workers=1), nodes=1) == [20001]
    assert endpoints_of(job(ps_mode=True, ps_server_endpoints=("a", "b:6170", "c:6170"), ps_workers=1)) == [
        20001,
        6170,
        20003,
    ]
    assert endpoints_of(job(ps_mode=True, pserver_hosts=("a", "b"), pserver_port=7164, ps_workers=2)) == [7164, 20001]
    old = replace(claim("pserver_port", 20134, "cluster_train/paddle.py"), strength=Strength.DEFAULT)
    assert endpoints_of(job([old], ps_mode=True, pserver_hosts=("a", "b"), ps_workers=2)) == [20001, 6170]
    told_by_node = {"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6171", "PADDLE_TRAINERS_NUM": "1"}
    one = pod("local0", TRAINING_ROLE="PSERVER", POD_IP="10.0.0.1", PADDLE_PORT="6171", **told_by_node)
    two = pod("local1", TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="0", **told_by_node)
    assert endpoints_of(job(ps_mode=True, ps_role=Unresolved("$TRAINING_ROLE is set by the caller")), one, two) == [
        6171
    ]


@pytest.mark.parametrize("known", [{}, {"ps_servers": 2}, {"ps_workers": 2}])
def test_unknown_numbers_have_a_reason(known: dict[str, int]) -> None:
    found = processes(job(ps_mode=True, **known), fleet(2), Facts())
    assert isinstance(found, str) and "the number of" in found


# A run with a backup worker: it replaced a worker, was not needed, or was not possible.


RECOVERY_JOB = job(ps_mode=True, ps_update_mode="async", ps_servers=1, ps_workers=2)
NODES = replace(fleet(4), smoke_options=SmokeOptions(backup=True))
TAKEN = Replacement(1, "node3", 3, 7, "worker 1 (node2, process 7) is gone", 0.1)
WORKER, SPARE = 2, 3


def recovery_server(*taken: Replacement) -> ServerReport:
    seen = [WorkerStats(w, f"node{w + 1}", 1, "10.0.0.9", pushes=40, bytes_in=10, bytes_out=10) for w in (0, 1)]
    said = (0, 0, 1, 2, "node0", "node0:6170", "async", "cpu", "2.9.0")
    return ServerReport(*said, dense_bytes=10, seen=seen, expected_pushes=40, replaced=list(taken))


def recovery_worker(number: int, index: int, **changes: Any) -> WorkerReport:
    said = (number, index, 1, 2, f"node{number}", "async", "cpu", "2.9.0")
    whole = WorkerReport(*said, exact_steps=20, steps=20, first_loss=2.0, last_loss=0.5, exact_digest="a", digest="b")
    return replace(whole, **changes)


def recovery_recorded(
    lost: Unavailable | WorkerReport, spare: WorkerReport, *taken: Replacement, nodes: Fleet = NODES
) -> Facts:
    asked = plan(worker_replaced, RECOVERY_JOB, nodes)
    answers = (recovery_server(*taken), recovery_worker(1, 0), lost, spare)
    records = tuple(
        FactRecord(request, unavailable=answer, finished_s=20.0)
        if isinstance(answer, Unavailable)
        else FactRecord(request, plain(answer), finished_s=20.0)
        for request, answer in zip(asked, answers, strict=True)
    )
    said: list[tuple[int, float, dict[str, Any]]] = [(WORKER, 5.5, {"event": rank_events.BEAT, "progress": 3})]
    if nodes.smoke_options.injected_fault is not None:
        said.append(
            (
                WORKER,
                5.6,
                {"event": rank_events.FAULT_INJECTED, "kind": nodes.smoke_options.injected_fault.kind, "step": 7},
            )
        )
    for one_ in taken:
        said.append((0, 6.3, {"event": rank_events.REPLACED, "worker": WORKER, "spare": SPARE, "clock": one_.clock}))
    events = tuple(EventRecord(asked[n].key, asked[n].node, at_s, "child", data) for n, at_s, data in said)
    return Facts(records, events)


KILLED = Unavailable("crashed", "died", "", -9)
IN_PLACE = recovery_worker(3, 1, spare=True, replaced=1)
UNNEEDED = recovery_worker(3, -1, spare=True, steps=0, exact_digest="", digest="")


def recovery_judged(facts: Facts, nodes: Fleet = NODES) -> list[Verdict]:
    return list(worker_replaced.judge(RECOVERY_JOB, nodes, facts))


def test_a_replaced_worker_is_information() -> None:
    facts = recovery_recorded(KILLED, IN_PLACE, TAKEN)
    found = one(recovery_judged(facts), Status.FAIL)
    assert worker_replaced.meta.severity is Severity.INFO and found.nodes == ("node2",)
    assert found.message == (
        "worker 1 on node2 was killed by SIGKILL at step 7 of training; spare 0 on node3 replaced it 0.8 s after "
        "its last event, and the run completed"
    )
    for check in (server_or_worker_did_not_finish, wrong_server_result, updates_lost_doubled_or_stale):
        assert statuses(list(check.judge(RECOVERY_JOB, NODES, facts))) == {"pass"}, check.meta.id


@pytest.mark.parametrize(
    ("ended", "taken", "says"),
    [
        (Unavailable("cancelled", "stopped"), replace(TAKEN, lagged=True), "delayed the others at step 7"),
        (Unavailable("crashed", "died", "", 3), TAKEN, "exited with 3 at step 7"),
        (Unavailable("unreachable", "the channel broke"), TAKEN, "was lost at step 7"),
        (Unavailable("cancelled", "stopped"), replace(TAKEN, why="it has delayed the others"), "was lost at step 7"),
    ],
)
def test_a_lost_worker_is_described_by_end_and_replacement(ended: Unavailable, taken: Replacement, says: str) -> None:
    found = one(recovery_judged(recovery_recorded(ended, IN_PLACE, taken)), Status.FAIL)
    assert says in found.message and found.evidence[0].observed == taken.why


def test_an_unneeded_backup_worker() -> None:
    (found,) = recovery_judged(recovery_recorded(recovery_worker(2, 1), UNNEEDED))
    assert found.status is Status.PASS and "backup worker on node3: not needed" in str(found.subject)


def test_not_applicable_without_the_option() -> None:
    assert statuses(list(worker_replaced.judge(RECOVERY_JOB, fleet(4), Facts()))) == {"not-applicable"}


def test_synchronous_servers_replace_no_worker() -> None:
    sync = job(ps_mode=True, ps_update_mode="sync", ps_servers=1, ps_workers=2)
    asked = plan(worker_replaced, sync, NODES)
    answers = (recovery_server(), recovery_worker(1, 0), recovery_worker(2, 1))
    facts = Facts(tuple(FactRecord(r, plain(a)) for r, a in zip(asked, answers, strict=True)))
    found = one(list(worker_replaced.judge(sync, NODES, facts)), Status.UNKNOWN)
    assert found.required and "try --mode async or ssp" in found.message


def test_an_unreplaced_worker_is_left_to_smk021() -> None:
    facts = recovery_recorded(KILLED, UNNEEDED)
    assert "blocked by SMK021" in one(recovery_judged(facts), Status.UNKNOWN).message
    told = one(list(server_or_worker_did_not_finish.judge(RECOVERY_JOB, NODES, facts)), Status.FAIL)
    assert told.subject == "worker 1 on node2"


def test_an_injected_fault_is_expected_if_the_backup_took_over() -> None:
    nodes = replace(
        NODES, smoke_options=SmokeOptions(backup=True, injected_fault=InjectedFault("kill", "worker", 1, 7))
    )
    facts = recovery_recorded(KILLED, IN_PLACE, TAKEN, nodes=nodes)
    (found,) = injected_fault_not_named.judge(RECOVERY_JOB, nodes, facts)
    assert found.status is Status.PASS and "spare 0 on node3 replaced it 0.7 s later" in str(found.subject)
    assert one(recovery_judged(facts, nodes), Status.FAIL).message.startswith(
        "as expected of the injected fault kill:worker1@7"
    )


# How long a step of the job would communicate with its servers.


MIB = 1 << 20
#: 16 MiB in one matrix.
MATRIX = claim("parameter_shape", (2048, 2048))
PROFILED = replace(fleet(3), smoke_options=SmokeOptions(profile_model=True))


def served(*claims: Any) -> Job:
    return job(claims, ps_mode=True, ps_servers=1, ps_workers=2)


def speed_requests(job_: Job, nodes: Fleet = PROFILED, known: Facts | None = None) -> list[Request]:
    return plan(servers_slower_than_links, job_, nodes, known)


def link(a: str, b: str, mbps: float) -> FactRecord:
    way = Direction(mbps, mbps, 500, 500, 0, 0, 5000, 1472, 3, 0.02)
    quality = Quality(b, "10.0.0.2", "10.0.0.1", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0)
    return fact(measure, a, replace(quality, out=way, back=way), params={"peer": b, "try": 1}, peers=(b,))


def run(job_: Job, *, step_s: float, mbps: float | None = 1000.0, cores: float = 8.0) -> Facts:
    """The server on node0 and a worker on each other node, all of which took `step_s` for each step's exchange."""
    places = [fact(server_place, f"node{i}", ServerPlace(cores=cores)) for i in range(3)]
    records: list[FactRecord] = []
    for request in speed_requests(job_):
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
    asked = speed_requests(served(MATRIX, claim("parameter_shape", (2048,))))
    assert {request.params["steps"] for request in asked} == {PROFILE_STEPS}
    task = tasks.from_params(asked[0].params["model"])
    # Both together are a little more than the 16 MiB that a run may take.
    assert [parameter.shape for parameter in task.dense] == [(1024, 2048), (1024,)]
    assert "slice_bytes" not in asked[0].params
    small = speed_requests(served(MATRIX), fleet(3))
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
    assert "model" not in speed_requests(unsized)[0].params
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

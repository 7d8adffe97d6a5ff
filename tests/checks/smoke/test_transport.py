"""The transport of the ranks' bytes: sockets where RDMA is expected, and cards that were not chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.agent.child import plain
from preflight.model.findings import Severity, Status
from preflight.model.job import Job, OneOf, Unresolved
from preflight.model.recording import EventRecord, FactRecord, Facts, Fleet, SmokeOptions, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict
from preflight_checks.probes.environment import Environment, environment
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.probes.rdma import RdmaDevice, RdmaDevices, RdmaPort, rdma
from preflight_checks.smoke.completion import master_endpoint_unusable, plan_trials, rank_did_not_finish, trials
from preflight_checks.smoke.plan import plan_of
from preflight_checks.smoke.results import wrong_collective_result
from preflight_checks.smoke.transport import (
    backend_unusable,
    carriers,
    sockets_instead_of_rdma,
    traffic_on_another_network,
)
from reference_trainer.collective.rank import RankReport, rank
from reference_trainer.common.used_transport import CardCounters, NcclConnections, Transport
from tests.checks.check_builders import claim, fact, facts, fleet, job, judge, local_fleet, one, plan, statuses

NCCL = job(backend="nccl", master_addr="node0", master_port=29500)
GLOO = job(backend="gloo", master_addr="node0", master_port=29500, env_GLOO_SOCKET_IFNAME="eth0")
CROSSED = 100_000_000
OVER_IB = NcclConnections("2.27.5", "IB", ["mlx5_0:1"], {"NET/IB": 4, "P2P/CUMEM": 4}, True)
OVER_SOCKETS = NcclConnections("2.27.5", "Socket", ["eth0"], {"NET/Socket": 4}, False)


def transport(said: NcclConnections | None = None, **received: int) -> Transport:
    """The report of a rank with the bytes that each interface and port (`mlx5_0`) received."""
    nics = {name: [count, count] for name, count in received.items() if not name.startswith("mlx5")}
    ports = {f"{name}:1": [count, count] for name, count in received.items() if name.startswith("mlx5")}
    return Transport(said or NcclConnections(), CardCounters(nics, ports), True, CROSSED)


def run_records(
    *transports: Transport, backend: str = "nccl", params: dict[str, Any] | None = None
) -> list[FactRecord]:
    records = []
    for number, seen in enumerate(transports):
        node = f"node{number}"
        report = RankReport(number, len(transports), node, backend, "cpu", "2.13.0", transport=seen)
        asked = {"rank": number, "world_size": len(transports), **(params or {})}
        request = Request(probe_name(rank), node, asked, context=True, group="smoke train")
        records.append(FactRecord(request, asdict(report)))
    return records


def hca(node: str, state: str = "ACTIVE") -> FactRecord:
    port = RdmaPort(1, state, "LinkUp", 200.0, "200 Gb/sec", "InfiniBand")
    return fact(rdma, node, RdmaDevices([RdmaDevice("mlx5_0", "mlx5_core", ports=[port])]))


def cards(node: str, number: int, **speeds: int) -> FactRecord:
    have = [
        Interface(name, True, True, False, [Address(f"10.{place}.0.{number}", 24)], 1500, speed or None, "physical")
        for place, (name, speed) in enumerate(speeds.items())
    ]
    return fact(interfaces, node, Interfaces(have))


BOTH = [hca("node0"), hca("node1")]


def transport_verdicts(*records: FactRecord) -> list[Verdict]:
    return judge(sockets_instead_of_rdma, NCCL, fleet(2), facts(*records))


def test_ranks_over_rdma_pass_with_their_transport() -> None:
    found = one(transport_verdicts(*BOTH, *run_records(transport(OVER_IB), transport(OVER_IB))), Status.PASS)
    assert "NCCL 2.27.5 over IB (mlx5_0:1), GPU Direct RDMA" in found.subject


def test_a_node_with_ranks_on_sockets_is_named() -> None:
    found = one(transport_verdicts(*BOTH, *run_records(transport(OVER_IB), transport(OVER_SOCKETS))), Status.FAIL)
    assert found.nodes == ("node1",)
    assert "rank 1 on node1 communicates over sockets (eth0), although mlx5_0:1 is active" in found.message
    assert "4 channels over it, NCCL 2.27.5" in found.evidence[0].observed


def test_counters_decide_without_nccls_log() -> None:
    quiet = transport(eth0=2 * CROSSED, mlx5_0=1000)
    assert one(transport_verdicts(*BOTH, *run_records(quiet, transport(mlx5_0=CROSSED))), Status.FAIL).nodes == (
        "node0",
    )
    nothing = run_records(Transport(), Transport())
    assert statuses(transport_verdicts(*BOTH, *nothing)) == {"unknown"}


def test_a_passing_transport_shows_its_channels() -> None:
    found = one(transport_verdicts(*BOTH, *run_records(transport(OVER_IB), transport(OVER_IB))), Status.PASS)
    assert "channels: 8 NET/IB, 8 P2P/CUMEM" in found.subject


def test_a_job_that_names_rdma_and_runs_over_sockets_is_a_finding_without_any_port() -> None:
    for name, value in (("NCCL_IB_HCA", "mlx5_0"), ("NCCL_NET", "IB")):
        wanted = f"{name}={value}"
        asking = job([claim(f"env.{name}", value)], backend="nccl", master_addr="node0", master_port=29500)
        down = [hca("node0", "DOWN"), hca("node1", "DOWN")]
        for ports in (down, []):
            seen = facts(*ports, *run_records(transport(OVER_SOCKETS), transport(OVER_SOCKETS)))
            found = one(judge(sockets_instead_of_rdma, asking, fleet(2), seen), Status.FAIL)
            assert f"{wanted} requests RDMA, but ranks 0, 1 communicate over sockets (eth0)" in found.message
            assert found.nodes == ("node0", "node1")
        seen = facts(*run_records(transport(OVER_IB), transport(OVER_IB)))
        assert statuses(judge(sockets_instead_of_rdma, asking, fleet(2), seen)) == {"not-applicable"}
        seen = facts(*run_records(Transport(), Transport()))
        assert statuses(judge(sockets_instead_of_rdma, asking, fleet(2), seen)) == {"not-applicable"}


def test_sockets_are_expected_without_an_active_port() -> None:
    sockets = run_records(transport(OVER_SOCKETS), transport(OVER_SOCKETS))
    found = one(transport_verdicts(hca("node0"), hca("node1", "DOWN"), *sockets), Status.NOT_APPLICABLE)
    assert "node1" in found.message
    assert statuses(transport_verdicts(*sockets)) == {"not-applicable"}


def test_not_applicable_without_rdma_or_nccl() -> None:
    sockets = run_records(transport(OVER_SOCKETS), transport(OVER_SOCKETS))
    off = job(backend="nccl", env_NCCL_IB_DISABLE="1")
    assert statuses(judge(sockets_instead_of_rdma, off, fleet(2), facts(*BOTH, *sockets))) == {"not-applicable"}
    assert statuses(transport_verdicts(*BOTH, *run_records(transport(), transport(), backend="gloo"))) == {
        "not-applicable"
    }


def card_verdicts(*records: FactRecord, given: Any = GLOO) -> list[Verdict]:
    return judge(traffic_on_another_network, given, fleet(2), facts(*records))


PAIR = [cards("node0", 1, eth0=10000, eth1=10000), cards("node1", 2, eth0=10000, eth1=10000)]


def test_the_chosen_card_passes() -> None:
    found = one(
        card_verdicts(*PAIR, *run_records(transport(eth0=CROSSED), transport(eth0=CROSSED), backend="gloo")),
        Status.PASS,
    )
    assert found.subject == "network cards of the ranks: eth0 on node0, node1"


def test_bytes_over_another_card_name_node_and_card() -> None:
    odd = transport(eth0=4000, eth1=3 * CROSSED, lo=9 * CROSSED)
    found = one(card_verdicts(*PAIR, *run_records(transport(eth0=CROSSED), odd, backend="gloo")), Status.FAIL)
    assert found.nodes == ("node1",)
    assert "eth1 of node1 received 300 MB" in found.message and "GLOO_SOCKET_IFNAME=eth0 chooses it" in found.message


def test_a_configured_interface_is_expected() -> None:
    records = run_records(
        transport(eth1=CROSSED), transport(eth0=CROSSED), backend="gloo", params={"interface": "eth0"}
    )
    found = one(card_verdicts(*PAIR, *records, given=NCCL), Status.FAIL)
    assert found.nodes == ("node0",) and "is configured for" in found.message


def test_a_bond_and_its_members_all_carry() -> None:
    bonded = run_records(transport(bond0=CROSSED, eth0=CROSSED), transport(eth0=CROSSED), backend="gloo")
    assert statuses(card_verdicts(*PAIR, *bonded)) == {"pass"}


def test_a_slow_card_beside_a_fast_one_is_reported() -> None:
    given = job(backend="gloo", master_addr="node0", master_port=29500)
    slow = [cards("node0", 1, eno1=1000, ens1=100000), cards("node1", 2, eno1=1000, ens1=100000)]
    found = judge(
        traffic_on_another_network,
        given,
        fleet(2),
        facts(*slow, *run_records(transport(eno1=CROSSED), transport(ens1=CROSSED), backend="gloo")),
    )
    verdict = one(found, Status.FAIL)
    assert verdict.nodes == ("node0",) and "100 times as fast" in verdict.message


def test_rdma_bytes_bypass_the_interfaces() -> None:
    assert statuses(
        card_verdicts(*PAIR, *run_records(transport(mlx5_0=CROSSED), transport(mlx5_0=CROSSED)), given=NCCL)
    ) == {"pass"}


def test_uncounted_bytes_are_unknown() -> None:
    found = one(
        card_verdicts(*PAIR, *run_records(transport(eth0=9), transport(eth0=9), backend="gloo")), Status.UNKNOWN
    )
    assert "node0, node1" in found.subject and not found.required


def test_ranks_of_one_machine_send_nothing_out() -> None:
    records = run_records(transport(), transport(), backend="gloo")
    assert statuses(judge(traffic_on_another_network, GLOO, local_fleet(2), facts(*records))) == {"not-applicable"}
    within = run_records(Transport(NcclConnections(), CardCounters({"lo": [9, 9]}), True, 0), backend="gloo")
    assert statuses(judge(traffic_on_another_network, GLOO, fleet(1), facts(*within))) == {"not-applicable"}


def test_loopback_is_not_a_card() -> None:
    for way in carriers(transport(lo=CROSSED, eth0=CROSSED)):
        assert (way.interfaces, way.ports) == ({"eth0": CROSSED}, {})


def test_an_outgoing_path_over_another_card_is_found() -> None:
    """A route applies to outgoing bytes only; incoming ones follow the routes of the other nodes."""
    odd = Transport(NcclConnections(), CardCounters({"eth0": [4000, CROSSED], "eth1": [CROSSED, 900]}), True, CROSSED)
    found = one(card_verdicts(*PAIR, *run_records(transport(eth0=CROSSED), odd, backend="gloo")), Status.FAIL)
    assert found.nodes == ("node1",) and "eth1 of node1 sent 100 MB" in found.message


# The backend of a smoke run: one for all ranks, as the job asks, and a finding where it cannot be used.


EITHER = OneOf(("nccl", "gloo"))


def backend_cards(node: str, count: int, cuda: str = "12.8") -> tuple[FactRecord, FactRecord]:
    return (
        fact(gpus, node, Gpus(gpus=[Gpu(index) for index in range(count)])),
        fact(packages, node, Packages("3.11", "/usr/bin/python3", torch=Framework("2.13.0", cuda)), context=True),
    )


def seen(*counts: int, **more: str) -> Facts:
    return facts(
        *(record for index, count in enumerate(counts) for record in backend_cards(f"node{index}", count, **more))
    )


def asked(nodes: Fleet, of: Job, known: Facts) -> set[str]:
    return {request.params["backend"] for request in plan(rank_did_not_finish, of, nodes, known)}


def over(nodes: Fleet, backend: str) -> Fleet:
    return replace(nodes, smoke_options=SmokeOptions(backend=backend))


@pytest.mark.parametrize(
    ("claims", "counts", "expected"),
    [
        ({"backend": "gloo"}, (8, 8), "gloo"),
        ({"backend": "gloo", "gpus_per_node": 8}, (8, 8), "gloo"),
        ({"backend": "nccl"}, (8, 8), "nccl"),
        ({"backend": "nccl"}, (0, 0), "nccl"),
        ({"backend": "nccl"}, (8, 0), "nccl"),
        ({"gpus_per_node": 8}, (0, 0), "nccl"),
        ({"gpus_per_task": 1, "backend": EITHER}, (0, 0), "nccl"),
        ({"backend": EITHER}, (8, 8), "nccl"),
        ({"backend": EITHER}, (0, 0), "gloo"),
        ({"backend": "cpu:gloo,cuda:nccl"}, (0, 0), "gloo"),
        ({}, (8, 8), "nccl"),
        ({}, (8, 0), "gloo"),
        ({}, (0, 0), "gloo"),
        ({"backend": Unresolved("an argument")}, (8, 8), "nccl"),
        ({"backend": Unresolved("an argument"), "gpus_per_node": 8}, (0, 0), "gloo"),
    ],
)
def test_one_backend_for_all_ranks(claims: dict[str, Any], counts: tuple[int, ...], expected: str) -> None:
    assert asked(fleet(2), job(**claims), seen(*counts)) == {expected}


def test_ranks_agree_themselves_only_if_their_gpus_are_not_known() -> None:
    assert asked(fleet(2), job(), facts(*backend_cards("node0", 8))) == {"auto"}
    assert asked(fleet(2), job(backend="nccl"), facts()) == {"nccl"}


def test_an_nccl_group_that_is_only_made_with_a_gpu_asks_for_nothing() -> None:
    for condition in ("torch.cuda.is_available()", "not args.cpu", 'device.type == "cuda"', "not (use_gpu)"):
        stated = replace(claim("backend", "nccl"), condition=condition)
        assert asked(fleet(2), job([stated]), seen(0, 0)) == {"gloo"}
    stated = replace(claim("backend", "nccl"), condition='int(os.environ["WORLD_SIZE"]) > 1')
    assert asked(fleet(2), job([stated]), seen(0, 0)) == {"nccl"}


def test_the_user_chooses_another_backend() -> None:
    assert asked(over(fleet(2), "gloo"), job(backend="nccl"), seen(0, 0)) == {"gloo"}
    assert asked(over(fleet(2), "nccl"), job(backend="gloo"), seen(1, 1)) == {"nccl"}


def test_nodes_that_share_a_machine_with_too_few_gpus_leave_nccl_untested() -> None:
    nodes = local_fleet(2)
    known = facts(*backend_cards("local0", 1), *backend_cards("local1", 1))
    assert asked(nodes, job(backend="nccl"), known) == {"gloo"}
    assert "has 1 usable GPUs for 2 ranks" in plan_of(job(backend="nccl"), nodes, known).backend.untested
    assert asked(nodes, job(backend="nccl"), facts(*backend_cards("local0", 2), *backend_cards("local1", 2))) == {
        "nccl"
    }


def test_only_a_backend_that_replaces_the_jobs_gets_an_interface() -> None:
    address = Interfaces([Interface("eth3", True, True, False, addresses=[Address("10.0.0.1", 24)])])
    known = facts(*backend_cards("node0", 0), fact(interfaces, "node0", address))
    nodes = Fleet(tuple(replace(r, node=replace(r.node, address="10.0.0.1")) for r in fleet(1).records))
    (own,) = plan(rank_did_not_finish, job(backend="nccl"), nodes, known)
    assert "interface" not in own.params
    (replaced,) = plan(rank_did_not_finish, job(backend="nccl"), over(nodes, "gloo"), known)
    assert replaced.params["interface"] == "eth3"


# The verdicts


def recorded(of: Job, nodes: Fleet, known: Facts, *, without: dict[int, str] | None = None, **report: Any) -> Facts:
    """A run in which the ranks in `without` report why they cannot use NCCL, and then all end; else all complete."""
    records, events = [], []
    for number, request in enumerate(plan(rank_did_not_finish, of, nodes, known)):
        events.append(EventRecord(request.key, request.node, 1.0, "rank", {"event": "phase", "phase": "started"}))
        if without is None:
            made = RankReport(
                number,
                len(nodes.nodes),
                request.node,
                device="cpu",
                framework="torch 2.13.0",
                **{"backend": "gloo", **report},
            )
            records.append(FactRecord(request, asdict(made), started_s=0.0, finished_s=5.0))
            continue
        if number in without:
            problem = {"event": "problem", "problem": rank_events.NO_DEVICE, "error": without[number], "rank": number}
            events.append(EventRecord(request.key, request.node, 2.0, "rank", problem))
        kind = "missing" if number in without else "blocked"
        records.append(FactRecord(request, unavailable=Unavailable(kind, "no nccl"), started_s=0.0, finished_s=3.0))
    return Facts((*known.records_of(), *records), tuple(events))


def verdicts(of: Job, nodes: Fleet, known: Facts) -> list[Verdict]:
    return list(backend_unusable.judge(of, nodes, known))


def test_nodes_where_torch_finds_no_gpu_are_named() -> None:
    of, nodes = job(backend="nccl"), fleet(4)
    without = dict.fromkeys(range(4), "torch 2.13.0+cpu finds no GPU")
    run = recorded(of, nodes, seen(0, 0, 0, 0), without=without)
    found = one(verdicts(of, nodes, run), Status.FAIL)
    assert found.message == "the job requests NCCL, but torch 2.13.0+cpu finds no GPU on node0, node1, node2, node3"
    assert found.severity in (None, Severity.ERROR)
    assert any("backend=nccl" in str(place) for place in found.locations)
    for check in (rank_did_not_finish, wrong_collective_result, master_endpoint_unusable):
        blocked = one(list(check.judge(of, nodes, run)), Status.UNKNOWN)
        assert "blocked by SMK008" in blocked.message and not blocked.required


def test_a_node_that_ended_before_its_rank_looked_is_named_by_its_facts() -> None:
    of, nodes = job(backend="nccl"), fleet(3)
    run = recorded(of, nodes, seen(1, 0, 0), without={1: "torch 2.13.0 finds no GPU"})
    found = one(verdicts(of, nodes, run), Status.FAIL)
    assert found.nodes == ("node1", "node2")
    hidden = recorded(of, nodes, seen(1, 1, 1), without={2: "torch 2.13.0 finds no GPU"})
    assert one(verdicts(of, nodes, hidden), Status.FAIL).nodes == ("node2",)


def test_a_run_over_the_jobs_backend_passes() -> None:
    for of in (job(backend="gloo"), job()):
        assert one(verdicts(of, fleet(2), recorded(of, fleet(2), seen(0, 0))), Status.PASS)
    of = job(gpus_per_node=1)
    run = recorded(of, fleet(2), seen(1, 1), backend="nccl")
    assert one(verdicts(of, fleet(2), run), Status.PASS).subject == "backend: NCCL (NCCL as the job requests)"


def test_a_run_over_the_users_backend_says_what_was_not_tested() -> None:
    of, nodes = job(backend="nccl"), over(fleet(2), "gloo")
    found = one(verdicts(of, nodes, recorded(of, nodes, seen(0, 0))), Status.FAIL)
    assert found.severity is Severity.INFO
    assert found.message == (
        "the smoke run used Gloo because of --smoke-backend; the job requests NCCL, which was not tested"
    )


def test_what_the_run_could_not_test_is_not_a_pass() -> None:
    of = job(backend=EITHER)
    found = one(verdicts(of, fleet(2), recorded(of, fleet(2), seen(1, 0))), Status.UNKNOWN)
    assert found.required and "node1 has too few GPUs" in found.message
    of = job(backend="mpi")
    assert (
        "backend mpi was not tested"
        in one(verdicts(of, fleet(2), recorded(of, fleet(2), seen(0, 0))), Status.UNKNOWN).message
    )


def test_ranks_that_agreed_on_gloo_name_the_one_without_a_gpu() -> None:
    note = "gloo on all ranks, because 1 of 2 cannot use nccl: on rank 1 on node1 torch 2.13.0 finds no GPU"
    found = one(verdicts(job(), fleet(2), recorded(job(), fleet(2), facts(), backend_note=note)), Status.FAIL)
    assert found.severity is Severity.WARNING and note in found.message


def test_no_run_and_servers() -> None:
    assert one(verdicts(job(), fleet(2), facts()), Status.UNKNOWN).message == "blocked by SMK001: no rank ran"
    servers = job(ps_mode=True)
    assert one(verdicts(servers, fleet(2), facts()), Status.NOT_APPLICABLE)


# Smaller groups of ranks after a hang: the planned groups, and their results in the finding.


JOB = job(backend="gloo", master_addr="node0", master_port=29500)
HUNG = Unavailable("cancelled", "it was cancelled")


def hung(count: int = 4, *, absent: tuple[int, ...] = ()) -> Facts:
    """All ranks hang in a collective; those in `absent` have not entered it."""
    records, events = [], []
    for request in plan(rank_did_not_finish, JOB, fleet(count)):
        rank = int(request.params["rank"])

        def event_record(at_s: float, event: str, request: Request = request, **data: Any) -> EventRecord:
            return EventRecord(request.key, request.node, at_s, "child", {"event": event, **data})

        events.append(event_record(1.0, rank_events.PHASE, phase=rank_events.GROUP))
        if rank not in absent:
            events.append(event_record(2.0, rank_events.ENTERING, what="sum", collective=1, waiting_for=[]))
        events.extend(event_record(beat / 2, rank_events.BEAT, progress=0, starved_s=0.0) for beat in range(3, 40))
        records.append(FactRecord(request, None, HUNG, 0.0, 20.1))
    events.append(EventRecord(records[0].request.key, "node0", 20.0, "head", {"event": rank_events.DECIDED}))
    return Facts(tuple(records), tuple(sorted(events, key=lambda event: event.at_s)))


def in_a_collective(
    request: Request, since_s: float, until_s: float, *, entered_s: float = 1.0, enters: bool = True
) -> list[EventRecord]:
    """A rank enters its first collective after `entered_s`, and stays in it; without `enters` it stays before it."""

    def event_record(at_s: float, event: str, **data: Any) -> EventRecord:
        return EventRecord(request.key, request.node, at_s, "child", {"event": event, **data})

    beats = range(int(2 * since_s) + 1, int(2 * until_s))
    return [
        event_record(since_s, rank_events.PHASE, phase=rank_events.STARTED),
        event_record(since_s + entered_s, rank_events.PHASE, phase=rank_events.GROUP),
        *(
            [event_record(since_s + entered_s, rank_events.ENTERING, what="sum", collective=1, waiting_for=[])]
            if enters
            else []
        ),
        *(event_record(beat / 2, rank_events.BEAT, progress=0, starved_s=0.0) for beat in beats),
    ]


def cut_off(seen: Facts, *, entered_s: float) -> Facts:
    """The next trials are ended after 10 s; their ranks were in a collective after `entered_s`."""
    late = Unavailable("timeout", "no answer within 10 s")
    records, events = list(seen.records), list(seen.events())
    for request in plan_trials(JOB, fleet(4), seen):
        records.append(FactRecord(request, None, late, 50.0, 60.0))
        events += in_a_collective(request, 50.0, 60.0, entered_s=entered_s)
    return Facts(tuple(records), tuple(sorted(events, key=lambda event: event.at_s)))


def run_trials(
    seen: Facts,
    hangs: Callable[[set[str]], bool],
    count: int = 4,
    limit: int = 10,
    *,
    absent: tuple[int, ...] = (),
) -> tuple[Facts, int]:
    """Run the requested trials until there are none left; where one hangs, those in `absent` enter no collective."""
    for waves in range(limit):
        requests = list(plan_trials(JOB, fleet(count), seen))
        if not requests:
            return seen, waves
        groups: dict[str, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.group, []).append(request)
        records, events = list(seen.records), list(seen.events())
        for ranks in groups.values():
            bad = hangs({request.node for request in ranks})
            for request in ranks:
                report = RankReport(request.params["rank"], len(ranks), request.node, "gloo", "cpu", "2.13.0")
                records.append(FactRecord(request, None if bad else plain(report), HUNG if bad else None, 21.0, 41.0))
                inside = request.params["rank"] not in absent
                events += in_a_collective(request, 22.0, 41.0, enters=inside) if bad else ()
            if bad:
                events.append(EventRecord(ranks[0].key, "node0", 40.0, "head", {"event": rank_events.DECIDED}))
        seen = Facts(tuple(records), tuple(sorted(events, key=lambda event: event.at_s)))
    return seen, limit


def test_halves_are_tried_with_their_own_ranks() -> None:
    requests = list(plan_trials(JOB, fleet(4), hung()))
    groups: dict[str, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.group, []).append(request)
    assert sorted([r.node for r in ranks] for ranks in groups.values()) == [["node0", "node1"], ["node2", "node3"]]
    for ranks in groups.values():
        assert [r.params["rank"] for r in ranks] == [0, 1] and {r.params["world_size"] for r in ranks} == {2}
        assert {r.params["master_addr"] for r in ranks} == {ranks[0].node}
        assert all(r.params["until"] == rank_events.EXACT and not r.required for r in ranks)
        assert {r.deadline_s for r in ranks} == {30.0}, "longer than the run took, which was 20 s"


def test_the_link_between_two_nodes_is_named() -> None:
    seen, waves = run_trials(hung(), lambda group: {"node1", "node2"} <= group)
    found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node1", "node2") and waves == 2
    assert "node1 and node2 hang together, but each of them works with another node" in found.message


def test_a_node_that_hangs_with_all_others_is_named() -> None:
    seen, _ = run_trials(hung(8), lambda group: "node6" in group, 8)
    found = one(judge(rank_did_not_finish, JOB, fleet(8), seen), Status.FAIL)
    assert found.nodes == ("node6",) and "even with a healthy node" in found.message


def test_a_hang_of_only_all_nodes_is_reported() -> None:
    seen, _ = run_trials(hung(), lambda group: len(group) == 4)
    found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
    assert len(found.nodes) == 4 and "none of these hangs, but all nodes together hang again" in found.message


def test_a_stuck_rank_is_named_if_only_all_nodes_together_hang_and_both_runs_name_it() -> None:
    for absent, nodes in (((2,), ("node2",)), ((), ("node0", "node1", "node2", "node3"))):
        seen, _ = run_trials(hung(absent=(2,)), lambda group: len(group) == 4, absent=absent)
        found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
        assert found.nodes == nodes and "all nodes together hang again" in found.message


def test_at_the_deadline_the_smallest_group_is_reported() -> None:
    seen, _ = run_trials(hung(8), lambda group: "node6" in group, 8, limit=1)
    found = one(judge(rank_did_not_finish, JOB, fleet(8), seen), Status.FAIL)
    assert "not tried: node4 with node5, node6 with node7" in found.message and len(found.nodes) == 4


def test_a_trial_that_is_cut_off_shows_nothing() -> None:
    late = cut_off(hung(), entered_s=6.5)
    assert set(trials(JOB, late).values()) == {None}
    found = one(judge(rank_did_not_finish, JOB, fleet(4), late), Status.FAIL)
    assert "no trial with a smaller group" in found.message and "hang together" not in found.message
    assert "not finished: node0 with node1, node2 with node3; not tried: node0 with node3" in found.message


def test_nodes_that_completed_nothing_are_not_fit() -> None:
    late = cut_off(hung(absent=(2,)), entered_s=6.5)
    verdicts = judge(rank_did_not_finish, JOB, fleet(4), late)
    assert one(verdicts, Status.FAIL).nodes == ("node2",)
    left = one(verdicts, Status.UNKNOWN)
    assert left.required and left.nodes == ("node0", "node1", "node3")


def test_a_trial_goes_beyond_the_phase_in_which_the_run_hung() -> None:
    def asked(phase: str) -> dict[str, Any]:
        seen = hung()
        events = tuple(
            replace(event, data={**event.data, "phase": phase}) if "phase" in event.data else event
            for event in seen.events()
        )
        params = next(iter(plan_trials(JOB, fleet(4), Facts(seen.records, events)))).params
        return {name: params[name] for name in ("steps", "until") if name in params}

    assert asked(rank_events.RENDEZVOUS) == {"steps": 2, "until": rank_events.EXACT}
    assert asked(rank_events.GROUP) == {"steps": 10, "until": rank_events.EXACT}
    assert asked(rank_events.MEASURED) == {"steps": 10}


def test_a_stuck_rank_gets_a_trial() -> None:
    seen, _ = run_trials(hung(absent=(2,)), lambda group: "node2" in group)
    found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "node2 hangs even with a healthy node" in found.message


def test_no_node_is_blamed_for_an_intermittent_fault() -> None:
    seen, _ = run_trials(hung(absent=(2,)), lambda group: False)
    said = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.UNKNOWN)
    assert said.required and "all nodes together completed when tried again" in said.message


def test_a_suspect_that_completed_a_trial_is_not_blamed_if_time_ran_out() -> None:
    seen, waves = run_trials(hung(3, absent=(2,)), lambda group: False, 3, limit=2)
    said = one(judge(rank_did_not_finish, JOB, fleet(3), seen), Status.UNKNOWN)
    assert (
        waves == 2
        and said.required
        and "node0, node1, node2 completed one; not tried: node1 with node2" in said.message
    )


def test_no_trials_for_a_dead_rank_or_one_machine() -> None:
    seen = hung()
    died = tuple(
        FactRecord(
            r.request, None, Unavailable("crashed", "killed", "", -9) if i == 1 else HUNG, 0.0, 5.0 if i == 1 else 20.1
        )
        for i, r in enumerate(seen.records)
    )
    assert list(plan_trials(JOB, fleet(4), Facts(died, seen.events()))) == []
    assert list(plan_trials(JOB, local_fleet(4), seen)) == []
    assert list(plan_trials(JOB, fleet(4), facts())) == []


def test_a_trial_that_could_not_start_is_not_a_hang() -> None:
    first = list(plan_trials(JOB, fleet(4), hung()))
    missing = Unavailable("missing", "torch cannot be imported")
    seen = Facts((*hung().records, *(FactRecord(r, None, missing) for r in first)), hung().events())
    again = list(plan_trials(JOB, fleet(4), seen))
    assert again and {r.group for r in again}.isdisjoint({r.group for r in first})


def test_a_difference_of_protocol_is_named_instead_of_the_rank_that_hangs() -> None:
    seen = hung(absent=(2,))
    settings = [
        fact(environment, f"node{i}", Environment({"TORCH_GLOO_LAZY_INIT": "1"} if i == 1 else {}), context=True)
        for i in range(4)
    ]
    found = one(
        judge(rank_did_not_finish, JOB, fleet(4), Facts((*seen.records, *settings), seen.events())), Status.FAIL
    )
    assert found.nodes == ("node1",) and "rank 2 on node2 made no progress" in found.message
    assert "TORCH_GLOO_LAZY_INIT differs on node1 (ENV020), which is the likely cause" in found.message

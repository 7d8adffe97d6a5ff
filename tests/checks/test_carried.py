"""Over what the ranks' bytes went: sockets where RDMA was to be expected, and cards that nobody chose."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from preflight.judgement import Verdict
from preflight.outcome import Status
from preflight.recording import FactRecord
from preflight.request import Request, probe_name
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.rdma import RdmaDevice, RdmaDevices, RdmaPort, rdma
from preflight_checks.smoke.carried import carriers, sockets_instead_of_rdma, traffic_elsewhere
from reference_trainer.collective import RankReport, rank
from reference_trainer.counters import Counted
from reference_trainer.nccl_log import NcclSaid
from reference_trainer.transport import Transport

from .build import fact, facts, fleet, job, judge, one, stand_ins, statuses

NCCL = job(backend="nccl", master_addr="node0", master_port=29500)
GLOO = job(backend="gloo", master_addr="node0", master_port=29500, env_GLOO_SOCKET_IFNAME="eth0")
CROSSED = 100_000_000
OVER_IB = NcclSaid("2.27.5", "IB", ["mlx5_0:1"], "eth0", {"NET/IB": 4, "P2P/CUMEM": 4}, True)
OVER_SOCKETS = NcclSaid("2.27.5", "Socket", ["eth0"], "eth0", {"NET/Socket": 4}, False)


def transport(said: NcclSaid | None = None, **received: int) -> Transport:
    """A rank that counted: what each interface, and each port (`mlx5_0`), received."""
    nics = {name: [count, count] for name, count in received.items() if not name.startswith("mlx5")}
    ports = {f"{name}:1": [count, count] for name, count in received.items() if name.startswith("mlx5")}
    return Transport(said or NcclSaid(), Counted(nics, ports), True, CROSSED)


def ran(*transports: Transport, backend: str = "nccl", params: dict[str, Any] | None = None) -> list[FactRecord]:
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


def over(*records: FactRecord) -> list[Verdict]:
    return judge(sockets_instead_of_rdma, NCCL, fleet(2), facts(*records))


def test_ranks_over_rdma_pass_and_tell_how() -> None:
    found = one(over(*BOTH, *ran(transport(OVER_IB), transport(OVER_IB))), Status.PASS)
    assert "NCCL 2.27.5 over IB (mlx5_0:1), GPU Direct RDMA" in found.subject


def test_a_node_whose_ranks_fell_back_to_sockets_is_named() -> None:
    found = one(over(*BOTH, *ran(transport(OVER_IB), transport(OVER_SOCKETS))), Status.FAIL)
    assert found.nodes == ("node1",)
    assert "rank 1 on node1 talks over sockets (eth0), though mlx5_0:1 is active" in found.message
    assert "4 channels over it, NCCL 2.27.5" in found.evidence[0].observed


def test_counters_tell_where_nccl_said_nothing() -> None:
    quiet = transport(eth0=2 * CROSSED, mlx5_0=1000)
    assert one(over(*BOTH, *ran(quiet, transport(mlx5_0=CROSSED))), Status.FAIL).nodes == ("node0",)
    nothing = ran(Transport(), Transport())
    assert statuses(over(*BOTH, *nothing)) == {"unknown"}


def test_sockets_are_right_where_a_node_has_no_active_port() -> None:
    sockets = ran(transport(OVER_SOCKETS), transport(OVER_SOCKETS))
    found = one(over(hca("node0"), hca("node1", "DOWN"), *sockets), Status.NOT_APPLICABLE)
    assert "node1" in found.message
    assert statuses(over(*sockets)) == {"not-applicable"}


def test_jobs_without_rdma_and_runs_without_nccl_are_not_asked() -> None:
    sockets = ran(transport(OVER_SOCKETS), transport(OVER_SOCKETS))
    off = job(backend="nccl", env_NCCL_IB_DISABLE="1")
    assert statuses(judge(sockets_instead_of_rdma, off, fleet(2), facts(*BOTH, *sockets))) == {"not-applicable"}
    assert statuses(over(*BOTH, *ran(transport(), transport(), backend="gloo"))) == {"not-applicable"}


def where(*records: FactRecord, given: Any = GLOO) -> list[Verdict]:
    return judge(traffic_elsewhere, given, fleet(2), facts(*records))


PAIR = [cards("node0", 1, eth0=10000, eth1=10000), cards("node1", 2, eth0=10000, eth1=10000)]


def test_the_chosen_card_that_carried_passes() -> None:
    found = one(where(*PAIR, *ran(transport(eth0=CROSSED), transport(eth0=CROSSED), backend="gloo")), Status.PASS)
    assert found.subject == "network cards of the ranks: eth0 on node0, node1"


def test_bytes_over_another_card_are_laid_to_the_node_and_the_card() -> None:
    odd = transport(eth0=4000, eth1=3 * CROSSED, lo=9 * CROSSED)
    found = one(where(*PAIR, *ran(transport(eth0=CROSSED), odd, backend="gloo")), Status.FAIL)
    assert found.nodes == ("node1",)
    assert "eth1 of node1 received 300 MB" in found.message and "GLOO_SOCKET_IFNAME=eth0 chooses it" in found.message


def test_an_interface_that_the_run_was_told_to_use_is_expected() -> None:
    records = ran(transport(eth1=CROSSED), transport(eth0=CROSSED), backend="gloo", params={"interface": "eth0"})
    found = one(where(*PAIR, *records, given=NCCL), Status.FAIL)
    assert found.nodes == ("node0",) and "told to use" in found.message


def test_a_bond_and_its_members_all_carry() -> None:
    bonded = ran(transport(bond0=CROSSED, eth0=CROSSED), transport(eth0=CROSSED), backend="gloo")
    assert statuses(where(*PAIR, *bonded)) == {"pass"}


def test_a_slow_card_beside_a_fast_one_is_told() -> None:
    given = job(backend="gloo", master_addr="node0", master_port=29500)
    slow = [cards("node0", 1, eno1=1000, ens1=100000), cards("node1", 2, eno1=1000, ens1=100000)]
    found = judge(
        traffic_elsewhere,
        given,
        fleet(2),
        facts(*slow, *ran(transport(eno1=CROSSED), transport(ens1=CROSSED), backend="gloo")),
    )
    verdict = one(found, Status.FAIL)
    assert verdict.nodes == ("node0",) and "100 times as fast" in verdict.message


def test_rdma_passes_the_interfaces_by() -> None:
    assert statuses(where(*PAIR, *ran(transport(mlx5_0=CROSSED), transport(mlx5_0=CROSSED)), given=NCCL)) == {"pass"}


def test_what_no_counter_shows_is_unknown() -> None:
    found = one(where(*PAIR, *ran(transport(eth0=9), transport(eth0=9), backend="gloo")), Status.UNKNOWN)
    assert "node0, node1" in found.subject and not found.required


def test_ranks_of_one_machine_send_nothing_out() -> None:
    records = ran(transport(), transport(), backend="gloo")
    assert statuses(judge(traffic_elsewhere, GLOO, stand_ins(2), facts(*records))) == {"not-applicable"}
    within = ran(Transport(NcclSaid(), Counted({"lo": [9, 9]}), True, 0), backend="gloo")
    assert statuses(judge(traffic_elsewhere, GLOO, fleet(1), facts(*within))) == {"not-applicable"}


def test_loopback_is_no_card() -> None:
    for way in carriers(transport(lo=CROSSED, eth0=CROSSED)):
        assert (way.interfaces, way.ports) == ({"eth0": CROSSED}, {})


def test_a_way_out_alone_over_another_card_is_found() -> None:
    """Routes are made for what is sent; what comes back comes as the others send it."""
    odd = Transport(NcclSaid(), Counted({"eth0": [4000, CROSSED], "eth1": [CROSSED, 900]}), True, CROSSED)
    found = one(where(*PAIR, *ran(transport(eth0=CROSSED), odd, backend="gloo")), Status.FAIL)
    assert found.nodes == ("node1",) and "eth1 of node1 sent 100 MB" in found.message

"""The transport of the ranks' bytes: sockets where RDMA is expected, and cards that were not chosen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from preflight.model.findings import Status
from preflight.model.recording import FactRecord
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.rdma import RdmaDevice, RdmaDevices, RdmaPort, rdma
from preflight_checks.smoke.transport import carriers, sockets_instead_of_rdma, traffic_on_another_network
from reference_trainer.collective.rank import RankReport, rank
from reference_trainer.common.used_transport import CardCounters, NcclConnections, Transport
from tests.checks.check_builders import claim, fact, facts, fleet, job, judge, local_fleet, one, statuses

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
    assert "rank 1 on node1 communicates over sockets (eth0), though mlx5_0:1 is active" in found.message
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

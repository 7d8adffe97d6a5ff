"""The check of RDMA writes between two nodes, port by port, compared with the rates that the ports report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from preflight.analysis.link_matrix import rounds
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.gpus.health import expected_speeds
from preflight_checks.links.dial_requests import addresses_of, listeners
from preflight_checks.links.fleet_comparison import format_rate
from preflight_checks.plans import no_requests, only_if
from preflight_checks.probes.devices import pci
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.rdma import RailSpeed, rdma, rdma_speed
from preflight_checks.rdma.devices import Port, applies, ports_by_node
from preflight_checks.rdma.port_health import automatic
from preflight_checks.requirements import fold, nodes_share_machine

#: The partners of each node: two, so that a fault of a node and one of a pair differ.
PARTNERS = 2
_DEADLINE_S = 12.0


def plan_rdma_speed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request writes between each node and two partners, on all pairs of usable ports, if RDMA is in demand."""
    wanted = applies(job, fleet)
    if wanted is None or nodes_share_machine(fleet) or len(fleet.reached) < 2:
        return
    usable = {node: [port for port in found if port.usable] for node, found in ports_by_node(job, facts).items()}
    addresses = addresses_of(job, fleet, facts)
    names = [name for name in addresses if usable.get(name)]
    if len(names) < 2:
        return
    yield from listeners(job, fleet, facts)
    for number, pairs in enumerate(rounds(names, PARTNERS)):
        for a, b in pairs:
            # If time is short, each round skips different pairs of ports.
            rails = _rails(usable[a], usable[b])
            start = number * len(rails) // PARTNERS
            yield Request(
                probe_name(rdma_speed),
                a,
                {"peer": b, "host": addresses[b], "rails": rails[start:] + rails[:start]},
                peers=(b,),
                listen=probe_name(listen),
                exclusive=True,
                because=wanted.claims,
                deadline_s=_DEADLINE_S,
            )


def _rails(here: Sequence[Port], there: Sequence[Port]) -> list[list[object]]:
    """Pairs of ports, by name if both nodes use the same names, else by order."""
    by_name = {port.name: port for port in there}
    same = [(port, by_name[port.name]) for port in here if port.name in by_name]
    pairs = same or list(zip(here, there, strict=False))
    return [[*_end(near), *_end(far)] for near, far in pairs if near.port.link_layer == far.port.link_layer]


def _end(port: Port) -> tuple[str, int, int]:
    gid = automatic(port.port.gids) if port.port.link_layer == "Ethernet" else None
    return port.device.name, port.port.number, gid.index if gid is not None else -1


@dataclass(frozen=True, slots=True)
class Rail:
    """One measured pair of ports, with the slower port's rate in Gbit/s (None if unknown)."""

    node: str
    peer: str
    speed: RailSpeed
    rate_gbps: float | None

    @property
    def ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """The node and port of both ends."""
        near, far = f"{self.speed.device}:{self.speed.port}", f"{self.speed.peer_device}:{self.speed.peer_port}"
        return (self.node, near), (self.peer, far)

    @property
    def label(self) -> str:
        """`node1 mlx5_0:1 to node2 mlx5_0:1`."""
        return " to ".join(f"{node} {port}" for node, port in self.ends)

    @property
    def least_gbps(self) -> float | None:
        """The floor of its writes."""
        return None if self.rate_gbps is None else self.rate_gbps * expected_speeds().floors.rdma_write

    @property
    def slow(self) -> bool | None:
        """Whether its writes are below the floor; None if that is unknown."""
        least, gbps = self.least_gbps, self.speed.gbps
        return None if least is None or gbps is None else gbps < least


@check(
    "RDM009",
    "rdma-writes-slow",
    plan=no_requests,
    follow_up=plan_rdma_speed,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    probes=(rdma_speed, listen, rdma),
    when="link",
)
@only_if(applies, "RDMA writes", "the job uses no RDMA, or one machine")
def rdma_writes_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """RDMA writes over each pair of ports reach three quarters of the rate that the slower port reports.

    What it checks: `ib_write_bw` of perftest, where both nodes have it: a gigabyte in writes of 128 KiB over each pair
    of ports that the job may use, with two partners; beside it the latency by `ib_write_lat`.

    Why it matters: TCP measures the service network. A cable with errors, a slot with half its lanes, or a switch
    without lossless Ethernet slows RDMA only, and if all nodes have it, none stands out.

    Example: node3 mlx5_2:1 writes 41 Gbit/s to both partners; its port reports 400 Gbit/s.

    Fix: `mlxlink -d DEV`, `lspci -vv` (LnkSta), counters of the port (RDM004), and flow control of the switch.

    Known limits: between memories of hosts, each pair of ports by itself; traffic of other jobs lowers the figure.
    Without perftest nothing is known. A port is blamed alone only if its partners' ports are fast with others.
    """
    seen = list(facts.each(rdma_speed))
    if not seen:
        yield not_applicable("RDMA writes", "no two nodes have RDMA ports that are active")
        return
    rails = _measured(job, facts)
    for reason, labels in _open(rails, facts).items():
        yield unknown(f"RDMA writes of {fold(labels, 4)}", reason)
    slow = [rail for rail in rails if rail.slow]
    good = [rail for rail in rails if rail.slow is False]
    if slow:
        yield _finding(slow, good, job, facts)
    elif good:
        rates = sorted(rail.speed.gbps or 0.0 for rail in good)
        late = sorted(rail.speed.latency_us for rail in good if rail.speed.latency_us is not None)
        shown = f", {late[0]:.3g} to {late[-1]:.3g} us" if late else ""
        yield passed(
            f"RDMA writes over {len(good)} pairs of ports: {format_rate(rates[0] * 1e3)} to "
            f"{format_rate(rates[-1] * 1e3)}{shown}"
        )


def _measured(job: Job, facts: Facts) -> list[Rail]:
    rates = {
        (node, port.name): port.port.rate_gbps for node, found in ports_by_node(job, facts).items() for port in found
    }
    rails: list[Rail] = []
    for row in facts.each(rdma_speed):
        if not isinstance(row.fact, Observed):
            continue
        for speed in row.fact.value.rails:
            rail = Rail(row.node, row.fact.value.peer, speed, None)
            both = [rates.get(end) for end in rail.ends]
            known = [rate for rate in both if rate is not None]
            rails.append(Rail(row.node, rail.peer, speed, min(known) if len(known) == 2 else None))
    return rails


def _open(rails: Sequence[Rail], facts: Facts) -> dict[str, list[str]]:
    """What could not be measured or judged, by reason."""
    found: dict[str, list[str]] = {}
    for row in facts.each(rdma_speed):
        if isinstance(row.fact, Unavailable):
            found.setdefault(row.fact.reason, []).append(f"{row.node} to {fold(row.peers)}")
        elif row.fact.value.left_out:
            reason = f"no time was left for {row.fact.value.left_out} pairs of ports"
            found.setdefault(reason, []).append(f"{row.node} to {row.fact.value.peer}")
    for rail in rails:
        if rail.slow is None:
            reason = rail.speed.problem or "the rate of a port is unknown"
            found.setdefault(reason, []).append(rail.label)
    return found


def _finding(slow: Sequence[Rail], good: Sequence[Rail], job: Job, facts: Facts) -> Verdict:
    culprits = _culprits(slow, good)
    named = tuple(dict.fromkeys(node for node, _ in culprits))
    nodes = named or tuple(dict.fromkeys(name for rail in slow for name in (rail.node, rail.peer)))
    worst = min(slow, key=lambda rail: (rail.speed.gbps or 0.0) / (rail.rate_gbps or 1.0))
    least = worst.least_gbps or 0.0
    whole = "all" if not good else f"{len(slow)} of {len(slow) + len(good)}"
    at = f"; {fold(f'{node} {port}' for node, port in culprits)} with every partner" if culprits else ""
    evidence = [_evidence(rail, job, facts) for rail in (worst, *(rail for rail in slow if rail is not worst))][:8]
    return failed(
        f"RDMA writes of {fold(nodes)}",
        f"RDMA writes from {worst.label} {_reached(worst)}; the slower port reports "
        f"{format_rate((worst.rate_gbps or 0.0) * 1e3)}, expected at least {format_rate(least * 1e3)}; {whole} pairs "
        f"of ports are below that share{at}",
        at=evidence[0],
        also=evidence[1:],
        nodes=nodes,
        remedy=f"On {fold(nodes)}: `mlxlink -d {worst.speed.device}`, `lspci -vv` (LnkSta of the card), and the port's "
        "error counters (RDM004); with RoCE also flow control and the traffic class of the switch.",
    )


def _reached(rail: Rail) -> str:
    return f"reach {format_rate((rail.speed.gbps or 0.0) * 1e3)}"


def _evidence(rail: Rail, job: Job, facts: Facts) -> Evidence:
    late = f", {rail.speed.latency_us:g} us" if rail.speed.latency_us is not None else ""
    places = []
    for node, port in rail.ends:
        seen = facts.of(pci, node)
        address = next((p.device.pci for p in ports_by_node(job, facts).get(node, ()) if p.name == port), "")
        place = seen.value.numa.get(address) if isinstance(seen, Observed) else None
        if place is not None and place >= 0:
            places.append(f"{port} of {node} is on memory node {place}")
    beside = f"; {', '.join(places)}" if places else ""
    least = rail.least_gbps or 0.0
    return Evidence(
        "RDMA writes",
        f"{rail.label}: {_reached(rail)}{late}{beside}",
        f">= {format_rate(least * 1e3)} of {format_rate((rail.rate_gbps or 0.0) * 1e3)}",
        f"ib_write_bw -d {rail.speed.device} -i {rail.speed.port} --report_gbits {rail.peer}",
        rail.node,
    )


def _culprits(slow: Sequence[Rail], good: Sequence[Rail]) -> list[tuple[str, str]]:
    """Ports that are slow with two partners or more and never fast, whose partners' ports are fast with others."""
    fast = {end for rail in good for end in rail.ends}
    partners: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for rail in slow:
        one, other = rail.ends
        partners.setdefault(one, set()).add(other)
        partners.setdefault(other, set()).add(one)
    return [end for end, others in partners.items() if end not in fast and len(others) > 1 and others <= fast]

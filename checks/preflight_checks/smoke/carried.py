"""Over what the ranks' bytes went: RDMA or sockets, and which network card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed
from preflight_checks.demands import fold
from preflight_checks.network.interface_used import used_interfaces
from preflight_checks.network.nic_choice import apart
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.rdma.rdma_use import applies, ports_by_node
from preflight_checks.smoke.smoke_plan import plan_smoke
from preflight_checks.smoke.smoke_run import FACT, SmokeRun, incomplete, numbered, run_of
from reference_trainer.collective import RankReport
from reference_trainer.collective import rank as run_rank
from reference_trainer.transport import Transport

#: A card carried the ranks' bytes if it received this part of what the node must have got at least, or sent that one:
#: of all-gathers a node may send less than it gets.
RECEIVED, SENT = 0.5, 0.25
#: A card that idles is worth a word when it is so many times as fast as the one that carried.
FASTER = 2.0

_COST = "reads the counters of network cards before and after half a second of collectives"


@dataclass(frozen=True, slots=True)
class Carriers:
    """What carried a node's bytes one way, with how many: interfaces and RDMA ports, loopback left out.

    A bond and its members, a VLAN and its card all count the same bytes, so that there may be several.
    """

    verb: str
    interfaces: dict[str, int]
    ports: dict[str, int]


def carriers(transport: Transport) -> tuple[Carriers, Carriers]:
    """What received and what sent the ranks' bytes; empty where nothing was counted or had to leave the node."""
    ways = (("received", 1, RECEIVED), ("sent", 0, SENT))
    received, sent = (_carriers(transport, verb, index, part) for verb, index, part in ways)
    return received, sent


def _carriers(transport: Transport, verb: str, index: int, part: float) -> Carriers:
    least = transport.crossing_bytes * part

    def enough(counted: Mapping[str, Sequence[int]]) -> dict[str, int]:
        return {name: both[index] for name, both in counted.items() if both[index] >= least and name != "lo"}

    if not transport.counted or not transport.crossing_bytes:
        return Carriers(verb, {}, {})
    return Carriers(verb, enough(transport.carried.interfaces), enough(transport.carried.ports))


@check(
    "SMK012",
    "sockets-instead-of-rdma",
    plan=plan_smoke,
    probes=(run_rank,),
    cost=_COST,
    when="smoke",
    severity=Severity.WARNING,
    evidence=("NVIDIA/nccl#952", "NVIDIA/nccl-tests#166"),
)
def sockets_instead_of_rdma(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Where every node has working RDMA devices that the job may use, its ranks use them.

    What it checks: what NCCL says of its network on each rank (kept in memory, not in a file), and the counters of RDMA
    ports and interfaces before and after the timed collectives; expected is RDMA where the job's own filters leave an
    active port on every node.

    Why it matters: NCCL falls back to sockets without a word. The job runs, several times as slow as it could.

    Example: ranks 8 to 15 on node-b use NET/Socket over eth0, though mlx5_0:1 is active there and on all other nodes.

    Fix: look for libibverbs and /dev/infiniband inside the container, and at NCCL_IB_DISABLE, NCCL_IB_HCA and NCCL_NET.

    Known limits: only for NCCL; a smoke run without GPUs says nothing of it. Whether GPU Direct is used is told, not
    judged.

    Evidence: NVIDIA/nccl#952, NVIDIA/nccl-tests#166 (no device found, NET/Socket instead).
    """
    run = run_of(job, facts)
    early = incomplete(job, fleet, run)
    if early is not None:
        yield early
        return
    demand = applies(job, fleet)
    if demand is None:
        yield not_applicable("transport of the ranks", "the job uses no RDMA, or runs on one machine")
        return
    over = {report.backend for _, report in run.reports}
    if over != {"nccl"}:
        yield not_applicable("transport of the ranks", f"the smoke run used {fold(sorted(over))}, which knows no RDMA")
        return
    ports = ports_by_node(job, facts)
    nodes = tuple(dict.fromkeys(node for node, _ in run.reports))
    without = [node for node in nodes if not any(port.usable for port in ports.get(node, ()))]
    if without:
        reason = f"no active RDMA port that the job may use is known on {fold(without)}"
        yield not_applicable("transport of the ranks", f"{reason}, so that sockets are what is to be expected")
        return
    odd = [(node, report) for node, report in run.reports if by_sockets(report)]
    blind = [node for node, report in run.reports if by_sockets(report) is None]
    for node in dict.fromkeys(node for node, _ in odd):
        active = [port.name for port in ports[node] if port.usable]
        yield _by_sockets(node, [report for name, report in odd if name == node], active, demand.claims)
    if odd:
        return
    if len(blind) == len(run.reports):
        yield unknown("transport of the ranks", "neither NCCL nor the counters of any card tell what was used")
        return
    yield passed(f"transport of the ranks: {spoken(run.reports)}")


def by_sockets(report: RankReport) -> bool | None:
    """Whether this rank's bytes went over sockets: by NCCL's word, else by the counters; None where neither tells."""
    said = report.transport.nccl
    if said.network or said.via:
        return said.sockets
    received, _ = carriers(report.transport)
    if received.ports:
        return False
    return True if received.interfaces else None


def spoken(reports: Sequence[tuple[str, RankReport]]) -> str:
    """`NCCL 2.27.5 over IB (mlx5_0:1, mlx5_1:1), GPU Direct RDMA`, of all ranks together."""
    said = [report.transport.nccl for _, report in reports]
    versions = fold(dict.fromkeys(item.version for item in said if item.version))
    networks = fold(dict.fromkeys(item.network for item in said if item.network)) or "RDMA"
    devices = fold(dict.fromkeys(name for item in said for name in item.devices))
    direct = {item.direct for item in said if item.direct is not None}
    extra = ", GPU Direct RDMA" if direct == {True} else ", no GPU Direct RDMA" if direct == {False} else ""
    return f"NCCL {versions or '(version not said)'} over {networks}{f' ({devices})' if devices else ''}{extra}"


def _by_sockets(node: str, reports: list[RankReport], active: list[str], claims: Sequence[Claim]) -> Verdict:
    said = reports[0].transport.nccl
    received, _ = carriers(reports[0].transport)
    which = fold(said.devices or sorted(received.interfaces)) or "unknown interfaces"
    ranks = numbered([report.rank for report in reports])
    channels = sum(number for kind, number in said.via.items() if kind.startswith("NET/"))
    details = f"network {said.network or 'not said'} ({which}), {channels} channels over it, NCCL {said.version or '?'}"
    if said.warnings:
        details += f"; {said.warnings[0]}"
    return failed(
        f"transport of {ranks} on {node}",
        f"{ranks} on {node} {'talks' if len(reports) == 1 else 'talk'} over sockets ({which}), though "
        f"{fold(active)} {'is' if len(active) == 1 else 'are'} active there, as RDMA ports are on every node",
        at=Evidence(FACT, details, f"RDMA over {fold(active)}", "NCCL_DEBUG=INFO", node),
        also=claims,
        nodes=(node,),
        remedy="See whether the ranks find libibverbs and /dev/infiniband (inside the container, too), and what "
        "NCCL_IB_DISABLE, NCCL_IB_HCA, NCCL_NET and NCCL_NET_PLUGIN are there; NCCL_DEBUG=INFO says why it fell back.",
    )


@dataclass(frozen=True, slots=True)
class _Expected:
    """The interfaces that ought to carry a node's bytes, and why."""

    names: tuple[str, ...]
    why: str


@check(
    "SMK013",
    "traffic-on-another-network",
    plan=plan_smoke,
    probes=(run_rank,),
    cost=_COST,
    when="smoke",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("pytorch/gloo#367", "pytorch/gloo#70"),
)
def traffic_elsewhere(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks' bytes go over the network card that was chosen, and not over a slow one beside a fast one.

    What it checks: the counters of all interfaces and RDMA ports of each node before and after the timed collectives,
    against what the node must have got from others at least; the card that carried that against the interface that
    the job or the library chooses, and its speed against that of other cards that are up.

    Why it matters: a route, a name or a default may lead the data over the management network. Everything works, at a
    tenth of the speed, and slows down what else uses that network.

    Example: on node3 eth1 received 96 MB of the ranks' data; GLOO_SOCKET_IFNAME=eth0 chooses eth0.

    Fix: `ip route get ADDRESS` for the other nodes' addresses; choose the interface, or remove the route.

    Known limits: counters are those of the node, so that other traffic of the same half second counts as well; a
    container with a network of its own sees its own interfaces only.

    Evidence: pytorch/gloo#367, pytorch/gloo#70 (the service network instead of the fast one).
    """
    run = run_of(job, facts)
    early = incomplete(job, fleet, run)
    if early is not None:
        yield early
        return
    counted = [(node, r) for node, r in run.reports if r.transport.counted and r.transport.crossing_bytes]
    if not apart(fleet) or not counted:
        yield not_applicable("network cards of the ranks", "no bytes had to leave a machine")
        return
    seen: dict[str, list[str]] = {}
    blind: list[str] = []
    faults = 0
    for node, report in counted:
        ways = carriers(report.transport)
        if not all(way.interfaces or way.ports for way in ways):
            blind.append(node)
            continue
        fault = _elsewhere(node, report, ways, _expected(job, facts, run, node), facts)
        if fault is not None:
            faults += 1
            yield fault
            continue
        names = dict.fromkeys(name for way in ways for name in (*way.ports, *way.interfaces))
        seen.setdefault(fold(names), []).append(node)
    if blind:
        yield unknown(
            f"network cards of {fold(blind)}",
            "no counter of a card there shows what the ranks must have got: a network of a container's own, or a card "
            "that does not count what passes the kernel by",
        )
    if not faults and seen:
        parts = [f"{names} on {fold(nodes)}" for names, nodes in sorted(seen.items())]
        yield passed(f"network cards of the ranks: {'; '.join(parts)}")


def _expected(job: Job, facts: Facts, run: SmokeRun, node: str) -> _Expected | None:
    asked = [r.request.params.get("interface") for r in run.records if r.request.node == node]
    told = next((name for name in asked if isinstance(name, str) and name), "")
    used = used_interfaces(job, facts).get(node)
    names = tuple(item.name for item in used.among) if used is not None else ()
    if used is not None and (not told or (used.filter is not None and told in names)):
        return _Expected(names, f"{used.interface.name} is expected: {used.reason}")
    return _Expected((told,), f"{told} is what the ranks were told to use") if told else None


def _elsewhere(
    node: str, report: RankReport, ways: Sequence[Carriers], expected: _Expected | None, facts: Facts
) -> Verdict | None:
    """What is wrong with the interfaces that carried a node's bytes; None where nothing is."""
    plain = [way for way in ways if not way.ports]
    for way in plain:
        if expected is not None and not set(expected.names) & set(way.interfaces):
            return _finding(node, report, way, expected.why)
    nics = {nic for way in plain for nic in way.interfaces}
    fact = facts.of(interfaces, node)
    have = {item.name: item for item in fact.value.interfaces} if isinstance(fact, Observed) else {}
    carried = max((have[nic].speed_mbps or 0 for nic in nics if nic in have), default=0)
    faster = _fastest(have, carried)
    if faster is None:
        return None
    why = f"{faster.name} is up, has an address and is {(faster.speed_mbps or 0) / carried:.0f} times as fast"
    return _finding(node, report, plain[0], why)


def _fastest(have: Mapping[str, Interface], carried_mbps: int) -> Interface | None:
    real = [i for i in have.values() if i.kind == "physical" and i.up and i.running and i.addresses and i.speed_mbps]
    best = max(real, key=lambda item: item.speed_mbps or 0, default=None)
    if best is None or not carried_mbps or (best.speed_mbps or 0) < FASTER * carried_mbps:
        return None
    return best


def _finding(node: str, report: RankReport, way: Carriers, why: str) -> Verdict:
    name, carried = max(way.interfaces.items(), key=lambda item: item[1])
    every = ", ".join(
        f"{nic} {both[1] / 1e6:.1f} and {both[0] / 1e6:.1f} MB"
        for nic, both in sorted(report.transport.carried.interfaces.items())
    )
    return failed(
        f"network card of {node}",
        f"{name} of {node} {way.verb} {carried / 1e6:.0f} MB while the node had to get at least "
        f"{report.transport.crossing_bytes / 1e6:.0f} MB from others; {why}",
        at=Evidence(FACT, f"received and sent meanwhile: {every}", why, f"ip -s link show {name}", node),
        nodes=(node,),
        remedy=f"On {node}: `ip route get` the address of another node, and see why it leads to {name}; choose the "
        "interface with GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, or remove the route.",
    )

"""Checks the transport of the ranks' data: the backend, RDMA or sockets, and the network card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, unknown
from preflight_checks.network.nics import used_interfaces
from preflight_checks.plans import gated_by
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.rdma.devices import Demand, applicable_demand, ports_by_node
from preflight_checks.requirements import fold, is_multi_node
from preflight_checks.smoke.plan import (
    FACT,
    PLAN_PROBES,
    SmokeRun,
    complete_run,
    missing_run_verdict,
    numbered_ranks,
    obstacles,
    plan_of,
    run_of,
    smoke_check,
)
from preflight_checks.smoke.ranks import framework_of, nodes_without_gpus, title
from reference_trainer.collective.rank import RankReport
from reference_trainer.common.used_transport import Transport

#: A card carried the ranks' bytes if it received the first share of the node's least input, or sent the second: in an
#: all-gather a node may send less than it receives.
RECEIVED, SENT = 0.5, 0.25
#: An idle card is mentioned if it is this many times as fast as the one in use.
FASTER_CARD = 2.0


@dataclass(frozen=True, slots=True)
class Carriers:
    """The interfaces that transferred a node's bytes in one direction; a bond and its members may count the same
    bytes.
    """

    direction: str
    interfaces: dict[str, int]
    ports: dict[str, int]


def carriers(transport: Transport) -> tuple[Carriers, Carriers]:
    """Return the interfaces that received and that sent the ranks' bytes; empty if no data left the node."""
    directions = (("received", 1, RECEIVED), ("sent", 0, SENT))
    received, sent = (_carriers(transport, verb, index, part) for verb, index, part in directions)
    return received, sent


def _carriers(transport: Transport, verb: str, index: int, part: float) -> Carriers:
    least = transport.crossing_bytes * part

    def significant_bytes(counted: Mapping[str, Sequence[int]]) -> dict[str, int]:
        whole = {name: both for name, both in counted.items() if len(both) > index and name != "lo"}
        return {name: both[index] for name, both in whole.items() if both[index] >= least}

    if not transport.counted or not transport.crossing_bytes:
        return Carriers(verb, {}, {})
    return Carriers(verb, significant_bytes(transport.carried.interfaces), significant_bytes(transport.carried.ports))


@smoke_check("SMK012", "sockets-instead-of-rdma", severity=Severity.WARNING)
@gated_by(complete_run)
def sockets_instead_of_rdma(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> Iterator[Verdict]:
    """Ranks use RDMA if every node has working RDMA devices that the job may use.

    What it checks: NCCL's log of its network on each rank (kept in memory, not in a file), and the counters of RDMA
    ports and interfaces before and after the timed collectives; RDMA is expected if the job's own filters leave an
    active port on every node, or if the job requests it by name (NCCL_NET=IB, NCCL_IB_HCA, FI_PROVIDER=efa).

    Why it matters: NCCL silently falls back to sockets. The job runs at a fraction of its possible speed.

    Example: ranks 8 to 15 on node-b use NET/Socket over eth0, although mlx5_0:1 is active there and on all other nodes.

    Fix: check for libibverbs and /dev/infiniband inside the container, and check NCCL_IB_DISABLE, NCCL_IB_HCA and
    NCCL_NET.

    Known limits: only for NCCL; a smoke run without GPUs cannot show this. Use of GPU Direct is reported, not judged.
    """
    demand = applicable_demand(job, fleet)
    if demand is None:
        yield not_applicable("transport of the ranks", "the job uses no RDMA, or runs on one machine")
        return
    over = {report.backend for _, report in run.reports}
    if over != {"nccl"}:
        yield not_applicable(
            "transport of the ranks", f"the smoke run used {fold(sorted(over))}, which does not support RDMA"
        )
        return
    ports = ports_by_node(job, facts)
    nodes = tuple(dict.fromkeys(node for node, _ in run.reports))
    without = [node for node in nodes if not any(port.is_usable for port in ports.get(node, ()))]
    odd = [(node, report) for node, report in run.reports if uses_sockets(report)]
    if without and odd and demand.requested_by:
        yield _despite_request_finding(odd, without, demand)
        return
    if without:
        reason = f"no active RDMA port that the job may use is known on {fold(without)}"
        yield not_applicable("transport of the ranks", f"{reason}, so sockets are expected")
        return
    blind = [node for node, report in run.reports if uses_sockets(report) is None]
    for node in dict.fromkeys(node for node, _ in odd):
        active = [port.name for port in ports[node] if port.is_usable]
        yield _sockets_finding(node, [report for name, report in odd if name == node], active, demand.claims)
    if odd:
        return
    if len(blind) == len(run.reports):
        yield unknown("transport of the ranks", "neither NCCL nor the counters of a network card show what was used")
        return
    yield passed(f"transport of the ranks: {describe(run.reports)}")


def uses_sockets(report: RankReport) -> bool | None:
    """Return whether the rank's bytes went over sockets, by NCCL's log or else by the counters; None if unknown."""
    nccl = report.transport.nccl
    if nccl.network or nccl.via:
        return nccl.sockets
    received, _ = carriers(report.transport)
    if received.ports:
        return False
    return True if received.interfaces else None


def describe(reports: Sequence[tuple[str, RankReport]]) -> str:
    """Return a description such as `NCCL 2.27.5 over IB (mlx5_0:1), GPU Direct RDMA; channels: 8 NET/IB, 8
    P2P/CUMEM`.
    """
    nccl = [report.transport.nccl for _, report in reports]
    versions = fold(dict.fromkeys(item.version for item in nccl if item.version))
    networks = fold(dict.fromkeys(item.network for item in nccl if item.network)) or "RDMA"
    devices = fold(dict.fromkeys(name for item in nccl for name in item.devices))
    direct = {item.direct for item in nccl if item.direct is not None}
    extra = ", GPU Direct RDMA" if direct == {True} else ", no GPU Direct RDMA" if direct == {False} else ""
    counts: Counter[str] = sum((Counter(item.via) for item in nccl), Counter())
    channels = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
    return f"NCCL {versions or '(unknown version)'} over {networks}{f' ({devices})' if devices else ''}{extra}" + (
        f"; channels: {channels}" if channels else ""
    )


def _despite_request_finding(
    reports: Sequence[tuple[str, RankReport]], without: Sequence[str], demand: Demand
) -> Verdict:
    """Return the finding that the job names RDMA although NCCL's log or the counters show sockets."""
    node, report = reports[0]
    nccl = report.transport.nccl
    received, _ = carriers(report.transport)
    which = fold(nccl.devices or sorted(received.interfaces)) or "unknown interfaces"
    ranks = numbered_ranks([item.rank for _, item in reports])
    return failed(
        f"transport of {ranks}",
        f"{demand.requested_by} requests RDMA, but {ranks} "
        f"{'communicates' if len(reports) == 1 else 'communicate'} over sockets ({which}); no active RDMA port that "
        f"the job may use is known on {fold(without)}",
        at=Evidence(
            FACT,
            f"network {nccl.network or 'unknown'} ({which}), NCCL {nccl.version or '?'}"
            + (f"; {nccl.warnings[0]}" if nccl.warnings else ""),
            demand.requested_by,
            "NCCL_DEBUG=INFO",
            node,
        ),
        also=demand.claims,
        nodes=tuple(dict.fromkeys(name for name, _ in reports)),
        remedy=f"Run `ibv_devinfo` on {fold(without)}, and inside the job's container: bring up a port that "
        f"{demand.requested_by} selects, or remove the request.",
    )


def _sockets_finding(node: str, reports: list[RankReport], active: list[str], claims: Sequence[Claim]) -> Verdict:
    nccl = reports[0].transport.nccl
    received, _ = carriers(reports[0].transport)
    which = fold(nccl.devices or sorted(received.interfaces)) or "unknown interfaces"
    ranks = numbered_ranks([report.rank for report in reports])
    channels = sum(number for kind, number in nccl.via.items() if kind.startswith("NET/"))
    details = f"network {nccl.network or 'unknown'} ({which}), {channels} channels over it, NCCL {nccl.version or '?'}"
    if nccl.warnings:
        details += f"; {nccl.warnings[0]}"
    return failed(
        f"transport of {ranks} on {node}",
        f"{ranks} on {node} {'communicates' if len(reports) == 1 else 'communicate'} over sockets ({which}), "
        f"although {fold(active)} {'is' if len(active) == 1 else 'are'} active there and every node has active RDMA "
        "ports",
        at=Evidence(FACT, details, f"RDMA over {fold(active)}", "NCCL_DEBUG=INFO", node),
        also=claims,
        remedy="Check whether the ranks find libibverbs and /dev/infiniband (also inside the container), and the "
        "values of NCCL_IB_DISABLE, NCCL_IB_HCA, NCCL_NET and NCCL_NET_PLUGIN there; NCCL_DEBUG=INFO logs "
        "the reason for the fallback.",
    )


@dataclass(frozen=True, slots=True)
class _Expected:
    """The interfaces that are expected to carry a node's bytes, and the reason."""

    names: tuple[str, ...]
    reason: str


@smoke_check("SMK013", "traffic-on-another-network", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
@gated_by(complete_run)
def traffic_on_another_network(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> Iterator[Verdict]:
    """The ranks' data goes over the selected network card, and not over a slow card next to a fast one.

    What it checks: the counters of all interfaces and RDMA ports of each node before and after the timed collectives,
    compared with the least that the node must have received from others. The card that carried the traffic is compared
    with the interface that the job or the library selects, and its speed with that of other active cards.

    Why it matters: a route, a name or a default may send the data over the management network. Everything works at a
    tenth of the speed, and slows down other users of that network.

    Example: on node3, eth1 received 96 MB of the ranks' data, but GLOO_SOCKET_IFNAME=eth0 selects eth0.

    Fix: `ip route get ADDRESS` for the other nodes' addresses; select the interface, or remove the route.

    Known limits: counters are those of the node, so other traffic in the same half second also counts; a container with
    its own network sees only its own interfaces.
    """
    counted = [(node, r) for node, r in run.reports if r.transport.counted and r.transport.crossing_bytes]
    if not is_multi_node(fleet) or not counted:
        yield not_applicable("network cards of the ranks", "no data had to leave a machine")
        return
    lines_by_node: dict[str, list[str]] = {}
    blind: list[str] = []
    faults = 0
    for node, report in counted:
        directions = carriers(report.transport)
        if not all(carriers.interfaces or carriers.ports for carriers in directions):
            blind.append(node)
            continue
        expected = _expected(job, facts, run, node, report.backend)
        fault = _misplaced_traffic_finding(node, report, directions, expected, facts)
        if fault is not None:
            faults += 1
            yield fault
            continue
        names = dict.fromkeys(name for carriers in directions for name in (*carriers.ports, *carriers.interfaces))
        lines_by_node.setdefault(fold(names), []).append(node)
    if blind:
        yield unknown(
            f"network cards of {fold(blind)}",
            "no counter of a network card shows the bytes that the ranks received: the container has its own "
            "network, or the card does not count traffic that bypasses the kernel",
        )
    if not faults and lines_by_node:
        parts = [f"{names} on {fold(nodes)}" for names, nodes in sorted(lines_by_node.items())]
        yield passed(f"network cards of the ranks: {'; '.join(parts)}")


def _expected(job: Job, facts: Facts, run: SmokeRun, node: str, backend: str) -> _Expected | None:
    mine = [r.request.params for r in run.records if r.request.node == node]
    # NCCL is given no interface unless the job's filter selects it: see `set_interface` of the reference trainer.
    given = [p for p in mine if backend != "nccl" or p.get("filtered") or p.get("force_interface")]
    interfaces = [params.get("interface") for params in given]
    interface = next((name for name in interfaces if isinstance(name, str) and name), "")
    used = used_interfaces(job, facts).get(node)
    names = tuple(item.name for item in used.candidates) if used is not None else ()
    if used is not None and (not interface or (used.filter is not None and interface in names)):
        return _Expected(names, f"{used.interface.name} is expected: {used.reason}")
    return _Expected((interface,), f"{interface} is configured for the ranks") if interface else None


def _misplaced_traffic_finding(
    node: str, report: RankReport, directions: Sequence[Carriers], expected: _Expected | None, facts: Facts
) -> Verdict | None:
    """Return the finding on the interfaces that carried a node's bytes; None if they are the expected ones."""
    plain = [carriers for carriers in directions if not carriers.ports]
    for carriers in plain:
        if expected is not None and not set(expected.names) & set(carriers.interfaces):
            return _finding(node, report, carriers, expected.reason)
    nics = {nic for carriers in plain for nic in carriers.interfaces}
    fact = facts.of(interfaces, node)
    observed = {item.name: item for item in fact.value.interfaces} if isinstance(fact, Observed) else {}
    carried = max((observed[nic].speed_mbps or 0 for nic in nics if nic in observed), default=0)
    faster = _fastest(observed, carried)
    if faster is None:
        return None
    reason = f"{faster.name} is up, has an address and is {(faster.speed_mbps or 0) / carried:.0f} times as fast"
    return _finding(node, report, plain[0], reason)


def _fastest(observed: Mapping[str, Interface], carried_mbps: int) -> Interface | None:
    real = [
        i for i in observed.values() if i.kind == "physical" and i.up and i.running and i.addresses and i.speed_mbps
    ]
    best = max(real, key=lambda item: item.speed_mbps or 0, default=None)
    if best is None or not carried_mbps or (best.speed_mbps or 0) < FASTER_CARD * carried_mbps:
        return None
    return best


def _finding(node: str, report: RankReport, carriers: Carriers, reason: str) -> Verdict:
    name, carried = max(carriers.interfaces.items(), key=lambda item: item[1])
    interfaces_text = ", ".join(
        f"{nic} {both[1] / 1e6:.1f} and {both[0] / 1e6:.1f} MB"
        for nic, both in sorted(report.transport.carried.interfaces.items())
    )
    return failed(
        f"network card of {node}",
        f"{name} of {node} {carriers.direction} {carried / 1e6:.0f} MB, and the node had to receive at least "
        f"{report.transport.crossing_bytes / 1e6:.0f} MB from others; {reason}",
        at=Evidence(
            FACT, f"received and sent during the run: {interfaces_text}", reason, f"ip -s link show {name}", node
        ),
        remedy=f"On {node}, run `ip route get` with the address of another node, and find out why it uses {name}; "
        "select the interface with GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, or remove the route.",
    )


@smoke_check("SMK008", "backend-unusable", reads=PLAN_PROBES, severity=Severity.ERROR)
def backend_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every rank can use the backend that the job requests, and all ranks use the same.

    What it checks: the backend is chosen once for all ranks: NCCL if the job names it, or requests GPUs without naming
    a backend; Gloo if the job names it, even on nodes with GPUs; otherwise NCCL if every rank has a GPU. With NCCL,
    each rank requests a GPU from its own torch (or paddle), in the job's interpreter and environment.

    Why it matters: torch rejects NCCL without a GPU, on every node or on the one whose container hides them, and the
    other ranks wait for it. A test over Gloo would show nothing about such a job.

    Example: the job requests NCCL, but torch 2.5.1+cpu finds no GPU on node3.

    Fix: install a build of torch for the GPUs, make the container or scheduler pass them on, or make the job use Gloo.

    Known limits: `--smoke-backend gloo` runs over Gloo nevertheless, and the report states this. Other backends (mpi,
    ucc) are not tested.
    """
    run = run_of(job, facts)
    early = missing_run_verdict(job, fleet, run)
    found = obstacles(run)
    if found:
        yield _unusable_finding(job, fleet, facts, found)
        return
    if early is not None:
        yield early if not early.required else unknown("backend", "blocked by SMK001: no rank ran")
        return
    backend = plan_of(job, fleet, facts).backend
    nodes = [node.name for node in fleet.nodes]
    notes = {report.backend_note: node for node, report in run.reports if report.backend_note}
    if backend.by_option and backend.untested:
        used = next((f"{title(report.backend)} on {fold(nodes)}" for _, report in run.reports), backend.why)
        yield failed(
            "backend",
            f"the smoke run used {title(backend.name)} because of --smoke-backend; {backend.untested}",
            at=Evidence(FACT, used, "the job's backend", node=run.members[0].node),
            also=backend.claims,
            nodes=nodes,
            remedy="Repeat the run without --smoke-backend on nodes that can use the job's backend.",
            severity=Severity.INFO,
        )
    elif backend.untested:
        yield unknown("backend", backend.untested, required=True)
    elif not run.reports:
        yield unknown("backend", "blocked by SMK001: no rank completed")
    elif notes:
        note, node = next(iter(notes.items()))
        yield failed(
            "backend",
            f"the ranks used {note}",
            at=Evidence(FACT, note, "a GPU for every rank, or for none", node=node),
            also=backend.claims,
            nodes=nodes,
            remedy="Name the backend in the job, or give every rank a GPU: if each rank chooses its own backend, "
            "they may differ.",
            severity=Severity.WARNING,
        )
    else:
        used = fold(sorted({title(report.backend) for _, report in run.reports}))
        yield passed(f"backend: {used} ({backend.why})")
        untested = framework_of(job, fleet, facts).untested
        if untested:
            yield unknown("the job's framework", untested)


def _unusable_finding(job: Job, fleet: Fleet, facts: Facts, reasons: dict[str, str]) -> Verdict:
    backend = plan_of(job, fleet, facts).backend
    nodes = [node.name for node in fleet.nodes if node.name in {*reasons, *nodes_without_gpus(fleet, facts)}]
    node, why = next(iter(reasons.items()))
    others = "" if len(set(reasons.values())) == 1 else f" ({node})"
    request_text = "--smoke-backend requests" if backend.by_option else "the job requests"
    return failed(
        f"NCCL on {fold(nodes)}",
        f"{request_text} NCCL, but {why} on {fold(nodes)}{others}",
        at=Evidence(FACT, f"{node}: {why}", "a GPU for every rank", node=node),
        also=backend.claims,
        nodes=nodes,
        remedy=f"Install a build for the GPUs of {fold(nodes)}, or make the GPUs visible in the ranks' container. If "
        "the job should run over Gloo, make it request Gloo; `--smoke-backend gloo` tests everything else "
        "over Gloo.",
    )

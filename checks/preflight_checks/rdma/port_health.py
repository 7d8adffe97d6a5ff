"""Checks that the RDMA ports that the job uses have one rate, no errors, and one firmware version."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, failed, passed
from preflight_checks.comparison import split
from preflight_checks.rdma.devices import blind, rdma_check
from preflight_checks.rdma.port_choice import Port, applies, ports_by_node
from preflight_checks.requirements import fold

#: Errors that a port may count in its life; far more than on the other nodes means a bad cable.
MIN_ERRORS = {"link_downed": 5, "symbol_error": 1000, "local_link_integrity_errors": 1000, "link_error_recovery": 10}


@rdma_check(
    "RDM003",
    "rdma-rate-differs",
    severity=Severity.WARNING,
    evidence=(
        "https://github.com/AMD-AGI/Primus",
        ("Primus node-smoke, Azure node health checks (ib link)", "https://github.com/Azure/azurehpc-health-checks"),
    ),
)
def rate_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A port has the same rate and link layer on all nodes.

    What it checks: rate and link layer of every active port that the job uses, port by port between nodes.

    Why it matters: a cable with a dead lane agrees on a quarter of the rate, and all wait for it; InfiniBand and
    Ethernet cannot communicate with each other.

    Example: mlx5_0 of node4 runs at 50 Gb/sec (1X HDR), elsewhere at 200 Gb/sec (4X HDR).

    Fix: reseat or replace the cable; set the port type of the card as on the other nodes.

    Known limits: without a clear majority nothing is reported: mixed hardware may be intended.
    """
    yield from blind(job, fleet, facts, "RDMA rates")
    ports = ports_by_node(job, facts) if applies(job, fleet) is not None else {}
    rates: dict[str, dict[str, Port]] = {}
    for node, found in ports.items():
        for item in found:
            if item.port.active:
                rates.setdefault(item.name, {})[node] = item
    slow: dict[tuple[str, str, str], list[str]] = {}
    layers: dict[tuple[str, str, str], list[str]] = {}
    compared = 0
    for name, on in rates.items():
        speed = split({node: item.port.rate_gbps for node, item in on.items() if item.port.rate_gbps is not None})
        compared += len(speed.agreeing) if speed is not None else 0
        for node, value in speed.odd.items() if speed is not None and speed.has_majority else ():
            if speed is not None and value is not None and speed.common is not None and value < speed.common:
                common = on[speed.agreeing[0]].port.rate_text
                slow.setdefault((on[node].port.rate_text, common, node), []).append(name)
        layer = split({node: item.port.link_layer for node, item in on.items() if item.port.link_layer})
        for node, kind in layer.odd.items() if layer is not None and layer.has_majority else ():
            assert layer is not None
            layers.setdefault((kind, layer.common, node), []).append(name)
    for (text, common, node), names in slow.items():
        yield failed(
            f"RDMA rate of {node}: {fold(names)}",
            f"{fold(names)} {'runs' if len(names) == 1 else 'run'} at {text} on {node}, on most nodes at {common}",
            at=Evidence("rate", text, common, f"ibstat {_device(names)}", node),
            remedy=f"Reseat or replace the cable of {fold(names)} on {node}; `mlxlink -d {_device(names)}` shows its "
            "lanes.",
            confidence=Confidence.MEDIUM,
        )
    for (kind, common, node), names in layers.items():
        yield failed(
            f"link layer of {node}: {fold(names)}",
            f"{fold(names)} {'is' if len(names) == 1 else 'are'} {kind} on {node} and {common} on most nodes; they "
            "cannot communicate with each other",
            at=Evidence("link layer", kind, common, f"ibstat {_device(names)}", node),
            remedy=f"Set the port type as on the other nodes: `mlxconfig -d {_device(names)} set LINK_TYPE_P1=...`.",
        )
    if compared and not slow and not layers:
        yield passed(f"RDMA rates of {len(ports)} nodes")


def _device(ports: list[str]) -> str:
    return ports[0].split(":")[0]


@rdma_check(
    "RDM004",
    "rdma-link-errors",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        ("training stops with error 12; port errors, flapping link, check counters", "NVIDIA/nccl#905"),
        ("Azure node health checks (ib link flapping)", "https://github.com/Azure/azurehpc-health-checks"),
        ("gcm, ib counters", "https://github.com/facebookresearch/gcm"),
    ),
)
def link_errors(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No port in use has far more link losses or corrected errors than the ports of the other nodes.

    What it checks: link_downed, symbol_error, local_link_integrity_errors and link_error_recovery of each active port
    in use compared with the median of all of them.

    Why it matters: a link that flaps ends a run of days with "error 12" or "transport retry counter exceeded".

    Example: mlx5_5 of node7 counts 212 lost links; the median is 1.

    Fix: reseat or replace cable and transceiver.

    Known limits: counters have no date and start again with the driver; fewer than three ports are not compared.
    Priority flow control and congestion notification are not examined, because each driver keeps these counters
    elsewhere.
    """
    yield from blind(job, fleet, facts, "RDMA link errors")
    ports = ports_by_node(job, facts) if applies(job, fleet) is not None else {}
    active = [(node, item) for node, found in ports.items() for item in found if item.port.active]
    sick: list[tuple[str, Port, str, int, float]] = []
    for counter, few in MIN_ERRORS.items():
        values = [item.port.counters[counter] for _node, item in active if counter in item.port.counters]
        if len(values) < 3:
            continue
        usual = median(values)
        for node, item in active:
            count = item.port.counters.get(counter, 0)
            if count > few and count > 10 * usual:
                sick.append((node, item, counter, count, usual))
    for node, item, counter, count, usual in sick:
        yield failed(
            f"RDMA {counter} of {item.name} on {node}",
            f"{item.name} on {node} counts {count} {counter}; the median of {len(active)} ports is {usual:g}",
            at=Evidence(counter, str(count), f"{usual:g}", f"perfquery; cat {_counter(item, counter)}", node),
            remedy=f"Reseat or replace cable and transceiver of {item.name} on {node}.",
        )
    if active and not sick:
        yield passed(f"RDMA link errors of {len(active)} ports")


def _counter(item: Port, counter: str) -> str:
    return f"/sys/class/infiniband/{item.device.name}/ports/{item.port.number}/counters/{counter}"


@rdma_check(
    "RDM005",
    "rdma-firmware-differs",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        ("InfiniBand failed on some nodes only; older firmware, updated", "clustervision/trinity#219"),
        ("Primus node-smoke (NIC firmware)", "https://github.com/AMD-AGI/Primus"),
        ("imbue cluster-health (flint)", "https://github.com/imbue-ai/cluster-health"),
    ),
)
def firmware_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """RDMA cards of one kind that the job uses have one firmware version.

    What it checks: the firmware of the devices that the job's filter leaves, compared among cards of one board id.

    Why it matters: versions differ in congestion control, adaptive routing and known bugs; the one node with the old
    one is slow or drops out under load.

    Example: 28.33.0751 on node9, 28.39.1002 on 31 nodes.

    Fix: flash the card of the reported node, and reset it.

    Known limits: without a clear majority nothing is reported.
    """
    yield from blind(job, fleet, facts, "RDMA firmware")
    ports = ports_by_node(job, facts) if applies(job, fleet) is not None else {}
    versions: dict[str, dict[str, str]] = {}
    for node, found in ports.items():
        for item in found:
            if item.device.firmware:
                versions.setdefault(item.device.board, {})[f"{item.device.name} on {node}"] = item.device.firmware
    odd = False
    for board, on in versions.items():
        parts = split(on)
        if parts is None or not parts.odd or not parts.has_majority:
            continue
        odd = True
        _where, version = parts.first_odd
        nodes = list(dict.fromkeys(name.split(" on ")[1] for name in parts.odd))
        yield failed(
            f"RDMA firmware of {board or 'the cards'}",
            f"cards of one kind ({board or 'board unknown'}) have different firmware: {fold(parts.odd)} "
            f"{version}; {len(parts.agreeing)} have {parts.common}",
            at=Evidence("firmware", version, parts.common, "ibstat | grep -E 'CA|Firmware'", nodes[0]),
            nodes=nodes,
            remedy=f"Update {fold(parts.odd)} to {parts.common} (`mlxfwmanager`), and reset the card.",
        )
    if versions and not odd:
        yield passed(f"RDMA firmware of {len(ports)} nodes")

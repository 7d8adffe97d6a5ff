"""Checks of the health of the interfaces in use: speed, duplex, bonds, errors, driver and kernel rules."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from statistics import median

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.network.interface_filter import subnet
from preflight_checks.network.nics import UsedInterface, used_interfaces
from preflight_checks.plans import (
    gated_by,
    known_facts,
    on_every_node,
    only_if,
    runs_on_several_machines,
    split,
    warning_check,
)
from preflight_checks.probes.interfaces import NicState, NicStates, interfaces, nic_states
from preflight_checks.requirements import backend_claims, fold

#: Below this share of all packets, errors are normal for long cables; above it TCP visibly slows down (measured PyTorch
#: runs continue at 1 % loss, and take five times as long at 5 %).
ERROR_SHARE = 1e-4
#: Fewer errors than this are ignored, whatever their share.
MIN_ERRORS = 100
#: A link with this many more carrier changes than the other nodes is loose; each loss counts twice.
EXTRA_CHANGES = 20


_plan = on_every_node(interfaces, nic_states, when=runs_on_several_machines, because=backend_claims)


#: The interface in use and its state, by node.
InUse = dict[str, tuple[UsedInterface, NicState]]


def states_in_use(job: Job, facts: Facts) -> InUse:
    """Return the interface in use and its state, for each node where both are known."""
    states = facts.observed(nic_states)
    return {
        node: (use, state)
        for node, use in used_interfaces(job, facts).items()
        for state in (states[node].interfaces if node in states else ())
        if state.name == use.interface.name
    }


def _known_states(job: Job, fleet: Fleet, facts: Facts, subject: str) -> Generator[Verdict, None, InUse | None]:
    """Return the interfaces in use and their states, or yield why there are none."""
    seen = yield from known_facts(facts, nic_states, subject)
    found = states_in_use(job, facts)
    if seen and not found:
        yield unknown(subject, "which interface the job will use is unknown, or /sys does not show it")
    return found or None


@warning_check("NIC008", "interface-speed-differs", plan=_plan)
@only_if(runs_on_several_machines, "speed", "the job runs on one machine")
@gated_by(partial(_known_states, subject="speed"))
def interface_speed(job: Job, fleet: Fleet, facts: Facts, in_use: InUse) -> Iterator[Verdict]:
    """The interfaces in use run at the same speed, in full duplex.

    What it checks: speed and duplex mode of each node's interface in use, as its driver reports them.

    Why it matters: every step waits for the slowest link; with a bad cable or port, a 25 Gbit/s card negotiates 1
    Gbit/s.

    Example: three nodes at 100000 Mbit/s and one at 1000.

    Fix: check the cable, transceiver and switch port of the reported node; `ethtool NAME` shows what both ends offer.

    Known limits: virtual machines' drivers often report no speed, or a meaningless one; the link stage measures the
    real rate.
    """
    speeds = {node: s.speed_mbps for node, (_use, s) in in_use.items() if s.speed_mbps is not None}
    half = [node for node, (_use, state) in in_use.items() if state.duplex == "half"]
    parts = split(speeds)
    slower = (
        {n: v for n, v in parts.odd.items() if v < parts.common} if parts is not None and parts.has_majority else {}
    )
    if slower and parts is not None:
        node, speed = next(iter(slower.items()))
        use, _state = in_use[node]
        yield failed(
            "speed",
            f"{use.interface.name} runs at {_speed_text(speed)} on {fold(slower)}, but at "
            f"{_speed_text(parts.common)} on {len(parts.agreeing)} nodes",
            at=Evidence("speed", _speed_text(speed), _speed_text(parts.common), f"ethtool {use.interface.name}", node),
            also=use.claims,
            nodes=tuple(slower),
            remedy=f"Check the cable and switch port: `ethtool {use.interface.name}` on {fold(slower)}.",
        )
    if half:
        use, _state = in_use[half[0]]
        yield failed(
            "duplex",
            f"{use.interface.name} runs in half duplex on {fold(half)}",
            at=Evidence("duplex", "half", "full", f"ethtool {use.interface.name}", half[0]),
            also=use.claims,
            nodes=half,
            remedy=f"Enable autonegotiation at both ends: `ethtool -s {use.interface.name} autoneg on` on "
            f"{fold(half)}.",
            run=(root_command("ethtool", "-s", use.interface.name, "autoneg", "on", on=half),),
        )
    if not speeds:
        yield unknown("speed", "no driver of an interface in use reports a speed")
    elif speeds and not slower and not half:
        yield passed(f"interface speed on {len(speeds)} nodes")


def _speed_text(mbps: int) -> str:
    return f"{mbps / 1000:g} Gbit/s" if mbps >= 1000 else f"{mbps} Mbit/s"


@check("NIC009", "bond-degraded", plan=_plan, severity=Severity.WARNING)
@only_if(runs_on_several_machines, "bonds", "the job runs on one machine")
@gated_by(partial(_known_states, subject="bonds"))
def bond_degraded(job: Job, fleet: Fleet, facts: Facts, in_use: InUse) -> Iterator[Verdict]:
    """Every member of a bond in use has a link, and bonds have the same mode on all nodes.

    What it checks: if the interface in use is a bond, the link state of its members, and the mode and number of members
    compared between nodes.

    Why it matters: a bond with a dead member works at half the rate, which goes unnoticed.

    Example: bond0 of node2 has eth2 down; the other nodes have both members.

    Fix: check the cable and switch port of the member; use the same bonding mode everywhere.

    Known limits: in an active-backup bond, a dead member costs nothing until the other one fails.
    """
    bonds = {node: (use, state) for node, (use, state) in in_use.items() if state.bond_mode}
    if not bonds:
        yield not_applicable("bonds", "no interface in use is a bond")
    dead = {node: [m.name for m in state.members if m.up is False] for node, (_use, state) in bonds.items()}
    dead = {node: names for node, names in dead.items() if names}
    for name, names in dict.fromkeys((bonds[node][1].name, tuple(members)) for node, members in dead.items()):
        nodes = [n for n, members in dead.items() if (bonds[n][1].name, tuple(members)) == (name, names)]
        yield failed(
            f"{name} without {fold(names)}",
            f"{name} on {fold(nodes)} has lost {fold(names)}: {len(bonds[nodes[0]][1].members) - len(names)} of "
            f"{len(bonds[nodes[0]][1].members)} members are left",
            at=Evidence("bond", f"{fold(names)} down", "all members up", f"cat /proc/net/bonding/{name}", nodes[0]),
            also=bonds[nodes[0]][0].claims,
            nodes=nodes,
            remedy=f"Check the cable and switch port of {fold(names)} on {fold(nodes)}.",
        )
    shape = {node: f"{state.bond_mode} of {len(state.members)}" for node, (_use, state) in bonds.items()}
    parts = split(shape)
    if parts is not None and parts.odd and parts.has_majority:
        node, odd = parts.first_odd
        yield failed(
            "bonds differ",
            f"bonds differ between nodes: {parts.description}",
            at=Evidence("bond", odd, parts.common, f"cat /proc/net/bonding/{bonds[node][1].name}", node),
            also=bonds[node][0].claims,
            nodes=tuple(parts.odd),
            remedy=f"Configure {bonds[node][1].name} on {fold(parts.odd)} as on the other nodes.",
            confidence=Confidence.MEDIUM,
        )
    elif bonds and not dead:
        yield passed(f"bonds on {len(bonds)} nodes")


@warning_check("NIC010", "interface-errors", plan=_plan)
@only_if(runs_on_several_machines, "errors", "the job runs on one machine")
@gated_by(partial(_known_states, subject="errors"))
def interface_errors(job: Job, fleet: Fleet, facts: Facts, in_use: InUse) -> Iterator[Verdict]:
    """The interface in use has not lost its link, or packets, far more often than those of the other nodes.

    What it checks: receive and transmit errors as a share of all packets, and carrier changes since the driver was
    loaded, compared with the median of the nodes.

    Why it matters: a loose transceiver shows here days before it fails; until then TCP retransmits and every step
    waits.

    Example: node7 has 48000 rx_errors in 9 million packets, the others none.

    Fix: reseat or replace the cable and transceiver of the reported node.

    Known limits: counters have no date, so an old incident counts like a new one. Dropped packets are not judged,
    because a full socket buffer also counts.
    """
    # With fewer than three nodes, none can be called the odd one.
    shares = {node: _error_share(state) for node, (_use, state) in in_use.items()}
    noisy = _outliers_above(shares, lambda value, usual: value > ERROR_SHARE and value > 10 * usual)
    changes = {n: float(s.carrier_changes) for n, (_u, s) in in_use.items() if s.carrier_changes is not None}
    loose = _outliers_above(changes, lambda value, usual: value > 10 * usual and value > usual + EXTRA_CHANGES)
    for node in noisy:
        use, state = in_use[node]
        errors = state.counters.get("rx_errors", 0) + state.counters.get("tx_errors", 0)
        yield failed(
            f"errors of {node}",
            f"{state.name} on {node} has {errors} errors, {shares[node]:.2%} of all packets; the median of the nodes "
            f"is {median(shares.values()):.4%}",
            at=Evidence("errors", str(errors), "hardly any", f"ip -s link show {state.name}", node),
            also=use.claims,
            remedy=f"Reseat or replace the cable and transceiver of {state.name} on {node}; `ethtool -S "
            f"{state.name}` shows details.",
        )
    for node in loose:
        use, state = in_use[node]
        yield failed(
            f"carrier of {node}",
            f"{state.name} on {node} lost or regained its carrier {state.carrier_changes} times; the median of the "
            f"nodes is {median(changes.values()):g}",
            at=Evidence(
                "carrier", str(state.carrier_changes), f"{median(changes.values()):g}", _carrier_command(state), node
            ),
            also=use.claims,
            remedy=f"Reseat or replace the cable and transceiver of {state.name} on {node}.",
        )
    if not noisy and not loose:
        yield passed(f"interface errors on {len(in_use)} nodes")


def _carrier_command(state: NicState) -> str:
    return f"cat /sys/class/net/{state.name}/carrier_changes"


def _error_share(state: NicState) -> float:
    count = state.counters.get
    errors = count("rx_errors", 0) + count("tx_errors", 0)
    packets = count("rx_packets", 0) + count("tx_packets", 0)
    return errors / max(1, errors + packets) if errors >= MIN_ERRORS else 0.0


def _outliers_above(values: Mapping[str, float], is_far: Callable[[float, float], bool]) -> list[str]:
    """Return the nodes whose value is far above the median; none with fewer than three nodes."""
    if len(values) < 3:
        return []
    usual = median(values.values())
    return [node for node, value in values.items() if is_far(value, usual)]


@warning_check("NIC011", "nic-driver-differs", plan=_plan)
@only_if(runs_on_several_machines, "drivers", "the job runs on one machine")
@gated_by(partial(_known_states, subject="drivers"))
def nic_driver(job: Job, fleet: Fleet, facts: Facts, in_use: InUse) -> Iterator[Verdict]:
    """The network cards in use have the same driver and firmware version.

    What it checks: driver and firmware of each node's interface in use; firmware is compared between cards with the
    same driver.

    Why it matters: a replaced card or a node that missed an update behaves differently under load, but is the last
    thing anyone checks.

    Example: 31 nodes with mlx5_core 28.39.1002, and one with 28.33.0751.

    Fix: install the firmware of the others on the reported node.

    Known limits: without a clear majority nothing is reported: mixed hardware may be intended. Bonds and bridges have
    no firmware of their own.
    """
    drivers = {node: state.driver for node, (_use, state) in in_use.items() if state.driver}
    parts = split(drivers)
    odd = parts.odd if parts is not None and parts.has_majority else {}
    versions = {n: in_use[n][1].firmware for n in drivers if n not in odd and in_use[n][1].firmware}
    firmware = split(versions)
    for what, values in (("driver", parts), ("firmware", firmware)):
        if values is None or not values.odd or not values.has_majority or len(values.agreeing) < 2:
            continue
        node, value = values.first_odd
        use, state = in_use[node]
        yield failed(
            what,
            f"the network cards have different {what} versions: {values.description}"
            if what == "firmware"
            else f"the network cards have different drivers: {values.description}",
            at=Evidence(what, value, values.common, f"ethtool -i {state.name}", node),
            also=use.claims,
            nodes=tuple(values.odd),
            remedy=f"Install the {what} of the other nodes ({values.common}) for {state.name} on {fold(values.odd)}.",
        )
    if drivers and not odd and not (firmware is not None and firmware.odd and firmware.has_majority):
        yield passed(f"network card drivers on {len(drivers)} nodes")
    elif not drivers:
        yield unknown("drivers", "no driver of an interface in use reports its name")


@warning_check("NIC012", "two-interfaces-in-one-network", plan=_plan)
@only_if(runs_on_several_machines, "interfaces in the same network", "the job runs on one machine")
@gated_by(partial(_known_states, subject="interfaces in the same network"))
def two_interfaces_in_one_network(job: Job, fleet: Fleet, facts: Facts, in_use: InUse) -> Iterator[Verdict]:
    """No second interface is in the network of the interface in use, unless kernel rules separate them.

    What it checks: on each node, whether another active interface has an address in the network of the interface in use
    while arp_ignore, arp_announce and the routing rules have the kernel's defaults.

    Why it matters: the kernel answers for both addresses on either card and sends everything over the first: one rail
    carries everything, and with a strict rp_filter, packets that arrive over the other are dropped.

    Example: eth1 and eth2, both in 10.0.0.0/16, for two rails.

    Fix: a separate network for each rail, or `sysctl net.ipv4.conf.all.arp_ignore=1 arp_announce=2` and a routing
    rule and table for each interface.

    Known limits: clouds that attach several cards to one subnet set such rules themselves; any existing rule is assumed
    to be correct.
    """
    observed, states = facts.observed(interfaces), facts.observed(nic_states)
    twins: dict[tuple[str, str, bool], list[str]] = {}
    for node, (use, state) in in_use.items():
        others = [
            item.name
            for item in observed[node].interfaces
            # A second address of one interface is listed under its label, such as eth0:1.
            if item.name.split(":")[0] != use.interface.name.split(":")[0]
            and item.up
            and any(subnet(a) == use.network for a in item.addresses)
        ]
        if others and _is_unknown(states[node], state):
            twins.setdefault((use.interface.name, others[0], state.rp_filter == 1), []).append(node)
    for (name, other, strict), nodes in twins.items():
        use, state = in_use[nodes[0]]
        yield failed(
            f"{name} and {other}",
            f"{name} and {other} are both in {use.network} on {fold(nodes)}, and no kernel setting separates them"
            + ("; the strict rp_filter drops packets that arrive over the other interface" if strict else ""),
            at=Evidence(
                "kernel settings",
                f"arp_ignore {state.arp_ignore}, arp_announce {state.arp_announce}, rp_filter {state.rp_filter}",
                "arp_ignore 1, arp_announce 2, a routing rule for each interface",
                "ip rule; sysctl -a --pattern 'arp_(ignore|announce)|rp_filter'",
                nodes[0],
            ),
            also=use.claims,
            nodes=nodes,
            remedy=f"Put {other} into a separate network, or `sysctl -w net.ipv4.conf.all.arp_ignore=1 "
            "net.ipv4.conf.all.arp_announce=2` and a routing rule and table for each interface.",
        )
    if not twins:
        yield passed(f"interfaces of {len(in_use)} nodes")


def _is_unknown(states: NicStates, state: NicState) -> bool:
    return states.policy_rules == 0 and state.arp_ignore == 0 and state.arp_announce == 0

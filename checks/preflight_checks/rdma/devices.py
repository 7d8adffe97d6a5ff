"""Checks that the RDMA devices and ports that the job uses exist, are up and are open to its ranks.

NCCL (src/transport/net_ib/init.cc): NCCL_IB_HCA is a comma-separated list of prefixes with an optional `:port` suffix;
`=` in front makes them exact names, `^` excludes. Ports that are not active, or neither InfiniBand nor Ethernet, are
silently skipped; if none is left, NCCL uses sockets, unless NCCL_NET names IB. Nodes with different numbers of devices
are known to hang it (NVIDIA/nccl#2428). UCX (ucp_context.c): UCX_NET_DEVICES lists whole names with or without `:port`,
ranges in brackets, `^` in front excludes; Ethernet interfaces are in the same list.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from preflight._util.sequences import grouped
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known, is_whole_number
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, memoize, not_applicable, passed, unknown
from preflight.plugins.claim_text import counted
from preflight_checks.plans import combine_plans, known_facts, missing_facts, on_every_node, requests_for
from preflight_checks.probes.interfaces import interfaces
from preflight_checks.probes.rdma import RdmaAccess, RdmaDevice, RdmaPort, rdma, rdma_access
from preflight_checks.requirements import backends, fold, is_multi_node, scopes

#: Transports of UCX that are RDMA; `all` and the like use it if available.
_UCX_RDMA = ("ib", "rc", "ud", "dc", "srd")


@dataclass(frozen=True, slots=True)
class VariableValue:
    """The single value of a variable on a node, with the claims that set it."""

    value: str
    claims: tuple[Claim, ...]


def variable_value(job: Job, name: str, node: str = "") -> VariableValue | None:
    """Return the value that the job's files set for a variable; None if they set none, or if it depends on the run."""
    found: dict[str, list[Claim]] = {}
    for scope in scopes(job):
        for claim in job.setting(f"env.{name}", replace(scope, node=node)):
            if not isinstance(claim.value, Known) or claim.value.value is None:
                return None
            found.setdefault(str(claim.value.value), []).append(claim)
    if len(found) != 1:
        return None
    ((value, claims),) = found.items()
    return VariableValue(value, tuple(dict.fromkeys(claims))) if value else None


@dataclass(frozen=True, slots=True)
class Demand:
    """The job's use of RDMA: what requests it (empty: RDMA is used if available), and whether the job fails without
    it.
    """

    claims: tuple[Claim, ...]
    requested_by: str = ""
    strict: bool = False


def demand(job: Job) -> Demand | None:
    """Return the job's requirement for RDMA; None if the job certainly does not use RDMA."""
    names, claims = backends(job)
    nccl = tuple(claim for claim in claims if "nccl" in names and claim.quantity == "backend")
    off = variable_value(job, "NCCL_IB_DISABLE")
    net = variable_value(job, "NCCL_NET")
    without = (off is not None and off.value == "1") or (net is not None and net.value.lower() == "socket")
    if "nccl" in names and not without:
        if net is not None and net.value.lower() == "ib":
            return Demand((*net.claims, *nccl), f"NCCL_NET={net.value}", strict=True)
        provider = variable_value(job, "FI_PROVIDER")
        if provider is not None and provider.value == "efa":
            return Demand((*provider.claims, *nccl), "FI_PROVIDER=efa")
        hca = variable_value(job, "NCCL_IB_HCA")
        if hca is not None:
            return Demand((*hca.claims, *nccl), f"NCCL_IB_HCA={hca.value}")
        return Demand(nccl)
    tls = variable_value(job, "UCX_TLS")
    if tls is not None and not tls.value.startswith("^"):
        wanted = [part.split("_")[0].lstrip("\\") for part in tls.value.split(",")]
        if any(part in _UCX_RDMA for part in wanted):
            return Demand(tls.claims, f"UCX_TLS={tls.value}", strict=not {"tcp", "all"} & set(wanted))
    return None


@dataclass(frozen=True, slots=True)
class HcaFilter:
    """A value of NCCL_IB_HCA or UCX_NET_DEVICES."""

    variable: str
    value: str
    claims: tuple[Claim, ...] = ()

    @property
    def spelled(self) -> str:
        """The filter as the user wrote it."""
        return f"{self.variable}={self.value}"

    @property
    def excludes(self) -> bool:
        """Return whether the filter excludes ports instead of selecting them."""
        return self.value.startswith("^")

    @property
    def is_exact(self) -> bool:
        """Return whether its names must match completely."""
        return self.variable == "UCX_NET_DEVICES" or self.value.lstrip("^").startswith("=")

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Each name of the filter with its port; the port is 0 if any port matches."""
        found: list[tuple[str, int]] = []
        for text in _expand_names(self.value.lstrip("^").lstrip("=")):
            name, _, port = text.partition(":")
            if name:
                found.append((name, int(port) if is_whole_number(port) else 0))
        return tuple(found)

    def selects(self, device: str, port: int) -> bool:
        """Return whether the filter selects the port of the device."""
        parts = self.parts
        if not parts or parts == (("all", 0),):
            return True
        matched = any(self._names_device(part, device) and wanted in (0, port) for part, wanted in parts)
        return matched != self.excludes

    def names(self, device: str) -> bool:
        """Return whether the filter names the device."""
        return not self.excludes and any(self._names_device(part, device) for part, _ in self.parts)

    def absent_names(self, devices: Sequence[str], interfaces: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the names in the filter that match no device."""
        if self.excludes:
            return ()
        names = (*devices, *(interfaces if self.variable == "UCX_NET_DEVICES" else ()), "all")
        return tuple(dict.fromkeys(p for p, _ in self.parts if not any(self._names_device(p, name) for name in names)))

    def _names_device(self, part: str, device: str) -> bool:
        return device == part if self.is_exact else device.startswith(part)


def _expand_names(text: str) -> Iterator[str]:
    """Yield the names in a comma-separated list; `mlx5_[0-3]:1` expands to four."""
    for part in re.split(r",(?![^\[]*\])", text):
        found = re.fullmatch(r"(.*)\[(\d{1,9})-(\d{1,9})\](.*)", part)
        if found is None:
            yield part
            continue
        first, last = int(found[2]), int(found[3])
        for number in range(first, min(last, first + 256) + 1):
            yield f"{found[1]}{number}{found[4]}"


def hca_filter(job: Job, node: str = "") -> HcaFilter | None:
    """Return the effective filter of devices on `node`."""
    names, _claims = backends(job)
    for variable in ("NCCL_IB_HCA", "UCX_NET_DEVICES"):
        found = variable_value(job, variable, node)
        if found is not None and (variable == "UCX_NET_DEVICES") != ("nccl" in names):
            return HcaFilter(variable, found.value, found.claims)
    return None


@dataclass(frozen=True, slots=True)
class Port:
    """One port of a device on one node."""

    device: RdmaDevice
    port: RdmaPort

    @property
    def name(self) -> str:
        """Return the name of the device and the number of the port: `mlx5_0:1`."""
        return f"{self.device.name}:{self.port.number}"

    @property
    def is_usable(self) -> bool:
        """Return whether NCCL uses the port."""
        return self.port.active and self.port.link_layer in ("InfiniBand", "Ethernet", "")


def chosen_ports(job: Job, node: str, devices: Sequence[RdmaDevice]) -> tuple[Port, ...]:
    """Return the ports that the job's filter selects on a node, in any state."""
    port_filter = hca_filter(job, node)
    return tuple(
        Port(device, port)
        for device in devices
        for port in device.ports
        if port_filter is None or port_filter.selects(device.name, port.number)
    )


@memoize
def ports_by_node(job: Job, facts: Facts) -> dict[str, tuple[Port, ...]]:
    """Return the selected ports of every node whose devices could be listed."""
    return {node: chosen_ports(job, node, seen.devices) for node, seen in facts.observed(rdma).items()}


def demand_claims(job: Job) -> tuple[Claim, ...]:
    """Return the claims that make the job require RDMA."""
    wanted = demand(job)
    return wanted.claims if wanted is not None else ()


def applicable_demand(job: Job, fleet: Fleet) -> Demand | None:
    """Return the job's requirement for RDMA, if the job runs on several machines."""
    return demand(job) if is_multi_node(fleet) else None


@requests_for(rdma)
def plan_rdma(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    demand = applicable_demand(job, fleet)
    if demand is None:
        return
    for node in fleet.reached:
        yield Request(probe_name(rdma), node.name, because=demand.claims, required=bool(demand.requested_by))


def undecidable_verdicts(job: Job, fleet: Fleet, facts: Facts, subject: str) -> Iterator[Verdict]:
    """Yield the verdicts that replace the check if nothing can be judged; empty if the check applies."""
    if applicable_demand(job, fleet) is None:
        yield not_applicable(subject, "the job uses no RDMA, or only one machine")
        return
    yield from missing_facts(facts, rdma, subject)
    for node, seen in facts.observed(rdma).items():
        for device in seen.devices:
            if device.problem:
                yield unknown(f"{subject}: {device.name} on {node}", device.problem, nodes=(node,), required=True)
    if facts.observed(rdma) and not any(seen.devices for seen in facts.observed(rdma).values()):
        yield not_applicable(subject, "no node has RDMA devices")


@requests_for(rdma, interfaces)
def _plan_devices(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from plan_rdma(job, fleet, facts)
    for node in fleet.reached if applicable_demand(job, fleet) is not None else ():
        chosen = hca_filter(job, node.name)
        if chosen is not None and chosen.variable == "UCX_NET_DEVICES":
            yield Request(probe_name(interfaces), node.name, because=chosen.claims)


@check("RDM001", "rdma-device-absent", plan=_plan_devices, severity=Severity.ERROR)
def rdma_device_absent(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The RDMA devices that the job names exist on every node.

    What it checks: NCCL_IB_HCA (UCX_NET_DEVICES for UCX) applied to each node's devices as the library does it; every
    name must match a device. If NCCL_NET, UCX_TLS or FI_PROVIDER require RDMA, a device must exist.

    Why it matters: a node with fewer devices than its peers makes NCCL hang or stop with a mismatch; if no node has
    one, NCCL silently uses TCP, four to five times slower.

    Example: NCCL_IB_HCA=mlx5_0,mlx5_1, but node3 calls its cards mlx5_2 and mlx5_3.

    Fix: name devices that every node has, use a prefix (`mlx5`), or repair the node that lost a device.

    Known limits: only values in the job's files are judged; RDM006 covers devices that the container lacks.
    """
    demand = applicable_demand(job, fleet)
    if demand is None:
        yield not_applicable("RDMA devices", "the job uses no RDMA, or only one machine")
        return
    devices = yield from known_facts(facts, rdma, "RDMA devices")
    observed = {
        node: tuple(device.name for device in found.devices if _is_required_kind(demand, device))
        for node, found in devices.items()
    }
    bare = [node for node, names in observed.items() if not names]
    if bare and len(bare) == len(observed):
        yield from _none_found_findings(demand, bare)
        return
    listed = {node: tuple(i.name for i in found.interfaces) for node, found in facts.observed(interfaces).items()}
    any_port_usable = any(item.is_usable for found in ports_by_node(job, facts).values() for item in found)
    missing: dict[tuple[str, ...], list[str]] = {}
    for node, names in observed.items():
        chosen = hca_filter(job, node)
        absent = chosen.absent_names(names, listed.get(node, ())) if chosen is not None else ()
        if absent or (not names and any_port_usable):
            missing.setdefault(absent, []).append(node)
    whole = len(observed) - sum(len(nodes) for nodes in missing.values())
    for absent, nodes in missing.items():
        chosen = hca_filter(job, nodes[0])
        certain = bool(whole) or bool(chosen is not None and len(absent) == len(chosen.parts))
        node = nodes[0]
        choice = chosen.spelled if chosen is not None else "NCCL uses RDMA if available"
        yield failed(
            f"RDMA devices: {fold(absent) or 'none'}",
            f"{choice}: {fold(nodes)} {'has' if len(nodes) == 1 else 'have'} no {fold(absent) or 'RDMA device'}; "
            f"{node} has {fold(observed[node]) or 'none'}"
            + (f"; {whole} nodes have the requested devices" if whole else ""),
            at=Evidence(
                "RDMA devices", fold(observed[node]) or "none", fold(absent) or "as on the other nodes", _LIST, node
            ),
            also=chosen.claims if chosen is not None else demand.claims,
            nodes=nodes,
            remedy=f"Select devices that every node has, or find out why {fold(nodes)} lacks them: "
            "`lspci | grep -i mellanox; dmesg | grep -i mlx5`.",
            certain=certain,
        )
    if whole and not missing:
        yield passed(f"RDMA devices of {whole} nodes")


def _is_required_kind(demand: Demand, device: RdmaDevice) -> bool:
    """Return whether a device is of the required kind; libfabric's efa provider supports only EFA."""
    return demand.requested_by != "FI_PROVIDER=efa" or device.driver in ("efa", "")


_LIST = "ls /sys/class/infiniband"


def _none_found_findings(demand: Demand, nodes: list[str]) -> Iterator[Verdict]:
    if not demand.requested_by:
        yield not_applicable("RDMA devices", "no node has RDMA devices")
        return
    yield failed(
        "RDMA devices: none",
        f"{demand.requested_by} requests RDMA, and none of {len(nodes)} nodes has an RDMA device"
        + ("" if demand.strict else "; traffic goes over TCP sockets, several times slower"),
        at=Evidence("RDMA devices", "none", demand.requested_by, _LIST, nodes[0]),
        also=demand.claims,
        nodes=nodes,
        remedy="Load the cards' driver (`modprobe mlx5_ib`), request nodes with RDMA devices, or remove the setting.",
        severity=None if demand.strict else Severity.WARNING,
        confidence=None,
    )


#: A check that judges the RDMA devices of nodes.
rdma_check = functools.partial(check, plan=plan_rdma)


@rdma_check("RDM002", "rdma-port-down", severity=Severity.ERROR)
def rdma_port_down(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ports that the job uses are active on every node where they exist.

    What it checks: the state of every port that the job's filter selects (all without a filter), compared between
    nodes.

    Why it matters: NCCL silently skips a port that is not active; the node then has fewer devices than its peers, which
    is slow, hangs, or stops with a mismatch.

    Example: mlx5_3 of node2, one of eight, is DOWN (Polling), but active on the other nodes.

    Fix: check the cable, transceiver and switch port of that card; InfiniBand also needs a subnet manager (INIT).

    Known limits: a port that is down on most nodes is assumed to be unused, unless the job names it.
    """
    yield from undecidable_verdicts(job, fleet, facts, "RDMA ports")
    ports = ports_by_node(job, facts) if applicable_demand(job, fleet) is not None else {}
    states: dict[str, dict[str, Port]] = {}
    for node, found in ports.items():
        for item in found:
            states.setdefault(item.name, {})[node] = item
    chosen = hca_filter(job)
    others = median([sum(item.is_usable for item in found) for found in ports.values()]) if ports else 0
    dead: dict[tuple[str, str, bool], list[str]] = {}
    good = 0
    for name, on in states.items():
        up = _active_nodes(on)
        named = chosen is not None and chosen.names(name.split(":")[0])
        good += len(up)
        for node in (node for node in on if node not in up):
            remaining = sum(item.is_usable for item in ports[node])
            if len(up) * 2 > len(on) or named or not remaining:
                dead.setdefault((node, _state(on[node]), named or (remaining == 0 and others > 0)), []).append(name)
    faults = grouped(((tuple(ports_down), state, certain), node) for (node, state, certain), ports_down in dead.items())
    for (same, state, certain), nodes in faults.items():
        names, node = list(same), nodes[0]
        up = _active_nodes(states[names[0]])
        remaining = sum(item.is_usable for item in ports[node])
        yield failed(
            f"RDMA ports {fold(names)}: {state}",
            f"{fold(names)} {'is' if len(names) == 1 else 'are'} {state} on {fold(nodes)}"
            + (f", and active on {fold(up)}" if up else "")
            + f"; {remaining} of {len(ports[node])} selected ports are left on {node}",
            at=Evidence("port state", state, "ACTIVE", f"ibstat {names[0].replace(':', ' ')}", node),
            also=chosen.claims if chosen is not None else (),
            nodes=nodes,
            remedy=_remedy(state, names[0], nodes),
            severity=None if certain else Severity.WARNING,
        )
    if good and not faults:
        yield passed(f"RDMA ports of {len(ports)} nodes")


def _state(item: Port) -> str:
    return (
        f"{item.port.state} ({item.port.physical})"
        if item.port.physical
        else item.port.state or ("in an unknown state")
    )


def _active_nodes(on: Mapping[str, Port]) -> list[str]:
    return [node for node, item in on.items() if item.port.active]


def _remedy(state: str, name: str, nodes: list[str]) -> str:
    if state.startswith("INIT"):
        return (
            "The link is up, but no subnet manager has configured it; check that one is running (`sminfo` on "
            f"{fold(nodes)})."
        )
    if "Disabled" in state:
        return (
            f"Bring up the interface of {name} on {fold(nodes)}: `rdma link` shows its name, `ip link set NAME "
            "up` enables it."
        )
    return (
        f"Check the cable, transceiver and switch port of {name} on {fold(nodes)}: `mlxlink -d {name.split(':')[0]}`."
    )


@check(
    "RDM007",
    "rdma-closed-to-ranks",
    plan=combine_plans(
        plan_rdma, on_every_node(rdma_access, when=applicable_demand, because=demand_claims, context=True)
    ),
    severity=Severity.ERROR,
)
def rdma_closed_to_ranks(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A rank can open the device nodes of the node's RDMA cards, and load libibverbs.

    What it checks: inside the job context, on nodes whose cards are active: /dev/infiniband/uverbs* exist, one per
    card, and can be opened; libibverbs.so.1 can be loaded.

    Why it matters: a container without the device nodes sees the cards in /sys but cannot use them: NCCL uses TCP,
    which is several times slower, or hangs if one node has them and another does not.

    Example: a pod without the RDMA resource, or `docker run` without `--device=/dev/infiniband`.

    Fix: pass the devices to the container, add the job's user to the group of the device nodes, install libibverbs1.

    Known limits: creating a queue pair is not tested.
    """
    demand = applicable_demand(job, fleet)
    if demand is None:
        yield not_applicable("RDMA of the ranks", "the job uses no RDMA, or only one machine")
        return
    yield from missing_facts(facts, rdma, "RDMA devices")
    seen = yield from known_facts(facts, rdma_access, "RDMA of the ranks")
    usable = {
        node: len({p.device.name for p in found if p.port.active}) for node, found in ports_by_node(job, facts).items()
    }
    on = {node: seen[node] for node, count in usable.items() if count and node in seen}
    if not on:
        if facts.observed(rdma) and not any(usable.values()):
            yield not_applicable("RDMA of the ranks", "no node has an active RDMA device")
        return
    faults = grouped((fault, node) for node, access in on.items() if (fault := _access_fault(access, usable[node])))
    fine = len(on) - sum(len(nodes) for nodes in faults.values())
    for fault, nodes in faults.items():
        certain = bool(fine) or demand.strict
        yield failed(
            f"RDMA of the ranks: {fault}",
            f"a rank on {fold(nodes)} {fault}"
            + (
                f"; ranks on {counted(fine, 'other node')} can use RDMA"
                if fine
                else "; traffic goes over TCP, several times slower"
            ),
            at=Evidence("in the job context", fault, "RDMA can be used", _COMMAND, nodes[0]),
            also=demand.claims,
            nodes=nodes,
            remedy="Install libibverbs1 (and the provider, ibverbs-providers) in the environment of the ranks."
            if "libibverbs" in fault
            else "Pass the devices to the container (`--device=/dev/infiniband`, or the cluster's RDMA resource), or "
            "give the job's user access to them.",
            certain=certain,
        )
    if fine and not faults:
        yield passed(f"RDMA of the ranks on {fine} nodes")


_COMMAND = "ls -l /dev/infiniband; ldconfig -p | grep ibverbs"


def _access_fault(access: RdmaAccess, cards: int) -> str:
    """Return what prevents a rank from using RDMA, as a predicate of a sentence; empty if nothing does."""
    if not access.nodes:
        return "has no device node in /dev/infiniband, although the node has active cards"
    if len(access.refused) == len(access.nodes):
        return f"may not open any of {len(access.nodes)} device nodes ({next(iter(access.refused.values()))})"
    if len(access.nodes) - len(access.refused) < cards:
        return f"may open {len(access.nodes) - len(access.refused)} device nodes for {cards} cards in use"
    if access.missing_library:
        return "cannot load libibverbs.so.1"
    return ""

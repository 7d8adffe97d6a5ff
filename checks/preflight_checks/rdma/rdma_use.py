"""What the job asks of RDMA, and which ports its filters leave, as NCCL and UCX read them.

NCCL (src/transport/net_ib/init.cc): NCCL_IB_HCA is a comma list of prefixes with `:port` behind them; `=` in front
makes them exact names, `^` excludes. Ports that are not active, or neither InfiniBand nor Ethernet, are passed over in
silence; where none is left NCCL takes sockets, unless NCCL_NET names IB. Nodes with different numbers of devices are
known to hang it (NVIDIA/nccl#2428).
UCX (ucp_context.c): UCX_NET_DEVICES lists whole names with or without `:port`, ranges in brackets, `^` in front
excludes; Ethernet interfaces stand in the same list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from preflight.job import Claim, Job, Known
from preflight.lazy.dataclasses import dataclass
from preflight.once import once
from preflight.recording import Facts, Fleet
from preflight_checks.demands import backends, scopes
from preflight_checks.network.nic_choice import apart
from preflight_checks.probes.rdma import RdmaDevice, RdmaPort, rdma

#: Transports of UCX that are RDMA; `all` and the like take it where there is some.
_UCX_RDMA = ("ib", "rc", "ud", "dc", "srd")


@dataclass(frozen=True, slots=True)
class Said:
    """One value that a variable surely has on a node, and the claims that say so."""

    value: str
    claims: tuple[Claim, ...]


def said(job: Job, name: str, node: str = "") -> Said | None:
    """What the job's files set a variable to; None where they do not, or where it depends."""
    found: dict[str, list[Claim]] = {}
    for scope in scopes(job):
        for claim in job.setting(f"env.{name}", replace(scope, node=node)):
            if not isinstance(claim.value, Known) or claim.value.value is None:
                return None
            found.setdefault(str(claim.value.value), []).append(claim)
    if len(found) != 1:
        return None
    ((value, claims),) = found.items()
    return Said(value, tuple(dict.fromkeys(claims))) if value else None


@dataclass(frozen=True, slots=True)
class Demand:
    """How the job may use RDMA.

    `why` says in words what asks for it; empty where it would merely be used if it is there. `strict`: it does not
    start without.
    """

    claims: tuple[Claim, ...]
    why: str = ""
    strict: bool = False


def demand(job: Job) -> Demand | None:
    """What the job wants of RDMA; None where it surely uses none."""
    names, claims = backends(job)
    nccl = tuple(claim for claim in claims if "nccl" in names and claim.quantity == "backend")
    off = said(job, "NCCL_IB_DISABLE")
    net = said(job, "NCCL_NET")
    without = (off is not None and off.value == "1") or (net is not None and net.value.lower() == "socket")
    if "nccl" in names and not without:
        if net is not None and net.value.lower() == "ib":
            return Demand((*net.claims, *nccl), f"NCCL_NET={net.value}", strict=True)
        provider = said(job, "FI_PROVIDER")
        if provider is not None and provider.value == "efa":
            return Demand((*provider.claims, *nccl), "FI_PROVIDER=efa")
        hca = said(job, "NCCL_IB_HCA")
        if hca is not None:
            return Demand((*hca.claims, *nccl), f"NCCL_IB_HCA={hca.value}")
        return Demand(nccl)
    tls = said(job, "UCX_TLS")
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
        """As the user wrote it."""
        return f"{self.variable}={self.value}"

    @property
    def excludes(self) -> bool:
        """Whether it takes away instead of choosing."""
        return self.value.startswith("^")

    @property
    def exact(self) -> bool:
        """Whether its names are whole ones."""
        return self.variable == "UCX_NET_DEVICES" or self.value.lstrip("^").startswith("=")

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Each name with its port; 0 for any."""
        found: list[tuple[str, int]] = []
        for text in _expanded(self.value.lstrip("^").lstrip("=")):
            name, _, port = text.partition(":")
            if name:
                found.append((name, int(port) if port.isdigit() else 0))
        return tuple(found)

    def takes(self, device: str, port: int) -> bool:
        """Whether it leaves this port of this device."""
        parts = self.parts
        if not parts or parts == (("all", 0),):
            return True
        matched = any(self._fits(part, device) and wanted in (0, port) for part, wanted in parts)
        return matched != self.excludes

    def names(self, device: str) -> bool:
        """Whether it asks for this device."""
        return not self.excludes and any(self._fits(part, device) for part, _ in self.parts)

    def absent(self, devices: Sequence[str], interfaces: Sequence[str] = ()) -> tuple[str, ...]:
        """The names it asks for that none of the devices has."""
        if self.excludes:
            return ()
        there = (*devices, *(interfaces if self.variable == "UCX_NET_DEVICES" else ()), "all")
        return tuple(dict.fromkeys(p for p, _ in self.parts if not any(self._fits(p, name) for name in there)))

    def _fits(self, part: str, device: str) -> bool:
        return device == part if self.exact else device.startswith(part)


def _expanded(text: str) -> Iterator[str]:
    """The names of a comma list; `mlx5_[0-3]:1` stands for four."""
    for part in re.split(r",(?![^\[]*\])", text):
        found = re.fullmatch(r"(.*)\[(\d+)-(\d+)\](.*)", part)
        if found is None:
            yield part
            continue
        first, last = int(found[2]), int(found[3])
        for number in range(first, min(last, first + 256) + 1):
            yield f"{found[1]}{number}{found[4]}"


def hca_filter(job: Job, node: str = "") -> HcaFilter | None:
    """The filter of devices in force on `node`."""
    names, _claims = backends(job)
    for variable in ("NCCL_IB_HCA", "UCX_NET_DEVICES"):
        found = said(job, variable, node)
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
        """`mlx5_0:1`."""
        return f"{self.device.name}:{self.port.number}"

    @property
    def usable(self) -> bool:
        """Whether NCCL takes it."""
        return self.port.active and self.port.link_layer in ("InfiniBand", "Ethernet", "")


def chosen_ports(job: Job, node: str, devices: Sequence[RdmaDevice]) -> tuple[Port, ...]:
    """The ports that the job's filter leaves on a node, in whatever state."""
    wanted = hca_filter(job, node)
    return tuple(
        Port(device, port)
        for device in devices
        for port in device.ports
        if wanted is None or wanted.takes(device.name, port.number)
    )


@once
def ports_by_node(job: Job, facts: Facts) -> dict[str, tuple[Port, ...]]:
    """The chosen ports of every node whose devices could be listed."""
    return {node: chosen_ports(job, node, seen.devices) for node, seen in facts.observed(rdma).items()}


def applies(job: Job, fleet: Fleet) -> Demand | None:
    """The job's demand, where it runs on several machines."""
    return demand(job) if apart(fleet) else None

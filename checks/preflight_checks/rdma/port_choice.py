"""The job's demand for RDMA, and the ports that its filters select, as NCCL and UCX read them.

NCCL (src/transport/net_ib/init.cc): NCCL_IB_HCA is a comma list of prefixes with an optional `:port` suffix; `=` in
front makes them exact names, `^` excludes. Ports that are not active, or neither InfiniBand nor Ethernet, are silently
skipped; if none is left NCCL uses sockets, unless NCCL_NET names IB. Nodes with different numbers of devices are known
to hang it (NVIDIA/nccl#2428). UCX (ucp_context.c): UCX_NET_DEVICES lists whole names with or without `:port`, ranges
in brackets, `^` in front excludes; Ethernet interfaces are in the same list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from preflight.model.job import Claim, Job, Known, is_whole_number
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import memoize
from preflight_checks.probes.rdma import RdmaDevice, RdmaPort, rdma
from preflight_checks.requirements import backends, is_multi_node, scopes

#: Transports of UCX that are RDMA; `all` and the like use it if available.
_UCX_RDMA = ("ib", "rc", "ud", "dc", "srd")


@dataclass(frozen=True, slots=True)
class VariableValue:
    """The one value of a variable on a node, with the claims that state it."""

    value: str
    claims: tuple[Claim, ...]


def variable_value(job: Job, name: str, node: str = "") -> VariableValue | None:
    """The value that the job's files give a variable; None if there is none or it depends."""
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
    """How the job may use RDMA.

    `requested_by` names what requests it, in words; empty if it is merely used when available. `strict`: the job does
    not start without it.
    """

    claims: tuple[Claim, ...]
    requested_by: str = ""
    strict: bool = False


def demand(job: Job) -> Demand | None:
    """The job's demand for RDMA; None if it certainly uses none."""
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
        """Whether it excludes ports instead of choosing them."""
        return self.value.startswith("^")

    @property
    def exact(self) -> bool:
        """Whether its names must match completely."""
        return self.variable == "UCX_NET_DEVICES" or self.value.lstrip("^").startswith("=")

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Each name with its port; 0 for any."""
        found: list[tuple[str, int]] = []
        for text in _expanded(self.value.lstrip("^").lstrip("=")):
            name, _, port = text.partition(":")
            if name:
                found.append((name, int(port) if is_whole_number(port) else 0))
        return tuple(found)

    def selects(self, device: str, port: int) -> bool:
        """Whether it selects this port of this device."""
        parts = self.parts
        if not parts or parts == (("all", 0),):
            return True
        matched = any(self._names_device(part, device) and wanted in (0, port) for part, wanted in parts)
        return matched != self.excludes

    def names(self, device: str) -> bool:
        """Whether it names this device."""
        return not self.excludes and any(self._names_device(part, device) for part, _ in self.parts)

    def absent(self, devices: Sequence[str], interfaces: Sequence[str] = ()) -> tuple[str, ...]:
        """The names in it that match no device."""
        if self.excludes:
            return ()
        names = (*devices, *(interfaces if self.variable == "UCX_NET_DEVICES" else ()), "all")
        return tuple(dict.fromkeys(p for p, _ in self.parts if not any(self._names_device(p, name) for name in names)))

    def _names_device(self, part: str, device: str) -> bool:
        return device == part if self.exact else device.startswith(part)


def _expanded(text: str) -> Iterator[str]:
    """The names of a comma list; `mlx5_[0-3]:1` expands to four."""
    for part in re.split(r",(?![^\[]*\])", text):
        found = re.fullmatch(r"(.*)\[(\d{1,9})-(\d{1,9})\](.*)", part)
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
        """`mlx5_0:1`."""
        return f"{self.device.name}:{self.port.number}"

    @property
    def usable(self) -> bool:
        """Whether NCCL uses it."""
        return self.port.active and self.port.link_layer in ("InfiniBand", "Ethernet", "")


def chosen_ports(job: Job, node: str, devices: Sequence[RdmaDevice]) -> tuple[Port, ...]:
    """The ports that the job's filter selects on a node, in any state."""
    wanted = hca_filter(job, node)
    return tuple(
        Port(device, port)
        for device in devices
        for port in device.ports
        if wanted is None or wanted.selects(device.name, port.number)
    )


@memoize
def ports_by_node(job: Job, facts: Facts) -> dict[str, tuple[Port, ...]]:
    """The chosen ports of every node whose devices could be listed."""
    return {node: chosen_ports(job, node, seen.devices) for node, seen in facts.observed(rdma).items()}


def demand_claims(job: Job) -> tuple[Claim, ...]:
    """The claims that make the job demand RDMA."""
    wanted = demand(job)
    return wanted.claims if wanted is not None else ()


def applies(job: Job, fleet: Fleet) -> Demand | None:
    """The job's demand for RDMA, if it runs on several machines."""
    return demand(job) if is_multi_node(fleet) else None

"""The interface that each node's processes will use: chosen by a filter or by the library.

NCCL without a filter takes the first of its search order; with NCCL_COMM_ID (bootstrapNetInit) the interface that
is in the network of that address, regardless of the filter. Gloo without a filter takes the address of the node's own
name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from preflight._util.hostnames import is_loopback, split_endpoint
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Observed
from preflight.plugins.authoring import memoize
from preflight_checks.network.interface_filter import (
    chosen,
    dialled_address,
    environment_filters,
    is_read_by_job,
    nccl_default,
    published_address,
    select,
    socket_family,
    subnet,
    unusable_reason,
)
from preflight_checks.network.names import lookups
from preflight_checks.probes.interfaces import Address, Interface, interfaces
from preflight_checks.requirements import Filter, backends, filter_of, scopes


@dataclass(frozen=True, slots=True)
class UsedInterface:
    """The interface and address that a node's processes use first, and why.

    `reason` completes "NAME is used: ..."; `filter` is the job's own filter, if any.
    """

    interface: Interface
    address: Address
    candidates: tuple[Interface, ...]
    reason: str
    filter: Filter | None = None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims that chose it."""
        return self.filter.claims if self.filter else ()

    @property
    def network(self) -> str:
        """The network that contains its address."""
        return subnet(self.address)

    @property
    def description(self) -> str:
        """`eth0 (10.0.0.1)`."""
        return f"{self.interface.name} ({self.address.address})"


@memoize
def used_interfaces(job: Job, facts: Facts) -> dict[str, UsedInterface]:
    """The interface in use of each node where it is known."""
    own: dict[str, list[str]] = {
        seen.node: [text for text in seen.fact.value.addresses if not is_loopback(text)]
        for seen in lookups(facts, own=True)
        if isinstance(seen.fact, Observed)
    }
    around = environment_filters(job, facts)
    found: dict[str, UsedInterface] = {}
    for node, fact in facts.observed(interfaces).items():
        use = _by_environment(job, node, fact.interfaces, around.get(node, ()))
        use = use or used(job, node, fact.interfaces, own.get(node, ()))
        if use is not None:
            found[node] = use
    return found


def _by_environment(
    job: Job, node: str, observed: Sequence[Interface], around: Sequence[Filter]
) -> UsedInterface | None:
    """The choice of a filter in the node's own environment, if the job's files have none."""
    if not around or chosen(job, node, observed) is not None:
        return None
    for item in around:
        remaining = select(item.variable, item.value, observed, socket_family(job, node)).interfaces
        address = dialled_address(remaining[0]) if remaining and is_read_by_job(job, item.variable) else None
        if address is not None:
            return UsedInterface(
                remaining[0], address, remaining, f"{item.variable}={item.value} ({item.origin}) chooses it", item
            )
    return None


@memoize
def usable_interfaces(job: Job, facts: Facts) -> dict[str, UsedInterface]:
    """`used_interfaces` without unusable ones, which other checks report."""
    uses = used_interfaces(job, facts)
    return {node: use for node, use in uses.items() if not unusable_reason(use.interface, several=True)}


def used(job: Job, node: str, observed: Sequence[Interface], own: Sequence[str] = ()) -> UsedInterface | None:
    """The interface in use of one node; `own` are the addresses of the node's own name. None if unknown."""
    choice = chosen(job, node, observed)
    if choice is not None:
        reason = f"{choice.filter.variable}={choice.filter.value} chooses it"
        return UsedInterface(choice.interface, choice.address, choice.candidates, reason, choice.filter)
    if any(filter_of(job, name, node) for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")):
        return None
    names, _claims = backends(job)
    if "nccl" in names:
        return _by_comm_id(job, observed) or by_nccl(job, node, observed)
    for text in own:
        for item in observed:
            for address in item.addresses:
                if address.address == text:
                    return UsedInterface(item, address, (item,), "the node's own name leads to its address")
    return None


def by_nccl(job: Job, node: str, observed: Sequence[Interface]) -> UsedInterface | None:
    """The interface that NCCL takes by default."""
    family = socket_family(job, node)
    remaining = nccl_default(observed, family).interfaces
    address = published_address(remaining[0], family) if remaining else None
    return UsedInterface(remaining[0], address, remaining, "NCCL uses it by default") if address is not None else None


def _by_comm_id(job: Job, observed: Sequence[Interface]) -> UsedInterface | None:
    for scope in scopes(job):
        value = job.value("env.NCCL_COMM_ID", scope)
        reason = str(value.value) if isinstance(value, Known) else ""
        host = split_endpoint(reason)
        if host is None:
            continue
        for item in observed:
            for address in item.addresses:
                if _in_network(host[0], address):
                    return UsedInterface(item, address, (item,), f"it is in the network of NCCL_COMM_ID={reason}")
    return None


def _in_network(text: str, address: Address) -> bool:
    try:
        return ipaddress.ip_address(text) in ipaddress.ip_network(subnet(address))
    except ValueError:
        return False

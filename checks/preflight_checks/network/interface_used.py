"""Which interface each node's processes will use: what a filter chooses, or the library by itself.

NCCL without a filter takes the first of its search order; with NCCL_COMM_ID (bootstrapNetInit) the interface that
lies in the network of that address, whatever the filter says. Gloo without a filter takes the address that the node's
own name leads to.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from preflight.job import Claim, Job, Known
from preflight.job.hostname import split_endpoint
from preflight.lazy.dataclasses import dataclass
from preflight.once import once
from preflight.recording import Facts, Observed
from preflight_checks.demands import Filter, backends, filter_of, is_loopback, scopes
from preflight_checks.network.environment_filters import environment_filters
from preflight_checks.network.interface_filter import (
    chosen,
    dialled,
    nccl_default,
    published,
    relevant,
    select,
    socket_family,
    subnet,
    useless,
)
from preflight_checks.network.names import lookups
from preflight_checks.probes.interfaces import Address, Interface, interfaces


@dataclass(frozen=True, slots=True)
class Used:
    """The interface and address of a node that its processes use first, and why these.

    `reason` completes "NAME is used: ..."; `filter` is the job's own choice where there is one.
    """

    interface: Interface
    address: Address
    among: tuple[Interface, ...]
    reason: str
    filter: Filter | None = None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims that chose it."""
        return self.filter.claims if self.filter else ()

    @property
    def network(self) -> str:
        """The network its address lies in."""
        return subnet(self.address)

    @property
    def spoken(self) -> str:
        """`eth0 (10.0.0.1)`."""
        return f"{self.interface.name} ({self.address.address})"


@once
def used_interfaces(job: Job, facts: Facts) -> dict[str, Used]:
    """What each node uses, of those nodes where it can be told."""
    own: dict[str, list[str]] = {
        seen.node: [text for text in seen.fact.value.addresses if not is_loopback(text)]
        for seen in lookups(facts, own=True)
        if isinstance(seen.fact, Observed)
    }
    around = environment_filters(job, facts)
    found: dict[str, Used] = {}
    for node, fact in facts.observed(interfaces).items():
        use = _by_environment(job, node, fact.interfaces, around.get(node, ()))
        use = use or used(job, node, fact.interfaces, own.get(node, ()))
        if use is not None:
            found[node] = use
    return found


def _by_environment(job: Job, node: str, have: Sequence[Interface], around: Sequence[Filter]) -> Used | None:
    """What a filter of the node's own environment chooses, where the job's files choose nothing."""
    if not around or chosen(job, node, have) is not None:
        return None
    for item in around:
        left = select(item.variable, item.value, have, socket_family(job, node)).interfaces
        address = dialled(left[0]) if left and relevant(job, item.variable) else None
        if address is not None:
            return Used(left[0], address, left, f"{item.variable}={item.value} ({item.origin}) chooses it", item)
    return None


@once
def sound_uses(job: Job, facts: Facts) -> dict[str, Used]:
    """`used_interfaces` without those that are of no use at all, which other checks say already."""
    uses = used_interfaces(job, facts)
    return {node: use for node, use in uses.items() if not useless(use.interface, several=True)}


def used(job: Job, node: str, have: Sequence[Interface], own: Sequence[str] = ()) -> Used | None:
    """What one node uses; `own` are the addresses its own name leads to. None where that cannot be told."""
    choice = chosen(job, node, have)
    if choice is not None:
        said = f"{choice.filter.variable}={choice.filter.value} chooses it"
        return Used(choice.interface, choice.address, choice.among, said, choice.filter)
    if any(filter_of(job, name, node) for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")):
        return None
    names, _claims = backends(job)
    if "nccl" in names:
        return _by_comm_id(job, have) or by_nccl(job, node, have)
    for text in own:
        for item in have:
            for address in item.addresses:
                if address.address == text:
                    return Used(item, address, (item,), "the node's own name leads to its address")
    return None


def by_nccl(job: Job, node: str, have: Sequence[Interface]) -> Used | None:
    """What NCCL takes by itself."""
    family = socket_family(job, node)
    left = nccl_default(have, family).interfaces
    address = published(left[0], family) if left else None
    return Used(left[0], address, left, "NCCL takes it by itself") if address is not None else None


def _by_comm_id(job: Job, have: Sequence[Interface]) -> Used | None:
    for scope in scopes(job):
        value = job.value("env.NCCL_COMM_ID", scope)
        said = str(value.value) if isinstance(value, Known) else ""
        host = split_endpoint(said)
        if host is None:
            continue
        for item in have:
            for address in item.addresses:
                if _in_network(host[0], address):
                    return Used(item, address, (item,), f"it lies in the network of NCCL_COMM_ID={said}")
    return None


def _in_network(text: str, address: Address) -> bool:
    try:
        return ipaddress.ip_address(text) in ipaddress.ip_network(subnet(address))
    except ValueError:
        return False

"""The interfaces that a filter variable selects, exactly as each library reads it, and findings about such filters.

NCCL (src/misc/socket.cc, ncclFindInterfaces): a comma-separated list of prefixes; `=` in front makes them exact names,
`^` excludes, `^=` excludes exact names; a value of one character is ignored; interfaces without an IP address of
NCCL_SOCKET_FAMILY are skipped, and from 2.28 on those without a carrier; the order is that of the system, not of the
list; the first one left is used for the bootstrap. NCCL publishes the first address of that interface. torch splits
GLOO_SOCKET_IFNAME at commas and Gloo compares whole names (gloo/transport/tcp/device.cc); each listed interface must
exist. Paddle does not split it; Horovod passes HOROVOD_GLOO_IFACE unsplit to Gloo. TensorPipe takes TP_SOCKET_IFNAME as
one whole name, libfabric's tcp provider FI_TCP_IFACE (src/common.c). Open MPI (btl_tcp_component.c, split_and_resolve):
a list of whole names and of IPv4 networks (`10.0.0.0/8`); a name that does not exist ends the component, a network
without an interface is skipped; if no entry of the include list is left, all interfaces but the excluded ones are used,
whose names are prefixes.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job, Known
from preflight.model.recording import Facts, Unavailable
from preflight.plugins.authoring import Verdict, failed, memoize, passed, root_command, unknown
from preflight_checks.context.environment import observed_environments
from preflight_checks.probes.environment import Environment
from preflight_checks.probes.interfaces import Address, Interface, interfaces
from preflight_checks.requirements import (
    Filter,
    backends,
    filter_of,
    filter_unresolved,
    filters,
    fold,
    parse_address,
    scopes,
)

#: Interfaces for container traffic inside one machine, by their usual prefixes.
CONTAINER_PREFIXES = (
    *("docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "cilium", "lxc", "tunl", "kube-", "podman", "lxd"),
    *("vnet", "vmnet", "vboxnet", "nodelocaldns", "antrea", "weave", "nerdctl", "crio"),
)
#: Tunnels: they may reach other nodes, but over a detour that is unsuitable for training.
TUNNEL_PREFIXES = ("tailscale", "tun", "tap", "wg", "zt", "ppp", "utun")
#: Variables that exclude interfaces instead of choosing them.
EXCLUDING = ("OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_oob_tcp_if_exclude")


@dataclass(frozen=True, slots=True)
class Choice:
    """The interfaces that a filter selects, in the library's order, and the names that match none."""

    interfaces: tuple[Interface, ...]
    missing: tuple[str, ...] = ()
    unaddressed: tuple[str, ...] = ()


def select(variable: str, value: str, interfaces: Sequence[Interface], family: str = "") -> Choice:
    """Return the interfaces of a node that `variable=value` selects; `family` is the value of NCCL_SOCKET_FAMILY."""
    if variable == "NCCL_SOCKET_IFNAME":
        return _nccl(value, interfaces, family)
    if variable.startswith("OMPI_MCA_"):
        return _openmpi(value, interfaces, exclude=variable in EXCLUDING)
    names = [part for part in value.split(",") if part] if variable == "GLOO_SOCKET_IFNAME" else [value]
    return _exact(names, interfaces)


def _nccl(value: str, interfaces: Sequence[Interface], family: str = "") -> Choice:
    if len(value) < 2:
        return nccl_default(interfaces, family)
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    interface_names = [part.split(":")[0] for part in rest.split(",") if part.split(":")[0]]

    def matches(name: str) -> bool:
        if not interface_names:
            return True
        return any(name == part if exact else name.startswith(part) for part in interface_names)

    matched = [item for item in interfaces if matches(item.name) != exclude]
    remaining = tuple(item for item in matched if published_address(item, family) is not None)
    missing: tuple[str, ...] = ()
    if not exclude:
        names = [item.name for item in interfaces]
        missing = tuple(
            part for part in interface_names if not any(n == part if exact else n.startswith(part) for n in names)
        )
    return Choice(
        remaining, missing, tuple(item.name for item in matched if item not in remaining and not item.loopback)
    )


def nccl_default(interfaces: Sequence[Interface], family: str = "") -> Choice:
    """Return the interfaces that NCCL considers by default: `ib*`, or else all but docker, lo and virbr, or else
    these.
    """
    for value in ("ib", "^docker,lo,virbr", "docker", "lo", "virbr"):
        choice = _nccl(value, interfaces, family)
        if choice.interfaces:
            return Choice(choice.interfaces)
    return Choice(())


def _openmpi(value: str, interfaces: Sequence[Interface], *, exclude: bool) -> Choice:
    chosen_names: list[str] = []
    missing: list[str] = []
    for part in filter(None, value.split(",")):
        if part[0].isalpha():
            found = [item.name for item in interfaces if (item.name.startswith(part) if exclude else item.name == part)]
            if not found and not exclude:
                missing.append(part)
        else:
            found = [item.name for item in interfaces if _lies_in(item, part)]
        chosen_names.extend(found)
    addressed = [item for item in interfaces if item.addresses]
    if exclude or not (chosen_names or missing):
        return Choice(tuple(item for item in addressed if item.name not in chosen_names and not item.loopback))
    return Choice(tuple(item for item in addressed if item.name in chosen_names), tuple(missing))


def _lies_in(item: Interface, network: str) -> bool:
    try:
        wanted = ipaddress.IPv4Network(network, strict=False)
    except ValueError:
        return False
    return any(":" not in a.address and ipaddress.IPv4Address(a.address) in wanted for a in item.addresses)


def _exact(names: Sequence[str], interfaces: Sequence[Interface]) -> Choice:
    by_name = {item.name: item for item in interfaces}
    found = [by_name[name] for name in names if name in by_name]
    remaining = tuple(item for item in found if item.addresses)
    missing = tuple(name for name in names if name not in by_name)
    return Choice(remaining, missing, tuple(item.name for item in found if not item.addresses))


def published_address(item: Interface, family: str = "") -> Address | None:
    """Return the address of `item` that NCCL publishes: its first of `family`, link-local or not, but never ::1."""
    for address in item.addresses:
        version = 6 if ":" in address.address else 4
        if family in ("AF_INET", "AF_INET6") and (version == 6) != (family == "AF_INET6"):
            continue
        if address.address != "::1":
            return address
    return None


def socket_family(job: Job, node: str = "") -> str:
    """Return the value of NCCL_SOCKET_FAMILY, if the job sets exactly one."""
    return _socket_family(job, node if node in job.named_nodes else "")


@memoize
def _socket_family(job: Job, node: str) -> str:
    found = {
        claim.value.value
        for scope in scopes(job)
        for claim in job.setting("env.NCCL_SOCKET_FAMILY", replace(scope, node=node))
        if isinstance(claim.value, Known)
    }
    return str(found.pop()) if len(found) == 1 else ""


def dialled_address(item: Interface) -> Address | None:
    """Return the address of `item` to which others can connect: its first one, IPv4 before global IPv6."""
    usable = [address for address in item.addresses if not is_link_local(address)]
    return usable[0] if usable else None


def is_link_local(address: Address) -> bool:
    """Return whether `address` is valid only on its own link (169.254/16, fe80::/10)."""
    return _is_link_local(address.address)


def subnet(address: Address) -> str:
    """Return the network that contains `address`."""
    return _network(address.address, address.prefix)


#: Cache size: several addresses for each node of a large fleet.
_ADDRESSES = 1 << 16


@functools.lru_cache(_ADDRESSES)
def _is_link_local(address: str) -> bool:
    found = parse_address(address)
    return found is not None and found.is_link_local


@functools.lru_cache(_ADDRESSES)
def _network(address: str, prefix: int) -> str:
    found = parse_address(address)
    if found is None:
        raise ValueError(f"{address!r} is not an address")
    # From its integer value: as text it would be parsed three times.
    kind = ipaddress.IPv4Network if found.version == 4 else ipaddress.IPv6Network
    return str(kind((int(found), prefix), strict=False))


def is_container_interface(item: Interface) -> bool:
    """Return whether `item` only connects containers of one machine."""
    return item.kind == "bridge" or item.name.startswith(CONTAINER_PREFIXES)


DOWN, NO_CARRIER = "is down", "has no carrier"


def unusable_reason(item: Interface, *, several: bool) -> str:
    """Return why `item` cannot reach other nodes, as a predicate of a sentence; empty if no reason is known."""
    if not item.up:
        return DOWN
    if item.loopback:
        # With BGP to the host, lo carries the node's own address and is usable.
        outward = any(not ipaddress.ip_address(address.address).is_loopback for address in item.addresses)
        return "" if outward or not several else "is the loopback interface, which no other node can reach"
    if not item.running:
        return NO_CARRIER
    if several and item.addresses and all(is_link_local(address) for address in item.addresses):
        return f"has only a link-local address ({item.addresses[0].address}), which other nodes cannot use"
    return ""


def is_tunnel(item: Interface) -> bool:
    """Return whether `item` has the name of a tunnel."""
    return item.name.startswith(TUNNEL_PREFIXES)


def nearest(name: str, interfaces: Sequence[Interface]) -> str:
    """Return the interface with an address whose name is most similar to `name`; empty if none is similar."""
    names = [item.name for item in interfaces if item.addresses and not item.loopback]
    close = difflib.get_close_matches(name.lstrip("^="), names, 1, 0.5)
    return close[0] if close else ""


@memoize
def is_read_by_job(job: Job, variable: str) -> bool:
    """Return whether the job reads `variable`, certainly or possibly."""
    names, _claims = backends(job)
    if variable == "OMPI_MCA_oob_tcp_if_include":
        return True  # read by mpirun itself
    if variable.startswith(("OMPI_MCA_", "FI_")):
        return "mpi" in names
    if not names:
        return True
    if variable == "NCCL_SOCKET_IFNAME":
        return "nccl" in names
    if variable == "HOROVOD_GLOO_IFACE":
        return bool(names & {"horovod", "gloo"})
    return bool(names & {"gloo", "ps"}) if variable == "GLOO_SOCKET_IFNAME" else False


@dataclass(frozen=True, slots=True)
class Chosen:
    """The interface and address on a node that the job's communication library will use first."""

    interface: Interface
    address: Address
    candidates: tuple[Interface, ...]
    filter: Filter


@memoize
def chosen(job: Job, node: str, interfaces: Sequence[Interface]) -> Chosen | None:
    """Return the choice of the job's filter on `node`; None without a filter, or if no interface matches it."""
    found = [f for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if (f := filter_of(job, name, node))]
    found.sort(key=lambda item: not is_read_by_job(job, item.variable))
    for item in found:
        remaining = select(item.variable, item.value, interfaces, socket_family(job, node)).interfaces
        for interface in remaining:
            address = dialled_address(interface)
            if address is not None:
                return Chosen(interface, address, remaining, item)
    return None


def has_filter(job: Job) -> bool:
    """Return whether the job's files set any interface filter."""
    return bool(filters(job))


def filter_findings(
    job: Job, assignment: str, on: dict[str, Filter], facts: Facts, *, several: bool
) -> Iterator[Verdict]:
    """Yield the verdicts about one value of one filter variable, which is set on the nodes in `on`."""
    some = next(iter(on.values()))
    nothing: dict[str, tuple[Interface, ...]] = {}
    absent: dict[str, tuple[str, ...]] = {}
    unusable: dict[str, tuple[Interface, str]] = {}
    inner: dict[str, Interface] = {}
    rails: dict[str, tuple[Interface, ...]] = {}
    networks: set[str] = set()
    good = 0
    for node in on:
        fact = facts.of(interfaces, node)
        if isinstance(fact, Unavailable):
            reason = f"its interfaces could not be listed: {fact.reason}"
            yield unknown(f"{assignment} on {node}", reason, nodes=(node,), required=True)
            continue
        observed = tuple(fact.value.interfaces)
        choice = select(some.variable, some.value, observed, socket_family(job, node))
        if not choice.interfaces:
            nothing[node] = observed
        elif choice.missing and some.variable != "NCCL_SOCKET_IFNAME":
            absent[node] = choice.missing
        elif why := unusable_reason(choice.interfaces[0], several=several):
            unusable[node] = (choice.interfaces[0], why)
        elif several and all(is_container_interface(item) for item in choice.interfaces):
            inner[node] = choice.interfaces[0]
        else:
            good += 1
            networks |= _subnets(choice.interfaces)
            if len(_subnets(choice.interfaces)) > 1 and not some.value.startswith("="):
                rails[node] = choice.interfaces
    hard = is_read_by_job(job, some.variable) and some.certain and all(len(c.alternatives) == 1 for c in some.claims)
    severity, confidence = (None, None) if hard else (Severity.WARNING, Confidence.MEDIUM)
    if nothing:
        node, observed = next(iter(nothing.items()))
        close = _interface_in(observed, networks) or nearest(some.value, observed)
        hint = f"; did you mean {close}?" if close else ""
        family = socket_family(job, node)
        of_family = f" with an address of {family}" if family and some.variable == "NCCL_SOCKET_IFNAME" else ""
        bare = select(some.variable, some.value, observed, family).unaddressed
        without = f" ({fold(bare)} has no{' such' if of_family else ''} IP address)" if bare else ""
        yield failed(
            f"{assignment}: no interface",
            f"{assignment} selects no interface{of_family} on {fold(nothing)}{without}; {node} has "
            f"{_list_interfaces(observed)}{hint}",
            at=_evidence(node, _list_interfaces(observed), f"an interface for {assignment}"),
            also=some.claims,
            nodes=tuple(nothing),
            remedy=f"Assign an address to {bare[0]} on {fold(nothing)}, or select another interface."
            if bare and not close
            else _name_remedy(some, close),
            severity=severity,
            confidence=confidence,
        )
    if absent:
        node, missing = next(iter(absent.items()))
        yield failed(
            f"{assignment}: a listed interface is missing",
            f"{assignment}: {fold(missing)} does not exist on {fold(absent)}; torch opens every listed interface and "
            "fails on the first that does not exist",
            at=_evidence(node, f"no {fold(missing)}", "every listed interface"),
            also=some.claims,
            nodes=tuple(absent),
            remedy=f"List in {some.variable} only interfaces that every node has.",
            severity=severity,
            confidence=confidence,
        )
    for name, why in dict.fromkeys((item.name, why) for item, why in unusable.values()):
        same_nodes = [node for node, (item, reason) in unusable.items() if (item.name, reason) == (name, why)]
        yield failed(
            f"{assignment}: {name} unusable",
            f"{assignment} selects {name} on {fold(same_nodes)}, but {name} {why}",
            at=_evidence(same_nodes[0], f"{name} {why}", "an interface that is up and reaches the other nodes"),
            also=some.claims,
            nodes=same_nodes,
            remedy=f"`ip link set {name} up` on {fold(same_nodes)}, or select another interface."
            if why == DOWN
            else f"Check the cable and switch port of {name} on {fold(same_nodes)}, or select another interface."
            if why == NO_CARRIER
            else _name_remedy(some, ""),
            run=(root_command("ip", "link", "set", name, "up", on=same_nodes),) if why == DOWN else (),
            severity=severity,
            confidence=confidence,
        )
    if inner:
        node, item = next(iter(inner.items()))
        yield failed(
            f"{assignment}: container bridge",
            f"{assignment} selects only {item.name} on {fold(inner)}, a bridge for containers on that machine",
            at=_evidence(node, item.name, "an interface that reaches the other nodes"),
            also=some.claims,
            nodes=tuple(inner),
            remedy=_name_remedy(some, ""),
            certain=False,
        )
    if rails and several:
        node, remaining = next(iter(rails.items()))
        yield failed(
            f"{assignment}: several networks",
            f"{assignment} selects interfaces on several networks on {fold(rails)}: {_list_interfaces(remaining)}; "
            f"the bootstrap uses {remaining[0].name}",
            at=_evidence(node, _list_interfaces(remaining), "interfaces in the same network"),
            also=some.claims,
            nodes=tuple(rails),
            remedy="Unless all of them are rails of the same fabric, name the right interface exactly: "
            f"{some.variable}=={remaining[0].name} (NCCL's exact form)."
            if some.variable == "NCCL_SOCKET_IFNAME"
            else f"Name one interface in {some.variable}.",
            certain=False,
        )
    if good and not (nothing or absent or unusable or inner or rails):
        yield passed(f"{assignment}: usable on {good} nodes")


def _interface_in(observed: tuple[Interface, ...], networks: set[str]) -> str:
    """Return the interface that is in a network which the filter selects on other nodes; empty if there is none."""
    for item in observed:
        if not item.loopback and any(subnet(address) in networks for address in item.addresses):
            return item.name
    return ""


def _name_remedy(item: Filter, close: str) -> str:
    example = f" (there, {item.variable}={close})" if close else ""
    return (
        f"Set {item.variable} to a name or prefix that every node has{example}, or exclude interfaces: ^docker,lo "
        "for NCCL."
    )


def _subnets(remaining: tuple[Interface, ...]) -> set[str]:
    return {subnet(address) for item in remaining if (address := dialled_address(item)) is not None}


def _list_interfaces(observed: tuple[Interface, ...]) -> str:
    addressed = [item for item in observed if item.addresses] or list(observed)
    return fold(
        f"{item.name} ({item.addresses[0].address}/{item.addresses[0].prefix})" if item.addresses else item.name
        for item in addressed
    )


def _evidence(node: str, observed: str, expected: str) -> Evidence:
    return Evidence("interfaces", observed, expected, "ip -br addr", node)


_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@memoize
def environment_filters(job: Job, facts: Facts) -> dict[str, tuple[Filter, ...]]:
    """Return the filters that each node sets itself; they are certain if read in the ranks' context or NCCL's files."""
    environments = observed_environments(facts)
    filters_by_node: dict[str, tuple[Filter, ...]] = {}
    for node, environment in environments.by_node.items() if environments is not None else ():
        assert environments is not None
        for variable in _VARIABLES:
            value = _value(environment, variable)
            # NCCL and torch ignore values of one character.
            if value is None or len(value[0]) < 2 or filter_unresolved(job, variable):
                continue
            if any(item.variable == variable for item in filters(job, node)):
                continue
            text, file = value
            origin = file or f"in the environment {environments.where}"
            item = Filter(variable, text, (), origin, certain=environments.includes_job_variables or bool(file))
            filters_by_node[node] = (*filters_by_node.get(node, ()), item)
    return filters_by_node


def _value(environment: Environment, variable: str) -> tuple[str, str] | None:
    """Return the value as its reader finds it, and its file: from the environment, or else NCCL's files, in their
    order.
    """
    if variable in environment.variables:
        return environment.variables[variable], ""
    if variable in environment.digests:
        return None
    for file in environment.nccl_files if variable.startswith("NCCL_") else ():
        if variable in file.settings:
            return file.settings[variable], file.path
    return None

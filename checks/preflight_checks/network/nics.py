"""The network interface that the job uses on each node, and checks that it has a route to the others and one MTU.

NCCL without a filter takes the first of its search order; with NCCL_COMM_ID (bootstrapNetInit) the interface that
is in the network of that address, regardless of the filter. Gloo without a filter takes the address of the node's own
name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from preflight._util.hostnames import is_loopback, split_endpoint
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Fleet, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, memoize, not_applicable, passed, root_command, unknown
from preflight_checks.comparison import split
from preflight_checks.context.environment import plan_both
from preflight_checks.network.interface_filter import (
    Chosen,
    chosen,
    dialled_address,
    environment_filters,
    filter_findings,
    has_filter,
    is_read_by_job,
    nccl_default,
    published_address,
    select,
    socket_family,
    subnet,
    unusable_reason,
)
from preflight_checks.network.names import lookups
from preflight_checks.plans import missing_facts, requests_for
from preflight_checks.probes.environment import environment
from preflight_checks.probes.interfaces import Address, Interface, Route, interfaces, route
from preflight_checks.requirements import (
    FILTER_VARIABLES,
    Filter,
    backends,
    filter_of,
    filter_unresolved,
    filters,
    fold,
    is_multi_node,
    owner,
    scopes,
    store_endpoints,
)


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


def _plan_filter(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node in fleet.reached:
        found = filters(job, node.name)
        if found:
            claims = tuple(claim for item in found for claim in item.claims)
            yield Request(probe_name(interfaces), node.name, because=claims, required=True)
    names, claims = backends(job)
    if is_multi_node(fleet) and names & {"nccl", "gloo"}:
        # A node's own environment, or /etc/nccl.conf, may set a filter that is not in the job's files.
        yield from plan_both(job, fleet, facts)
        for node in fleet.reached:
            yield Request(probe_name(interfaces), node.name, because=claims)


@check(
    "NIC001",
    "interface-filter-leaves-nothing-usable",
    plan=_plan_filter,
    probes=(interfaces, environment),
    cost="queries the kernel for its interfaces, and the job context for its environment; milliseconds",
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#286", "marin-community/marin#6940", "aws/deep-learning-containers#6469"),
)
def interface_filter(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The interface that the job's filter variables name exists and is usable on every node.

    What it checks: the filter (NCCL_SOCKET_IFNAME with NCCL_SOCKET_FAMILY, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME,
    HOROVOD_GLOO_IFACE, FI_TCP_IFACE, Open MPI's btl_tcp_if_include and _exclude, oob_tcp_if_include) is applied to
    each node's interfaces exactly as the library does it; an interface must remain, be up with a carrier and a
    routable address, and not be loopback or a container bridge.

    Why it matters: a hard-coded name that one node lacks gives a clear error on that node alone; all others hang.

    Example: NCCL_SOCKET_IFNAME=ib0 while node3 calls it ibp12s0.

    Fix: name an interface that every node has, use a prefix (`ib`), or exclude (`^docker,lo`).

    Known limits: of variables outside the job's files, only those of NCCL and Gloo are judged, as ranks find them in
    their environment or in /etc/nccl.conf.
    """
    for variable in FILTER_VARIABLES:
        if filter_unresolved(job, variable):
            yield unknown(variable, "its value is only known at run time")
    grouped: dict[tuple[str, str, str], dict[str, Filter]] = {}
    around = environment_filters(job, facts) if is_multi_node(fleet) else {}
    for node in fleet.reached:
        for item in (*filters(job, node.name), *around.get(node.name, ())):
            grouped.setdefault((item.variable, item.value, item.origin), {})[node.name] = item
    if not grouped:
        yield not_applicable("interface filters", "neither the job's files nor the nodes set any")
    for (variable, value, _origin), on in grouped.items():
        origin = next(iter(on.values())).origin
        spelled = f"{variable}={value}" + (f" ({origin})" if origin else "")
        yield from filter_findings(job, spelled, on, facts, several=len(fleet.nodes) > 1)


def _master_host(job: Job, fleet: Fleet) -> str:
    """The host at which other nodes reach rank 0, as written in the job, or the node's name."""
    for endpoint in store_endpoints(job):
        if endpoint.host and not is_loopback(endpoint.host):
            return endpoint.host
    return fleet.master.name if fleet.master else ""


def _listeners(job: Job, fleet: Fleet) -> set[str]:
    """The nodes on which others connect; their route to themselves is loopback and proves nothing."""
    found = {node.name for endpoint in store_endpoints(job) if (node := owner(fleet, endpoint)) is not None}
    return found or ({fleet.master.name} if fleet.master else set())


@requests_for(interfaces, route)
def _plan_route(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if len(fleet.nodes) < 2:
        return
    listeners, host = _listeners(job, fleet), _master_host(job, fleet)
    for node in fleet.reached:
        claims = tuple(claim for item in filters(job, node.name) for claim in item.claims)
        # Requested even without a filter: the link stage dials the address of the interface found here.
        yield Request(probe_name(interfaces), node.name, because=claims)
        if claims and node.name not in listeners:
            yield Request(probe_name(route), node.name, {"destination": host}, because=claims)


def _routes(facts: Facts, host: str) -> dict[str, Observed[Route] | Unavailable]:
    return {seen.node: seen.fact for seen in facts.each(route) if seen.params.get("destination") == host}


def _choices(job: Job, facts: Facts) -> dict[str, Chosen]:
    found: dict[str, Chosen] = {}
    for node, fact in facts.observed(interfaces).items():
        choice = chosen(job, node, fact.interfaces)
        if choice is not None:
            found[node] = choice
    return found


@check(
    "NIC002",
    "chosen-interface-not-on-route-to-master",
    plan=_plan_route,
    cost="queries the kernel for its interfaces and for one route; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("marin-community/marin#7018", "NVIDIA/nccl#1105"),
)
def interface_route(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The chosen interface is the one the kernel uses towards rank 0.

    What it checks: the kernel's route to the rendezvous host compared with the interfaces the filter leaves.

    Why it matters: the job then runs over a management network, or publishes an address its peers cannot route
    to; either is slow or silent, never reported.

    Example: NCCL_SOCKET_IFNAME=eth1 while the route to node0 leaves through eth0.

    Fix: choose the interface of the master address's network, or give the master's address on the chosen network.

    Known limits: with several rails on one fabric a difference is intended.
    """
    if len(fleet.nodes) < 2 or not has_filter(job):
        yield not_applicable("route to rank 0", "the job sets no interface filter, or has only one node")
        return
    host = _master_host(job, fleet)
    choices = _choices(job, facts)
    off: dict[str, tuple[Chosen, Route]] = {}
    for node, fact in _routes(facts, host).items():
        choice = choices.get(node)
        if isinstance(fact, Unavailable):
            yield unknown(node, f"its route to {host} is not known: {fact.reason}", nodes=(node,))
        elif fact.value.problem or not fact.value.interface:
            yield unknown(node, f"no route to {host}: {fact.value.detail or fact.value.problem}", nodes=(node,))
        elif choice is None:
            yield unknown(node, "the filter leaves no interface there", nodes=(node,))
        elif fact.value.interface in {item.name for item in choice.candidates} or fact.value.interface == "lo":
            yield passed(node)
        else:
            off[node] = (choice, fact.value)
    for name, through in sorted({(c.interface.name, r.interface) for c, r in off.values()}):
        nodes = [n for n, (c, r) in off.items() if (c.interface.name, r.interface) == (name, through)]
        choice, found = off[nodes[0]]
        yield failed(
            f"{name} against {through}",
            f"{choice.filter.variable}={choice.filter.value} chooses {name} on {fold(nodes)}, but the kernel "
            f"reaches {host} ({found.address}) through {through}",
            at=Evidence(
                "route", f"dev {through} src {found.source}", f"dev {name}", f"ip route get {found.address}", nodes[0]
            ),
            also=choice.filter.claims,
            nodes=nodes,
            remedy=f"Set {choice.filter.variable}={through}, or use rank 0's address on the network of {name}.",
        )


@check(
    "NIC003",
    "mtu-differs",
    plan=_plan_route,
    cost="queries the kernel for its interfaces and for one route; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#1524", "NVIDIA/nccl#1957"),
)
def interface_mtu(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The chosen interfaces of all nodes have one MTU.

    What it checks: the MTU of the interface that each node uses: chosen by a filter or by the library.

    Why it matters: if one side sends larger frames than the other side or a switch accepts, small messages pass and
    bulk data vanishes: the job initialises and then hangs.

    Example: three nodes at 9000 and one re-imaged node at 1500.

    Fix: set one MTU on all nodes and switch ports.

    Known limits: TCP between two hosts negotiates the smaller MTU, so a difference alone can be harmless.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("MTU", "the job has one node")
        return
    blind = tuple(missing_facts(facts, interfaces, "MTU"))
    yield from blind
    choices = used_interfaces(job, facts)
    found = split({node: c.interface.mtu for node, c in choices.items() if c.interface.mtu is not None})
    if found is None or len(found.agreeing) + len(found.odd) < 2:
        if not blind:
            yield unknown("MTU", "which interface the job will use is known on fewer than two nodes")
        return
    if not found.odd:
        yield passed(f"MTU {found.common} on {len(found.agreeing)} nodes")
        return
    node, _ = found.first_odd
    choice, common = choices[node], found.common
    yield failed(
        "MTU",
        f"the chosen interfaces have different MTUs: {found.description}",
        at=Evidence(
            "interfaces", f"{choice.interface.name} mtu {choice.interface.mtu}", f"mtu {common}", "ip link", node
        ),
        also=choice.claims,
        nodes=tuple(found.odd),
        remedy=f"Set one MTU everywhere: `ip link set {choice.interface.name} mtu {common}` on {fold(found.odd)}, "
        "or fix the others.",
        run=(root_command("ip", "link", "set", choice.interface.name, "mtu", str(common), on=found.odd),),
    )

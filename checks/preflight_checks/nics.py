"""Whether the chosen network interfaces exist, lead to the master, and agree between nodes."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.demands import (
    FILTER_VARIABLES,
    Filter,
    filter_unresolved,
    filters,
    fold,
    is_loopback,
    owner,
    store_endpoints,
    unseen,
)
from preflight_checks.interface_filter import (
    Chosen,
    chosen,
    dialled,
    has_filter,
    is_inner,
    nearest,
    relevant,
    select,
    subnet,
)
from preflight_checks.majority import split
from preflight_checks.probes.interfaces import Interface, Route, interfaces, route


def _plan_filter(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node in fleet.reached:
        found = filters(job, node.name)
        if found:
            claims = tuple(claim for item in found for claim in item.claims)
            yield Request(probe_name(interfaces), node.name, because=claims, required=True)


@check(
    "NIC001",
    "interface-filter-leaves-nothing-usable",
    plan=_plan_filter,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#286", "marin-community/marin#6940", "aws/deep-learning-containers#6469"),
)
def interface_filter(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The interface named by NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME exists and is usable on every node.

    What it checks: the filter is applied to each node's interfaces exactly as the library does it; something
    must be left, it must be up, and it must not be loopback or a bridge for containers.

    Why it matters: a hard-coded name that one node lacks gives a clear error on that node alone; all others hang.

    Example: NCCL_SOCKET_IFNAME=ib0 while node3 calls it ibp12s0.

    Fix: name an interface that every node has, use a prefix (`ib`), or exclude (`^docker,lo`).

    Known limits: only values that stand in the job's files are judged; NCCL_SOCKET_FAMILY is not considered.

    Evidence: NVIDIA/nccl#286, marin-community/marin#6940, aws/deep-learning-containers#6469.
    """
    for variable in FILTER_VARIABLES:
        if filter_unresolved(job, variable):
            yield unknown(variable, "the files set it to something only run time can tell")
    grouped: dict[tuple[str, str], dict[str, Filter]] = {}
    for node in fleet.reached:
        for item in filters(job, node.name):
            grouped.setdefault((item.variable, item.value), {})[node.name] = item
    if not grouped:
        yield not_applicable("interface filters", "the job's files set none")
    for (variable, value), on in grouped.items():
        yield from _judge_filter(job, f"{variable}={value}", on, facts, several=len(fleet.nodes) > 1)


def _judge_filter(job: Job, spelled: str, on: dict[str, Filter], facts: Facts, *, several: bool) -> Iterator[Verdict]:
    some = next(iter(on.values()))
    nothing: dict[str, tuple[Interface, ...]] = {}
    lacking: dict[str, tuple[str, ...]] = {}
    unusable: dict[str, Interface] = {}
    inner: dict[str, Interface] = {}
    rails: dict[str, tuple[Interface, ...]] = {}
    networks: set[str] = set()
    good = 0
    for node in on:
        fact = facts.of(interfaces, node)
        if isinstance(fact, Unavailable):
            yield unknown(f"{spelled} on {node}", f"its interfaces could not be listed: {fact.reason}", required=True)
            continue
        have = tuple(fact.value.interfaces)
        choice = select(some.variable, some.value, have)
        if not choice.interfaces:
            nothing[node] = have
        elif choice.missing and some.variable != "NCCL_SOCKET_IFNAME":
            lacking[node] = choice.missing
        elif not choice.interfaces[0].up or (several and choice.interfaces[0].loopback):
            unusable[node] = choice.interfaces[0]
        elif several and all(is_inner(item) for item in choice.interfaces):
            inner[node] = choice.interfaces[0]
        else:
            good += 1
            networks |= _subnets(choice.interfaces)
            if len(_subnets(choice.interfaces)) > 1 and not some.value.startswith("="):
                rails[node] = choice.interfaces
    hard = relevant(job, some.variable) and all(len(claim.alternatives) == 1 for claim in some.claims)
    severity, confidence = (None, None) if hard else (Severity.WARNING, Confidence.MEDIUM)
    if nothing:
        node, have = next(iter(nothing.items()))
        close = _of_network(have, networks) or nearest(some.value, have)
        hint = f"; did you mean {close}?" if close else ""
        yield failed(
            f"{spelled}: no interface",
            f"{spelled} leaves no interface on {fold(nothing)}; {node} has {_listed(have)}{hint}",
            at=_evidence(node, _listed(have), f"an interface for {spelled}"),
            also=some.claims,
            nodes=tuple(nothing),
            remedy=_name_remedy(some, close),
            severity=severity,
            confidence=confidence,
        )
    if lacking:
        node, missing = next(iter(lacking.items()))
        yield failed(
            f"{spelled}: a listed interface is missing",
            f"{spelled}: {fold(missing)} does not exist on {fold(lacking)}; torch opens every listed interface and "
            "fails on the first it cannot find",
            at=_evidence(node, f"no {fold(missing)}", "every listed interface"),
            also=some.claims,
            nodes=tuple(lacking),
            remedy=f"List in {some.variable} only interfaces that every node has.",
            severity=severity,
            confidence=confidence,
        )
    if unusable:
        node, item = next(iter(unusable.items()))
        state = "the loopback interface, which no other node can dial" if item.loopback else "down"
        yield failed(
            f"{spelled}: unusable",
            f"{spelled} chooses {item.name} on {fold(unusable)}: it is {state}",
            at=_evidence(node, f"{item.name} is {state}", "an interface that is up and reaches the other nodes"),
            also=some.claims,
            nodes=tuple(unusable),
            remedy=f"`ip link set {item.name} up` on {fold(unusable)}, or choose another interface."
            if not item.loopback
            else _name_remedy(some, ""),
            severity=severity,
            confidence=confidence,
        )
    if inner:
        node, item = next(iter(inner.items()))
        yield failed(
            f"{spelled}: container bridge",
            f"{spelled} chooses only {item.name} on {fold(inner)}, an interface for containers of that machine",
            at=_evidence(node, item.name, "an interface that reaches the other nodes"),
            also=some.claims,
            nodes=tuple(inner),
            remedy=_name_remedy(some, ""),
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
        )
    if rails and several:
        node, left = next(iter(rails.items()))
        yield failed(
            f"{spelled}: several networks",
            f"{spelled} leaves interfaces on several networks on {fold(rails)}: {_listed(left)}; "
            f"{left[0].name} carries the bootstrap",
            at=_evidence(node, _listed(left), "interfaces of one network"),
            also=some.claims,
            nodes=tuple(rails),
            remedy=f"Unless all of them are rails of the same fabric, name the right one exactly: "
            f"{some.variable}=={left[0].name} (NCCL's exact form)."
            if some.variable == "NCCL_SOCKET_IFNAME"
            else f"Name one of them in {some.variable}.",
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
        )
    if good and not (nothing or lacking or unusable or inner or rails):
        yield passed(f"{spelled}: usable on {good} nodes")


def _of_network(have: tuple[Interface, ...], networks: set[str]) -> str:
    """The interface that lies in a network the filter chose on other nodes; empty when none does."""
    for item in have:
        if not item.loopback and any(subnet(address) in networks for address in item.addresses):
            return item.name
    return ""


def _name_remedy(item: Filter, close: str) -> str:
    example = f" (there, {item.variable}={close})" if close else ""
    return f"Give {item.variable} a name or prefix that every node has{example}, or exclude: ^docker,lo for NCCL."


def _subnets(left: tuple[Interface, ...]) -> set[str]:
    return {subnet(address) for item in left if (address := dialled(item)) is not None}


def _listed(have: tuple[Interface, ...]) -> str:
    addressed = [item for item in have if item.addresses] or list(have)
    return fold(
        f"{item.name} ({item.addresses[0].address}/{item.addresses[0].prefix})" if item.addresses else item.name
        for item in addressed
    )


def _evidence(node: str, observed: str, expected: str) -> Evidence:
    return Evidence("interfaces", observed, expected, "ip -br addr", node)


def _master_host(job: Job, fleet: Fleet) -> str:
    """The host other nodes dial for rank 0, in the job's spelling; the node's name when nothing spells it."""
    for endpoint in store_endpoints(job):
        if endpoint.host and not is_loopback(endpoint.host):
            return endpoint.host
    return fleet.master.name if fleet.master else ""


def _listeners(job: Job, fleet: Fleet) -> set[str]:
    """Nodes that listen for the others; their route to themselves is loopback and says nothing."""
    found = {node.name for endpoint in store_endpoints(job) if (node := owner(fleet, endpoint)) is not None}
    return found or ({fleet.master.name} if fleet.master else set())


def _plan_route(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if len(fleet.nodes) < 2:
        return
    listeners, host = _listeners(job, fleet), _master_host(job, fleet)
    for node in fleet.reached:
        claims = tuple(claim for item in filters(job, node.name) for claim in item.claims)
        # Asked even without a filter: the link stage dials the address of the interface found here.
        yield Request(probe_name(interfaces), node.name, because=claims)
        if claims and node.name not in listeners:
            yield Request(probe_name(route), node.name, {"destination": host}, because=claims)


def _routes(facts: Facts, host: str) -> dict[str, Observed[Route] | Unavailable]:
    return {seen.node: seen.fact for seen in facts.each(route) if seen.request.params.get("destination") == host}


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
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("marin-community/marin#7018", "NVIDIA/nccl#1105"),
)
def interface_route(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The chosen interface is the one the kernel uses towards rank 0.

    What it checks: the kernel's route to the rendezvous host against the interfaces the filter leaves.

    Why it matters: the job then runs over a management network, or publishes an address its peers cannot route
    to; either is slow or silent, never reported.

    Example: NCCL_SOCKET_IFNAME=eth1 while the route to node0 leaves through eth0.

    Fix: choose the interface of the network the master address lies in, or give the master's address on the
    chosen network.

    Known limits: with several rails on one fabric a difference is intended.

    Evidence: marin-community/marin#7018, NVIDIA/nccl#1105.
    """
    if len(fleet.nodes) < 2 or not has_filter(job):
        yield not_applicable("route to rank 0", "no interface filter, or one node")
        return
    host = _master_host(job, fleet)
    choices = _choices(job, facts)
    off: dict[str, tuple[Chosen, Route]] = {}
    for node, fact in _routes(facts, host).items():
        choice = choices.get(node)
        if isinstance(fact, Unavailable):
            yield unknown(node, f"its route to {host} is not known: {fact.reason}")
        elif fact.value.problem or not fact.value.interface:
            yield unknown(node, f"no route to {host}: {fact.value.detail or fact.value.problem}")
        elif choice is None:
            yield unknown(node, "the filter leaves no interface there")
        elif fact.value.interface in {item.name for item in choice.among} or fact.value.interface == "lo":
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
                "route",
                f"dev {through} src {found.source}",
                f"dev {name}",
                f"ip route get {found.address}",
                nodes[0],
            ),
            also=choice.filter.claims,
            nodes=nodes,
            remedy=f"Set {choice.filter.variable}={through}, or use rank 0's address on the network of {name}.",
        )


@check(
    "NIC003",
    "mtu-differs",
    plan=_plan_route,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#1524", "NVIDIA/nccl#1957"),
)
def interface_mtu(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The chosen interfaces of all nodes have one MTU.

    What it checks: the MTU of the interface the filter chooses on each node.

    Why it matters: where one side sends larger frames than the other or a switch takes, small messages pass and
    bulk vanishes: the job initialises and then hangs.

    Example: three nodes at 9000 and one re-imaged node at 1500.

    Fix: set one MTU on all nodes and switch ports.

    Known limits: TCP between two hosts negotiates the smaller MTU, so a difference alone can be harmless.

    Evidence: NVIDIA/nccl#1524, NVIDIA/nccl#1957.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("MTU", "the job has one node")
        return
    blind = tuple(unseen(facts, interfaces, "MTU"))
    yield from blind
    choices = _choices(job, facts)
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
        f"the chosen interfaces have different MTUs: {found.spoken}",
        at=Evidence(
            "interfaces",
            f"{choice.interface.name} mtu {choice.interface.mtu}",
            f"mtu {common}",
            "ip link",
            node,
        ),
        also=choice.filter.claims,
        nodes=tuple(found.odd),
        remedy=f"Set one MTU everywhere: `ip link set {choice.interface.name} mtu {common}` on {fold(found.odd)}, "
        "or fix the others.",
    )

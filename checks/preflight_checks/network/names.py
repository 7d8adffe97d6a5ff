"""Checks that a node resolves its own name and the names of the others to addresses that they can use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from preflight._util.hostnames import is_loopback
from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.recording import FactRow, Facts, Fleet, Node, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.network.interface_filter import is_link_local
from preflight_checks.plans import (
    known_facts,
    missing_facts,
    on_every_node,
    only_if,
    runs_on_several_machines,
    split,
    warning_check,
)
from preflight_checks.probes.interfaces import Interfaces, interfaces
from preflight_checks.probes.machine import Identity, identity
from preflight_checks.probes.names import MAX_NAMES, Lookup, Lookups, resolve, resolve_many
from preflight_checks.requirements import (
    Endpoint,
    backends,
    filter_of,
    filter_unresolved,
    find_node,
    fold,
    is_literal,
    is_multi_node,
    nodes_share_machine,
    scopes,
    server_endpoints,
    store_claims,
    store_endpoints,
)


def _uses_own_name(job: Job, fleet: Fleet) -> bool:
    names, _claims = backends(job)
    uses = not names or bool(names & {"gloo", "ps"}) or bool(_paddle_launches(job))
    return len(fleet.nodes) > 1 and not nodes_share_machine(fleet) and uses


def _paddle_launches(job: Job) -> tuple[Launch, ...]:
    """Return Paddle's launches without `--host`, which use the node's own name (paddle launch/context/node.py)."""
    found = (launch for launch in job.launches if launch.launcher == "paddle")
    return tuple(launch for launch in found if not job.setting("node_address", launch.scope))


def _plan_own(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if not _uses_own_name(job, fleet):
        return
    names, claims = backends(job)
    for node in fleet.reached:
        required = bool(names) or bool(_paddle_launches(job))
        yield Request(probe_name(resolve), node.name, {"name": ""}, because=claims, required=required)


def lookups(facts: Facts, *, own: bool) -> Iterator[FactRow[Lookup]]:
    """Yield the lookups of the nodes' own names, or of other names."""
    for row in facts.each(resolve):
        if (not row.params.get("name")) == own:
            yield row


@check("NAM001", "hostname-resolves-to-loopback", plan=_plan_own, probes=(resolve,), severity=Severity.ERROR)
def hostname_loopback(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A node's own name resolves to an address that other nodes can reach.

    What it checks: the first address of the node's own host name that the node can bind, if Gloo, Paddle's launcher or
    a parameter server will publish it to its peers and no GLOO_SOCKET_IFNAME (or --host) overrides it.

    Why it matters: Gloo publishes the address that its own host name resolves to. Debian's installer maps that name to
    127.0.1.1; the peers then connect to themselves. Depending on the order of addresses, connections are refused, the
    job hangs, or it works by luck.

    Example: on node3 `getent hosts node3` prints `127.0.1.1 node3`.

    Fix: map the name to the node's network address in /etc/hosts (or DNS), or export
    GLOO_SOCKET_IFNAME with the interface to use.

    Known limits: the name is looked up outside the container; a container with its own /etc/hosts may differ.
    """
    names, claims = backends(job)
    if not _uses_own_name(job, fleet):
        reason = (
            "the job has one node"
            if len(fleet.nodes) < 2
            else "all nodes are this machine"
            if nodes_share_machine(fleet)
            else f"backend {fold(sorted(names))} does not use the node's own name"
        )
        yield not_applicable("own host names", reason)
        return
    paddle = _paddle_launches(job)
    certain = bool(names) or bool(paddle)
    bad: dict[str, Lookup] = {}
    for row in lookups(facts, own=True):
        gloo = filter_of(job, "GLOO_SOCKET_IFNAME", row.node)
        if isinstance(row.fact, Unavailable):
            reason = f"its own name could not be looked up: {row.fact.reason}"
            yield unknown(row.node, reason, nodes=(row.node,), required=certain)
        elif "ps" not in names and not paddle and (gloo is not None or filter_unresolved(job, "GLOO_SOCKET_IFNAME")):
            yield not_applicable(row.node, "GLOO_SOCKET_IFNAME selects the interface")
        elif _publishes_loopback(row.fact.value):
            bad[row.node] = row.fact.value
        else:
            yield passed(row.node)
    if bad:
        yield _own_name_finding(bad, (*claims, *paddle), certain=certain)


def _publishes_loopback(lookup: Lookup) -> bool:
    """Return whether Gloo would publish loopback: the first address it can bind is loopback, or it can bind none.

    torch (ProcessGroupGloo::createDefaultDevice) and Paddle fall back to loopback if no address of the node's own name
    belongs to the node; Gloo skips addresses that it cannot bind (transport/tcp/device.cc).
    """
    if lookup.bound is not None:
        return not lookup.bound or is_loopback(lookup.bound)
    return not lookup.addresses or is_loopback(lookup.addresses[0])


def _own_name_finding(
    lookups_by_node: dict[str, Lookup], claims: tuple[Claim | Launch, ...], *, certain: bool
) -> Verdict:
    answers = [f"{node}: {found.name} -> {_own_answer(found)}" for node, found in lookups_by_node.items()]
    evidence = [
        Evidence("own name", _own_answer(found), "an address that peers can reach", f"getent ahosts {found.name}", node)
        for node, found in lookups_by_node.items()
    ]
    subject = fold(lookups_by_node)
    return failed(
        "own host names",
        f"the node's own name on {subject} does not resolve to an address that other nodes can reach "
        f"({'; '.join(answers[:4])}); Gloo, Paddle's launcher and parameter servers would publish the loopback "
        "address",
        at=evidence[0],
        also=(*evidence[1:8], *claims),
        nodes=tuple(lookups_by_node),
        remedy="Map the name to the node's network address in /etc/hosts or DNS on "
        f"{subject}, or export GLOO_SOCKET_IFNAME=<interface> on every node (for Paddle, give --host).",
        certain=certain,
    )


def _own_answer(lookup: Lookup) -> str:
    if lookup.addresses and lookup.bound == "":
        return f"{', '.join(lookup.addresses[:3])}, which is not an address of this node"
    if lookup.addresses:
        return ", ".join(lookup.addresses[:3])
    if lookup.problem == "timeout":
        return f"no response after {lookup.took_s:.1f} s"
    return f"does not resolve ({lookup.detail})"


def named_endpoints(job: Job, fleet: Fleet) -> tuple[Endpoint, ...]:
    if len(fleet.nodes) < 2 or nodes_share_machine(fleet):
        return ()
    return tuple(item for item in store_endpoints(job) if item.host and not is_loopback(item.host))


def plan_master(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for endpoint in named_endpoints(job, fleet):
        for node in fleet.reached:
            params = {"name": endpoint.host}
            yield Request(probe_name(resolve), node.name, params, because=endpoint.claims, required=True)
            yield Request(probe_name(interfaces), node.name, because=endpoint.claims)


@check("NAM002", "master-name-not-usable", plan=plan_master, probes=(resolve, interfaces), severity=Severity.ERROR)
def master_name(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The rendezvous host resolves on every node to an address of the node that listens there.

    What it checks: each node looks up the host of the rendezvous endpoint (or master address); the result must arrive
    in time, must not be loopback on another node, and must be an address of the listening node.

    Why it matters: a node that cannot resolve the master repeats a warning and hangs with all the others; a node that
    resolves it to something else connects to the wrong machine.

    Example: MASTER_ADDR=node0 is in /etc/hosts of three nodes and missing on the fourth.

    Fix: make the name resolve to the same address everywhere, or use the address itself.

    Known limits: an address that no node has may be a virtual or public one that is forwarded; this is a warning,
    and the connection test decides.
    """
    stores = named_endpoints(job, fleet)
    if not stores:
        yield not_applicable("the rendezvous host", "no host is given, or all nodes are one machine")
    for endpoint in stores:
        yield from _judge_master(endpoint, fleet, facts)


def _judge_master(endpoint: Endpoint, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    host = endpoint.host
    listening = find_node(fleet, host) if endpoint.kind == "rendezvous" else None
    listening = listening or fleet.master
    observed = facts.observed(interfaces)
    good: list[str] = []
    dead: dict[str, Lookup] = {}
    to_self: dict[str, Lookup] = {}
    elsewhere: dict[str, tuple[Lookup, str]] = {}
    for row in lookups(facts, own=False):
        if row.params.get("name") != host:
            continue
        if isinstance(row.fact, Unavailable):
            reason = f"could not be looked up: {row.fact.reason}"
            yield unknown(f"{host} on {row.node}", reason, nodes=(row.node,), required=True)
            continue
        lookup = row.fact.value
        is_listener = listening is not None and row.node == listening.name
        if not lookup.addresses:
            dead[row.node] = lookup
        elif is_loopback(lookup.addresses[0]):
            if is_listener:
                good.append(row.node)
            else:
                to_self[row.node] = lookup
        else:
            holder = _address_holder(lookup.addresses[0], observed)
            # Any node of the job may host a c10d rendezvous, not only that of rank 0.
            allowed = (listening.name, "?") if listening is not None else (holder,)
            if holder in allowed or (endpoint.kind == "rendezvous" and holder):
                good.append(row.node)
            else:
                elsewhere[row.node] = (lookup, holder)
    at, claims = endpoint.what, endpoint.claims
    if dead:
        some = next(iter(dead.values()))
        everywhere = "any node" if not (good or to_self or elsewhere) and len(dead) > 1 else fold(dead)
        yield failed(
            f"{host}: lookup",
            f"{host}, the host of {at}, does not resolve on {everywhere} ({some.detail or _own_answer(some)})",
            at=_lookup_evidence(host, dead),
            also=claims,
            nodes=tuple(dead),
            remedy=f"Add {host} to DNS or /etc/hosts on {fold(dead)}, or give an address that all nodes can reach.",
        )
    if to_self:
        yield failed(
            f"{host}: loopback",
            f"{host}, the host of {at}, resolves to {_own_answer(next(iter(to_self.values())))} on {fold(to_self)}, "
            "which would connect to itself",
            at=_lookup_evidence(host, to_self),
            also=claims,
            nodes=tuple(to_self),
            remedy=f"Remove the loopback line for {host} from /etc/hosts on {fold(to_self)}.",
        )
    for holder in sorted({holder for _found, holder in elsewhere.values()}):
        nodes = {node: lookup for node, (lookup, h) in elsewhere.items() if h == holder}
        yield _other_listener_finding(endpoint, nodes, holder, listening.name if listening else "node 0")
    if good and not (dead or to_self or elsewhere):
        yield passed(f"{host}: resolves on {len(good)} nodes")


def _address_holder(address: str, observed: dict[str, Interfaces]) -> str:
    """Return the node that has `address`; empty if none has it, `?` if a node's interfaces are unknown."""
    for node, facts in observed.items():
        if any(address == a.address for item in facts.interfaces for a in item.addresses):
            return node
    return "" if observed else "?"


def _other_listener_finding(endpoint: Endpoint, nodes: dict[str, Lookup], holder: str, listening: str) -> Verdict:
    some = next(iter(nodes.values()))
    holder_text = f"an address of {holder}" if holder else "not an address of any node of the job"
    return failed(
        f"{endpoint.host}: owner",
        f"{endpoint.host}, the host of {endpoint.what}, resolves to {_own_answer(some)} on {fold(nodes)}, which is "
        f"{holder_text}, but rank 0 listens on {listening}",
        at=_lookup_evidence(endpoint.host, nodes),
        also=endpoint.claims,
        nodes=tuple(nodes),
        remedy=f"Use an address of {listening} for {endpoint.host}, or move the node with that address to the start "
        "of the host list.",
        certain=bool(holder),
    )


def misresolved_hosts(facts: Facts) -> set[tuple[str, str]]:
    """Return pairs (node, host) where the host does not resolve, or resolves to the node itself, as NAM002 reports."""
    return {
        (row.node, row.fact.value.name)
        for row in lookups(facts, own=False)
        if isinstance(row.fact, Observed) and _publishes_loopback(row.fact.value)
    }


def _lookup_evidence(host: str, lookups_by_node: dict[str, Lookup]) -> Evidence:
    node, some = next(iter(lookups_by_node.items()))
    return Evidence("lookup", _own_answer(some), "an address of the listening node", f"getent ahosts {host}", node)


@check(
    "NAM007", "master-name-of-another-family", plan=plan_master, severity=Severity.ERROR, probes=(resolve, interfaces)
)
def master_of_another_family(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The rendezvous host has an address of a family (IPv4, IPv6) that every node also has.

    What it checks: the families of the addresses that each node finds for the host, compared with those of its own
    interfaces, without loopback and link-local addresses.

    Why it matters: a node without IPv6 cannot connect to an IPv6 address; it fails immediately or waits for its
    timeout.

    Example: DNS has only an AAAA record for node1, but node3 was installed without IPv6.

    Fix: add an A record, or a line in /etc/hosts, for the host; or configure IPv6 on all nodes.

    Known limits: if a name has both families, programs try one after the other.
    """
    stores = named_endpoints(job, fleet)
    if not stores:
        yield not_applicable("address families", "no host is given, or all nodes are one machine")
    observed = {node: _families(addresses) for node, addresses in facts.observed(interfaces).items()}
    for endpoint in stores:
        bad: dict[str, str] = {}
        good = 0
        for row in lookups(facts, own=False):
            if row.params.get("name") != endpoint.host:
                continue
            if not isinstance(row.fact, Observed) or not observed.get(row.node):
                yield unknown(
                    f"{endpoint.host} on {row.node}",
                    "its lookup result or its interfaces are unknown",
                    nodes=(row.node,),
                )
                continue
            addresses = [text for text in row.fact.value.addresses if not is_loopback(text)]
            if addresses and not {_family(text) for text in addresses} & observed[row.node]:
                bad[row.node] = addresses[0]
            else:
                good += bool(addresses)
        if bad:
            node, address = next(iter(bad.items()))
            own = " and ".join(sorted(observed[node]))
            yield failed(
                f"{endpoint.host}: family",
                f"{endpoint.host}, the host of {endpoint.what}, is {address} on {fold(bad)}, but {node} has only {own}",
                at=Evidence("lookup", address, f"an address of {own}", f"getent ahosts {endpoint.host}", node),
                also=endpoint.claims,
                nodes=tuple(bad),
                remedy=f"Give {endpoint.host} an {own} address, or configure {_family(address)} on {fold(bad)}.",
            )
        elif good:
            yield passed(f"{endpoint.host}: address family on {good} nodes")


def _family(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def _families(interfaces: Interfaces) -> set[str]:
    return {
        _family(address.address)
        for item in interfaces.interfaces
        for address in item.addresses
        if not is_loopback(address.address) and not is_link_local(address)
    }


#: A lookup that takes longer has first waited for a dead name server.
SLOW_S = 1.9
#: Above MAX_NAMES each node looks up only some names, above MANY only a few, so that requests grow linearly.
SOME_NAMES, FEW_NAMES, MANY = 16, 4, 1024


def _names_as_written(job: Job) -> dict[str, tuple[Claim, ...]]:
    """Return the host names that the job's files give for parameter servers and trainers, with their claims."""
    return {
        endpoint.host: endpoint.claims
        for endpoint in server_endpoints(job)
        if not is_literal(endpoint.host) and not is_loopback(endpoint.host)
    }


def _names_to_resolve(job: Job, fleet: Fleet) -> list[str]:
    nodes = [node.name for node in fleet.nodes if not is_literal(node.name)]
    # NAM002 checks the rendezvous host.
    stores = {endpoint.host for endpoint in store_endpoints(job)}
    return [name for name in dict.fromkeys((*_names_as_written(job), *nodes)) if name not in stores]


def _plan_names(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    names = _names_to_resolve(job, fleet) if is_multi_node(fleet) else []
    each = SOME_NAMES if len(names) <= MANY else FEW_NAMES
    written_names = _names_as_written(job)
    claims = tuple(dict.fromkeys(claim for found in written_names.values() for claim in found))
    for place, node in enumerate(fleet.reached):
        # In a sample, each name is looked up on as many nodes as there are names in a request.
        requested = names if len(names) <= MAX_NAMES else [names[(place + step) % len(names)] for step in range(each)]
        if len(requested) > 1:
            params = {"names": requested}
            required = bool(set(requested) & set(written_names))
            yield Request(probe_name(resolve_many), node.name, params, because=claims, required=required)


@check("NAM003", "name-differs-between-nodes", plan=_plan_names, severity=Severity.ERROR, probes=(resolve_many,))
@only_if(runs_on_several_machines, "node names", "the job runs on one machine")
def name_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The names of the job's nodes and parameter servers resolve to the same addresses on every node.

    What it checks: every node looks up the names of the nodes and of the endpoints in the files; a name must resolve on
    all nodes or on none, to common addresses, and to loopback only on its own node.

    Why it matters: the node with the old line in /etc/hosts connects to the wrong machine or to itself, while all
    others wait for it.

    Example: /etc/hosts on node3 still has the old address of node1.

    Fix: use the same /etc/hosts, or the same DNS, on all nodes.

    Known limits: names that no node resolves are assumed to be ssh aliases and skipped, unless an endpoint uses them.
    Above 64 names, each node looks up 16 of them, above 1024 only 4. Names that occur only in the node list are a
    warning: not every launcher uses them.
    """
    yield from missing_facts(facts, resolve_many, "node names")
    written_names = _names_as_written(job)
    answers: dict[str, dict[str, Lookup]] = {}
    files: dict[str, Mapping[str, list[str]]] = {}
    for node, seen in facts.observed(resolve_many).items():
        files[node] = seen.hosts_file
        for lookup in seen.lookups:
            answers.setdefault(lookup.name, {})[node] = lookup
    faults: dict[tuple[str, str, bool], dict[str, str]] = {}
    for name, on in answers.items():
        for node, what in _odd_nodes(on, owner=find_node(fleet, name), certain=name in written_names).items():
            source = " (its /etc/hosts)" if name in files[node] else ""
            faults.setdefault((node, f"{what}{source}", name in written_names), {})[name] = what
    groups = grouped(((tuple(names), what, certain), node) for (node, what, certain), names in faults.items())
    for (same, what, certain), nodes in groups.items():
        others = [
            _answer(lookup) for node, lookup in answers[same[0]].items() if node not in nodes and lookup.addresses
        ]
        usual = max(set(others), key=others.count) if others else ""
        yield failed(
            f"{fold(same, 3)} on {fold(nodes, 3)}",
            f"{fold(same)} {what} on {fold(nodes)}" + (f"; on the other nodes it is {usual}" if usual else ""),
            at=Evidence("lookup", what, usual or "an address", f"getent ahosts {same[0]}", nodes[0]),
            also=tuple(claim for name in same for claim in written_names.get(name, ())),
            nodes=nodes,
            remedy=f"Make {fold(same)} resolve to the same address on every node: use the same /etc/hosts or the "
            "same DNS.",
            certain=certain,
        )
    if answers and not faults:
        yield passed(f"{len(answers)} names on {len(files)} nodes")


def _odd_nodes(on: Mapping[str, Lookup], *, owner: Node | None, certain: bool) -> dict[str, str]:
    """Return the nodes where a name resolves differently from most nodes, each with the result there."""
    odd_nodes: dict[str, str] = {}
    good = {n: tuple(sorted(v.addresses)) for n, v in on.items() if v.addresses and not is_loopback(v.addresses[0])}
    for node, answer in on.items():
        if not answer.addresses and (good or certain):
            odd_nodes[node] = (
                "does not resolve" if answer.problem != "timeout" else "gets no response from the resolver"
            )
        elif answer.addresses and is_loopback(answer.addresses[0]) and (owner is None or node != owner.name):
            odd_nodes[node] = f"is {answer.addresses[0]}"
    parts = split(good)
    for node, addresses in parts.odd.items() if parts is not None and parts.has_majority else ():
        # Addresses may rotate, or one family may be missing: one common address is enough.
        if parts is not None and not set(addresses) & set(parts.common):
            odd_nodes[node] = f"is {fold(addresses, 2)}"
    return odd_nodes


def _answer(lookup: Lookup) -> str:
    return fold(lookup.addresses, 2)


@check(
    "NAM004",
    "two-names-of-one-machine",
    plan=on_every_node(identity, when=runs_on_several_machines, because=store_claims),
    severity=Severity.ERROR,
)
@only_if(runs_on_several_machines, "machines", "the job runs on one machine")
def two_names_of_one_machine(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The names in the node list belong to different machines.

    What it checks: the kernel's boot id and the network and process namespaces behind every name; host names and
    machine ids are also compared.

    Why it matters: two ranks then share every GPU and every port of one machine; NCCL stops with "Duplicate GPU", a
    port is in use, or memory runs out.

    Example: a hostfile with node1 and node1-ib, which are one machine.

    Fix: name each machine once.

    Known limits: pods and containers on one machine count as different nodes. The same host name on different machines
    is a warning, the same machine id (a cloned image) is informational.
    """
    identities = yield from known_facts(facts, identity, "machines")
    places = _shared_values({node: fact.place for node, fact in identities.items()})
    for nodes in places.values():
        yield failed(
            f"machine of {fold(nodes, 3)}",
            f"{fold(nodes)} are {len(nodes)} names of one machine, {identities[nodes[0]].hostname}",
            at=Evidence("boot id", identities[nodes[0]].boot_id, "one machine for each name", f"cat {_BOOT}", nodes[0]),
            also=tuple(claim for scope in scopes(job) for claim in job.value_claims("hosts", scope)),
            nodes=nodes,
            remedy=f"Keep only one of {fold(nodes)} in the list of nodes.",
        )
    twice = {node for nodes in places.values() for node in nodes}
    rest = {node: fact for node, fact in identities.items() if node not in twice}
    for what, values in (
        ("host name", {node: fact.hostname for node, fact in rest.items()}),
        ("machine id", {n: f.machine_id for n, f in rest.items() if f.machine_id != "uninitialized"}),
    ):
        for value, nodes in _shared_values(values).items():
            if len({rest[node].boot_id for node in nodes}) < len(nodes):
                continue  # containers of one machine legitimately share it
            yield failed(
                f"{what} {value}",
                f"{fold(nodes)} are different machines with the same {what}, {value}",
                at=Evidence(what, value, "a unique one on each machine", "hostnamectl", nodes[0]),
                nodes=nodes,
                remedy=f"Give each machine a unique {what}: "
                + ("`hostnamectl set-hostname NAME`." if what == "host name" else "`systemd-machine-id-setup`."),
                # The machine id in container images has no meaning.
                severity=Severity.WARNING if what == "host name" else Severity.INFO,
                confidence=Confidence.MEDIUM,
            )
            twice.update(nodes)
    if identities and not twice:
        yield passed(f"{len(identities)} machines")


_BOOT = "/proc/sys/kernel/random/boot_id"


def _shared_values(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the values that several nodes share, each with these nodes."""
    holders = grouped((value, node) for node, value in values.items() if value)
    return {value: nodes for value, nodes in holders.items() if len(nodes) > 1}


def _published_node(job: Job, fleet: Fleet, facts: Facts) -> tuple[str, Identity] | None:
    """Return the node whose name torchrun's c10d rendezvous publishes: the first one by name
    (dynamic_rendezvous.py).
    """
    rendezvous = [endpoint for endpoint in store_endpoints(job) if endpoint.kind == "rendezvous"]
    given = any(job.setting("local_addr", scope) for scope in scopes(job))
    identities = facts.observed(identity)
    if not is_multi_node(fleet) or not rendezvous or given or len(identities) < len(fleet.nodes):
        return None
    names = {node: fact for node, fact in identities.items() if fact.fqdn}
    if len(names) < len(fleet.nodes):
        return None
    node = min(names, key=lambda name: names[name].fqdn)
    return node, names[node]


def _uses_c10d(job: Job, fleet: Fleet) -> bool:
    return is_multi_node(fleet) and any(endpoint.kind == "rendezvous" for endpoint in store_endpoints(job))


def _plan_published(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    master = _published_node(job, fleet, facts)
    if master is None or is_loopback(master[1].fqdn):
        return
    claims = tuple(claim for endpoint in store_endpoints(job) for claim in endpoint.claims)
    for node in fleet.reached:
        if node.name != master[0]:
            params = {"name": master[1].fqdn}
            yield Request(probe_name(resolve), node.name, params, because=claims, required=True)


@check(
    "NAM005",
    "torchrun-master-name-unknown",
    plan=_plan_published,
    when="link",
    severity=Severity.ERROR,
    probes=(identity, resolve),
)
@only_if(_uses_c10d, "the published name", "no c10d rendezvous between machines")
def published_name(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The name under which torchrun's c10d rendezvous publishes rank 0's node resolves on the other nodes.

    What it checks: the alphabetically first of the nodes' full names (socket.getfqdn), which torchrun uses as
    MASTER_ADDR, resolves on every other node, and not to loopback.

    Why it matters: the rendezvous itself succeeds at the given address, but then every rank hangs on a name that only
    one node knows, or on "localhost".

    Example: node1's full name is node1.cluster.local, which DNS does not know.

    Fix: `--local-addr` with an address of the node, or names that resolve everywhere.

    Known limits: after a restart with other nodes, another name may come first.
    """
    yield from missing_facts(facts, identity, "the published name")
    master = _published_node(job, fleet, facts)
    if master is None:
        if any(job.setting("local_addr", scope) for scope in scopes(job)):
            yield not_applicable("the published name", "--local-addr sets it")
        elif facts.observed(identity):
            yield unknown(
                "the published name", "the full name of every node is needed, but some could not be determined"
            )
        return
    node, who = master
    claims = tuple(claim for endpoint in store_endpoints(job) for claim in endpoint.claims)
    bad: dict[str, str] = {}
    if is_loopback(who.fqdn):
        bad = {other.name: "would connect to itself" for other in fleet.reached if other.name != node}
    good = 0
    for row in lookups(facts, own=False):
        if row.params.get("name") != who.fqdn or row.node == node:
            continue
        if not isinstance(row.fact, Observed):
            yield unknown(f"{who.fqdn} on {row.node}", row.fact.reason, nodes=(row.node,), required=True)
        elif not row.fact.value.addresses:
            late = row.fact.value.problem == "timeout"
            bad[row.node] = "gets no response from the resolver" if late else "cannot resolve it"
        elif is_loopback(row.fact.value.addresses[0]):
            bad[row.node] = "would connect to itself"
        else:
            good += 1
    if bad:
        what = next(iter(bad.values()))
        yield failed(
            "the published name",
            f"torchrun publishes {who.fqdn} as the master's name (the full name of {node}), but {fold(bad)} {what}",
            at=Evidence("full name", who.fqdn, "a name that resolves to this node on every node", "hostname -f", node),
            also=claims,
            nodes=(node,) if is_loopback(who.fqdn) else tuple(bad),
            remedy="Pass --local-addr with the node's own address to torchrun on every node, or make the name resolve.",
        )
    elif good:
        yield passed(f"{who.fqdn} on {good} nodes")


@warning_check("NAM006", "name-look-ups-slow", plan=_plan_names, probes=(resolve_many, identity))
@only_if(runs_on_several_machines, "lookups", "the job runs on one machine")
def slow_lookups(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Name lookups do not wait for a dead name server.

    What it checks: the time that each node took to look up the nodes' names and its own full name.

    Why it matters: each connection by name, and each start of torchrun, then waits for seconds; lookups of hundreds of
    ranks add up to minutes, and exceed short timeouts.

    Example: the first line of /etc/resolv.conf names a server that was disabled; every lookup takes 5 s.

    Fix: remove the dead server from /etc/resolv.conf, or add the names to /etc/hosts.

    Known limits: a very busy node looks the same; check again.
    """
    yield from missing_facts(facts, resolve_many, "lookups")
    known = facts.observed(identity).items()
    slow = {node: (who.hostname, who.fqdn_took_s) for node, who in known if who.fqdn_took_s > SLOW_S}
    lookups_by_node: dict[str, Lookups] = facts.observed(resolve_many)
    for node, found in lookups_by_node.items():
        worst = max(found.lookups, key=lambda item: item.took_s, default=None)
        if worst is not None and worst.took_s > SLOW_S and worst.addresses:
            slow[node] = (worst.name, worst.took_s)
    if slow:
        node, (name, took_s) = next(iter(slow.items()))
        yield failed(
            "lookups",
            f"name lookups take seconds on {fold(slow)}: {name} took {took_s:.1f} s on {node}",
            at=Evidence("lookup", f"{took_s:.1f} s", f"well below {SLOW_S:g} s", f"time getent ahosts {name}", node),
            nodes=tuple(slow),
            remedy=f"Remove the name servers that do not respond from /etc/resolv.conf on {fold(slow)}.",
        )
    elif lookups_by_node:
        yield passed(f"lookups on {len(lookups_by_node)} nodes")

"""Checks that host names resolve on every node, to addresses that others can dial, of a family that all nodes have."""

from __future__ import annotations

from collections.abc import Iterator

from preflight._util.hostnames import is_loopback
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.recording import FactRow, Facts, Fleet, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.network.interface_filter import is_link_local
from preflight_checks.probes.interfaces import Interfaces, interfaces
from preflight_checks.probes.names import Lookup, resolve
from preflight_checks.requirements import (
    Endpoint,
    backends,
    filter_of,
    filter_unresolved,
    fold,
    named,
    nodes_share_machine,
    store_endpoints,
)


def _uses_own_name(job: Job, fleet: Fleet) -> bool:
    names, _claims = backends(job)
    uses = not names or bool(names & {"gloo", "ps"}) or bool(_paddle(job))
    return len(fleet.nodes) > 1 and not nodes_share_machine(fleet) and uses


def _paddle(job: Job) -> tuple[Launch, ...]:
    """Paddle's launches that find the address of their node by its own name, because they have no `--host`.

    paddle/distributed/launch/context/node.py: gethostbyname(getfqdn(gethostname())), regardless of Gloo's settings.
    """
    found = (launch for launch in job.launches if launch.launcher == "paddle")
    return tuple(launch for launch in found if not job.setting("node_address", launch.scope))


def _plan_own(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if not _uses_own_name(job, fleet):
        return
    names, claims = backends(job)
    for node in fleet.reached:
        required = bool(names) or bool(_paddle(job))
        yield Request(probe_name(resolve), node.name, {"name": ""}, because=claims, required=required)


def lookups(facts: Facts, *, own: bool) -> Iterator[FactRow[Lookup]]:
    """The look-ups of the nodes' own names, or of other names."""
    for seen in facts.each(resolve):
        if (not seen.params.get("name")) == own:
            yield seen


@check(
    "NAM001",
    "hostname-resolves-to-loopback",
    plan=_plan_own,
    probes=(resolve,),
    cost="one look-up of a name, up to its deadline",
    severity=Severity.ERROR,
    evidence=("PaddlePaddle/Paddle#37951", "meta-pytorch/data#1142", "aws-samples/aws-do-eks#69"),
)
def hostname_loopback(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A node's own name resolves to an address that other nodes can dial.

    What it checks: the first address of the node's own host name that the node can bind, where Gloo, Paddle's launcher
    or a parameter server will publish it to its peers and no GLOO_SOCKET_IFNAME (or --host) overrides it.

    Why it matters: Gloo tells its peers the address its own host name resolves to. Debian's installer maps
    that name to 127.0.1.1; the peers then connect to themselves. Depending on the order of addresses the job is
    refused, hangs, or works by luck.

    Example: on node3 `getent hosts node3` prints `127.0.1.1 node3`.

    Fix: map the name to the node's network address in /etc/hosts (or DNS), or export
    GLOO_SOCKET_IFNAME with the interface to use.

    Known limits: looked up outside a container; a container with its own /etc/hosts may differ.
    """
    names, claims = backends(job)
    if not _uses_own_name(job, fleet):
        reason = (
            "the job has one node"
            if len(fleet.nodes) < 2
            else "all nodes are this machine"
            if nodes_share_machine(fleet)
            else f"backend {fold(sorted(names))} does not use it"
        )
        yield not_applicable("own host names", reason)
        return
    paddle = _paddle(job)
    certain = bool(names) or bool(paddle)
    bad: dict[str, Lookup] = {}
    for seen in lookups(facts, own=True):
        gloo = filter_of(job, "GLOO_SOCKET_IFNAME", seen.node)
        if isinstance(seen.fact, Unavailable):
            reason = f"its own name could not be looked up: {seen.fact.reason}"
            yield unknown(seen.node, reason, nodes=(seen.node,), required=certain)
        elif "ps" not in names and not paddle and (gloo is not None or filter_unresolved(job, "GLOO_SOCKET_IFNAME")):
            yield not_applicable(seen.node, "GLOO_SOCKET_IFNAME chooses the interface")
        elif _publishes_loopback(seen.fact.value):
            bad[seen.node] = seen.fact.value
        else:
            yield passed(seen.node)
    if bad:
        yield _own_name_finding(bad, (*claims, *paddle), certain=certain)


def _publishes_loopback(lookup: Lookup) -> bool:
    """Whether Gloo would publish loopback: the first address it can bind is loopback, or it can bind none.

    torch (ProcessGroupGloo::createDefaultDevice) and Paddle fall back to loopback if no address of the own name
    belongs to the node; Gloo skips addresses that it cannot bind (transport/tcp/device.cc).
    """
    if lookup.bound is not None:
        return not lookup.bound or is_loopback(lookup.bound)
    return not lookup.addresses or is_loopback(lookup.addresses[0])


def _own_name_finding(bad: dict[str, Lookup], claims: tuple[Claim | Launch, ...], *, certain: bool) -> Verdict:
    answers = [f"{node}: {found.name} -> {_answer(found)}" for node, found in bad.items()]
    evidence = [
        Evidence("own name", _answer(found), "an address that peers can reach", f"getent ahosts {found.name}", node)
        for node, found in bad.items()
    ]
    subject = fold(bad)
    return failed(
        "own host names",
        f"the name of {subject} itself does not resolve to an address that other nodes can reach "
        f"({'; '.join(answers[:4])}); Gloo, Paddle's launcher and parameter servers would publish the loopback address",
        at=evidence[0],
        also=(*evidence[1:8], *claims),
        nodes=tuple(bad),
        remedy="Map the name to the node's network address in /etc/hosts or DNS on "
        f"{subject}, or export GLOO_SOCKET_IFNAME=<interface> on every node (for Paddle, give --host).",
        certain=certain,
    )


def _answer(lookup: Lookup) -> str:
    if lookup.addresses and lookup.bound == "":
        return f"{', '.join(lookup.addresses[:3])}, not an address of this node"
    if lookup.addresses:
        return ", ".join(lookup.addresses[:3])
    if lookup.problem == "timeout":
        return f"no answer after {lookup.took_s:.1f} s"
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


@check(
    "NAM002",
    "master-name-not-usable",
    plan=plan_master,
    probes=(resolve, interfaces),
    cost="one look-up of each master's name, up to its deadline; reads /sys/class/net",
    severity=Severity.ERROR,
    evidence=("pytorch/pytorch#73656", "pytorch/pytorch#76367", "pytorch/pytorch#79388"),
)
def master_name(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The rendezvous host resolves on every node, to an address of the node that listens there.

    What it checks: each node looks up the host of the rendezvous endpoint (or master address); the answer must
    come in time, must not be loopback on another node, and must be an address of the listening node.

    Why it matters: a node that cannot resolve the master repeats a warning and hangs with all the others; a node that
    resolves it to something else dials the wrong machine.

    Example: MASTER_ADDR=node0 is in /etc/hosts of three nodes and missing on the fourth.

    Fix: make the name resolve equally everywhere, or use the address itself.

    Known limits: an address that no node has may be a virtual or public one that is forwarded; this is a warning,
    and the connection test decides.
    """
    stores = named_endpoints(job, fleet)
    if not stores:
        yield not_applicable("the rendezvous host", "no host is named, or all nodes are one machine")
    for endpoint in stores:
        yield from _judge_master(endpoint, fleet, facts)


def _judge_master(endpoint: Endpoint, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    host = endpoint.host
    listening = named(fleet, host) if endpoint.kind == "rendezvous" else None
    listening = listening or fleet.master
    observed = facts.observed(interfaces)
    good: list[str] = []
    dead: dict[str, Lookup] = {}
    to_self: dict[str, Lookup] = {}
    elsewhere: dict[str, tuple[Lookup, str]] = {}
    for seen in lookups(facts, own=False):
        if seen.params.get("name") != host:
            continue
        if isinstance(seen.fact, Unavailable):
            reason = f"could not be looked up: {seen.fact.reason}"
            yield unknown(f"{host} on {seen.node}", reason, nodes=(seen.node,), required=True)
            continue
        found = seen.fact.value
        is_listener = listening is not None and seen.node == listening.name
        if not found.addresses:
            dead[seen.node] = found
        elif is_loopback(found.addresses[0]):
            if is_listener:
                good.append(seen.node)
            else:
                to_self[seen.node] = found
        else:
            holder = _holder(found.addresses[0], observed)
            # Any node of the job may host a c10d rendezvous, not only that of rank 0.
            allowed = (listening.name, "?") if listening is not None else (holder,)
            if holder in allowed or (endpoint.kind == "rendezvous" and holder):
                good.append(seen.node)
            else:
                elsewhere[seen.node] = (found, holder)
    at, claims = endpoint.what, endpoint.claims
    if dead:
        some = next(iter(dead.values()))
        everywhere = "any node" if not (good or to_self or elsewhere) and len(dead) > 1 else fold(dead)
        yield failed(
            f"{host}: look-up",
            f"{host}, the host of {at}, does not resolve on {everywhere} ({some.detail or _answer(some)})",
            at=_lookup_evidence(host, dead),
            also=claims,
            nodes=tuple(dead),
            remedy=f"Add {host} to DNS or /etc/hosts on {fold(dead)}, or give an address all nodes can reach.",
        )
    if to_self:
        yield failed(
            f"{host}: loopback",
            f"{host}, the host of {at}, resolves to {_answer(next(iter(to_self.values())))} on {fold(to_self)}, "
            "which would connect to itself",
            at=_lookup_evidence(host, to_self),
            also=claims,
            nodes=tuple(to_self),
            remedy=f"Remove the loopback line for {host} from /etc/hosts on {fold(to_self)}.",
        )
    for holder in sorted({holder for _found, holder in elsewhere.values()}):
        nodes = {node: found for node, (found, h) in elsewhere.items() if h == holder}
        yield _other_listener(endpoint, nodes, holder, listening.name if listening else "node 0")
    if good and not (dead or to_self or elsewhere):
        yield passed(f"{host}: resolves on {len(good)} nodes")


def _holder(address: str, observed: dict[str, Interfaces]) -> str:
    """The node that has `address`; empty if none has, `?` if some node's interfaces are unknown."""
    for node, facts in observed.items():
        if any(address == a.address for item in facts.interfaces for a in item.addresses):
            return node
    return "" if observed else "?"


def _other_listener(endpoint: Endpoint, nodes: dict[str, Lookup], holder: str, listening: str) -> Verdict:
    some = next(iter(nodes.values()))
    whose = f"an address of {holder}" if holder else "not an address of any node of the job"
    return failed(
        f"{endpoint.host}: owner",
        f"{endpoint.host}, the host of {endpoint.what}, resolves to {_answer(some)} on {fold(nodes)}: that is "
        f"{whose}; rank 0 listens on {listening}",
        at=_lookup_evidence(endpoint.host, nodes),
        also=endpoint.claims,
        nodes=tuple(nodes),
        remedy=f"Use an address of {listening} for {endpoint.host}, or move its owner to the start of the host list.",
        certain=bool(holder),
    )


def misresolved(facts: Facts) -> set[tuple[str, str]]:
    """Pairs (node, host) where the host does not resolve, or resolves to the node itself, as NAM002 reports."""
    return {
        (seen.node, seen.fact.value.name)
        for seen in lookups(facts, own=False)
        if isinstance(seen.fact, Observed) and _publishes_loopback(seen.fact.value)
    }


def _lookup_evidence(host: str, found: dict[str, Lookup]) -> Evidence:
    node, some = next(iter(found.items()))
    return Evidence("look-up", _answer(some), "an address of the listening node", f"getent ahosts {host}", node)


@check(
    "NAM007",
    "master-name-of-another-family",
    plan=plan_master,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#210", "pytorch/pytorch#73656"),
    probes=(resolve, interfaces),
    cost="the look-ups of NAM002, and the node's interfaces; milliseconds",
)
def master_of_another_family(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The rendezvous host has an address of a family (IPv4, IPv6) that every node has, too.

    What it checks: the families of the addresses each node finds for the host, compared with those of its own
    interfaces, without loopback and link-local addresses.

    Why it matters: a node without IPv6 cannot dial an address of IPv6; it fails at once or waits for its timeout.

    Example: DNS gives node1 an AAAA record only, and node3 was installed without IPv6.

    Fix: an A record, or a line in /etc/hosts, for the host; or IPv6 on all nodes.

    Known limits: if a name has both families, programs try one after the other.
    """
    stores = named_endpoints(job, fleet)
    if not stores:
        yield not_applicable("address families", "no host is named, or all nodes are one machine")
    observed = {node: _families(found) for node, found in facts.observed(interfaces).items()}
    for endpoint in stores:
        bad: dict[str, str] = {}
        good = 0
        for seen in lookups(facts, own=False):
            if seen.params.get("name") != endpoint.host:
                continue
            if not isinstance(seen.fact, Observed) or not observed.get(seen.node):
                yield unknown(
                    f"{endpoint.host} on {seen.node}", "its look-up or its interfaces are not known", nodes=(seen.node,)
                )
                continue
            found = [text for text in seen.fact.value.addresses if not is_loopback(text)]
            if found and not {_family(text) for text in found} & observed[seen.node]:
                bad[seen.node] = found[0]
            else:
                good += bool(found)
        if bad:
            node, address = next(iter(bad.items()))
            own = " and ".join(sorted(observed[node]))
            yield failed(
                f"{endpoint.host}: family",
                f"{endpoint.host}, the host of {endpoint.what}, is {address} on {fold(bad)}; {node} has only {own}",
                at=Evidence("look-up", address, f"an address of {own}", f"getent ahosts {endpoint.host}", node),
                also=endpoint.claims,
                nodes=tuple(bad),
                remedy=f"Give {endpoint.host} an address of {own}, or {fold(bad)} one of {_family(address)}.",
            )
        elif good:
            yield passed(f"{endpoint.host}: family on {good} nodes")


def _family(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def _families(interfaces: Interfaces) -> set[str]:
    return {
        _family(address.address)
        for item in interfaces.interfaces
        for address in item.addresses
        if not is_loopback(address.address) and not is_link_local(address)
    }

"""Whether host names mean the same, and something others can dial, on every node."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed, Seen, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.demands import (
    Endpoint,
    backends,
    filter_of,
    filter_unresolved,
    fold,
    is_loopback,
    named,
    stand_ins,
    store_endpoints,
)
from preflight_checks.probes.interfaces import Interfaces, interfaces
from preflight_checks.probes.names import Lookup, resolve


def _asks_own_name(job: Job, fleet: Fleet) -> bool:
    names, _claims = backends(job)
    asks = not names or bool(names & {"gloo", "ps"}) or bool(_paddle(job))
    return len(fleet.nodes) > 1 and not stand_ins(fleet) and asks


def _paddle(job: Job) -> tuple[Launch, ...]:
    """The launches of Paddle that find the address of their node by its own name, because `--host` does not say it.

    paddle/distributed/launch/context/node.py: gethostbyname(getfqdn(gethostname())), whatever Gloo is told.
    """
    found = (launch for launch in job.launches if launch.launcher == "paddle")
    return tuple(launch for launch in found if not job.setting("node_address", launch.scope))


def _plan_own(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if not _asks_own_name(job, fleet):
        return
    names, claims = backends(job)
    for node in fleet.reached:
        required = bool(names) or bool(_paddle(job))
        yield Request(probe_name(resolve), node.name, {"name": ""}, because=claims, required=required)


def lookups(facts: Facts, *, own: bool) -> Iterator[Seen[Lookup]]:
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
    """A node's own name leads to an address that other nodes can dial.

    What it checks: the first address of the node's own host name that the node can bind, where Gloo, Paddle's launcher
    or a parameter server will publish it to its peers and no GLOO_SOCKET_IFNAME (or --host) says otherwise.

    Why it matters: Gloo tells its peers the address its own host name resolves to. Debian's installer maps
    that name to 127.0.1.1; the peers then dial themselves. Depending on the order of addresses the job is
    refused, hangs, or works by luck.

    Example: on node3 `getent hosts node3` prints `127.0.1.1 node3`.

    Fix: map the name to the node's network address in /etc/hosts (or DNS), or export
    GLOO_SOCKET_IFNAME with the interface to use.

    Known limits: asked outside a container; a container with an /etc/hosts of its own may differ.

    Evidence: PaddlePaddle/Paddle#37951, meta-pytorch/data#1142, aws-samples/aws-do-eks#69.
    """
    names, claims = backends(job)
    if not _asks_own_name(job, fleet):
        reason = (
            "the job has one node"
            if len(fleet.nodes) < 2
            else "all nodes are this machine"
            if stand_ins(fleet)
            else f"back end {fold(sorted(names))} does not use it"
        )
        yield not_applicable("own host names", reason)
        return
    paddle = _paddle(job)
    certain = bool(names) or bool(paddle)
    bad: dict[str, Lookup] = {}
    for seen in lookups(facts, own=True):
        gloo = filter_of(job, "GLOO_SOCKET_IFNAME", seen.node)
        if isinstance(seen.fact, Unavailable):
            yield unknown(seen.node, f"its own name could not be looked up: {seen.fact.reason}", required=certain)
        elif "ps" not in names and not paddle and (gloo is not None or filter_unresolved(job, "GLOO_SOCKET_IFNAME")):
            yield not_applicable(seen.node, "GLOO_SOCKET_IFNAME chooses the interface")
        elif _publishes_loopback(seen.fact.value):
            bad[seen.node] = seen.fact.value
        else:
            yield passed(seen.node)
    if bad:
        yield _own_name_finding(bad, (*claims, *paddle), certain=certain)


def _publishes_loopback(found: Lookup) -> bool:
    """Whether Gloo would publish loopback: the first address it can bind is one, or there is none to bind.

    torch (ProcessGroupGloo::createDefaultDevice) and Paddle fall back on loopback where no address of the own name
    belongs to the node; Gloo passes over addresses that it cannot bind (transport/tcp/device.cc).
    """
    if found.bound is not None:
        return not found.bound or is_loopback(found.bound)
    return not found.addresses or is_loopback(found.addresses[0])


def _own_name_finding(bad: dict[str, Lookup], claims: tuple[Claim | Launch, ...], *, certain: bool) -> Verdict:
    said = [f"{node}: {found.name} -> {_answer(found)}" for node, found in bad.items()]
    evidence = [
        Evidence("own name", _answer(found), "an address peers can dial", f"getent ahosts {found.name}", node)
        for node, found in bad.items()
    ]
    subject = fold(bad)
    return failed(
        "own host names",
        f"the own name of {subject} leads to no address others can dial ({'; '.join(said[:4])}); "
        "Gloo, Paddle's launcher and parameter servers would publish the loopback address",
        at=evidence[0],
        also=(*evidence[1:8], *claims),
        nodes=tuple(bad),
        remedy="Map the name to the node's network address in /etc/hosts or DNS on "
        f"{subject}, or export GLOO_SOCKET_IFNAME=<interface> on every node (for Paddle, give --host).",
        severity=None if certain else Severity.WARNING,
        confidence=None if certain else Confidence.MEDIUM,
    )


def _answer(found: Lookup) -> str:
    if found.addresses and found.bound == "":
        return f"{', '.join(found.addresses[:3])}, not an address of this node"
    if found.addresses:
        return ", ".join(found.addresses[:3])
    if found.problem == "timeout":
        return f"no answer after {found.took_s:.1f} s"
    return f"does not resolve ({found.detail})"


def named_stores(job: Job, fleet: Fleet) -> tuple[Endpoint, ...]:
    if len(fleet.nodes) < 2 or stand_ins(fleet):
        return ()
    return tuple(item for item in store_endpoints(job) if item.host and not is_loopback(item.host))


def plan_master(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for endpoint in named_stores(job, fleet):
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

    Why it matters: a node that cannot resolve the master repeats a warning and hangs with all the others; a node
    that resolves it to something else dials a stranger.

    Example: MASTER_ADDR=node0 is in /etc/hosts of three nodes and missing on the fourth.

    Fix: make the name resolve alike everywhere, or give the address itself.

    Known limits: an address that no node has may be a virtual or public one that is forwarded; this is a warning,
    and the connection test decides.

    Evidence: pytorch/pytorch#73656, pytorch/pytorch#76367, pytorch/pytorch#79388.
    """
    stores = named_stores(job, fleet)
    if not stores:
        yield not_applicable("the rendezvous host", "no host is spelled, or all nodes are one machine")
    for endpoint in stores:
        yield from _judge_master(endpoint, fleet, facts)


def _judge_master(endpoint: Endpoint, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    host = endpoint.host
    listening = named(fleet, host) if endpoint.kind == "rendezvous" else None
    listening = listening or fleet.master
    have = facts.observed(interfaces)
    good: list[str] = []
    dead: dict[str, Lookup] = {}
    to_self: dict[str, Lookup] = {}
    elsewhere: dict[str, tuple[Lookup, str]] = {}
    for seen in lookups(facts, own=False):
        if seen.params.get("name") != host:
            continue
        if isinstance(seen.fact, Unavailable):
            yield unknown(f"{host} on {seen.node}", f"could not be looked up: {seen.fact.reason}", required=True)
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
            holder = _holder(found.addresses[0], have)
            # A c10d rendezvous may be held by any node of the job, not only by that of rank 0.
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
            at=_seen(host, dead),
            also=claims,
            nodes=tuple(dead),
            remedy=f"Add {host} to DNS or /etc/hosts on {fold(dead)}, or give an address all nodes can reach.",
        )
    if to_self:
        yield failed(
            f"{host}: loopback",
            f"{host}, the host of {at}, resolves to {_answer(next(iter(to_self.values())))} on {fold(to_self)}, "
            "which would dial itself",
            at=_seen(host, to_self),
            also=claims,
            nodes=tuple(to_self),
            remedy=f"Remove the loopback line for {host} from /etc/hosts on {fold(to_self)}.",
        )
    for holder in sorted({holder for _found, holder in elsewhere.values()}):
        nodes = {node: found for node, (found, h) in elsewhere.items() if h == holder}
        yield _not_the_listener(endpoint, nodes, holder, listening.name if listening else "node 0")
    if good and not (dead or to_self or elsewhere):
        yield passed(f"{host}: resolves on {len(good)} nodes")


def _holder(address: str, have: dict[str, Interfaces]) -> str:
    """The node that has `address`; empty when none has, `?` when some node's interfaces are not known."""
    for node, facts in have.items():
        if any(address == a.address for item in facts.interfaces for a in item.addresses):
            return node
    return "" if have else "?"


def _not_the_listener(endpoint: Endpoint, nodes: dict[str, Lookup], holder: str, listening: str) -> Verdict:
    some = next(iter(nodes.values()))
    whose = f"an address of {holder}" if holder else "an address of none of the job's nodes"
    return failed(
        f"{endpoint.host}: owner",
        f"{endpoint.host}, the host of {endpoint.what}, resolves to {_answer(some)} on {fold(nodes)}: that is "
        f"{whose}; rank 0 listens on {listening}",
        at=_seen(endpoint.host, nodes),
        also=endpoint.claims,
        nodes=tuple(nodes),
        remedy=f"Let {endpoint.host} be an address of {listening}, or put its owner first in the host list.",
        severity=None if holder else Severity.WARNING,
        confidence=None if holder else Confidence.MEDIUM,
    )


def misnamed(facts: Facts) -> set[tuple[str, str]]:
    """(node, host) where the host is known to lead nowhere or to the node itself; NAM002 says so already."""
    return {
        (seen.node, seen.fact.value.name)
        for seen in lookups(facts, own=False)
        if isinstance(seen.fact, Observed) and _publishes_loopback(seen.fact.value)
    }


def _seen(host: str, found: dict[str, Lookup]) -> Evidence:
    node, some = next(iter(found.items()))
    return Evidence("look-up", _answer(some), "an address of the listening node", f"getent ahosts {host}", node)

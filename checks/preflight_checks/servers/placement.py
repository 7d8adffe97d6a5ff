"""Checks the placement of parameter servers: on several nodes, evenly, on reserved ports."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job, is_whole_number
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.context.node_environment import plan_logins
from preflight_checks.plans import combined, missing_facts, on_every_node
from preflight_checks.probes.server_place import server_place
from preflight_checks.requirements import Endpoint, fold, is_ps, nodes_share_machine, server_endpoints
from preflight_checks.servers.layout import Layout, layout, layout_claims

COST = "looks up the hosts of the servers, 3 seconds at most, and reads four files of /proc"


def _applies(job: Job, fleet: Fleet) -> bool:
    return is_ps(job) and len(fleet.nodes) > 1 and not nodes_share_machine(fleet)


def _endpoint_claims(job: Job) -> tuple[Claim, ...]:
    return tuple(dict.fromkeys(claim for endpoint in server_endpoints(job) for claim in endpoint.claims))


plan_placement = combined(
    plan_logins,
    on_every_node(
        server_place,
        params=lambda job: {"hosts": sorted({endpoint.host for endpoint in server_endpoints(job)})},
        because=_endpoint_claims,
    ),
    when=_applies,
)


def known_layout(job: Job, fleet: Fleet, facts: Facts, subject: str) -> Iterator[Layout | Verdict]:
    """The layout, or the verdicts if there is none to judge."""
    if not _applies(job, fleet):
        yield not_applicable(subject, "the job has no parameter servers, or one node")
        return
    blind = tuple(missing_facts(facts, server_place, subject))
    yield from blind
    if not facts.observed(server_place):
        if not blind:
            yield unknown(subject, "no node reported its addresses")
        return
    found = layout(job, fleet, facts)
    if not found.servers:
        yield unknown(subject, "neither the files nor the environments of all nodes list the servers")
    else:
        yield found


def _as_written(endpoints: list[Endpoint]) -> str:
    return fold((f"{endpoint.host}:{endpoint.port}" for endpoint in endpoints), 4)


#: A check that judges where parameter servers run.
placement_check = functools.partial(check, plan=plan_placement, cost=COST)


@placement_check(
    "PLC001",
    "servers-on-few-nodes",
    severity=Severity.WARNING,
    evidence=("tensorflow/tensorflow#3762", "PaddlePaddle/Paddle#10398"),
)
def servers_on_few_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Parameter servers are spread over the nodes, as the nodes' own addresses show.

    What it checks: the host of each server is looked up on every node, and belongs to the node that has the address.
    Two or more servers are not all on one node while trainers are on several, and no server node has two servers more
    than another.

    Why it matters: all parameters of all trainers go through one network card and one memory, so further servers add
    nothing; the node with more servers than the others sets the speed.

    Example: ps-a and ps-b are two names of one machine.

    Fix: give the servers addresses on different nodes, one or equally many on each.

    Known limits: if the files name one host for all servers, PPS007 reports it without any node.
    """
    for item in known_layout(job, fleet, facts, "places of servers"):
        if isinstance(item, Verdict):
            yield item
            continue
        yield from _judge_spread(item)


def _judge_spread(found: Layout) -> Iterator[Verdict]:
    for endpoint in found.unplaced:
        yield unknown(f"{endpoint.what} {endpoint.host}", "its address belongs to no node, or to several")
    held = found.by_node(found.servers)
    trainers = found.by_node(found.trainers)
    hosts = {endpoint.host for endpoint in found.servers}
    if sum(len(own) for own in held.values()) < len(found.servers):
        return
    if len(found.servers) > 1 and len(held) == 1 and len(trainers) > 1:
        (node, own), *_ = held.items()
        if len(hosts) > 1 or not found.stated:
            yield failed(
                "all servers on one node",
                f"all {len(own)} servers ({_as_written(own)}) are on {node}, while the trainers are on "
                f"{len(trainers)} nodes",
                at=Evidence(
                    "addresses", f"{_as_written(own)} on {node}", "several nodes", f"getent hosts {own[0].host}", node
                ),
                also=layout_claims(found),
                remedy="Give the servers addresses on different nodes.",
            )
            return
    counts = {node: len(own) for node, own in held.items()}
    most, fewest = max(counts.values()), min(counts.values())
    if len(counts) > 1 and most - fewest > 1:
        full = tuple(node for node, count in counts.items() if count == most)
        yield failed(
            f"servers on {fold(full)}",
            f"servers are spread unevenly: {fold(f'{node}: {count}' for node, count in counts.items())}",
            at=Evidence(
                "addresses",
                f"{most} servers on {full[0]}",
                f"about {len(found.servers) / len(counts):.1f}",
                "",
                full[0],
            ),
            also=layout_claims(found),
            nodes=full,
            remedy=f"Move servers from {fold(full)} to the others.",
            confidence=Confidence.MEDIUM,
        )
    else:
        yield passed(f"{len(found.servers)} servers on {len(counts)} nodes")


@placement_check(
    "PLC002",
    "servers-beside-some-trainers",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    evidence=("tensorflow/tensorflow#3762", "PaddlePaddle/Paddle#30524"),
)
def servers_beside_some_trainers(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Servers share their nodes with all trainers, or with none.

    What it checks: which nodes run a server and a trainer, by the nodes' own addresses.

    Why it matters: a trainer that shares cores and network with a server is slower than the others, and in synchronous
    training all wait for it.

    Example: two servers on two of eight trainer nodes.

    Fix: put servers on separate nodes, or one on every node.

    Known limits: information only; with spare cores it costs little.
    """
    for item in known_layout(job, fleet, facts, "neighbours of servers"):
        if isinstance(item, Verdict):
            yield item
            continue
        servers, trainers = item.by_node(item.servers), item.by_node(item.trainers)
        both = tuple(node for node in trainers if node in servers)
        if both and len(both) < len(trainers):
            yield failed(
                f"servers beside trainers on {fold(both)}",
                f"trainers on {fold(both)} share their node with servers, and those on the other "
                f"{len(trainers) - len(both)} nodes do not",
                at=Evidence("addresses", f"server and trainer on {both[0]}", "one of them", "", both[0]),
                also=layout_claims(item),
                nodes=both,
                remedy="Put the servers on separate nodes, or one on every node.",
            )
        else:
            yield passed("neighbours of servers")


@placement_check(
    "PLC006",
    "server-port-ephemeral",
    severity=Severity.INFO,
    confidence=Confidence.HIGH,
    evidence=(
        ("the kernel's ip-sysctl documentation", "https://docs.kernel.org/networking/ip-sysctl.html#ip-variables"),
        "PaddlePaddle/Paddle#16138",
    ),
)
def server_port_ephemeral(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Servers and trainers listen on ports that the kernel gives to no other connection.

    What it checks: the ports of parameter servers and trainers compared with the node's range of ephemeral ports and
    the ports reserved in it.

    Why it matters: any outgoing connection of the node may get such a port; then the server cannot listen, perhaps
    once in a hundred starts.

    Example: a server on port 36001 with the range 32768 to 60999.

    Fix: choose ports below the range, or reserve them with net.ipv4.ip_local_reserved_ports.

    Known limits: how likely it is depends on what else runs on the node.
    """
    for item in known_layout(job, fleet, facts, "ports of servers"):
        if isinstance(item, Verdict):
            yield item
            continue
        within: dict[tuple[int, int], dict[str, list[Endpoint]]] = {}
        has_finding = False
        for node, own in item.by_node((*item.servers, *item.trainers)).items():
            place = facts.observed(server_place).get(node)
            if place is None or place.first_ephemeral_port is None or place.last_ephemeral_port is None:
                yield unknown(f"ports of {node}", "its range of ephemeral ports is unknown")
                continue
            has_finding = True
            first, last = place.first_ephemeral_port, place.last_ephemeral_port
            used = [e for e in own if first <= e.port <= last and not _reserved(place.reserved_ports, e.port)]
            if used:
                within.setdefault((first, last), {})[node] = used
        for (first, last), by_node in within.items():
            ports = sorted({endpoint.port for own in by_node.values() for endpoint in own})
            node = next(iter(by_node))
            yield failed(
                f"ports of {fold(by_node)}",
                f"{'ports' if len(ports) > 1 else 'port'} {fold(map(str, ports))} of servers and trainers on "
                f"{fold(by_node)} {'lie' if len(ports) > 1 else 'lies'} in the range that the kernel uses for "
                f"outgoing connections ({first} to {last})",
                at=Evidence(
                    "ephemeral ports", f"{first}-{last}", "a port outside", "sysctl net.ipv4.ip_local_port_range", node
                ),
                also=layout_claims(item),
                nodes=tuple(by_node),
                remedy=f"Choose ports below {first}, or reserve them on those nodes: `sysctl "
                f"net.ipv4.ip_local_reserved_ports={','.join(map(str, ports[:8]))}`.",
                run=(
                    root_command(
                        "sysctl", "-w", f"net.ipv4.ip_local_reserved_ports={','.join(map(str, ports))}", on=by_node
                    ),
                ),
            )
        if has_finding and not within:
            yield passed("ports of servers")


def _reserved(ranges: str, port: int) -> bool:
    """Whether a port is in the kernel's list of reserved ones: `8080,9148-9150`."""
    for part in ranges.split(","):
        first, _, last = part.strip().partition("-")
        if is_whole_number(first) and int(first) <= port <= int(last if is_whole_number(last) else first):
            return True
    return False

"""The nodes of a parameter-server job's processes, and checks of their placement: several nodes, even, free ports."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight._util.hostnames import split_endpoint
from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job, Known, is_whole_number
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.comparison import split
from preflight_checks.context.node_environment import bare, plan_logins
from preflight_checks.plans import combined, missing_facts, on_every_node
from preflight_checks.probes.server_place import ResolvedHost, ServerPlace, server_place
from preflight_checks.requirements import (
    Endpoint,
    fold,
    is_ps,
    known_int,
    named,
    nodes_share_machine,
    scopes,
    server_endpoints,
)
from reference_trainer.ps.partition import FLOAT_BYTES, MIN_BLOCK, OPTIMIZER_SLOTS, bytes_held, product

#: Kinds of processes of a parameter-server run.
SERVER, WORKER = "server", "worker"
_VARIABLES = {"server": "PADDLE_PSERVERS_IP_PORT_LIST", "trainer": "PADDLE_TRAINER_ENDPOINTS"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Servers and trainers, and their nodes; `unplaced` are endpoints whose host belongs to no known node.

    `stated` is False if the endpoints come from the nodes' environment instead of the job's files.
    """

    servers: tuple[Endpoint, ...]
    trainers: tuple[Endpoint, ...]
    node_of: Mapping[Endpoint, str]
    stated: bool

    @property
    def unplaced(self) -> tuple[Endpoint, ...]:
        """Endpoints on no known node."""
        return tuple(endpoint for endpoint in (*self.servers, *self.trainers) if endpoint not in self.node_of)

    def by_node(self, endpoints: Sequence[Endpoint]) -> dict[str, list[Endpoint]]:
        """Endpoints grouped by node."""
        return grouped((self.node_of[endpoint], endpoint) for endpoint in endpoints if endpoint in self.node_of)


def endpoints_of(job: Job, facts: Facts) -> tuple[tuple[Endpoint, ...], bool]:
    """Servers and trainers that the files list, else those that all nodes' environments agree on."""
    stated = server_endpoints(job)
    if stated or not is_ps(job):
        return stated, True
    found: list[Endpoint] = []
    for kind, variable in _VARIABLES.items():
        lists = split({n: seen.variables[variable] for n, seen in bare(facts).items() if variable in seen.variables})
        if lists is None or lists.odd:
            continue
        for index, spelled in enumerate(part.strip() for part in lists.common.split(",")):
            parts = split_endpoint(spelled)
            if parts is not None and parts[1]:
                what = f"parameter server {index}" if kind == "server" else f"trainer {index}"
                found.append(Endpoint(what, kind, parts[0], parts[1]))
    return tuple(found), False


def layout(job: Job, fleet: Fleet, facts: Facts) -> Layout:
    """The placement of servers and trainers, by the nodes' own addresses, or by name if those are unknown."""
    endpoints, stated = endpoints_of(job, facts)
    seen = {node: {host.host: host for host in place.hosts} for node, place in facts.observed(server_place).items()}
    node_of: dict[Endpoint, str] = {}
    for endpoint in endpoints:
        here = [node for node, hosts in seen.items() if endpoint.host in hosts and hosts[endpoint.host].local]
        by_name = named(fleet, endpoint.host)
        if len(here) == 1:
            node_of[endpoint] = here[0]
        elif not here and by_name is not None and by_name.name not in seen:
            node_of[endpoint] = by_name.name
    servers = tuple(endpoint for endpoint in endpoints if endpoint.kind == "server")
    return Layout(servers, tuple(endpoint for endpoint in endpoints if endpoint.kind == "trainer"), node_of, stated)


def speed_mbps(place: ServerPlace, endpoint: Endpoint) -> int | None:
    """The speed of the interface with the endpoint's address."""
    found: ResolvedHost | None = next((host for host in place.hosts if host.host == endpoint.host), None)
    return found.speed_mbps if found is not None else None


@dataclass(frozen=True, slots=True)
class Shares:
    """The bytes that each server will hold, and those that every trainer exchanges with it per step, with claims."""

    held: tuple[int, ...]
    exchanged_bytes: tuple[int, ...]
    claims: tuple[Claim, ...]
    slots: int


@dataclass(frozen=True, slots=True)
class Parameters:
    """The sizes of the job's parameters: shapes of dense ones, rows and width of tables that are divided by row.

    `claims` names the largest one.
    """

    dense: tuple[tuple[int, ...], ...]
    tables: tuple[tuple[int, int], ...]
    claims: tuple[Claim, ...]


def parameters_of(job: Job) -> Parameters | None:
    """The parameters that the files state, or None if they do not state the size of each.

    Tables that grow while training start empty and are left out.
    """
    stated = (*job.about("embedding_shape"), *job.about("parameter_shape"))
    known = [claim for claim in stated if isinstance(claim.value, Known)]
    if not known or len(known) < len(stated):
        return None
    growing = {r.span for c in job.about("embedding_sparse") if "sparse_embedding" in c.spelling for r in c.because}
    sparse = {r.span for c in job.about("embedding_sparse") if True in c.alternatives for r in c.because}
    dense: list[tuple[int, ...]] = []
    tables: list[tuple[int, int]] = []
    for claim in known:
        shape = _shape(claim)
        if shape is None or claim.span in growing:
            continue
        if claim.span in sparse and len(shape) == 2:
            tables.append((shape[0], shape[1]))
        else:
            dense.append(shape)
    if not dense and not tables:
        return None
    largest = max(known, key=lambda claim: product(_shape(claim) or (0,)))
    return Parameters(tuple(dense), tuple(tables), (largest,))


def shares(job: Job, servers: int) -> Shares | None:
    """What the servers hold, if the files state the sizes of parameters, else None.

    Dense parameters are partitioned as the job configures (Paddle's slice_var_up, min_block_size, split_method); tables
    with sparse gradients are divided by row. What a step exchanges is the dense part: of a table only the rows of a
    batch travel, and their number is not known.
    """
    stated = parameters_of(job)
    if servers < 1 or stated is None:
        return None
    policy, least = assignment_policy(job)
    optimizers = {str(value) for claim in job.about("optimizer") for value in claim.alternatives}
    slots = max((OPTIMIZER_SLOTS.get(name, 0) for name in optimizers), default=0)
    held = bytes_held(stated.dense, stated.tables, servers, min_elements=least, policy=policy, slots=slots)
    exchanged = bytes_held(stated.dense, (), servers, min_elements=least, policy=policy)
    return Shares(tuple(held), tuple(exchanged), stated.claims, slots)


def assignment_policy(job: Job) -> tuple[str, int | None]:
    """The policy that assigns blocks to servers, and the smallest block (None if parameters are not split)."""
    policy = {"RoundRobin": "round-robin", "HashName": "hash"}.get(_text(job, "split_method"), "round-robin")
    return policy, _smallest_block(job)


def _smallest_block(job: Job) -> int | None:
    """The smallest block, or None if parameters are not split."""
    if any(False in claim.alternatives for claim in job.about("slice_var_up")):
        return None
    return next((value for scope in scopes(job) if (value := known_int(job, "min_block_size", scope))), MIN_BLOCK)


def _text(job: Job, quantity: str) -> str:
    return next((str(value) for claim in job.about(quantity) for value in claim.alternatives), "")


def _shape(claim: Claim) -> tuple[int, ...] | None:
    """The shape of a parameter; None if it is not positive or larger than any machine."""
    for value in claim.alternatives:
        if isinstance(value, tuple) and all(is_whole_number(str(item)) for item in value):
            shape = tuple(int(str(item)) for item in value)
            return shape if 0 < product(shape) * FLOAT_BYTES < 2**60 else None
    return None


def layout_claims(layout: Layout) -> tuple[Claim, ...]:
    """The claims that name the servers."""
    return tuple(dict.fromkeys(claim for endpoint in layout.servers for claim in endpoint.claims))


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

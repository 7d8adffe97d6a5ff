"""Checks of parameter servers: how they are distributed over the nodes, and whether memory, cores and network
suffice.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from preflight._util.hostnames import split_endpoint
from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job, Known, is_whole_number
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.context.environment import bare_environments, plan_logins
from preflight_checks.plans import Gate, combine_plans, gated_by, known_facts, missing_facts, on_every_node, size, split
from preflight_checks.probes.environment import ResolvedHost, ServerPlace, server_place
from preflight_checks.probes.interfaces import parse_port_list
from preflight_checks.probes.packages import packages
from preflight_checks.requirements import (
    Endpoint,
    find_node,
    fold,
    has_parameter_servers,
    known_int,
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
    """Servers and trainers by node; `unplaced` have an unknown host; if not `stated`, they are from the nodes'
    environment.
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
        """Return endpoints grouped by node."""
        return grouped((self.node_of[endpoint], endpoint) for endpoint in endpoints if endpoint in self.node_of)


def endpoints_of(job: Job, facts: Facts) -> tuple[tuple[Endpoint, ...], bool]:
    """Return the servers and trainers that the files list, or else those on which the environments of all nodes
    agree; and whether they come from the files.
    """
    stated = server_endpoints(job)
    if stated or not has_parameter_servers(job):
        return stated, True
    endpoints: list[Endpoint] = []
    for kind, variable in _VARIABLES.items():
        lists = split(
            {n: seen.variables[variable] for n, seen in bare_environments(facts).items() if variable in seen.variables}
        )
        if lists is None or lists.odd:
            continue
        for index, spelled in enumerate(part.strip() for part in lists.common.split(",")):
            parts = split_endpoint(spelled)
            if parts is not None and parts[1]:
                what = f"parameter server {index}" if kind == "server" else f"trainer {index}"
                endpoints.append(Endpoint(what, kind, parts[0], parts[1]))
    return tuple(endpoints), False


def layout(job: Job, fleet: Fleet, facts: Facts) -> Layout:
    """Return the placement of servers and trainers, by the nodes' own addresses, or by name if these are unknown."""
    endpoints, are_stated = endpoints_of(job, facts)
    seen = {node: {host.host: host for host in place.hosts} for node, place in facts.observed(server_place).items()}
    node_of: dict[Endpoint, str] = {}
    for endpoint in endpoints:
        here = [node for node, hosts in seen.items() if endpoint.host in hosts and hosts[endpoint.host].local]
        by_name = find_node(fleet, endpoint.host)
        if len(here) == 1:
            node_of[endpoint] = here[0]
        elif not here and by_name is not None and by_name.name not in seen:
            node_of[endpoint] = by_name.name
    servers = tuple(endpoint for endpoint in endpoints if endpoint.kind == "server")
    return Layout(servers, tuple(endpoint for endpoint in endpoints if endpoint.kind == "trainer"), node_of, are_stated)


def speed_mbps(place: ServerPlace, endpoint: Endpoint) -> int | None:
    """Return the speed of the interface with the endpoint's address."""
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
    """The parameters' sizes: shapes of dense parameters, rows and width of tables, and the claim about the largest."""

    dense: tuple[tuple[int, ...], ...]
    tables: tuple[tuple[int, int], ...]
    claims: tuple[Claim, ...]


def parameters_of(job: Job) -> Parameters | None:
    """Return the parameters if the files give all sizes, otherwise None. Growing tables start empty and are left
    out.
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
    """Return the bytes that the servers will hold if the files give the parameter sizes, otherwise None.

    Dense parameters are partitioned as the job configures (Paddle's slice_var_up, min_block_size, split_method); tables
    with sparse gradients are divided by row. Only the dense part counts as exchanged per step: of tables, a step moves
    only the rows in its batch, whose number is unknown.
    """
    parameters = parameters_of(job)
    if servers < 1 or parameters is None:
        return None
    policy, least = assignment_policy(job)
    optimizers = {str(value) for claim in job.about("optimizer") for value in claim.alternatives}
    slots = max((OPTIMIZER_SLOTS.get(name, 0) for name in optimizers), default=0)
    held = bytes_held(parameters.dense, parameters.tables, servers, min_elements=least, policy=policy, slots=slots)
    exchanged = bytes_held(parameters.dense, (), servers, min_elements=least, policy=policy)
    return Shares(tuple(held), tuple(exchanged), parameters.claims, slots)


def assignment_policy(job: Job) -> tuple[str, int | None]:
    """Return the policy that assigns blocks to servers, and the smallest block (None if parameters are not split)."""
    policy = {"RoundRobin": "round-robin", "HashName": "hash"}.get(_text(job, "split_method"), "round-robin")
    return policy, _smallest_block(job)


def _smallest_block(job: Job) -> int | None:
    """Return the smallest block; None if parameters are not split."""
    if any(False in claim.alternatives for claim in job.about("slice_var_up")):
        return None
    return next((value for scope in scopes(job) if (value := known_int(job, "min_block_size", scope))), MIN_BLOCK)


def _text(job: Job, quantity: str) -> str:
    return next((str(value) for claim in job.about(quantity) for value in claim.alternatives), "")


def _shape(claim: Claim) -> tuple[int, ...] | None:
    """Return the shape of a parameter; None if it is not positive or exceeds the memory of any machine."""
    for value in claim.alternatives:
        if isinstance(value, tuple) and all(is_whole_number(str(item)) for item in value):
            shape = tuple(int(str(item)) for item in value)
            return shape if 0 < product(shape) * FLOAT_BYTES < 2**60 else None
    return None


def layout_claims(layout: Layout) -> tuple[Claim, ...]:
    """Return the claims that name the servers."""
    return tuple(dict.fromkeys(claim for endpoint in layout.servers for claim in endpoint.claims))


def _applies(job: Job, fleet: Fleet) -> bool:
    return has_parameter_servers(job) and len(fleet.nodes) > 1 and not nodes_share_machine(fleet)


def _endpoint_claims(job: Job) -> tuple[Claim, ...]:
    return tuple(dict.fromkeys(claim for endpoint in server_endpoints(job) for claim in endpoint.claims))


plan_placement = combine_plans(
    plan_logins,
    on_every_node(
        server_place,
        params=lambda job: {"hosts": sorted({endpoint.host for endpoint in server_endpoints(job)})},
        because=_endpoint_claims,
    ),
    when=_applies,
)


def known_layout(subject: str) -> Gate[Layout]:
    """Return the layout; if it is unknown, yield the verdicts that replace the check."""

    def gate(job: Job, fleet: Fleet, facts: Facts) -> Generator[Verdict, None, Layout | None]:
        if not _applies(job, fleet):
            yield not_applicable(subject, "the job has no parameter servers, or one node")
            return None
        blind = tuple(missing_facts(facts, server_place, subject))
        yield from blind
        if not facts.observed(server_place):
            if not blind:
                yield unknown(subject, "no node reported its addresses")
            return None
        found = layout(job, fleet, facts)
        if not found.servers:
            yield unknown(subject, "neither the files nor the environments of all nodes list the servers")
            return None
        return found

    return gate


def _as_written(endpoints: list[Endpoint]) -> str:
    return fold((f"{endpoint.host}:{endpoint.port}" for endpoint in endpoints), 4)


#: A check that judges where parameter servers run.
placement_check = functools.partial(check, plan=plan_placement)


@placement_check("PLC001", "servers-on-few-nodes", severity=Severity.WARNING)
@gated_by(known_layout("server placement"))
def servers_on_few_nodes(job: Job, fleet: Fleet, facts: Facts, placement: Layout) -> Iterator[Verdict]:
    """Parameter servers are spread over the nodes, according to the nodes' own addresses.

    What it checks: each server's host is resolved on every node, and belongs to the node that has the address. If
    trainers are on several nodes, two or more servers are not all on one node, and the numbers of servers per server
    node differ by at most one.

    Why it matters: all parameters of all trainers go through one network card and one memory, so more servers do not
    help; the node with more servers than the others sets the speed.

    Example: ps-a and ps-b are two names of one machine.

    Fix: give the servers addresses on different nodes, the same number on each.

    Known limits: if the files name one host for all servers, PPS007 reports this without examining nodes.
    """
    for endpoint in placement.unplaced:
        yield unknown(f"{endpoint.what} {endpoint.host}", "its address belongs to no node or to several nodes")
    servers_by_node = placement.by_node(placement.servers)
    trainers = placement.by_node(placement.trainers)
    hosts = {endpoint.host for endpoint in placement.servers}
    if sum(len(own) for own in servers_by_node.values()) < len(placement.servers):
        return
    if len(placement.servers) > 1 and len(servers_by_node) == 1 and len(trainers) > 1:
        (node, own), *_ = servers_by_node.items()
        if len(hosts) > 1 or not placement.stated:
            yield failed(
                "all servers on one node",
                f"all {len(own)} servers ({_as_written(own)}) are on {node}, but the trainers are on {len(trainers)} "
                "nodes",
                at=Evidence(
                    "addresses", f"{_as_written(own)} on {node}", "several nodes", f"getent hosts {own[0].host}", node
                ),
                also=layout_claims(placement),
                remedy="Use server addresses on different nodes.",
            )
            return
    counts = {node: len(own) for node, own in servers_by_node.items()}
    most, fewest = max(counts.values()), min(counts.values())
    if len(counts) > 1 and most - fewest > 1:
        full = tuple(node for node, count in counts.items() if count == most)
        yield failed(
            f"servers on {fold(full)}",
            f"servers are spread unevenly: {fold(f'{node}: {count}' for node, count in counts.items())}",
            at=Evidence(
                "addresses",
                f"{most} servers on {full[0]}",
                f"about {len(placement.servers) / len(counts):.1f}",
                "",
                full[0],
            ),
            also=layout_claims(placement),
            nodes=full,
            remedy=f"Move servers from {fold(full)} to other nodes.",
            confidence=Confidence.MEDIUM,
        )
    else:
        yield passed(f"{len(placement.servers)} servers on {len(counts)} nodes")


@placement_check("PLC002", "servers-beside-some-trainers", severity=Severity.INFO, confidence=Confidence.MEDIUM)
@gated_by(known_layout("servers next to trainers"))
def servers_beside_some_trainers(job: Job, fleet: Fleet, facts: Facts, placement: Layout) -> Iterator[Verdict]:
    """Servers share their nodes with all trainers, or with none.

    What it checks: which nodes run a server and a trainer, by the nodes' own addresses.

    Why it matters: a trainer that shares cores and network with a server is slower than the others, and in synchronous
    training all wait for it.

    Example: two servers on two of eight trainer nodes.

    Fix: put servers on separate nodes, or one on every node.

    Known limits: informational only; with spare cores it costs little.
    """
    servers, trainers = placement.by_node(placement.servers), placement.by_node(placement.trainers)
    both = tuple(node for node in trainers if node in servers)
    if both and len(both) < len(trainers):
        yield failed(
            f"servers and trainers on {fold(both)}",
            f"trainers on {fold(both)} share their node with servers, but those on the other "
            f"{len(trainers) - len(both)} nodes do not",
            at=Evidence("addresses", f"server and trainer on {both[0]}", "one of them", "", both[0]),
            also=layout_claims(placement),
            nodes=both,
            remedy="Put the servers on separate nodes, or one on every node.",
        )
    else:
        yield passed("servers next to trainers")


@placement_check("PLC006", "server-port-ephemeral", severity=Severity.INFO, confidence=Confidence.HIGH)
@gated_by(known_layout("server ports"))
def server_port_ephemeral(job: Job, fleet: Fleet, facts: Facts, placement: Layout) -> Iterator[Verdict]:
    """Servers and trainers listen on ports that the kernel does not use for outgoing connections.

    What it checks: the ports of parameter servers and trainers compared with the node's ephemeral port range and the
    reserved ports in it.

    Why it matters: any outgoing connection of the node may get such a port; then the server cannot listen, perhaps
    once in a hundred starts.

    Example: a server on port 36001 with the range 32768 to 60999.

    Fix: choose ports below the range, or reserve them with net.ipv4.ip_local_reserved_ports.

    Known limits: the likelihood depends on the other programs on the node.
    """
    endpoints_by_range: dict[tuple[int, int], dict[str, list[Endpoint]]] = {}
    has_finding = False
    for node, own in placement.by_node((*placement.servers, *placement.trainers)).items():
        place = facts.observed(server_place).get(node)
        if place is None or place.first_ephemeral_port is None or place.last_ephemeral_port is None:
            yield unknown(f"ports of {node}", "its ephemeral port range is unknown")
            continue
        has_finding = True
        first, last = place.first_ephemeral_port, place.last_ephemeral_port
        taken = set(parse_port_list(place.reserved_ports))
        used = [e for e in own if first <= e.port <= last and e.port not in taken]
        if used:
            endpoints_by_range.setdefault((first, last), {})[node] = used
    for (first, last), by_node in endpoints_by_range.items():
        ports = sorted({endpoint.port for own in by_node.values() for endpoint in own})
        node = next(iter(by_node))
        yield failed(
            f"ports of {fold(by_node)}",
            f"{'ports' if len(ports) > 1 else 'port'} {fold(map(str, ports))} of servers and trainers on "
            f"{fold(by_node)} {'are' if len(ports) > 1 else 'is'} in the range that the kernel uses for "
            f"outgoing connections ({first} to {last})",
            at=Evidence(
                "ephemeral ports", f"{first}-{last}", "a port outside", "sysctl net.ipv4.ip_local_port_range", node
            ),
            also=layout_claims(placement),
            nodes=tuple(by_node),
            remedy=f"Choose ports below {first}, or reserve them on those nodes: `sysctl "
            f"net.ipv4.ip_local_reserved_ports={','.join(map(str, ports[:8]))}`.",
            run=(
                root_command(
                    "sysctl", "-w", f"net.ipv4.ip_local_reserved_ports={','.join(map(str, ports))}", on=by_node
                ),
            ),
        )
    if has_finding and not endpoints_by_range:
        yield passed("server ports")


#: A synchronous step that takes this long just to exchange dense parameters is too slow.
SLOW_STEP_S = 1.0


@placement_check("PLC003", "server-memory-too-small", severity=Severity.ERROR)
@gated_by(known_layout("server memory"))
def server_memory_too_small(job: Job, fleet: Fleet, facts: Facts, placement: Layout) -> Iterator[Verdict]:
    """The servers' nodes have enough memory for the parameters.

    What it checks: dense parameters, partitioned as the job configures, and tables by rows, each with optimizer states,
    summed over the servers on a node and compared with the memory of that node or its control group.

    Why it matters: a server allocates its share when the first parameters arrive, and fails with "bad alloc" after the
    whole job has been placed and started.

    Example: a table of 1e9 rows x 64 with Adam is 715 GiB; four servers on nodes of 64 GiB.

    Fix: more servers on more nodes, nodes with more memory, or a table that stores only the rows in use.

    Known limits: sizes that the script does not state and trainers on a server's node are not counted. Exceeding the
    total memory is an error, exceeding the free memory a warning.
    """
    needs = shares(job, len(placement.servers))
    if needs is None:
        yield not_applicable("server memory", "the files do not give the parameter sizes")
        return
    missing: dict[bool, dict[str, tuple[int, int]]] = {}
    for node, own in placement.by_node(placement.servers).items():
        place = facts.observed(server_place).get(node)
        need = sum(needs.held[placement.servers.index(endpoint)] for endpoint in own)
        if place is None or place.memory_bytes is None:
            yield unknown(f"memory of {node}", "it is unknown")
        elif need > place.memory_bytes:
            missing.setdefault(True, {})[node] = (need, place.memory_bytes)
        elif place.memory_free_bytes is not None and need > place.memory_free_bytes:
            missing.setdefault(False, {})[node] = (need, place.memory_free_bytes)
    for certain, nodes in missing.items():
        yield _memory_finding(placement, needs, nodes, certain=certain)
    if not missing:
        yield passed("server memory")


def _memory_finding(placement: Layout, needs: Shares, nodes: dict[str, tuple[int, int]], *, certain: bool) -> Verdict:
    node, (need, has) = next(iter(nodes.items()))
    kept = f", with {needs.slots} optimizer values for each parameter" if needs.slots else ""
    free = "" if certain else " free"
    return failed(
        f"memory of {fold(nodes)}",
        f"the servers on {fold(nodes)} will hold {size(need)} per node{kept}, but {node} has only {size(has)}{free}",
        at=Evidence("memory", size(has), size(need), "free -h", node),
        also=(*needs.claims, *layout_claims(placement)),
        nodes=tuple(nodes),
        remedy="Spread the servers over more nodes, or use a table that stores only the rows in use.",
        certain=certain,
    )


@placement_check("PLC004", "server-cores-too-few", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
@gated_by(known_layout("server cores"))
def server_cores_too_few(job: Job, fleet: Fleet, facts: Facts, placement: Layout) -> Iterator[Verdict]:
    """Each server and trainer on a node has its own core.

    What it checks: cores that a process may use on the node (affinity and quota), compared with the number of servers
    and trainers there.

    Why it matters: servers serve many trainers at the same time; a server that shares a core with a trainer delays
    every step of all trainers.

    Example: two servers and two trainers in a container with 2 cores.

    Fix: fewer processes on the node, or more cores.

    Known limits: one core for each process is the minimum; servers use as many as there are trainers.
    """
    crowded: dict[tuple[float, int], list[str]] = {}
    everything = placement.by_node((*placement.servers, *placement.trainers))
    for node in placement.by_node(placement.servers):
        place = facts.observed(server_place).get(node)
        if place is None or place.cores is None:
            yield unknown(f"cores of {node}", "they are unknown")
        elif place.cores < len(everything[node]):
            crowded.setdefault((place.cores, len(everything[node])), []).append(node)
    for (cores, processes), nodes in crowded.items():
        yield failed(
            f"cores of {fold(nodes)}",
            f"processes on {fold(nodes)} may use {cores:g} cores, but {processes} servers and trainers run there",
            at=Evidence("cores", f"{cores:g}", str(processes), "nproc", nodes[0]),
            also=layout_claims(placement),
            nodes=nodes,
            remedy=f"Run fewer processes on {fold(nodes)}, or request more cores.",
        )
    if not crowded:
        yield passed("server cores")


@placement_check("PLC005", "server-network-too-slow", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
@gated_by(known_layout("server network"))
def server_network_too_slow(job: Job, fleet: Fleet, facts: Facts, placement: Layout) -> Iterator[Verdict]:
    """A server's network card moves the data of one step in less than a second.

    What it checks: the dense parameters on the servers of a node, sent to and from every trainer on other nodes,
    divided by the speed of the network card that has the server's address.

    Why it matters: with parameter servers every byte of every trainer goes through the servers' cards; below this speed
    the job waits for the network at each step.

    Example: 500 MiB of dense parameters on one server, 8 trainers and 1 Gbit/s: over 30 seconds per step.

    Fix: more servers on more nodes, a faster network, or fewer exchanges (k_steps, half-asynchronous, geo).

    Known limits: rows of tables are not counted, because their number depends on the data; virtual cards report no
    speed, so the result is unknown.
    """
    needs = shares(job, len(placement.servers))
    if needs is None or not sum(needs.exchanged_bytes) or not placement.trainers:
        yield not_applicable("server network", "the files do not show how much data a step exchanges")
        return
    slow: dict[tuple[int, int, int], list[str]] = {}
    for node, own in placement.by_node(placement.servers).items():
        place = facts.observed(server_place).get(node)
        speed = speed_mbps(place, own[0]) if place is not None else None
        if not speed:
            yield unknown(f"network of {node}", f"the network card of {own[0].host} reports no speed")
            continue
        remote = [endpoint for endpoint in placement.trainers if placement.node_of.get(endpoint) != node]
        share = sum(needs.exchanged_bytes[placement.servers.index(endpoint)] for endpoint in own)
        if _seconds_each_way(share, len(remote), speed) > SLOW_STEP_S:
            slow.setdefault((share, len(remote), speed), []).append(node)
    for (share, trainers, speed), nodes in slow.items():
        needed = f"{share * trainers * 8 / 1e6 / SLOW_STEP_S:.0f} Mbit/s"
        yield failed(
            f"network of {fold(nodes)}",
            f"in each step, {trainers} trainers exchange {size(share)} with the servers on {fold(nodes)}, which "
            f"takes {_seconds_each_way(share, trainers, speed):.1f} s each way at {speed} Mbit/s, the speed of the "
            "network card",
            at=Evidence("network", f"{speed} Mbit/s", needed, "ethtool", nodes[0]),
            also=(*needs.claims, *layout_claims(placement)),
            nodes=nodes,
            remedy="Spread the servers over more nodes, or exchange less often.",
        )
    if not slow:
        yield passed("server network")


def _seconds_each_way(share_bytes: int, trainers: int, speed_mbps: int) -> float:
    """Return the transfer time in one direction, in seconds. The two directions overlap, so only one counts."""
    return share_bytes * trainers * 8 / (speed_mbps * 1e6)


#: The first release whose wheels have no parameter server (PaddlePaddle/Paddle#73999).
FIRST_WITHOUT = Version("3.1.1")


@check(
    "VER009",
    "paddle-without-parameter-server",
    plan=on_every_node(packages, when=lambda job, fleet: has_parameter_servers(job), context=True, deadline_s=8.0),
    severity=Severity.ERROR,
)
def paddle_without_parameter_server(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The Paddle release of a parameter-server job includes the parameter server in its wheels.

    What it checks: the version of paddlepaddle where servers and workers will run, read from package metadata, if the
    job starts parameter servers.

    Why it matters: wheels since 3.1.1 lack it. The launcher still accepts the options and starts all processes, and the
    job dies in `minimize` with an import error or wrong arguments to `clone()`, which do not mention the cause.

    Example: node-a has paddlepaddle 3.3.1, and the job starts two parameter servers with fleetrun --server_num=2.

    Fix: install paddlepaddle 3.0.0 or older for this job (2.6.2 with numpy below 2), or build it with the parameter
    server.

    Known limits: your own build with the parameter server passes only if its version has a local part (3.2.0+ps).
    """
    if not has_parameter_servers(job):
        yield not_applicable("Paddle's parameter server", "the job has no parameter servers")
        return
    observed = yield from known_facts(facts, packages, "Paddle's parameter server")
    versions = {
        node: value.versions["paddlepaddle"] for node, value in observed.items() if "paddlepaddle" in value.versions
    }
    without = {node: version for node, version in versions.items() if _is_without(version)}
    if without:
        node, version = next(iter(without.items()))
        has = "has" if len(without) == 1 else "have"
        yield failed(
            "Paddle's parameter server",
            f"{fold(without)} {has} paddlepaddle {fold(dict.fromkeys(without.values()))}, whose wheels have no "
            f"parameter server (since {FIRST_WITHOUT}), but this job needs one",
            at=Evidence("packages", f"paddlepaddle {version}", f"below {FIRST_WITHOUT}", node=node),
            nodes=tuple(without),
            remedy=f"Install paddlepaddle 3.0.0 or older on {fold(without)}, or build it with the parameter server.",
        )
    elif versions:
        yield passed(f"Paddle's parameter server: {fold(dict.fromkeys(versions.values()))} on {len(versions)} nodes")
    elif observed:
        yield not_applicable("Paddle's parameter server", "no node has paddlepaddle in the ranks' interpreter")


def _is_without(text: str) -> bool:
    try:
        version = Version(text)
    # `int` also refuses thousands of digits.
    except ValueError:
        return False
    return version >= FIRST_WITHOUT and not version.local

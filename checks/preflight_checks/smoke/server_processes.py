"""The servers and workers that a parameter-server job starts, their nodes, and their settings.

Two things are separate: which processes exist (from lists of endpoints, else from numbers), and the settings of each
process (from its own launch line, or its node's variables). A duplicate index, a list in another order or a wrong
number is kept, so that the smoke run behaves as the job would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from preflight._util.hostnames import split_endpoint
from preflight.model.job import Claim, Job, Known, Scope, is_whole_number
from preflight.model.job.value import items
from preflight.model.recording import Facts, Fleet, Node
from preflight_checks.context.environment import bare, set_by_job
from preflight_checks.links.dial_requests import address_of
from preflight_checks.network.kernel_network import free_ports_of
from preflight_checks.requirements import is_single_machine, known_int, known_text, named, names_value, scopes
from preflight_checks.servers import SERVER, WORKER, layout

#: Paddle's names of the two kinds; other settings are kept as written.
ROLES = {"PSERVER": SERVER, "TRAINER": WORKER}
#: The default port of servers: that of the examples in Paddle's documentation.
SERVER_PORT = 6170
#: The same for PaddlePaddle 0.x (paddle/utils/Flags.cpp).
OLD_SERVER_PORT = 20134
#: Variables that Paddle's role makers read, newer names first.
_ROLE = ("TRAINING_ROLE", "PADDLE_TRAINING_ROLE")
_SERVERS = ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_ENDPOINTS")
_QUANTITIES = ("ps_mode", "ps_server_endpoints", "ps_worker_endpoints", "ps_servers", "ps_workers")


@dataclass(frozen=True, slots=True)
class Process:
    """One server or worker, and its settings.

    Args:
        kind: `server` or `worker`: its kind by its position in the job; `role` is the name in its settings.
        index: its index; text if it is not a number.
        servers, workers: the numbers in its settings; `server_endpoints` is the list, in order.
        endpoint: a server's own endpoint; empty for a worker.
        source: the origin of its settings, if not the job as a whole.
    """

    kind: str
    node: Node
    role: str
    index: int | str
    servers: int
    workers: int
    server_endpoints: tuple[str, ...]
    endpoint: str = ""
    source: str = ""
    claims: tuple[Claim, ...] = ()


def processes(job: Job, fleet: Fleet, facts: Facts) -> tuple[Process, ...] | str:
    """All servers and workers, servers first; a text with the reason if they are unknown."""
    if not fleet.nodes:
        return "the job has no known nodes"
    found = _from_node_environments(job, fleet, facts) or _from_lists(job, fleet, facts)
    if isinstance(found, str):
        return found
    found = sorted(found, key=lambda process: process.kind != SERVER)
    if is_single_machine(fleet):
        found = _on_loopback(found, _named(job, facts), free_ports_of(job, fleet, facts))
    return tuple(found)


# From the environment of each node


def _from_node_environments(job: Job, fleet: Fleet, facts: Facts) -> list[Process]:
    """One process for each node whose own environment sets a role, as in pods."""
    own = set_by_job(job)
    seen = {node: environment.variables for node, environment in bare(facts).items()}
    mine = {
        node.name: {name: value for name, value in seen.get(node.name, {}).items() if name not in own}
        for node in fleet.nodes
    }
    if not any(_first_value(variables, _ROLE) for variables in mine.values()):
        return []
    mode = _claims(job)
    common = {name: str(claims[0].value.value) for name, claims in own.items() if isinstance(claims[0].value, Known)}
    return [
        _from_node_environment(node, {**common, **mine[node.name]}, job, mode)
        for node in fleet.nodes
        if _first_value(mine[node.name], _ROLE)
    ]


def _from_node_environment(node: Node, variables: Mapping[str, str], job: Job, claims: tuple[Claim, ...]) -> Process:
    spelled = _first_value(variables, _ROLE) or ""
    listed = _first_value(variables, _SERVERS)
    endpoints = _split_list(listed) if listed is not None else _first_list(job, "ps_server_endpoints")
    endpoint = f"{variables.get('POD_IP', '')}:{variables.get('PADDLE_PORT', '')}".strip(":")
    kind = ROLES.get(spelled) or (SERVER if endpoint and endpoint in endpoints else WORKER)
    index: int | str = _number(variables.get("PADDLE_TRAINER_ID", ""))
    if kind == SERVER:
        # A server finds its index by looking its own endpoint up in the list.
        index = endpoints.index(endpoint) if endpoint in endpoints else 0
    workers = _number(variables.get("PADDLE_TRAINERS_NUM", ""))
    known = workers if isinstance(workers, int) else _count(job, "ps_workers") or 0
    role = ROLES.get(spelled, spelled)
    own = endpoint if kind == SERVER else ""
    source = f"the environment of {node.name}"
    return Process(kind, node, role, index, len(endpoints), known, endpoints, own, source, claims)


def _first_value(variables: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((variables[name] for name in names if name in variables), None)


def _number(text: str) -> int | str:
    return int(text) if is_whole_number(text.strip()) else text


# From the job's lists, numbers and launch lines


def _from_lists(job: Job, fleet: Fleet, facts: Facts) -> list[Process] | str:
    """One process per list entry, or as many as the numbers state, with correct settings or its launch line's."""
    lines = list(_lines(job))
    listed, trainers = _servers_of(job), _first_list(job, "ps_worker_endpoints") or _hosts_of_old(job)
    servers = len(listed) or _count(job, "ps_servers") or _lines_of(lines, SERVER)
    workers = len(trainers) or _count(job, "ps_workers") or _lines_of(lines, WORKER)
    if not servers or not workers:
        return f"nothing states how many {'workers' if servers else 'servers'} there are"
    placed = _placed(job, fleet, facts, (*listed, *trainers))
    on = [placed[host_of(entry)] for entry in listed] or [_nth(fleet.nodes, i, servers) for i in range(servers)]
    # By address instead of node: nodes on one machine share their address.
    hosts = [address_of(job, node, facts) for node in on]
    endpoints = listed or tuple(f"{host}:{SERVER_PORT + hosts[:i].count(host)}" for i, host in enumerate(hosts))
    free = [node for node in fleet.nodes if node not in on]
    rest = free if len(free) >= workers else fleet.nodes
    at = [placed[host_of(entry)] for entry in trainers] or [_nth(rest, i, workers) for i in range(workers)]
    claims = _claims(job)
    found = [
        Process(SERVER, node, SERVER, index, servers, workers, endpoints, endpoints[index], "", claims)
        for index, node in enumerate(on)
    ]
    found += [
        Process(WORKER, node, WORKER, index, servers, workers, endpoints, "", "", claims)
        for index, node in enumerate(at)
    ]
    return _with_launch_lines(job, found, lines)


def _servers_of(job: Job) -> tuple[str, ...]:
    """The endpoints of all servers that the files list; missing ports are numbered consecutively."""
    listed = _first_list(job, "ps_server_endpoints")
    if listed:
        return _with_ports(listed, SERVER_PORT)
    port = _count(job, "pserver_port") or OLD_SERVER_PORT
    return _with_ports(_first_list(job, "pserver_hosts") or _hosts_of_old(job), port)


def _hosts_of_old(job: Job) -> tuple[str, ...]:
    """The hosts of cluster_train, each of which gets a server and a trainer."""
    return _first_list(job, "hosts") if job.about("cluster_hosts") else ()


def _with_ports(entries: Sequence[str], port: int) -> tuple[str, ...]:
    found: list[str] = []
    for entry in entries:
        parts = split_endpoint(entry)
        before = sum(host_of(other) == host_of(entry) for other in found)
        found.append(entry if parts is None or parts[1] else f"{entry}:{port + before}")
    return tuple(found)


def _placed(job: Job, fleet: Fleet, facts: Facts, entries: Sequence[str]) -> dict[str, Node]:
    """The node of each host. Hosts of no known node get the remaining nodes, in order."""
    by_name = {node.name: node for node in fleet.nodes}
    found = {e.host: by_name[name] for e, name in layout(job, fleet, facts).node_of.items() if name in by_name}
    hosts = list(dict.fromkeys(host_of(entry) for entry in entries))
    for host in hosts:
        node = named(fleet, host)
        if node is not None:
            found.setdefault(host, node)
    for host in hosts:
        remaining = [node for node in fleet.nodes if node not in found.values()]
        found.setdefault(host, (remaining or fleet.nodes)[0])
    return found


def _nth(nodes: Sequence[Node], index: int, count: int) -> Node:
    """The node of one of `count` processes that are distributed in equal blocks."""
    return nodes[index * len(nodes) // count]


@dataclass(frozen=True, slots=True)
class _Line:
    """The settings in one launch line for the one process that it starts; None if not set."""

    scope: Scope
    role: str
    index: int | None
    endpoint: str | None


def _lines(job: Job) -> Iterator[_Line]:
    """The launch lines that start one server or one worker each."""
    for scope in scopes(job):
        role = known_text(job, "ps_role", scope)
        if role is not None and job.value("ps_mode", scope) == Known(True):
            endpoint = known_text(job, "ps_current_endpoint", scope)
            yield _Line(scope, role, known_int(job, "ps_index", scope), endpoint)


def _lines_of(lines: Sequence[_Line], kind: str) -> int:
    return sum(ROLES.get(line.role) == kind for line in lines)


def _with_launch_lines(job: Job, found: Sequence[Process], lines: Sequence[_Line]) -> list[Process]:
    """The processes with the settings of their launch lines; a line without a matching process adds another one."""
    result = list(found)
    used: set[int] = set()
    for line in lines:
        slot = _matching_process(result, used, line)
        if slot is None:
            kind = ROLES.get(line.role, WORKER)
            node = next(process.node for process in reversed(result) if process.kind == kind)
            result.append(replace(next(p for p in result if p.kind == kind), node=node))
            slot = len(result) - 1
        used.add(slot)
        result[slot] = _with_settings(job, result[slot], line)
    return result


def _matching_process(found: Sequence[Process], taken: set[int], line: _Line) -> int | None:
    """The process that a line starts: by endpoint, by index, else the first remaining one of its kind."""
    kind = ROLES.get(line.role)
    remaining = [n for n, p in enumerate(found) if n not in taken and kind in (None, p.kind)]
    by_endpoint = [n for n in remaining if found[n].kind == SERVER and found[n].endpoint == line.endpoint]
    by_index = [n for n in remaining if found[n].index == line.index and kind is not None]
    return next(iter((*by_endpoint, *by_index, *remaining)), None)


def _with_settings(job: Job, process: Process, line: _Line) -> Process:
    endpoints = _with_ports(_list(job, "ps_server_endpoints", line.scope), SERVER_PORT) or process.server_endpoints
    own = line.endpoint if line.endpoint and process.kind == SERVER else process.endpoint
    return replace(
        process,
        role=ROLES.get(line.role, line.role),
        index=process.index if line.index is None else line.index,
        servers=known_int(job, "ps_servers", line.scope) or len(endpoints),
        workers=known_int(job, "ps_workers", line.scope) or process.workers,
        server_endpoints=endpoints,
        endpoint=own,
        source=line.scope.launch,
    )


def _claims(job: Job) -> tuple[Claim, ...]:
    claims = (claim for scope in scopes(job) for name in _QUANTITIES for claim in job.value_claims(name, scope))
    return tuple(dict.fromkeys(claims))


def host_of(endpoint: str) -> str:
    """The host of `host:port`."""
    parts = split_endpoint(endpoint)
    return parts[0] if parts is not None else endpoint


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _list(job: Job, quantity: str, scope: Scope) -> tuple[str, ...]:
    return tuple(text for item in items(job.value(quantity, scope)) if (text := item.strip()))


def _first_list(job: Job, quantity: str) -> tuple[str, ...]:
    """The list in the first launch that has one."""
    lists = Counter(found for scope in scopes(job) if (found := _list(job, quantity, scope)))
    return lists.most_common(1)[0][0] if lists else ()


def _count(job: Job, quantity: str) -> int | None:
    """The number in the first launch that has one."""
    counts = Counter(value for scope in scopes(job) if (value := known_int(job, quantity, scope)))
    return counts.most_common(1)[0][0] if counts else None


# If all nodes are one machine


def _named(job: Job, facts: Facts) -> Callable[[str], bool]:
    """Whether the files, or a node's environment, name the port of an endpoint."""
    listed = {entry for scope in scopes(job) for entry in _list(job, "ps_server_endpoints", scope)}
    own = {known_text(job, "ps_current_endpoint", scope) for scope in scopes(job)}
    values = {
        entry
        for environment in bare(facts).values()
        for entry in (
            *_split_list(_first_value(environment.variables, _SERVERS) or ""),
            f"{environment.variables.get('POD_IP', '')}:{environment.variables.get('PADDLE_PORT', '')}",
        )
    }
    hosts = {entry for name in ("pserver_hosts", "hosts") for entry in _first_list(job, name)}
    # One base port for all hosts, from which ports are numbered consecutively.
    counted = any(names_value(claim) for claim in job.about("pserver_port"))
    old = {host_of(entry) for entry in hosts} if counted and not listed else set()
    return lambda endpoint: endpoint in listed | own | values | hosts or host_of(endpoint) in old


def _on_loopback(found: Sequence[Process], is_named: Callable[[str], bool], free: Sequence[int]) -> list[Process]:
    """The same processes on one machine: every endpoint moves to loopback, with a unique port.

    The first endpoint that names a port keeps it. All others get free ports, or consecutive ones if no free ones are
    known. Equal endpoints stay equal, and different lists stay different.
    """
    spelled = dict.fromkeys(e for process in found for e in (*process.server_endpoints, process.endpoint) if e)
    ports: dict[str, int] = {}
    for endpoint in spelled:
        port = _port(endpoint)
        if port and is_named(endpoint) and port not in ports.values():
            ports[endpoint] = port
    remaining = iter([port for port in free if port not in ports.values()])
    for endpoint in spelled:
        if endpoint not in ports:
            port = next(remaining, 0) or _port(endpoint) or SERVER_PORT
            while port in ports.values():
                port += 1
            ports[endpoint] = port
    renamed = {endpoint: f"127.0.0.1:{port}" for endpoint, port in ports.items()}
    return [
        replace(
            process,
            server_endpoints=tuple(renamed[endpoint] for endpoint in process.server_endpoints),
            endpoint=renamed.get(process.endpoint, ""),
        )
        for process in found
    ]


def _port(endpoint: str) -> int:
    parts = split_endpoint(endpoint)
    return (parts[1] or 0) if parts is not None else 0

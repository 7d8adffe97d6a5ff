"""Which servers and workers a parameter-server job starts, on which nodes, and what each of them is told.

Two questions are kept apart: which processes there are (by the lists of endpoints, else by numbers), and what each one
is told of itself and the others (by its own launch line, or by the variables that its node gives it). An index that is
given twice, a list in another order or a wrong number stays as it is, so that the smoke run meets it as the job would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from preflight.job import Claim, Job, Known, Scope
from preflight.job.hostname import split_endpoint
from preflight.lazy.dataclasses import dataclass
from preflight.recording import Facts, Fleet, Node
from preflight_checks.context.surroundings import bare, set_by_job
from preflight_checks.demands import deciding, known_int, known_text, named, names_value, one_machine, scopes
from preflight_checks.links.dialling import address_of
from preflight_checks.network.local_ports import free_on
from preflight_checks.servers.server_layout import SERVER, WORKER, layout

#: What Paddle calls the two; whatever else a process is told stays as it is spelled.
ROLES = {"PSERVER": SERVER, "TRAINER": WORKER}
#: Where servers listen when nothing says it: the port of the examples in Paddle's documentation.
SERVER_PORT = 6170
#: The same of PaddlePaddle 0.x (paddle/utils/Flags.cpp).
OLD_SERVER_PORT = 20134
#: What Paddle's role makers read, newer names first.
_ROLE = ("TRAINING_ROLE", "PADDLE_TRAINING_ROLE")
_SERVERS = ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_ENDPOINTS")
_QUANTITIES = ("ps_mode", "ps_server_endpoints", "ps_worker_endpoints", "ps_servers", "ps_workers")


@dataclass(frozen=True, slots=True)
class Process:
    """One server or worker, and what it is told.

    Args:
        kind: `server` or `worker`: what it is by its place in the job; `role` is the word it is told.
        index: what it is told, a text where that is no number.
        servers, workers: the numbers it is told; `server_endpoints` the list, in its order.
        endpoint: of a server, its own; of a worker empty.
        source: where that is said, if not by the job as a whole.
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
    """All servers and workers, servers first; a text where it cannot be told which there are."""
    if not fleet.nodes:
        return "the job has no known nodes"
    found = _of_nodes(job, fleet, facts) or _of_lists(job, fleet, facts)
    if isinstance(found, str):
        return found
    found = sorted(found, key=lambda process: process.kind != SERVER)
    if one_machine(fleet):
        found = _on_loopback(found, _named(job, facts), free_on(job, fleet, facts))
    return tuple(found)


# By what each node is given


def _of_nodes(job: Job, fleet: Fleet, facts: Facts) -> list[Process]:
    """One process for each node that is given a role by its own environment, as pods are; none where none is."""
    own = set_by_job(job)
    seen = {node: environment.variables for node, environment in bare(facts).items()}
    mine = {node.name: _free_of(seen.get(node.name, {}), own) for node in fleet.nodes}
    if not any(_given(variables, _ROLE) for variables in mine.values()):
        return []
    mode = _claims(job)
    return [_of_node(node, mine[node.name], job, mode) for node in fleet.nodes if _given(mine[node.name], _ROLE)]


def _free_of(variables: Mapping[str, str], own: Mapping[str, object]) -> dict[str, str]:
    """A node's variables without those that the job's files set themselves."""
    return {name: value for name, value in variables.items() if name not in own}


def _of_node(node: Node, variables: Mapping[str, str], job: Job, claims: tuple[Claim, ...]) -> Process:
    spelled = _given(variables, _ROLE) or ""
    listed = _given(variables, _SERVERS)
    endpoints = _cut(listed) if listed is not None else _first(job, "ps_server_endpoints")
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


def _given(variables: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((variables[name] for name in names if name in variables), None)


def _number(text: str) -> int | str:
    return int(text) if text.strip().isdigit() else text


# By the job's lists and numbers, and by its launch lines


def _of_lists(job: Job, fleet: Fleet, facts: Facts) -> list[Process] | str:
    """As many as the lists have entries, or the numbers say, each told what is right for it or what its launch says."""
    lines = list(_lines(job))
    listed, trainers = _servers_of(job), _first(job, "ps_worker_endpoints") or _hosts_of_old(job)
    servers = len(listed) or _count(job, "ps_servers") or _lines_of(lines, SERVER)
    workers = len(trainers) or _count(job, "ps_workers") or _lines_of(lines, WORKER)
    if not servers or not workers:
        return f"nothing says how many {'workers' if servers else 'servers'} there are"
    placed = _placed(job, fleet, facts, (*listed, *trainers))
    on = [placed[host_of(entry)] for entry in listed] or [_nth(fleet.nodes, i, servers) for i in range(servers)]
    # By address and not by node: nodes that one machine plays have the same.
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
    return _as_launched(job, found, lines)


def _servers_of(job: Job) -> tuple[str, ...]:
    """The endpoints of all servers, where the files spell them; ports that they leave out are counted up."""
    listed = _first(job, "ps_server_endpoints")
    if listed:
        return _with_ports(listed, SERVER_PORT)
    port = _count(job, "pserver_port") or OLD_SERVER_PORT
    return _with_ports(_first(job, "pserver_hosts") or _hosts_of_old(job), port)


def _hosts_of_old(job: Job) -> tuple[str, ...]:
    """The hosts of cluster_train, each of which gets a server and a trainer."""
    return _first(job, "hosts") if job.about("cluster_hosts") else ()


def _with_ports(entries: Sequence[str], port: int) -> tuple[str, ...]:
    found: list[str] = []
    for entry in entries:
        parts = split_endpoint(entry)
        before = sum(host_of(other) == host_of(entry) for other in found)
        found.append(entry if parts is None or parts[1] else f"{entry}:{port + before}")
    return tuple(found)


def _placed(job: Job, fleet: Fleet, facts: Facts, entries: Sequence[str]) -> dict[str, Node]:
    """The node of each host. One that no node knows as its own is given to a node that is left, in their order."""
    by_name = {node.name: node for node in fleet.nodes}
    found = {e.host: by_name[name] for e, name in layout(job, fleet, facts).node_of.items() if name in by_name}
    hosts = list(dict.fromkeys(host_of(entry) for entry in entries))
    for host in hosts:
        node = named(fleet, host)
        if node is not None:
            found.setdefault(host, node)
    for host in hosts:
        left = [node for node in fleet.nodes if node not in found.values()]
        found.setdefault(host, (left or fleet.nodes)[0])
    return found


def _nth(nodes: Sequence[Node], index: int, count: int) -> Node:
    """The node of one of `count` processes that are dealt in equal runs."""
    return nodes[index * len(nodes) // count]


@dataclass(frozen=True, slots=True)
class _Line:
    """What one launch line tells the one process that it starts; None where it does not say."""

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


def _as_launched(job: Job, found: Sequence[Process], lines: Sequence[_Line]) -> list[Process]:
    """What the launch lines tell their processes; a line for which no process is left starts one too many."""
    result = list(found)
    taken: set[int] = set()
    for line in lines:
        slot = _slot(result, taken, line)
        if slot is None:
            kind = ROLES.get(line.role, WORKER)
            node = next(process.node for process in reversed(result) if process.kind == kind)
            result.append(replace(next(p for p in result if p.kind == kind), node=node))
            slot = len(result) - 1
        taken.add(slot)
        result[slot] = _told(job, result[slot], line)
    return result


def _slot(found: Sequence[Process], taken: set[int], line: _Line) -> int | None:
    """Which of the processes a line starts: by its endpoint, by its index, else the first that is left of its kind."""
    kind = ROLES.get(line.role)
    left = [n for n, p in enumerate(found) if n not in taken and kind in (None, p.kind)]
    by_endpoint = [n for n in left if found[n].kind == SERVER and found[n].endpoint == line.endpoint]
    by_index = [n for n in left if found[n].index == line.index and kind is not None]
    return next(iter((*by_endpoint, *by_index, *left)), None)


def _told(job: Job, process: Process, line: _Line) -> Process:
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
    said = (claim for scope in scopes(job) for name in _QUANTITIES for claim in deciding(job, name, scope))
    return tuple(dict.fromkeys(said))


def host_of(endpoint: str) -> str:
    """The host of `host:port`."""
    parts = split_endpoint(endpoint)
    return parts[0] if parts is not None else endpoint


def _cut(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _list(job: Job, quantity: str, scope: Scope) -> tuple[str, ...]:
    value = job.value(quantity, scope)
    if not isinstance(value, Known) or not isinstance(value.value, tuple):
        return ()
    return tuple(text for item in value.value if (text := str(item).strip()))


def _first(job: Job, quantity: str) -> tuple[str, ...]:
    """The list that most launches give."""
    lists = Counter(found for scope in scopes(job) if (found := _list(job, quantity, scope)))
    return lists.most_common(1)[0][0] if lists else ()


def _count(job: Job, quantity: str) -> int | None:
    """The number that most launches give."""
    counts = Counter(value for scope in scopes(job) if (value := known_int(job, quantity, scope)))
    return counts.most_common(1)[0][0] if counts else None


# Where one machine plays all nodes


def _named(job: Job, facts: Facts) -> Callable[[str], bool]:
    """Whether the files, or a node's environment, name the port of an endpoint."""
    listed = {entry for scope in scopes(job) for entry in _list(job, "ps_server_endpoints", scope)}
    own = {known_text(job, "ps_current_endpoint", scope) for scope in scopes(job)}
    told = {
        entry
        for environment in bare(facts).values()
        for entry in (
            *_cut(_given(environment.variables, _SERVERS) or ""),
            f"{environment.variables.get('POD_IP', '')}:{environment.variables.get('PADDLE_PORT', '')}",
        )
    }
    hosts = {entry for name in ("pserver_hosts", "hosts") for entry in _first(job, name)}
    # One number for all hosts, from which ports are counted up.
    counted = any(names_value(claim) for claim in job.about("pserver_port"))
    old = {host_of(entry) for entry in hosts} if counted and not listed else set()
    return lambda endpoint: endpoint in listed | own | told | hosts or host_of(endpoint) in old


def _on_loopback(found: Sequence[Process], is_named: Callable[[str], bool], free: Sequence[int]) -> list[Process]:
    """The same processes on one machine: every endpoint becomes one of loopback, with a port that no other has.

    The first that names a port gets it. All others get ports that are free; where nobody knows any, they are counted
    up. Endpoints that were spelled alike stay alike, and lists that differ go on differing.
    """
    spelled = dict.fromkeys(e for process in found for e in (*process.server_endpoints, process.endpoint) if e)
    ports: dict[str, int] = {}
    for endpoint in spelled:
        port = _port(endpoint)
        if port and is_named(endpoint) and port not in ports.values():
            ports[endpoint] = port
    left = iter([port for port in free if port not in ports.values()])
    for endpoint in spelled:
        if endpoint not in ports:
            port = next(left, 0) or _port(endpoint) or SERVER_PORT
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

"""The training run with parameter servers: its processes and their nodes, its plan, and its reports.

Two things are separate: which processes exist (from lists of endpoints, or else from numbers), and the settings of each
process (from its own launch line, or its node's variables). A duplicate index, a list in a different order or a wrong
number is kept, so that the smoke run behaves like the job.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from preflight._util.hostnames import split_endpoint
from preflight.analysis.rank_state import BACKUP_WORKER, Member, replacements
from preflight.model.job import Claim, Job, Known, Scope, alternatives, is_whole_number
from preflight.model.job.value import items
from preflight.model.recording import FactRow, Facts, Fleet, Node, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, not_applicable, unknown
from preflight_checks.context.environment import bare_environments, set_by_job
from preflight_checks.links.dial_requests import address_of
from preflight_checks.network.kernel_network import free_ports_of
from preflight_checks.plans import requests_for
from preflight_checks.probes.environment import environment, server_place
from preflight_checks.requirements import (
    find_node,
    has_parameter_servers,
    is_single_machine,
    known_int,
    known_text,
    names_value,
    scopes,
)
from preflight_checks.servers import SERVER, WORKER, assignment_policy, layout, parameters_of
from preflight_checks.smoke.plan import DEADLINE_S, GroupRun, group_run_of, none_started_verdict
from preflight_checks.smoke.plan import PLAN_PROBES as RANK_PLAN_PROBES
from preflight_checks.smoke.ranks import framework_of, gpus_on, with_injected_fault
from reference_trainer.ps.partition import FLOAT_BYTES, product
from reference_trainer.ps.run_report import ServerReport, WorkerReport
from reference_trainer.ps.server import server as run_server
from reference_trainer.ps.worker import worker as run_worker

#: Paddle's names of the two kinds; other settings are kept as written.
ROLES = {"PSERVER": SERVER, "TRAINER": WORKER}
#: The default port of servers: that of the examples in Paddle's documentation.
SERVER_PORT = 6170
#: The default port of PaddlePaddle 0.x (paddle/utils/Flags.cpp).
OLD_SERVER_PORT = 20134
#: Variables that Paddle's role makers read, newer names first.
_ROLE = ("TRAINING_ROLE", "PADDLE_TRAINING_ROLE")
_SERVERS = ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_ENDPOINTS")
_QUANTITIES = ("ps_mode", "ps_server_endpoints", "ps_worker_endpoints", "ps_servers", "ps_workers")


@dataclass(frozen=True, slots=True)
class Process:
    """One server or worker, and its settings.

    Args:
        kind: `server` or `worker`, from its position in the job; `role` is the role in its settings.
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
    """Return all servers and workers, servers first; if they are unknown, return the reason as a string."""
    if not fleet.nodes:
        return "the job has no known nodes"
    found = _environment_processes(job, fleet, facts) or _listed_processes(job, fleet, facts)
    if isinstance(found, str):
        return found
    found = sorted(found, key=lambda process: process.kind != SERVER)
    if is_single_machine(fleet):
        found = _move_to_loopback(found, _port_name_test(job, facts), free_ports_of(job, fleet, facts))
    return tuple(found)


# From the environment of each node


def _environment_processes(job: Job, fleet: Fleet, facts: Facts) -> list[Process]:
    """Return one process for each node whose own environment sets a role, as in pods."""
    own = set_by_job(job)
    seen = {node: environment.variables for node, environment in bare_environments(facts).items()}
    mine = {
        node.name: {name: value for name, value in seen.get(node.name, {}).items() if name not in own}
        for node in fleet.nodes
    }
    if not any(_first_value(variables, _ROLE) for variables in mine.values()):
        return []
    mode = _claims(job)
    common = {name: str(claims[0].value.value) for name, claims in own.items() if isinstance(claims[0].value, Known)}
    return [
        _environment_process(node, {**common, **mine[node.name]}, job, mode)
        for node in fleet.nodes
        if _first_value(mine[node.name], _ROLE)
    ]


def _environment_process(node: Node, variables: Mapping[str, str], job: Job, claims: tuple[Claim, ...]) -> Process:
    role_name = _first_value(variables, _ROLE) or ""
    listed = _first_value(variables, _SERVERS)
    endpoints = _split_list(listed) if listed is not None else _first_list(job, "ps_server_endpoints")
    endpoint = f"{variables.get('POD_IP', '')}:{variables.get('PADDLE_PORT', '')}".strip(":")
    kind = ROLES.get(role_name) or (SERVER if endpoint and endpoint in endpoints else WORKER)
    index: int | str = _number(variables.get("PADDLE_TRAINER_ID", ""))
    if kind == SERVER:
        # A server finds its index by looking its own endpoint up in the list.
        index = endpoints.index(endpoint) if endpoint in endpoints else 0
    workers = _number(variables.get("PADDLE_TRAINERS_NUM", ""))
    known = workers if isinstance(workers, int) else _count(job, "ps_workers") or 0
    role = ROLES.get(role_name, role_name)
    own = endpoint if kind == SERVER else ""
    source = f"the environment of {node.name}"
    return Process(kind, node, role, index, len(endpoints), known, endpoints, own, source, claims)


def _first_value(variables: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((variables[name] for name in names if name in variables), None)


def _number(text: str) -> int | str:
    return int(text) if is_whole_number(text.strip()) else text


# From the job's lists, numbers and launch lines


def _listed_processes(job: Job, fleet: Fleet, facts: Facts) -> list[Process] | str:
    """Return one process per list entry, or as many as the numbers give, with its launch line's settings if any."""
    lines = list(_lines(job))
    listed, trainers = _servers_of(job), _first_list(job, "ps_worker_endpoints") or _cluster_train_hosts(job)
    servers = len(listed) or _count(job, "ps_servers") or _lines_of(lines, SERVER)
    workers = len(trainers) or _count(job, "ps_workers") or _lines_of(lines, WORKER)
    if not servers or not workers:
        return f"the number of {'workers' if servers else 'servers'} is not given"
    placed = _nodes_by_host(job, fleet, facts, (*listed, *trainers))
    on = [placed[host_of(entry)] for entry in listed] or [_block_node(fleet.nodes, i, servers) for i in range(servers)]
    # By address instead of node: nodes on one machine share their address.
    hosts = [address_of(job, node, facts) for node in on]
    endpoints = listed or tuple(f"{host}:{SERVER_PORT + hosts[:i].count(host)}" for i, host in enumerate(hosts))
    free = [node for node in fleet.nodes if node not in on]
    rest = free if len(free) >= workers else fleet.nodes
    at = [placed[host_of(entry)] for entry in trainers] or [_block_node(rest, i, workers) for i in range(workers)]
    claims = _claims(job)
    found = [
        Process(SERVER, node, SERVER, index, servers, workers, endpoints, endpoints[index], "", claims)
        for index, node in enumerate(on)
    ]
    found += [
        Process(WORKER, node, WORKER, index, servers, workers, endpoints, "", "", claims)
        for index, node in enumerate(at)
    ]
    return _add_launch_lines(job, found, lines)


def _servers_of(job: Job) -> tuple[str, ...]:
    """Return the endpoints of all servers that the files list; missing ports are numbered consecutively."""
    listed = _first_list(job, "ps_server_endpoints")
    if listed:
        return _add_ports(listed, SERVER_PORT)
    port = _count(job, "pserver_port") or OLD_SERVER_PORT
    return _add_ports(_first_list(job, "pserver_hosts") or _cluster_train_hosts(job), port)


def _cluster_train_hosts(job: Job) -> tuple[str, ...]:
    """Return the hosts of cluster_train, each of which gets a server and a trainer."""
    return _first_list(job, "hosts") if job.about("cluster_hosts") else ()


def _add_ports(entries: Sequence[str], port: int) -> tuple[str, ...]:
    found: list[str] = []
    for entry in entries:
        parts = split_endpoint(entry)
        before = sum(host_of(other) == host_of(entry) for other in found)
        found.append(entry if parts is None or parts[1] else f"{entry}:{port + before}")
    return tuple(found)


def _nodes_by_host(job: Job, fleet: Fleet, facts: Facts, entries: Sequence[str]) -> dict[str, Node]:
    """Return the node of each host. Hosts without a known node get the remaining nodes, in order."""
    by_name = {node.name: node for node in fleet.nodes}
    node_by_host = {e.host: by_name[name] for e, name in layout(job, fleet, facts).node_of.items() if name in by_name}
    hosts = list(dict.fromkeys(host_of(entry) for entry in entries))
    for host in hosts:
        node = find_node(fleet, host)
        if node is not None:
            node_by_host.setdefault(host, node)
    for host in hosts:
        remaining = [node for node in fleet.nodes if node not in node_by_host.values()]
        node_by_host.setdefault(host, (remaining or fleet.nodes)[0])
    return node_by_host


def _block_node(nodes: Sequence[Node], index: int, count: int) -> Node:
    """Return the node of one of `count` processes that are distributed in equal blocks."""
    return nodes[index * len(nodes) // count]


@dataclass(frozen=True, slots=True)
class _Line:
    """The settings in one launch line for the one process that it starts; None if not set."""

    scope: Scope
    role: str
    index: int | None
    endpoint: str | None


def _lines(job: Job) -> Iterator[_Line]:
    for scope in scopes(job):
        role = known_text(job, "ps_role", scope)
        if role is not None and job.value("ps_mode", scope) == Known(True):
            endpoint = known_text(job, "ps_current_endpoint", scope)
            yield _Line(scope, role, known_int(job, "ps_index", scope), endpoint)


def _lines_of(lines: Sequence[_Line], kind: str) -> int:
    return sum(ROLES.get(line.role) == kind for line in lines)


def _add_launch_lines(job: Job, members: Sequence[Process], lines: Sequence[_Line]) -> list[Process]:
    """Return the processes with the settings of their launch lines; an unmatched line adds a process."""
    result = list(members)
    used: set[int] = set()
    for line in lines:
        slot = _matching_process(result, used, line)
        if slot is None:
            kind = ROLES.get(line.role, WORKER)
            node = next(process.node for process in reversed(result) if process.kind == kind)
            result.append(replace(next(p for p in result if p.kind == kind), node=node))
            slot = len(result) - 1
        used.add(slot)
        result[slot] = _add_settings(job, result[slot], line)
    return result


def _matching_process(candidates: Sequence[Process], taken_indices: set[int], line: _Line) -> int | None:
    """Return the process that a line starts, by endpoint or index, or else the first remaining process of its kind."""
    kind = ROLES.get(line.role)
    remaining = [n for n, p in enumerate(candidates) if n not in taken_indices and kind in (None, p.kind)]
    by_endpoint = [n for n in remaining if candidates[n].kind == SERVER and candidates[n].endpoint == line.endpoint]
    by_index = [n for n in remaining if candidates[n].index == line.index and kind is not None]
    return next(iter((*by_endpoint, *by_index, *remaining)), None)


def _add_settings(job: Job, process: Process, line: _Line) -> Process:
    endpoints = _add_ports(_list(job, "ps_server_endpoints", line.scope), SERVER_PORT) or process.server_endpoints
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
    """Return the host of `host:port`."""
    parts = split_endpoint(endpoint)
    return parts[0] if parts is not None else endpoint


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _list(job: Job, quantity: str, scope: Scope) -> tuple[str, ...]:
    return tuple(text for item in items(job.value(quantity, scope)) if (text := item.strip()))


def _first_list(job: Job, quantity: str) -> tuple[str, ...]:
    """Return the list in the first launch that has such a list."""
    lists = Counter(found for scope in scopes(job) if (found := _list(job, quantity, scope)))
    return lists.most_common(1)[0][0] if lists else ()


def _count(job: Job, quantity: str) -> int | None:
    """Return the number in the first launch that has such a number."""
    counts = Counter(value for scope in scopes(job) if (value := known_int(job, quantity, scope)))
    return counts.most_common(1)[0][0] if counts else None


# If all nodes are one machine


def _port_name_test(job: Job, facts: Facts) -> Callable[[str], bool]:
    """Return whether the files, or a node's environment, name the port of an endpoint."""
    listed = {entry for scope in scopes(job) for entry in _list(job, "ps_server_endpoints", scope)}
    own = {known_text(job, "ps_current_endpoint", scope) for scope in scopes(job)}
    values = {
        entry
        for environment in bare_environments(facts).values()
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


def _move_to_loopback(
    members: Sequence[Process], is_named: Callable[[str], bool], free: Sequence[int]
) -> list[Process]:
    """Return the processes on one machine: every endpoint moves to loopback, with a unique port.

    The first endpoint that names a port keeps it. All others get free ports, or consecutive ports if no free ports are
    known. Equal endpoints stay equal, and different lists stay different.
    """
    spelled = dict.fromkeys(e for process in members for e in (*process.server_endpoints, process.endpoint) if e)
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
        for process in members
    ]


def _port(endpoint: str) -> int:
    parts = split_endpoint(endpoint)
    return (parts[1] or 0) if parts is not None else 0


T = TypeVar("T")
PROBES = (run_server, run_worker)
#: The name of the evidence.
FACT = "parameter-server run"


@dataclass(frozen=True)
class ServerRun(GroupRun):
    """The recorded parameter-server run of one job: the reports of the processes that completed, with their nodes."""

    servers: tuple[tuple[str, ServerReport], ...]
    workers: tuple[tuple[str, WorkerReport], ...]
    #: Backup workers that were not needed.
    unused_backups: tuple[tuple[str, WorkerReport], ...] = ()

    @property
    def complete(self) -> bool:
        """Return whether all processes completed, except workers that a backup worker replaced."""
        ended = len(self.servers) + len(self.workers) + len(self.unused_backups)
        remaining = [record for record in self.records if record.unavailable is not None]
        missing = {member.key for member in self.members if member.rank in self.replaced}
        return (
            bool(self.records)
            and ended + len(remaining) == len(self.records)
            and all(r.request.key in missing for r in remaining)
        )

    @property
    def replaced(self) -> dict[int, Member | None]:
        """The indexes of replaced workers, with their backup workers."""
        return replacements(self.members, self.events)

    def member(self, number: int) -> Member | None:
        """Return the member with this index."""
        return next((member for member in self.members if member.rank == number), None)


def server_run_of(job: Job, facts: Facts) -> ServerRun:
    """Return the run of `job`, with its culprit if it failed."""
    group = group_of(job)
    run = group_run_of(facts, group)
    servers, workers = _reports(facts.each(run_server), group), _reports(facts.each(run_worker), group)
    placed = tuple((node, report) for node, report in workers if report.index >= 0)
    unneeded = tuple((node, report) for node, report in workers if report.index < 0)
    return ServerRun(run.records, run.events, run.culprit, run.claims, servers, placed, unneeded)


def _reports(rows: Iterable[FactRow[T]], group: str) -> tuple[tuple[str, T], ...]:
    return tuple((s.node, s.fact.value) for s in rows if s.request.group == group and isinstance(s.fact, Observed))


def missing_server_run_verdict(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Verdict | None:
    """Return the verdict if there was no such run; None if there was one."""
    reason = no_server_run_reason(job, fleet)
    if reason:
        return not_applicable("parameter-server run", reason)
    if not run.records:
        found = processes(job, fleet, facts)
        if isinstance(found, str):
            return unknown("parameter-server run", f"it was not run: {found}")
        return unknown("parameter-server run", "it was not run", required=True)
    return none_started_verdict("parameter-server run", "process", run)


def blocked_verdict(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Verdict | None:
    """Return the verdict of result checks if some processes have no result; None if all have a result."""
    early = missing_server_run_verdict(job, fleet, facts, run)
    if early is not None and not early.required:
        return early
    if early is not None or not run.complete:
        return unknown("parameter-server run", f"blocked by {blocking_check(run)}: not all processes completed")
    return None


def blocking_check(run: ServerRun) -> str:
    """Return the check that reports why the run failed."""
    culprit = run.culprit
    if culprit is not None and (culprit.kind == "mismatch" or (culprit.kind == "missing" and culprit.rank is None)):
        return "SMK023"
    return "SMK022" if culprit is not None and culprit.kind in ("endpoint", "path") else "SMK021"


def has_uncounted_pushes(run: ServerRun) -> bool:
    """Return whether the servers were a framework's own, which do not report individual pushes."""
    return all(not report.exact_steps for _, report in run.workers)


def complete_server_run(
    job: Job, fleet: Fleet, facts: Facts, *, counted: str = ""
) -> Generator[Verdict, None, ServerRun | None]:
    """Return the run of the job if every process has a result; otherwise yield the reason and return None.

    Args:
        counted: the subject of a check of bytes or pushes, which Paddle's own servers do not count.
    """
    run = server_run_of(job, facts)
    early = blocked_verdict(job, fleet, facts, run)
    if early is None and counted and has_uncounted_pushes(run):
        reason = "Paddle's own servers merge pushes without counting them; SMK027 checks the result"
        early = not_applicable(counted, reason)
    if early is None:
        return run
    yield early
    return None


#: The largest model of a run: a step over 10 Gbit/s then takes 30 ms. A worker compares the whole model with known
#: values of every worker, which takes 0.2 s of processor time per worker.
MAX_BYTES = 16 << 20
#: Copies of the model that fit into the available memory for each process on a node: four for weights, gradients, and
#: the data sent and received; as much again is left for others.
COPIES = 8


@dataclass(frozen=True, slots=True)
class JobShape:
    """The job's parameters, with first dimensions divided by `divisor`; `stated_bytes` is their undivided size."""

    dense: tuple[tuple[int, ...], ...]
    tables: tuple[tuple[int, int], ...]
    divisor: int
    stated_bytes: int
    claims: tuple[Claim, ...]

    @property
    def model(self) -> dict[str, object]:
        """The task of the reference trainer (`reference_trainer.ps.tasks.from_params`)."""
        return {
            "dense": [[f"parameter {number}", list(shape)] for number, shape in enumerate(self.dense)],
            "tables": [[f"table {number}", rows, width] for number, (rows, width) in enumerate(self.tables)],
        }


def job_shape(job: Job, facts: Facts, process_nodes: Iterable[str]) -> JobShape | None:
    """Return the shape of a run whose processes are on `process_nodes`; None if the files do not give all sizes."""
    parameters = parameters_of(job)
    if parameters is None:
        return None
    limit = min([MAX_BYTES, *(room // COPIES for room in _memory_per_process(facts, process_nodes))])
    whole = sum(map(product, (*parameters.dense, *parameters.tables))) * FLOAT_BYTES
    divisor = max(1, -(-whole // max(1, limit)))
    return JobShape(
        tuple((-(-shape[0] // divisor), *shape[1:]) for shape in parameters.dense),
        tuple((-(-rows // divisor), width) for rows, width in parameters.tables),
        divisor,
        sum(map(product, parameters.dense)) * FLOAT_BYTES,
        parameters.claims,
    )


def _memory_per_process(facts: Facts, process_nodes: Iterable[str]) -> list[int]:
    """Return the available memory in bytes for one process, for each node that reports it."""
    places = facts.observed(server_place)
    return [
        available // count
        for node, count in Counter(process_nodes).items()
        if node in places and (available := places[node].memory_free_bytes)
    ]


#: The probes whose facts are needed to plan and judge a run.
PLAN_PROBES = (*RANK_PLAN_PROBES, environment, server_place)
#: Steps of the exact phase and of training.
STEPS = 20
#: Far below the sizes of a training, so that the small model is cut into slices: some are added while they arrive, and
#: each reply holds several, as with large parameters.
SLICE_BYTES = STREAM_BYTES = 8192
#: Steps of a run with the job's own sizes: enough for a median, and each moves the whole model twice.
PROFILE_STEPS = 6
#: The time that such a process may compute silently before others count it as stopped.
PROFILE_LIMIT_S = 30.0
#: Local steps between two exchanges if a geo job does not state them (Paddle's default, geo_sgd_need_push_nums
#: of DistributeTranspilerConfig, Fluid 1.8).
GEO_STEPS = 100
#: Paddle's mode of servers that keep their parameters in GPU memory.
_GPU_BOX = "gpubox"
#: The mode of the smoke run for each mode of a job. Half-asynchronous servers, and those of GPU boxes, apply updates
#: as they arrive.
MODES = {"sync": "sync", "async": "async", "half-async": "async", _GPU_BOX: "async", "heter": "async", "geo": "geo"}


@dataclass(frozen=True, slots=True)
class Mode:
    """When the job's servers apply updates, and the claims that set this."""

    name: str
    why: str
    geo_steps: int = 1
    staleness: int | None = None
    claims: tuple[Claim, ...] = ()


def no_server_run_reason(job: Job, fleet: Fleet) -> str:
    """Return why the job has no parameter-server smoke run; empty if it has one."""
    if not has_parameter_servers(job):
        return "the job has no parameter servers"
    if not fleet.nodes:
        return "the job has no known nodes"
    return ""


def mode_of(job: Job, fleet: Fleet) -> Mode:
    """Return the mode that the user chose, or else the job's, or else synchronous, as in the frameworks."""
    options, stated_mode = fleet.smoke_options, _stated_mode(job)
    name = options.mode or stated_mode.name
    reason, claims = (f"{name}, as set by --mode", ()) if options.mode else (stated_mode.why, stated_mode.claims)
    if name == "ssp" and options.staleness is not None:
        reason += f", at most {options.staleness} steps ahead"
    if name != "geo":
        return Mode(name, reason, 1, options.staleness if name == "ssp" else None, claims)
    if options.geo_steps is not None:
        local = min(options.geo_steps, STEPS)
        return Mode(name, f"geo, exchanging every {local} steps", local, None, claims)
    if stated_mode.name == "geo":
        return Mode(name, stated_mode.why, stated_mode.geo_steps, None, stated_mode.claims)
    return Mode(name, f"{reason}, exchanging every {STEPS // 4} steps", STEPS // 4, None, claims)


def _stated_mode(job: Job) -> Mode:
    found = tuple(dict.fromkeys(claim for scope in scopes(job) for claim in job.about("ps_update_mode", scope)))
    strongest = max((claim.strength for claim in found), default=None)
    strongest_claims = tuple(claim for claim in found if claim.strength is strongest)
    names = [MODES[str(value)] for claim in strongest_claims for value in claim.alternatives if str(value) in MODES]
    if not names:
        return Mode("sync", "synchronous, because no mode is set", claims=strongest_claims)
    name = Counter(names).most_common(1)[0][0]
    if name != "geo":
        return Mode(name, f"{name}, as in the job", claims=strongest_claims)
    steps = [value for claim in job.about("geo_steps") for value in alternatives(claim.value) if isinstance(value, int)]
    chosen = next((value for value in steps if value > 0), GEO_STEPS)
    # A run of a few steps must exchange more than once.
    local = min(chosen, STEPS // 4)
    reason = f"geo, exchanging every {local} steps" + (f" (the job: {chosen})" if local != chosen else "")
    return Mode(name, reason, local, None, (*strongest_claims, *job.about("geo_steps")))


@requests_for(*PROBES)
def plan_servers(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Yield one request per server and worker, in one group, with servers first."""
    members = processes(job, fleet, facts) if not no_server_run_reason(job, fleet) else ""
    if not isinstance(members, str):
        mode = mode_of(job, fleet)
        requests = list(_requests(job, fleet, facts, members, mode))
        if has_backup(fleet, mode):
            requests = [
                replace(r, params={**r.params, "spares": 1}) for r in (*requests, _backup_request(fleet, requests))
            ]
        yield from with_injected_fault(
            requests,
            fleet.smoke_options.injected_fault,
            [*(process.kind for process in members), BACKUP_WORKER][: len(requests)],
        )


#: A check of the run with parameter servers.
server_check = functools.partial(check, plan=plan_servers, when="smoke")


def has_backup(fleet: Fleet, mode: Mode) -> bool:
    """Return whether a backup worker is started: one was requested, and servers do not wait for every worker."""
    return fleet.smoke_options.backup and mode.name != "sync"


def _backup_request(fleet: Fleet, requests: Sequence[Request]) -> Request:
    """Return the request for a backup worker, on the last of the nodes with the fewest processes."""
    busy = Counter(request.node for request in requests)
    node = min(reversed(fleet.nodes), key=lambda node: busy[node.name]).name
    like = next(request for request in reversed(requests) if request.probe == probe_name(run_worker))
    own = {"rank": len(requests), "index": 0, "spare": True, "role": WORKER, "worker_device": "cpu"}
    return replace(like, node=node, params={**like.params, **own})


def _requests(job: Job, fleet: Fleet, facts: Facts, members: tuple[Process, ...], mode: Mode) -> Iterator[Request]:
    policy, least = assignment_policy(job)
    framework = framework_of(job, fleet, facts).name
    shape = shape_of(job, fleet, facts, members)
    # A model of the job's size has large shards by itself.
    size: dict[str, object] = {"steps": STEPS, "slice_bytes": SLICE_BYTES, "stream_bytes": STREAM_BYTES}
    if shape is not None:
        size = {"steps": PROFILE_STEPS, "exact_steps": 1, "model": shape.model, "least_limit_s": PROFILE_LIMIT_S}
    numbers: dict[str, list[int]] = {"server": [], "worker": []}
    for number, process in enumerate(members):
        numbers[process.kind].append(number)
    if has_backup(fleet, mode):
        numbers[BACKUP_WORKER] = [len(members)]
    for number, process in enumerate(members):
        params: dict[str, object] = {
            "rank": number,
            "role": process.role,
            "index": process.index,
            "servers": process.servers,
            "workers": process.workers,
            "server_endpoints": list(process.server_endpoints),
            "endpoint": process.endpoint,
            "numbers": numbers,
            **({"source": process.source} if process.source else {}),
            **({"framework": framework} if framework else {}),
            "mode": mode.name,
            "geo_steps": mode.geo_steps,
            **({"staleness": mode.staleness} if mode.staleness is not None else {}),
            "policy": policy,
            "least_block": least,
            **size,
            **_devices(job, fleet, process, members, facts),
        }
        yield Request(
            probe_name(run_server if process.kind == SERVER else run_worker),
            process.node.name,
            params,
            context=True,
            group=group_of(job),
            because=tuple(dict.fromkeys((*process.claims, *mode.claims))),
            required=True,
            deadline_s=DEADLINE_S,
        )


def shape_of(job: Job, fleet: Fleet, facts: Facts, members: Sequence[Process]) -> JobShape | None:
    """Return the job's own parameters, if the user wants them in the run and the files give their sizes.

    Paddle's own servers train a fixed program.
    """
    if not fleet.smoke_options.profile_model or framework_of(job, fleet, facts).name:
        return None
    return job_shape(job, facts, [process.node.name for process in members])


def group_of(job: Job) -> str:
    """Return the name of the run."""
    return f"smoke {job.name}"


def server_device(job: Job, fleet: Fleet, facts: Facts, node: str) -> str:
    """Return the device on which a server on this node keeps its parameters: the user's choice, or else the job's.

    Servers of a GPU box keep them in GPU memory (Paddle's `gpubox`, distributed/fleet/runtime/the_one_ps.py); other
    servers, and those on nodes whose GPUs torch cannot use, keep them in host memory.
    """
    if fleet.smoke_options.server_device:
        return fleet.smoke_options.server_device
    on_gpu = any(
        claim.value == Known(_GPU_BOX) for scope in scopes(job) for claim in job.about("ps_update_mode", scope)
    )
    return "cuda" if on_gpu and gpus_on(facts, node) else "cpu"


def _devices(job: Job, fleet: Fleet, process: Process, members: tuple[Process, ...], facts: Facts) -> dict[str, object]:
    """Return a process's devices, and its index among its kind on the node; processes use the visible GPUs in turn."""
    node = process.node.name
    colocated = [other for other in members if other.node == process.node and _is_server(other) == _is_server(process)]
    return {
        "server_device": server_device(job, fleet, facts, node),
        "worker_device": "cuda" if gpus_on(facts, node) and not _is_server(process) else "cpu",
        "local_index": next(place for place, other in enumerate(colocated) if other is process),
    }


def _is_server(process: Process) -> bool:
    return process.kind == SERVER

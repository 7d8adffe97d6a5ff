"""The servers and trainers of a parameter-server job, their nodes, and the parameters that each server will hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from preflight._util.hostnames import split_endpoint
from preflight._util.sequences import grouped
from preflight.model.job import Claim, Job, Known, is_whole_number
from preflight.model.recording import Facts, Fleet
from preflight_checks.comparison import split
from preflight_checks.context.node_environment import bare
from preflight_checks.probes.server_place import ResolvedHost, ServerPlace, server_place
from preflight_checks.requirements import Endpoint, is_ps, known_int, named, scopes, server_endpoints
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

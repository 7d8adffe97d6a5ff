"""Which servers and trainers a parameter-server job has, on which nodes they land, and what each server will hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from preflight.job import Claim, Job, Known
from preflight.job.hostname import split_endpoint
from preflight.lazy.dataclasses import dataclass
from preflight.recording import Facts, Fleet
from preflight_checks.context.surroundings import bare
from preflight_checks.demands import Endpoint, deciding, known_int, named, scopes, server_endpoints
from preflight_checks.majority import split
from preflight_checks.probes.server_place import HostHere, ServerPlace, server_place
from reference_trainer.ps.sharding import FLOAT_BYTES, LEAST_BLOCK, OPTIMIZER_SLOTS, bytes_held, product

#: Kinds of processes of a parameter-server run.
SERVER, WORKER = "server", "worker"
_VARIABLES = {"server": "PADDLE_PSERVERS_IP_PORT_LIST", "trainer": "PADDLE_TRAINER_ENDPOINTS"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Servers and trainers, and the nodes they are on; `unplaced` are endpoints whose host no node knows as its own.

    `stated` is false where the nodes' own environment, and not the job's files, named the endpoints.
    """

    servers: tuple[Endpoint, ...]
    trainers: tuple[Endpoint, ...]
    node_of: Mapping[Endpoint, str]
    stated: bool

    @property
    def unplaced(self) -> tuple[Endpoint, ...]:
        """Endpoints that are on no node that is known."""
        return tuple(endpoint for endpoint in (*self.servers, *self.trainers) if endpoint not in self.node_of)

    def by_node(self, endpoints: Sequence[Endpoint]) -> dict[str, list[Endpoint]]:
        """Endpoints by the node they are on."""
        found: dict[str, list[Endpoint]] = {}
        for endpoint in endpoints:
            if endpoint in self.node_of:
                found.setdefault(self.node_of[endpoint], []).append(endpoint)
        return found


def is_ps(job: Job) -> bool:
    """Whether the job has parameter servers."""
    return any(job.value("ps_mode", scope) == Known(True) for scope in scopes(job)) or bool(server_endpoints(job))


def endpoints_of(job: Job, facts: Facts) -> tuple[tuple[Endpoint, ...], bool]:
    """Servers and trainers that the files spell out, else those that all nodes' own environments agree on."""
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
    """Who lands where, as the nodes themselves know their addresses; by name where no node said anything."""
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
    """The speed of the interface that the endpoint's address is on."""
    found: HostHere | None = next((host for host in place.hosts if host.host == endpoint.host), None)
    return found.speed_mbps if found is not None else None


@dataclass(frozen=True, slots=True)
class Shares:
    """What each server will hold, in bytes, and what of it every trainer exchanges in a step; with its claims."""

    held: tuple[int, ...]
    exchanged: tuple[int, ...]
    claims: tuple[Claim, ...]
    slots: int


def shares(job: Job, servers: int) -> Shares | None:
    """What the servers hold, where the files spell out the sizes of parameters; None where they do not.

    Dense parameters are cut and dealt as the job says (Paddle's slice_var_up, min_block_size, split_method); tables
    with sparse gradients are divided by row. Tables that grow while training start empty and are not counted. What a
    step exchanges is the dense part: of a table only the rows of a batch travel, and their number is not known.
    """
    tables = [claim for claim in job.about("embedding_shape") if isinstance(claim.value, Known)]
    dense = [claim for claim in job.about("parameter_shape") if isinstance(claim.value, Known)]
    if servers < 1 or not (tables or dense):
        return None
    if len(tables) + len(dense) < len(job.about("embedding_shape")) + len(job.about("parameter_shape")):
        return None
    by_row: list[tuple[int, int]] = []
    whole: list[tuple[int, ...]] = []
    growing = {r.span for c in job.about("embedding_sparse") if "sparse_embedding" in c.spelling for r in c.because}
    sparse = {r.span for c in job.about("embedding_sparse") if True in c.alternatives for r in c.because}
    for claim in (*tables, *dense):
        shape = _shape(claim)
        if shape is None or claim.span in growing:
            continue
        if claim.span in sparse and len(shape) == 2:
            by_row.append((shape[0], shape[1]))
        else:
            whole.append(shape)
    policy, least = dealing(job)
    optimizers = {str(value) for claim in job.about("optimizer") for value in claim.alternatives}
    slots = max((OPTIMIZER_SLOTS.get(name, 0) for name in optimizers), default=0)
    held = bytes_held(whole, by_row, servers, least=least, policy=policy, slots=slots)
    exchanged = bytes_held(whole, (), servers, least=least, policy=policy)
    if not sum(held):
        return None
    largest = max((*tables, *dense), key=lambda claim: product(_shape(claim) or (0,)))
    return Shares(tuple(held), tuple(exchanged), (largest,), slots)


def dealing(job: Job) -> tuple[str, int | None]:
    """How blocks are given to servers, and the least block; None where parameters are not cut."""
    policy = {"RoundRobin": "round-robin", "HashName": "hash"}.get(_text(job, "split_method"), "round-robin")
    return policy, _least(job)


def _least(job: Job) -> int | None:
    """The least block, or None where parameters are not cut."""
    if any(False in claim.alternatives for claim in job.about("slice_var_up")):
        return None
    return next((value for scope in scopes(job) if (value := known_int(job, "min_block_size", scope))), LEAST_BLOCK)


def _text(job: Job, quantity: str) -> str:
    return next((str(value) for claim in job.about(quantity) for value in claim.alternatives), "")


def _shape(claim: Claim) -> tuple[int, ...] | None:
    """The sizes of a parameter; None for such that are no positive numbers of a size that any machine has."""
    for value in claim.alternatives:
        if isinstance(value, tuple) and all(str(item).isdigit() for item in value):
            shape = tuple(int(str(item)) for item in value)
            return shape if 0 < product(shape) * FLOAT_BYTES < 2**60 else None
    return None


def said(layout: Layout) -> tuple[Claim, ...]:
    """The claims that name the servers."""
    return tuple(dict.fromkeys(claim for endpoint in layout.servers for claim in endpoint.claims))


def counts(job: Job) -> tuple[Claim, ...]:
    """The claims that say how many servers there are."""
    return tuple(dict.fromkeys(claim for scope in scopes(job) for claim in deciding(job, "ps_servers", scope)))

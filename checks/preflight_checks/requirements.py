"""A job's requirements for its nodes, according to its claims, and the nodes of a fleet by name and address."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from preflight._util.hostnames import folded, is_loopback, split_endpoint
from preflight._util.sequences import join_some
from preflight.analysis import model_size
from preflight.model.job import WHOLE_JOB, Claim, Job, Known, Scope, Strength, Unresolved
from preflight.model.job.value import items, known_number
from preflight.model.job.value import known_text as text_of
from preflight.model.recording import Fleet, Node
from preflight.plugins.authoring import memoize

#: Number of addresses whose parsed form is cached: several for each node of a large fleet.
_ADDRESSES = 1 << 16
#: Up to this many names are listed one by one; more that end in numbers become a range if the range is short.
_LISTED, _MAX_RANGE_LENGTH = 4, 80
#: Making a range of more names takes a tenth of a second.
_MAX_FOLDED = 1000
_NUMBERED = re.compile(r"[A-Za-z][A-Za-z0-9-]*[0-9]", re.ASCII)


def find_node(fleet: Fleet, host: str) -> Node | None:
    """Return the node with this name, short name or address."""
    wanted_host = host.rstrip(".").lower()
    whole, short = _nodes_by_name(fleet)
    found = whole.get(wanted_host)
    if found is not None or is_literal(host):
        return found
    nodes = short.get(wanted_host.split(".")[0], ())
    return nodes[0] if len(nodes) == 1 else None


@memoize
def _nodes_by_name(fleet: Fleet) -> tuple[dict[str, Node], dict[str, list[Node]]]:
    """Return the nodes by name and address, and by short name. Memoized, because callers look up every node."""
    whole: dict[str, Node] = {}
    short: dict[str, list[Node]] = {}
    for node in fleet.nodes:
        whole.setdefault(node.name.lower(), node)
        whole.setdefault(node.address.lower(), node)
        short.setdefault(node.name.split(".")[0].lower(), []).append(node)
    return whole, short


def unreached_nodes(fleet: Fleet) -> tuple[str, ...]:
    """Return the nodes without an agent, which NOD001 reports."""
    return tuple(record.node.name for record in fleet.records if record.problem)


def is_single_machine(fleet: Fleet) -> bool:
    """Return whether all nodes are processes of this machine."""
    return bool(fleet.nodes) and all(is_loopback(node.address or "-") for node in fleet.nodes)


def nodes_share_machine(fleet: Fleet) -> bool:
    """Return whether several "nodes" are processes of one machine (`--on local`), whose names are meaningless."""
    return len(fleet.nodes) > 1 and is_single_machine(fleet)


def is_multi_node(fleet: Fleet) -> bool:
    """Return whether the job runs on several machines, as far as is known."""
    return len(fleet.nodes) > 1 and not nodes_share_machine(fleet)


@functools.lru_cache(_ADDRESSES)
def parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address in `host`, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_literal(host: str) -> bool:
    """Return whether `host` is an address, not a name."""
    return parse_address(host) is not None


def fold(names: Iterable[str], limit: int = 8) -> str:
    """Return names for display: all if they are few, a range such as `node[1-9]`, or the first names and a count."""
    listed = list(dict.fromkeys(names))
    if _LISTED < len(listed) <= _MAX_FOLDED and all(_NUMBERED.fullmatch(name) for name in listed):
        text = folded(listed)
        if len(text) <= _MAX_RANGE_LENGTH:
            return text
    return join_some(listed, limit)


#: The port of torchrun's c10d rendezvous when its endpoint names none (DEFAULT_PORT of that backend).
C10D_PORT = 29400
#: The port of rank 0's store under torchrun and the DeepSpeed launcher when nothing else is set.
MASTER_PORT = 29500


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and port that a process of the job binds and others connect to.

    Args:
        what: its purpose in the job, for messages.
        host: as written in the job; empty if only known at run time (then it is the node of rank 0).
        port: TCP port; 0 if unknown.
        named: whether the files name the port; otherwise it is the launcher's default.
        kind: `store` (rank 0's store), `rendezvous` (torchrun's c10d), `server` or `trainer` (parameter servers).
    """

    what: str
    kind: str
    host: str
    port: int
    claims: tuple[Claim, ...] = ()
    named: bool = True

    @property
    def spelling(self) -> str:
        """The endpoint as the user wrote it, for messages."""
        spellings = [claim.spelling for claim in self.claims if claim.spelling]
        return ", ".join(dict.fromkeys(spellings))


@memoize
def store_endpoints(job: Job) -> tuple[Endpoint, ...]:
    """Return the rendezvous endpoints of each launch, without duplicates.

    torchrun ignores `--master_addr` once `--rdzv_endpoint` is given, so `--rdzv_endpoint` is read first. Etcd
    endpoints, which are outside the job's nodes, and `--standalone` are skipped.
    """
    found: dict[tuple[str, str, int], Endpoint] = {}
    for scope in scopes(job):
        endpoint = _store_endpoint(job, scope)
        if endpoint is not None:
            found.setdefault((endpoint.kind, endpoint.host, endpoint.port), endpoint)
    return tuple(found.values())


def _store_endpoint(job: Job, scope: Scope) -> Endpoint | None:
    backend = known_text(job, "rendezvous_backend", scope) or ""
    if job.value("standalone", scope) == Known(True) or backend.startswith("etcd"):
        return None
    if job.value("ps_mode", scope) == Known(True):
        return None
    claims = job.value_claims("rendezvous_endpoint", scope)
    if claims:
        kind = "rendezvous" if backend == "c10d" else "store"
        endpoint_text = known_text(job, "rendezvous_endpoint", scope)
        parts = split_endpoint(endpoint_text) if endpoint_text else None
        host, port = parts if parts else ("", None)
        default = C10D_PORT if kind == "rendezvous" else MASTER_PORT
        # Port 0 lets the system choose one; only a missing port has a default.
        chosen = default if port is None else port
        return Endpoint("the rendezvous endpoint", kind, host, chosen if endpoint_text else 0, claims, bool(port))
    addresses, ports = job.value_claims("master_addr", scope), job.value_claims("master_port", scope)
    if not addresses and not ports:
        return None
    port = known_int(job, "master_port", scope) or 0
    host = known_text(job, "master_addr", scope) or ""
    named = any(names_value(claim) for claim in ports)
    return Endpoint("the master port", "store", host, port, (*addresses, *ports), named)


def store_claims(job: Job) -> tuple[Claim, ...]:
    """Return the claims that name the rendezvous endpoints."""
    return tuple(claim for endpoint in store_endpoints(job) for claim in endpoint.claims)


@memoize
def server_endpoints(job: Job) -> tuple[Endpoint, ...]:
    """Return every parameter server and trainer endpoint that the files list."""
    endpoints: dict[tuple[str, str, int], Endpoint] = {}
    for scope in scopes(job):
        for kind, quantity in (("server", "ps_server_endpoints"), ("trainer", "ps_worker_endpoints")):
            for index, spelled in enumerate(items(job.value(quantity, scope))):
                parts = split_endpoint(spelled)
                if parts is None or not parts[1]:
                    continue
                what = f"parameter {kind} {index}" if kind == "server" else f"trainer {index}"
                endpoint = Endpoint(what, kind, parts[0], parts[1], job.value_claims(quantity, scope))
                endpoints.setdefault((kind, endpoint.host, endpoint.port), endpoint)
    return tuple(endpoints.values())


def has_parameter_servers(job: Job) -> bool:
    """Return whether the job has parameter servers."""
    return any(job.value("ps_mode", scope) == Known(True) for scope in scopes(job)) or bool(server_endpoints(job))


def endpoints(job: Job) -> tuple[Endpoint, ...]:
    """Return every endpoint that one node binds and others connect to."""
    return (*store_endpoints(job), *server_endpoints(job))


def endpoints_on(job: Job, fleet: Fleet) -> tuple[Endpoint, ...]:
    """Return the endpoints that these nodes must provide. If the nodes are one machine, no default port is needed."""
    played = nodes_share_machine(fleet)
    return tuple(endpoint for endpoint in endpoints(job) if endpoint.named or not played)


def owner(fleet: Fleet, endpoint: Endpoint) -> Node | None:
    """Return the name of the node that binds `endpoint`: rank 0's node if it has no host or a loopback host; None if
    unknown.
    """
    if endpoint.kind in ("store", "rendezvous") and (not endpoint.host or is_loopback(endpoint.host)):
        return fleet.master
    return find_node(fleet, endpoint.host)


@memoize
def scopes(job: Job) -> tuple[Scope, ...]:
    """Return the scopes in which to read the job: one per launch, or the whole job if no launch was found."""
    return tuple(launch.scope for launch in job.launches) or (WHOLE_JOB,)


def known_int(job: Job, quantity: str, scope: Scope = WHOLE_JOB) -> int | None:
    """Return the value of `quantity` in `scope` if it is a single known whole number, otherwise None."""
    return known_number(job.value(quantity, scope))


def known_text(job: Job, quantity: str, scope: Scope = WHOLE_JOB) -> str | None:
    """Return the value of `quantity` in `scope` if it is a single known string, otherwise None."""
    return text_of(job.value(quantity, scope))


def names_value(claim: Claim) -> bool:
    """Return whether the files set the value of a claim, so that it is not merely the launcher's default."""
    return claim.strength > Strength.DEFAULT or any(str(value) in claim.spelling for value in claim.alternatives)


@memoize
def largest_value(job: Job, quantity: str) -> tuple[int, tuple[Claim, ...]] | None:
    """Return the largest known value of `quantity` in any launch, with the claims that give it."""
    best: tuple[int, tuple[Claim, ...]] | None = None
    for scope in scopes(job):
        value = known_int(job, quantity, scope)
        if value is not None and (best is None or value > best[0]):
            best = (value, job.value_claims(quantity, scope))
    return best


@memoize
def backends(job: Job) -> tuple[frozenset[str], tuple[Claim, ...]]:
    """Return the backends that the job names (`gloo`, `nccl`, `ps` ...), with claims; empty if torch chooses."""
    stated, found = model_size.stated_backends(job, scopes(job))
    names, claims = set(stated), list(found)
    for scope in scopes(job):
        if job.value("ps_mode", scope) == Known(True):
            names.add("ps")
            claims.extend(job.value_claims("ps_mode", scope))
    return frozenset(names), tuple(dict.fromkeys(claims))


def backend_claims(job: Job) -> tuple[Claim, ...]:
    """Return the claims that name the process-group backends."""
    return backends(job)[1]


@memoize
def asked_backend(job: Job) -> tuple[str, tuple[Claim, ...]]:
    """Return the backend that the job certainly uses (`nccl`, `gloo`, or empty), with the claims that name it."""
    return model_size.requested_backend(job, scopes(job))


@memoize
def gpu_claims(job: Job) -> tuple[Claim, ...]:
    """Return the claims that make GPUs necessary; empty if the job can run without them."""
    names, claims = backends(job)
    found = (claim for claim in claims if "nccl" in names and claim.quantity == "backend")
    return tuple(dict.fromkeys((*found, *model_size.gpu_requests(job, scopes(job)))))


@dataclass(frozen=True, slots=True)
class Filter:
    """A variable that selects interfaces on a node: its value, its source, and whether the ranks certainly see it."""

    variable: str
    value: str
    claims: tuple[Claim, ...]
    origin: str = ""
    certain: bool = True


FILTER_VARIABLES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "FI_TCP_IFACE"),
    *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_oob_tcp_if_include"),
)


def filters(job: Job, node: str = "") -> tuple[Filter, ...]:
    """Return the effective interface filters on `node`, each variable and value once."""
    return _filters(job, node if node in job.named_nodes else "")


@memoize
def _filters(job: Job, node: str) -> tuple[Filter, ...]:
    found: dict[tuple[str, str], Filter] = {}
    for variable in FILTER_VARIABLES:
        for scope in scopes(job):
            scope = Scope(scope.launch, scope.role, node)
            for claim in job.setting(f"env.{variable}", scope):
                for value in claim.alternatives:
                    if isinstance(value, str) and value:
                        found.setdefault((variable, value), Filter(variable, value, (claim,)))
    return tuple(found.values())


def filter_of(job: Job, variable: str, node: str = "") -> Filter | None:
    """Return the filter of `variable` on `node`; None if the variable has no value or several values."""
    found = [item for item in filters(job, node) if item.variable == variable]
    return found[0] if len(found) == 1 else None


@memoize
def filter_unresolved(job: Job, variable: str) -> bool:
    """Return whether the files set `variable` to a value that is known only at run time."""
    return any(
        isinstance(claim.value, Unresolved) for scope in scopes(job) for claim in job.setting(f"env.{variable}", scope)
    )

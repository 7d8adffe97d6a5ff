"""The nodes of a fleet by name and address, and the endpoints that some process binds and the others connect to."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from preflight._util.hostnames import folded, is_loopback, split_endpoint
from preflight._util.sequences import join_some
from preflight.model.job import Claim, Job, Known, Scope
from preflight.model.job.value import items
from preflight.model.recording import Fleet, Node
from preflight.plugins.authoring import memoize
from preflight_checks.requirements.claims import known_int, known_text, names_value, scopes

#: Number of addresses whose parsed form is cached: several for each node of a large fleet.
_ADDRESSES = 1 << 16
#: Up to this many names are listed one by one; more that end in numbers become a range if the range is short.
_LISTED, _MAX_RANGE_LENGTH = 4, 80
#: Making a range of more names takes a tenth of a second.
_MAX_FOLDED = 1000
_NUMBERED = re.compile(r"[A-Za-z][A-Za-z0-9-]*[0-9]", re.ASCII)


def named(fleet: Fleet, host: str) -> Node | None:
    """The node with this name, short name or address."""
    wanted = host.rstrip(".").lower()
    whole, short = _by_name(fleet)
    found = whole.get(wanted)
    if found is not None or is_literal(host):
        return found
    nodes = short.get(wanted.split(".")[0], ())
    return nodes[0] if len(nodes) == 1 else None


@memoize
def _by_name(fleet: Fleet) -> tuple[dict[str, Node], dict[str, list[Node]]]:
    """The nodes by name and address, and by short name. Memoized: callers look up every node of a large fleet."""
    whole: dict[str, Node] = {}
    short: dict[str, list[Node]] = {}
    for node in fleet.nodes:
        whole.setdefault(node.name.lower(), node)
        whole.setdefault(node.address.lower(), node)
        short.setdefault(node.name.split(".")[0].lower(), []).append(node)
    return whole, short


def unreached(fleet: Fleet) -> tuple[str, ...]:
    """The nodes without an agent, which NOD001 reports."""
    return tuple(record.node.name for record in fleet.records if record.problem)


def is_single_machine(fleet: Fleet) -> bool:
    """Whether all nodes are processes of this machine."""
    return bool(fleet.nodes) and all(is_loopback(node.address or "-") for node in fleet.nodes)


def nodes_share_machine(fleet: Fleet) -> bool:
    """Whether several "nodes" are processes of one machine, as with `--on local`.

    The names of the job's nodes and of this machine then mean nothing.
    """
    return len(fleet.nodes) > 1 and is_single_machine(fleet)


def is_multi_node(fleet: Fleet) -> bool:
    """Whether the job runs on several machines, as far as known."""
    return len(fleet.nodes) > 1 and not nodes_share_machine(fleet)


@functools.lru_cache(_ADDRESSES)
def literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address in `host`, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_literal(host: str) -> bool:
    """Whether `host` is an address, not a name."""
    return literal(host) is not None


def fold(names: Iterable[str], limit: int = 8) -> str:
    """Names for display: all of a few, a range such as `node[1-9]`, or the first ones and the number of the rest."""
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
    """A host and port that some process of the job binds and others connect to.

    Args:
        what: what it is in the job, for messages.
        host: as written in the job; empty if only known at run time (then it is the node of rank 0).
        port: TCP port; 0 if unknown.
        named: whether the files name the port; else it is the launcher's default.
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
    """The endpoints where the ranks of each launch meet, without duplicates.

    torchrun ignores `--master_addr` once `--rdzv_endpoint` is given, so that one is read first. Etcd endpoints are
    outside the job's nodes and are left out, as is `--standalone`.
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
        spelled = known_text(job, "rendezvous_endpoint", scope)
        parts = split_endpoint(spelled) if spelled else None
        host, port = parts if parts else ("", None)
        default = C10D_PORT if kind == "rendezvous" else MASTER_PORT
        # Port 0 lets the system choose one; only a missing port has a default.
        chosen = default if port is None else port
        return Endpoint("the rendezvous endpoint", kind, host, chosen if spelled else 0, claims, bool(port))
    addresses, ports = job.value_claims("master_addr", scope), job.value_claims("master_port", scope)
    if not addresses and not ports:
        return None
    port = known_int(job, "master_port", scope) or 0
    host = known_text(job, "master_addr", scope) or ""
    named = any(names_value(claim) for claim in ports)
    return Endpoint("the master port", "store", host, port, (*addresses, *ports), named)


def store_claims(job: Job) -> tuple[Claim, ...]:
    """The claims that name the endpoints where the ranks meet."""
    return tuple(claim for endpoint in store_endpoints(job) for claim in endpoint.claims)


@memoize
def server_endpoints(job: Job) -> tuple[Endpoint, ...]:
    """Every parameter server and trainer endpoint that the files list."""
    found: dict[tuple[str, str, int], Endpoint] = {}
    for scope in scopes(job):
        for kind, quantity in (("server", "ps_server_endpoints"), ("trainer", "ps_worker_endpoints")):
            for index, spelled in enumerate(items(job.value(quantity, scope))):
                parts = split_endpoint(spelled)
                if parts is None or not parts[1]:
                    continue
                what = f"parameter {kind} {index}" if kind == "server" else f"trainer {index}"
                endpoint = Endpoint(what, kind, parts[0], parts[1], job.value_claims(quantity, scope))
                found.setdefault((kind, endpoint.host, endpoint.port), endpoint)
    return tuple(found.values())


def is_ps(job: Job) -> bool:
    """Whether the job has parameter servers."""
    return any(job.value("ps_mode", scope) == Known(True) for scope in scopes(job)) or bool(server_endpoints(job))


def endpoints(job: Job) -> tuple[Endpoint, ...]:
    """Every endpoint that one node binds and others connect to."""
    return (*store_endpoints(job), *server_endpoints(job))


def endpoints_on(job: Job, fleet: Fleet) -> tuple[Endpoint, ...]:
    """The endpoints that these nodes must provide; no default port is needed if they are one machine."""
    played = nodes_share_machine(fleet)
    return tuple(endpoint for endpoint in endpoints(job) if endpoint.named or not played)


def owner(fleet: Fleet, endpoint: Endpoint) -> Node | None:
    """The node that will bind `endpoint`, judged by names without a look-up; None if unknown.

    The node of rank 0 binds a store without a host, or with a loopback host.
    """
    if endpoint.kind in ("store", "rendezvous") and (not endpoint.host or is_loopback(endpoint.host)):
        return fleet.master
    return named(fleet, endpoint.host)

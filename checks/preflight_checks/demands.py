"""What a job demands of its nodes, read out of its claims: endpoints, back ends, interface filters, GPUs.

Checks plan from these, so that only what the job makes necessary is asked of a node.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator

from preflight.job import WHOLE_JOB, Claim, Job, Known, Scope, Strength, Unresolved, as_int
from preflight.job.hostname import folded, split_endpoint
from preflight.judgement import Verdict, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.once import once
from preflight.recording import Facts, Fleet, Node

#: torch.distributed.run: a c10d rendezvous endpoint without a port listens here (DEFAULT_PORT of its back end).
C10D_PORT = 29400
#: torch.distributed.run and the DeepSpeed launcher: the store of rank 0 when nothing else is said.
MASTER_PORT = 29500
#: So many addresses are remembered once they were taken apart: several for each node of a large fleet.
_ADDRESSES = 1 << 16
#: So many names are listed as they are; of more those that end in numbers make a range, if that is short.
_LISTED, _LONGEST_RANGE = 4, 80
#: Making a range of more takes a tenth of a second.
_MOST_FOLDED = 1000
_NUMBERED = lazy_pattern(r"[A-Za-z][A-Za-z0-9-]*[0-9]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and port that some process of the job binds and others dial.

    Args:
        what: what it is in the job, for messages.
        host: as spelled in the job; empty when only run time can tell (then it is the node of rank 0).
        port: TCP port; 0 when nothing says it.
        named: whether the files name the port; else it is what the launcher takes by itself.
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
        said = [claim.spelling for claim in self.claims if claim.spelling]
        return ", ".join(dict.fromkeys(said))


@once
def scopes(job: Job) -> tuple[Scope, ...]:
    """The scopes to read the job in: one per launch, or the whole job when no launch was found."""
    return tuple(launch.scope for launch in job.launches) or (WHOLE_JOB,)


def deciding(job: Job, quantity: str, scope: Scope = WHOLE_JOB) -> tuple[Claim, ...]:
    """The claims that decide what `quantity` is in `scope`."""
    return job.setting(quantity, scope) or job.requiring(quantity, scope)


def known_int(job: Job, quantity: str, scope: Scope = WHOLE_JOB) -> int | None:
    """The one whole number `quantity` is known to be in `scope`."""
    value = as_int(job.value(quantity, scope))
    return value.value if isinstance(value, Known) and isinstance(value.value, int) else None


def known_text(job: Job, quantity: str, scope: Scope = WHOLE_JOB) -> str | None:
    """The one text `quantity` is known to be in `scope`."""
    value = job.value(quantity, scope)
    return value.value if isinstance(value, Known) and isinstance(value.value, str) else None


def names_value(claim: Claim) -> bool:
    """Whether a claim stands in the files, and is not only what its launcher takes where they say nothing."""
    return claim.strength > Strength.DEFAULT or any(str(value) in claim.spelling for value in claim.alternatives)


@once
def largest(job: Job, quantity: str) -> tuple[int, tuple[Claim, ...]] | None:
    """The largest value `quantity` surely has in any launch, and the claims that say so."""
    best: tuple[int, tuple[Claim, ...]] | None = None
    for scope in scopes(job):
        value = known_int(job, quantity, scope)
        if value is not None and (best is None or value > best[0]):
            best = (value, deciding(job, quantity, scope))
    return best


@once
def store_endpoints(job: Job) -> tuple[Endpoint, ...]:
    """Where the ranks of each launch meet; launches that meet in one place give it once.

    torchrun ignores `--master_addr` once `--rdzv_endpoint` is given, so that one is looked at first. Etcd
    endpoints are no part of the job's own nodes and are left out, as is `--standalone`.
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
    claims = deciding(job, "rendezvous_endpoint", scope)
    if claims:
        kind = "rendezvous" if backend == "c10d" else "store"
        spelled = known_text(job, "rendezvous_endpoint", scope)
        parts = split_endpoint(spelled) if spelled else None
        host, port = parts if parts else ("", None)
        default = C10D_PORT if kind == "rendezvous" else MASTER_PORT
        # Port 0 lets the system choose one; only a missing port has a default.
        chosen = default if port is None else port
        return Endpoint("the rendezvous endpoint", kind, host, chosen if spelled else 0, claims, bool(port))
    addresses, ports = deciding(job, "master_addr", scope), deciding(job, "master_port", scope)
    if not addresses and not ports:
        return None
    port = known_int(job, "master_port", scope) or 0
    host = known_text(job, "master_addr", scope) or ""
    named = any(names_value(claim) for claim in ports)
    return Endpoint("the master port", "store", host, port, (*addresses, *ports), named)


@once
def server_endpoints(job: Job) -> tuple[Endpoint, ...]:
    """Every parameter server and trainer endpoint that the files spell out."""
    found: dict[tuple[str, str, int], Endpoint] = {}
    for scope in scopes(job):
        for kind, quantity in (("server", "ps_server_endpoints"), ("trainer", "ps_worker_endpoints")):
            value = job.value(quantity, scope)
            if not isinstance(value, Known) or not isinstance(value.value, tuple):
                continue
            for index, spelled in enumerate(value.value):
                parts = split_endpoint(str(spelled))
                if parts is None or not parts[1]:
                    continue
                what = f"parameter {kind} {index}" if kind == "server" else f"trainer {index}"
                endpoint = Endpoint(what, kind, parts[0], parts[1], deciding(job, quantity, scope))
                found.setdefault((kind, endpoint.host, endpoint.port), endpoint)
    return tuple(found.values())


def endpoints(job: Job) -> tuple[Endpoint, ...]:
    """Everything that is bound on one node and dialled from others."""
    return (*store_endpoints(job), *server_endpoints(job))


def endpoints_on(job: Job, fleet: Fleet) -> tuple[Endpoint, ...]:
    """Those that these nodes have to offer: a machine that plays several nodes need not have a default port free."""
    played = stand_ins(fleet)
    return tuple(endpoint for endpoint in endpoints(job) if endpoint.named or not played)


def owner(fleet: Fleet, endpoint: Endpoint) -> Node | None:
    """The node that will bind `endpoint`, as far as names tell without a look-up.

    A store whose host is not spelled, or is loopback, is bound by the node of rank 0.
    """
    if endpoint.kind in ("store", "rendezvous") and (not endpoint.host or is_loopback(endpoint.host)):
        return fleet.master
    return named(fleet, endpoint.host)


def named(fleet: Fleet, host: str) -> Node | None:
    """The node with this name, short name or address."""
    wanted = host.rstrip(".").lower()
    whole, short = _by_name(fleet)
    found = whole.get(wanted)
    if found is not None or is_literal(host):
        return found
    nodes = short.get(wanted.split(".")[0], ())
    return nodes[0] if len(nodes) == 1 else None


@once
def _by_name(fleet: Fleet) -> tuple[dict[str, Node], dict[str, list[Node]]]:
    """The nodes by name and address, and by short name: a large fleet is asked for each of its nodes."""
    whole: dict[str, Node] = {}
    short: dict[str, list[Node]] = {}
    for node in fleet.nodes:
        whole.setdefault(node.name.lower(), node)
        whole.setdefault(node.address.lower(), node)
        short.setdefault(node.name.split(".")[0].lower(), []).append(node)
    return whole, short


def unreached(fleet: Fleet) -> tuple[str, ...]:
    """The nodes that gave no agent; what depends on them is blocked by NOD001."""
    return tuple(record.node.name for record in fleet.records if record.problem)


def unseen(facts: Facts, probe: Callable[..., object], what: str) -> Iterator[Verdict]:
    """`unknown` for the nodes where a probe could not observe `what`, each reason once with its nodes."""
    missing: dict[str, list[str]] = {}
    for node, why in facts.missing(probe):
        missing.setdefault(why.reason, []).append(node)
    for reason, nodes in missing.items():
        yield unknown(f"{what} on {fold(nodes)}", reason)


def one_machine(fleet: Fleet) -> bool:
    """Whether all nodes are processes of this machine: it may be used by others who play nodes there, too."""
    return bool(fleet.nodes) and all(is_loopback(node.address or "-") for node in fleet.nodes)


def stand_ins(fleet: Fleet) -> bool:
    """Whether several "nodes" are processes of one machine that stand in for the job's nodes.

    What the job calls its nodes, and what this machine calls itself, then says nothing about the job's nodes.
    """
    return len(fleet.nodes) > 1 and one_machine(fleet)


@functools.lru_cache(_ADDRESSES)
def literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that `host` is; None where it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_literal(host: str) -> bool:
    """Whether `host` is an address, not a name."""
    return literal(host) is not None


@functools.lru_cache(_ADDRESSES)
def is_loopback(host: str) -> bool:
    """Whether `host` is an address of the loopback interface, or the name every machine has for it."""
    address = literal(host)
    if address is None:
        return host.lower() in ("localhost", "localhost.localdomain", "ip6-localhost")
    return address.is_loopback


@once
def backends(job: Job) -> tuple[frozenset[str], tuple[Claim, ...]]:
    """The process-group back ends the job may use (`gloo`, `nccl`, `ps` ...) and the claims that say so.

    Empty when nothing says it: torch then takes gloo for tensors on the CPU and nccl for those on GPUs.
    """
    names: set[str] = set()
    claims: list[Claim] = []
    for scope in scopes(job):
        for claim in deciding(job, "backend", scope):
            for alternative in claim.alternatives:
                # `cpu:gloo,cuda:nccl` names one back end per kind of device.
                names.update(part.split(":")[-1].strip().lower() for part in str(alternative).split(","))
            claims.append(claim)
        if job.value("ps_mode", scope) == Known(True):
            names.add("ps")
            claims.extend(deciding(job, "ps_mode", scope))
    return frozenset(names), tuple(dict.fromkeys(claims))


@once
def gpu_claims(job: Job) -> tuple[Claim, ...]:
    """The claims that make GPUs necessary; empty when the job can do without."""
    names, claims = backends(job)
    found = [claim for claim in claims if "nccl" in names and claim.quantity == "backend"]
    for quantity in ("gpus_per_node", "gpus_per_task"):
        for scope in scopes(job):
            if (known_int(job, quantity, scope) or 0) > 0:
                found.extend(deciding(job, quantity, scope))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Filter:
    """A variable that chooses interfaces, as one node sees it.

    `origin` says where it comes from, if not out of the job's files; `certain` whether the ranks surely see it.
    """

    variable: str
    value: str
    claims: tuple[Claim, ...]
    origin: str = ""
    certain: bool = True


FILTER_VARIABLES = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "HOROVOD_GLOO_IFACE",
    "FI_TCP_IFACE",
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_btl_tcp_if_exclude",
    "OMPI_MCA_oob_tcp_if_include",
)


def filters(job: Job, node: str = "") -> tuple[Filter, ...]:
    """The interface filters in force on `node`, each variable and value once."""
    return _filters(job, node if node in job.named_nodes else "")


@once
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
    """The only value of `variable` on `node`; None when it has none or several."""
    found = [item for item in filters(job, node) if item.variable == variable]
    return found[0] if len(found) == 1 else None


@once
def filter_unresolved(job: Job, variable: str) -> bool:
    """Whether the files set `variable` to something only run time can tell."""
    return any(
        isinstance(claim.value, Unresolved) for scope in scopes(job) for claim in job.setting(f"env.{variable}", scope)
    )


def fold(names: Iterable[str], most: int = 8) -> str:
    """Names as a reader wants them: all of a few, a range where many make one, else the first and how many more."""
    listed = list(dict.fromkeys(names))
    if _LISTED < len(listed) <= _MOST_FOLDED and all(_NUMBERED.fullmatch(name) for name in listed):
        text = folded(listed)
        if len(text) <= _LONGEST_RANGE:
            return text
    if len(listed) <= most:
        return ", ".join(listed)
    return ", ".join(listed[:most]) + f" and {len(listed) - most} more"

"""Checks that no proxy captures HTTP or gRPC traffic between the job's nodes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from preflight._util.hostnames import is_loopback
from preflight.model.findings import Command, Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import known_facts
from preflight_checks.probes.interfaces import Interfaces, interfaces
from preflight_checks.probes.proxies import Proxies, proxies
from preflight_checks.requirements import fold, is_multi_node, scopes

#: Variables that gRPC core reads, in order; it ignores upper-case names (grpc, doc/environment_variables.md).
GRPC = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True, slots=True)
class _ProxyReader:
    """Software of the job that may use proxies between nodes; `certain` if it certainly reads the variables."""

    name: str
    reads: tuple[str, ...]
    certain: bool
    claims: tuple[Claim, ...]


def _proxy_reader(job: Job) -> _ProxyReader | None:
    for scope in scopes(job):
        config = job.setting("env.TF_CONFIG", scope) or job.setting("tf_config", scope)
        if config:
            return _ProxyReader("TensorFlow's servers (gRPC)", GRPC, True, config)
    rays = [launch for launch in job.launches if launch.launcher == "ray"]
    if rays:
        claims = tuple(claim for launch in rays for claim in job.setting("ray_role", launch.scope))
        # Ray switches proxies off for its own gRPC; its dashboard and job submission keep them (ray#14350).
        both = (*GRPC, *(name.upper() for name in GRPC[1:]))
        return _ProxyReader("Ray (dashboard, job submission)", both, False, claims)
    for scope in scopes(job):
        if job.value("controller", scope) == Known("gloo") or job.setting("host_discovery", scope):
            claims = job.setting("controller", scope) or job.setting("host_discovery", scope)
            return _ProxyReader("Horovod's rendezvous (HTTP)", ("http_proxy", "all_proxy"), False, claims)
    return None


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    reader = _proxy_reader(job)
    if reader is None or not is_multi_node(fleet):
        return
    for node in fleet.reached:
        yield Request(probe_name(proxies), node.name, context=True, because=reader.claims)
        yield Request(probe_name(interfaces), node.name, because=reader.claims)


#: The names of more nodes than this are too long to paste.
_MAX_EXCLUDED = 64


@check(
    "PRX001",
    "proxy-captures-peers",
    plan=_plan,
    severity=Severity.ERROR,
    probes=(proxies, interfaces),
    cost="reads a few variables in the job context; milliseconds",
)
def proxy_captures_peers(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks' proxy settings exclude the other nodes.

    What it checks: http_proxy, https_proxy and grpc_proxy inside the job context, compared with no_proxy and
    no_grpc_proxy, for jobs whose nodes use gRPC or HTTP between them: TensorFlow's servers, Ray, Horovod.

    Why it matters: the proxy cannot connect the workers, and the job reports "Socket closed", "UNAVAILABLE", or
    nothing.

    Example: only node3 has https_proxy in /etc/environment, and its no_proxy names only localhost.

    Fix: put the nodes' names and network into no_proxy on every node, or unset the proxies in the job script.

    Known limits: readers of no_proxy differ (a leading dot, address ranges, `*`): a node counts as excluded if any of
    them excludes it. torch's store, NCCL and Gloo use no proxy.
    """
    reader = _proxy_reader(job)
    if reader is None or not is_multi_node(fleet):
        yield not_applicable("proxies", "nothing in the job uses HTTP or gRPC between machines")
        return
    seen = yield from known_facts(facts, proxies, "proxies")
    addresses = {node: _addresses(found) for node, found in facts.observed(interfaces).items()}
    captured: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    fine = 0
    for node, fact in seen.items():
        variable = next((name for name in reader.reads if name in fact.proxies), "")
        peers = [other.name for other in fleet.nodes if other.name != node]
        hit = [p for p in peers if not _is_excluded([p, *addresses.get(p, ())], _exclusions(fact))] if variable else []
        if hit:
            key = (variable, fact.proxies[variable], tuple(hit) if len(hit) < len(peers) else ())
            captured.setdefault(key, []).append(node)
        else:
            fine += 1
    for (variable, proxy, some), nodes in captured.items():
        exceptions = _exclusions(seen[nodes[0]])
        yield failed(
            f"{variable}={proxy}",
            f"{variable}={proxy} applies to {reader.name} on {fold(nodes)}, and no_proxy "
            f"({fold(exceptions, 4) or 'not set'}) does not exclude {fold(some) or 'the other nodes'}",
            at=Evidence("proxies", f"{variable}={proxy}", "no_proxy with the nodes", "env | grep -i proxy", nodes[0]),
            also=reader.claims,
            nodes=nodes,
            remedy="Export no_proxy with the nodes' names and network, such as "
            f"no_proxy=localhost,127.0.0.1,{','.join(node.name for node in fleet.nodes[:3])},10.0.0.0/8, or "
            f"`unset {variable}` in the job script.",
            run=(_export_line(fleet),) if len(fleet.nodes) <= _MAX_EXCLUDED else (),
            certain=reader.certain,
        )
    if fine and not captured:
        yield passed(f"proxies on {fine} nodes")
    elif not seen and not any(True for _ in facts.each(proxies)):
        yield unknown("proxies", "not requested")


def _addresses(interfaces: Interfaces) -> tuple[str, ...]:
    return tuple(a.address for item in interfaces.interfaces for a in item.addresses if not is_loopback(a.address))


def _exclusions(fact: Proxies) -> list[str]:
    return list(dict.fromkeys(entry for listed in fact.exceptions.values() for entry in listed))


def _is_excluded(host: Sequence[str], exceptions: Iterable[str]) -> bool:
    """Whether any reader of no_proxy would connect directly to a host with these names and addresses."""
    return any(_excludes(text.rstrip(".").lower(), entry) for entry in exceptions for text in host)


def _excludes(host: str, entry: str) -> bool:
    entry = entry.lower()
    if entry == "*":
        return True
    try:
        network = ipaddress.ip_network(entry, strict=False)
        return ipaddress.ip_address(host) in network
    except ValueError:
        pass
    name = entry.rpartition(":")[0] if entry.count(":") == 1 else entry
    name = name.removeprefix("*").strip(".")
    # Some readers treat 10.0. as a prefix; all treat .cluster.local as a suffix.
    return bool(name) and (
        host == name or host.endswith(f".{name}") or (entry[0].isdecimal() and host.startswith(name))
    )


def _export_line(fleet: Fleet) -> Command:
    """The line for the job script that excludes the nodes from the proxy, in addition to existing exclusions."""
    names = ",".join(node.name for node in fleet.nodes)
    return Command(f'export no_proxy="${{no_proxy:+$no_proxy,}}localhost,127.0.0.1,{names}"')

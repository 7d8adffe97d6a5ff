"""Whether a proxy would capture what the job's nodes say to each other over HTTP or gRPC."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence

from preflight.job import Claim, Job, Known
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Command, Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, is_loopback, scopes, unseen
from preflight_checks.network.nic_choice import apart
from preflight_checks.probes.interfaces import Interfaces, interfaces
from preflight_checks.probes.proxies import Proxies, proxies

#: What gRPC's core reads, in its order; it reads no upper-case names (grpc, doc/environment_variables.md).
GRPC = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True, slots=True)
class _Speaker:
    """What speaks over proxies between the job's nodes; `certain` where it surely heeds the variables."""

    name: str
    reads: tuple[str, ...]
    certain: bool
    claims: tuple[Claim, ...]


def _speaker(job: Job) -> _Speaker | None:
    for scope in scopes(job):
        config = job.setting("env.TF_CONFIG", scope) or job.setting("tf_config", scope)
        if config:
            return _Speaker("TensorFlow's servers (gRPC)", GRPC, True, config)
    rays = [launch for launch in job.launches if launch.launcher == "ray"]
    if rays:
        claims = tuple(claim for launch in rays for claim in job.setting("ray_role", launch.scope))
        # Ray switches proxies off for its own gRPC; its dashboard and job submission keep them (ray#14350).
        both = (*GRPC, *(name.upper() for name in GRPC[1:]))
        return _Speaker("Ray (dashboard, job submission)", both, False, claims)
    for scope in scopes(job):
        if job.value("controller", scope) == Known("gloo") or job.setting("host_discovery", scope):
            claims = job.setting("controller", scope) or job.setting("host_discovery", scope)
            return _Speaker("Horovod's rendezvous (HTTP)", ("http_proxy", "all_proxy"), False, claims)
    return None


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    speaker = _speaker(job)
    if speaker is None or not apart(fleet):
        return
    for node in fleet.reached:
        yield Request(probe_name(proxies), node.name, context=True, because=speaker.claims)
        yield Request(probe_name(interfaces), node.name, because=speaker.claims)


#: The names of more nodes than this are no line to paste.
_MOST_EXCEPTED = 64


@check(
    "PRX001",
    "proxy-captures-peers",
    plan=_plan,
    severity=Severity.ERROR,
    evidence=(
        "tensorflow/tensorflow#24887",
        "tensorflow/tensorflow#50626",
        "ray-project/ray#14350",
        "https://github.com/grpc/grpc/blob/master/doc/environment_variables.md",
    ),
    probes=(proxies, interfaces),
    cost="reads a few variables in the job context; milliseconds",
)
def proxy_captures(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The other nodes are excepted from the proxies that the ranks see.

    What it checks: http_proxy, https_proxy and grpc_proxy inside the job context, against no_proxy and no_grpc_proxy,
    for jobs whose nodes speak gRPC or HTTP with each other: TensorFlow's servers, Ray, Horovod.

    Why it matters: the proxy is asked to connect the workers, cannot, and the job says "Socket closed", "UNAVAILABLE",
    or nothing.

    Example: https_proxy stands in /etc/environment of node3 alone, and no_proxy names localhost only.

    Fix: put the nodes' names and network into no_proxy on every node, or unset the proxies in the job script.

    Known limits: readers of no_proxy differ (a leading dot, address ranges, `*`): a node counts as excepted where any
    of them would take it so. torch's store, NCCL and Gloo use no proxy.

    Evidence: tensorflow/tensorflow#24887, tensorflow/tensorflow#50626, ray-project/ray#14350; gRPC, environment
    variables.
    """
    speaker = _speaker(job)
    if speaker is None or not apart(fleet):
        yield not_applicable("proxies", "nothing here speaks HTTP or gRPC between machines")
        return
    yield from unseen(facts, proxies, "proxies")
    seen = facts.observed(proxies)
    addresses = {node: _addresses(found) for node, found in facts.observed(interfaces).items()}
    captured: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    fine = 0
    for node, fact in seen.items():
        variable = next((name for name in speaker.reads if name in fact.proxies), "")
        peers = [other.name for other in fleet.nodes if other.name != node]
        hit = [p for p in peers if not _excepted([p, *addresses.get(p, ())], _exceptions(fact))] if variable else []
        if hit:
            key = (variable, fact.proxies[variable], tuple(hit) if len(hit) < len(peers) else ())
            captured.setdefault(key, []).append(node)
        else:
            fine += 1
    for (variable, proxy, some), nodes in captured.items():
        exceptions = _exceptions(seen[nodes[0]])
        yield failed(
            f"{variable}={proxy}",
            f"{variable}={proxy} is in force for {speaker.name} on {fold(nodes)}, and no_proxy "
            f"({fold(exceptions, 4) or 'not set'}) does not except {fold(some) or 'the other nodes'}",
            at=Evidence("proxies", f"{variable}={proxy}", "no_proxy with the nodes", "env | grep -i proxy", nodes[0]),
            also=speaker.claims,
            nodes=nodes,
            remedy="Export no_proxy with the nodes' names and network, such as "
            f"no_proxy=localhost,127.0.0.1,{','.join(node.name for node in fleet.nodes[:3])},10.0.0.0/8, or "
            f"`unset {variable}` in the job script.",
            run=(_excepting(fleet),) if len(fleet.nodes) <= _MOST_EXCEPTED else (),
            severity=None if speaker.certain else Severity.WARNING,
            confidence=None if speaker.certain else Confidence.MEDIUM,
        )
    if fine and not captured:
        yield passed(f"proxies on {fine} nodes")
    elif not seen and not any(True for _ in facts.each(proxies)):
        yield unknown("proxies", "they were not asked for")


def _addresses(found: Interfaces) -> tuple[str, ...]:
    return tuple(a.address for item in found.interfaces for a in item.addresses if not is_loopback(a.address))


def _exceptions(fact: Proxies) -> list[str]:
    return list(dict.fromkeys(entry for listed in fact.exceptions.values() for entry in listed))


def _excepted(host: Sequence[str], exceptions: Iterable[str]) -> bool:
    """Whether any reader of no_proxy would go directly to a host with these names and addresses."""
    return any(_fits(text.rstrip(".").lower(), entry) for entry in exceptions for text in host)


def _fits(host: str, entry: str) -> bool:
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
    # 10.0. is read as a beginning by some, .cluster.local as an end by all.
    return bool(name) and (host == name or host.endswith(f".{name}") or (entry[0].isdigit() and host.startswith(name)))


def _excepting(fleet: Fleet) -> Command:
    """What a job script says so that nodes are not reached through a proxy, beside what is excepted already."""
    names = ",".join(node.name for node in fleet.nodes)
    return Command(f'export no_proxy="${{no_proxy:+$no_proxy,}}localhost,127.0.0.1,{names}"')

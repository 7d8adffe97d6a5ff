"""Whether the addresses that the rendezvous host leads to are of a family that the dialling nodes have."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet, Observed
from preflight_checks.demands import fold, is_loopback
from preflight_checks.network.interface_filter import is_link_local
from preflight_checks.network.names import lookups, named_stores, plan_master
from preflight_checks.probes.interfaces import Interfaces, interfaces
from preflight_checks.probes.names import resolve


@check(
    "NAM007",
    "master-name-of-another-family",
    plan=plan_master,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#210", "pytorch/pytorch#73656"),
    probes=(resolve, interfaces),
    cost="the look-ups of NAM002, and the node's interfaces; milliseconds",
)
def other_family(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The rendezvous host has an address of a family (IPv4, IPv6) that every node has too.

    What it checks: the families of the addresses each node finds for the host, against those of the addresses of its
    own interfaces, loopback and link-local ones left out.

    Why it matters: a node without IPv6 cannot dial an address of IPv6; it fails at once or waits for its time-out.

    Example: DNS gives node1 an AAAA record only, and node3 was installed without IPv6.

    Fix: an A record, or a line in /etc/hosts, for the host; or IPv6 on all nodes.

    Known limits: where a name leads to both families, programs try one after the other.

    Evidence: NVIDIA/nccl#210, pytorch/pytorch#73656.
    """
    stores = named_stores(job, fleet)
    if not stores:
        yield not_applicable("address families", "no host is spelled, or all nodes are one machine")
    have = {node: _families(found) for node, found in facts.observed(interfaces).items()}
    for endpoint in stores:
        bad: dict[str, str] = {}
        good = 0
        for seen in lookups(facts, own=False):
            if seen.params.get("name") != endpoint.host:
                continue
            if not isinstance(seen.fact, Observed) or not have.get(seen.node):
                yield unknown(f"{endpoint.host} on {seen.node}", "its look-up or its interfaces are not known")
                continue
            found = [text for text in seen.fact.value.addresses if not is_loopback(text)]
            if found and not {_family(text) for text in found} & have[seen.node]:
                bad[seen.node] = found[0]
            else:
                good += bool(found)
        if bad:
            node, address = next(iter(bad.items()))
            mine = " and ".join(sorted(have[node]))
            yield failed(
                f"{endpoint.host}: family",
                f"{endpoint.host}, the host of {endpoint.what}, is {address} on {fold(bad)}; {node} has {mine} only",
                at=Evidence("look-up", address, f"an address of {mine}", f"getent ahosts {endpoint.host}", node),
                also=endpoint.claims,
                nodes=tuple(bad),
                remedy=f"Give {endpoint.host} an address of {mine}, or {fold(bad)} one of {_family(address)}.",
            )
        elif good:
            yield passed(f"{endpoint.host}: family on {good} nodes")


def _family(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def _families(found: Interfaces) -> set[str]:
    return {
        _family(address.address)
        for item in found.interfaces
        for address in item.addresses
        if not is_loopback(address.address) and not is_link_local(address)
    }

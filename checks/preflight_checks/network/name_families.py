"""Checks that the rendezvous host has an address of a family (IPv4, IPv6) that all nodes have."""

from __future__ import annotations

from collections.abc import Iterator

from preflight._util.hostnames import is_loopback
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.network.interface_filter import is_link_local
from preflight_checks.network.names import lookups, named_endpoints, plan_master
from preflight_checks.probes.interfaces import Interfaces, interfaces
from preflight_checks.probes.names import resolve
from preflight_checks.requirements.hosts import fold


@check(
    "NAM007",
    "master-name-of-another-family",
    plan=plan_master,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#210", "pytorch/pytorch#73656"),
    probes=(resolve, interfaces),
    cost="the look-ups of NAM002, and the node's interfaces; milliseconds",
)
def master_of_another_family(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The rendezvous host has an address of a family (IPv4, IPv6) that every node has, too.

    What it checks: the families of the addresses each node finds for the host, compared with those of its own
    interfaces, without loopback and link-local addresses.

    Why it matters: a node without IPv6 cannot dial an address of IPv6; it fails at once or waits for its timeout.

    Example: DNS gives node1 an AAAA record only, and node3 was installed without IPv6.

    Fix: an A record, or a line in /etc/hosts, for the host; or IPv6 on all nodes.

    Known limits: if a name has both families, programs try one after the other.
    """
    stores = named_endpoints(job, fleet)
    if not stores:
        yield not_applicable("address families", "no host is named, or all nodes are one machine")
    observed = {node: _families(found) for node, found in facts.observed(interfaces).items()}
    for endpoint in stores:
        bad: dict[str, str] = {}
        good = 0
        for seen in lookups(facts, own=False):
            if seen.params.get("name") != endpoint.host:
                continue
            if not isinstance(seen.fact, Observed) or not observed.get(seen.node):
                yield unknown(
                    f"{endpoint.host} on {seen.node}", "its look-up or its interfaces are not known", nodes=(seen.node,)
                )
                continue
            found = [text for text in seen.fact.value.addresses if not is_loopback(text)]
            if found and not {_family(text) for text in found} & observed[seen.node]:
                bad[seen.node] = found[0]
            else:
                good += bool(found)
        if bad:
            node, address = next(iter(bad.items()))
            own = " and ".join(sorted(observed[node]))
            yield failed(
                f"{endpoint.host}: family",
                f"{endpoint.host}, the host of {endpoint.what}, is {address} on {fold(bad)}; {node} has only {own}",
                at=Evidence("look-up", address, f"an address of {own}", f"getent ahosts {endpoint.host}", node),
                also=endpoint.claims,
                nodes=tuple(bad),
                remedy=f"Give {endpoint.host} an address of {own}, or {fold(bad)} one of {_family(address)}.",
            )
        elif good:
            yield passed(f"{endpoint.host}: family on {good} nodes")


def _family(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def _families(interfaces: Interfaces) -> set[str]:
    return {
        _family(address.address)
        for item in interfaces.interfaces
        for address in item.addresses
        if not is_loopback(address.address) and not is_link_local(address)
    }

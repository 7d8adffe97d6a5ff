"""Findings about an interface filter: it matches nothing, a dead interface, loopback, or several networks."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Unavailable
from preflight.plugins.authoring import Verdict, failed, passed, root_command, unknown
from preflight_checks.network.interface_filter import (
    DOWN,
    NO_CARRIER,
    dialled_address,
    is_container_interface,
    is_read_by_job,
    nearest,
    select,
    socket_family,
    subnet,
    unusable_reason,
)
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.requirements.filters import Filter
from preflight_checks.requirements.hosts import fold


def filter_findings(job: Job, spelled: str, on: dict[str, Filter], facts: Facts, *, several: bool) -> Iterator[Verdict]:
    """The verdicts about one value of one variable that applies on the nodes of `on`."""
    some = next(iter(on.values()))
    nothing: dict[str, tuple[Interface, ...]] = {}
    absent: dict[str, tuple[str, ...]] = {}
    unusable: dict[str, tuple[Interface, str]] = {}
    inner: dict[str, Interface] = {}
    rails: dict[str, tuple[Interface, ...]] = {}
    networks: set[str] = set()
    good = 0
    for node in on:
        fact = facts.of(interfaces, node)
        if isinstance(fact, Unavailable):
            reason = f"its interfaces could not be listed: {fact.reason}"
            yield unknown(f"{spelled} on {node}", reason, nodes=(node,), required=True)
            continue
        observed = tuple(fact.value.interfaces)
        choice = select(some.variable, some.value, observed, socket_family(job, node))
        if not choice.interfaces:
            nothing[node] = observed
        elif choice.missing and some.variable != "NCCL_SOCKET_IFNAME":
            absent[node] = choice.missing
        elif why := unusable_reason(choice.interfaces[0], several=several):
            unusable[node] = (choice.interfaces[0], why)
        elif several and all(is_container_interface(item) for item in choice.interfaces):
            inner[node] = choice.interfaces[0]
        else:
            good += 1
            networks |= _subnets(choice.interfaces)
            if len(_subnets(choice.interfaces)) > 1 and not some.value.startswith("="):
                rails[node] = choice.interfaces
    hard = is_read_by_job(job, some.variable) and some.certain and all(len(c.alternatives) == 1 for c in some.claims)
    severity, confidence = (None, None) if hard else (Severity.WARNING, Confidence.MEDIUM)
    if nothing:
        node, observed = next(iter(nothing.items()))
        close = _interface_in(observed, networks) or nearest(some.value, observed)
        hint = f"; did you mean {close}?" if close else ""
        family = socket_family(job, node)
        of_family = f" with an address of {family}" if family and some.variable == "NCCL_SOCKET_IFNAME" else ""
        bare = select(some.variable, some.value, observed, family).unaddressed
        without = f" ({fold(bare)} has no{' such' if of_family else ''} IP address)" if bare else ""
        yield failed(
            f"{spelled}: no interface",
            f"{spelled} leaves no interface{of_family} on {fold(nothing)}{without};"
            f" {node} has {_list_interfaces(observed)}{hint}",
            at=_evidence(node, _list_interfaces(observed), f"an interface for {spelled}"),
            also=some.claims,
            nodes=tuple(nothing),
            remedy=f"Give {bare[0]} an address on {fold(nothing)}, or choose another interface."
            if bare and not close
            else _name_remedy(some, close),
            severity=severity,
            confidence=confidence,
        )
    if absent:
        node, missing = next(iter(absent.items()))
        yield failed(
            f"{spelled}: a listed interface is missing",
            f"{spelled}: {fold(missing)} does not exist on {fold(absent)}; torch opens every listed interface and "
            "fails on the first it cannot find",
            at=_evidence(node, f"no {fold(missing)}", "every listed interface"),
            also=some.claims,
            nodes=tuple(absent),
            remedy=f"List in {some.variable} only interfaces that every node has.",
            severity=severity,
            confidence=confidence,
        )
    for name, why in dict.fromkeys((item.name, why) for item, why in unusable.values()):
        same_nodes = [node for node, (item, reason) in unusable.items() if (item.name, reason) == (name, why)]
        yield failed(
            f"{spelled}: {name} unusable",
            f"{spelled} chooses {name} on {fold(same_nodes)}: it {why}",
            at=_evidence(same_nodes[0], f"{name} {why}", "an interface that is up and reaches the other nodes"),
            also=some.claims,
            nodes=same_nodes,
            remedy=f"`ip link set {name} up` on {fold(same_nodes)}, or choose another interface."
            if why == DOWN
            else f"Check the cable and switch port of {name} on {fold(same_nodes)}, or choose another interface."
            if why == NO_CARRIER
            else _name_remedy(some, ""),
            run=(root_command("ip", "link", "set", name, "up", on=same_nodes),) if why == DOWN else (),
            severity=severity,
            confidence=confidence,
        )
    if inner:
        node, item = next(iter(inner.items()))
        yield failed(
            f"{spelled}: container bridge",
            f"{spelled} chooses only {item.name} on {fold(inner)}, a bridge for containers on that machine",
            at=_evidence(node, item.name, "an interface that reaches the other nodes"),
            also=some.claims,
            nodes=tuple(inner),
            remedy=_name_remedy(some, ""),
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
        )
    if rails and several:
        node, remaining = next(iter(rails.items()))
        yield failed(
            f"{spelled}: several networks",
            f"{spelled} leaves interfaces on several networks on {fold(rails)}: {_list_interfaces(remaining)}; the"
            f" bootstrap uses {remaining[0].name}",
            at=_evidence(node, _list_interfaces(remaining), "interfaces of one network"),
            also=some.claims,
            nodes=tuple(rails),
            remedy=f"Unless all of them are rails of the same fabric, name the right one exactly: "
            f"{some.variable}=={remaining[0].name} (NCCL's exact form)."
            if some.variable == "NCCL_SOCKET_IFNAME"
            else f"Name one of them in {some.variable}.",
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
        )
    if good and not (nothing or absent or unusable or inner or rails):
        yield passed(f"{spelled}: usable on {good} nodes")


def _interface_in(observed: tuple[Interface, ...], networks: set[str]) -> str:
    """The interface in a network that the filter chose on other nodes; empty if there is none."""
    for item in observed:
        if not item.loopback and any(subnet(address) in networks for address in item.addresses):
            return item.name
    return ""


def _name_remedy(item: Filter, close: str) -> str:
    example = f" (there, {item.variable}={close})" if close else ""
    return f"Give {item.variable} a name or prefix that every node has{example}, or exclude: ^docker,lo for NCCL."


def _subnets(remaining: tuple[Interface, ...]) -> set[str]:
    return {subnet(address) for item in remaining if (address := dialled_address(item)) is not None}


def _list_interfaces(observed: tuple[Interface, ...]) -> str:
    addressed = [item for item in observed if item.addresses] or list(observed)
    return fold(
        f"{item.name} ({item.addresses[0].address}/{item.addresses[0].prefix})" if item.addresses else item.name
        for item in addressed
    )


def _evidence(node: str, observed: str, expected: str) -> Evidence:
    return Evidence("interfaces", observed, expected, "ip -br addr", node)

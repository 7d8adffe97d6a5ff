"""The resources of this node for parameter servers: its own addresses, memory, cores, network, ports."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.process import read_text
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.cgroups import cgroups
from preflight_checks.probes.interfaces import interfaces
from preflight_checks.probes.kernel_network import visible_network
from preflight_checks.probes.machine import parse_meminfo
from preflight_checks.probes.names import Lookup, lookup

MEMINFO = "/proc/meminfo"
#: All lookups together take as long as one, because they are made at the same time.
LOOKUPS_WITHIN_S = 3.0
MAX_HOSTS = 256


@dataclass(frozen=True)
class ResolvedHost:
    """One host of the job's endpoints as this node sees it. `local`: one of its addresses is this node's own."""

    host: str
    addresses: list[str] = field(default_factory=list)
    local: bool = False
    problem: str = ""
    speed_mbps: int | None = None


@dataclass(frozen=True)
class ServerPlace:
    """The resources of a node. None if unknown; sizes are bytes, `memory_bytes` the smaller of RAM and cgroup limit."""

    hosts: list[ResolvedHost] = field(default_factory=list)
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    cores: float | None = None
    first_ephemeral_port: int | None = None
    last_ephemeral_port: int | None = None
    reserved_ports: str = ""


def server_place(params: dict[str, Any]) -> ServerPlace:
    """Resolve every one of `params["hosts"]`, and find which are this node's, on which of its interfaces."""
    wanted = [str(host) for host in params.get("hosts", [])][:MAX_HOSTS]
    groups = cgroups()
    memory = parse_meminfo(read_text(MEMINFO))
    total, free = memory.total_bytes, memory.available_bytes
    if groups.memory_limit_bytes is not None:
        total = min(total or groups.memory_limit_bytes, groups.memory_limit_bytes)
        if free is not None and groups.memory_used_bytes is not None:
            free = min(free, max(0, groups.memory_limit_bytes - groups.memory_used_bytes))
    cores = (
        float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 0) or None
    )
    if cores is not None and groups.cpu_quota_cores is not None:
        cores = min(cores, groups.cpu_quota_cores)
    network = visible_network()
    hosts, reserved = _resolved_hosts(wanted), network.reserved_ports[:500]
    return ServerPlace(hosts, total, free, cores, network.first_port, network.last_port, reserved)


def _resolved_hosts(hosts: list[str]) -> list[ResolvedHost]:
    answers: dict[str, Lookup] = {}
    threads = [threading.Thread(target=_look_up, args=(host, answers), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LOOKUPS_WITHIN_S + 1.0)
    speeds = _speeds()
    found: list[ResolvedHost] = []
    for host in hosts:
        answer = answers.get(host, Lookup(host, [], "timeout", "no answer from the resolver"))
        own = [address for address in answer.addresses if is_own(address)]
        speed = next((speeds[address] for address in own if address in speeds), None)
        found.append(ResolvedHost(host, answer.addresses[:8], bool(own), answer.problem, speed))
    return found


def _look_up(host: str, answers: dict[str, Lookup]) -> None:
    answers[host] = lookup(host, LOOKUPS_WITHIN_S)


def is_own(address: str) -> bool:
    """Whether this node can bind `address`; loopback belongs to no node in particular."""
    try:
        parsed = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    if parsed.is_loopback or parsed.is_unspecified:
        return False
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _speeds() -> dict[str, int | None]:
    """The speed of the interface of each address, if the driver reports one."""
    try:
        listed = interfaces({}).interfaces
    except ProbeUnavailable:
        return {}
    return {address.address: item.speed_mbps for item in listed for address in item.addresses}

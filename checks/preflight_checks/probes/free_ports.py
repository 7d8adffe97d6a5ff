"""Ports that nothing on this node listens on, and that the kernel gives to no outgoing connection."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Dict, List

from preflight.agent.cheap import cheap
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.kernel_network import KernelNetwork, kernel_network, reserved
from preflight_checks.probes.ports import bind

#: Below are the ports of well-known services; above, only the ephemeral range is likely to be in use.
FIRST, LAST = 10000, 65535
#: The number of ports that are tried for each requested one.
_TRIES = 8


@dataclass(frozen=True)
class FreePorts:
    """Ports that could be bound a moment ago, in random order, so that concurrent requests get different ones."""

    ports: List[int] = field(default_factory=list)


@cheap("node")
def free_ports(params: Dict[str, Any]) -> FreePorts:
    """`params["count"]` such ports, or fewer if not enough are found; each is bound briefly.

    Raises ProbeUnavailable if none is found.
    """
    count = int(params["count"])
    try:
        network = kernel_network({})
    except ProbeUnavailable:
        network = KernelNetwork()
    known = candidates(network)
    found = []  # type: List[int]
    for port in random.sample(known, min(len(known), _TRIES * count)):
        try:
            bind("", port)
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            break
    if not found:
        raise ProbeUnavailable("missing", "no free port was found between %d and %d" % (FIRST, LAST))
    return FreePorts(found)


def candidates(network: KernelNetwork) -> List[int]:
    """Ports below the ephemeral range; if these are few, all outside it, else all; without reserved ones."""
    kept = set(reserved(network.reserved_ports))
    every = [port for port in range(FIRST, LAST + 1) if port not in kept]
    first, last = network.first_port or LAST + 1, network.last_port or LAST + 1
    below = [port for port in every if port < first]
    outside = [port for port in every if not first <= port <= last]
    return next((some for some in (below, outside) if len(some) >= 1000), every)

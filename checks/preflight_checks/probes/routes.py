"""The kernel's route to each of several addresses. Sends nothing."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Dict, List

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.interfaces import Route, route

#: The number of addresses in one request; each takes two system calls.
MAX_ADDRESSES = 64


@dataclass(frozen=True)
class Routes:
    """One route for each requested address, in that order."""

    routes: List[Route]


def routes(params: Dict[str, Any]) -> Routes:
    """The routes to `params["addresses"]`, which are literal addresses."""
    wanted = [str(text) for text in params["addresses"]][:MAX_ADDRESSES]
    for text in wanted:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise ProbeUnavailable("missing", "%r is not an address" % text) from None
    return Routes([route({"destination": text, "limit_s": 1.0}) for text in wanted])

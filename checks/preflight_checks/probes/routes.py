"""How the kernel would send to each of several addresses. Sends nothing."""

from __future__ import annotations

import ipaddress

from preflight.node.record import ANNOTATED, dataclass
from preflight.node.wire import ProbeUnavailable
from preflight_checks.probes.interfaces import Route, route

if ANNOTATED:
    from typing import Any, Dict, List

#: So many addresses are looked at in one request; each is two system calls.
MOST = 64


@dataclass(frozen=True)
class Routes:
    """One route for each address asked for, in that order."""

    routes: List[Route]


def routes(params: Dict[str, Any]) -> Routes:
    """The routes to `params["addresses"]`, which are literal addresses."""
    wanted = [str(text) for text in params["addresses"]][:MOST]
    for text in wanted:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise ProbeUnavailable("missing", "%r is no address" % text) from None
    return Routes([route({"destination": text, "limit_s": 1.0}) for text in wanted])

"""The checks that come with preflight: what the nodes of a job must be, judged from facts."""

from __future__ import annotations

#: Every check as `module:attribute`, so that listing them imports none of them.
PACK = (
    "preflight_checks.nodes:node_unreachable",
    "preflight_checks.names:hostname_loopback",
    "preflight_checks.names:master_name",
    "preflight_checks.nics:interface_filter",
    "preflight_checks.nics:interface_route",
    "preflight_checks.nics:interface_mtu",
    "preflight_checks.ports:port_in_use",
    "preflight_checks.links:port_unreachable",
    "preflight_checks.links:large_payload_stalls",
)

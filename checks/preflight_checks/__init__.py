"""The checks that come with preflight: what the nodes of a job must be, judged from facts."""

from __future__ import annotations

#: What the areas of checks are about.
AREAS = {
    "CLK": "clocks",
    "DAT": "data on the nodes",
    "GPU": "GPUs",
    "LIM": "limits",
    "LNK": "links",
    "NAM": "host names",
    "NIC": "network interfaces",
    "NOD": "nodes",
    "PRT": "ports",
    "SMK": "the training run",
    "VER": "versions",
}

#: Every check as `module:attribute`, so that listing them imports none of them.
PACK = (
    "preflight_checks.nodes:node_unreachable",
    "preflight_checks.nodes:node_count_differs",
    "preflight_checks.names:hostname_loopback",
    "preflight_checks.names:master_name",
    "preflight_checks.nics:interface_filter",
    "preflight_checks.nics:interface_route",
    "preflight_checks.nics:interface_mtu",
    "preflight_checks.ports:port_in_use",
    "preflight_checks.links:port_unreachable",
    "preflight_checks.payloads:large_payload_stalls",
    "preflight_checks.versions:driver_too_old",
    "preflight_checks.versions:driver_skew",
    "preflight_checks.versions:framework_skew",
    "preflight_checks.gpus:gpu_count",
    "preflight_checks.gpus:gpu_model",
    "preflight_checks.limits:shm_too_small",
    "preflight_checks.limits:memlock_limited",
    "preflight_checks.limits:open_files",
    "preflight_checks.clocks:clock_spread",
    "preflight_checks.data:data_path_missing",
    "preflight_checks.data:shard_list_differs",
    "preflight_checks.smoke:rank_did_not_finish",
    "preflight_checks.smoke:wrong_collective_result",
    "preflight_checks.smoke:ranks_disagree",
    "preflight_checks.smoke:master_endpoint_unusable",
)

"""The first report of a server or worker: its exact configuration, before validation.

Whether processes belong together is judged where all hellos can be compared, so nothing is rejected here: an invalid
index, an unknown role, and contradictory lists are passed on unchanged.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from typing import Any, Dict, List

from preflight.agent import rank_events
from reference_trainer.common.progress import Progress
from reference_trainer.ps import settings
from reference_trainer.ps.plan import Plan

#: The number of tensors and locations that are named; the digest covers all.
_MAX_NAMED = 200


def send(params: Dict[str, Any], progress: Progress, role: str) -> None:
    """Send this process's report."""
    endpoint = str(params.get("endpoint") or "")
    values = {
        "role": params.get("role", role),
        "index": params.get("index", ""),
        "spare": bool(params.get("spare")),
        "servers": params.get("servers", 0),
        "workers": params.get("workers", 0),
        "server_endpoints": params.get("server_endpoints", []),
        "endpoint": endpoint,
        "endpoint_problem": problem_of(endpoint) if role == "server" else "",
        "mode": params.get("mode", ""),
        **_trained(params),
    }
    progress.reached(
        rank_events.STARTED,
        pid=os.getpid(),
        host=socket.gethostname(),
        python=sys.version.split()[0],
        executable=sys.executable,
        **values,
    )


def problem_of(endpoint: str) -> str:
    """Why the address of an endpoint cannot be this host's; empty if it can, or if a name lookup would be needed."""
    host = endpoint.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return "%s is not an address of this host" % host if error.errno == errno.EADDRNOTAVAIL else ""
    return ""


def _trained(params: Dict[str, Any]) -> Dict[str, Any]:
    """The process's parameters and their assignment to servers; empty for an invalid configuration."""
    try:
        plan = settings.plan_of(params)
    except (TypeError, ValueError, KeyError):
        return {}
    return {"parameters": plan.digest(), "tensors": tensors(plan)}


def tensors(plan: Plan) -> List[str]:
    """For each tensor one string with its shape and the location of each of its blocks."""
    named = ["%s %s float32" % (p.name, list(p.shape)) for p in plan.dense]
    named += ["%s %s float32, by row" % (t.name, [t.rows, t.width]) for t in plan.tables]
    for server, shards in enumerate(plan.shards):
        for piece in (piece for shard in shards for piece in shard.pieces):
            block = piece.block
            where = "%s [%d:%d] on server %d"
            named.append(where % (block.parameter, block.begin, block.begin + block.elements, server))
    return named[:_MAX_NAMED]

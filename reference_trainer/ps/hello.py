"""What a server or worker says of itself first of all, exactly as it was told, before anything of it is believed.

Whether processes belong together is judged where all hellos lie side by side. So nothing is refused here: an index that
is no number, a role that does not exist, and lists that contradict each other are passed on as they are.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from typing import Any, Dict, List

from reference_trainer import phases
from reference_trainer.progress import Progress
from reference_trainer.ps import settings
from reference_trainer.ps.plan import Plan

#: So many tensors and places are named; the digest is about all.
_MOST_NAMED = 200


def say(params: Dict[str, Any], me: Progress, role: str) -> None:
    """Say who this is."""
    endpoint = str(params.get("endpoint") or "")
    told = {
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
    me.reached(
        phases.STARTED,
        pid=os.getpid(),
        host=socket.gethostname(),
        python=sys.version.split()[0],
        executable=sys.executable,
        **told,
    )


def problem_of(endpoint: str) -> str:
    """Why the address of an endpoint cannot be this host's; empty where it can, or where only a look-up would tell."""
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
        return "%s is no address of this host" % host if error.errno == errno.EADDRNOTAVAIL else ""
    return ""


def _trained(params: Dict[str, Any]) -> Dict[str, Any]:
    """What it would train and where that would lie; nothing where it was told what cannot be."""
    try:
        plan = settings.plan_of(params)
    except (TypeError, ValueError, KeyError):
        return {}
    return {"parameters": plan.digest(), "tensors": tensors(plan)}


def tensors(plan: Plan) -> List[str]:
    """Each tensor with its shape, and then where each stretch of it lies: one text each."""
    named = ["%s %s float32" % (p.name, list(p.shape)) for p in plan.dense]
    named += ["%s %s float32, by row" % (t.name, [t.rows, t.width]) for t in plan.tables]
    for server, shards in enumerate(plan.shards):
        for piece in (piece for shard in shards for piece in shard.pieces):
            block = piece.block
            where = "%s [%d:%d] on server %d"
            named.append(where % (block.parameter, block.begin, block.begin + block.elements, server))
    return named[:_MOST_NAMED]

"""The reports of servers and workers: their exact configuration first, and their results at the end."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from dataclasses import dataclass, field
from typing import Any

from preflight.agent import rank_events
from reference_trainer.common.oracle import Mismatch
from reference_trainer.common.progress import Progress
from reference_trainer.ps import settings
from reference_trainer.ps.partition import Plan

#: The difference from one process if the order that the servers recorded is impossible.
IMPOSSIBLE = 1e300


@dataclass(frozen=True)
class RejectedClient:
    """A client on a server's port that does not belong to this run, and how the server recognised that."""

    address: str
    why: str


@dataclass(frozen=True)
class Replacement:
    """A worker replaced by backup worker `spare`, `after_s` after it was dropped; `lagged`: it delayed others."""

    worker: int
    host: str
    phase: int
    clock: int
    why: str
    after_s: float
    spare: int = 0
    lagged: bool = False


@dataclass(frozen=True)
class WorkerStats:
    """A server's data about one worker. `waited_s` is how long the server made the worker wait for other workers."""

    index: int
    host: str
    pid: int
    address: str
    pushes: int = 0
    pulls: int = 0
    lookups: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    waited_s: float = 0.0
    congestion: str = ""


@dataclass(frozen=True)
class ServerReport:
    """The results of one server. Times are seconds since this server started.

    Args:
        staleness: clock of a reader minus that of the slowest worker at that moment -> how often.
        overtaken: updates by others between a worker's read and its push -> how often.
        expected_pushes: the correct value of `pushes` for each worker: all exact steps and all training steps.
        violations: violations of the protocol, in sentences: missing or duplicate pushes.
        mismatches: pushes of the exact phase with wrong values.
    """

    rank: int
    index: int
    servers: int
    workers: int
    host: str
    endpoint: str
    mode: str
    device: str
    framework: str
    phase_at_s: dict[str, float] = field(default_factory=dict)
    dense_bytes: int = 0
    table_bytes: int = 0
    shards: int = 0
    imbalance: float = 1.0
    seen: list[WorkerStats] = field(default_factory=list)
    staleness: dict[str, int] = field(default_factory=dict)
    staleness_bound: int = 0
    overtaken: dict[str, int] = field(default_factory=dict)
    expected_pushes: int = 0
    violations: list[str] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    strangers: list[RejectedClient] = field(default_factory=list)
    stranger_count: int = 0
    replaced: list[Replacement] = field(default_factory=list)


@dataclass(frozen=True)
class ServerStats:
    """A worker's data about one server. `waited_s` is how long the worker waited for the server's replies."""

    index: int
    endpoint: str
    host: str = ""
    address: str = ""
    source: str = ""
    result: str = ""
    error: str = ""
    dial_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    round_trips: int = 0
    waited_s: float = 0.0
    congestion: str = ""


@dataclass(frozen=True)
class WorkerReport:
    """The results of one worker. Times are seconds since this worker started.

    For many steps, the lists hold the first and the last hundred; `steps` is their number.

    Args:
        index: the worker's index; -1 for a backup worker that was not needed.
        losses: of each step, with the weights at its beginning.
        first_loss, last_loss: on this worker's samples with the weights before all training, and after all of it.
        exact_digest, digest: SHA-256 over everything pulled at the end of the exact phase, and of the training.
        difference_to_one_process: largest difference to one process that trained on all shards in the order that
            the servers recorded.
        replaced: for a backup worker, the worker that it replaced.
    """

    rank: int
    index: int
    servers: int
    workers: int
    host: str
    mode: str
    device: str
    framework: str
    phase_at_s: dict[str, float] = field(default_factory=dict)
    seen: list[ServerStats] = field(default_factory=list)
    plan: str = ""
    exact_steps: int = 0
    steps: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    first_loss: float = 0.0
    last_loss: float = 0.0
    pull_s: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    push_s: list[float] = field(default_factory=list)
    unmoved: list[str] = field(default_factory=list)
    exact_digest: str = ""
    digest: str = ""
    difference_to_one_process: float | None = None
    spare: bool = False
    replaced: int | None = None


#: Largest number of tensors and locations in a report; the digest covers all.
_MAX_NAMED = 200


def send(params: dict[str, Any], progress: Progress, role: str) -> None:
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
        **_parameters(params),
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
    """Return why an endpoint's address cannot be this host's; empty if it can be or only a lookup could tell."""
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
        return f"{host} is not an address of this host" if error.errno == errno.EADDRNOTAVAIL else ""
    return ""


def _parameters(params: dict[str, Any]) -> dict[str, Any]:
    """Return the process's parameters and their assignment to servers; empty for an invalid configuration."""
    try:
        plan = settings.plan_of(params)
    except (TypeError, ValueError, KeyError):
        return {}
    return {"parameters": plan.digest(), "tensors": tensors(plan)}


def tensors(plan: Plan) -> list[str]:
    """Return one string per tensor, with its shape and the location of each of its blocks."""
    named = [f"{p.name} {list(p.shape)} float32" for p in plan.dense]
    named += [f"{t.name} {[t.rows, t.width]} float32, by row" for t in plan.tables]
    for server, shards in enumerate(plan.shards):
        for piece in (piece for shard in shards for piece in shard.pieces):
            block = piece.block
            where = "%s [%d:%d] on server %d"
            named.append(where % (block.parameter, block.begin, block.begin + block.elements, server))
    return named[:_MAX_NAMED]

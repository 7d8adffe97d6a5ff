"""Probes whether a node's network file systems respond, each in its own process, because it may hang."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable

from preflight.agent.cheap import cheap
from preflight_checks.probes.isolated import Send, run_isolated
from preflight_checks.probes.limits import SHARED, Mount, current_mounts

#: A healthy server answers within milliseconds; this is for a busy one.
ANSWER_S = 2.5
_MAX_MOUNTS = 64


@dataclass(frozen=True)
class Liveness:
    """One mount. `problem` is empty, `timeout` (no response within ANSWER_S), or the system's message."""

    point: str
    kind: str
    source: str
    took_s: float
    problem: str = ""


@cheap("node", sends_requests=True)
def network_mounts(params: dict[str, Any]) -> list[Liveness]:
    """Query the free space of every network file system, all at the same time."""
    mounts = [mount for mount in current_mounts() if is_network(mount)][:_MAX_MOUNTS]
    results = run_isolated([_stat_task(mount.point) for mount in mounts], ANSWER_S)
    return [
        Liveness(
            mount.point,
            mount.kind,
            mount.source,
            round(result.took_s, 3),
            str(result.values.get("problem", "")) if not result.problem else result.problem,
        )
        for mount, result in zip(mounts, results)
    ]


def is_network(mount: Mount) -> bool:
    """Return whether the mount depends on a server. An autofs mount is left alone."""
    return mount.kind in SHARED or mount.kind == "fuse" or mount.kind.startswith("fuse.")


def _stat_task(point: str) -> Callable[[Send], None]:
    def stat(send: Send) -> None:
        send({"at": point})
        try:
            os.statvfs(point)
        except PermissionError:
            # A private mount of another user; a refusal is an answer.
            pass
        except OSError as error:
            send({"problem": error.strerror or str(error)})

    return stat

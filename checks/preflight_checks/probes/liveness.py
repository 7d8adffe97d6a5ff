"""Whether the network file systems of a node answer: each is looked at in a process that may hang."""

from __future__ import annotations

import os

from preflight.node.cheap import cheap
from preflight.node.record import ANNOTATED, dataclass
from preflight_checks.probes.apart import apart
from preflight_checks.probes.mounts import SHARED, Mount, mounted

if ANNOTATED:
    from typing import Any, Callable, Dict, List

    from preflight_checks.probes.apart import Say

#: A healthy server answers within milliseconds; this is for one that is busy.
ANSWER_S = 2.5
_MOST_MOUNTS = 64


@dataclass(frozen=True)
class Liveness:
    """One mount. `problem` is empty, `timeout` (no answer within ANSWER_S), or what the system said."""

    point: str
    kind: str
    source: str
    took_s: float
    problem: str = ""


@cheap("node", asks=True)
def network_mounts(params: Dict[str, Any]) -> List[Liveness]:
    """Ask every network file system for its free space, all at the same time."""
    found = [mount for mount in mounted() if is_network(mount)][:_MOST_MOUNTS]
    heard = apart([_asking(mount.point) for mount in found], ANSWER_S)
    return [
        Liveness(
            mount.point,
            mount.kind,
            mount.source,
            round(one.took_s, 3),
            str(one.values.get("problem", "")) if not one.problem else one.problem,
        )
        for mount, one in zip(found, heard)
    ]


def is_network(mount: Mount) -> bool:
    """Whether somebody else must answer. What is only mounted when it is looked at (autofs) is left alone."""
    return mount.kind in SHARED or mount.kind == "fuse" or mount.kind.startswith("fuse.")


def _asking(point: str) -> Callable[[Say], None]:
    def ask(say: Say) -> None:
        say({"at": point})
        try:
            os.statvfs(point)
        except PermissionError:
            # A mount of somebody else's; that it says no is an answer.
            pass
        except OSError as error:
            say({"problem": error.strerror or str(error)})

    return ask

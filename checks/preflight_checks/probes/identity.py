"""Who this node is: the names it has for itself, and what tells one machine from another."""

from __future__ import annotations

import os
import socket
import threading
import time

from preflight.node.cheap import cheap
from preflight.node.record import ANNOTATED, dataclass

if ANNOTATED:
    from typing import Any, Dict

MACHINE_ID = "/etc/machine-id"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
NAMESPACES = "/proc/self/ns"
#: The full name is found by a reverse look-up; a dead name server costs 10 s and more.
FQDN_S = 3.0


@dataclass(frozen=True)
class Identity:
    """Names and marks of this node; empty where there is none.

    `fqdn` is what Python's socket.getfqdn() gives, which torchrun publishes; `fqdn_problem` says why it did not come.
    `place` is the same for two processes that share machine, network and processes: kernel boot and namespaces.
    """

    hostname: str
    fqdn: str = ""
    fqdn_problem: str = ""
    fqdn_took_s: float = 0.0
    machine_id: str = ""
    boot_id: str = ""
    place: str = ""


@cheap("node", asks=True)
def identity(params: Dict[str, Any]) -> Identity:
    """Who this node is."""
    limit_s = float(params.get("limit_s", FQDN_S))
    answer: Dict[str, str] = {}
    began = time.monotonic()
    thread = threading.Thread(target=lambda: answer.update(fqdn=socket.getfqdn()), daemon=True)
    thread.start()
    thread.join(limit_s)
    late = "" if answer else "the reverse look-up of its own name took more than %.1f s" % limit_s
    boot = _text(BOOT_ID)
    spaces = [_namespace(kind) for kind in ("net", "pid", "uts")]
    return Identity(
        socket.gethostname(),
        answer.get("fqdn", ""),
        late,
        round(time.monotonic() - began, 3),
        _text(MACHINE_ID),
        boot,
        " ".join([boot, *spaces]) if boot and all(spaces) else "",
    )


def _namespace(kind: str) -> str:
    try:
        return os.readlink(os.path.join(NAMESPACES, kind))
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(256).decode("ascii", "replace").strip()
    except OSError:
        return ""

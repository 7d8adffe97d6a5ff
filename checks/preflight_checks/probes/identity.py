"""The identity of this node: its names for itself, and what distinguishes machines."""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, Dict

from preflight.agent.cheap import cheap
from preflight.agent.process import read_text

MACHINE_ID = "/etc/machine-id"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
NAMESPACES = "/proc/self/ns"
#: The full name is found by a reverse lookup; a dead name server costs 10 s and more.
FQDN_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Identity:
    """Names and ids of this node; empty if there is none.

    `fqdn` is the result of Python's socket.getfqdn(), which torchrun publishes; empty if that took too long.
    `place` is the same for two processes that share machine, network and processes: kernel boot and namespaces.
    """

    hostname: str
    fqdn: str = ""
    fqdn_took_s: float = 0.0
    machine_id: str = ""
    boot_id: str = ""
    place: str = ""


@cheap("node", sends_requests=True)
def identity(params: Dict[str, Any]) -> Identity:
    """The identity of this node."""
    limit_s = float(params.get("limit_s", FQDN_TIMEOUT_S))
    answer: Dict[str, str] = {}
    began = time.monotonic()
    thread = threading.Thread(target=lambda: answer.update(fqdn=socket.getfqdn()), daemon=True)
    thread.start()
    thread.join(limit_s)
    boot = read_text(BOOT_ID)
    spaces = [_namespace(kind) for kind in ("net", "pid", "uts")]
    return Identity(
        socket.gethostname(),
        answer.get("fqdn", ""),
        round(time.monotonic() - began, 3),
        read_text(MACHINE_ID),
        boot,
        " ".join([boot, *spaces]) if boot and all(spaces) else "",
    )


def _namespace(kind: str) -> str:
    try:
        return os.readlink(os.path.join(NAMESPACES, kind))
    except OSError:
        return ""

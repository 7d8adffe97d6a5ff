"""The first word of an agent: who and where it is."""

from __future__ import annotations

import os
import sys

from preflight.node.wire import PROTOCOL, Ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List


def introduction(notes: List[str]) -> Ready:
    """What is known without asking anybody: a look-up in the user database can hang on a dead directory server."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or "uid %d" % os.getuid()
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = file.read().strip()
    except OSError:
        boot_id = ""
    version = "%d.%d.%d" % sys.version_info[:3]
    return Ready(PROTOCOL, os.uname().nodename, os.getpid(), version, sys.executable or "", boot_id, user, notes)

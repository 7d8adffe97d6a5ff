"""Whether this node's clock is synchronised: the kernel's status, and the running time daemon."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from dataclasses import dataclass
from typing import Any

from preflight.agent.cheap import cheap
from preflight.agent.command import run
from preflight.agent.process import RECENT_S, command_in, stat_lines
from preflight.agent.wire import ProbeUnavailable

#: Daemons that adjust the clock, by the kernel's name for their process (cut after 15 characters).
DAEMONS = ("chronyd", "ntpd", "systemd-timesyn", "ptp4l", "phc2sys", "ntpd-rs-daemon", "openntpd", "timemaster")
_SHOWN = {"systemd-timesyn": "systemd-timesyncd"}
#: <sys/timex.h>: the kernel has had no confirmation for a while that the clock is right.
_STA_UNSYNC = 0x0040
_TIMEX_BYTES = 208
#: After `modes` and four longs.
_STATUS_OFFSET = 40
_CHRONYC_S = 1.5


@dataclass(frozen=True)
class Clock:
    """The state of this clock's synchronisation.

    `synchronised` is None if the kernel may not be queried (`problem` is the reason). `daemons` are the visible time
    daemons; `daemon_says` is chronyd's status.
    """

    synchronised: bool | None = None
    problem: str = ""
    daemons: tuple[str, ...] = ()
    daemon_says: str = ""


@cheap("node", sends_requests=True)
def clock(params: dict[str, Any]) -> Clock:
    """The state of the clock of this node."""
    daemons = tuple(running_daemons())
    status = ""
    if "chronyd" in daemons:
        try:
            status = leap_status(run(["chronyc", "-n", "tracking"], deadline_s=_CHRONYC_S).output)
        except ProbeUnavailable as why:
            status = why.reason
    try:
        return Clock(is_synchronised(), "", daemons, status)
    except OSError as error:
        return Clock(None, error.strerror or str(error), daemons, status)


def is_synchronised() -> bool:
    """Whether the kernel considers the clock synchronised, from adjtimex(2).

    Raises OSError if the kernel may not be queried (as in containers), or has another layout.
    """
    if struct.calcsize("P") != 8:
        raise OSError(0, "the clock's state is only read on 64-bit systems")
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "adjtimex"):
        raise OSError(0, "this C library has no adjtimex")
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = library.adjtimex(buffer)
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return parse_timex(buffer.raw)


def parse_timex(data: bytes) -> bool:
    """Parse the status in the bytes of a struct timex of a 64-bit kernel."""
    (status,) = struct.unpack_from("=i", data, _STATUS_OFFSET)
    return not status & _STA_UNSYNC


def leap_status(text: str) -> str:
    """Parse the leap status in the output of `chronyc tracking`; empty if there is none."""
    leap = re.search(r"^Leap status\s*:\s*(\S.*?)\s*$", text, re.MULTILINE)
    return leap.group(1) if leap else ""


def running_daemons() -> list[str]:
    """The time daemons among the visible processes; in a container that is seldom all of them."""
    commands = {command_in(line) for line in stat_lines(RECENT_S).values()}
    return sorted(_SHOWN.get(name, name) for name in DAEMONS if name.encode("ascii") in commands)

"""Whether this node's clock is synchronised: the kernel's status, and the running time daemon."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

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
_CHRONYC_S = 1.5


@dataclass(frozen=True)
class Clock:
    """The state of this clock's synchronisation.

    `synchronised` is None if the kernel may not be queried (`problem` is the reason). Errors are the kernel's
    estimates, in seconds. `daemons` are the visible time daemons; `daemon_offset_s` is how far the clock is ahead of
    chronyd's sources, None if unknown. `wall_s` and `monotonic_s` were read together.
    """

    wall_s: float
    monotonic_s: float
    synchronised: Optional[bool] = None
    largest_error_s: Optional[float] = None
    estimated_error_s: Optional[float] = None
    frequency_ppm: Optional[float] = None
    problem: str = ""
    daemons: Tuple[str, ...] = ()
    daemon_offset_s: Optional[float] = None
    daemon_says: str = ""


@cheap("node", sends_requests=True)
def clock(params: Dict[str, Any]) -> Clock:
    """The state of the clock of this node."""
    daemons = tuple(running_daemons())
    offset, daemon = (None, "")  # type: Optional[float], str
    if "chronyd" in daemons:
        try:
            offset, daemon = parse_tracking(run(["chronyc", "-n", "tracking"], deadline_s=_CHRONYC_S).output)
        except ProbeUnavailable as why:
            daemon = why.reason
    wall, monotonic = time.time(), time.monotonic()
    try:
        synchronised, largest, estimated, frequency = kernel_state()
    except OSError as error:
        reason = error.strerror or str(error)
        return Clock(wall, monotonic, problem=reason, daemons=daemons, daemon_offset_s=offset, daemon_says=daemon)
    return Clock(wall, monotonic, synchronised, largest, estimated, frequency, "", daemons, offset, daemon)


def kernel_state() -> Tuple[bool, float, float, float]:
    """Whether the clock is synchronised, its maximum and estimated error in seconds, and the frequency correction in
    ppm, from adjtimex(2).

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


def parse_timex(data: bytes) -> Tuple[bool, float, float, float]:
    """Parse the bytes of a struct timex of a 64-bit kernel into the result of `kernel_state`."""
    _modes, _offset, frequency, largest, estimated, status = struct.unpack_from("=i4xqqqqi", data)
    return not status & _STA_UNSYNC, largest / 1e6, estimated / 1e6, frequency / 65536.0


def parse_tracking(text: str) -> Tuple[Optional[float], str]:
    """Parse the output of `chronyc tracking`: seconds that the clock is ahead, and the leap status."""
    found = re.search(r"^System time\s*:\s*([0-9.]+) seconds (fast|slow) of NTP time", text, re.MULTILINE)
    leap = re.search(r"^Leap status\s*:\s*(\S.*?)\s*$", text, re.MULTILINE)
    offset = float(found.group(1)) * (1 if found.group(2) == "fast" else -1) if found else None
    return offset, leap.group(1) if leap else ""


def running_daemons() -> List[str]:
    """The time daemons among the visible processes; in a container that is seldom all of them."""
    commands = {command_in(line) for line in stat_lines(RECENT_S).values()}
    return sorted(_SHOWN.get(name, name) for name in DAEMONS if name.encode("ascii") in commands)

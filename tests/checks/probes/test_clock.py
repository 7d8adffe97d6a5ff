"""The state of a clock from the kernel and chronyd, from recorded outputs and from this machine."""

from __future__ import annotations

import struct

import pytest

from preflight_checks.probes import clock as probe
from preflight_checks.probes.clock import clock, leap_status, parse_timex, running_daemons

TRACKING = """\
Reference ID    : A9FEA97B (169.254.169.123)
Stratum         : 4
System time     : 0.000004310 seconds slow of NTP time
Last offset     : -0.000003120 seconds
Leap status     : Normal
"""
LOST = """\
Reference ID    : 00000000 ()
Stratum         : 0
System time     : 2.500000000 seconds fast of NTP time
Leap status     : Not synchronised
"""


def test_output_of_chronyd() -> None:
    assert leap_status(TRACKING) == "Normal" and leap_status(LOST) == "Not synchronised"
    assert leap_status("506 Cannot talk to daemon\n") == leap_status("") == ""


def timex(status: int) -> bytes:
    return struct.pack("=i4xqqqqi", 0, 0, -3 * 65536, 16_000, 250, status).ljust(208, b"\0")


def test_state_of_the_kernels_clock() -> None:
    assert parse_timex(timex(0x2001)) and not parse_timex(timex(0x0040))


def test_a_refused_kernel_query_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> bool:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(probe, "is_synchronised", refused)
    seen = clock({})
    assert seen.synchronised is None and seen.problem == "Operation not permitted"


def test_daemons_are_recognized_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("systemd", "systemd-timesyn", "chronyd", "bash", "a) (ntpd")
    lines = {pid: f"{pid} ({name}) S 1 1 1 0".encode() for pid, name in enumerate(names)}
    monkeypatch.setattr(probe, "stat_lines", lambda recent_s: lines)
    assert running_daemons() == ["chronyd", "systemd-timesyncd"]
    monkeypatch.setattr(probe, "stat_lines", lambda recent_s: {})
    assert running_daemons() == []


def test_this_machine_answers() -> None:
    seen = clock({})
    assert seen.synchronised is not None or seen.problem

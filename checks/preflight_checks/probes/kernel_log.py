"""The NVIDIA driver's messages in the kernel log: Xid messages of GPUs, SXid messages of NVSwitches."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from typing import Any, Iterable, Optional, Tuple

from preflight.agent import command
from preflight.agent.wire import ProbeUnavailable

KMSG = "/dev/kmsg"
TOOL_S = 3.0
_MAX_RECORD_BYTES = 8192
_XID = re.compile(r"NVRM: (?:GPU \d+ )?Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
_STAMP = re.compile(r"^(\d+\.\d+) ")
_HINT = "not seeing messages from other users"
#: The text that journalctl searches for; both kinds of message contain it.
PATTERN = "Xid \\("


@dataclass(frozen=True)
class DriverMessage:
    """Messages of one kind (`xid` or `sxid`), code and device since boot. Ages are in seconds."""

    kind: str
    code: int
    pci: str
    count: int
    last_age_s: float | None
    text: str


@dataclass(frozen=True)
class KernelLog:
    """The driver's messages. `source` is where they were read."""

    source: str
    complaints: list[DriverMessage] = field(default_factory=list)


#: Age in seconds, and the line.
Line = Tuple[Optional[float], str]


def kernel_log(params: dict[str, Any]) -> KernelLog:
    """Messages since boot, from the journal, else from the kernel's own buffer.

    Raises ProbeUnavailable if neither may be read; an unprivileged user is often denied both.
    """
    reasons: list[ProbeUnavailable] = []
    for read in (_journal, _buffer):
        try:
            return read()
        except ProbeUnavailable as error:
            reasons.append(error)
    kind = "denied" if any(error.kind == "denied" for error in reasons) else reasons[-1].kind
    raise ProbeUnavailable(kind, "; ".join(error.reason for error in reasons))


def _journal() -> KernelLog:
    # First check that any message of this boot is visible: finding no Xid in nothing means nothing.
    if not _read_journal("--lines=1"):
        raise ProbeUnavailable("missing", "the journal has no kernel messages of this boot")
    now = time.time()
    lines: list[Line] = []
    for line in _read_journal("--grep=" + PATTERN):
        stamp = _STAMP.match(line)
        lines.append((now - float(stamp.group(1)) if stamp else None, line))
    return KernelLog("journalctl --dmesg", sum_up(lines))


def _read_journal(option: str) -> list[str]:
    """Lines of the kernel's messages since boot. Raises ProbeUnavailable if this user may not see them."""
    words = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-unix", option]
    ran = command.run(words, deadline_s=TOOL_S)
    if _HINT in ran.error or "insufficient permissions" in ran.error.lower():
        raise ProbeUnavailable("denied", "this user may not read system messages in the journal")
    # Exit code 1 without standard error means "nothing matches".
    errors = ran.error.strip().splitlines()
    if ran.exit_code not in (0, 1) or (ran.exit_code and errors):
        raise ProbeUnavailable(
            "crashed", "journalctl ended with %d: %s" % (ran.exit_code, errors[-1] if errors else "")
        )
    return ran.output.splitlines()


def _buffer() -> KernelLog:
    """The kernel's ring buffer: `level,number,microseconds since boot,flags;text` a record."""
    try:
        fd = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ProbeUnavailable("missing", f"{KMSG} does not exist") from None
    except OSError as error:
        raise ProbeUnavailable("denied", f"{KMSG} may not be read: {error.strerror}") from None
    lines: list[Line] = []
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        while True:
            try:
                record = os.read(fd, _MAX_RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # it was overwritten during reading; the next read continues after it
                continue
            except OSError as error:
                raise ProbeUnavailable("denied", f"{KMSG} may not be read: {error.strerror}") from None
            if not record:
                break
            head, _, text = record.decode("utf-8", "replace").partition(";")
            parts = head.split(",")
            age = now - int(parts[2]) / 1e6 if len(parts) > 2 and parts[2].isdecimal() else None
            if "Xid" in text:
                lines.append((age, text))
    finally:
        os.close(fd)
    return KernelLog(KMSG, sum_up(lines))


def sum_up(lines: Iterable[Line]) -> list[DriverMessage]:
    """Messages counted by kind, code and device, each with the latest text."""
    found: dict[tuple[str, int, str], DriverMessage] = {}
    for age, line in lines:
        match = _SXID.search(line) if "SXid" in line else _XID.search(line)
        if match is None:
            continue
        kind = "sxid" if "SXid" in line else "xid"
        key = (kind, int(match.group(2)), address(match.group(1)))
        count = found[key].count + 1 if key in found else 1
        text = (match.group(3) or "").strip()[:200]
        last = found[key].last_age_s if key in found else None
        ages = [value for value in (last, age) if value is not None]
        found[key] = DriverMessage(*key, count, round(max(0.0, min(ages)), 1) if ages else None, text)
    return [found[key] for key in sorted(found)]


def address(errors: str) -> str:
    """Convert the driver's `0000:3B:00` to the kernel's `0000:3b:00.0`."""
    errors = errors.lower()
    return errors if "." in errors else errors + ".0"

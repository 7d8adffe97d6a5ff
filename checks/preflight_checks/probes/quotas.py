"""Quotas of this user, and the single targets of a parallel file system: limits that df does not show."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import List, Optional

from preflight.agent.command import run
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.mounts import Mount

_TOOL_S = 1.5
#: The file systems that `quota` supports; for others it prints nothing, and running it would only take time.
_WITH_QUOTA = frozenset(("ext2", "ext3", "ext4", "xfs", "nfs", "nfs4", "reiserfs", "jfs"))


@dataclass(frozen=True)
class Quota:
    """One quota: bytes, and files if it counts them. None means no limit."""

    whose: str
    used_bytes: int
    limit_bytes: Optional[int]
    used_files: Optional[int] = None
    limit_files: Optional[int] = None


@dataclass(frozen=True)
class Target:
    """One object or metadata target of Lustre."""

    name: str
    total_bytes: int
    free_bytes: int


def quotas_of(mount: Mount) -> List[Quota]:
    """The quotas of this user on a mount; empty if there are none, or they are unknown."""
    try:
        if mount.kind == "lustre":
            ran = run(["lfs", "quota", "-q", "-u", str(os.getuid()), mount.point], deadline_s=_TOOL_S)
            return parse_lfs_quota(ran.output, "user")
        if mount.kind in _WITH_QUOTA:
            # It exits with 1 if a limit is exceeded, and prints nothing if there is none.
            return parse_quota(run(["quota", "-w", "-p", "-u"], deadline_s=_TOOL_S).output, mount.source)
    except ProbeUnavailable:
        pass
    return []


def targets_of(mount: Mount) -> List[Target]:
    """The targets of a Lustre mount; empty for any other, or if they are unknown."""
    if mount.kind != "lustre":
        return []
    try:
        return parse_lfs_df(run(["lfs", "df", mount.point], deadline_s=_TOOL_S).output)
    except ProbeUnavailable:
        return []


def parse_quota(text: str, source: str) -> List[Quota]:
    """Parse `quota -w -p`: the quotas of one device or export. Blocks are KiB; `*` marks an exceeded limit."""
    found = []  # type: List[Quota]
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 8 and words[0] == source:
            numbers = [_number(word) for word in words[1:8]]
            found.append(_quota("user", numbers[0], numbers[1], numbers[2], numbers[4], numbers[5], numbers[6]))
    return found


def parse_lfs_quota(text: str, whose: str) -> List[Quota]:
    """Parse `lfs quota -q`: the file system, then blocks and files as in `quota`."""
    words = text.split()
    if len(words) < 9:
        return []
    numbers = [_number(word) for word in words[1:9]]
    return [_quota(whose, numbers[0], numbers[1], numbers[2], numbers[4], numbers[5], numbers[6])]


def _quota(
    whose: str,
    used: Optional[int],
    soft: Optional[int],
    hard: Optional[int],
    files: Optional[int],
    soft_files: Optional[int],
    hard_files: Optional[int],
) -> Quota:
    limit = hard or soft
    return Quota(whose, (used or 0) * 1024, limit * 1024 if limit else None, files, hard_files or soft_files or None)


def _number(word: str) -> Optional[int]:
    digits = word.strip("*[]")
    return int(digits) if digits.isdecimal() else None


def parse_lfs_df(text: str) -> List[Target]:
    """Parse `lfs df`: the targets, in KiB; inactive ones and the sum are left out."""
    found = []  # type: List[Target]
    for line in text.splitlines():
        match = re.match(r"^(\S+)_UUID\s+(\d+)\s+\d+\s+(\d+)\s", line)
        if match:
            found.append(Target(match.group(1), int(match.group(2)) * 1024, int(match.group(3)) * 1024))
    return found

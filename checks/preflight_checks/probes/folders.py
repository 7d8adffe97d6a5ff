"""Folders that the job or its libraries write to: their existence, permissions, free space and quotas."""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.command import run
from preflight.agent.process import read_text
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.cgroups import Mount, mount_of, mounted


@dataclass(frozen=True)
class FolderState:
    """One folder, or the nearest one above it that exists (`nearest`), where it would be made.

    `problem` is empty, `file` (not a folder), `dangling`, `denied`, `stale` or `other`. `writable` is what the kernel
    answers for this user; a server may still refuse. Inodes are None if the file system has no fixed number of them.
    Quotas and targets are empty if the file system has none, or they are unknown.
    """

    path: str
    resolved: str = ""
    exists: bool = False
    nearest: str = ""
    problem: str = ""
    detail: str = ""
    writable: bool = False
    file_system: str = ""
    source: str = ""
    mount_point: str = ""
    read_only: bool = False
    no_programs: bool = False
    total_bytes: int | None = None
    free_bytes: int | None = None
    inodes_total: int | None = None
    inodes_free: int | None = None
    quotas: list[Quota] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)


def folder_state(params: dict[str, Any]) -> FolderState:
    """Examine `params["path"]` as seen from the job context; nothing is made or written.

    With `params["quota"]` quotas and targets are queried, if the file system has any.
    """
    given = str(params["path"])
    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(given)))
    nearest, status, found = _nearest(resolved)
    if status is None:
        return FolderState(given, resolved, nearest=nearest, problem=found[0], detail=found[1])
    if not stat.S_ISDIR(status.st_mode):
        return FolderState(given, resolved, nearest == resolved, nearest, "file", f"{nearest} is not a folder")
    real = os.path.realpath(nearest)
    mount = mount_of(real, mounted())
    try:
        room = os.statvfs(nearest)
    except OSError as error:
        return FolderState(given, resolved, nearest == resolved, nearest, _kind(error), error.strerror or str(error))
    queried = mount if params.get("quota") else None
    return FolderState(
        given,
        resolved,
        nearest == resolved,
        nearest,
        writable=os.access(nearest, os.W_OK | os.X_OK),
        file_system=mount.kind if mount is not None else "",
        source=mount.source if mount is not None else "",
        mount_point=mount.point if mount is not None else "",
        read_only=bool(room.f_flag & os.ST_RDONLY),
        no_programs=bool(room.f_flag & getattr(os, "ST_NOEXEC", 8)),
        total_bytes=room.f_blocks * room.f_frsize,
        free_bytes=room.f_bavail * room.f_frsize,
        inodes_total=room.f_files or None,
        inodes_free=room.f_favail if room.f_files else None,
        quotas=quotas_of(queried) if queried is not None else [],
        targets=targets_of(queried) if queried is not None else [],
    )


def _nearest(path: str) -> tuple[str, os.stat_result | None, tuple[str, str]]:
    """The path or its nearest existing ancestor, and what blocks the rest."""
    at = path
    while True:
        try:
            return at, os.stat(at), ("", "")
        except OSError as error:
            if os.path.islink(at):
                return at, None, ("dangling", f"{at} links to {os.readlink(at)}, which does not exist")
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) or at == "/":
                return at, None, (_kind(error), f"{at}: {error.strerror or error}")
        at = os.path.dirname(at)


def _kind(error: OSError) -> str:
    if error.errno == errno.ESTALE:
        return "stale"
    return "denied" if isinstance(error, PermissionError) else "other"


@dataclass(frozen=True)
class WriteResult:
    """One small file that was written, synced, and removed again. `problem` is empty if all of it worked."""

    folder: str
    took_s: float
    problem: str = ""


def write_trial(params: dict[str, Any]) -> WriteResult:
    """Write a file of 4 KiB into the folder `params["path"]` (or the nearest above it), fsync and remove it.

    The only probe that writes anything outside memory; it runs only with the user's consent.
    """
    import tempfile
    import time

    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(str(params["path"]))))
    folder = _nearest(resolved)[0]
    began = time.monotonic()
    name = ""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".preflight-", dir=folder)
        try:
            os.write(descriptor, b"\0" * 4096)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return WriteResult(folder, time.monotonic() - began, error.strerror or str(error))
    finally:
        if name:
            try:
                os.unlink(name)
            except OSError:
                pass
    return WriteResult(folder, time.monotonic() - began)


_TOOL_S = 1.5
#: The file systems that `quota` supports; for others it prints nothing, and running it would only take time.
_WITH_QUOTA = frozenset(("ext2", "ext3", "ext4", "xfs", "nfs", "nfs4", "reiserfs", "jfs"))


@dataclass(frozen=True)
class Quota:
    """One quota: bytes, and files if it counts them. None means no limit."""

    whose: str
    used_bytes: int
    limit_bytes: int | None
    used_files: int | None = None
    limit_files: int | None = None


@dataclass(frozen=True)
class Target:
    """One object or metadata target of Lustre."""

    name: str
    total_bytes: int
    free_bytes: int


def quotas_of(mount: Mount) -> list[Quota]:
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


def targets_of(mount: Mount) -> list[Target]:
    """The targets of a Lustre mount; empty for any other, or if they are unknown."""
    if mount.kind != "lustre":
        return []
    try:
        return parse_lfs_df(run(["lfs", "df", mount.point], deadline_s=_TOOL_S).output)
    except ProbeUnavailable:
        return []


def parse_quota(text: str, source: str) -> list[Quota]:
    """Parse `quota -w -p`: the quotas of one device or export. Blocks are KiB; `*` marks an exceeded limit."""
    found: list[Quota] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 8 and words[0] == source:
            numbers = [_number(word) for word in words[1:8]]
            found.append(_quota("user", numbers[0], numbers[1], numbers[2], numbers[4], numbers[5], numbers[6]))
    return found


def parse_lfs_quota(text: str, whose: str) -> list[Quota]:
    """Parse `lfs quota -q`: the file system, then blocks and files as in `quota`."""
    words = text.split()
    if len(words) < 9:
        return []
    numbers = [_number(word) for word in words[1:9]]
    return [_quota(whose, numbers[0], numbers[1], numbers[2], numbers[4], numbers[5], numbers[6])]


def _quota(
    whose: str,
    used: int | None,
    soft: int | None,
    hard: int | None,
    files: int | None,
    soft_files: int | None,
    hard_files: int | None,
) -> Quota:
    limit = hard or soft
    return Quota(whose, (used or 0) * 1024, limit * 1024 if limit else None, files, hard_files or soft_files or None)


def _number(word: str) -> int | None:
    digits = word.strip("*[]")
    return int(digits) if digits.isdecimal() else None


def parse_lfs_df(text: str) -> list[Target]:
    """Parse `lfs df`: the targets, in KiB; inactive ones and the sum are left out."""
    found: list[Target] = []
    for line in text.splitlines():
        match = re.match(r"^(\S+)_UUID\s+(\d+)\s+\d+\s+(\d+)\s", line)
        if match:
            found.append(Target(match.group(1), int(match.group(2)) * 1024, int(match.group(3)) * 1024))
    return found


#: Where each library looks, in its order: variables, with the suffix that it appends to their value, then a default.
#: Sources: Python's tempfile; triton/knobs.py (3.4); torch/utils/cpp_extension.py and torch/_inductor/runtime/
#: cache_dir_utils.py (2.8); huggingface_hub/constants.py (0.34).
PLACES: dict[str, tuple[list[tuple[str, str]], str]] = {
    "temporary": ([("TMPDIR", ""), ("TEMP", ""), ("TMP", "")], "/tmp"),
    "home": ([("HOME", "")], ""),
    "triton": ([("TRITON_CACHE_DIR", ""), ("TRITON_HOME", ".triton/cache")], "~/.triton/cache"),
    "extensions": ([("TORCH_EXTENSIONS_DIR", ""), ("XDG_CACHE_HOME", "torch_extensions")], "~/.cache/torch_extensions"),
    "hub": (
        [
            ("HF_HUB_CACHE", ""),
            ("HUGGINGFACE_HUB_CACHE", ""),
            ("HF_HOME", "hub"),
            ("XDG_CACHE_HOME", "huggingface/hub"),
        ],
        "~/.cache/huggingface/hub",
    ),
}
#: The fallbacks of Python when the first is unusable (tempfile._candidate_tempdir_list); the working directory comes
#: last.
OTHER_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")
#: The space that Python needs to test a temporary folder, with a little more for later use.
MIN_FREE_BYTES = 1 << 16
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = ("1", "on", "yes", "true")


@dataclass(frozen=True)
class Scratch:
    """One such folder. `variable` is the variable that selected it, empty for a default; `instead` is the next usable
    one of those that Python tries for temporary files, empty if there is none.
    """

    what: str
    variable: str
    folder: FolderState
    instead: str = ""


def scratch(params: dict[str, Any]) -> Scratch:
    """The folder of this kind (`params["what"]`, a key of PLACES) for a process of the job."""
    what = str(params["what"])
    variable, path = chosen(what, dict(os.environ))
    state = folder_state({"path": path or "/nonexistent"})
    instead = ""
    if what == "temporary" and not usable(state):
        candidates = [name for name in (*OTHER_TEMPORARY, os.getcwd()) if name != state.resolved]
        instead = next((name for name in candidates if usable(folder_state({"path": name}))), "")
    return Scratch(what, variable, state, instead)


def chosen(what: str, environment: dict[str, str]) -> tuple[str, str]:
    """The variable that decides, and the folder."""
    variables, default = PLACES[what]
    for name, rest in variables:
        value = environment.get(name, "")
        if value:
            return name, os.path.join(value, rest) if rest else value
    return "", os.path.expanduser(default)


def usable(state: FolderState) -> bool:
    """Whether a temporary file can be made there; the folder must exist, because nothing creates it."""
    if not state.exists or state.problem or not state.writable or state.read_only or state.inodes_free == 0:
        return False
    return not state.total_bytes or (state.free_bytes or 0) >= MIN_FREE_BYTES


@dataclass(frozen=True)
class HubModel:
    """A model of Hugging Face's hub, as cached on this node.

    `offline`: downloads are disabled by `variable`. `revisions` are the existing snapshots. `local`: there is a folder
    of that name, which is used instead.
    """

    model: str
    folder: str
    offline: bool
    variable: str = ""
    revisions: list[str] = field(default_factory=list)
    main: str = ""
    local: bool = False
    problem: str = ""


def hub_model(params: dict[str, Any]) -> HubModel:
    """Look up `params["model"]` (`owner/name`) in the cache of the job's processes."""
    model = str(params["model"])
    set_by = next((name for name in _OFFLINE if os.environ.get(name, "").lower() in _TRUE), "")
    folder = os.path.join(chosen("hub", dict(os.environ))[1], "models--" + model.replace("/", "--"))
    try:
        revisions = sorted(_names(os.path.join(folder, "snapshots")) or [])
    except OSError as error:
        return HubModel(model, folder, bool(set_by), set_by, problem=error.strerror or str(error))
    main = read_text(os.path.join(folder, "refs", "main"), 200)
    return HubModel(model, folder, bool(set_by), set_by, revisions, main, os.path.isdir(model))


def _names(folder: str) -> list[str] | None:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None

"""Folders that the job or its libraries write to: their existence, permissions, free space and quotas."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import stat
import time
from dataclasses import dataclass, field, replace
from typing import Any, Iterable, Iterator

from preflight.agent.command import run
from preflight.agent.process import read_text
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.limits import SHARED, Mount, current_mounts, mount_of


@dataclass(frozen=True)
class FolderState:
    """One folder, or its nearest existing ancestor (`nearest`), in which it would be created.

    `problem` is empty, `file` (not a folder), `dangling`, `denied`, `stale` or `other`. `writable` is the kernel's
    answer for this user; a file server may still refuse. Inodes are None if the file system has no fixed number. Quotas
    and targets are empty if the file system has none, or they are unknown.
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
    """Examine `params["path"]` in the job context without writing; with `params["quota"]`, also quotas and targets."""
    given_path = str(params["path"])
    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(given_path)))
    nearest, status, found = _nearest_existing(resolved)
    if status is None:
        return FolderState(given_path, resolved, nearest=nearest, problem=found[0], detail=found[1])
    if not stat.S_ISDIR(status.st_mode):
        return FolderState(given_path, resolved, nearest == resolved, nearest, "file", f"{nearest} is not a folder")
    real = os.path.realpath(nearest)
    mount = mount_of(real, current_mounts())
    try:
        room = os.statvfs(nearest)
    except OSError as error:
        return FolderState(
            given_path, resolved, nearest == resolved, nearest, _kind(error), error.strerror or str(error)
        )
    queried = mount if params.get("quota") else None
    return FolderState(
        given_path,
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


def _nearest_existing(path: str) -> tuple[str, os.stat_result | None, tuple[str, str]]:
    """Return the path or its nearest existing ancestor, and the problem that blocks the rest of the path."""
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
    """One small file that was written, synced, and removed again. `problem` is empty if all of this worked."""

    folder: str
    took_s: float
    problem: str = ""


def write_trial(params: dict[str, Any]) -> WriteResult:
    """Write a file of 4 KiB to the folder `params["path"]` (or its nearest existing ancestor), fsync and remove it.

    The only probe that writes anything outside memory; it runs only with the user's consent.
    """
    import tempfile
    import time

    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(str(params["path"]))))
    folder = _nearest_existing(resolved)[0]
    started_at = time.monotonic()
    name = ""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".preflight-", dir=folder)
        try:
            os.write(descriptor, b"\0" * 4096)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return WriteResult(folder, time.monotonic() - started_at, error.strerror or str(error))
    finally:
        if name:
            try:
                os.unlink(name)
            except OSError:
                pass
    return WriteResult(folder, time.monotonic() - started_at)


_TOOL_S = 1.5
#: The file systems that `quota` supports; for others it prints nothing, and running it would only take time.
_QUOTA_FILE_SYSTEMS = frozenset(("ext2", "ext3", "ext4", "xfs", "nfs", "nfs4", "reiserfs", "jfs"))


@dataclass(frozen=True)
class Quota:
    """One quota: bytes, and files if they are counted. None means no limit."""

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
    """Return the quotas of this user on a mount; empty if there are none, or if they are unknown."""
    try:
        if mount.kind == "lustre":
            ran = run(["lfs", "quota", "-q", "-u", str(os.getuid()), mount.point], deadline_s=_TOOL_S)
            return parse_lfs_quota(ran.output)
        if mount.kind in _QUOTA_FILE_SYSTEMS:
            # It exits with 1 if a limit is exceeded, and prints nothing if there is none.
            return parse_quota(run(["quota", "-w", "-p", "-u"], deadline_s=_TOOL_S).output, mount.source)
    except ProbeUnavailable:
        pass
    return []


def targets_of(mount: Mount) -> list[Target]:
    """Return the targets of a Lustre mount; empty for other file systems, or if the targets are unknown."""
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
            found.append(_quota(words[1:8]))
    return found


def parse_lfs_quota(text: str) -> list[Quota]:
    """Parse `lfs quota -q`: the file system, then blocks and files as in `quota`."""
    words = text.split()
    return [_quota(words[1:8])] if len(words) >= 9 else []


def _quota(words: list[str]) -> Quota:
    """Return the user's quota: used, soft and hard limit, grace; then the same for files, without the grace."""
    used, soft, hard, _, files, soft_files, hard_files = map(_number, words)
    limit = hard or soft
    return Quota("user", (used or 0) * 1024, limit * 1024 if limit else None, files, hard_files or soft_files or None)


def _number(word: str) -> int | None:
    digits = word.strip("*[]")
    return int(digits) if digits.isdecimal() else None


def parse_lfs_df(text: str) -> list[Target]:
    """Parse `lfs df`: the targets, in KiB; inactive targets and the sum are left out."""
    found: list[Target] = []
    for line in text.splitlines():
        match = re.match(r"^(\S+)_UUID\s+(\d+)\s+\d+\s+(\d+)\s", line)
        if match:
            found.append(Target(match.group(1), int(match.group(2)) * 1024, int(match.group(3)) * 1024))
    return found


#: The places that each library searches, in order: variables, with the suffix that it appends to their value, then a
#: default. Sources: Python's tempfile; triton/knobs.py (3.4); torch/utils/cpp_extension.py and torch/_inductor/runtime/
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
    """One folder of this kind. `variable` selected it (empty: a default). `instead` is Python's next usable choice, if
    any.
    """

    what: str
    variable: str
    folder: FolderState
    instead: str = ""


def scratch(params: dict[str, Any]) -> Scratch:
    """Return the folder of this kind (`params["what"]`, a key of PLACES) for a process of the job."""
    what = str(params["what"])
    variable, path = select_folder(what, dict(os.environ))
    state = folder_state({"path": path or "/nonexistent"})
    instead = ""
    if what == "temporary" and not can_hold_files(state):
        candidates = [name for name in (*OTHER_TEMPORARY, os.getcwd()) if name != state.resolved]
        instead = next((name for name in candidates if can_hold_files(folder_state({"path": name}))), "")
    return Scratch(what, variable, state, instead)


def select_folder(what: str, environment: dict[str, str]) -> tuple[str, str]:
    """Return the variable that selects the folder, and the folder."""
    variables, default = PLACES[what]
    for name, rest in variables:
        value = environment.get(name, "")
        if value:
            return name, os.path.join(value, rest) if rest else value
    return "", os.path.expanduser(default)


def can_hold_files(state: FolderState) -> bool:
    """Return whether a temporary file can be created in the folder, which must already exist."""
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
    folder = os.path.join(select_folder("hub", dict(os.environ))[1], "models--" + model.replace("/", "--"))
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


# The state of a job's path on this node: existence, file system, names, sizes and content of its files.


#: A pattern may expand to more; no folder has that many shards.
MAX_NAMES = 50000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"^(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?$")
_LETTERS = re.compile(r"^([A-Za-z])\.\.([A-Za-z])$")
_MAX_LIST_BYTES = 4 << 20


def has_braces(text: str) -> bool:
    """Return whether the text contains brace expansions, as in webdataset and the shell."""
    return any(_alternatives(found) is not None for found in _BRACES.findall(text))


def expand_braces(text: str) -> list[str]:
    """Return all brace expansions of a text, at most MAX_NAMES; a text without braces is its only expansion."""
    found: list[str] = []
    for name in _expand(text):
        if len(found) >= MAX_NAMES:
            break
        found.append(name)
    return found


def _expand(text: str) -> Iterator[str]:
    for match in _BRACES.finditer(text):
        choices = _alternatives(match.group(1))
        if choices is None:
            continue
        for choice in choices:
            for rest in _expand(text[match.end() :]):
                yield text[: match.start()] + choice + rest
        return
    yield text


def _alternatives(inside: str) -> list[str] | None:
    numbers = _RANGE.match(inside)
    if numbers:
        first, last, step = numbers.group(1), numbers.group(2), max(1, int(numbers.group(3) or 1))
        low, high = int(first), int(last)
        if abs(high - low) // step > MAX_NAMES:
            return None
        padded = any(len(word.lstrip("-")) > 1 and word.lstrip("-").startswith("0") for word in (first, last))
        width = max(len(first), len(last)) if padded else 0
        values = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
        return [str(value).zfill(width) for value in values]
    letters = _LETTERS.match(inside)
    if letters:
        low, high = ord(letters.group(1)), ord(letters.group(2))
        return [chr(code) for code in (range(low, high + 1) if low <= high else range(low, high - 1, -1))]
    return inside.split(",") if "," in inside else None


def indexed_files(prefix: str) -> list[str]:
    """Return the two files of an indexed data set (Megatron-LM's --data-path); empty if they do not exist."""
    files = [prefix + ".bin", prefix + ".idx"]
    return files if any(os.path.exists(name) for name in files) else []


def is_list(path: str) -> bool:
    """Return whether a file lists other files, judged by its name (Paddle's train.list)."""
    return path.endswith((".list", ".filelist", "file_list.txt", "filelist.txt"))


def read_file_list(path: str) -> list[str] | None:
    """Return the files that a list names: the first word of each line. None if the list cannot be read.

    Relative names are resolved like the reader does, from the working directory. Lists are often written relative to
    their own folder, so that is used if the first location does not exist.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_LIST_BYTES).splitlines()
    except OSError:
        return None
    folder = os.path.dirname(path)
    found: list[str] = []
    for line in lines[:MAX_NAMES]:
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        here, candidate = os.path.abspath(words[0]), os.path.join(folder, words[0])
        found.append(candidate if not os.path.exists(here) and os.path.exists(candidate) else here)
    return found


#: The number of files that are read; the selection depends on their names alone, so that every node reads the same.
MAX_FILES = 8
#: A file up to this size is read completely; of a larger one its head, middle and tail.
FULL_READ_BYTES = 1 << 20
PIECE_BYTES = 64 * 1024
#: No further file is read after this time; a slow disk must not delay the check.
CONTENT_TIME_LIMIT_S = 1.5


@dataclass(frozen=True)
class Sample:
    """A digest of one file: of the whole file (`whole`), or of its size, head, middle and tail."""

    name: str
    size_bytes: int
    digest: str
    whole: bool


def select_paths(names: Iterable[str]) -> list[str]:
    """Return the names to read, selected by their hashes: practically random, but the same on every node."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())[:MAX_FILES]


def sample_files(files: dict[str, str]) -> tuple[list[Sample], str]:
    """Return digests of some of the files (name -> path), and why there are fewer than planned."""
    samples: list[Sample] = []
    began = time.monotonic()
    for name in select_paths(files):
        if time.monotonic() - began > CONTENT_TIME_LIMIT_S:
            return samples, f"reading took longer than {CONTENT_TIME_LIMIT_S:.1f} s"
        try:
            samples.append(digest_of(name, files[name]))
        except OSError as error:
            return samples, f"{name}: {error.strerror or error}"
    return samples, ""


def digest_of(name: str, path: str) -> Sample:
    """Return the digest of one regular file. Raises OSError."""
    # A name may have become a pipe meanwhile, and opening that would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        digest = hashlib.sha256(b"%d\n" % size)
        if size <= FULL_READ_BYTES:
            digest.update(file.read(FULL_READ_BYTES + 1) or b"")
            return Sample(name, size, digest.hexdigest()[:16], True)
        for place in (0, size // 2, size - PIECE_BYTES):
            file.seek(place)
            digest.update(file.read(PIECE_BYTES) or b"")
        return Sample(name, size, digest.hexdigest()[:16], False)


#: The number of files that are listed by name and size; more are counted and only enter the digest.
MAX_LISTED = 2000
#: The walk ends here, so that a directory with millions of files costs seconds at most.
MAX_WALKED = 50000
#: The time limit, for servers that take milliseconds per file. The files listed until then differ from node to node.
TIME_LIMIT_S = 2.0


@dataclass(frozen=True)
class Entry:
    """A file below the path, by its name relative to it."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class PathState:
    """One path.

    `kind` is `file`, `directory`, `pattern` (files that match it), `indexed` (the prefix of a .bin and an .idx), `list`
    (a file and the files that it names), `other` or empty if it does not exist; `problem` is `missing`, `denied`,
    `dangling` (a broken link), `stale` (its server no longer knows it) or `other`. `digest` is over all names and
    sizes; `listed` is the number of files in it, up to MAX_WALKED. `absent` are files that the path names but that do
    not exist. `samples` are digests of some files (none on a shared file system, whose `source` is compared instead),
    and `sample_problem` is why there are fewer. `hurried`: time ran out before all files were listed, so nothing can be
    compared.
    """

    path: str
    resolved: str = ""
    kind: str = ""
    problem: str = ""
    detail: str = ""
    size_bytes: int = 0
    file_system: str = ""
    entries: list[Entry] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    listed: int = 0
    digest: str = ""
    absent: list[str] = field(default_factory=list)
    source: str = ""
    samples: list[Sample] = field(default_factory=list)
    sample_problem: str = ""
    hurried: bool = False


def path_state(params: dict[str, Any]) -> PathState:
    """Examine `params["path"]` of the job context, with `~` and $NAME, in its own process: the mount may hang."""
    given = str(params["path"])
    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(given)))
    try:
        status = os.stat(resolved)
    except OSError as error:
        return _missing_path(given, resolved, error)
    state = _with_mount(PathState(given, resolved))
    if stat.S_ISREG(status.st_mode):
        if is_list(resolved):
            names = read_file_list(resolved)
            if names is not None:
                return _collected(replace(state, kind="list"), [resolved, *names], os.path.dirname(resolved))
        state = _collected(replace(state, kind="file"), [resolved], os.path.dirname(resolved))
        return replace(state, entries=[])
    if not stat.S_ISDIR(status.st_mode):
        return replace(state, kind="other")
    if not os.access(resolved, os.R_OK | os.X_OK):
        return replace(state, kind="directory", problem="denied", detail="this user may not list it")
    return _collected(replace(state, kind="directory"), _walk(resolved), resolved)


def _with_mount(state: PathState) -> PathState:
    """Add the file system and its source; links are resolved to the actual location."""
    mount = mount_of(os.path.realpath(state.resolved), current_mounts())
    return replace(state, file_system=mount.kind, source=mount.source) if mount is not None else state


def _missing_path(given_path: str, resolved: str, error: OSError) -> PathState:
    names: list[str] = []
    kind: str = "pattern"
    if has_braces(resolved):
        names = expand_braces(resolved)
        # Nothing of it exists: this is reported of the path itself, not of each of its files.
        names = names if any(os.path.lexists(name) for name in names) else []
    elif glob.has_magic(given_path):
        names = sorted(glob.glob(resolved, recursive=True))[:MAX_WALKED]
    elif indexed_files(resolved):
        names, kind = indexed_files(resolved), "indexed"
    if names:
        folder = os.path.dirname(os.path.commonprefix(names)) or "/"
        return _collected(
            replace(_with_mount(PathState(given_path, folder)), resolved=resolved, kind=kind), names, folder
        )
    if isinstance(error, PermissionError):
        return PathState(given_path, resolved, "", "denied", error.strerror or "")
    if os.path.islink(resolved):
        return PathState(given_path, resolved, "", "dangling", f"it links to {os.readlink(resolved)}")
    problem = "missing" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else "other"
    problem = "stale" if error.errno == errno.ESTALE else problem
    return PathState(given_path, resolved, "", problem, error.strerror or str(error))


def _walk(folder: str) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            yield os.path.join(where, name)


def _collected(state: PathState, names: Iterable[str], base: str) -> PathState:
    collected: list[tuple[str, int]] = []
    unreadable: list[str] = []
    absent: list[str] = []
    readable: dict[str, str] = {}
    hurried = False
    ends = time.monotonic() + TIME_LIMIT_S
    explicit = state.kind in ("list", "indexed") or has_braces(state.path)
    for name in names:
        if len(collected) >= MAX_WALKED:
            break
        if time.monotonic() > ends:
            hurried = True
            break
        shown = os.path.relpath(name, base)
        try:
            status = os.stat(name)
        except OSError:
            (absent if explicit and not os.path.lexists(name) else unreadable).append(shown)
            continue
        collected.append((shown, status.st_size))
        if not os.access(name, os.R_OK):
            unreadable.append(shown)
        elif stat.S_ISREG(status.st_mode):
            readable[shown] = name
    # Files that all nodes read from one server are the same for all of them.
    samples, problem = ([], "") if hurried or state.file_system in SHARED else sample_files(readable)
    return replace(
        state,
        size_bytes=sum(size for _name, size in collected),
        entries=[Entry(name, size) for name, size in collected[:MAX_LISTED]],
        unreadable=unreadable[:MAX_LISTED],
        absent=absent[:MAX_LISTED],
        listed=len(collected),
        digest=_digest(collected),
        samples=samples,
        sample_problem=problem,
        hurried=hurried,
    )


def _digest(files: list[tuple[str, int]]) -> str:
    text = "\n".join("%s\t%d" % item for item in sorted(files))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


# The content of a checkpoint: the format of its pieces, the number of ranks that wrote them, and missing pieces.
# Only names and sizes are read. Nothing is unpickled: a checkpoint may hold code, and loading it takes minutes.


#: The number of names in one folder that are examined; a checkpoint has a few for each rank.
CHECKPOINTS_MAX_NAMES = 20000
#: DeepSpeed (deepspeed/runtime/engine.py, _get_zero_ckpt_name and _get_ckpt_name): one file of optimizer states for
#: each data-parallel rank, one of the model for each model-parallel rank.
_ZERO = re.compile(r"^(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")
_MODEL = re.compile(r"^mp_rank_(\d+)_model_states\.pt$")
#: Megatron-LM (megatron/training/checkpointing.py, get_checkpoint_name): a folder for each tensor-parallel rank, with
#: the pipeline stage appended if there are several.
_MEGATRON = re.compile(r"^mp_rank_(\d{2,})(?:_(\d{3,}))?$")
#: torch.distributed.checkpoint (filesystem.py): files by the rank that wrote them, and one index.
_DCP = re.compile(r"^__(\d+)_\d+\.distcp$")
_RANDOM = re.compile(r"^rng_state_(\d+)\.pth$")


@dataclass(frozen=True)
class CheckpointState:
    """One checkpoint. `problem` is empty, `missing`, `denied`, `empty` (no checkpoint in the folder), `tag` (the
    checkpoint named as the newest does not exist) or `other`.

    `tag` is the folder of the newest checkpoint under the path. The lists contain the ranks whose files exist: of
    ZeRO's optimizer states, of model-parallel parts, of Megatron's tensor-parallel parts (`stages`: of its pipeline),
    of torch.distributed.checkpoint, of Hugging Face's random states. `universal`: DeepSpeed's format for any number of
    ranks; `index`: torch's .metadata exists; `hollow`: empty files.
    """

    path: str
    resolved: str = ""
    problem: str = ""
    detail: str = ""
    tag: str = ""
    zero: list[int] = field(default_factory=list)
    model: list[int] = field(default_factory=list)
    tensor: list[int] = field(default_factory=list)
    stages: list[int] = field(default_factory=list)
    distributed: list[int] = field(default_factory=list)
    random: list[int] = field(default_factory=list)
    universal: bool = False
    index: bool = False
    hollow: list[str] = field(default_factory=list)
    size_bytes: int = 0


def checkpoint_state(params: dict[str, Any]) -> CheckpointState:
    """Examine the checkpoint `params["path"]`: a file, a checkpoint folder, or a folder that names its newest
    checkpoint.
    """
    given_path = str(params["path"])
    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(given_path)))
    try:
        if not os.path.isdir(resolved):
            size = os.stat(resolved).st_size
            return CheckpointState(
                given_path, resolved, size_bytes=size, hollow=[os.path.basename(resolved)][: size == 0]
            )
        tag = _newest_checkpoint(resolved)
        folder = os.path.join(resolved, tag)
        if not os.path.isdir(folder):
            return CheckpointState(
                given_path, resolved, "tag", f"{tag} is recorded as the newest checkpoint, but does not exist", tag
            )
        pieces = _pieces(folder)
    except OSError as error:
        problem = {errno.ENOENT: "missing", errno.ENOTDIR: "missing", errno.EACCES: "denied"}
        return CheckpointState(
            given_path, resolved, problem.get(error.errno or 0, "other"), error.strerror or str(error)
        )
    if not pieces:
        return CheckpointState(given_path, resolved, "empty", "it contains no files", tag)
    return _with_ranks(CheckpointState(given_path, resolved, tag=tag), pieces)


def _newest_checkpoint(folder: str) -> str:
    """Return the newest checkpoint under `folder`; empty if `folder` itself is a checkpoint. Raises OSError."""
    text = _first_word(os.path.join(folder, "latest_checkpointed_iteration.txt"))
    if text:
        return text if text == "release" else f"iter_{int(text):07}" if text.isdecimal() else text
    text = _first_word(os.path.join(folder, "latest")) or _first_word(os.path.join(folder, "latest_universal"))
    # The name of a subfolder, which cannot lead elsewhere.
    return text if text and "/" not in text and text not in (".", "..") else ""


def _first_word(path: str) -> str:
    return (read_text(path, 256).split() or [""])[0]


def _pieces(folder: str) -> list[tuple[str, int, bool]]:
    """Return, for each entry of the folder, its name, its size and whether it is a folder. Raises OSError."""
    found: list[tuple[str, int, bool]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(found) >= CHECKPOINTS_MAX_NAMES:
                break
            is_folder = entry.is_dir()
            size = 0 if is_folder else entry.stat().st_size
            found.append((entry.name, size, is_folder))
    return sorted(found)


def _with_ranks(state: CheckpointState, pieces: list[tuple[str, int, bool]]) -> CheckpointState:
    ranks: dict[str, set[int]] = {}
    universal = index = False
    for name, _size, is_folder in pieces:
        universal = universal or (is_folder and name == "zero")
        index = index or name == ".metadata"
        for kind, pattern in (("zero", _ZERO), ("model", _MODEL), ("distributed", _DCP), ("random", _RANDOM)):
            match = pattern.match(name)
            if match and not is_folder:
                ranks.setdefault(kind, set()).add(int(match.group(1)))
        match = _MEGATRON.match(name)
        if match and is_folder:
            ranks.setdefault("tensor", set()).add(int(match.group(1)))
            ranks.setdefault("stages", set()).add(int(match.group(2) or 0))
    hollow = [
        name for name, size, is_folder in pieces if not size and not is_folder and name.endswith((".pt", ".distcp"))
    ]
    found: dict[str, Any] = {kind: sorted(numbers) for kind, numbers in ranks.items()}
    size_bytes = sum(size for _name, size, _folder in pieces)
    return replace(state, universal=universal, index=index, hollow=hollow[:100], size_bytes=size_bytes, **found)

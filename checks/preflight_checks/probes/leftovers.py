"""Leftovers of an earlier run on this node: processes, shared memory, locks. Nothing is ended or removed."""

from __future__ import annotations

import glob
import os
import re
import time
from dataclasses import dataclass, field
from typing import Any, Sequence

from preflight._util.redaction import scrub
from preflight.agent.cheap import cheap
from preflight.agent.process import PROC, RECENT_S, content, list_folder, parse_stat, pids, stat_lines, text

SHM = "/dev/shm"
MAX_LISTED = 64
#: The number of shared-memory files that are examined.
MAX_SEGMENTS = 20000
#: A process that is stuck in the kernel is sampled twice, this far apart: every disk read is briefly in that state.
SAMPLE_GAP_S = 0.3
#: Time limit for reading the memory maps of processes.
MAPS_DEADLINE_S = 1.5
#: Programs that start ranks or serve them, by the name of the program or of the module after `-m`.
LAUNCHERS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.elastic.multiprocessing": "torchrun",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "paddle.distributed.launch": "paddle",
    "paddle.distributed.fleet.launch": "paddle",
    "fleetrun": "paddle",
    "paddle": "paddle",
    "accelerate": "accelerate",
    "accelerate.commands.launch": "accelerate",
    "horovodrun": "horovodrun",
    "horovod.runner.mpi_run": "horovodrun",
    "orted": "mpirun",
    "prted": "mpirun",
    "orterun": "mpirun",
    "mpirun": "mpirun",
    "hydra_pmi_proxy": "mpirun",
    "composer": "composer",
}
#: Shared memory that libraries leave when they are killed, by the beginning of the name.
SHM_PREFIXES = {
    "torch_": "torch",
    "nccl-": "NCCL",
    "psm_": "Python",
    "psm3_": "PSM3",
    "vader_segment": "Open MPI",
    "sm_segment": "Open MPI",
    "ucx_shm_": "UCX",
    "paddle_": "Paddle",
    "plasma": "Ray",
    "cuda.shm.": "CUDA",
}


@dataclass(frozen=True)
class Process:
    """One process that belongs to a run. `what` is `program`, `launcher`, `server` or `worker`.

    `orphan` means that its parent is gone; `state` is that of the kernel, `D` only if it was so twice.
    """

    pid: int
    what: str
    name: str
    command: str
    user: str
    own: bool
    age_s: float
    state: str
    orphan: bool = False
    directory: str = ""
    ports: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Segment:
    """A file in shared memory whose creators are gone. Sizes are disk usage."""

    name: str
    of: str
    size_bytes: int
    age_s: float
    own: bool


@dataclass(frozen=True)
class Lock:
    """A file with which torch keeps two processes from compiling one extension."""

    path: str
    age_s: float


@dataclass(frozen=True)
class Leftovers:
    """The leftovers. `strangers` counts busy Python processes by user, `hidden` those whose command is not visible."""

    processes: list[Process] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    shm_total_bytes: int | None = None
    strangers: dict[str, int] = field(default_factory=dict)
    hidden: int = 0
    compiling: bool = False


@cheap("node")
def leftovers(params: dict[str, Any]) -> Leftovers:
    """Processes that run one of `params["programs"]` (names of scripts or modules) or a launcher, and shared memory.

    `params["ports"]` are the job's ports: a process that listens on one of them is reported with it.
    """
    programs = [str(name) for name in params.get("programs", []) if str(name)]
    ports = {int(port) for port in params.get("ports", [])}
    table, hidden = _table()
    own = _relatives(table, os.getpid())
    listeners = _listeners(ports)
    found: list[Process] = []
    strangers: dict[str, int] = {}
    compiling = False
    for pid, entry in sorted(table.items()):
        if pid in own:
            continue
        compiling = compiling or os.path.basename(entry.words[0]) in ("ninja", "nvcc", "cicc", "cc1plus", "hipcc")
        kind = classify(entry.words, programs, entry.role)
        held = sorted(listeners.get(pid, set()))
        if kind is None and held and entry.own:
            kind = ("server", os.path.basename(entry.words[0]))
        if kind is not None:
            found.append(_process(pid, kind, entry, table, held))
        elif not entry.own and _is_python(entry.words[0]) and entry.busy_share > 0.5:
            strangers[entry.user] = strangers.get(entry.user, 0) + 1
    return Leftovers(
        _still_stuck(found)[:MAX_LISTED],
        _segments(set(table))[:MAX_LISTED],
        _size_of(SHM),
        strangers,
        hidden,
        compiling,
    )


def locks(params: dict[str, Any]) -> list[Lock]:
    """Locks of torch's extension folders. They are a separate request, in the job context, because the folder may be on
    a dead mount.

    A lock is a plain file that torch makes and removes (torch/utils/file_baton.py before 2.14): one that a killed
    process left makes all others wait forever (pytorch/pytorch#189245).
    """
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(os.path.expanduser("~"), ".cache", "torch_extensions")
    found: list[Lock] = []
    for pattern in ("*/lock", "*/*/lock"):
        for path in sorted(glob.glob(os.path.join(glob.escape(root), pattern)))[:MAX_LISTED]:
            try:
                found.append(Lock(path, max(0.0, time.time() - os.stat(path).st_mtime)))
            except OSError:
                continue
    return found


@dataclass(frozen=True)
class Entry:
    """One process in the table."""

    words: list[str]
    parent: int
    state: str
    user: str
    own: bool
    age_s: float
    busy_share: float
    role: str = ""


def _table() -> tuple[dict[int, Entry], int]:
    """Every process with a command line, and the number of hidden ones."""
    table: dict[int, Entry] = {}
    hidden = 0
    uid, ticks = os.getuid(), float(os.sysconf("SC_CLK_TCK"))
    up = float((text("uptime") or "0").split()[0])
    for pid, line in stat_lines(RECENT_S).items():
        stat = parse_stat(line)
        if stat is None or stat.kernel:
            continue
        name = str(pid)
        try:
            # A process that has ended meanwhile hides nothing.
            owner = os.stat(PROC + "/" + name).st_uid
        except OSError:
            continue
        raw = text(name + "/cmdline")
        words = [word for word in raw.split("\0") if word]
        if not words:
            # In a container the kernel's own may look like others.
            hidden += not raw and stat.parent not in (0, 2) and stat.state != "Z"
            continue
        age = max(0.0, up - stat.started / ticks)
        share = (stat.ticks / ticks) / age if age > 1.0 else 0.0
        # Only a Python process is classified as a server or a worker by its environment.
        role = _role(name) if owner == uid and _is_python(words[0]) else ""
        table[pid] = Entry(words, stat.parent, stat.state, _user(owner), owner == uid, age, share, role)
    return table, hidden


def _role(name: str) -> str:
    """The role in the environment of a process of our own; the environment of others may not be read."""
    for entry in text(name + "/environ").split("\0"):
        if entry.startswith(("TRAINING_ROLE=", "PADDLE_TRAINING_ROLE=", "DMLC_ROLE=")):
            return entry.partition("=")[2]
    return ""


def classify(words: Sequence[str], programs: Sequence[str], role: str = "") -> tuple[str, str] | None:
    """Classify a command line for a job: its kind and its name; None for anything else.

    An editor with train.py open is not a trainer: the program must be run by an interpreter.
    """
    first = os.path.basename(words[0])
    if not _is_python(first):
        launcher = LAUNCHERS.get(first)
        return ("launcher", launcher) if launcher else None
    run = python_target(words)
    if run is None:
        return None
    if "multiprocessing" in run and ("spawn_main" in run or "forkserver" in run or "resource_tracker" in run):
        return ("worker", "multiprocessing")
    for name in programs:
        if run == name or os.path.basename(run) == os.path.basename(name):
            is_server = role.upper() in ("PSERVER", "SERVER", "SCHEDULER") or "--role=pserver" in " ".join(words)
            return ("server" if is_server else "program", name)
    launcher = LAUNCHERS.get(run) or LAUNCHERS.get(os.path.basename(run))
    return ("launcher", launcher) if launcher else None


def python_target(words: Sequence[str]) -> str | None:
    """The script or module that a Python command line runs, or the code after `-c`."""
    at = 1
    while at < len(words):
        word = words[at]
        if word in ("-m", "-c"):
            return words[at + 1] if at + 1 < len(words) else None
        if word in ("-W", "-X", "-Q"):
            at += 2
        elif word.startswith("-") and word != "-":
            at += 1
        else:
            return word
    return None


def _is_python(program: str) -> bool:
    return os.path.basename(program).rstrip("0123456789.") in ("python", "pypy")


def _process(pid: int, kind: tuple[str, str], entry: Entry, table: dict[int, Entry], held: list[int]) -> Process:
    shown = scrub(" ".join(entry.words))[:200]
    # An orphan is adopted by init or by a subreaper.
    orphan = entry.parent <= 1 or entry.parent not in table
    try:
        directory = os.readlink(os.path.join(PROC, str(pid), "cwd"))
    except OSError:
        directory = ""
    age = round(entry.age_s, 1)
    return Process(pid, kind[0], kind[1], shown, entry.user, entry.own, age, entry.state, orphan, directory, held)


def _still_stuck(processes: list[Process]) -> list[Process]:
    if not any(process.state == "D" for process in processes):
        return processes
    time.sleep(SAMPLE_GAP_S)
    kept: list[Process] = []
    for process in processes:
        state = process.state
        if state == "D":
            again = parse_stat(content(f"{process.pid}/stat"))
            state = again.state if again is not None else "X"
        values = dict(process.__dict__, state=state)
        kept.append(Process(**values))
    return kept


def _relatives(table: dict[int, Entry], pid: int) -> set[int]:
    """This process, its ancestors, and everything that those have started for this run."""
    above = {pid}
    at = pid
    while at in table and table[at].parent > 1:
        at = table[at].parent
        above.add(at)
    # Everything below the agent belongs to this run, and so do other children of the head, if it runs on this node:
    # launchers that connect to the other nodes. Of further ancestors, such as the user's shell, only the line up to it
    # belongs.
    ours = {pid, *(other for other in above if other in table and _is_head(table[other].words))}
    changed = True
    while changed:
        changed = False
        for other, entry in table.items():
            if entry.parent in ours and other not in ours:
                ours.add(other)
                changed = True
    return above | ours


def _is_head(words: Sequence[str]) -> bool:
    run = python_target(words) if _is_python(words[0]) else words[0]
    return run is not None and os.path.basename(run) == "preflight"


def _listeners(ports: set[int]) -> dict[int, set[int]]:
    """The processes that listen on these ports, among those whose descriptors we may read."""
    from preflight_checks.probes.ports import holders_of, vacant

    found: dict[int, set[int]] = {}
    for port in sorted(ports)[:MAX_LISTED]:
        # A list of all sockets from the kernel costs as much as everything else here.
        if vacant(port):
            continue
        for holder in holders_of(port):
            if holder.pid and holder.listening:
                found.setdefault(holder.pid, set()).add(port)
    return found


def _segments(alive: set[int]) -> list[Segment]:
    """Shared-memory files of dead creators, largest first."""
    found: list[Segment] = []
    segments = [(os.path.join(SHM, name), of) for name in list_folder(SHM) for of in [_library_of(name)] if of]
    used = _mapped() if segments else set()
    if used is None:
        return []
    for path, of in segments[:MAX_SEGMENTS]:
        name = os.path.basename(path)
        if name in used or _creator_pid(name) in alive:
            continue
        try:
            status = os.stat(path)
        except OSError:
            continue
        age = max(0.0, time.time() - status.st_mtime)
        found.append(Segment(name, of, status.st_blocks * 512, round(age, 1), status.st_uid == os.getuid()))
    found.sort(key=lambda segment: -segment.size_bytes)
    return found


def _library_of(name: str) -> str:
    """The library that uses this name for shared memory; empty if unknown."""
    return next((of for begins, of in SHM_PREFIXES.items() if name.startswith(begins)), "")


def _creator_pid(name: str) -> int:
    """The process id in the name of a segment: torch writes `torch_PID_...`."""
    match = re.match(r"^torch_(\d+)_", name)
    return int(match.group(1)) if match else -1


def _mapped() -> set[str] | None:
    """Names of segments that some process still has mapped, among those whose maps we may read; None if out of time."""
    found: set[str] = set()
    prefix = SHM + "/"
    until = time.monotonic() + MAPS_DEADLINE_S
    for name in pids():
        if time.monotonic() > until:
            return None
        for line in text(name + "/maps", 4 * 1024 * 1024).splitlines():
            at = line.find(prefix)
            if at >= 0:
                found.add(line[at + len(prefix) :].split(" ")[0])
    return found


def _size_of(folder: str) -> int | None:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize


def _user(uid: int) -> str:
    # A lookup in the user database can hang on a dead directory server.
    return {0: "root", os.getuid(): os.environ.get("USER") or f"uid {uid}"}.get(uid, f"uid {uid}")

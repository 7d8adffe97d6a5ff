"""Leftovers of earlier runs on this node: processes, shared memory, locks. Nothing is ended or removed."""

from __future__ import annotations

import glob
import json
import os
import re
import time
from dataclasses import dataclass, field, replace
from typing import Any, Iterable, Optional, Sequence, Tuple

from preflight._util.redaction import scrub
from preflight.agent import command
from preflight.agent.cheap import cheap
from preflight.agent.command import run
from preflight.agent.process import PROC, RECENT_S, content, list_folder, parse_stat, pids, stat_lines, text
from preflight.agent.wire import ProbeUnavailable

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
#: Shared memory that killed libraries leave behind, by prefix of the name.
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

    `orphan`: whether its parent is gone; `state` is the kernel's, and `D` only if it was found twice.
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
    """A file in shared memory whose creators have exited. Sizes are disk usage."""

    name: str
    of: str
    size_bytes: int
    age_s: float
    own: bool


@dataclass(frozen=True)
class Lock:
    """A lock file by which torch keeps two processes from compiling one extension."""

    path: str
    age_s: float


@dataclass(frozen=True)
class Leftovers:
    """The leftovers. `strangers` counts busy Python processes by user, `hidden` processes whose command is not
    visible.
    """

    processes: list[Process] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    shm_total_bytes: int | None = None
    strangers: dict[str, int] = field(default_factory=dict)
    hidden: int = 0
    compiling: bool = False


@cheap("node")
def leftovers(params: dict[str, Any]) -> Leftovers:
    """Find processes that run `params["programs"]` or a launcher, or listen on `params["ports"]`, and shared memory."""
    programs = [str(name) for name in params.get("programs", []) if str(name)]
    ports = {int(port) for port in params.get("ports", [])}
    table, hidden = _table()
    own = _relatives(table, os.getpid())
    listeners = _listeners(ports)
    processes: list[Process] = []
    strangers: dict[str, int] = {}
    compiling = False
    for pid, entry in sorted(table.items()):
        if pid in own:
            continue
        compiling = compiling or os.path.basename(entry.words[0]) in ("ninja", "nvcc", "cicc", "cc1plus", "hipcc")
        kind = classify(entry.words, programs, entry.role)
        own_ports = sorted(listeners.get(pid, set()))
        if kind is None and own_ports and entry.own:
            kind = ("server", os.path.basename(entry.words[0]))
        if kind is not None:
            processes.append(_process(pid, kind, entry, table, own_ports))
        elif not entry.own and _is_python(entry.words[0]) and entry.busy_share > 0.5:
            strangers[entry.user] = strangers.get(entry.user, 0) + 1
    return Leftovers(
        _still_stuck(processes)[:MAX_LISTED],
        _unused_segments(set(table))[:MAX_LISTED],
        _size_of(SHM),
        strangers,
        hidden,
        compiling,
    )


def locks(params: dict[str, Any]) -> list[Lock]:
    """Return the locks of torch's extension folders.

    They are a separate request, in the job context, because the folder may be on a dead mount.

    A lock is a plain file that torch creates and removes (torch/utils/file_baton.py before 2.14): if a killed process
    leaves one behind, all others wait forever (pytorch/pytorch#189245).
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
    """Return every process that has a command line, and the number of hidden processes."""
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
    """Return the role in the environment of one of our own processes; processes of other users may not be read."""
    for entry in text(name + "/environ").split("\0"):
        if entry.startswith(("TRAINING_ROLE=", "PADDLE_TRAINING_ROLE=", "DMLC_ROLE=")):
            return entry.partition("=")[2]
    return ""


def classify(words: Sequence[str], programs: Sequence[str], role: str = "") -> tuple[str, str] | None:
    """Return the kind and name of a process that an interpreter runs for a job; None for others, such as editors."""
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
    """Return the script or module that a Python command line runs, or the code after `-c`."""
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


def _process(pid: int, kind: tuple[str, str], entry: Entry, table: dict[int, Entry], held_ports: list[int]) -> Process:
    shown = scrub(" ".join(entry.words))[:200]
    # An orphan is adopted by init or by a subreaper.
    orphan = entry.parent <= 1 or entry.parent not in table
    try:
        directory = os.readlink(os.path.join(PROC, str(pid), "cwd"))
    except OSError:
        directory = ""
    age = round(entry.age_s, 1)
    return Process(pid, kind[0], kind[1], shown, entry.user, entry.own, age, entry.state, orphan, directory, held_ports)


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
        kept.append(replace(process, state=state))
    return kept


def _relatives(table: dict[int, Entry], pid: int) -> set[int]:
    """Return the process `pid`, its ancestors, and all processes that they have started for this run."""
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
    """Return the processes that listen on these ports; processes whose descriptors may not be read are left out."""
    from preflight_checks.probes.ports import holders_of, is_vacant

    found: dict[int, set[int]] = {}
    for port in sorted(ports)[:MAX_LISTED]:
        # A list of all sockets from the kernel costs as much as everything else here.
        if is_vacant(port):
            continue
        for holder in holders_of(port):
            if holder.pid and holder.listening:
                found.setdefault(holder.pid, set()).add(port)
    return found


def _unused_segments(alive: set[int]) -> list[Segment]:
    """Return shared-memory files whose creator has exited and that no process maps, largest first; empty if time ran
    out.
    """
    shared_segments: list[Segment] = []
    segments = [(os.path.join(SHM, name), of) for name in list_folder(SHM) for of in [_library_of(name)] if of]
    used = _mapped_segments() if segments else set()
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
        shared_segments.append(Segment(name, of, status.st_blocks * 512, round(age, 1), status.st_uid == os.getuid()))
    shared_segments.sort(key=lambda segment: -segment.size_bytes)
    return shared_segments


def _library_of(name: str) -> str:
    """Return the library that uses this name for shared memory; empty if unknown."""
    return next((of for begins, of in SHM_PREFIXES.items() if name.startswith(begins)), "")


def _creator_pid(name: str) -> int:
    """Return the process id in the name of a segment: torch writes `torch_PID_...`."""
    match = re.match(r"^torch_(\d+)_", name)
    return int(match.group(1)) if match else -1


def _mapped_segments() -> set[str] | None:
    """Return the names of the segments that any readable process has mapped; None if time ran out."""
    names: set[str] = set()
    prefix = SHM + "/"
    until = time.monotonic() + MAPS_DEADLINE_S
    for name in pids():
        if time.monotonic() > until:
            return None
        for line in text(name + "/maps", 4 * 1024 * 1024).splitlines():
            at = line.find(prefix)
            if at >= 0:
                names.add(line[at + len(prefix) :].split(" ")[0])
    return names


def _size_of(folder: str) -> int | None:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize


def _user(uid: int) -> str:
    # A lookup in the user database can hang on a dead directory server.
    return {0: "root", os.getuid(): os.environ.get("USER") or f"uid {uid}"}.get(uid, f"uid {uid}")


# The NVIDIA driver's messages in the kernel log: Xid messages of GPUs, SXid messages of NVSwitches.


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
    """The driver's messages. `source` is where they were read from."""

    source: str
    complaints: list[DriverMessage] = field(default_factory=list)


#: Age in seconds, and the line.
Line = Tuple[Optional[float], str]


def kernel_log(params: dict[str, Any]) -> KernelLog:
    """Return the messages since boot, from journal or kernel. Raises ProbeUnavailable, often for unprivileged users."""
    reasons: list[ProbeUnavailable] = []
    for read in (_journal, _ring_buffer_log):
        try:
            return read()
        except ProbeUnavailable as error:
            reasons.append(error)
    kind = "denied" if any(error.kind == "denied" for error in reasons) else reasons[-1].kind
    raise ProbeUnavailable(kind, "; ".join(error.reason for error in reasons))


def _journal() -> KernelLog:
    # First check that any message of this boot is visible: an empty log does not prove that there is no Xid.
    if not _read_journal("--lines=1"):
        raise ProbeUnavailable("missing", "the journal has no kernel messages of this boot")
    now = time.time()
    lines: list[Line] = []
    for line in _read_journal("--grep=" + PATTERN):
        stamp = _STAMP.match(line)
        lines.append((now - float(stamp.group(1)) if stamp else None, line))
    return KernelLog("journalctl --dmesg", sum_up(lines))


def _read_journal(option: str) -> list[str]:
    """Return the lines of the kernel's messages since boot. Raises ProbeUnavailable if this user may not see them."""
    words = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-unix", option]
    ran = command.run(words, deadline_s=TOOL_S)
    if _HINT in ran.error or "insufficient permissions" in ran.error.lower():
        raise ProbeUnavailable("denied", "this user may not read system messages in the journal")
    # Exit code 1 without standard error means "nothing matches".
    errors = ran.error.strip().splitlines()
    if ran.exit_code not in (0, 1) or (ran.exit_code and errors):
        raise ProbeUnavailable(
            "crashed", "journalctl exited with %d: %s" % (ran.exit_code, errors[-1] if errors else "")
        )
    return ran.output.splitlines()


def _ring_buffer_log() -> KernelLog:
    """Return the kernel's ring buffer, with `level,number,microseconds since boot,flags;text` per record."""
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
    """Count messages by kind, code and device, each with the latest text."""
    messages: dict[tuple[str, int, str], DriverMessage] = {}
    for age, line in lines:
        match = _SXID.search(line) if "SXid" in line else _XID.search(line)
        if match is None:
            continue
        kind = "sxid" if "SXid" in line else "xid"
        key = (kind, int(match.group(2)), kernel_pci_address(match.group(1)))
        count = messages[key].count + 1 if key in messages else 1
        text = (match.group(3) or "").strip()[:200]
        last = messages[key].last_age_s if key in messages else None
        ages = [value for value in (last, age) if value is not None]
        messages[key] = DriverMessage(*key, count, round(max(0.0, min(ages)), 1) if ages else None, text)
    return [messages[key] for key in sorted(messages)]


def kernel_pci_address(errors: str) -> str:
    """Convert the driver's `0000:3B:00` to the kernel's `0000:3b:00.0`."""
    errors = errors.lower()
    return errors if "." in errors else errors + ".0"


# Signs that a node will be removed or restarted: a planned shutdown, plans of a scheduler or a cloud.


RUN = "/run"
ETC = "/etc"
DMI = "/sys/class/dmi/id"
_SCONTROL_S = 3.0
_METADATA_S = 1.0
_ADDRESS = "http://169.254.169.254"
_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class ShutdownSigns:
    """The signs on this node itself. `shutdown` is the planned action (reboot, poweroff ...), empty if none;
    `shutdown_in_s` the time until then, by the node's own clock. `no_logins` is the text of the file that blocks
    logins; None if there is none. `restart_wanted`: whether updated packages need a restart.
    """

    shutdown: str = ""
    shutdown_in_s: float | None = None
    no_logins: str | None = None
    restart_wanted: bool = False


@cheap("node")
def signs(params: dict[str, Any]) -> ShutdownSigns:
    """Read the files that systemd and the distribution leave in /run and /etc; no daemon is queried."""
    planned = parse_scheduled_shutdown(_read_text(RUN + "/systemd/shutdown/scheduled") or "")
    refusal = _read_text(RUN + "/nologin")
    if refusal is None:
        refusal = _read_text(ETC + "/nologin")
    return ShutdownSigns(
        planned[0],
        planned[1] - time.time() if planned[1] is not None else None,
        refusal.strip()[:200] if refusal is not None else None,
        os.path.exists(RUN + "/reboot-required"),
    )


def parse_scheduled_shutdown(text: str) -> tuple[str, float | None]:
    """Parse /run/systemd/shutdown/scheduled: the plan of systemd-logind and its time (seconds since 1970)."""
    found = dict(line.partition("=")[::2] for line in text.splitlines())
    when = found.get("USEC", "")
    mode = found.get("MODE", "")
    # A rehearsal (`shutdown -k`) only writes to all terminals.
    if not mode or mode.startswith("dry-") or not when.isdecimal():
        return "", None
    return mode, int(when) / 1e6


@dataclass(frozen=True)
class SlurmNode:
    """Slurm's data about one node; `reason` is its administrator's text."""

    name: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class Reservation:
    """A Slurm reservation for maintenance. `starts_in_s` is negative once it has begun."""

    name: str
    nodes: str
    starts_in_s: float


@dataclass(frozen=True)
class SlurmPlans:
    """Nodes that Slurm does not consider healthy, and its reservations for maintenance."""

    nodes: list[SlurmNode] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)


def slurm_plans(params: dict[str, Any]) -> SlurmPlans:
    """Query Slurm's controller about `params["nodes"]`. Raises ProbeUnavailable without Slurm or a response."""
    import shutil

    if shutil.which("scontrol", path=os.environ.get("PATH", "") + ":/usr/bin:/opt/slurm/bin") is None:
        raise ProbeUnavailable("missing", "scontrol is not installed on the node")
    names = ",".join(str(name) for name in params["nodes"])
    nodes = run(["scontrol", "show", "node", "--oneliner", names], deadline_s=_SCONTROL_S)
    lines = (nodes.error or nodes.output).strip().splitlines()
    # An unknown node is an answer; a controller that gives none is not queried a second time.
    if nodes.exit_code and not any("not found" in line or "Invalid node name" in line for line in lines):
        raise ProbeUnavailable("crashed", "scontrol: %s" % (lines[-1][:200] if lines else "it failed"))
    reserved = run(["scontrol", "show", "reservation", "--oneliner"], deadline_s=_SCONTROL_S)
    return SlurmPlans(parse_slurm_nodes(nodes.output), parse_reservations(reserved.output, time.time()))


def parse_slurm_nodes(text: str) -> list[SlurmNode]:
    """Return the nodes in the output of `scontrol show node -o` that are neither idle nor in use."""
    nodes: list[SlurmNode] = []
    for line in text.splitlines():
        name, state = re.search(r"\bNodeName=(\S+)", line), re.search(r"\bState=(\S+)", line)
        if not name or not state:
            continue
        words = set(re.split(r"[+*~#!%$@^-]", state.group(1).upper()))
        if words & {"DOWN", "DRAIN", "DRAINING", "DRAINED", "FAIL", "FAILING", "MAINT", "NOT_RESPONDING", "REBOOT"} or (
            "*" in state.group(1)
        ):
            reason = re.search(r"\bReason=(.*?)(?: \[\S+\])?(?:\s+\w+=|\s*$)", line)
            nodes.append(SlurmNode(name.group(1), state.group(1), reason.group(1).strip()[:200] if reason else ""))
    return nodes


def parse_reservations(text: str, now: float) -> list[Reservation]:
    """Parse `scontrol show reservation -o`: the reservations for maintenance that have not ended."""
    found: list[Reservation] = []
    for line in text.splitlines():
        values = dict(re.findall(r"(\w+)=(\S+)", line))
        if "MAINT" not in values.get("Flags", "").split(",") or not values.get("ReservationName"):
            continue
        start, end = _local_time(values.get("StartTime", "")), _local_time(values.get("EndTime", ""))
        if start is not None and end is not None and end > now:
            found.append(Reservation(values["ReservationName"], values.get("Nodes", ""), start - now))
    return found


def _local_time(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


@dataclass(frozen=True)
class CloudEvents:
    """The events that the cloud announces for this machine, one line per event; empty without events."""

    events: list[str] = field(default_factory=list)


def cloud_events(params: dict[str, Any]) -> CloudEvents:
    """Query the cloud's metadata service, with the user's consent. Raises ProbeUnavailable without a response."""
    cloud = detect_cloud(DMI)
    if not cloud:
        raise ProbeUnavailable("missing", "the firmware does not identify a cloud with known events")
    try:
        if cloud == "aws":
            return CloudEvents(_aws())
        if cloud == "azure":
            body = _get("/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
            return CloudEvents(parse_azure(body or ""))
        body = _get("/computeMetadata/v1/instance/maintenance-event", {"Metadata-Flavor": "Google"})
        return CloudEvents([body.strip()] if body and body.strip() not in ("NONE", "") else [])
    except OSError as error:
        raise ProbeUnavailable("timeout", f"the cloud's metadata service does not respond: {error}") from None


def detect_cloud(dmi: str) -> str:
    """Return `aws`, `azure`, `gcp`, or empty, from the firmware's identification."""
    words = " ".join(_read_text(f"{dmi}/{name}") or "" for name in ("sys_vendor", "board_vendor", "product_name"))
    if "Amazon EC2" in words:
        return "aws"
    if "Google" in words:
        return "gcp"
    # Hyper-V elsewhere has the same vendor; only Azure has the tag.
    tag = (_read_text(dmi + "/chassis_asset_tag") or "").strip()
    return "azure" if tag == "7783-7084-3265-9085-8269-3286-77" else ""


def _aws() -> list[str]:
    token = _get("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, method="PUT")
    headers = {"X-aws-ec2-metadata-token": token.strip()} if token else {}
    events = parse_aws(_get("/latest/meta-data/events/maintenance/scheduled", headers) or "")
    interruption = _get("/latest/meta-data/spot/instance-action", headers)
    return events + (["spot: " + interruption.strip()[:200]] if interruption else [])


def parse_aws(text: str) -> list[str]:
    """Return one line for each active event of EC2's list."""
    return [
        "{}: {} to {}".format(event.get("Code", "?"), event.get("NotBefore", "?"), event.get("NotAfter", "?"))
        for event in _dictionaries(text, "")
        if event.get("State") == "active"
    ]


def parse_azure(text: str) -> list[str]:
    """Return one line for each of Azure's scheduled events."""
    return [
        "{}: {}".format(event.get("EventType", "?"), event.get("NotBefore") or "now")
        for event in _dictionaries(text, "Events")
    ]


def _dictionaries(text: str, key: str) -> list[dict[str, Any]]:
    try:
        body = json.loads(text) if text.strip() else []
    except ValueError:
        return []
    if key:
        body = body.get(key, []) if isinstance(body, dict) else []
    return [event for event in body if isinstance(event, dict)] if isinstance(body, list) else []


def _get(path: str, headers: dict[str, str], method: str = "GET") -> str | None:
    """Return the response to one request; None if the service has no such resource. Raises OSError without a
    response.
    """
    # Slow to import, and only needed if the user allowed it.
    import urllib.error
    import urllib.request

    # No proxy: the address is local to the machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(_ADDRESS + path, headers=headers, method=method)
    try:
        with opener.open(request, timeout=_METADATA_S) as answer:
            return str(answer.read(_MAX_BYTES).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        if error.code in (404, 403, 401):
            return None
        raise


def _read_text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return None

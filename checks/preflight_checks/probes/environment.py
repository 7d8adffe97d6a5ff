"""The environment of a process on this node, and the files that NCCL and launchers read in addition.

Only variables of the libraries that ranks communicate and compute with leave the node. An apparent secret is replaced
with a hash under a key of this run, which only shows whether two nodes have the same value.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Mapping

from preflight._util.redaction import scrub
from preflight._util.secret_names import KEYED_HASH, is_secret
from preflight.agent.cheap import cheap
from preflight.agent.command import run
from preflight.agent.process import read_text
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.interfaces import interfaces, visible_network
from preflight_checks.probes.limits import cgroups
from preflight_checks.probes.machine import parse_meminfo
from preflight_checks.probes.names import lookup_all, run_within

#: The variables that are read; `*` is only allowed at the end. Values of other variables never leave a node.
COLLECTED = (
    *("NCCL_*", "RCCL_*", "HCCL_*", "GLOO_*", "UCX_*", "UCC_*", "FI_*", "PADDLE_*", "FLAGS_*", "OMP_*", "MKL_*"),
    *("KMP_*", "CUDA_*", "CUBLAS_*", "TORCH_*", "PYTORCH_*", "TP_SOCKET_IFNAME", "HOROVOD_*", "TF_*", "DMLC_*"),
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NNODES", "NPROC_PER_NODE", "NODE_RANK", "MACHINE_RANK"),
    *("TRAINING_ROLE", "POD_IP", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "XLA_FLAGS"),
    *("DEEPSPEED_*", "DS_*", "ACCELERATE_*", "FSDP_*", "OMPI_MCA_*", "PSM2_*", "MV2_*", "I_MPI_*", "IBV_*"),
    *("MLX5_*", "RDMAV_*", "EFA_*", "BATCH_SIZE", "MICRO_BATCH_SIZE", "GLOBAL_BATCH_SIZE", "RAY_ADDRESS"),
    *("GRADIENT_ACCUMULATION_STEPS", "SLURM_JOB_ID", "ATEN_*", "ONEDNN_*", "DNNL_*"),
)
_BEGINNINGS = tuple(name[:-1] for name in COLLECTED if name.endswith("*"))
_NAMES = frozenset(name for name in COLLECTED if not name.endswith("*"))
SYSTEM_NCCL_FILE = "/etc/nccl.conf"
USER_NCCL_FILE = ".nccl.conf"
#: Time limit of each access to a server or mount that may be dead.
LOOK_S = 1.0
TIMEOUT_MESSAGE = "no response within %g s"
#: A longer value is cut; the rest is represented by its hash.
MAX_VALUE_LENGTH = 4096
#: Settings files are a few lines; a larger one is not read.
MAX_FILE_BYTES = 256 * 1024


@dataclass(frozen=True)
class SettingsFile:
    """A file of `NAME=value` lines. `unread` are lines, without their values, that its reader skips or
    misunderstands.
    """

    path: str
    problem: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Environment:
    """The environment of this process.

    `variables` are values; `digests` are keyed hashes of values that do not leave the node. `nccl_files` are in the
    order in which NCCL reads them; `export_files` are those of DeepSpeed's launcher.
    """

    variables: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    nccl_files: list[SettingsFile] = field(default_factory=list)
    export_files: list[SettingsFile] = field(default_factory=list)
    user: str = ""
    uid: int = -1
    home: str = ""
    directory: str = ""
    missing_folders: list[str] = field(default_factory=list)


@cheap("node", sends_requests=True)
def environment(params: dict[str, Any]) -> Environment:
    """Return variables matching COLLECTED, keyed hashes (`run_key`) of `params["hashed"]`, and settings files."""
    key = str(params.get("run_key") or "")
    if not key:
        raise ProbeUnavailable("blocked", "this run has no key to hash values")
    wanted = {str(name) for name in params.get("hashed", [])}
    variables, digests = split_secrets(os.environ, wanted, key)
    # A directory server, a home directory or a folder of libraries may be dead; the environment is known all the same.
    user, home = run_within(LOOK_S, _account, ("", os.environ.get("HOME", "")))
    unread = [SettingsFile(home or "~", TIMEOUT_MESSAGE % LOOK_S)]
    exports = run_within(LOOK_S, lambda: _export_files(home), unread) if params.get("export_files") else []
    library_path = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return Environment(
        variables,
        digests,
        run_within(LOOK_S, lambda: nccl_files(os.environ, home), unread),
        exports,
        user,
        os.getuid(),
        home,
        _directory(),
        run_within(LOOK_S, lambda: [name for name in library_path if name and not os.path.isdir(name)][:16], []),
    )


def split_secrets(environ: Mapping[str, str], wanted: set[str], key: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the values that may be shown, and hashes of the values that may not, both by name."""
    shown: dict[str, str] = {}
    hidden: dict[str, str] = {}
    for name in sorted(environ):
        value = environ[name]
        if _matches(name) and _can_be_shown(name, value):
            shown[name] = value
        elif _matches(name) or name in wanted:
            hidden[name] = keyed_hash(key, value)
    return shown, hidden


def keyed_hash(key: str, value: str) -> str:
    """Return a hash of `value` that is meaningless without the key."""
    import hmac  # It loads all of OpenSSL, and few nodes have anything to hash.

    text = value.encode("utf-8", "surrogateescape")
    return KEYED_HASH + hmac.new(key.encode("ascii", "replace"), text, "sha256").hexdigest()[:16]


def _matches(name: str) -> bool:
    return name in _NAMES or name.startswith(_BEGINNINGS)


def _can_be_shown(name: str, value: str) -> bool:
    plain = len(value) <= MAX_VALUE_LENGTH and value.encode("utf-8", "replace") == value.encode(
        "utf-8", "surrogateescape"
    )
    return plain and not is_secret(name) and scrub(value) == value


def nccl_files(environ: Mapping[str, str], home: str | None) -> list[SettingsFile]:
    """Return the files that NCCL reads, in its own order: a value that is set earlier, or in the environment, is not
    replaced.

    As in initEnv (NVIDIA/nccl, src/misc/param.cc): $NCCL_CONF_FILE, or else .nccl.conf in the account's home directory,
    then /etc/nccl.conf.
    """
    chosen = environ.get("NCCL_CONF_FILE") or (os.path.join(home, USER_NCCL_FILE) if home else "")
    found = [read_settings(path) for path in (chosen, SYSTEM_NCCL_FILE) if path]
    return [file for file in found if file is not None]


def read_settings(path: str) -> SettingsFile | None:
    """Return the settings in one file; None if it does not exist."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return SettingsFile(path, error.strerror or str(error))
    if len(data) > MAX_FILE_BYTES:
        return SettingsFile(path, f"it is larger than {MAX_FILE_BYTES // 1024} KiB")
    settings, unread = parse_settings(data.decode("utf-8", "replace"))
    kept = {name: value for name, value in settings.items() if _matches(name) and _can_be_shown(name, value)}
    return SettingsFile(path, "", kept, unread)


def parse_settings(text: str) -> tuple[dict[str, str], list[str]]:
    """Parse settings as NCCL reads them, and also return the other lines.

    A line that begins with # is skipped, and so is one without an equals sign. Nothing is trimmed: in `A = 1`, the name
    is `A` with a trailing space, which is never looked up. The first of two settings counts.
    """
    settings: dict[str, str] = {}
    unread: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line or line.startswith("#"):
            continue
        name, sign, value = line.partition("=")
        if not sign:
            if line.strip():
                unread.append(f"line {number}: `{scrub(line.strip())[:80]}` has no equals sign")
        elif name != name.strip() or not name:
            unread.append(f"line {number}: the name `{scrub(name)[:80]}` contains spaces")
        else:
            if value != value.strip():
                unread.append(f"line {number}: the value of {name[:80]} has spaces around it")
            settings.setdefault(name, value)
    return settings, unread[:16]


def _export_files(home: str | None) -> list[SettingsFile]:
    """Return the files that DeepSpeed's launcher exports: in the home directory, then in the working directory."""
    name = os.environ.get("DS_ENV_FILE") or ".deepspeed_env"
    folders = [folder for folder in (home, _directory()) if folder]
    found = [_exported_names(os.path.join(folder, name)) for folder in dict.fromkeys(folders)]
    return [file for file in found if file is not None]


def _exported_names(path: str) -> SettingsFile | None:
    """Return the names that a file exports. DeepSpeed's launcher crashes on a line without an equals sign."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(MAX_FILE_BYTES).splitlines()
    except OSError as error:
        return SettingsFile(path, error.strerror or str(error))
    names = {line.partition("=")[0].strip(): "" for line in lines if "=" in line}
    wrong = [f"line {at + 1} has no equals sign" for at, line in enumerate(lines) if "=" not in line]
    return SettingsFile(path, "", names, wrong[:16])


def _account() -> tuple[str, str]:
    """Return the name and home directory of the user, from the user database."""
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
    except (ImportError, KeyError):
        return "", os.environ.get("HOME", "")
    return entry.pw_name, entry.pw_dir


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


# What a launcher will find: its tools on this node, and whether this node may log in to the others.


#: A tool that takes longer to print its version is reported as late, which is an observation.
VERSION_WITHIN_S = 3.0
#: Time limits of one login, and of all of them together.
LOGIN_S, LOGINS_S = 3.0, 6.0
_MAX_PARALLEL = 8
#: Tools whose version is quick to get, and how; others are not run, because a launcher in Python imports its framework
#: first.
_VERSION = {
    "pdsh": ("-V",),
    "clush": ("--version",),
    "ssh": ("-V",),
    "mpirun": ("--version",),
    "mpiexec": ("--version",),
    "orted": ("--version",),
    "prted": ("--version",),
    "srun": ("--version",),
}


@dataclass(frozen=True)
class Tool:
    """A program by name. `path` is empty if no executable has that name; `took_s` is None if it was not run."""

    name: str
    path: str = ""
    version: str = ""
    took_s: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Tools:
    """The requested tools, and the PATH they were searched on."""

    tools: list[Tool] = field(default_factory=list)
    search_path: str = ""


def tools(params: dict[str, Any]) -> Tools:
    """Search for each of `params["names"]` on PATH and next to this interpreter; get the version of the quick ones."""
    search = os.environ.get("PATH", os.defpath)
    folder = os.path.dirname(sys.executable or "") if params.get("beside") else ""
    return Tools([_tool(str(name), search, folder) for name in params["names"]], search)


def _tool(name: str, search: str, folder: str) -> Tool:
    # `pdsh|clush` is found if either of them is.
    for alternative in name.split("|"):
        path = shutil.which(alternative, path=search) or (shutil.which(alternative, path=folder) if folder else None)
        if path is None:
            continue
        arguments = _VERSION.get(alternative)
        if arguments is None:
            return Tool(name, path)
        try:
            ran = run([path, *arguments], deadline_s=VERSION_WITHIN_S)
        except ProbeUnavailable as error:
            return Tool(name, path, problem=error.reason)
        reported = [line.strip() for line in (ran.output + "\n" + ran.error).splitlines() if line.strip()]
        return Tool(name, path, reported[0][:120] if reported else "", round(ran.took_s, 3))
    return Tool(name)


@dataclass(frozen=True)
class Login:
    """One attempt to log in to `target` and run `true`. `exit_code` is None if it did not end in time."""

    target: str
    exit_code: int | None = None
    said: str = ""
    took_s: float = 0.0


@dataclass(frozen=True)
class Logins:
    """The results of the attempts; `untried` are targets for which there was no time."""

    logins: list[Login] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)


def logins(params: dict[str, Any]) -> Logins:
    """Log in to each of `params["targets"]` from this node with ssh, without a terminal or a prompt, and run `true`.

    `params["options"]` are additional ssh arguments, as the job's launcher passes them. Nothing is written on either
    side: no control socket is created or used, and unknown host keys are not added.
    """
    if shutil.which("ssh") is None:
        raise ProbeUnavailable("missing", "`ssh` is not on PATH")
    options = [str(word) for word in params.get("options", [])]
    waiting = [str(target) for target in params["targets"]]
    until = time.monotonic() + LOGINS_S
    done: dict[str, Login] = {}
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting or time.monotonic() > until - LOGIN_S / 2:
                    return
                target = waiting.pop(0)
            login = _login(target, options)
            with lock:
                done[target] = login

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(_MAX_PARALLEL, len(waiting)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, until + LOGIN_S - time.monotonic()))
    wanted = [str(target) for target in params["targets"]]
    with lock:
        return Logins(
            [done[target] for target in wanted if target in done], [target for target in wanted if target not in done]
        )


def _login(target: str, options: list[str]) -> Login:
    chosen = {
        "BatchMode": "yes",
        "ConnectTimeout": str(int(LOGIN_S) - 1),
        "ControlMaster": "no",
        "ControlPath": "none",
        "PermitLocalCommand": "no",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "LogLevel": "INFO",
    }
    words = [word for name, value in chosen.items() for word in ("-o", f"{name}={value}")]
    started_at = time.monotonic()
    try:
        ran = run(["ssh", "-n", "-T", *words, *options, "--", target, "true"], deadline_s=LOGIN_S)
    except ProbeUnavailable as error:
        return Login(
            target, None, error.reason if error.kind != "timeout" else "", round(time.monotonic() - started_at, 3)
        )
    lines = [line.strip() for line in ran.error.splitlines() if line.strip()]
    return Login(target, ran.exit_code, "\n".join(lines[-6:])[-1000:], round(ran.took_s, 3))


# The resources of this node for parameter servers: its own addresses, memory, cores, network, ports.


MEMINFO = "/proc/meminfo"
#: Time limit of all lookups, which run at the same time.
LOOKUPS_WITHIN_S = 3.0
MAX_HOSTS = 256


@dataclass(frozen=True)
class ResolvedHost:
    """One host of the job's endpoints, as this node resolves it. `local`: whether one of its addresses is this node's
    own.
    """

    host: str
    addresses: list[str] = field(default_factory=list)
    local: bool = False
    problem: str = ""
    speed_mbps: int | None = None


@dataclass(frozen=True)
class ServerPlace:
    """The resources of a node; None if unknown. `memory_bytes` is the smaller of RAM and the cgroup limit."""

    hosts: list[ResolvedHost] = field(default_factory=list)
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    cores: float | None = None
    first_ephemeral_port: int | None = None
    last_ephemeral_port: int | None = None
    reserved_ports: str = ""


def server_place(params: dict[str, Any]) -> ServerPlace:
    """Resolve each of `params["hosts"]`, and find which of them belong to this node, and to which of its interfaces."""
    wanted = [str(host) for host in params.get("hosts", [])][:MAX_HOSTS]
    groups = cgroups()
    memory = parse_meminfo(read_text(MEMINFO))
    total, free = memory.total_bytes, memory.available_bytes
    if groups.memory_limit_bytes is not None:
        total = min(total or groups.memory_limit_bytes, groups.memory_limit_bytes)
        if free is not None and groups.memory_used_bytes is not None:
            free = min(free, max(0, groups.memory_limit_bytes - groups.memory_used_bytes))
    cores = (
        float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 0) or None
    )
    if cores is not None and groups.cpu_quota_cores is not None:
        cores = min(cores, groups.cpu_quota_cores)
    network = visible_network()
    hosts, reserved = _resolved_hosts(wanted), network.reserved_ports[:500]
    return ServerPlace(hosts, total, free, cores, network.first_port, network.last_port, reserved)


def _resolved_hosts(hosts: list[str]) -> list[ResolvedHost]:
    speeds = _speeds()
    found: list[ResolvedHost] = []
    for answer in lookup_all(hosts, LOOKUPS_WITHIN_S):
        own = [address for address in answer.addresses if is_own(address)]
        speed = next((speeds[address] for address in own if address in speeds), None)
        found.append(ResolvedHost(answer.name, answer.addresses[:8], bool(own), answer.problem, speed))
    return found


def is_own(address: str) -> bool:
    """Return whether this node can bind `address`; False for loopback, which every node can bind."""
    try:
        parsed = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    if parsed.is_loopback or parsed.is_unspecified:
        return False
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _speeds() -> dict[str, int | None]:
    """Return the speed of the interface of each address, if the driver reports one."""
    try:
        listed = interfaces({}).interfaces
    except ProbeUnavailable:
        return {}
    return {address.address: item.speed_mbps for item in listed for address in item.addresses}

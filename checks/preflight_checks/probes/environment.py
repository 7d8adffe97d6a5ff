"""The environment of a process on this node, and the files that NCCL and launchers read in addition.

Only variables of the libraries that ranks communicate and compute with leave the node. An apparent secret leaves as a
hash under a key of this run alone, which only shows whether two nodes have the same value.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, TypeVar

from preflight._util.redaction import scrub
from preflight._util.secret_names import KEYED_HASH, is_secret
from preflight.agent.cheap import cheap
from preflight.agent.wire import ProbeUnavailable

T = TypeVar("T")

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
TIMEOUT_MESSAGE = "no answer within %g s"
#: A longer value is cut; the rest is represented by its hash.
MAX_VALUE_LENGTH = 4096
#: Settings files are a few lines; a larger one is not read.
MAX_FILE_BYTES = 256 * 1024


@dataclass(frozen=True)
class SettingsFile:
    """A file of `NAME=value` lines. `unread` are lines that its reader skips or misunderstands, without values."""

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
    """The variables that match COLLECTED, hashes of those named in `params["hashed"]`, and settings files.

    `params["run_key"]` is the key of this run; the head sets it when it sends the request.
    """
    key = str(params.get("run_key") or "")
    if not key:
        raise ProbeUnavailable("blocked", "the run provided no key to hash values")
    wanted = {str(name) for name in params.get("hashed", [])}
    variables, digests = split_secrets(os.environ, wanted, key)
    # A directory server, a home directory or a folder of libraries may be dead; the environment is known all the same.
    account = _limited(_account, ("", os.environ.get("HOME", "")))
    user, home = account
    unread = [SettingsFile(home or "~", TIMEOUT_MESSAGE % LOOK_S)]
    exports = _limited(lambda: _export_files(home), unread) if params.get("export_files") else []
    library_path = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return Environment(
        variables,
        digests,
        _limited(lambda: nccl_files(os.environ, home), unread),
        exports,
        user,
        os.getuid(),
        home,
        _directory(),
        _limited(lambda: [folder for folder in library_path if folder and not os.path.isdir(folder)][:16], []),
    )


def _limited(read: Callable[[], T], default: T) -> T:
    """The result of `read`, or `default` if it is late; it continues in a thread that is not awaited."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(read()), daemon=True)
    thread.start()
    thread.join(LOOK_S)
    return found[0] if found else default


def split_secrets(environ: Mapping[str, str], wanted: set[str], key: str) -> tuple[dict[str, str], dict[str, str]]:
    """The values that may be shown, and the hashes of those that may not, by name."""
    shown: dict[str, str] = {}
    hidden: dict[str, str] = {}
    for name in sorted(environ):
        value = environ[name]
        if _matches(name) and _showable(name, value):
            shown[name] = value
        elif _matches(name) or name in wanted:
            hidden[name] = keyed_hash(key, value)
    return shown, hidden


def keyed_hash(key: str, value: str) -> str:
    """A hash of `value` that is meaningless without the key."""
    import hmac  # It loads all of OpenSSL, and few nodes have anything to hash.

    text = value.encode("utf-8", "surrogateescape")
    return KEYED_HASH + hmac.new(key.encode("ascii", "replace"), text, "sha256").hexdigest()[:16]


def _matches(name: str) -> bool:
    return name in _NAMES or name.startswith(_BEGINNINGS)


def _showable(name: str, value: str) -> bool:
    plain = len(value) <= MAX_VALUE_LENGTH and value.encode("utf-8", "replace") == value.encode(
        "utf-8", "surrogateescape"
    )
    return plain and not is_secret(name) and scrub(value) == value


def nccl_files(environ: Mapping[str, str], home: str | None) -> list[SettingsFile]:
    """The files NCCL reads, in its own order: a value set earlier, or in the environment, is not replaced.

    As initEnv does it (NVIDIA/nccl, src/misc/param.cc): $NCCL_CONF_FILE, else .nccl.conf in the home directory of the
    account, then /etc/nccl.conf.
    """
    chosen = environ.get("NCCL_CONF_FILE") or (os.path.join(home, USER_NCCL_FILE) if home else "")
    found = [read_settings(path) for path in (chosen, SYSTEM_NCCL_FILE) if path]
    return [file for file in found if file is not None]


def read_settings(path: str) -> SettingsFile | None:
    """The settings in one file; None if it does not exist."""
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
    kept = {name: value for name, value in settings.items() if _matches(name) and _showable(name, value)}
    return SettingsFile(path, "", kept, unread)


def parse_settings(text: str) -> tuple[dict[str, str], list[str]]:
    """Parse settings as NCCL reads them, and return the other lines too.

    A line that begins with # is skipped, and so is one without an equals sign. Nothing is trimmed: in `A = 1` the name
    is `A` with a trailing blank, which is never looked up. The first of two settings counts.
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
    """The exports of DeepSpeed's launcher beside its own list, from home and working directory; the later one wins."""
    name = os.environ.get("DS_ENV_FILE") or ".deepspeed_env"
    folders = [folder for folder in (home, _directory()) if folder]
    found = [_names_of(os.path.join(folder, name)) for folder in dict.fromkeys(folders)]
    return [file for file in found if file is not None]


def _names_of(path: str) -> SettingsFile | None:
    """The names that a file exports. A line without an equals sign ends DeepSpeed's launcher with a traceback."""
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
    """Name and home directory of the user, from the user database."""
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

"""What environment a process has on this node, and what the files say that NCCL and launchers read beside it.

Only variables of the libraries that ranks communicate and compute with leave the node. What looks like a secret, or
holds one, leaves as a hash under a key of this run alone, which tells whether two nodes have the same and nothing else.
"""

from __future__ import annotations

import os
import threading

from preflight.node.cheap import cheap
from preflight.node.record import ANNOTATED, dataclass, field
from preflight.node.wire import ProbeUnavailable
from preflight.redact import is_secret, scrub

if ANNOTATED:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar

    T = TypeVar("T")

#: What is read at all; `*` stands at the end alone. Values of other variables never leave a node.
COLLECTED = (
    *("NCCL_*", "RCCL_*", "HCCL_*", "GLOO_*", "UCX_*", "UCC_*", "FI_*", "PADDLE_*", "FLAGS_*", "OMP_*", "MKL_*"),
    *("KMP_*", "CUDA_*", "CUBLAS_*", "TORCH_*", "PYTORCH_*", "TP_SOCKET_IFNAME", "HOROVOD_*", "TF_*", "DMLC_*"),
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NNODES", "NPROC_PER_NODE", "NODE_RANK", "MACHINE_RANK"),
    *("TRAINING_ROLE", "POD_IP", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "XLA_FLAGS"),
    *("DEEPSPEED_*", "DS_*", "ACCELERATE_*", "FSDP_*", "OMPI_MCA_*", "PSM2_*", "MV2_*", "I_MPI_*", "IBV_*"),
    *("MLX5_*", "RDMAV_*", "EFA_*", "BATCH_SIZE", "MICRO_BATCH_SIZE", "GLOBAL_BATCH_SIZE", "RAY_ADDRESS"),
    *("GRADIENT_ACCUMULATION_STEPS", "SLURM_JOB_ID"),
)
_BEGINNINGS = tuple(name[:-1] for name in COLLECTED if name.endswith("*"))
_NAMES = frozenset(name for name in COLLECTED if not name.endswith("*"))
SYSTEM_NCCL_FILE = "/etc/nccl.conf"
USER_NCCL_FILE = ".nccl.conf"
#: What a dead server or mount may take of the time of this look, each time.
LOOK_S = 1.0
LATE = "no answer within %g s"
#: A longer value is cut; what was cut is told by its hash.
LONGEST = 4096
#: Settings files are a few lines; of a larger one nothing is read.
LARGEST_FILE = 256 * 1024


@dataclass(frozen=True)
class SettingsFile:
    """A file of `NAME=value` lines. `unread` are lines that its reader skips or misunderstands, without values."""

    path: str
    problem: str = ""
    settings: Dict[str, str] = field(default_factory=dict)
    unread: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class Environment:
    """The environment of this process.

    `variables` are values; `digests` those that do not leave the node, as keyed hashes. `nccl_files` are in the order
    in which NCCL lets them fill what is not set yet; `export_files` those of DeepSpeed's launcher.
    """

    variables: Dict[str, str] = field(default_factory=dict)
    digests: Dict[str, str] = field(default_factory=dict)
    nccl_files: List[SettingsFile] = field(default_factory=list)
    export_files: List[SettingsFile] = field(default_factory=list)
    user: str = ""
    uid: int = -1
    home: str = ""
    directory: str = ""
    missing_folders: List[str] = field(default_factory=list)


@cheap("node", asks=True)
def environment(params: Dict[str, Any]) -> Environment:
    """The variables that match COLLECTED, hashes of those named in `params["hashed"]`, and settings files.

    `params["run_key"]` is the key of this run; the head sets it when it sends the request.
    """
    key = str(params.get("run_key") or "")
    if not key:
        raise ProbeUnavailable("blocked", "the run gave no key to hash values with")
    wanted = {str(name) for name in params.get("hashed", [])}
    variables, digests = sifted(os.environ, wanted, key)
    # A directory server, a home directory or a folder of libraries may be dead; what the environment says is known
    # all the same.
    account = _within(_account, ("", os.environ.get("HOME", "")))
    user, home = account
    unread = [SettingsFile(home or "~", LATE % LOOK_S)]
    exports = _within(lambda: _export_files(home), unread) if params.get("export_files") else []
    library_path = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return Environment(
        variables,
        digests,
        _within(lambda: nccl_files(os.environ, home), unread),
        exports,
        user,
        os.getuid(),
        home,
        _directory(),
        _within(lambda: [folder for folder in library_path if folder and not os.path.isdir(folder)][:16], []),
    )


def _within(look: Callable[[], T], otherwise: T) -> T:
    """What `look` returns, or `otherwise` where it has not by then; it goes on in a thread that nobody waits for."""
    found: List[T] = []
    thread = threading.Thread(target=lambda: found.append(look()), daemon=True)
    thread.start()
    thread.join(LOOK_S)
    return found[0] if found else otherwise


def sifted(environ: Mapping[str, str], wanted: "set[str]", key: str) -> Tuple[Dict[str, str], Dict[str, str]]:
    """What may be shown, and the hashes of what may not, by name."""
    shown = {}  # type: Dict[str, str]
    hidden = {}  # type: Dict[str, str]
    for name in sorted(environ):
        value = environ[name]
        if _matches(name) and _showable(name, value):
            shown[name] = value
        elif _matches(name) or name in wanted:
            hidden[name] = keyed(key, value)
    return shown, hidden


def keyed(key: str, value: str) -> str:
    """A hash of `value` that says nothing to whoever lacks the key."""
    import hmac  # It brings the whole of OpenSSL, and few nodes have anything to hash.

    text = value.encode("utf-8", "surrogateescape")
    return hmac.new(key.encode("ascii", "replace"), text, "sha256").hexdigest()[:16]


def _matches(name: str) -> bool:
    return name in _NAMES or name.startswith(_BEGINNINGS)


def _showable(name: str, value: str) -> bool:
    plain = len(value) <= LONGEST and value.encode("utf-8", "replace") == value.encode("utf-8", "surrogateescape")
    return plain and not is_secret(name) and scrub(value) == value


def nccl_files(environ: Mapping[str, str], home: Optional[str]) -> List[SettingsFile]:
    """The files NCCL reads, in its own order: a value set earlier, or in the environment, is not replaced.

    As initEnv does it (NVIDIA/nccl, src/misc/param.cc): $NCCL_CONF_FILE, else .nccl.conf in the home directory of the
    account, then /etc/nccl.conf.
    """
    chosen = environ.get("NCCL_CONF_FILE") or (os.path.join(home, USER_NCCL_FILE) if home else "")
    found = [read_settings(path) for path in (chosen, SYSTEM_NCCL_FILE) if path]
    return [file for file in found if file is not None]


def read_settings(path: str) -> Optional[SettingsFile]:
    """The settings in one file; None when it is not there."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        return SettingsFile(path, error.strerror or str(error))
    if len(data) > LARGEST_FILE:
        return SettingsFile(path, "it is larger than %d KiB" % (LARGEST_FILE // 1024))
    settings, unread = parse_settings(data.decode("utf-8", "replace"))
    kept = {name: value for name, value in settings.items() if _matches(name) and _showable(name, value)}
    return SettingsFile(path, "", kept, unread)


def parse_settings(text: str) -> Tuple[Dict[str, str], List[str]]:
    """Settings and the lines that are none, as NCCL reads them.

    A line that begins with # is skipped, and so is one without an equals sign. Nothing is trimmed: in `A = 1` the name
    is `A` with a blank behind it, which nobody looks up. The first of two settings counts.
    """
    settings = {}  # type: Dict[str, str]
    unread = []  # type: List[str]
    for number, line in enumerate(text.split("\n"), start=1):
        if not line or line.startswith("#"):
            continue
        name, sign, value = line.partition("=")
        if not sign:
            if line.strip():
                unread.append("line %d: `%s` has no equals sign" % (number, scrub(line.strip())[:80]))
        elif name != name.strip() or not name:
            unread.append("line %d: the name is `%s` with its blanks" % (number, scrub(name)[:80]))
        else:
            if value != value.strip():
                unread.append("line %d: the value of %s has blanks around it" % (number, name[:80]))
            settings.setdefault(name, value)
    return settings, unread[:16]


def _export_files(home: Optional[str]) -> List[SettingsFile]:
    """What DeepSpeed's launcher exports beside its own list, from home and working directory, the later one winning."""
    name = os.environ.get("DS_ENV_FILE") or ".deepspeed_env"
    folders = [folder for folder in (home, _directory()) if folder]
    found = [_names_of(os.path.join(folder, name)) for folder in dict.fromkeys(folders)]
    return [file for file in found if file is not None]


def _names_of(path: str) -> Optional[SettingsFile]:
    """Which names a file exports. A line without an equals sign ends DeepSpeed's launcher with a traceback."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(LARGEST_FILE).splitlines()
    except OSError as error:
        return SettingsFile(path, error.strerror or str(error))
    names = {line.partition("=")[0].strip(): "" for line in lines if "=" in line}
    wrong = ["line %d has no equals sign" % (at + 1) for at, line in enumerate(lines) if "=" not in line]
    return SettingsFile(path, "", names, wrong[:16])


def _account() -> Tuple[str, str]:
    """Name and home directory of the user, as the user database has them."""
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

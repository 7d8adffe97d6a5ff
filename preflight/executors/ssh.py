"""Nodes reached with the user's own OpenSSH client, and node files of batch systems without an executor of their own.

Each of these systems sets a variable with the name of a file, which has one line per slot or one per host; the order is
the order of ranks. Formats as in pbs_professional's PBS_NODEFILE, LSF's LSB_DJOB_HOSTFILE and Grid Engine's sge_pe(5).

Jump hosts, users, ports, keys, agents and tokens work because this is the same `ssh` that the user runs by hand. Only
the control socket is preflight's own, in a private folder that is deleted at the end, so that none of the user's master
connections is used, kept or ended. Every run logs in again, because the properties of a login (limits, groups,
environment) are part of the check. For repeated runs connections can be kept for a while instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE, S_ISDIR

from preflight._util import regular_file
from preflight._util.hostnames import is_hostname
from preflight.agent import bootstrap
from preflight.executors.base import (
    Bundle,
    Executor,
    ExecutorError,
    GatheredNodes,
    NodeRequest,
    Option,
    find_meaning,
    run_tool,
)
from preflight.executors.pipe import PipeChannel, make_nonce, start_agent, tried_interpreters
from preflight.model.job import is_whole_number
from preflight.model.recording import Node

#: Largest size of a file that a batch system wrote.
_MAX_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class BatchSystem:
    """A batch system: the variables of its node file and job id, and whether lines hold slot counts."""

    name: str
    file: str
    id: str
    has_slot_counts: bool = False


SYSTEMS = (
    BatchSystem("PBS", "PBS_NODEFILE", "PBS_JOBID"),
    BatchSystem("LSF", "LSB_DJOB_HOSTFILE", "LSB_JOBID"),
    BatchSystem("Grid Engine", "PE_HOSTFILE", "JOB_ID", has_slot_counts=True),
    BatchSystem("Cobalt", "COBALT_NODEFILE", "COBALT_JOBID"),
)


def find_system(environment: Mapping[str, str]) -> BatchSystem | None:
    """Return the batch system in whose job this process runs; None outside of one."""
    return next((system for system in SYSTEMS if environment.get(system.file)), None)


def reason(environment: Mapping[str, str]) -> str:
    """Return why this process is inside a job of a batch system; empty if it is not."""
    system = find_system(environment)
    return f"{system.file} is set: this is inside a job of {system.name}" if system is not None else ""


def read_nodes(environment: Mapping[str, str]) -> tuple[tuple[Node, ...], str] | None:
    """Return the job's nodes with slots, and the source; None outside of a job. Raises ExecutorError."""
    system = find_system(environment)
    if system is None:
        return None
    path = Path(environment[system.file])
    where = f"{system.name} job {environment.get(system.id, '')}".rstrip() + f" ({system.file}={path})"
    try:
        text = regular_file.read_text(path, _MAX_BYTES, errors="replace")
    except OSError as error:
        raise ExecutorError("missing", f"{where} cannot be read: {error.strerror}") from None
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if not is_hostname(words[0]):
            raise ExecutorError("denied", f"{path}:{number}: {words[0]!r:.80} is not a valid host name")
        count = int(words[1]) if system.has_slot_counts and len(words) > 1 and is_whole_number(words[1]) else 1
        slots[words[0]] = slots.get(words[0], 0) + count
    if not slots:
        raise ExecutorError("missing", f"{where} names no nodes")
    return tuple(Node(name, index, name, count) for index, (name, count) in enumerate(slots.items())), where


#: ssh's own exit code for its own failures; everything else is the remote command's.
SSH_FAILED = 255
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?", re.ASCII)
#: Longest time, in seconds, that connections are kept for a later run.
_MAX_KEEP_S = 3600


def _seconds_problem(value: str) -> str:
    fits = value.isascii() and value.isdecimal() and 1 <= int(value) <= _MAX_KEEP_S
    return "" if fits else f"{value!r} is not a number of seconds from 1 to {_MAX_KEEP_S}"


@dataclass(slots=True)
class SshExecutor(Executor):
    """Runs agents over `ssh`, one connection per node.

    `program` is the client; `arguments` are further ones for it, such as `("-F", path)`. With `keep_s` connections stay
    open for that long after their last use, and other runs with this option use them.
    """

    program: str = "ssh"
    arguments: tuple[str, ...] = ()
    keep_s: int = 0
    name: str = "ssh"
    _folder: PrivateFolder | KeptFolder | None = None

    options = (
        Option(
            "keep",
            "keep connections open for this many seconds after a run, and reuse those of earlier runs",
            "60",
            _seconds_problem,
        ),
    )
    opens_named = True

    def configured(self, settings: Mapping[str, str]) -> SshExecutor:
        return SshExecutor(self.program, self.arguments, int(settings.get("keep", self.keep_s)))

    def detect(self, environment: Mapping[str, str]) -> str:
        """Return why this is a job of a batch system whose nodes no other executor reaches."""
        return reason(environment)

    async def check_usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Return the client in use. Raises ExecutorError if there is none, or it rejects its configuration."""
        try:
            ran = await run_tool([self.program, *self.arguments, "-V"], deadline_s=deadline_s, environment=environment)
        except ExecutorError as error:
            if error.kind == "missing":
                raise ExecutorError("missing", f"{error.message}; install an OpenSSH client") from None
            raise
        lines = [line.strip() for line in f"{ran.errors}\n{ran.output}".splitlines() if line.strip()]
        if ran.code:
            raise ExecutorError("crashed", f"`{self.program} -V` ended with code {ran.code}; install an OpenSSH client")
        # A mistake in ~/.ssh/config shows only when a host is looked up.
        tried = [self.program, *self.arguments, "-G", "localhost"]
        looked = await run_tool(tried, deadline_s=deadline_s, environment=environment)
        if looked.code:
            understood = ssh_error("ssh", "localhost", looked.errors.splitlines(), looked.errors)
            raise understood or ExecutorError("denied", f"`{' '.join(tried)}` reports {looked.last_error!r}")
        return lines[0] if lines else f"{self.program} of an unknown version"

    async def gather(self, request: NodeRequest) -> GatheredNodes | None:
        """Return the nodes of the batch system's job; None outside of one. Raises ExecutorError for a bad list."""
        found = None if request.named_nodes else read_nodes(request.environment)
        return GatheredNodes(*found) if found is not None else None

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> PipeChannel:
        """Start an agent on `node.address` (or its name). Raises ExecutorError with ssh's message."""
        target = node.address or node.name
        if not is_target(target):
            raise ExecutorError("denied", f"{node.name}: {target!r} is not a valid host name")
        nonce = make_nonce()
        command = [self.program, *self._words(deadline_s), "--", target, bootstrap.shell_line(nonce)]
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            channel = PipeChannel(command, description=f"ssh {target}", environment=environment)
        except OSError as error:
            raise ExecutorError(
                "missing",
                f"{node.name}: `{self.program}` cannot be run here: {error.strerror}; install an OpenSSH client",
            ) from error
        diagnose = functools.partial(explain, node.name, target, deadline_s=deadline_s)
        await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=deadline_s)
        return channel

    async def aclose(self) -> None:
        """Remove the folder of our control sockets, unless they are to be kept."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.release()

    def _words(self, deadline_s: float) -> list[str]:
        if self._folder is None:
            self._folder = KeptFolder() if self.keep_s else PrivateFolder()
        chosen = {
            # An unanswered prompt would wait forever.
            "BatchMode": "yes",
            # Before our own deadline, so that ssh itself can report which of its steps was not answered.
            "ConnectTimeout": str(max(1, int(deadline_s) - 1)),
            "ControlMaster": "auto",
            "ControlPath": f"{self._folder.path}/%C",
            "ControlPersist": str(self.keep_s) if self.keep_s else "no",
            "ServerAliveInterval": "2",
            "ServerAliveCountMax": "2",
            # The user's port forwards would fail on ports that their own sessions hold.
            "ClearAllForwardings": "yes",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "PermitLocalCommand": "no",
            # QUIET in the user's configuration would hide the reason of a failure.
            "LogLevel": "INFO",
        }
        return ["-T", *(part for key, value in chosen.items() for part in ("-o", f"{key}={value}")), *self.arguments]


def is_target(text: str) -> bool:
    """Return whether `text` is `host` or `user@host` by a strict grammar, without options or shell syntax."""
    user, at, host = text.rpartition("@")
    return is_hostname(host) and (not at or _USER.fullmatch(user) is not None)


#: Messages of a process that cannot start another one: fork(2) and pthread_create(3) return EAGAIN.
_NO_PROCESS = re.compile(
    r"resource temporarily unavailable|cannot fork|can't start new thread|fork: retry", re.IGNORECASE
)


def explain(name: str, target: str, code: int | None, error_text: str, *, deadline_s: float) -> ExecutorError:
    """Explain ssh's failure from its exit `code` (None: still running) and `error_text`."""
    error_lines = [line.strip() for line in error_text.splitlines() if line.strip()]
    lines = [line for line in error_lines if line != bootstrap.SHELL_MARK]
    error_text = bootstrap.without_mark(error_text)
    missing = next((line for line in lines if line.startswith(bootstrap.NO_PYTHON_MARK)), None)
    if missing is not None:
        return ExecutorError("missing", _no_python(name, missing, lines), error_text)
    quoted = f' (ssh said: "{lines[-1]}")' if lines else ""
    if code is None or code == SSH_FAILED:
        understood = ssh_error(name, target, lines, error_text)
        if understood is not None:
            return understood
    if code is None:
        return ExecutorError(
            "timeout",
            f"{name}: no agent within {deadline_s:g} s, waiting for `ssh {target}` to log in and start "
            f"Python{quoted}; possible causes: a slow startup file of the login shell, a slow home directory, a "
            "frozen sshd",
            error_text,
        )
    if code == SSH_FAILED:
        return ExecutorError("unreachable", f"{name}: ssh could not reach it{quoted}", error_text)
    exhausted = next((line for line in lines if _NO_PROCESS.search(line)), None)
    if exhausted is not None:
        return ExecutorError(
            "crashed",
            f'{name}: it cannot start another process (its message: "{exhausted}"); check pids.max of the session\'s '
            "control group, `ulimit -u` and /proc/sys/kernel/threads-max there",
            error_text,
        )
    if bootstrap.SHELL_MARK not in error_lines:
        said = f': it said "{lines[-1]}"' if lines else ", without a message"
        return ExecutorError(
            "denied",
            f"{name}: the login was accepted, but the login shell ended with exit code {code} before it ran the "
            f"command{said}; possible causes: a nologin or missing shell in the user database, a forced command of "
            "sshd, a startup file that exits in sessions without a terminal",
            error_text,
        )
    return ExecutorError(
        "crashed", f"{name}: the command that starts the agent ended with exit code {code} there{quoted}", error_text
    )


def _no_python(name: str, missing: str, lines: Sequence[str]) -> str:
    old = dict.fromkeys(line.removesuffix(f" {bootstrap.OLD_PYTHON_MARK}") for line in lines if _is_old(line))
    versions = f" ({', '.join(old)})" if old else ""
    return f"no Python >= 3.8 on {name}: tried {tried_interpreters(missing)}{versions}; install Python 3.8 or newer"


def _is_old(line: str) -> bool:
    return line.startswith("Python ") and line.endswith(bootstrap.OLD_PYTHON_MARK)


def ssh_error(name: str, target: str, lines: Sequence[str], error_text: str) -> ExecutorError | None:
    """Return the meaning of the first of `lines` that is an error message of ssh itself; None if there is none."""
    found = find_meaning("ssh", reversed(lines))
    if found is None:
        return None
    row, line = found
    advice = row.remedy.format(target=target, host=target.rpartition("@")[2])
    return ExecutorError(row.kind, f'{name}: {row.meaning} (ssh said: "{line}"); {advice}', error_text)


EXECUTOR = SshExecutor()


#: A socket's path has at most 107 bytes (unix(7)), of which %C takes 40 and ssh's temporary suffix 17.
_MAX_FOLDER_LENGTH = 107 - len("/") - 40 - 17
_PREFIX = "preflight-ssh-"
_KEPT = "preflight-kept-"
_LOCK = "in-use"


class PrivateFolder:
    """A folder for control sockets that only we may enter, marked as in use by a lock that dies with us."""

    def __init__(self) -> None:
        """Create the folder, and remove those of killed runs. Raises ExecutorError if no location is suitable."""
        problem = ""
        for base in _bases():
            for stale in Path(base).glob(f"{_PREFIX}*"):
                _remove_if_stale(stale)
            try:
                self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            except OSError as error:
                problem = str(error)
                continue
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Another run may have considered it stale before it was locked.
            if len(str(self.path)) <= _MAX_FOLDER_LENGTH and (self.path / _LOCK).exists():
                return
            self.release()
            problem = f"{base} is not usable for sockets"
        raise _no_folder(problem)

    def release(self) -> None:
        """Remove the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


class KeptFolder:
    """This user's folder for the control sockets of connections that outlive a run; ssh itself removes those."""

    def __init__(self) -> None:
        """Find or create the folder. Raises ExecutorError if no location is suitable, or another user could enter
        it.
        """
        problem = ""
        for base in _bases():
            self.path = Path(base) / f"{_KEPT}{os.getuid()}"
            if len(str(self.path)) > _MAX_FOLDER_LENGTH:
                problem = f"{base} is not usable for sockets"
                continue
            try:
                with contextlib.suppress(FileExistsError):
                    self.path.mkdir(mode=0o700)
                stat = self.path.lstat()
            except OSError as error:
                problem = str(error)
                continue
            if S_ISDIR(stat.st_mode) and stat.st_uid == os.getuid() and not S_IMODE(stat.st_mode) & 0o077:
                return
            problem = (
                f"{self.path} exists but is not a folder that only you can access; remove it, set XDG_RUNTIME_DIR to "
                "a folder that you own, or omit `keep`"
            )
        raise _no_folder(problem)

    def release(self) -> None:
        """Keep the folder and its content for the next run."""


def _bases() -> Iterator[str]:
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    # The XDG specification says to ignore a relative path; here it would be a folder in the job's tree.
    yield from dict.fromkeys((*([own] if Path(own).is_absolute() else []), "/tmp", tempfile.gettempdir()))


def _no_folder(problem: str) -> ExecutorError:
    return ExecutorError("denied", f"cannot create a folder for ssh's control sockets: {problem}")


def _remove_if_stale(folder: Path) -> None:
    """Remove a folder of ours whose owner is gone: no process holds its lock."""
    with contextlib.suppress(OSError):
        stat = folder.lstat()
        if stat.st_uid != os.getuid() or not S_ISDIR(stat.st_mode):
            return
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(lock)

"""The process behind the stand-in for Python: it has imported torch, and forks for each command line.

A fork does what a fresh interpreter would do with `[-I] [-S] [-u] -c CODE ARGUMENTS`: as the stand-in's user, in its
namespaces, control groups and limits, with its descriptors, environment and working directory. If that program in turn
forks and executes the stand-in, as an agent does to start a rank, no new process is asked for: the fork itself starts
over. So a rank has the process number, the parent and the session that it would have had, and signals reach it.

What differs from a fresh interpreter: modules of torch are loaded, the command line in /proc is the server's, and
`sys.flags` are those of the server; nor is the locale coerced. It imports nothing of preflight.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import io
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

#: What /proc/PID/comm holds for the server and for what it starts itself, agents above all.
SERVER_NAME = "warm-python"
_HEAD = struct.Struct("=II")
_STATUS = struct.Struct("=i")
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
#: In the order in which they are entered: another view of files comes last, /proc/PID is not there afterwards.
_NAMESPACES = ("ipc", "uts", "net", "pid", "mnt")
_LIMITS = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"]
#: Variables of Python that a fork can apply or ignore: it writes no bytecode of what is already imported.
_HEEDED = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
#: What must not be collected: its end would close descriptors whose numbers now belong to others.
_KEPT: list[object] = []


@dataclass(frozen=True)
class Options:
    """A command line of Python, as far as the stand-in takes it."""

    code: str
    arguments: tuple[str, ...]
    isolated: bool = False
    without_site: bool = False
    unbuffered: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Options | None:
        """The options in these arguments; None if there are others."""
        flags = [*words[: words.index("-c")]] if "-c" in words else ["?"]
        rest = words[len(flags) + 1 :]
        if not rest or not {*flags} <= {"-I", "-S", "-u"}:
            return None
        return cls(rest[0], tuple(rest[1:]), "-I" in flags, "-S" in flags, "-u" in flags)


def warm_up() -> None:
    """Import what ranks import, and run what only the first optimizer runs; start no thread."""
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


class _Fresh:
    """The state of a fresh interpreter, saved after all imports and restored in forks."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.modules = dict(sys.modules)
        self.meta_path, self.path_hooks = list(sys.meta_path), list(sys.path_hooks)
        self.path = [place for place in sys.path if place]
        site = [place for place in self.path if place.endswith(("site-packages", "dist-packages"))]
        own = [place for place in self.path if place.startswith(sys.base_prefix + os.sep) and place not in site]
        self.path_without_site = own
        self.hooks = (sys.excepthook, sys.unraisablehook, sys.displayhook)

    def restore(self, options: Options, environment: Mapping[str, str]) -> None:
        """Let this process look like a new one."""
        _KEPT.append((dict(sys.modules), sys.stdin, sys.stdout, sys.stderr, sys.meta_path, sys._getframe()))
        for name in [name for name in sys.modules if name not in self.modules]:
            del sys.modules[name]
        sys.modules.update(self.modules)
        sys.meta_path, sys.path_hooks = list(self.meta_path), list(self.path_hooks)
        sys.path[:] = self.path_without_site if options.without_site else self.path
        if not options.isolated:
            sys.path.insert(0, "")
        sys.argv = ["-c", *options.arguments]
        sys.excepthook, sys.unraisablehook, sys.displayhook = self.hooks
        sys.settrace(None)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            # An ignored signal stays ignored over exec, a handler does not.
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(environment)
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                    os.close(int(name))
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]
        unbuffered = options.unbuffered or bool(environment.get("PYTHONUNBUFFERED"))
        raw = open(1, "wb", 0 if unbuffered else -1, closefd=False)
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(raw, write_through=unbuffered)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # type: ignore[misc]
        gc.enable()
        torch = sys.modules.get("torch")
        if torch is not None:
            wanted = environment.get("OMP_NUM_THREADS", "")
            torch.set_num_threads(int(wanted) if wanted.isdecimal() and int(wanted) else len(os.sched_getaffinity(0)))


_FRESH: _Fresh | None = None


def become(options: Options, environment: Mapping[str, str]) -> NoReturn:
    """Be a fresh interpreter that runs this command line, to its end."""
    assert _FRESH is not None
    code = 1
    try:
        _FRESH.restore(options, environment)
        main = ModuleType("__main__")
        main.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        code = _run(options.code, main.__dict__)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(code: str, names: dict[str, Any]) -> int:
    try:
        exec(compile(code, "<string>", "exec"), names)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _replace_exec() -> None:
    """Reuse this process if the stand-in would be executed; execute everything else."""
    real = os.execve

    def execve(path: Any, argv: Sequence[Any], env: Mapping[Any, Any]) -> NoReturn:
        assert _FRESH is not None
        words = [os.fsdecode(word) for word in argv]
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        options = Options.of(words[1:])
        hindered = any(name.startswith(("LD_", "PYTHON")) for name in environment if name not in _HEEDED)
        if os.fsdecode(path) == _FRESH.program and options is not None and not hindered:
            _name(os.path.basename(_FRESH.program))
            become(options, environment)
        real(path, argv, env)

    # `os.execvpe` and its kin look the two up as globals of `os`.
    os.execve = execve
    os.execv = lambda path, argv: execve(path, argv, os.environ)


def serve(listener: socket.socket, program: str) -> None:
    """Answer stand-ins until standard input ends."""
    global _FRESH
    _replace_exec()
    _FRESH = _Fresh(program)
    gc.collect()
    gc.freeze()
    # The processes that serve one stand-in each are not awaited.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready and not os.read(0, 1):
            return
        if listener in ready:
            connection, _ = listener.accept()
            if not os.fork():
                code = 1
                try:
                    listener.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _answer(connection)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            connection.close()


def _answer(connection: socket.socket) -> None:
    """Run what one stand-in asks for, and pass signals and the exit status on."""
    _die_with_parent()
    head, words, fds = _received(connection)
    count, _ = _HEAD.unpack(head)
    options = Options.of(words[1:count])
    assert options is not None, words
    environment = dict(word.partition("=")[::2] for word in words[count:])
    pid, user, group = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    _join(pid)
    child = os.fork()
    if not child:
        _die_with_parent()
        os.setsid()
        if (user, group) != (os.getuid(), os.getgid()):
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
        os.fchdir(fds[3])
        for there, here in zip(fds, (0, 1, 2), strict=False):
            os.dup2(there, here)
        become(options, environment)
    for fd in fds:
        os.close(fd)
    ended = os.pidfd_open(child)
    watched: list[Any] = [connection, ended]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if ended in ready:
            break
        numbers = connection.recv(64)
        if not numbers:
            os.kill(child, signal.SIGKILL)
            watched.remove(connection)
        for number in numbers:
            os.kill(child, number)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        connection.sendall(_STATUS.pack(os.waitstatus_to_exitcode(status)))


def _received(connection: socket.socket) -> tuple[bytes, list[str], list[int]]:
    fds = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(_HEAD.size, socket.CMSG_SPACE(4 * fds.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    for fd in fds:
        # Above the three that they are to become.
        os.set_inheritable(fd, False)
    _, size = _HEAD.unpack(head)
    text = b""
    while len(text) < size:
        more = connection.recv(size - len(text))
        if not more:
            raise ConnectionError("the stand-in is gone")
        text += more
    return head, [os.fsdecode(word) for word in text.split(b"\0")[:-1]], [*fds]


def _join(pid: int) -> None:
    """Take over the control groups, limits and namespaces of the stand-in."""
    with open(f"/proc/{pid}/cgroup") as file:
        for line in file:
            _, kinds, place = line.rstrip("\n").split(":", 2)
            with suppress(OSError), open(f"/sys/fs/cgroup/{kinds}{place}/cgroup.procs", "w") as procs:
                procs.write("0")
    with open(f"/proc/{pid}/status") as file:
        os.umask(next((int(line.split()[1], 8) for line in file if line.startswith("Umask:")), 0o022))
    os.sched_setaffinity(0, os.sched_getaffinity(pid))
    for which in _LIMITS:
        with suppress(OSError, ValueError):
            resource.setrlimit(which, resource.prlimit(pid, which))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, pid))
    libc = ctypes.CDLL(None, use_errno=True)
    others = [
        name for name in _NAMESPACES if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    ]
    doors = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in others]
    for door in doors:
        if libc.setns(door, 0):
            raise OSError(ctypes.get_errno(), "the namespaces of the stand-in cannot be entered")
        os.close(door)


def _name(name: str) -> None:
    """Set /proc/PID/comm, which distinguishes a rank from agents and the server."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    """`python server.py FOLDER`: listen at `FOLDER/socket` for the program `FOLDER/python3`."""
    folder = sys.argv[1]
    sys.path[:] = [place for place in sys.path if place != os.path.dirname(os.path.abspath(__file__))]
    warm_up()
    _name(SERVER_NAME)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{folder}/socket")
    listener.listen(128)
    print("ready", flush=True)
    try:
        serve(listener, f"{folder}/python3")
    finally:
        # A worker of pytest-xdist ends without a last word: only the end of the pipe is noticed here.
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

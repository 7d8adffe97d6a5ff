"""Working and faulty probes. Python 3.8, as everything that runs on nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Generator  # noqa: UP035 (Python 3.8)

from preflight.agent import process
from preflight.agent.cheap import cheap, run_with_pauses
from preflight.agent.wire import ProbeUnavailable

#: A descendant that tries to survive: it has its own session and ignores SIGTERM and SIGHUP.
STUBBORN = (
    "import os, signal, subprocess, sys, time\n"
    "os.setsid()\n"
    "for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)\n"
    "depth = int(sys.argv[1])\n"
    "if depth: subprocess.Popen([sys.executable, '-c', os.environ['STUBBORN'], str(depth - 1)])\n"
    "if depth == 1: os._exit(0)\n"
    "time.sleep(600)\n"
)


@dataclass(frozen=True)
class Place:
    """A fact with a nested value."""

    folder: str
    python: str
    executable: str
    variable: str | None
    numbers: list[float]


def place(params: dict[str, Any]) -> Place:
    return Place(
        str(Path.cwd()),
        "{}.{}".format(*sys.version_info[:2]),
        sys.executable,
        os.environ.get(params.get("variable", "")),
        [1.5, float("inf")],
    )


def echo(params: dict[str, Any]) -> Any:
    return params.get("value")


def _twice(params: dict[str, Any]) -> Generator[float, None, list[Any]]:
    began = time.monotonic()
    yield params["apart_s"]
    if params.get("crash"):
        raise RuntimeError("on the second look")
    return [os.getpid(), began, time.monotonic()]


@cheap("kind", looks=_twice)
def twice(params: dict[str, Any]) -> list[Any]:
    """The process, and the times of its first and last measurement."""
    return run_with_pauses(_twice(params))


def once(params: dict[str, Any]) -> list[Any]:
    """The process, and the time."""
    return [os.getpid(), time.monotonic()]


def crash(params: dict[str, Any]) -> None:
    sys.stderr.write("the device is on fire\n")
    raise RuntimeError("no such luck")


def unavailable(params: dict[str, Any]) -> None:
    raise ProbeUnavailable("missing", "ibstat is not installed")


def leave(params: dict[str, Any]) -> None:
    sys.exit(3)


def kill_self(params: dict[str, Any]) -> None:
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os.kill(os.getpid(), params["signal"])
    time.sleep(60)


def hang(params: dict[str, Any]) -> None:
    time.sleep(600)


def print_noise(params: dict[str, Any]) -> str:
    print("a library that chatters")
    os.write(1, b"\x00\x00\x00\x05hello")
    subprocess.check_call(["echo", "a child that chatters"])
    return "quiet"


def count(params: dict[str, Any], emit: Callable[[Any], None]) -> int:
    for number in range(params["upto"]):
        emit({"number": number})
    return int(params["upto"])


def announce_and_hang(params: dict[str, Any], emit: Callable[[Any], None]) -> None:
    emit({"pid": os.getpid()})
    time.sleep(600)


def no_json(params: dict[str, Any]) -> object:
    return object()


def big(params: dict[str, Any]) -> str:
    return "x" * int(params["bytes"])


def stubborn(params: dict[str, Any], emit: Callable[[Any], None]) -> None:
    """Start descendants that try to outlive this process (a loader, a daemon's daemon), then train for ever."""
    os.environ["STUBBORN"] = STUBBORN
    for depth in ("0", "2"):
        subprocess.Popen([sys.executable, "-c", STUBBORN, depth])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    emit({"pid": os.getpid()})
    time.sleep(600)


def leave_daemon(params: dict[str, Any]) -> int:
    """Return while a daemon of this probe keeps running."""
    os.environ["STUBBORN"] = STUBBORN
    return subprocess.Popen([sys.executable, "-c", STUBBORN, "0"]).pid


def keep_orphan(params: dict[str, Any]) -> bool:
    """Whether an orphaned daemon of this probe still runs two polls of the agent later."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        daemon = os.fork()
        if daemon == 0:
            time.sleep(600)
        os.write(writing, b"%d" % daemon)
        os._exit(0)
    os.waitpid(parent, 0)
    daemon = int(os.read(reading, 99))
    time.sleep(1.2)
    return process.stat_of(daemon) is not None


_TIMES: list[int] = []


def first_time(params: dict[str, Any]) -> bool:
    """Whether this is the first call in this process and its parents."""
    _TIMES.append(1)
    os.environ["FIRST_TIME"] = os.environ.get("FIRST_TIME", "") + "1"
    return len(_TIMES) == 1 and os.environ["FIRST_TIME"] == "1"


def own_pid(params: dict[str, Any]) -> int:
    return os.getpid()

"""Running a tool on a node: an argument list and no shell, under a deadline, in the C locale, with bounded output."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from preflight.agent import process
from preflight.agent.wire import ProbeUnavailable

#: Directories of administrators' tools, which a login without a terminal often leaves out of PATH.
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
MAX_OUTPUT_BYTES = 256 * 1024
_MAX_ERROR_BYTES = 16 * 1024
#: Time to wait for a killed process; one that is stuck in the kernel does not end.
_REAP_WITHIN_S = 0.5
_POLL_S = 0.1


@dataclass(frozen=True)
class CommandResult:
    """The result of a tool. `exit_code` is negative for a signal; `cut`: whether the output was truncated."""

    command: tuple[str, ...]
    exit_code: int
    output: str
    error: str
    took_s: float
    cut: bool = False


def run(
    command: Sequence[str],
    *,
    deadline_s: float,
    environment: Mapping[str, str] | None = None,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> CommandResult:
    """Run `command` with no input and wait for its end, whatever its exit code is.

    `environment` is added to this process's own. Output is decoded as UTF-8 with replacements; anything beyond
    `max_output_bytes` bytes is read and dropped. At the deadline the tool and everything it started are killed.

    Raises:
        ProbeUnavailable: `missing` when there is no such tool, `denied` when it may not be run, `timeout` when it did
            not end in time, `crashed` when it could not be started for another reason.
    """
    import subprocess  # Importing this takes longer than most probes, few of which run a tool.

    words = [str(word) for word in command]
    if not words or not words[0] or any("\0" in word for word in words):
        raise ProbeUnavailable(
            "crashed", f"{words!r} is not a command: expected a list of words that begins with the tool"
        )
    started_at = time.monotonic()
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(environment or {}),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ProbeUnavailable("missing", f"`{words[0]}` was not found") from None
    except PermissionError:
        raise ProbeUnavailable("denied", f"this user may not run `{words[0]}`") from None
    except OSError as error:
        raise ProbeUnavailable("crashed", f"`{words[0]}` cannot be run: {error.strerror}") from None
    try:
        output, error_text, cut = _read(child, started_at + deadline_s, max_output_bytes)
        while not _has_ended(child):
            if time.monotonic() >= started_at + deadline_s:
                raise subprocess.TimeoutExpired(words, deadline_s)
            time.sleep(0.01)
    except subprocess.TimeoutExpired:
        state = process.stat_of(child.pid)
        stuck = ", which is stuck in the kernel (state D)" if state is not None and state.state == "D" else ""
        raise ProbeUnavailable(
            "timeout", "`{}` did not finish within {:.3g} s{}".format(" ".join(words), deadline_s, stuck)
        ) from None
    finally:
        _end(child)
    took = time.monotonic() - started_at
    return CommandResult(tuple(words), child.returncode, _text(output), _text(error_text), took, cut)


def command(params: dict[str, Any]) -> CommandResult:
    """Return the output of the argument list `params["command"]`, run without a shell, for `deadline_s` seconds."""
    return run(params["command"], deadline_s=float(params["deadline_s"]))


def _environment(overrides: Mapping[str, str]) -> dict[str, str]:
    folders = os.environ.get("PATH", "").split(os.pathsep)
    path = os.pathsep.join([*filter(None, folders), *(f for f in SYSTEM_FOLDERS if f not in folders)])
    return {**os.environ, "PATH": path, "LC_ALL": "C", "LANGUAGE": "C", **overrides}


def _read(child: subprocess.Popen[bytes], until: float, largest: int) -> tuple[bytes, bytes, bool]:
    """Read both streams until shortly after the tool ends, as others may hold them. Raises TimeoutExpired."""
    import subprocess

    assert child.stdout is not None and child.stderr is not None
    out, err = bytearray(), bytearray()
    streams = {child.stdout.fileno(): (out, largest), child.stderr.fileno(): (err, _MAX_ERROR_BYTES)}
    waiting: list[int] = list(streams)
    cut = False
    while waiting:
        ended = _has_ended(child)
        remaining = until - time.monotonic()
        ready = select.select(waiting, [], [], max(0.0, min(remaining, _POLL_S)))[0]
        if not ready and ended:
            break
        if not ready and remaining <= 0:
            raise subprocess.TimeoutExpired(child.args, 0)
        for fd in ready:
            data = os.read(fd, 65536)
            if not data:
                waiting.remove(fd)
                continue
            buffer, most = streams[fd]
            room = most - len(buffer)
            buffer += data[:room]
            cut = cut or len(data) > room
    return bytes(out), bytes(err), cut


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Return whether the tool has ended. It is not reaped yet, so that its pid still identifies its process group."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the rest of the tool and its process group, reap it, and close its streams."""
    import subprocess

    if child.returncode is None:
        for pid in [*process.descendants(child.pid), child.pid]:
            process.kill_all([pid])
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    try:
        child.wait(timeout=_REAP_WITHIN_S)
    except subprocess.TimeoutExpired:
        pass
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
